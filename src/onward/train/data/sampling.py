"""Balanced sampling: every class comes up equally often in an epoch."""

from __future__ import annotations

import copy

import numpy as np

from onward.train.data.source import BatchRequest, ColumnSource, epoch_order


def balanced_order(classes: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Return numbers of samples for one epoch, as many as there are samples, with each class equally often (± 1).

    The members of a class come in a random order, all of them before any of them again. The order depends on
    (seed, epoch) only, so a resumed run goes on exactly.

    >>> order = balanced_order(np.array([0, 0, 0, 0, 0, 1]), seed=0, epoch=0)
    >>> len(order), int((order == 5).sum())
    (6, 3)
    """
    known = np.unique(classes)
    size, turns = len(classes), epoch_order(len(known), seed, (1 << 62) + epoch)
    chosen = []
    for place, number in enumerate(turns):
        members = np.flatnonzero(classes == known[number])
        wanted = (size + len(known) - 1 - place) // len(known)  # the first classes of this epoch's turns get one more
        rounds = -(-wanted // len(members))
        keys = [(1 << 61) + (epoch << 32) + (int(number) << 12) + i for i in range(rounds)]
        drawn = [members[epoch_order(len(members), seed, key)] for key in keys]
        chosen.append(np.concatenate([*drawn, members[:0]])[:wanted])
    drawn_all = np.concatenate(chosen)
    return np.asarray(drawn_all[epoch_order(len(drawn_all), seed, epoch)])


def balanced(source: ColumnSource, classes: np.ndarray) -> ColumnSource:
    """Return a copy of the source that draws each class equally often; `classes` holds the class of each sample."""
    drawn = copy.copy(source)

    def order(request: BatchRequest) -> np.ndarray:
        return balanced_order(classes, request.seed, request.epoch)

    drawn.order = order  # type: ignore[method-assign]  # a source of any class keeps the rest of its ways
    return drawn
