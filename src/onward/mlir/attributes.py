"""ONNX's attributes in MLIR: `AttributeProto` and back, all kinds except graphs, which are regions."""

from __future__ import annotations

import struct

import onnx

from onward.mlir.messages import BYTES, apply, difference, exact, fields_of, number, refuse
from onward.mlir.syntax import (
    Array,
    Attribute,
    Dense,
    Dictionary,
    Float,
    Integer,
    Resource,
    Scalar,
    Sparse,
    String,
    TypeAttribute,
)
from onward.mlir.tensors import from_sparse, inner_patch, tensor_of, tensor_patch, to_dense, to_sparse
from onward.mlir.types import ANYTHING, dim_params, element_number, element_type, proto_of, type_of

A = onnx.AttributeProto
Patch = dict[str, Attribute]


def _f32(value: float) -> Float:
    return Float(int.from_bytes(struct.pack("<f", value), "little"), "f32")


def natural(proto: A, *, is_type: bool = False) -> Attribute | None:
    """Return the attribute as onnx-mlir writes it; None if it has no such form. `is_type`: a number of a type."""
    if proto.ref_attr_name:
        return None
    if proto.type == A.INT:
        kind = element_type(proto.i) if is_type else None
        return Integer(proto.i, "si64") if kind is None else TypeAttribute(kind)
    if proto.type == A.FLOAT:
        return _f32(proto.f)
    if proto.type == A.STRING:
        return String(proto.s)
    if proto.type == A.INTS:
        return Array(tuple(Integer(i) for i in proto.ints))
    if proto.type == A.FLOATS:
        return Array(tuple(_f32(f) for f in proto.floats))
    if proto.type == A.STRINGS:
        return Array(tuple(String(s) for s in proto.strings))
    if proto.type == A.TENSOR:
        return to_dense(proto.t)
    if proto.type == A.SPARSE_TENSOR:
        return to_sparse(proto.sparse_tensor)
    if proto.type == A.TYPE_PROTO and type_of(proto.tp) != ANYTHING and not dim_params(proto.tp):
        return TypeAttribute(type_of(proto.tp))
    return None


def patch_of(proto: A, shown: Attribute | None) -> Patch:
    """Return what an attribute has beyond what is shown of it."""
    if shown is None:
        made = A()
        return exact(made, proto, difference(made, proto))
    if isinstance(shown, Dense):
        inner = tensor_patch(proto.t, shown)
        patch: Patch = {"t": Dictionary(inner)} if inner else {}
        made = A(name=proto.name, type=A.TENSOR)  # without the data, which would be copied twice
        rest = A()
        rest.CopyFrom(proto)
        rest.ClearField("t")
        return {**patch, **exact(made, rest, difference(made, rest))}
    made = attribute_of(proto.name, shown, {}, "")
    return exact(made, proto, difference(made, proto))


def attribute_of(name: str, shown: Attribute | None, patch: Patch, place: str) -> A:
    """Return the attribute of a name, of what the text shows and of a patch from `patch_of`.

    Raises:
        ModelError: ONNX has no such attribute.
    """
    proto = A()
    if shown is None:
        return apply(proto, patch, place)
    if BYTES in patch:
        apply(proto, {BYTES: patch[BYTES]}, place)
    try:
        if BYTES not in patch:
            proto.name = name
        _fill(proto, shown, patch, place)
    except (ValueError, TypeError, OverflowError) as error:
        refuse(f"attribute `{name[:60]}` cannot be set: {error}", place=place)
    rest = {key: value for key, value in patch.items() if key != BYTES and not (key == "t" and _is_tensor(shown))}
    return apply(proto, rest, place)


def _is_tensor(shown: Attribute) -> bool:
    return isinstance(shown, Dense)


def _fill(proto: A, shown: Attribute, patch: Patch, place: str) -> None:
    """Set the type and the value of an attribute."""
    kept = BYTES in patch  # which has the type already
    if isinstance(shown, Dense):
        proto.t.CopyFrom(tensor_of(shown, inner_patch(patch, "t", place), place))
        if not kept:
            proto.type = A.TENSOR
        return
    if kept:
        return
    if isinstance(shown, Integer):
        proto.type, proto.i = A.INT, shown.value
    elif isinstance(shown, Float):
        proto.type, proto.f = A.FLOAT, number(shown)
    elif isinstance(shown, String):
        proto.type, proto.s = A.STRING, shown.data
    elif isinstance(shown, Sparse):
        proto.type = A.SPARSE_TENSOR
        proto.sparse_tensor.CopyFrom(from_sparse(shown, place))
    elif isinstance(shown, TypeAttribute):
        if isinstance(shown.type, Scalar) or getattr(shown.type, "name", "") == "onnx.String":
            proto.type, proto.i = A.INT, element_number(shown.type, place)
        else:
            proto.type = A.TYPE_PROTO
            proto.tp.CopyFrom(proto_of(shown.type, "", place))
    elif isinstance(shown, Array):
        _fill_list(proto, shown, place)
    else:
        assert not isinstance(shown, Resource)  # they are resolved before
        refuse(f"attribute `{proto.name[:60]}` has a value that ONNX does not have", place=place)


def _fill_list(proto: A, shown: Array, place: str) -> None:
    items = shown.items
    if all(isinstance(item, Integer) for item in items):  # an empty list too; the schema or a patch knows better
        proto.type = A.INTS
        proto.ints.extend(item.value for item in items if isinstance(item, Integer))
    elif all(isinstance(item, Float) for item in items):
        proto.type = A.FLOATS
        proto.floats.extend(number(item) for item in items if isinstance(item, Float))
    elif all(isinstance(item, String) for item in items):
        proto.type = A.STRINGS
        proto.strings.extend(item.data for item in items if isinstance(item, String))
    elif all(isinstance(item, Dense) for item in items):
        proto.type = A.TENSORS
        proto.tensors.extend(tensor_of(item, {}, place) for item in items if isinstance(item, Dense))
    else:
        refuse(f"attribute `{proto.name[:60]}` has a list of different things", place=place)


def read_patches(value: Attribute | None, place: str) -> dict[str, Patch]:
    """Return the patches of attributes by name."""
    if value is None:
        return {}
    return {name: fields_of(item, place) for name, item in fields_of(value, place).items()}
