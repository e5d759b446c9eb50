"""Protobuf messages as dictionaries of MLIR, and what a message has beyond what the text itself says.

Much of an ONNX model is natural in MLIR: operations, operands, types, constants. The rest is written as a *patch*: the
fields in which a message differs from the one that the natural text gives. So nothing is lost, whatever a file has.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Collection
from typing import Any, NoReturn, TypeVar

from onward.errors import Diagnostic, ModelError
from onward.mlir.syntax import Array, Attribute, Dictionary, Float, Integer, String, strings

M131 = "M131"
Message = TypeVar("Message")

CLEAR = "clear"
"""In a patch: the fields that the natural message has and the original does not."""
BYTES = "bytes"
"""In a patch: the whole message, as protobuf writes it, where no patch gives it exactly."""

_FLOAT, _DOUBLE = 2, 1  # FieldDescriptor.type
_STRING, _BYTES, _MESSAGE = 9, 12, 11
_UNSIGNED = {4: "ui64", 13: "ui64"}


def refuse(message: str, *, place: str = "", found: str = "", needed: str = "", hint: str = "") -> NoReturn:
    """Raise because a text is MLIR, but not an ONNX model."""
    raise ModelError(Diagnostic(M131, message, place=place, found=found, needed=needed, hint=hint))


def encode(message: Any, without: Collection[str] = ()) -> dict[str, Attribute]:
    """Return the fields of a message that are set."""
    return {f.name: _encode_field(f, value) for f, value in message.ListFields() if f.name not in without}


def _encode_field(field: Any, value: Any) -> Attribute:
    if field.is_repeated:
        return Array(tuple(_encode_one(field, item) for item in value))
    return _encode_one(field, value)


def _encode_one(field: Any, value: Any) -> Attribute:
    kind = field.type
    if kind == _MESSAGE:
        return Dictionary(encode(value))
    if kind == _STRING:
        return String(value.encode("utf-8") if isinstance(value, str) else bytes(value))
    if kind == _BYTES:
        return String(bytes(value))
    if kind == _FLOAT:
        return Float(int.from_bytes(struct.pack("<f", value), "little"), "f32")
    if kind == _DOUBLE:
        return Float(int.from_bytes(struct.pack("<d", value), "little"), "f64")
    return Integer(int(value), _UNSIGNED.get(kind, "i64"))


def apply(message: Message, patch: dict[str, Attribute], place: str) -> Message:
    """Set the fields of `message` that a patch has, and return it. An empty message gets exactly these fields.

    Raises:
        ModelError: the patch has fields that the message has not, or values of another kind.
    """
    target: Any = message
    if BYTES in patch:
        whole = patch[BYTES]
        if not isinstance(whole, String):
            refuse(f"`{BYTES}` is no text", place=place)
        try:
            target.ParseFromString(whole.data)
        except Exception as error:  # noqa: BLE001  # protobuf's own DecodeError, ValueError or RuntimeError
            refuse(f"a message cannot be read: {error}", place=place)
        return message
    fields = _fields(target.DESCRIPTOR)
    for name, value in patch.items():
        if name == CLEAR:
            for cleared in texts(value, place):
                if cleared not in fields:
                    refuse(f"{target.DESCRIPTOR.name} has no field `{cleared[:60]}`", place=place)
                target.ClearField(cleared)
            continue
        if name not in fields:
            refuse(f"{target.DESCRIPTOR.name} has no field `{name[:60]}`", place=place)
        _decode_field(target, fields[name], value, place)
    return message


@functools.cache
def _fields(descriptor: Any) -> dict[str, Any]:
    """Return the fields of a kind of message; protobuf's own mapping ends in a SystemError for half of a character."""
    return {field.name: field for field in descriptor.fields}


def _decode_field(target: Any, field: Any, value: Attribute, place: str) -> None:
    try:
        if field.is_repeated:
            if not isinstance(value, Array):
                refuse(f"field `{field.name}` is no list", place=place)
            target.ClearField(field.name)
            items = getattr(target, field.name)
            for item in value.items:
                if field.type == _MESSAGE:
                    apply(items.add(), fields_of(item, place), place)
                else:
                    items.append(_plain(field, item, place))
        elif field.type == _MESSAGE:
            inner = getattr(target, field.name)
            inner.SetInParent()
            apply(inner, fields_of(value, place), place)
        else:
            setattr(target, field.name, _plain(field, value, place))
    except (ValueError, TypeError, OverflowError) as error:  # UnicodeError is a ValueError
        refuse(f"field `{field.name}` of {target.DESCRIPTOR.name} cannot be set: {error}", place=place)


def _plain(field: Any, value: Attribute, place: str) -> Any:
    """Return the Python value of an attribute for a field."""
    kind = field.type
    if kind == _STRING and isinstance(value, String):
        return value.data.decode("utf-8")
    if kind == _BYTES and isinstance(value, String):
        return value.data
    if kind in (_FLOAT, _DOUBLE) and isinstance(value, Float):
        return number(value)
    if kind not in (_STRING, _BYTES, _FLOAT, _DOUBLE) and isinstance(value, Integer):
        return value.value
    refuse(f"field `{field.name}` has a value of another kind", place=place, found=type(value).__name__)


def number(value: Float) -> float:
    """Return the number of a floating-point attribute."""
    from onward.mlir.numbers import storage

    kind = storage(value.type)
    assert kind is not None
    import numpy as np

    return float(np.frombuffer(value.bits.to_bytes(kind.itemsize, "little"), kind)[0])


def fields_of(value: Attribute, place: str) -> dict[str, Attribute]:
    """Return the entries of a dictionary."""
    if not isinstance(value, Dictionary):
        refuse("a dictionary is missing", place=place, found=type(value).__name__)
    return value.items


def texts(value: Attribute, place: str) -> list[str]:
    """Return a list of texts."""
    if not isinstance(value, Array) or not all(isinstance(item, String) for item in value.items):
        refuse("a list of texts is missing", place=place, found=type(value).__name__)
    return [item.text for item in value.items if isinstance(item, String)]


def difference(natural: Any, original: Any, without: Collection[str] = ()) -> dict[str, Attribute]:
    """Return the patch that makes `original` of `natural`, apart from the fields `without`."""
    ours = {f.name: (f, value) for f, value in natural.ListFields() if f.name not in without}
    theirs = {f.name: (f, value) for f, value in original.ListFields() if f.name not in without}
    patch: dict[str, Attribute] = {}
    for name, (field, value) in theirs.items():
        if name not in ours:
            patch[name] = _encode_field(field, value)
        elif not _equal(field, ours[name][1], value):
            if field.type == _MESSAGE and not field.is_repeated:
                inner = difference(ours[name][1], value)
                if inner:
                    patch[name] = Dictionary(inner)
            else:
                patch[name] = _encode_field(field, value)
    cleared = [name for name in ours if name not in theirs]
    return {**patch, CLEAR: strings(*cleared)} if cleared else patch


def _equal(field: Any, ours: Any, theirs: Any) -> bool:
    """Return whether two values of a field are the same; NaN is the same as itself."""
    if field.type in (_FLOAT, _DOUBLE):
        return bool(_encode_field(field, ours) == _encode_field(field, theirs))
    return bool(ours == theirs)


def exact(natural: Any, original: Any, patch: dict[str, Attribute]) -> dict[str, Attribute]:
    """Return the patch if it gives the bytes of `original`, and else one with these bytes: NaN, unknown fields."""
    rebuilt = type(original)()
    rebuilt.CopyFrom(natural)
    apply(rebuilt, patch, "")
    whole = original.SerializeToString(deterministic=True)
    return patch if rebuilt.SerializeToString(deterministic=True) == whole else {BYTES: String(whole)}
