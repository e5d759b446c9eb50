"""Every error Onward raises, and the catalogue of diagnostic codes.

The exception tree::

    OnwardError
    ├── ModelError           M…  the file or model cannot be read, is unsafe, or is not a model
    ├── CheckFailed          C…  a training model breaks the standard (carries the whole report)
    ├── NotDifferentiable    D…  a requested gradient cannot be computed
    ├── ArgumentError        A…  a wrong argument (also a ValueError)
    ├── DataError            T…  training data that does not fit the model
    ├── BackendError         B…  a runtime cannot run the program
    ├── CheckpointError      K…  a checkpoint cannot be written, read or trusted
    ├── NumericError         N…  NaN or Inf appeared during training
    └── MissingExtra         E…  an optional package is not installed (also an ImportError)

Each carries one or more `Diagnostic`s: all problems at once, each with a stable code, the place, what was
found, what is needed and how to fix it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol


class Severity(enum.Enum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The explanation of a code, for `onward check --explain CODE` and docs/codes.md."""

    code: str
    title: str
    why: str
    fix: str


@functools.cache
def catalogue() -> dict[str, Explanation]:
    """Return the explanation of every code, from `codes.json`.

    >>> catalogue()["A100"].title
    'unknown name in an argument'
    """
    entries = json.loads((Path(__file__).parent / "codes.json").read_text(encoding="utf-8"))
    return {code: Explanation(code, **texts) for code, texts in entries.items()}


@dataclasses.dataclass(frozen=True)
class Diagnostic:
    """One problem: a stable `code`, a message, and the place, what was found, what is needed and a hint."""

    code: str
    message: str
    place: str = ""
    found: str = ""
    needed: str = ""
    hint: str = ""
    severity: Severity = Severity.ERROR

    def __post_init__(self) -> None:
        assert self.code in catalogue(), f"undefined diagnostic code {self.code}"

    def render(self) -> str:
        """Return the diagnostic as plain text, readable without colour.

        >>> problem = Diagnostic("A100", "no such loss `mze`", needed="one of: mse, l1", hint="did you mean `mse`?")
        >>> print(problem.render())
        error[A100]: no such loss `mze`
          needed: one of: mse, l1
        <BLANKLINE>
        hint: did you mean `mse`?
        """
        lines = [f"{self.severity.value}[{self.code}]: {self.message}"]
        if self.place:
            lines.append(f"  at {self.place}")
        if self.found:
            lines.append(f"  found: {self.found}")
        if self.needed:
            lines.append(f"  needed: {self.needed}")
        if self.hint:
            lines += ["", f"hint: {self.hint}"]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, str]:
        """Return the fields as plain strings, for `--json`."""
        fields = dataclasses.asdict(self)
        fields["severity"] = self.severity.value
        return fields


class OnwardError(Exception):
    """Base of every error that Onward raises on purpose; `diagnostics` holds all problems found."""

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        if isinstance(diagnostics, Diagnostic):
            diagnostics = [diagnostics]
        self.diagnostics: Sequence[Diagnostic] = tuple(diagnostics)
        assert self.diagnostics, "an error without a diagnostic helps nobody"
        super().__init__("\n\n".join(d.render() for d in self.diagnostics))

    @property
    def code(self) -> str:
        """Return the code of the first problem."""
        return self.diagnostics[0].code


class ModelError(OnwardError):
    """The model cannot be read, written or trusted."""


class CheckFailed(OnwardError):
    """The training model breaks the ONNX standard."""


class NotDifferentiable(OnwardError):
    """A requested gradient cannot be computed; lists every blocking node."""


class ArgumentError(OnwardError, ValueError):
    """An argument is wrong; the message names the valid ones."""


class DataError(OnwardError):
    """The training data does not fit the model."""


class BackendError(OnwardError):
    """A backend cannot run the program."""


class CheckpointError(OnwardError):
    """A checkpoint cannot be written, read or trusted."""


class NumericError(OnwardError):
    """NaN or Inf appeared during training."""


class MissingExtra(OnwardError, ImportError):
    """An optional package is needed but not installed."""


A100 = "A100"
A101 = "A101"
E100 = "E100"


def counted(count: int, word: str) -> str:
    """Return a count with its word.

    >>> counted(1, "parameter"), counted(2048, "byte"), counted(0, "training entry")
    ('1 parameter', '2,048 bytes', 'no training entries')
    """
    if count != 1:
        word = f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
    return f"{count:,} {word}" if count else f"no {word}"


class Node(Protocol):
    """A node of onnx or of onnx-ir."""

    @property
    def name(self) -> str | None: ...
    @property
    def op_type(self) -> str: ...


def named_nodes(nodes: Iterable[Node]) -> list[str]:
    """Return how messages name the nodes of a graph: by name, or by the place among those of the same operator.

    >>> from types import SimpleNamespace as Node
    >>> named_nodes([Node(name="", op_type="Relu"), Node(name="", op_type="Add"), Node(name="top", op_type="Relu")])
    ['the 1st Relu', 'the only Add', 'node `top`']
    """
    listed = [(node.name, node.op_type) for node in nodes]
    total = Counter(operator for _, operator in listed) if not all(name for name, _ in listed) else Counter()
    seen: Counter[str] = Counter()
    found = []
    for name, operator in listed:
        seen[operator] += 1
        which = "only" if total[operator] == 1 else ordinal(seen[operator])
        found.append(f"node `{name}`" if name else f"the {which} {operator or 'node without an operator'}")
    return found


def named_node(node: Node, graph: Iterable[Node] | None = None) -> str:
    """Return how a message names one node; `graph` holds its nodes, and a node of onnx-ir knows it."""
    if node.name:
        return f"node `{node.name}`"
    nodes = list(getattr(node, "graph", None) or () if graph is None else graph)
    place = next((i for i, other in enumerate(nodes) if other is node), None)
    return f"a {node.op_type}" if place is None else named_nodes(nodes)[place]  # in no graph any more


def ordinal(number: int) -> str:
    """Return a number as a place in a row.

    >>> [ordinal(n) for n in (1, 2, 3, 4, 11, 22, 113)]
    ['1st', '2nd', '3rd', '4th', '11th', '22nd', '113th']
    """
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def require_extra(module: str, extra: str, purpose: str) -> MissingExtra:
    """Return the error that names the extra which installs `module`."""
    return MissingExtra(
        Diagnostic(
            E100,
            f"{purpose} needs `{module}`, which is not installed",
            hint=f"pip install 'onward[{extra}]'",
        )
    )
