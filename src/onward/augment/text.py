"""Augmentations as text (`flip,crop=0.8`), as arguments of `fit`, and as JSON in a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from onward.arguments import shown, unknown_name
from onward.augment.base import Augmentation, Function
from onward.augment.images import Colour, Crop, Erase, Flip, Rotate
from onward.augment.mixing import Cutmix, Mixup
from onward.augment.sounds import Gain, Noise, Shift
from onward.errors import A101, ArgumentError, Diagnostic, OnwardError

KINDS: tuple[type[Augmentation], ...] = (Flip, Crop, Rotate, Colour, Erase, Mixup, Cutmix, Gain, Noise, Shift)
WORDS: dict[str, type[Augmentation]] = {kind.word: kind for kind in KINDS}
Augment = str | Augmentation | Callable[..., Any] | Sequence[str | Augmentation | Callable[..., Any]] | None
_SPELLINGS = {"color": "colour"}


def from_text(text: str) -> tuple[Augmentation, ...]:
    """Return the augmentations that the text names, in its order: names with commas, each with a number or without.

    >>> from_text("mixup=0.2, flip")
    (Mixup(alpha=0.2, labels='mix'), Flip(horizontal=0.5, vertical=0.0))

    Raises:
        ArgumentError: an unknown name or a number out of range; all at once.
    """
    found: list[Augmentation] = []
    problems: list[Diagnostic] = []
    for part in text.split(","):
        try:
            found.append(_from_word(part.strip()))
        except ArgumentError as error:
            problems += error.diagnostics
    if problems:
        raise ArgumentError(problems)
    return tuple(found)


def _from_word(text: str) -> Augmentation:
    name, separator, number = text.replace(":", "=", 1).partition("=")
    name = _SPELLINGS.get(name.strip(), name.strip())
    if name not in WORDS:
        raise unknown_name("augmentation", name, WORDS)
    kind = WORDS[name]
    if not separator:
        return kind()
    try:
        value = float(Fraction(number.strip()))
    except (ValueError, ZeroDivisionError) as error:
        raise ArgumentError(
            Diagnostic(
                A101,
                f"the augmentation `{text}` has no number behind its name",
                needed=f"`{name}`, or `{name}=` and the number for `{kind.first}` of {kind.__name__}",
            )
        ) from error
    return kind(**{kind.first: value})


def as_augmentations(given: Any) -> tuple[Augmentation, ...]:
    """Return the augmentations for the argument `augment`: one or several names, objects or functions.

    Raises:
        ArgumentError: something that is no augmentation; all at once.
    """
    if given is None:
        return ()
    single = isinstance(given, (str, Augmentation)) or callable(given)
    items = [given] if single or not isinstance(given, Iterable) else list(given)
    found: list[Augmentation] = []
    problems: list[Diagnostic] = []
    for item in items:
        try:
            found += _as_some(item)
        except OnwardError as error:
            problems += error.diagnostics
    if problems:
        raise ArgumentError(problems)
    return tuple(found)


def _as_some(item: Any) -> Sequence[Augmentation]:
    if isinstance(item, str):
        return from_text(item)
    if isinstance(item, Augmentation):
        return (item,)
    if isinstance(item, type) and issubclass(item, Augmentation):
        raise ArgumentError(
            Diagnostic(
                A101, f"{item.__name__} is the class of an augmentation", needed="an object", hint=f"{item.__name__}()"
            )
        )
    if callable(item):
        return (Function(item),)
    raise ArgumentError(
        Diagnostic(
            A101,
            f"{shown(item)} is no augmentation",
            needed="a name such as 'flip' or 'crop=0.8', an object of onward.augment, or a function of (sample, rng)",
        )
    )


def describe(augmentations: Sequence[Augmentation]) -> list[dict[str, Any]]:
    """Return the augmentations as JSON; of a function, its name."""
    found: list[dict[str, Any]] = []
    for one in augmentations:
        if type(one) in KINDS:
            found.append({"name": one.word, **dataclasses.asdict(one)})  # type: ignore[call-overload]  # a dataclass
        else:
            found.append({"function": str(one).strip("`")})
    return found


def restore(described: Sequence[dict[str, Any]]) -> tuple[Augmentation, ...] | None:
    """Return the augmentations that `describe` described; None where there is a function, which JSON cannot hold."""
    if any("function" in one for one in described):
        return None
    return tuple(WORDS[one["name"]](**{k: v for k, v in one.items() if k != "name"}) for one in described)
