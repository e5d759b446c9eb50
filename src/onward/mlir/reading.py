"""Small questions that a reader of MLIR text asks of attributes and operations."""

from __future__ import annotations

from collections.abc import Mapping

from onward.mlir.messages import fields_of, refuse
from onward.mlir.syntax import Array, Attribute, Function, Operation, Region, String, TypeAttribute


def patch_of(described: Mapping[str, Attribute], place: str) -> dict[str, Attribute]:
    """Return the patch of an argument or result from its attributes."""
    patch = dict(fields_of(described["onward.info"], place)) if "onward.info" in described else {}
    if "onnx.dim_params" in described:
        patch["dim_params"] = described["onnx.dim_params"]
    return patch


def only_region(made: Operation, place: str) -> Region:
    kind = made.attributes.get("function_type")
    if len(made.regions) != 1 or not isinstance(kind, TypeAttribute) or not isinstance(kind.type, Function):
        refuse("a function has no body or no type", place=place)
    return made.regions[0]


def symbol_of(made: Operation) -> str:
    return text_of(made.attributes.get("sym_name"))


def text_of(value: Attribute | None) -> str:
    return value.text if isinstance(value, String) else ""


def items_of(value: Attribute | None) -> list[Attribute]:
    return list(value.items) if isinstance(value, Array) else []


def without(fields: Mapping[str, Attribute], names: tuple[str, ...]) -> dict[str, Attribute]:
    return {name: value for name, value in fields.items() if name not in names}
