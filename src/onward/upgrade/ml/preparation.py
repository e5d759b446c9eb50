"""The operators of `ai.onnx.ml` that prepare data: scaling, filling, encoding, choosing columns."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Value
from onward.upgrade.microsoft.call import CLASSICAL, Call, CannotDecompose, decomposes
from onward.upgrade.ml import values
from onward.upgrade.ml.values import FLOAT

_FLOATS = (FLOAT, ir.DataType.DOUBLE)


@decomposes("Scaler", CLASSICAL)
def scaler(call: Call) -> list[Value | None]:
    """Y = (X - offset) scale."""
    op, X = call.op, values.floats(call, call.required(0))
    offset, scale = (np.asarray(call.attr(name, None) or (), np.float32) for name in ("offset", "scale"))
    if not offset.size or not scale.size:
        raise CannotDecompose("no offset or no scale")
    return [op.Mul(op.Sub(X, values.prepared(call, "offset", offset)), values.prepared(call, "scale", scale))]


@decomposes("Normalizer", CLASSICAL)
def normalizer(call: Call) -> list[Value | None]:
    """Y = X / the norm of each row; rows of norm 0 stay."""
    op, X = call.op, values.floats(call, call.required(0))
    kind = call.attr("norm", "MAX")
    given, keyword = values.axes(call, -1)
    if kind == "L1":
        norm = op.ReduceL1(X, *given, **keyword)
    elif kind == "L2":
        norm = op.ReduceL2(X, *given, **keyword)
    else:
        norm = op.ReduceMax(X, *given, **keyword)
    return [op.Div(X, op.Where(op.Equal(norm, op.constant(0.0, FLOAT)), op.constant(1.0, FLOAT), norm))]


@decomposes("Imputer", CLASSICAL)
def imputer(call: Call) -> list[Value | None]:
    """Y = X where it is present, the imputed values elsewhere."""
    op, X = call.op, call.required(0)
    dtype = X.dtype
    if dtype in _FLOATS:
        numbers, absent = call.attr("imputed_value_floats", None), call.attr("replaced_value_float", 0.0)
    else:
        numbers, absent = call.attr("imputed_value_int64s", None), call.attr("replaced_value_int64", 0)
    if dtype is None or not numbers:
        raise CannotDecompose("no imputed values of the input's type")
    array = np.asarray(numbers, dtype.numpy())
    if dtype not in _FLOATS:
        return [op.Where(op.Equal(X, op.constant(absent, dtype)), op.constant(array), X)]
    missing = op.IsNaN(X) if np.isnan(absent) else op.Equal(X, op.constant(absent, dtype))
    return [op.Where(missing, values.prepared(call, "imputed_value_floats", array), X)]


@decomposes("Binarizer", CLASSICAL)
def binarizer(call: Call) -> list[Value | None]:
    """Y = 1 where X > threshold, else 0."""
    X = call.required(0)
    if X.dtype is None:
        raise CannotDecompose("an input of unknown type")
    threshold = call.op.constant(call.attr("threshold", 0.0), X.dtype if X.dtype in _FLOATS else FLOAT)
    number = X if X.dtype in _FLOATS else values.floats(call, X)
    return [call.op.Cast(call.op.Greater(number, threshold), to=X.dtype)]


@decomposes("OneHotEncoder", CLASSICAL)
def one_hot_encoder(call: Call) -> list[Value | None]:
    """Y = 1 where X is the category, else 0: a new last axis."""
    op, X = call.op, call.required(0)
    numbers = call.attr("cats_int64s", None)
    if not numbers or X.dtype in (None, ir.DataType.STRING):
        raise CannotDecompose("categories of text")
    if not call.attr("zeros", 1):
        raise CannotDecompose("an unknown category is an error")
    whole = X if X.dtype == ir.DataType.INT64 else op.Cast(X, to=ir.DataType.INT64)
    same = op.Equal(op.Unsqueeze(whole, np.array([-1])), op.constant(np.asarray(numbers, np.int64)))
    return [op.Cast(same, to=FLOAT)]


@decomposes("FeatureVectorizer", CLASSICAL)
def feature_vectorizer(call: Call) -> list[Value | None]:
    """Y = the inputs side by side."""
    parts = [call.required(i) for i in range(len(call.node.inputs))]
    sizes = call.attr("inputdimensions", None) or ()
    if any(call.rank(part) != 2 for part in parts):
        raise CannotDecompose("columns without an axis of their own")
    for part, size in zip(parts, sizes, strict=False):
        if call.size(part, 1) != size:
            raise CannotDecompose(
                "a part of another width than inputdimensions says, which is cut or filled with zeros"
            )
    return [call.op.Concat(*(values.floats(call, part) for part in parts), axis=1)]


@decomposes("ArrayFeatureExtractor", CLASSICAL)
def array_feature_extractor(call: Call) -> list[Value | None]:
    """Z = the columns Y of X."""
    op, X = call.op, call.required(0)
    if X.dtype is None or X.dtype == ir.DataType.STRING:
        raise CannotDecompose("text")
    if call.rank(X) == 1:
        X = op.Reshape(X, np.array([1, -1]))
    return [op.Gather(X, op.Reshape(call.required(1), np.array([-1])), axis=-1)]
