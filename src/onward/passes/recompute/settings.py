"""What the arguments `recompute` and `store` say, and the estimates of what they do to the memory of a step."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from onward.arguments import check_name, shown, whole
from onward.errors import A101, ArgumentError, Diagnostic, counted

AUTO = "auto"
STORES = ("bfloat16", "float16")
PREFIX = "again/"  # of the names of what is computed again
ASSUMED = 32  # for a free size of the batch that nobody states
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B)\s*", re.IGNORECASE)

Asked = str | int | Sequence[str]


@dataclasses.dataclass(frozen=True)
class Recompute:
    """What to recompute: all that is cheap (no patterns, no budget), what the patterns match, or what the budget needs.

    `sizes` are the free sizes of the batch by name, for which memory is estimated.
    """

    patterns: tuple[str, ...] = ()
    budget: int | None = None
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def asked(self) -> str | list[str]:
        """The argument in the form in which a manifest has it."""
        if self.budget is not None:
            return f"{self.budget}B"
        return list(self.patterns) or AUTO

    def arguments(self) -> dict[str, Any]:
        """Return it as arguments of `onward.compile`."""
        return {"recompute": self.asked, "sizes": dict(self.sizes)}


def read_recompute(asked: Asked | None, sizes: Mapping[str, int] | None = None) -> Recompute | None:
    """Return what the argument says; None without one.

    >>> read_recompute("1.5GB").budget, read_recompute(["layer1.*"]).patterns, read_recompute(None)
    (1500000000, ('layer1.*',), None)

    Raises:
        ArgumentError: it is neither "auto", an amount of memory, nor patterns.
    """
    known = _read_sizes(sizes)
    if asked is None:
        return None
    if isinstance(asked, str):
        if asked == AUTO:
            return Recompute(sizes=known)
        amount = _AMOUNT.fullmatch(asked)
        if amount:
            return Recompute(budget=int(float(amount[1]) * _UNITS[amount[2].upper()]), sizes=known)
        asked = [asked]
    if isinstance(asked, int) and not isinstance(asked, bool):
        return Recompute(budget=whole("recompute", asked, 1), sizes=known)
    patterns = list(asked) if isinstance(asked, (list, tuple)) else []
    if not patterns or not all(isinstance(p, str) and p for p in patterns):
        raise ArgumentError(
            Diagnostic(
                A101,
                f"recompute is {shown(asked)}",
                needed='"auto", an amount of memory such as "2GB", or patterns of names such as ["layer1.*"]',
            )
        )
    return Recompute(patterns=tuple(patterns), sizes=known)


@dataclasses.dataclass(frozen=True)
class Store:
    """In which type of 16 bits the values that wait for the backward pass are kept; `sizes` as in `Recompute`."""

    dtype: str
    sizes: tuple[tuple[str, int], ...] = ()

    def arguments(self) -> dict[str, Any]:
        """Return it as arguments of `onward.compile`."""
        return {"store": self.dtype, "sizes": dict(self.sizes)}


def read_store(asked: str | None, sizes: Mapping[str, int] | None = None) -> Store | None:
    """Return what the argument says; None without one.

    >>> read_store("float16", {"N": 8})
    Store(dtype='float16', sizes=(('N', 8),))

    Raises:
        ArgumentError: it is neither "float16" nor "bfloat16".
    """
    known = _read_sizes(sizes)
    if asked is None:
        return None
    check_name("store", asked, STORES)
    return Store(asked, known)


def _read_sizes(sizes: Mapping[str, int] | None) -> tuple[tuple[str, int], ...]:
    given = {} if sizes is None else dict(sizes)
    wrong = [n for n, s in given.items() if isinstance(s, bool) or not isinstance(s, int) or s < 1]
    if wrong:
        found = ", ".join(f"{name}={shown(given[name])}" for name in wrong)
        raise ArgumentError(Diagnostic(A101, "a size is a whole number from 1 on", place="sizes=", found=found))
    return tuple(sorted(given.items()))


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a pass did to one graph, by the sizes of its values: bytes, and operations by their cost."""

    nodes: int  # that run twice
    bytes_before: int  # at most in use at once, with everything kept
    bytes_after: int
    extra_time: float  # of the nodes that run twice, as a share of the time of the step before

    def told(self) -> str:
        """Return it in words."""
        return (
            f"recomputes {counted(self.nodes, 'node')}: about {amount(self.bytes_after)} of memory instead of "
            f"{amount(self.bytes_before)}, for {self.extra_time:.1%} more operations"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as a manifest has it."""
        return {**dataclasses.asdict(self), "extra_time": round(self.extra_time, 4)}


@dataclasses.dataclass(frozen=True)
class Stored:
    """What `store` did to one graph: the values in 16 bits, their bytes before, and the bytes of the step."""

    values: int
    bytes_of_values: int  # in float32; now half
    bytes_before: int  # at most in use at once
    bytes_after: int

    def told(self, dtype: str) -> str:
        """Return it in words."""
        if not self.values:
            return f"keeps nothing in {dtype}: it would not need less than {amount(self.bytes_before)} of memory"
        return (
            f"keeps {counted(self.values, 'value')} of {amount(self.bytes_of_values)} in {dtype}: about "
            f"{amount(self.bytes_after)} of memory instead of {amount(self.bytes_before)}; gradients are approximate"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as a manifest has it."""
        return dataclasses.asdict(self)


def amount(size: float) -> str:
    """Return a number of bytes as a message shows it.

    >>> amount(1_500_000_000), amount(20_480)
    ('1.5 GB', '20.5 kB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} B"
