"""What an MLIR text consists of: types, attributes, operations, regions and the module with its resources.

`parser` makes these from a text, `printer` writes them. Only what ONNX graphs need is here: a region has one block, and
no operation has successors.
"""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TypeVar, cast

import numpy as np

Seen = TypeVar("Seen")
ANY = "onward.any"
"""The type of a value whose type nobody states: `!onward.any`."""


@dataclasses.dataclass(frozen=True)
class Scalar:
    """A type with a plain name: `f32`, `i64`, `ui8`, `none`, `complex<f32>`."""

    name: str


@dataclasses.dataclass(frozen=True)
class Tensor:
    """`tensor<2x?xf32>`; a size is None where it is unknown, and `shape` where the rank is."""

    shape: tuple[int | None, ...] | None
    element: Type


@dataclasses.dataclass(frozen=True)
class Dialect:
    """A type of a dialect, such as `!onnx.Seq<tensor<*xf32>>`, `!onnx.String` or `!torch.vtensor<[2,?],f32>`."""

    name: str
    of: tuple[Type, ...] = ()
    text: str = ""
    """What is between the brackets, where it is not a list of types."""


@dataclasses.dataclass(frozen=True)
class Function:
    """`(tensor<2xf32>) -> tensor<2xf32>`."""

    inputs: tuple[Type, ...]
    results: tuple[Type, ...]


Type = Scalar | Tensor | Dialect | Function
NONE = Scalar("none")


def named(kind: Type) -> str:
    """Return what a message calls a type, which may be a large one."""
    return kind.name[:60] if isinstance(kind, Scalar | Dialect) else f"{type(kind).__name__.lower()}<…>"


@dataclasses.dataclass(frozen=True)
class Integer:
    """`1 : si64`; a plain `1` is an `i64`, and `true` an `i1`."""

    value: int
    type: str = "i64"


@dataclasses.dataclass(frozen=True)
class Float:
    """`1.5 : f32`, by its bits."""

    bits: int
    type: str


@dataclasses.dataclass(frozen=True)
class String:
    data: bytes

    @property
    def text(self) -> str:
        """The text; bytes that are not UTF-8 become surrogates, which protobuf refuses."""
        return self.data.decode("utf-8", "surrogateescape")


@dataclasses.dataclass(frozen=True)
class Array:
    items: tuple[Attribute, ...]


@dataclasses.dataclass(frozen=True)
class Dictionary:
    items: dict[str, Attribute]

    def __hash__(self) -> int:  # a dictionary is never changed after it was made
        return hash(tuple(self.items))


@dataclasses.dataclass(frozen=True)
class Unit:
    """An attribute that is only there."""


@dataclasses.dataclass(frozen=True)
class TypeAttribute:
    type: Type


@dataclasses.dataclass(frozen=True)
class Symbol:
    """`@main_graph`."""

    name: str


@dataclasses.dataclass(frozen=True, eq=False)
class Dense:
    """`dense<…> : tensor<…>`: one row of bytes per element, as MLIR stores it, or texts.

    An element smaller than a byte has one of its own. `splat` has a single element that stands for all.
    """

    type: Tensor
    data: bytes | memoryview = b""
    texts: tuple[bytes, ...] | None = None
    splat: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Sparse:
    """`sparse<[[0, 1]], [1.5]> : tensor<3x4xf32>`."""

    type: Tensor
    indices: np.ndarray
    values: bytes


@dataclasses.dataclass(frozen=True)
class Resource:
    """`dense_resource<key> : tensor<…>`: the data is at the end of the file, or in another one."""

    key: str
    type: Tensor


Attribute = Integer | Float | String | Array | Dictionary | Unit | TypeAttribute | Symbol | Dense | Sparse | Resource
UNIT = Unit()


@dataclasses.dataclass
class Region:
    """One block; `operations` is empty where the region has none."""

    arguments: list[tuple[str, Type]] = dataclasses.field(default_factory=list)
    operations: list[Operation] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Operation:
    """`%results = "name"(%operands) ({regions}) {attributes} : (types) -> types`."""

    name: str
    operands: list[str] = dataclasses.field(default_factory=list)
    results: list[str] = dataclasses.field(default_factory=list)
    attributes: dict[str, Attribute] = dataclasses.field(default_factory=dict)
    regions: list[Region] = dataclasses.field(default_factory=list)
    operand_types: list[Type] = dataclasses.field(default_factory=list)
    result_types: list[Type] = dataclasses.field(default_factory=list)
    line: int = 0


@dataclasses.dataclass
class Module:
    """A file: functions and other operations, attributes, and the data of resources by key."""

    operations: list[Operation] = dataclasses.field(default_factory=list)
    attributes: dict[str, Attribute] = dataclasses.field(default_factory=dict)
    resources: dict[str, bytes | memoryview] = dataclasses.field(default_factory=dict)

    def functions(self) -> Iterator[Operation]:
        """Yield the functions."""
        return (o for o in self.operations if o.name == "func.func")


def seen_inside(names: Mapping[str, Seen], outer: Mapping[str, Seen]) -> Mapping[str, Seen]:
    """Return the values that a region sees: those of the operations around it, in front of those further outside.

    They are not copied: a graph may have many values and many regions.
    """
    around = outer.maps if isinstance(outer, ChainMap) else [outer]
    return ChainMap(*(cast("MutableMapping[str, Seen]", each) for each in (names, *around)))


def strings(*texts: str) -> Array:
    """Return an array of texts."""
    return Array(tuple(String(text.encode("utf-8", "surrogateescape")) for text in texts))


def text(value: str) -> String:
    """Return a text as an attribute."""
    return String(value.encode("utf-8", "surrogateescape"))
