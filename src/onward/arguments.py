"""Checks of arguments: numbers, names and paths. Each error says what was given and what is needed."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import A100, A101, ArgumentError, Diagnostic

_MOST_NAMES = 40  # that a message lists


def shown(value: object) -> str:
    """Return the value as a message shows it: itself when it is short, else its class."""
    text = repr(value)
    return a_or_an(value) if len(text) > 60 or "\n" in text else text


def a_or_an(value: object) -> str:
    """Return the class of the value with its article.

    >>> a_or_an(3), a_or_an([])
    ('an int', 'a list')
    """
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


# ------------------------------------------------------------------ names


def nearest(name: str, names: Iterable[str], n: int = 3, cutoff: float = 0.5) -> list[str]:
    """Return at most `n` of the names that look like `name`, the most similar first.

    >>> nearest("mze", ["mse", "l1"]), nearest("x", ["y", "X"])
    (['mse'], ['X'])
    """
    import difflib

    known = list(names)
    same = [k for k in known if k != name and k.casefold() == name.casefold()]  # difflib sees no likeness of x and X
    near = difflib.get_close_matches(name, known, n, cutoff)
    return [*same, *(k for k in near if k not in same)][:n]


def did_you_mean(near: Iterable[str]) -> str:
    """Return the hint for a misspelled name; nothing when no name is near.

    >>> did_you_mean(["mse", "mae"]), did_you_mean([])
    ('did you mean `mse` or `mae`?', '')
    """
    quoted = " or ".join(f"`{n}`" for n in near)
    return f"did you mean {quoted}?" if quoted else ""


def near_files(path: Path) -> list[str]:
    """Return the names in the folder of a missing file that look like its name; nothing if there is no such folder."""
    try:
        return nearest(path.name, sorted(entry.name for entry in path.parent.iterdir()))
    except OSError:
        return []


def unknown_name(kind: str, given: object, valid: Iterable[str], place: str = "") -> ArgumentError:
    """Return the error for a name that is not one of `valid`, with the nearest ones as a hint.

    `kind` says what is named, or ends in `=` where it is the argument itself.

    >>> print(unknown_name("loss", "mze", ["mse", "l1"]))
    error[A100]: no such loss `mze`
      needed: one of: l1, mse
    <BLANKLINE>
    hint: did you mean `mse`?
    """
    names = sorted(valid)
    listed = ", ".join(names[:_MOST_NAMES]) + f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES)
    return ArgumentError(
        Diagnostic(
            A100,
            f"invalid {kind}: `{given}`" if kind.endswith("=") else f"no such {kind} `{given}`",
            place=place,
            needed=f"one of: {listed or '(there are none)'}",
            hint=did_you_mean(nearest(str(given), names)),
        )
    )


def check_name(kind: str, given: object, valid: Collection[str], place: str = "") -> None:
    """Raise `ArgumentError` if `given` is not one of the valid names."""
    if not isinstance(given, str) or given not in valid:
        raise unknown_name(kind, given, valid, place)


def check_names(kind: str, given: Iterable[str], valid: Collection[str], place: str = "") -> None:
    """Raise `ArgumentError` if some of `given` are not valid names; it lists all of them."""
    unknown = [unknown_name(kind, name, valid, place) for name in given if name not in valid]
    if unknown:
        raise ArgumentError([d for error in unknown for d in error.diagnostics])


# ------------------------------------------------------------------ numbers


def as_whole(name: str, value: Any, least: int, problems: list[Diagnostic]) -> Any:
    """Return `value` as an int; add to `problems` if it is not a whole number of at least `least`.

    Integers of numpy are accepted. The largest number is the largest int64.
    """
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number < 1 << 63:
        problems.append(Diagnostic(A101, f"{name} is {shown(value)}", needed=f"a whole number of at least {least}"))
    return value if number is None else number


def whole(name: str, value: object, least: int) -> int:
    """Return `value` as an int, or raise `ArgumentError` if it is not a whole number of at least `least`."""
    problems: list[Diagnostic] = []
    number = as_whole(name, value, least, problems)
    if problems:
        raise ArgumentError(problems)
    return int(number)


def is_number(value: object) -> bool:
    """Return whether `value` is a number of Python or numpy; True and False are not."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def check_number(
    name: str,
    value: object,
    owner: str,
    *,
    low: float = -math.inf,
    above: float = -math.inf,
    high: float = math.inf,
    below: float = math.inf,
) -> None:
    """Raise `ArgumentError` if `value` is not a finite number with low ≤ value ≤ high and above < value < below."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if number and low <= value <= high and above < value < below:  # type: ignore[operator]  # it is a number
        return
    bounds = "a finite number"
    if above > -math.inf:
        bounds += f" above {above:g}"
    elif low > -math.inf:
        bounds += f" from {low:g}"
    if high < math.inf:
        bounds += f" to {high:g}"
    if below < math.inf:
        bounds += f", below {below:g}"
    raise ArgumentError(Diagnostic(A101, f"`{name}` of `{owner}` is out of range", found=repr(value), needed=bounds))


def check_count(name: str, value: object, owner: str, low: int = 1) -> None:
    """Raise `ArgumentError` if `value` is not an int of at least `low`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= low:
        return
    raise ArgumentError(
        Diagnostic(
            A101, f"`{name}` of `{owner}` is out of range", found=repr(value), needed=f"a whole number, at least {low}"
        )
    )


# ------------------------------------------------------------------ paths


def check_path(name: str, path: object) -> None:
    """Raise `ArgumentError` if `path` cannot be the name of a file or directory."""
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(Diagnostic(A101, f"{name} is {shown(path)}", needed="a path"))
