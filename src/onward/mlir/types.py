"""ONNX's types in MLIR: `TypeProto` and back."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onward.mlir.messages import difference, refuse
from onward.mlir.numbers import BY_NAME, ELEMENTS
from onward.mlir.syntax import ANY, Attribute, Dialect, Scalar, String, Tensor, Type, named, text

ANYTHING = Dialect(ANY)
DIM_PARAMS = "dim_params"


def element_type(number: int) -> Type | None:
    """Return the MLIR type of an ONNX element type, by its number."""
    try:
        kind = ir.DataType(number)
    except ValueError:
        return None
    if kind == ir.DataType.STRING:
        return Dialect(ELEMENTS[kind])
    return Scalar(ELEMENTS[kind]) if kind in ELEMENTS else None


def element_number(kind: Type, place: str) -> int:
    """Return the ONNX element type of an MLIR type.

    Raises:
        ModelError: ONNX has none.
    """
    name = kind.name if isinstance(kind, Scalar | Dialect) else ""
    if isinstance(kind, Scalar) and name.startswith("si"):  # torch-mlir's signed integers
        name = name[1:]
    found = BY_NAME.get(name)
    if found is None:
        refuse("ONNX has no such element type", place=place, found=f"`{named(kind)}`")
    return int(found.value)


def type_of(proto: onnx.TypeProto) -> Type:
    """Return the type that a `TypeProto` has in MLIR; `!onward.any` if MLIR has none."""
    if proto.HasField("tensor_type"):
        element = element_type(proto.tensor_type.elem_type)
        if element is None:
            return ANYTHING
        if not proto.tensor_type.HasField("shape"):
            return Tensor(None, element)
        sizes = (d.dim_value if d.HasField("dim_value") else -1 for d in proto.tensor_type.shape.dim)
        return Tensor(tuple(None if size < 0 else size for size in sizes), element)
    for field, name in (("sequence_type", "onnx.Seq"), ("optional_type", "onnx.Opt")):
        if proto.HasField(field):
            inner = type_of(getattr(proto, field).elem_type)
            return ANYTHING if inner == ANYTHING else Dialect(name, (inner,))
    return ANYTHING


def dim_params(proto: onnx.TypeProto) -> str:
    """Return the names of sizes as onnx-mlir writes them: `0:batch,2:width`."""
    while proto.HasField("sequence_type") or proto.HasField("optional_type"):
        proto = (proto.sequence_type if proto.HasField("sequence_type") else proto.optional_type).elem_type
    named = [(i, d.dim_param) for i, d in enumerate(proto.tensor_type.shape.dim) if d.HasField("dim_param")]
    return ",".join(f"{i}:{name}" for i, name in named)


def proto_of(kind: Type, params: str, place: str) -> onnx.TypeProto:
    """Return the `TypeProto` of an MLIR type and the names of its sizes; an empty one for `!onward.any` and `none`.

    Raises:
        ModelError: ONNX has no such type.
    """
    proto = onnx.TypeProto()
    if isinstance(kind, Tensor):
        tensor = proto.tensor_type
        tensor.elem_type = element_number(kind.element, place)
        if kind.shape is not None:
            tensor.shape.SetInParent()
            names = _parsed(params)
            for index, size in enumerate(kind.shape):
                dim = tensor.shape.dim.add()
                if size is not None:
                    dim.dim_value = size
                elif index in names:
                    dim.dim_param = names[index]
    elif isinstance(kind, Dialect) and kind.name in ("onnx.Seq", "onnx.Opt") and len(kind.of) == 1:
        inner = proto_of(kind.of[0], params, place)
        (proto.sequence_type if kind.name == "onnx.Seq" else proto.optional_type).elem_type.CopyFrom(inner)
    elif kind != ANYTHING and kind != Scalar("none"):
        refuse("ONNX has no such type", place=place, found=f"`{named(kind)}`")
    return proto


def _parsed(params: str) -> dict[int, str]:
    found = {}
    for item in params.split(","):
        index, colon, name = item.partition(":")
        if colon and index.isascii() and index.isdigit() and len(index) < 4:
            found[int(index)] = name
    return found


def value_patch(info: onnx.ValueInfoProto, kind: Type) -> dict[str, Attribute]:
    """Return what a `ValueInfoProto` says beyond its name and the type `kind` in the text."""
    params = dim_params(info.type) if isinstance(kind, Tensor | Dialect) else ""
    natural = onnx.ValueInfoProto(name=info.name, type=proto_of(kind, params, ""))
    if not natural.HasField("name"):
        natural.name = ""
    named: dict[str, Attribute] = {DIM_PARAMS: text(params)} if params else {}
    return {**named, **difference(natural, info)}


def value_info(name: str, kind: Type, patch: dict[str, Attribute], place: str) -> onnx.ValueInfoProto:
    """Return the `ValueInfoProto` of a name, a type and a patch from `value_patch`."""
    from onward.mlir.messages import apply

    rest = dict(patch)
    params = rest.pop(DIM_PARAMS, None)
    info = onnx.ValueInfoProto()
    info.name = name
    info.type.CopyFrom(proto_of(kind, params.text if isinstance(params, String) else "", place))
    return apply(info, rest, place)
