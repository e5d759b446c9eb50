"""Fine-tune an image network on photos of your own, and let it name new ones.

    pip install 'onward[images]' table_cls==1.0.0 scikit-learn matplotlib
    python examples/finetune_images.py --output photos-demo

The network is one that the package table_cls ships to tell tables with lines from tables without: 2 classes. It learns
what pieces of three photos show: a temple and a flower (scikit-learn's sample photos) and a portrait (matplotlib's).
Each photo is divided into tiles, and each tile belongs to training, to validation or to what is held out: pieces of one
tile overlap, pieces of two tiles never do. So neither the validation nor the held-out pieces hold a pixel that was
trained on, and both accuracies say the same. The script

    1. cuts the tiles into folders of pieces, one folder per class, as one would have them on disk,
    2. fine-tunes with one call of the command line, which prints what it chooses,
    3. names the held-out pieces with `onward predict` and counts how many are right.

Folders of an earlier run in the output folder are replaced.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

SIDE, TILE = 64, 80
SHARES = {"new": 0.2, "validation": 0.25, "train": 1.0}  # each of the tiles that those before it left
IMAGENET = ("--scale", "1/255", "--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225")  # as it was trained
CLASSIFIER = "models/table_cls.onnx"


def classifier() -> Path:
    """Return the network in the package table_cls."""
    package = importlib.util.find_spec("table_cls")
    if package is None or package.origin is None:
        raise SystemExit("pip install table_cls==1.0.0, or give another network with --model")
    return Path(package.origin).parent / CLASSIFIER


def photos() -> dict[str, Image.Image]:
    """Return three real photos by what they show."""
    from matplotlib import cbook
    from sklearn.datasets import load_sample_images

    temple, flower = load_sample_images().images
    portrait = Image.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False))
    return {"temple": Image.fromarray(temple), "flower": Image.fromarray(flower), "portrait": portrait.convert("RGB")}


def cut_pieces(folder: Path, per_class: int, seed: int) -> None:
    """Write pieces of the tiles of each photo: `train/<class>/…`, `validation/<class>/…` and `new/<class>_…`."""
    random = np.random.default_rng(seed)
    for part in SHARES:
        shutil.rmtree(folder / part, ignore_errors=True)
    for name, photo in photos().items():
        corners = [
            (x, y) for y in range(0, photo.height - TILE + 1, TILE) for x in range(0, photo.width - TILE + 1, TILE)
        ]
        random.shuffle(corners)
        for part, share in SHARES.items():
            own, corners = corners[: round(len(corners) * share)], corners[round(len(corners) * share) :]
            target = folder / part / ("." if part == "new" else name)
            target.mkdir(parents=True, exist_ok=True)
            for number in range(per_class if part == "train" else per_class // 4):
                left, top = own[number % len(own)]
                side = int(random.integers(TILE * 3 // 4, TILE + 1))
                x, y = left + random.integers(0, TILE - side + 1), top + random.integers(0, TILE - side + 1)
                piece = photo.crop((x, y, x + side, y + side)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
                piece.save(target / f"{name}_{number:03}.png")


def onward(*arguments: object) -> None:
    """Run a command as a user types it."""
    words = [str(a) for a in arguments]
    print("\n$ onward " + " ".join(words), flush=True)
    subprocess.run([sys.executable, "-m", "onward", *words], check=True)


def main(args: argparse.Namespace) -> float:
    """Return the share of the held-out pieces that the tuned network names right."""
    cut_pieces(args.output, args.pieces, args.seed)
    tuned, named = args.output / "tuned.onnx", args.output / "predictions.csv"
    onward(
        "train", args.model or classifier(), "--data", args.output / "train", "--classes", "auto",
        "--validation", args.output / "validation", "--epochs", args.epochs, "--inference", tuned, *IMAGENET,
    )  # fmt: skip
    onward("predict", tuned, "--data", args.output / "new", "--top", 2, "-o", named)
    with named.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    right = [row["class"] == row["file"].split("_")[0] for row in rows]
    print(f"\n{sum(right)} of {len(right)} held-out pieces are named right ({np.mean(right):.1%})")
    return float(np.mean(right))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("photos-demo"), help="folder for pieces and results")
    parser.add_argument("--model", type=Path, help="another image network (default: that of table_cls)")
    parser.add_argument("--pieces", type=int, default=200, help="pieces of each photo to train on")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
