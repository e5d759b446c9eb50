"""Batches that somebody else makes: a DataLoader, tf.data, a generator, a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from onward.arguments import a_or_an, whole
from onward.compiler.program import TensorSpec
from onward.errors import A101, ArgumentError, DataError, Diagnostic
from onward.train.data.arrays import flat, to_array
from onward.train.data.source import T106, T107, Batch, BatchRequest, DataSource


class IterableSource(DataSource):
    """Batches from any iterable (a torch DataLoader, tf.data, a list, a generator) or from a function.

    Each item is one batch: a dict of arrays by name, or a tuple of arrays (inputs, then targets). A function is called
    once per epoch, with the number of the epoch if it takes an argument, and returns an iterable. `request.batch_size`,
    shuffling and the seed have no effect: the iterable decides.
    """

    def __init__(
        self,
        items: Iterable[Any] | Callable[..., Iterable[Any]],
        *,
        steps_per_epoch: int | None = None,
        text: bool = False,
    ) -> None:
        if not (isinstance(items, Iterable) or callable(items)):
            raise ArgumentError(
                Diagnostic(A101, f"{a_or_an(items)} gives no batches", needed="an iterable, or a function")
            )
        self._items = items
        self._text = text  # whether the model takes any
        self._steps = None if steps_per_epoch is None else whole("steps_per_epoch", steps_per_epoch, 1)
        self._one_shot: Iterator[Any] | None = items if isinstance(items, Iterator) else None
        self._first: Batch | None = None
        self._peeked: list[Batch] = []
        self._delivered = 0  # of a one-shot iterator, over all epochs
        self.positional = False

    def count_batches(self, batch_size: int, drop_last: bool = False) -> int | None:
        if self._steps is not None:
            return self._steps
        length = getattr(self._items, "__len__", None)
        if length is None:
            return None
        try:
            return int(length())
        except TypeError:  # a torch DataLoader over an IterableDataset, a tf.data set of unknown size
            return None

    @property
    def caveat(self) -> str:
        sampler = type(getattr(self._items, "sampler", None))
        if sampler.__module__.startswith("torch.utils.data") and "Random" in sampler.__name__:
            return (
                "the DataLoader draws its order with torch's own random numbers, which a checkpoint does not hold; "
                "pass its dataset instead, with batch_size= and seed=, and Onward shuffles"
            )
        return ""

    def _open(self, epoch: int) -> Iterator[Any]:
        if self._one_shot is not None:
            return self._one_shot
        if callable(self._items) and not isinstance(self._items, Iterable):
            return self._call(self._items, epoch)
        return iter(self._items)

    def _call(self, function: Callable[..., Iterable[Any]], epoch: int) -> Iterator[Any]:
        needed = "a function of nothing, or of the number of the epoch, that returns an iterable of batches"
        takes = inspect.signature(function).parameters.values()
        required = [p for p in takes if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(required) > 1 or any(p.default is p.empty and p.kind is p.KEYWORD_ONLY for p in takes):
            raise DataError(
                Diagnostic(
                    T107,
                    "the function that gives the batches takes too many arguments",
                    found=", ".join(p.name for p in takes),
                    needed=needed,
                )
            )
        items = function(epoch) if takes else function()
        if not isinstance(items, Iterable):
            raise DataError(
                Diagnostic(T107, "the function gave no batches", found=f"it returned {a_or_an(items)}", needed=needed)
            )
        return iter(items)

    def _as_batch(self, item: Any, number: int) -> Batch:
        if isinstance(item, Mapping):
            return {str(k): self._copy(v, number, f"`{k}`") for k, v in item.items()}
        self.positional = True
        if isinstance(item, (tuple, list)):
            return {f"item[{i}]": self._copy(v, number, f"item {i}") for i, v in enumerate(flat(item))}
        if hasattr(item, "__array__"):
            return {"item[0]": self._copy(item, number, "the item")}
        raise DataError(
            Diagnostic(
                T107,
                f"batch {number} of the iterable is {a_or_an(item)}",
                needed="a dict of arrays by name, or a tuple of arrays (inputs, then targets)",
            )
        )

    def _copy(self, value: Any, number: int, what: str) -> np.ndarray:
        return np.array(to_array(value, f"{what} of batch {number} of the iterable", text=self._text))

    def specs(self) -> list[TensorSpec]:
        if self._first is None:
            iterator = self._open(0)
            item = next(iterator, None)
            if item is None:
                raise DataError(Diagnostic(T106, "the iterable gives no batch", needed="at least one batch"))
            self._first = self._as_batch(item, 0)
            if self._one_shot is not None:
                self._peeked.append(self._first)
        return [TensorSpec(n, str(a.dtype), (None, *a.shape[1:]) if a.ndim else ()) for n, a in self._first.items()]

    def _next(self, iterator: Iterator[Any], number: int) -> Batch | None:
        self._delivered += 1
        if self._peeked:
            return self._peeked.pop(0)
        item = next(iterator, None)
        return None if item is None else self._as_batch(item, number)

    def batches(self, request: BatchRequest) -> Iterator[Batch]:
        iterator = self._open(request.epoch)
        end = self._steps
        if self._one_shot is not None and end is not None:
            for number in range(self._delivered, request.epoch * end):  # a resumed run with a fresh generator
                if self._next(iterator, number) is None:
                    break
        number = 0
        while end is None or number < end:
            batch = self._next(iterator, number)
            if batch is None:
                break
            if number >= request.start:
                yield batch
            number += 1
        if number == 0 or (end is not None and number < end):
            raise DataError(
                Diagnostic(
                    T106,
                    f"the iterable gave {number or 'no'} batch{'es' * (number > 1)} in epoch {request.epoch + 1}",
                    needed="at least one" if end is None else f"{end}, as steps_per_epoch says",
                    hint="a generator can be read only once; pass a function that returns a new one, or a list"
                    if self._one_shot is not None
                    else "",
                )
            )
