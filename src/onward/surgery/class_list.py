"""The argument `classes`: how many classes a new head has, and what they are called."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onward.arguments import did_you_mean, nearest, shown
from onward.errors import ArgumentError, Diagnostic

A130 = "A130"
BLANK = "<blank>"
"""What the class of CTC that means "no label" is called."""

Classes = int | str | Path | Sequence[str]
_MOST = 10_000_000
_NEEDED = 'a number, a list of names, a file with one name a line, or names with commas: 5, ["cat", "dog"], "cats.txt"'


@dataclasses.dataclass(frozen=True)
class ClassList:
    """The classes of a head: how many, and their names if they have some."""

    count: int
    names: tuple[str, ...] = ()

    def with_blank(self, index: int) -> ClassList:
        """Return the classes with the blank of CTC at `index`."""
        names = (*self.names[:index], BLANK, *self.names[index:]) if self.names else ()
        return ClassList(self.count + 1, names)


def read_classes(given: Any) -> ClassList:
    """Return the classes that a number, a list of names, the path of a file of names, or `cat,dog` describes.

    >>> read_classes(5)
    ClassList(count=5, names=())
    >>> read_classes("cat, dog").names
    ('cat', 'dog')

    Raises:
        ArgumentError: it is none of these, or a name is missing or occurs twice; lists all of them.
    """
    if isinstance(given, ClassList):
        return given
    if hasattr(given, "tolist"):  # of numpy
        given = given.tolist()
    if isinstance(given, (str, Path)):
        return _read_text(given)
    if isinstance(given, Sequence) and not isinstance(given, (bytes, bytearray)):
        return _named(list(given), "classes=")
    try:
        count = None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        count = None
    if count is None:
        raise ArgumentError(Diagnostic(A130, f"classes is {shown(given)}", place="classes=", needed=_NEEDED))
    if not 1 <= count <= _MOST:
        needed = f"a number from 1 to {_MOST:,}"
        raise ArgumentError(
            Diagnostic(A130, "a head has at least one class", place="classes=", found=f"{count:,}", needed=needed)
        )
    return ClassList(count)


def _read_text(given: str | Path) -> ClassList:
    text = str(given)
    if isinstance(given, str) and text.strip().isdecimal():
        return read_classes(int(text))
    path = Path(text)
    try:
        is_file = path.is_file()
    except OSError:  # names that are too long for a path
        is_file = False
    if is_file:
        return _named(_lines(path), f"classes=, in `{path}`")
    if isinstance(given, str) and "," in text:
        return _named([part.strip() for part in text.split(",")], "classes=")
    folder = path.parent if path.parent.is_dir() else Path()
    near = nearest(path.name, [p.name for p in folder.iterdir() if p.is_file()]) if text else []
    raise ArgumentError(
        Diagnostic(
            A130,
            f"no file `{text}` with the names of the classes",
            place="classes=",
            needed=_NEEDED,
            hint=did_you_mean(str(folder / name) for name in near),
        )
    )


def _lines(path: Path) -> list[str]:
    """Return the names in a file: lines without the spaces around them; a line of spaces is the space itself."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(
            Diagnostic(
                A130,
                f"`{path}` cannot be read as a list of names",
                place="classes=",
                found=str(error),
                needed="text in UTF-8, one name a line",
            )
        ) from error
    return [line.strip() or " " for line in text.split("\n") if line.rstrip("\r")]


def _named(names: list[Any], place: str) -> ClassList:
    problems = []
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name:
            found = "an empty name" if name == "" else shown(name)
            problems.append(Diagnostic(A130, f"class {index} has no name", place=place, found=found, needed="text"))
        elif name in seen:
            problems.append(
                Diagnostic(
                    A130,
                    f"two classes are called `{name}`",
                    place=place,
                    found=f"classes {seen[name]} and {index}",
                    needed="a name of its own for each class",
                )
            )
        else:
            seen[name] = index
    if not names:
        problems.append(Diagnostic(A130, "there are no classes", place=place, needed=_NEEDED))
    if problems:
        raise ArgumentError(problems)
    return ClassList(len(names), tuple(names))


__all__ = ["A130", "BLANK", "ClassList", "Classes", "read_classes"]
