"""Mix each sample of a batch with its partner: mixup and cutmix.

The partner is the next sample of the epoch, so a batch needs one sample more than it has. Without shuffling, neighbours
are often of one class; there the partner is any sample. Neither depends on the size of the batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from onward.augment.base import draws
from onward.augment.mixing import Cutmix, Mixing
from onward.reading.samples import Field, Rows
from onward.train.data.matching import Matching
from onward.train.data.source import Batch, epoch_order

_PARTNER_KEY = 0x6D6978  # keeps the partners independent of the order of any epoch


def partners(places: np.ndarray, size: int, *, shuffled: bool, seed: int, epoch: int) -> np.ndarray:
    """Return the places in the epoch of the partners of the samples at `places`."""
    if shuffled:
        return (places + 1) % size
    found: np.ndarray = epoch_order(size, seed ^ _PARTNER_KEY, epoch)[places]
    return found


class Mixer:
    """Mixes the feeds of a batch; where both mixup and cutmix are asked for, each sample gets one of them."""

    def __init__(self, mixings: Sequence[Mixing], fields: Mapping[str, Field], matching: Matching, number: int) -> None:
        self._mixings = tuple(mixings)
        self._feeds = tuple(f for f in matching.feeds if f.spec.name != matching.weight)
        self._weight = matching.weight
        self._fields = fields
        self._number = number  # of its random numbers, after those of the augmentations of single samples

    def mix(self, feeds: Batch, rows: Rows, partner: np.ndarray) -> Batch:
        """Return the first samples of the feeds, each mixed with the one at its place in `partner`."""
        count = len(partner)
        mixed = {name: array[:count].copy() for name, array in feeds.items()}
        for i in range(count):
            rng = draws(rows.seed, rows.epoch, int(rows.indices[i]), int(rows.occurrences[i]), self._number)
            mixing = self._mixings[int(rng.random() * len(self._mixings))]
            share = float(rng.beta(mixing.alpha, mixing.alpha))
            if isinstance(mixing, Cutmix):
                share = self._cut(mixing, mixed, feeds, i, int(partner[i]), share, rng)
            else:
                for feed in self._feeds:
                    if not feed.is_target:
                        _blend(mixed, feeds, feed.spec.name, i, int(partner[i]), share)
            keeps = rng.random() < share
            targets = [f.spec.name for f in self._feeds if f.is_target]
            if mixing.labels == "mix":
                toward = self._weigh(mixed, feeds, i, int(partner[i]), share)
                for name in targets:
                    _blend(mixed, feeds, name, i, int(partner[i]), toward)
            elif not keeps:
                for name in [*targets, *([] if self._weight is None else [self._weight])]:
                    mixed[name][i] = feeds[name][partner[i]]
        return mixed

    def _weigh(self, mixed: Batch, feeds: Batch, i: int, j: int, share: float) -> float:
        """Mix the weights of two samples and return the share of the first in their target.

        The loss is then share · w[i] · loss(y[i]) + (1 − share) · w[j] · loss(y[j]): each label has its own weight.
        """
        if self._weight is None:
            return share
        weights = feeds[self._weight]
        own, other = share * float(weights[i]), (1.0 - share) * float(weights[j])
        mixed[self._weight][i] = own + other
        return own / (own + other) if own + other > 0 else share

    def _cut(
        self, mixing: Cutmix, mixed: Batch, feeds: Batch, i: int, j: int, share: float, rng: np.random.Generator
    ) -> float:
        """Replace a rectangle of each image of sample `i` and return the share of pixels that it keeps."""
        kept = 1.0
        corner = float(rng.random()), float(rng.random())
        for feed in self._feeds:
            field = self._fields[feed.column]
            if feed.is_target or field.role != "image":
                continue
            old, new = (
                field.to_picture(array[k].reshape(field.shape))
                for array, k in ((mixed[feed.spec.name], i), (feeds[feed.spec.name], j))
            )
            height, width = old.shape[:2]
            top, bottom, left, right = mixing.box(share, height, width, corner)
            old[top:bottom, left:right] = new[top:bottom, left:right]
            kept = 1.0 - (bottom - top) * (right - left) / (height * width)
        return kept


def _blend(mixed: Batch, feeds: Batch, name: str, i: int, j: int, share: float) -> None:
    """Make sample `i` of the result share · x[i] + (1 − share) · x[j]."""
    array = feeds[name]
    first = array.dtype.type(share)
    mixed[name][i] = array[i] * first + array[j] * (array.dtype.type(1) - first)
