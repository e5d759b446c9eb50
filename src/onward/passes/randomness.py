"""Lower `Dropout` and the Random operators to integer arithmetic over a random key and a step counter.

Stock ONNX Runtime deletes training Dropout and repeats seeds, and every runtime has its own generator. Here the numbers
come from a hash of (key, step, node, element) in int64 arithmetic, which is exact in every runtime: two
multiply-xorshift rounds over 32 bits (multipliers below 2^31, so that no product overflows). The mask is the same on
every backend, and a resumed run continues the sequence, because key and step are state.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
import onnx_ir as ir

from onward.graph import shapes, walk
from onward.graph.builder import Builder, Value
from onward.graph.edit import replace_node
from onward.model.roles import RANDOM_KEY, RANDOM_STEP
from onward.passes.base import Pass, Unit

_MASK = 0xFFFFFFFF
_FIRST, _SECOND = 0x7FEB352D, 0x5BD1E995  # avalanche: mean bias 0.0011 over all bit pairs, as with the best known
_OPERATORS = frozenset(
    {"Dropout", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)


class LowerRandomness(Pass):
    """Replace every random node by integer arithmetic over the random key and the random step.

    The key and the step become state of the unit. With `advance`, the unit also computes the next step.
    """

    def __init__(self, *, advance: bool = True) -> None:
        self._advance = advance

    def run(self, unit: Unit) -> bool:
        if not any(is_random(n) for n in walk.all_nodes(unit.graph)):
            return False
        shapes.infer_shapes(unit.model)
        key, step = (_scalar_input(unit, name) for name in (RANDOM_KEY, RANDOM_STEP))
        _lower(unit.graph, unit, key, step)
        if self._advance:
            op = unit.builder("random/")
            following = op.Add(step, 1)
            following.shape = ir.Shape([])
            unit.graph.extend(op.nodes)
            unit.next_random_step = following
        return True


class RemoveDropout(Pass):
    """Replace every Dropout by Identity, as inference does."""

    safe_for_training = False

    def run(self, unit: Unit) -> bool:
        found = [n for n in walk.all_nodes(unit.graph) if n.op_type == "Dropout" and n.domain in ("", "ai.onnx")]
        for node in found:
            op = unit.builder(f"{node.name or 'Dropout'}/")
            data = _input(node, 0)
            outputs = [op.Identity(data)]
            if len(node.outputs) > 1:
                outputs.append(op.Cast(op.Add(op.Mul(data, 0.0), 1.0), to=ir.DataType.BOOL))
            replace_node(node, op, outputs)
        return bool(found)


def is_random(node: ir.Node) -> bool:
    """Return whether `node` draws random numbers (a Dropout outside of training mode does not)."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in _OPERATORS:
        return False
    if node.op_type == "Dropout":
        mode = node.inputs[2] if len(node.inputs) > 2 else None
        known = walk.constant_of(mode)
        return mode is not None and (known is None or bool(known.reshape(-1)[0]))
    return True


def _scalar_input(unit: Unit, name: str) -> Value:
    value = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    unit.names.taken.add(name)
    unit.graph.inputs.append(value)
    unit.state.append(value)
    return value


def _lower(graph: ir.Graph, unit: Unit, key: Value, step: Value) -> None:
    taken: set[int] = set()
    for position, node in enumerate([n for n in graph if is_random(n)]):
        number = _identity(node, position)
        while number in taken:  # two nodes must not draw the same numbers
            number = (number + 1) & 0x7FFFFFFF
        taken.add(number)
        op = unit.builder(f"{node.name or node.op_type}/")
        stream = _Stream(op, key, step, number)
        replace_node(node, op, _LOWERINGS[node.op_type](node, op, stream))
    for node in list(graph):
        for sub in walk.subgraphs(node):
            _lower(sub, unit, key, step)


def _identity(node: ir.Node, position: int) -> int:
    """Return a number for the node that is the same in every run: a hash of its seed, its name, or its position."""
    seed = node.attributes.get("seed")
    text = f"seed {float(seed.value)!r}" if seed is not None else f"node {node.name or position}"
    return zlib.crc32(text.encode()) & 0x7FFFFFFF


class _Stream:
    """Random numbers of one node: uniform 32-bit integers for a given shape."""

    def __init__(self, op: Builder, key: Value, step: Value, number: int) -> None:
        self.op = op
        # One-element tensors, not scalars: numpy warns about overflow of scalars, but not of arrays.
        a = self._mix(op.Add(op.Reshape(key, [1]), number), None)
        self.first = self._mix(op.Add(a, op.Reshape(step, [1])), None)
        self.second = self._mix(op.Add(self.first, 0x3C6EF372), None)

    def _mix(self, x: Value, between: Value | None) -> Value:
        op = self.op
        x = op.BitwiseAnd(x, _MASK)
        x = op.BitwiseXor(x, op.Div(x, 1 << 16))
        x = op.Mul(x, _FIRST)
        x = op.BitwiseAnd(x if between is None else op.Add(x, between), _MASK)
        x = op.BitwiseXor(x, op.Div(x, 1 << 15))
        x = op.BitwiseAnd(op.Mul(x, _SECOND), _MASK)
        return op.BitwiseXor(x, op.Div(x, 1 << 16))

    def integers(self, shape: Value | np.ndarray, lane: int = 0) -> Value:
        """Return int64 numbers in [0, 2^32) of the given shape; another `lane` is another stream."""
        op = self.op
        wanted = shape if isinstance(shape, ir.Value) else op.constant(shape)
        known = walk.constant_of(wanted)
        size = op.ReduceProd(wanted, keepdims=0) if known is None else op.constant(np.int64(np.prod(known)))
        index = op.Range(op.constant(0), size, op.constant(1))
        start = op.BitwiseXor(index, self.first if lane == 0 else op.Add(self.first, lane * 7919))
        return op.Reshape(self._mix(start, self.second), wanted, allowzero=1)

    def uniform(self, shape: Value | np.ndarray, dtype: ir.DataType, lane: int = 0) -> Value:
        """Return numbers in (0, 1), never 0 or 1, with 24 random bits, so that every float type holds them exactly."""
        op = self.op
        top = op.Div(self.integers(shape, lane), 1 << 8)
        wide = ir.DataType.DOUBLE if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
        numbers = op.Mul(op.Add(op.Cast(top, to=wide), 0.5), 1.0 / (1 << 24))
        if wide == ir.DataType.FLOAT:  # 2^24 - 1 + 0.5 rounds up
            numbers = op.Min(numbers, 1.0 - 2.0**-24)
        return op.cast(numbers, dtype)

    def normal(self, shape: Value | np.ndarray, dtype: ir.DataType) -> Value:
        """Return standard normal numbers (Box-Muller)."""
        op = self.op
        wide = ir.DataType.DOUBLE if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
        radius = op.Sqrt(op.Mul(op.Log(self.uniform(shape, wide, 0)), -2.0))
        angle = op.Mul(self.uniform(shape, wide, 1), 2.0 * math.pi)
        return op.cast(op.Mul(radius, op.Cos(angle)), dtype)


def _input(node: ir.Node, index: int) -> Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _shape(op: Builder, value: Value) -> Value | np.ndarray:
    static = shapes.static_shape(value)
    return np.array(static, np.int64) if static is not None else op.Shape(value)


def _dropout(node: ir.Node, op: Builder, stream: _Stream) -> list[Value]:
    """mask = random < 1 - ratio; output = data * mask / (1 - ratio); without training the data itself."""
    data = _input(node, 0)
    ratio = node.inputs[1] if len(node.inputs) > 1 else None
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    dtype = data.dtype or ir.DataType.FLOAT
    numbers = stream.integers(_shape(op, data))
    known = walk.constant_of(ratio) if ratio is not None else np.float32(0.5)
    if known is not None:
        keep = 1.0 - float(np.asarray(known).reshape(-1)[0])
        mask = op.Less(numbers, round(keep * (1 << 32)))
        scale: Value = op.constant(np.array(1.0 / keep if keep > 0 else 0.0), dtype)
    else:
        assert ratio is not None
        keep_value = op.Sub(op.constant(np.array(1.0), ratio.dtype), ratio)
        wide = op.Cast(keep_value, to=ir.DataType.DOUBLE)
        mask = op.Less(op.Cast(numbers, to=ir.DataType.DOUBLE), op.Mul(wide, float(1 << 32)))
        scale = op.cast(op.Where(op.Greater(wide, 0.0), op.Reciprocal(op.Max(wide, 1e-30)), 0.0), dtype)
    training = walk.constant_of(mode)
    if training is None and mode is not None:
        mask = op.Or(mask, op.Not(mode))
        scale = op.Where(mode, scale, 1.0)
    result = op.Mul(data, op.Mul(op.Cast(mask, to=dtype), scale))
    return [result, mask][: len(node.outputs)]


def _dtype(node: ir.Node, default: ir.DataType | None) -> ir.DataType:
    attribute = node.attributes.get("dtype")
    return ir.DataType(attribute.as_int()) if attribute is not None else default or ir.DataType.FLOAT


def _number(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_float()


def _shape_and_dtype(node: ir.Node, op: Builder) -> tuple[Value | np.ndarray, ir.DataType]:
    if node.op_type.endswith("Like") or node.op_type == "Bernoulli":
        data = _input(node, 0)
        return _shape(op, data), _dtype(node, data.dtype)
    return np.array(node.attributes["shape"].as_ints(), np.int64), _dtype(node, None)


def _normal(node: ir.Node, op: Builder, stream: _Stream) -> list[Value]:
    shape, dtype = _shape_and_dtype(node, op)
    numbers = stream.normal(shape, dtype)
    return [op.Add(op.Mul(numbers, _number(node, "scale", 1.0)), _number(node, "mean", 0.0))]


def _uniform(node: ir.Node, op: Builder, stream: _Stream) -> list[Value]:
    shape, dtype = _shape_and_dtype(node, op)
    low, high = _number(node, "low", 0.0), _number(node, "high", 1.0)
    return [op.Add(op.Mul(stream.uniform(shape, dtype), high - low), low)]


def _bernoulli(node: ir.Node, op: Builder, stream: _Stream) -> list[Value]:
    probability = _input(node, 0)
    shape, dtype = _shape_and_dtype(node, op)
    drawn = op.Less(stream.uniform(shape, probability.dtype or ir.DataType.FLOAT), probability)
    return [op.Cast(drawn, to=dtype)]


def _multinomial(node: ir.Node, op: Builder, stream: _Stream) -> list[Value]:
    """Gumbel: the class of the largest log-probability plus -log(-log(u)), once per sample."""
    logits = _input(node, 0)
    samples = node.attributes["sample_size"].as_int() if "sample_size" in node.attributes else 1
    attribute = node.attributes.get("dtype")
    dtype = ir.DataType(attribute.as_int()) if attribute is not None else ir.DataType.INT32
    shape = op.Concat(op.Shape(logits, start=0, end=1), [samples], op.Shape(logits, start=1), axis=0)
    uniform = stream.uniform(shape, ir.DataType.FLOAT)
    gumbel = op.Neg(op.Log(op.Neg(op.Log(uniform))))
    scores = op.Add(gumbel, op.Cast(op.Unsqueeze(logits, [1]), to=ir.DataType.FLOAT))
    return [op.Cast(op.ArgMax(scores, axis=2, keepdims=0), to=dtype)]


_LOWERINGS = {
    "Dropout": _dropout,
    "RandomNormal": _normal,
    "RandomNormalLike": _normal,
    "RandomUniform": _uniform,
    "RandomUniformLike": _uniform,
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
}
