"""Translate a pure graph with tf2onnx, check that every node is ONNX, and put the nodes into another graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onward.errors import ArgumentError, Diagnostic
from onward.frontends.tensorflow import versions
from onward.frontends.tensorflow.handlers import STOP, handlers
from onward.frontends.tensorflow.pure import A262, Draw, Pure
from onward.graph.builder import Builder, Names, Value
from onward.graph.edit import copy_nodes
from onward.graph.schema import GRADIENT_DOMAIN
from onward.graph.walk import all_nodes, ancestors
from onward.model import serde

GOLDEN, SPREAD = 0.61803398875, 3.4


@dataclasses.dataclass
class Translated:
    """A pure graph as nodes of ONNX."""

    pure: Pure
    graph: ir.Graph

    @property
    def stops(self) -> bool:
        """Whether a gradient ends inside of it."""
        return any(node.op_type == STOP and node.domain == GRADIENT_DOMAIN for node in all_nodes(self.graph))

    def splice(
        self, op: Builder, arguments: Mapping[str, Value], wanted: Sequence[str], *, pattern: bool = False
    ) -> list[Value]:
        """Add the nodes behind the tensors `wanted` to `op`, over the values `arguments`, and return those tensors.

        Random numbers are drawn by ONNX's operators; with `pattern`, fixed numbers take their place.
        """
        inputs = {v.name or "": v for v in self.graph.inputs}
        outputs = {v.name or "": v for v in self.graph.outputs}
        values = {inputs[name]: value for name, value in arguments.items() if name in inputs}
        for initializer in self.graph.initializers.values():
            assert initializer.const_value is not None
            values[initializer] = op.constant(initializer.const_value.numpy())
        done: set[ir.Node] = set()

        def add(targets: Iterable[Value]) -> None:
            behind = ancestors(targets)
            nodes = [n for n in self.graph if n in behind and n not in done]
            op.nodes.extend(copy_nodes(nodes, values, names=op.names, prefix=op.prefix))
            done.update(nodes)

        for draw in self.pure.draws:
            if draw.name in inputs:
                add([outputs[draw.shape]])
                values[inputs[draw.name]] = _numbers(op, draw, values[outputs[draw.shape]], pattern)
        add([outputs[name] for name in wanted])
        return [values[outputs[name]] for name in wanted]


def translate(pure: Pure, what: str, *, differentiable: bool) -> Translated:
    """Return the nodes of a pure graph.

    Raises:
        ArgumentError: lists every operator of TensorFlow that is not ONNX.
    """
    wanted = [*pure.outputs, *pure.changed.values(), *(d.shape for d in pure.draws)]
    try:
        proto = versions.to_onnx(pure.graph_def, pure.arguments, wanted, handlers(differentiable))
    except Exception as error:  # tf2onnx raises many types
        line = next((text for text in str(error).splitlines() if text.strip()), "")
        raise ArgumentError(
            Diagnostic(
                A262,
                f"tf2onnx cannot translate the graph: {type(error).__name__}: {line[:300]}",
                place=what,
                hint="simplify the function until it can; nothing was written",
            )
        ) from error
    _check_nodes(proto, what)
    return Translated(pure, serde.from_proto(proto).graph)


def _check_nodes(proto: onnx.ModelProto, what: str) -> None:
    problems: dict[str, Diagnostic] = {}
    for node in _all_nodes(proto.graph):
        if node.domain == GRADIENT_DOMAIN and node.op_type == STOP:
            continue
        known = node.domain in ("", "ai.onnx") and onnx.defs.has(node.op_type, versions.OPSET, "")
        if not known and node.op_type not in problems:
            problems[node.op_type] = Diagnostic(
                A262,
                f"operator `{node.op_type}` of TensorFlow has no ONNX equivalent",
                place=f"{what}, node `{node.name}`",
                needed="operators that tf2onnx translates",
                hint="write this part with other functions of TensorFlow",
            )
    if problems:
        raise ArgumentError(list(problems.values()))


def _all_nodes(graph: onnx.GraphProto) -> Iterable[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                yield from _all_nodes(inner)


# -- random numbers ----------------------------------------------------------------------------------------------------


def _numbers(op: Builder, draw: Draw, shape: Value, pattern: bool) -> Value:
    dtype = ir.DataType.from_numpy(np.dtype(draw.dtype.as_numpy_dtype))
    sizes = op.cast(shape, ir.DataType.INT64)
    if pattern:
        index = op.Range(op.constant(np.int64(0)), op.ReduceProd(sizes, keepdims=0), op.constant(np.int64(1)))
        numbers = op.Mod(op.Mul(op.Cast(index, to=ir.DataType.FLOAT), np.float32(GOLDEN)), np.float32(1.0), fmod=1)
        if draw.kind == "normal":
            numbers = op.Mul(op.Sub(numbers, np.float32(0.5)), np.float32(SPREAD))
        return op.cast(op.Reshape(numbers, sizes, allowzero=1), dtype)
    like = op.ConstantOfShape(sizes, value=np.zeros(1, dtype.numpy()))
    maker: Callable[..., Value] = op.RandomNormalLike if draw.kind == "normal" else op.RandomUniformLike
    return maker(like, dtype=dtype)


def pattern(draw: Draw, shape: Sequence[int]) -> np.ndarray:
    """Return the numbers that take the place of a draw when the graph is compared with TensorFlow."""
    count = int(np.prod(shape, dtype=np.int64))
    numbers = np.fmod(np.arange(count).astype(np.float32) * np.float32(GOLDEN), np.float32(1.0))
    if draw.kind == "normal":
        numbers = (numbers - np.float32(0.5)) * np.float32(SPREAD)
    made: np.ndarray = numbers.reshape(tuple(int(n) for n in shape)).astype(draw.dtype.as_numpy_dtype)
    return made


def stop_function(opset: int) -> ir.Function:
    """Return the function `StopGradient`: its value is its input, and no gradient reaches that."""
    given = ir.Value(name="X")
    op = Builder(opset, Names(["X", "Y"]))
    made = op.Identity(given)
    made.name = "Y"
    doc = "Y = X; no gradient reaches X."
    graph = ir.Graph([given], [made], nodes=op.nodes, opset_imports={"": opset}, doc_string=doc)
    return ir.Function(GRADIENT_DOMAIN, STOP, graph=graph, attributes=[])
