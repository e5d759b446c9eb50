"""Write a preparation as ONNX in front of a model, so that the file takes raw rows.

An input that features prepare is replaced by one input per column of the table, with the column's name and the shape
(N,): float64 for numbers, where NaN is missing, and text, where "" is missing. If all its columns are numbers, it stays
one input, float64 (N, columns). The graph computes what `features.py` computes, operation by operation, with the same
bits. It cannot raise an error: a value that Python refuses (an unknown category, a missing value without a fill)
becomes NaN, or in an input of integers a number that no index has.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir

from onward.graph import walk
from onward.graph.builder import Builder, Names, Value
from onward.graph.shapes import dims
from onward.model.serde import from_proto, to_proto
from onward.model.training_model import FLOAT_TYPES, TrainingModel
from onward.train.data.features import Feature
from onward.train.data.preparation import Preparation

_ML = "ai.onnx.ml"
_NO_INDEX = 2**31 - 1
_DOUBLE = ir.DataType.DOUBLE


def embed_preparation(proto: onnx.ModelProto, preparation: Preparation) -> tuple[onnx.ModelProto, Preparation]:
    """Return the inference model with its preparation in front, and what is left to be prepared outside."""
    model = from_proto(proto)
    front = _Front(model, preparation)
    inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
    for value in inputs:
        front.prepare(value)
    front.finish()
    left = Preparation(one_hot=preparation.one_hot, classes=preparation.classes, table=front.table)
    return to_proto(model), left


class _Front:
    def __init__(self, model: TrainingModel, preparation: Preparation) -> None:
        self._model, self._graph = model, model.graph
        self._preparation = preparation
        self._names = Names(walk.all_names(model.graph))
        self._op = Builder(model.opset, self._names, prefix="prepare/")
        self._columns: dict[str, Value] = {}
        self.table = {n: list(c) for n, c in preparation.table.items()}

    def prepare(self, value: Value) -> None:
        """Replace one input by raw inputs, if it is prepared at all."""
        p, name = self._preparation, value.name or ""
        features = p.features.get(name, ())
        normalises = p.normalises and value.dtype in FLOAT_TYPES
        if not features and not normalises:
            return
        position = next(i for i, v in enumerate(self._graph.inputs) if v is value)
        value.name = self._names.unique(f"prepared/{name}")
        self._names.taken.discard(name)
        sizes = dims(value) or (None,)
        if not features:
            raw = [ir.Value(name=name, type=value.type, shape=value.shape)]
            made = raw[0]
        elif any(f.takes_text for f in features):
            raw, made = self._by_column(features, sizes[0])
            self.table.pop(name, None)
            self.table |= {self._columns[f.column].name or "": [f.column] for f in features}
        else:
            raw = [ir.Value(name=name, type=ir.TensorType(_DOUBLE), shape=ir.Shape([sizes[0], len(features)]))]
            parts = self._op.multi("Split", raw[0], axis=1, num_outputs=len(features), outputs=len(features))
            made = self._joined([self._feature(f, part) for f, part in zip(features, parts, strict=True)])
        if features and value.dtype != ir.DataType.STRING and not normalises:
            if value.dtype not in FLOAT_TYPES:  # integers have no NaN
                made = self._op.Where(self._op.IsNaN(made), np.float64(_NO_INDEX), made)
            made = self._op.cast(made, value.dtype or _DOUBLE)
        if normalises:
            made = self._normalised(made, value)
        if len(sizes) == 1 and features:
            made = self._op.Reshape(made, [-1])
        value.replace_all_uses_with(made)
        self._graph.inputs.remove(value)
        for offset, new in enumerate(raw):
            self._graph.inputs.insert(position + offset, new)

    def _by_column(self, features: tuple[Feature, ...], batch: int | str | None) -> tuple[list[Value], Value]:
        raw, parts = [], []
        for feature in features:
            if feature.column not in self._columns:
                kind = ir.DataType.STRING if feature.takes_text else _DOUBLE
                name = self._input_name(feature.column)
                value = ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape([batch]))
                self._columns[feature.column] = value
                raw.append(value)
            parts.append(self._feature(feature, self._op.Reshape(self._columns[feature.column], [-1, 1])))
        return raw, self._joined(parts)

    def _input_name(self, column: str) -> str:
        """Return the name of the column for an input; values inside the graph that have this name get another."""
        outside = {v.name for v in (*self._graph.inputs, *self._graph.outputs)}
        if column in outside:
            return self._names.unique(column)
        for value in list(_inner_values(self._graph)):
            if value.name == column:
                value.name = self._names.unique(f"model/{column}")
        self._names.taken.add(column)
        return column

    def _joined(self, parts: list[Value]) -> Value:
        return parts[0] if len(parts) == 1 else self._op.call("Concat", parts, axis=1)[0]

    def _feature(self, feature: Feature, raw: Value) -> Value:
        """Return the numbers of one feature, (N, width), float64; or text."""
        op = self._op
        missing = self._code(raw, [""], [1], 0) if feature.takes_text else op.IsNaN(raw)
        is_missing = op.cast(missing, ir.DataType.BOOL)
        if feature.kind == "category":
            made = self._category(feature, raw, is_missing)
        else:
            fill = feature.fill
            made = raw if fill is None else op.Where(is_missing, self._constant(fill), raw)
            if feature.kind == "number":
                made = op.Div(op.Sub(made, np.float64(feature.shift)), np.float64(feature.scale))
        if feature.kind == "category" and feature.fill is None:  # a missing value is not just an unknown category
            made = op.Where(is_missing, np.float64(np.nan), made)
        if feature.indicator:
            made = op.call("Concat", [made, op.Cast(is_missing, to=_DOUBLE)], axis=1)[0]
        return made

    def _constant(self, value: str | float) -> np.ndarray:
        return np.array(value, dtype=object if isinstance(value, str) else np.float64)

    def _category(self, feature: Feature, raw: Value, is_missing: Value) -> Value:
        op, size = self._op, len(feature.categories)
        if feature.takes_text:
            keys, codes = [str(c) for c in feature.categories], list(range(size))
            if feature.fill is not None:
                keys, codes = [*keys, ""], [*codes, feature.categories.index(feature.fill)]
            same = op.Equal(self._code(raw, keys, codes, -1), np.arange(size, dtype=np.int64)[None])
        else:
            fill = feature.fill
            values = raw if fill is None else op.Where(is_missing, self._constant(fill), raw)
            same = op.Equal(values, np.array(feature.categories, dtype=np.float64)[None])
        rows = op.Cast(same, to=_DOUBLE)
        known = op.Greater(op.ReduceMax(rows, [1], keepdims=1), np.float64(0))
        if feature.encoding == "codes":
            made = op.Cast(op.ArgMax(rows, axis=1, keepdims=1), to=_DOUBLE)
            other = float(feature.common) if feature.unknown == "ignore" else np.nan
            return op.Where(known, made, np.float64(other))
        return rows if feature.unknown == "ignore" else op.Where(known, rows, np.float64(np.nan))

    def _code(self, text: Value, keys: list[str], codes: list[int], other: int) -> Value:
        made = self._op.call(
            "LabelEncoder", [text], domain=_ML, keys_strings=keys, values_int64s=codes, default_int64=other
        )[0]
        made.type = ir.TensorType(ir.DataType.INT64)
        return made

    def _normalised(self, made: Value, value: Value) -> Value:
        """Return (x · scale − mean) / std, as `Feed` computes it."""
        op, p = self._op, self._preparation
        assert value.dtype is not None
        work = _DOUBLE if value.dtype == _DOUBLE else ir.DataType.FLOAT
        rank = len(dims(value) or ())
        made = op.cast(made, work)
        if p.scale != 1.0:
            made = op.Mul(made, np.asarray(p.scale, dtype=work.numpy()))
        for name in ("mean", "std"):
            numbers = np.asarray(getattr(p, name), dtype=work.numpy())
            numbers = numbers.reshape((-1,) + (1,) * (rank - 2)) if numbers.ndim else numbers
            made = op.Sub(made, numbers) if name == "mean" else op.Div(made, numbers)
        return op.cast(made, value.dtype)

    def finish(self) -> None:
        """Put the new nodes in front of the graph."""
        first = next(iter(self._graph), None)
        if first is None:
            self._graph.extend(self._op.nodes)
        else:
            self._graph.insert_before(first, self._op.nodes)
        if any(node.domain == _ML for node in self._op.nodes):
            imports = self._model.ir.opset_imports
            imports[_ML] = max(imports.get(_ML, 2), 2)


def _inner_values(graph: ir.Graph) -> Iterator[Value]:
    """Yield the initializers and what the nodes compute, also in the graphs inside `graph`."""
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
        for sub in walk.subgraphs(node):
            yield from sub.inputs
            yield from _inner_values(sub)


__all__ = ["embed_preparation"]
