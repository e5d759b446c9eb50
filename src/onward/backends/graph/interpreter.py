"""Run an ONNX graph with the operators of a framework.

The graph is converted to a list of instructions once. A run is a loop over them, which the framework records or traces.
Shapes, axes and sizes stay Python numbers (`host.Host`), so that a traced graph has constants and no data-dependent
control flow.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from onward.autodiff.function_bodies import body_of, inline_call
from onward.backends.graph.framework import B302, Framework
from onward.backends.graph.host import ON_HOST, Host, run_on_host
from onward.backends.graph.registry import Attributes, Handler
from onward.errors import BackendError, Diagnostic, named_nodes
from onward.graph import shapes, walk
from onward.graph.builder import Names


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One node: what to call, where its inputs are and where its outputs go (-1: absent)."""

    op_type: str
    handler: Callable[..., Any]
    attributes: Attributes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dead: tuple[int, ...]  # slots that no later node reads
    name: str
    place: str  # as a message names the node
    on_host: frozenset[int]  # the inputs that the handler needs as Python numbers
    bodies: tuple[Body, ...] = ()


class Interpreter:
    """A graph ready to run: `run({name: tensor})` returns its outputs by name.

    Args:
        graph: an onnx-ir graph; values of outer scopes that it reads are inputs too, by name.
        opset: the version of ai.onnx.
        outputs: the values to compute, if not the outputs of the graph.

    A backend derives from this class and sets `framework`.
    """

    framework: ClassVar[Framework]

    def __init__(self, graph: ir.Graph, opset: int, *, outputs: Sequence[ir.Value] | None = None) -> None:
        self.opset = opset
        wanted = list(graph.outputs if outputs is None else outputs)
        wanted = _expand_functions(graph, self.handler_of, opset, wanted)
        needed = walk.ancestors(wanted)
        nodes = [n for n in graph if n in needed]
        absent = sorted({_label(n) for n in _nested(nodes) if self.handler_of(n) is None})
        if absent:
            raise self.framework.registry.missing(absent)
        self._slots: dict[ir.Value, int] = {}
        self.input_slots: dict[str, int] = {}
        self.constants: dict[int, Any] = {}
        for value in graph.inputs:
            self.input_slots[value.name or ""] = self._slot(value)
        for name, value in graph.initializers.items():
            if name not in self.input_slots:
                slot = self._slot(value)
                assert value.const_value is not None
                self.constants[slot] = self.constant(value.const_value.numpy())
        for value in walk.captured(graph):
            self.input_slots.setdefault(value.name or "", self._slot(value))
        instructions = []
        for node, place in zip(nodes, named_nodes(nodes), strict=True):
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
                self.constants[self._slot(node.outputs[0])] = self._constant_node(node)
            else:
                instructions.append(self._instruction(node, place))
        self.output_names = [v.name or "" for v in wanted]
        self._outputs = [self._slot(v) for v in wanted]
        self.instructions = self._with_lifetimes(instructions)
        self._size = len(self._slots)
        self._slots = {}  # without the graph, the interpreter can be copied and traced

    def _slot(self, value: ir.Value) -> int:
        return self._slots.setdefault(value, len(self._slots))

    def handler_of(self, node: ir.Node) -> Handler | None:
        """Return what runs a node, or None."""
        return self.framework.registry.find(node.op_type, node.domain, self.opset)

    def constant(self, array: np.ndarray) -> Any:
        """Return a constant of the graph as a value."""
        return self.framework.constant(array)

    def tensor_of(self, array: np.ndarray) -> Any:
        """Return a tensor of an attribute as a value."""
        return self.framework.to_tensor(array)

    def _instruction(self, node: ir.Node, place: str) -> Instruction:
        handler = self.handler_of(node)
        assert handler is not None
        standard = node.domain in ("", "ai.onnx")
        given: dict[str, Any] = {}
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.GRAPH:
                given[name] = self.body(attribute.as_graph())
            elif attribute.type == ir.AttributeType.TENSOR:
                given[name] = self.tensor_of(attribute.as_tensor().numpy())
            else:
                value = attribute.value
                given[name] = list(value) if isinstance(value, tuple) else value
        inputs = list(node.inputs)
        bodies = [b for b in given.values() if isinstance(b, Body)]
        captured = {v for b in bodies for v in b.captured}
        for body in bodies:
            body.outer = {v.name or "": self._slot(v) for v in body.captured}
            body.captured = []
        return Instruction(
            node.op_type if standard else "",
            handler,
            Attributes(node.op_type, node.domain, self.opset, given, len(node.outputs)),
            tuple(-1 if v is None else self._slot(v) for v in inputs),
            tuple(self._slot(v) if v.name else -1 for v in node.outputs),
            tuple(self._slot(v) for v in captured),
            node.name or node.op_type,
            place + f" ({node.op_type})" * bool(node.name),
            ON_HOST.get(node.op_type, frozenset()) if standard else frozenset(),
            tuple(bodies),
        )

    def _with_lifetimes(self, instructions: list[Instruction]) -> list[Instruction]:
        """Return the instructions, each with the slots that may be freed after it."""
        keep = {*self._outputs, *self.constants, *self.input_slots.values()}
        last: dict[int, int] = {}
        for index, instruction in enumerate(instructions):
            for slot in (*instruction.inputs, *instruction.outputs, *instruction.dead):
                last[slot] = index
        freed: dict[int, list[int]] = {}
        for slot, index in last.items():
            if slot not in keep and slot >= 0:
                freed.setdefault(index, []).append(slot)
        return [dataclasses.replace(i, dead=tuple(freed.get(k, ()))) for k, i in enumerate(instructions)]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs for `feeds`: tensors (or lists for sequences) by name."""
        values: list[Any] = [None] * self._size
        for slot, constant in self.constants.items():
            values[slot] = constant
        for name, slot in self.input_slots.items():
            if name in feeds:
                values[slot] = feeds[name]
        for instruction in self.instructions:
            arguments = [None if s < 0 else values[s] for s in instruction.inputs]
            for body in instruction.bodies:
                body.values = {name: values[slot] for name, slot in body.outer.items()}
            result = self.call(instruction, arguments)
            results = result if isinstance(result, tuple) else (result,)
            for index, slot in enumerate(instruction.outputs[: len(results)]):
                if slot >= 0:
                    values[slot] = results[index]
            for slot in instruction.dead:
                values[slot] = None
        tensor = self.framework.tensor
        return {name: tensor(values[slot]) for name, slot in zip(self.output_names, self._outputs, strict=True)}

    def body(self, graph: ir.Graph) -> Body:
        """Return the graph of an attribute, ready to run."""
        return Body(graph, type(self)(graph, self.opset))

    def call(self, instruction: Instruction, arguments: list[Any]) -> Any:
        """Return the outputs of a node for its inputs."""
        result = run_on_host(instruction.op_type, instruction.attributes, arguments)
        return self.plain(instruction, arguments) if result is None else result

    def plain(self, instruction: Instruction, arguments: Sequence[Any]) -> Any:
        """Return what the handler gives; host values become tensors, except where it needs numbers."""
        if any(isinstance(a, Host) for a in arguments):
            on_host, tensor = instruction.on_host, self.framework.tensor
            like = [a for a in arguments if not isinstance(a, Host)]
            arguments = [a if i in on_host else tensor(a, like) for i, a in enumerate(arguments)]
        return instruction.handler(instruction.attributes, *arguments)

    def _constant_node(self, node: ir.Node) -> Any:
        (attribute,) = node.attributes.values()
        if attribute.type == ir.AttributeType.TENSOR:
            return self.constant(np.asarray(attribute.as_tensor().numpy()))
        kinds: dict[str, Any] = {
            "value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64,
            "value_string": object, "value_strings": object,
        }  # fmt: skip
        if attribute.name not in kinds:
            name = self.framework.registry.name
            raise BackendError(
                Diagnostic(B302, f"the {name} backend does not support a Constant with `{attribute.name}`")
            )
        return self.constant(np.array(attribute.value, kinds[attribute.name]))


B301 = "B301"


def failure(framework: Framework, what: str, error: Exception) -> BackendError:
    """Return the error for an exception that ended a run of `what`, with the node at which it did."""
    frames = [f for f, _ in traceback.walk_tb(error.__traceback__) if f.f_code is Interpreter.run.__code__]
    found = next((f.f_locals["instruction"] for f in reversed(frames) if "instruction" in f.f_locals), None)
    place = "" if found is None else found.place
    lines = str(error).strip().splitlines()
    problem = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return BackendError(Diagnostic(B301, f"{framework.title} failed in {what}: {problem}", place=place))


class Body:
    """The graph of an If, Loop or Scan; `body(*inputs)` runs it with the current outer values."""

    def __init__(self, graph: ir.Graph, interpreter: Interpreter) -> None:
        self.captured = walk.captured(graph)
        self.interpreter = interpreter
        self.input_names = [v.name or "" for v in graph.inputs]
        self.outer: dict[str, int] = {}
        self.values: dict[str, Any] = {}

    def __call__(self, *inputs: Any) -> list[Any]:
        feeds = {**self.values, **dict(zip(self.input_names, inputs, strict=False))}
        return list(self.interpreter.run(feeds).values())

    def select(self, value: Any, axis: int, index: int) -> Any:
        """Return one step of a scan input."""
        return self.interpreter.framework.select(value, axis, index)

    def stack(self, values: list[Any], axis: int = 0) -> Any:
        """Return the outputs of all steps as one value."""
        return self.interpreter.framework.stack(values, axis)


def _expand_functions(
    graph: ir.Graph, handler_of: Callable[[ir.Node], Handler | None], opset: int, wanted: list[ir.Value]
) -> list[ir.Value]:
    """Replace nodes without a handler by their function bodies of the standard; return the new `wanted`."""
    names: Names | None = None
    by_name = [v.name for v in wanted]
    queue = list(graph)
    expanded = False
    while queue:
        node = queue.pop(0)
        if handler_of(node) is not None:
            continue
        function = body_of(node, {}, opset)
        if function is None:
            continue
        names = Names(walk.all_names(graph)) if names is None else names
        made = inline_call(node, function, names)
        _infer(graph)
        queue = made + queue
        expanded = True
    if not expanded:
        return wanted
    known = {v.name: v for v in [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]}
    return [known.get(name, value) for name, value in zip(by_name, wanted, strict=True)]


def _infer(graph: ir.Graph) -> None:
    """Infer the types of new values, because a function body may depend on them."""
    if graph.opset_imports:
        shapes.infer_shapes(ir.Model(graph, ir_version=10))


def _nested(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    found: list[ir.Node] = []
    for node in nodes:
        found.append(node)
        for graph in walk.subgraphs(node):
            found += _nested(list(graph))
    return found


def _label(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type
