"""Fine-tune a model of text on texts of your own: Google's magika learns to tell kinds of Python files apart.

    pip install onward magika==1.0.3
    python examples/finetune_text.py --output text-demo

magika reads the first and the last bytes of a file and knows 214 types, among them Python. It learns what it does not
know: whether a Python file is a type stub, a test or a module. The texts are the files of the packages that are
installed beside this script. Whole packages are held out, so that the model cannot learn their habits.

The same with your own texts: make `data.npz` with `bytes` (see `features`) and `labels`, and run the printed command.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import site
import subprocess
import sys
from pathlib import Path

import numpy as np

CLASSES = ("module", "stub", "test")
EACH_END = 1024  # bytes that magika reads at either end of a file
PADDING = 256  # what it reads where there is no byte
HELD_OUT = ("matplotlib", "pandas", "scipy")


def magika() -> Path:
    """Return the network in the package magika."""
    package = importlib.util.find_spec("magika")
    if package is None or package.origin is None:
        raise SystemExit("pip install magika==1.0.3, or give its model.onnx with --model")
    return Path(package.origin).parent / "models" / "standard_v3_3" / "model.onnx"


def features(text: bytes) -> np.ndarray:
    """Return what magika reads of a file: its first and its last bytes, without the spaces around it."""
    begin, end = text[:4096].lstrip()[:EACH_END], text[-4096:].rstrip()[-EACH_END:]
    row = np.full(2 * EACH_END, PADDING, np.int32)
    row[: len(begin)] = np.frombuffer(begin, np.uint8)
    row[2 * EACH_END - len(end) :] = np.frombuffer(end, np.uint8)
    return row


def kind_of(path: Path) -> str | None:
    """Return the class of a file of a package; None for other files."""
    if path.suffix == ".pyi":
        return "stub"
    if path.suffix != ".py" or path.name == "__init__.py":
        return None
    return "test" if path.name.startswith("test_") else "module"


def collect(per_class: int, seed: int) -> dict[str, list[tuple[np.ndarray, int]]]:
    """Return samples of real files: `train`, and `new` from packages that the training does not see."""
    found: dict[tuple[str, str], list[Path]] = {}
    for root in map(Path, site.getsitepackages()):
        for path in sorted(root.rglob("*.py*")):
            kind = kind_of(path)
            if kind is not None and path.stat().st_size > 200:
                part = "new" if path.relative_to(root).parts[0] in HELD_OUT else "train"
                found.setdefault((part, kind), []).append(path)
    random = np.random.default_rng(seed)
    samples: dict[str, list[tuple[np.ndarray, int]]] = {"train": [], "new": []}
    for (part, kind), paths in sorted(found.items()):
        count = min(len(paths), per_class if part == "train" else per_class // 4)
        for number in random.choice(len(paths), count, replace=False):
            samples[part].append((features(paths[int(number)].read_bytes()), CLASSES.index(kind)))
    return samples


def onward(*arguments: object) -> None:
    """Run a command as a user types it."""
    words = [str(a) for a in arguments]
    print("\n$ onward " + " ".join(words), flush=True)
    subprocess.run([sys.executable, "-m", "onward", *words], check=True)


def main(args: argparse.Namespace) -> float:
    """Return the share of the held-out files that the tuned model knows."""
    args.output.mkdir(parents=True, exist_ok=True)
    samples = collect(args.files, args.seed)
    for part, rows in samples.items():
        texts, labels = zip(*rows, strict=True)
        np.savez(args.output / f"{part}.npz", bytes=np.stack(texts), labels=np.array(labels))
    tuned, named = args.output / "tuned.onnx", args.output / "predictions.json"
    onward(
        "train", args.model or magika(), "--data", args.output / "train.npz", "--classes", ",".join(CLASSES),
        "--epochs", args.epochs, "--inference", tuned,
    )  # fmt: skip
    onward("predict", tuned, "--data", args.output / "new.npz", "-o", named)
    rows = json.loads(named.read_text(encoding="utf-8"))
    right = [row["class"] == CLASSES[label] for row, (_, label) in zip(rows, samples["new"], strict=True)]
    print(f"\n{sum(right)} of {len(right)} files of other packages are known ({np.mean(right):.1%})")
    return float(np.mean(right))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("text-demo"), help="folder for data and results")
    parser.add_argument("--model", type=Path, help="magika's model.onnx (default: that of the package)")
    parser.add_argument("--files", type=int, default=300, help="files of each class to train on")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
