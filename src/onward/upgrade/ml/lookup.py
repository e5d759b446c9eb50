"""`LabelEncoder` of `ai.onnx.ml`: a table from keys to values."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Value
from onward.upgrade.microsoft.call import CLASSICAL, Call, CannotDecompose, decomposes
from onward.upgrade.ml import values

MOST_KEYS = 1024  # every key is compared with every element; a larger table is for the runtime's own kernel


@decomposes("LabelEncoder", CLASSICAL)
def label_encoder(call: Call) -> list[Value | None]:
    """Y = the value of the key that X is, or the default value."""
    X, keys, table = call.required(0), _table(call, "keys"), _table(call, "values")
    if keys is None or table is None:
        raise CannotDecompose("the form of version 1: one list of classes")
    if table.dtype.kind not in "fiu":
        raise CannotDecompose("values of text")
    if table.dtype.kind == "f":
        stored = values.prepared(call, _name(call, "values"), table)
        return [call.op.Gather(_with_default(call, stored, table.dtype), _row(call, X, keys), axis=0)]
    row = _compared(call, X, keys)
    default = np.asarray([_default(call, table.dtype)], table.dtype)
    return [call.op.Gather(np.concatenate([table, default]), row, axis=0)]


def _with_default(call: Call, stored: Value, dtype: np.dtype) -> Value:
    return call.op.Concat(stored, np.asarray([_default(call, dtype)], dtype), axis=0)


def _row(call: Call, X: Value, keys: np.ndarray) -> Value:
    """Return the row of the table for each element; the row after the last is the default."""
    if keys.dtype.kind in "fiu" and len(keys) <= MOST_KEYS:
        return _compared(call, X, keys)
    given = {_name(call, "keys"): call.node.attributes[_name(call, "keys")].value}
    numbers = list(range(len(keys)))
    if "keys_tensor" in given:
        raise CannotDecompose("a large table of keys in a tensor")
    made = call.op.call("LabelEncoder", [X], domain=CLASSICAL, **given, values_int64s=numbers, default_int64=len(keys))[
        0
    ]
    made.type = ir.TensorType(ir.DataType.INT64)
    return made


def _compared(call: Call, X: Value, keys: np.ndarray) -> Value:
    """Return the row by comparing each element with each key; the first key of equal ones."""
    op = call.op
    if keys.dtype.kind not in "fiu" or X.dtype in (None, ir.DataType.STRING):
        raise CannotDecompose("keys of text")
    if len(keys) > MOST_KEYS:
        raise CannotDecompose("a large table")
    assert X.dtype is not None
    array = keys.astype(X.dtype.numpy())
    wide = op.Unsqueeze(X, np.array([-1]))
    stored = values.fixed(call, _name(call, "keys"), array, "a key is compared, which has no gradient")
    same = op.Equal(wide, stored)
    if array.dtype.kind == "f" and np.isnan(array).any() and call.ml_version >= 4:  # NaN is a key since then
        same = op.Or(same, op.And(op.IsNaN(wide), op.constant(np.isnan(array))))
    found = op.Concat(op.Cast(same, to=values.FLOAT), _last(call, X), axis=-1)
    return op.ArgMax(found, axis=-1, keepdims=0)


def _last(call: Call, X: Value) -> Value:
    """Return one half in a new last axis: more than no key, less than a key."""
    op = call.op
    return op.ConstantOfShape(op.Concat(op.Shape(X), np.array([1]), axis=0), value=np.array([0.5], np.float32))


def _name(call: Call, kind: str) -> str:
    for end in ("strings", "int64s", "floats", "tensor"):
        if call.attr(f"{kind}_{end}", None) is not None:
            return f"{kind}_{end}"
    return ""


def _table(call: Call, kind: str) -> np.ndarray | None:
    name = _name(call, kind)
    if not name:
        return None
    found: Any = call.attr(name, None)
    if name.endswith("tensor"):
        array: np.ndarray = found.numpy().reshape(-1)
        return array
    types = {"strings": object, "int64s": np.int64, "floats": np.float32}
    return np.asarray(list(found), types[name.rsplit("_", 1)[1]])


def _default(call: Call, dtype: np.dtype) -> Any:
    tensor = call.attr("default_tensor", None)
    if tensor is not None:
        return tensor.numpy().reshape(-1)[0]
    return call.attr("default_float", -0.0) if dtype.kind == "f" else call.attr("default_int64", -1)
