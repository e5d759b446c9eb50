"""Reading a folder of photos: Onward with 0, 1 and 2 workers beside torch's DataLoader and tf.data; then training.

    python benchmarks/reading.py [--count 20000] [--images N] [--turns 3] [--folder DIR] [--tensorflow PYTHON]

The photos are JPEGs of 500 × 375, cut at random places and scales from photographs that scikit-learn, scikit-image and
matplotlib ship (those that are installed), in 10 classes. They are written once and kept in `--folder`. Every reader
decodes each photo, takes a random part of at least 80 % of its area, mirrors half of them, resizes to 224 × 224 and
delivers batches of 64 as normalised float32. Each runs in a process of its own, in turn, so that all see the same
noise. tf.data needs a Python with TensorFlow, named by `--tensorflow`.

Then a small network of separable convolutions trains on the folder (`fit`), and on photos that are in memory already
(`step alone`): where the two are equal, the step is the limit and not the reader. `--images` ends each measurement
after that many photos, which are still chosen at random from the whole folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH, SIZE, CLASSES = 64, 224, 10
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WORKERS = (0, 1, 2)
SOURCES = {
    "sklearn": ("datasets/images/china.jpg", "datasets/images/flower.jpg"),
    "skimage": ("data/astronaut.png", "data/chelsea.png", "data/coffee.png", "data/rocket.jpg", "data/retina.jpg"),
    "matplotlib": ("mpl-data/sample_data/grace_hopper.jpg",),
}


# ------------------------------------------------------------------ the photos


def photographs() -> list[Any]:
    """Return the photographs that the installed packages ship."""
    from PIL import Image

    found = []
    for package, names in SOURCES.items():
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            found += [Image.open(p).convert("RGB") for n in names if (p := Path(place) / n).is_file()]
    if not found:
        raise SystemExit("no photographs: pip install scikit-learn")
    return found


def write_photos(folder: Path, count: int) -> None:
    """Write `count` JPEGs of 500 × 375; those that are there already stay."""
    originals = photographs()
    for number in range(count):
        path = folder / f"class{number % CLASSES}" / f"{number:06d}.jpg"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(number)
        image = originals[number % len(originals)]
        scale = rng.uniform(0.5, 1.0) * min(image.width / 500, image.height / 375)
        width, height = 500 * scale, 375 * scale
        left, top = rng.uniform(0, image.width - width), rng.uniform(0, image.height - height)
        image.resize((500, 375), box=(left, top, left + width, top + height)).save(path, quality=90)


# ------------------------------------------------------------------ readers: each yields batches of one epoch


def read_onward(folder: Path, workers: int) -> Iterator[int]:
    from onward import augment
    from onward.compiler.program import TensorSpec
    from onward.train.data import BatchRequest, Preparation, as_source, match
    from onward.train.data.augmenting import bind
    from onward.train.data.prefetch import Prefetcher
    from onward.train.data.reader import Reader

    inputs = (TensorSpec("images", "float32", ("N", 3, SIZE, SIZE)),)
    targets = (TensorSpec("labels", "int64", ("N",)),)
    preparation = Preparation(scale=1 / 255, mean=MEAN, std=STD)
    source = as_source(str(folder), None, inputs, targets, preparation)
    matching = match(source, inputs, targets, preparation)
    bound = bind(augment.from_text("crop=0.8,flip"), source, matching)
    request = BatchRequest(BATCH, shuffle=True)
    with Reader(source, matching, bound, workers, 2) as reader, Prefetcher(reader.feeds(request)) as ready:
        for feeds in ready:
            yield check(feeds["images"])


def read_torch(folder: Path, workers: int) -> Iterator[int]:
    import torch

    loader = torch.utils.data.DataLoader(Photos(folder), BATCH, shuffle=True, num_workers=workers)
    for images, _ in loader:
        yield check(images.numpy())


class Photos:
    """A dataset for torch's DataLoader, as its users write it, with Pillow."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.rglob("*.jpg"))
        self.mean, self.std = (np.array(v, np.float32).reshape(3, 1, 1) for v in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch
        from PIL import Image

        rng = np.random.default_rng(index)
        with Image.open(self.paths[index]) as opened:
            image = opened.convert("RGB")
        share = np.sqrt(rng.uniform(0.8, 1.0))
        width, height = image.width * share, image.height * share
        left, top = rng.uniform(0, image.width - width), rng.uniform(0, image.height - height)
        image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
        if rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = np.asarray(image, np.float32).transpose(2, 0, 1) / 255
        return torch.from_numpy((pixels - self.mean) / self.std), index % CLASSES


def read_tensorflow(folder: Path, workers: int) -> Iterator[int]:
    import tensorflow as tf

    paths = [str(p) for p in sorted(folder.rglob("*.jpg"))]

    def load(path: Any) -> Any:
        share = tf.sqrt(tf.random.uniform((), 0.8, 1.0))
        size = tf.cast(tf.cast((375, 500), tf.float32) * share, tf.int32)
        top = tf.random.uniform((), 0, 376 - size[0], tf.int32)
        left = tf.random.uniform((), 0, 501 - size[1], tf.int32)
        window = tf.stack([top, left, size[0], size[1]])
        image = tf.image.decode_and_crop_jpeg(tf.io.read_file(path), window, channels=3)
        image = tf.image.random_flip_left_right(tf.image.resize(image, (SIZE, SIZE), antialias=True))
        return tf.transpose((image / 255.0 - MEAN) / STD, (2, 0, 1))

    data = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).map(load, tf.data.AUTOTUNE)
    for images in data.batch(BATCH).prefetch(tf.data.AUTOTUNE):
        yield check(images.numpy())


def check(images: np.ndarray) -> int:
    """Return the number of images after looking at what a reader delivers."""
    assert images.dtype == np.float32
    assert images.shape[1:] == (3, SIZE, SIZE), images.shape
    assert -3 < images[0].mean() < 3
    return len(images)


READERS = {"onward": read_onward, "torch": read_torch, "tf.data": read_tensorflow}


def time_reader(name: str, folder: Path, workers: int, limit: int) -> dict[str, float]:
    """Return images per second from the first batch on, and the seconds until it came."""
    began = time.perf_counter()
    batches = READERS[name](folder, workers)
    next(batches)
    first = time.perf_counter()
    images = sum(itertools.islice(batches, limit // BATCH))
    return {"rate": images / (time.perf_counter() - first), "start": first - began, "images": images}


# ------------------------------------------------------------------ training


def network() -> Any:
    """Return a training model of separable convolutions for photos, about 0.1 million parameters."""
    import torch
    from torch import nn

    import onward

    layers: list[Any] = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    for before, width in ((16, 32), (32, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(before, before, 3, 2, 1, groups=before, bias=False), nn.BatchNorm2d(before), nn.ReLU()]
        layers += [nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, CLASSES))
    return onward.from_torch(
        module, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.Adam(module.parameters()),
        example_inputs=(torch.zeros(BATCH, 3, SIZE, SIZE),), example_targets=torch.zeros(BATCH, dtype=torch.int64),
    )  # fmt: skip


def time_training(folder: Path, workers: int | None, limit: int) -> dict[str, float]:
    """Return samples per second of the second epoch of `fit`; with None, from images in memory."""
    from onward.train import Preparation, Trainer
    from onward.train.data import as_source

    trainer = Trainer(network())
    names = dict(zip(trainer.input_names, ("images", "labels"), strict=True))
    preparation = Preparation(scale=1 / 255, mean=MEAN, std=STD, columns=names)
    options: dict[str, Any] = {"epochs": 2, "batch_size": BATCH, "drop_last": True, "preparation": preparation}
    if workers is None:
        source = as_source(str(folder), None, trainer.program.inputs, trainer.program.targets, preparation)
        held: dict[str, Any] = {n: c.take(np.arange(min(512, source.size))) for n, c in source.columns.items()}
        history = trainer.fit(held, progress="none", **options)
    else:
        options |= {"augment": "crop=0.8,flip", "workers": workers, "steps_per_epoch": limit // BATCH}
        history = trainer.fit(str(folder), progress="none", **options)
    return {"rate": float(history.epochs[-1]["samples_per_second"]), "start": 0.0}


# ------------------------------------------------------------------ the table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--images", type=int, metavar="N", help="End each measurement after N photos; default: all.")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "onward-photos")
    parser.add_argument("--tensorflow", default="", metavar="PYTHON", help="A Python that has TensorFlow.")
    parser.add_argument("--one", nargs=2, metavar=("KIND", "WORKERS"), help="Measure one and print JSON.")
    options = parser.parse_args()
    folder = options.folder / str(options.count)
    limit = min(options.images or options.count, options.count)
    if options.one:
        kind, workers = options.one[0], None if options.one[1] == "None" else int(options.one[1])
        result = (
            time_training(folder, workers, limit) if kind == "fit" else time_reader(kind, folder, workers or 0, limit)
        )
        print(json.dumps(result))
        return
    write_photos(folder, options.count)
    cases = [(kind, w) for kind in ("onward", "torch") for w in WORKERS]
    cases += [("tf.data", 0)] if options.tensorflow else []
    cases += [("fit", None), *(("fit", w) for w in WORKERS)]
    results: dict[tuple[str, int | None], list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(options.turns):
        for kind, workers in cases:
            python = options.tensorflow if kind == "tf.data" else sys.executable
            command = [python, __file__, "--count", str(options.count), "--folder", str(options.folder)]
            command += ["--images", str(limit)]
            run = subprocess.run([*command, "--one", kind, str(workers)], capture_output=True, text=True)
            if run.returncode:
                raise SystemExit(f"{kind}, {workers} workers:\n{run.stderr}")
            results[kind, workers].append(json.loads(run.stdout.splitlines()[-1]))
            print(f"{kind} {workers}: {results[kind, workers][-1]['rate']:.0f} images/s", file=sys.stderr, flush=True)
    print(f"{options.count:,} photos of 500 × 375 to {SIZE} × {SIZE}; {limit:,} in a turn, median of {options.turns}\n")
    print(f"{'':<40}{'images/s':>10}{'best':>10}{'first batch s':>15}")
    for (kind, workers), runs in results.items():
        rates = [r["rate"] for r in runs]
        shown = "fit, photos in memory (the step alone)" if (kind, workers) == ("fit", None) else kind
        shown += "" if workers is None or kind == "tf.data" else f", {workers} workers"
        start = statistics.median(r["start"] for r in runs)
        print(f"{shown:<40}{statistics.median(rates):>10.0f}{max(rates):>10.0f}" + (f"{start:>9.2f}" if start else ""))
    if not options.tensorflow:
        print("tf.data was left out: name a Python that has TensorFlow with --tensorflow")


if __name__ == "__main__":
    main()
