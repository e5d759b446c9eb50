"""Nodes on the host: values whose element type a framework does not have, such as text, and what prepares data.

PyTorch, JAX and TensorFlow have no text, and not all of them numbers of 4 bits. A model that begins with text or ends
in labels runs nevertheless: the reference backend computes those nodes, and the framework all others. A value of text
is a numpy array of objects.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.autodiff.function_bodies import body_of
from onward.backends.graph.framework import Framework
from onward.backends.graph.host import Host
from onward.backends.graph.interpreter import Body, Interpreter
from onward.backends.graph.registry import Attributes, Handler
from onward.errors import BackendError

# They read text and files, whatever the types of their inputs are.
PREPARING = frozenset({"ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"})
COUNTING = frozenset({"TfIdfVectorizer"})


def is_text(value: Any) -> bool:
    """Return whether a value of a graph is text."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "OUS"


class WithForeign(Interpreter):
    """An interpreter that computes nodes with values of foreign types on the host; such a node is not traced."""

    to_numpy: Callable[[Any], np.ndarray]
    absent_on_host = False
    """Whether operators that the framework lacks run on the host, too: not where autograd would be cut there."""

    def __init__(
        self,
        graph: ir.Graph,
        opset: int,
        *,
        outputs: Sequence[ir.Value] | None = None,
        versions: Mapping[str, int] | None = None,
    ) -> None:
        self.versions = dict(graph.opset_imports if versions is None else versions)  # those of all domains
        super().__init__(graph, opset, outputs=outputs)

    def body(self, graph: ir.Graph) -> Body:
        return Body(graph, type(self)(graph, self.opset, versions=self.versions))

    def handler_of(self, node: ir.Node) -> Handler | None:
        return OnHost(self, node) if self._is_foreign(node) else super().handler_of(node)

    def constant(self, array: np.ndarray) -> Any:
        if array.dtype.kind in "OUS":
            return array.astype(object)
        try:
            return super().constant(array)
        except BackendError:
            return array

    def tensor_of(self, array: np.ndarray) -> Any:
        try:
            return super().tensor_of(array)
        except BackendError:
            return array

    def _is_foreign(self, node: ir.Node) -> bool:
        if node.domain not in ("", "ai.onnx", "ai.onnx.ml") or any(a.type in _GRAPHS for a in node.attributes.values()):
            return False
        if node.op_type in PREPARING | COUNTING:
            return True
        if node.domain == "ai.onnx.ml" and super().handler_of(node) is None:
            return True  # most are decomposed before; the others prepare data or read trees
        if self.absent_on_host and super().handler_of(node) is None and body_of(node, {}, self.opset) is None:
            return bool(onnx.defs.has(node.op_type, node.domain))
        if node.op_type in ("Identity", "Constant") or node.op_type.startswith(("Sequence", "Optional")):
            return False  # they only pass a value on
        kinds = {v.dtype for v in [*node.inputs, *node.outputs] if v is not None and v.dtype is not None}
        return not all(has_type(self.framework, kind) for kind in kinds)


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


@functools.cache
def has_type(framework: Framework, kind: ir.DataType) -> bool:
    """Return whether a framework has tensors of an element type."""
    if kind in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        return kind == ir.DataType.UNDEFINED
    try:
        framework.to_tensor(np.zeros(1, kind.numpy()))
    except (BackendError, TypeError):
        return False
    return True


class OnHost:
    """The handler of one node that the reference backend computes."""

    def __init__(self, interpreter: WithForeign, node: ir.Node) -> None:
        self._framework, self._to_numpy = interpreter.framework, type(interpreter).to_numpy
        self._node = ir.serde.serialize_node(node)
        self._node.output[:] = [name or f"unnamed/{i}" for i, name in enumerate(self._node.output)]
        self._opset, self._version = interpreter.opset, interpreter.versions.get(node.domain, 1)
        self._kinds = [None if v is None else v.dtype for v in node.inputs]
        self._evaluator: Any = None

    def __call__(self, attributes: Attributes, *inputs: Any) -> tuple[Any, ...]:
        from onward.backends.reference.evaluator import Evaluator

        if self._evaluator is None:
            self._evaluator = Evaluator(self._model())
        given = {name: self._read(v) for name, v in zip(self._node.input, inputs, strict=True) if name}
        return tuple(self._made(v) for v in self._evaluator.run(given).values())

    def _model(self) -> onnx.ModelProto:
        """Return a model of the node; the evaluator reads no types of inputs."""
        given = [onnx.helper.make_empty_tensor_value_info(n) for n in self._node.input if n]
        outputs = [onnx.helper.make_empty_tensor_value_info(n) for n in self._node.output]
        imports = [onnx.helper.make_opsetid("", self._opset)]
        if self._node.domain:
            imports.append(onnx.helper.make_opsetid(self._node.domain, self._version))
        graph = onnx.helper.make_graph([self._node], "node", given, outputs)
        return onnx.helper.make_model(graph, opset_imports=imports)

    def _read(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._read(v) for v in value]
        if isinstance(value, Host):
            return np.array(value.values, value.dtype).reshape(value.shape)
        return value if value is None or isinstance(value, np.ndarray) else self._to_numpy(value)

    def _made(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._made(v) for v in value]
        if value is None:
            return None
        array = np.asarray(value)
        try:
            return array.astype(object) if is_text(array) else self._framework.to_tensor(array)
        except BackendError:
            return array
