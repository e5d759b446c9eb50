"""Find the last linear layer of a network by its graph: from an output back, through what follows a linear layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from onward.graph.builder import Value
from onward.graph.closing import Closing, closing, maker, normalised, reduction_of, sigmoid_by_hand
from onward.graph.shapes import dims
from onward.graph.walk import constant_of, reads
from onward.surgery.class_axis import Trace, Untraceable, follow

# What may stand between the last linear layer and the output: one input is the data, the others are settings.
_PASSED = frozenset(
    {
        "Identity", "Cast", "CastLike", "Dropout", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Softmax",
        "LogSoftmax", "Hardmax", "Sigmoid", "HardSigmoid", "Tanh", "Relu", "LeakyRelu", "Elu", "Softplus", "Clip",
        "Exp", "Log", "Neg", "Reciprocal", "GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool", "ReduceMean",
        "ReduceMax", "ReduceSum", "ReduceLogSumExp", "Resize", "Slice", "Gather",
    }
)  # fmt: skip
_WITH_CONSTANT = frozenset({"Add", "Sub", "Mul", "Div", "Min", "Max"})


@dataclasses.dataclass(frozen=True)
class Linear:
    """A linear operator over a constant weight: which inputs are data and weight, and where the classes are."""

    node: ir.Node
    data: int
    weight: int
    weight_axis: int
    """The axis of the weight that counts the classes."""
    axis: int
    """The axis of the result that counts them."""
    classes: int

    @property
    def features(self) -> Value:
        """What the layer reads."""
        value = self.node.inputs[self.data]
        assert value is not None
        return value


@dataclasses.dataclass(frozen=True)
class Head:
    """The last linear layer before an output, and what follows it."""

    linear: Linear
    trace: Trace
    """The axis of the classes in each value after the layer, and what depends on their number."""
    output: Value
    """The value that holds the classes: the output from which the search went back, or what its ArgMax reads."""
    logits: Value
    """What the closing Softmax or Sigmoid reads; the output itself where there is none."""
    activation: Closing | None
    """What closes the network: a Softmax, LogSoftmax, Sigmoid or HardSigmoid."""

    @property
    def weights(self) -> list[Value]:
        """The initializers of the layer: its weight and its bias."""
        found = [self.linear.node.inputs[self.linear.weight]]
        if self.linear.node.op_type != "MatMul":
            found += self.linear.node.inputs[2:3]
        found += [node.inputs[index] for node, index, _, _ in self.trace.constants]
        return [v for value in found if value is not None for v in _stored(value)]

    def describe(self) -> str:
        """Return the layer as a message names it."""
        return f"{self.linear.node.op_type} {name_of(self.linear.node)}"


class NoHead(Exception):
    """There is no linear layer at the end, and why."""


def find(graph: ir.Graph, output: Value) -> Head:
    """Return the last linear layer before `output`. The shapes of the graph must be inferred.

    Raises:
        NoHead: there is none, or what follows it cannot be followed.
    """
    computed = computed_values(graph)
    last = maker(output)
    if last is not None and last.op_type == "ArgMax" and last.inputs[0] is not None:
        output = last.inputs[0]  # the file gives the class alone; its scores are what a loss reads
    value = output
    while (linear := linear_layer(value.producer(), computed)) is None:
        node = value.producer()
        if node is None:
            raise NoHead(f"output `{output.name}` is computed without a linear layer")
        before = _data_of(node, computed)
        if before is None:
            raise NoHead(f"{node.op_type} {name_of(node)} stands between the last linear layer and `{output.name}`")
        value = before
    try:
        trace = follow(graph, value, linear.axis, linear.classes, computed)
    except Untraceable as error:
        raise NoHead(str(error)) from error
    if output not in trace.axes:
        raise NoHead(
            f"output `{output.name}` does not hold the classes of {linear.node.op_type} {name_of(linear.node)}"
        )
    found = closing(output)
    return Head(linear, trace, output, output if found is None else found.before, found)


def _data_of(node: ir.Node, computed: set[Value]) -> Value | None:
    """Return the input of `node` that the way back follows, or None if the way ends here."""
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in _PASSED:
        others = [v for v in node.inputs[1:] if v in computed]
        shape_only = node.op_type in ("Reshape", "CastLike", "Resize")
        return node.inputs[0] if shape_only or not others else None
    if node.op_type in _WITH_CONSTANT and len(node.inputs) == 2:
        data = [v for v in node.inputs if v in computed]
        if len(data) == 1:
            return data[0]
        first, second = node.inputs
        reduction = reduction_of(second)
        if reduction is not None and reduction.inputs[0] is first:
            return first  # Softmax by hand
        if sigmoid_by_hand(node) is not None or normalised(node) is not None:
            return first
    return None


def computed_values(graph: ir.Graph) -> set[Value]:
    """Return the values that depend on an input of the graph, or on chance."""
    found = {v for v in graph.inputs if v.name not in graph.initializers}
    for node in graph:
        if node.op_type.startswith("Random") or any(v in found for v in reads(node)):
            found.update(node.outputs)
    return found


def linear_layer(node: ir.Node | None, computed: set[Value]) -> Linear | None:
    """Return the linear layer that `node` is: Gemm, MatMul, Conv or ConvTranspose of data with a constant weight."""
    if node is None or node.domain not in ("", "ai.onnx") or len(node.inputs) < 2:
        return None
    kind = node.op_type
    data = [i for i in (0, 1) if node.inputs[i] in computed]
    if kind not in ("Gemm", "MatMul", "Conv", "ConvTranspose") or len(data) != 1:
        return None
    weight = 1 - data[0]
    shape = dims(node.inputs[weight]) if node.inputs[weight] is not None else None  # type: ignore[arg-type]  # not None
    rank = len(node.outputs[0].shape) if node.outputs[0].shape is not None else None
    if shape is None or len(shape) < 2:
        return None
    if kind == "Gemm":
        transposed = bool(node.attributes.get_int("transB" if weight == 1 else "transA", 0))
        weight_axis, axis = (weight ^ int(transposed)), weight
    elif kind == "MatMul":
        if rank is None or any(d != 1 for d in shape[:-2]):
            return None
        weight_axis, axis = (len(shape) - 1, rank - 1) if weight == 1 else (len(shape) - 2, rank - 2)
    else:
        if weight == 0 or node.attributes.get_int("group", 1) != 1:
            return None
        weight_axis, axis = (0 if kind == "Conv" else 1), 1
    classes = shape[weight_axis]
    return Linear(node, data[0], weight, weight_axis, axis, classes) if isinstance(classes, int) else None


def linear_layers(graph: ir.Graph) -> list[Linear]:
    """Return the linear layers of the graph, in the order of execution."""
    computed = computed_values(graph)
    return [layer for node in graph if (layer := linear_layer(node, computed)) is not None]


def _stored(value: Value) -> Iterator[Value]:
    """Yield the initializers from which a constant value is computed."""
    if value.is_initializer():
        yield value
    elif (node := value.producer()) is not None:
        for read in node.inputs[:1] if constant_of(value) is None else ():
            if read is not None:
                yield from _stored(read)


def name_of(node: ir.Node) -> str:
    """Return the name of a node as a message writes it: that of its output where it has none."""
    return f"`{node.name or node.outputs[0].name}`"


__all__ = ["Head", "Linear", "NoHead", "computed_values", "find", "linear_layer", "linear_layers"]
