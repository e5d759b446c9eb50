"""`make web`: a site with a network that knows handwritten digits a little, and learns yours in the browser.

scikit-learn's 1,797 digits of 8×8 pixels are drawn as 28×28, each several times: turned, shifted, thicker and thinner.
The network learns them well, but your hand is another one, so there is something left to teach it. Some of them come
with the page, so that it does not forget the others while it learns yours.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np

import onward
from onward.train import Preparation
from onward.web import build_site, fetch_runtime, read_runtime, write_site

SIZE = 28


def draw_digits(copies: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return (images, labels): bytes of shape (N, 1, 28, 28) and class numbers, in random order."""
    from scipy import ndimage
    from sklearn import datasets

    digits = datasets.load_digits()
    random = np.random.default_rng(seed)
    images, labels = [], []
    for image, label in zip(digits.images / 16.0, digits.target, strict=True):
        for _ in range(copies):
            turn, slant = random.normal(0, 0.12), random.normal(0, 0.15)
            height, width = random.uniform(0.32, 0.5, 2)  # pixels of 8×8 for one of 28×28
            matrix = np.array(
                [
                    [np.cos(turn) * height, -np.sin(turn) * height],
                    [(np.sin(turn) + slant) * width, np.cos(turn) * width],
                ]
            )
            centre = np.array([3.5, 3.5]) - matrix @ (np.full(2, (SIZE - 1) / 2) + random.normal(0, 1.5, 2))
            drawn = ndimage.affine_transform(image, matrix, centre, (SIZE, SIZE), order=3)
            edge = random.uniform(0.3, 0.6)  # where ink begins: the thickness of the pen
            images.append(255 / (1 + np.exp(-(drawn - edge) * 12)))
            labels.append(label)
    order = random.permutation(len(images))
    return np.asarray(images)[order, None].round().astype(np.uint8), np.asarray(labels, np.int64)[order]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("build/site"))
    parser.add_argument("--runtime", type=Path, help="an installed onnxruntime-web (default: npm)")
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()
    images, labels = draw_digits(copies=8)
    trainer = onward.Trainer(onward.samples.mnist())
    trainer.initialize(seed=1)
    pixels = Preparation(scale=1 / 255, classes=tuple("0123456789"))
    trainer.fit(images[1500:], labels[1500:], epochs=arguments.epochs, batch_size=64, preparation=pixels,
                validation_data=(images[:1500], labels[:1500]), metrics=["accuracy"])  # fmt: skip
    # Only the weights go into the page: moments start from zero, which nobody needs to download.
    network = onward.samples.mnist_network()
    model = onward.make_trainable(network, loss="cross_entropy", optimizer=onward.Adam(5e-4), initialize="he")
    program = onward.compile(model)
    program = dataclasses.replace(program, state={**program.state, **trainer.parameters})
    runtime = fetch_runtime() if arguments.runtime is None else read_runtime(arguments.runtime)
    title, data = "Digits that learn your hand", (images[:1500], labels[:1500])
    site = build_site(program, runtime, title=title, data=data, change=lambda _: pixels)
    write_site(site, arguments.output)
    print(f"wrote {arguments.output}/: {len(site.files)} files, {site.size / 1e6:.1f} MB")
    print(f"look at it: onward web {arguments.output} --serve")


if __name__ == "__main__":
    main()
