"""The forms of a gradient: where a rule can emit several graphs with the same result, which of them it emits.

A rule asks with `Rule.choose`, and names the form that is usual: the fastest on most machines and sizes that we
measured. A table of answers, as data, can name another one for a single question (docs/tuning.md). Without a table
every answer is the usual form, so that a model always compiles to the same graphs.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

Dims = tuple[int | str | None, ...]


@dataclasses.dataclass(frozen=True)
class Question:
    """Which form the gradient of one node has, with respect to one of its inputs."""

    op_type: str
    of: str
    """The input, by its name in the schema."""
    position: int
    """The place of that input."""
    opset: int
    attributes: tuple[tuple[str, Any], ...]
    inputs: tuple[tuple[str, Dims] | None, ...]
    """The element type and the dimensions of each input; None where the node does not have it."""
    forms: tuple[str, ...]
    usual: str
    changes_forward: bool = False
    """Whether a form asks more of the node itself, such as a further output."""

    @property
    def key(self) -> str:
        """The question in words; two nodes with equal words have the same answer.

        >>> X, W = ("float32", ("N", 3, 8, 8)), ("float32", (4, 3, 3, 3))
        >>> Question("Conv", "W", 1, 18, (("strides", (2, 2)),), (X, W), ("taps", "textbook"), "taps").key
        'Conv dW: float32[N, 3, 8, 8], float32[4, 3, 3, 3]; strides=2,2'
        """
        tensors = ", ".join("none" if t is None else f"{t[0]}[{_sizes(t[1])}]" for t in self.inputs)
        settings = " ".join(f"{name}={_text(value)}" for name, value in self.attributes)
        return f"{self.op_type} d{self.of}: {tensors}" + (settings and f"; {settings}")


def _sizes(dims: Dims) -> str:
    return ", ".join("?" if d is None else str(d) for d in dims)


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


class Forms:
    """A table of answers; it notes the questions that were asked."""

    def __init__(self, chosen: Mapping[str, str] | None = None) -> None:
        self.chosen = dict(chosen or {})
        self.asked: dict[str, Question] = {}

    def answer(self, question: Question) -> str:
        """Return the form that the table names; the usual one where it names none, or one that there is not."""
        self.asked[question.key] = question
        form = self.chosen.get(question.key, question.usual)
        return form if form in question.forms else question.usual

    def unanswered(self) -> list[Question]:
        """Return the questions that were asked and that the table does not answer."""
        return [question for key, question in self.asked.items() if key not in self.chosen]

    def answered(self) -> dict[str, str]:
        """Return the answers to the questions that were asked, where the table has one."""
        return {key: self.chosen[key] for key in self.asked if key in self.chosen}


_FORMS: contextvars.ContextVar[Forms | None] = contextvars.ContextVar("forms", default=None)


@contextlib.contextmanager
def answering(forms: Forms | None) -> Iterator[None]:
    """Let the table answer for every gradient that is built inside the `with` block; None leaves all as it is."""
    if forms is None:
        yield
        return
    token = _FORMS.set(forms)
    try:
        yield
    finally:
        _FORMS.reset(token)


def answer(question: Question) -> str:
    """Return the form that the table in force names, or the usual one."""
    forms = _FORMS.get()
    return question.usual if forms is None else forms.answer(question)
