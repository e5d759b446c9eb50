"""Types and shapes inside the bodies of Loop, Scan and SequenceMap, which onnx's own inference leaves open.

A carried value may change its shape from one iteration to the next, so onnx assumes nothing about it. Here we first
assume that it keeps the shape it starts with. Then we give up each dimension that the body does not return unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx
import onnx_ir as ir

from onward.graph import shapes, walk
from onward.graph.builder import Value
from onward.storage.writer import Writer, put_light, value_info

_SYMBOLS = "onward.symbols"
_BODIES = frozenset({"Loop", "Scan", "SequenceMap"})


def infer_bodies(nodes: Iterable[ir.Node], opset: int) -> None:
    """Fill in the types and shapes in the bodies of `nodes`, nested ones included, as far as possible."""
    for node in nodes:
        if node.op_type in _BODIES and node.domain == "" and "body" in node.attributes:
            body = node.attributes["body"].as_graph()
            given = _given(node, body)
            _infer(body, given, _carried(node), opset)
        for graph in walk.subgraphs(node):
            infer_bodies(graph, opset)


def is_invariant(value: Value, body: ir.Graph) -> bool:
    """Return whether `value`, computed in the loop body, certainly has the same shape in every iteration."""
    if not isinstance(value.type, ir.TensorType) or value.shape is None:
        return False
    symbols = body.meta.get(_SYMBOLS, frozenset())
    return all(isinstance(d, int) or d.value in symbols for d in value.shape)


def _carried(node: ir.Node) -> list[tuple[int, int]]:
    """Return (body input, body output) positions of the carried values."""
    if node.op_type == "Loop":
        return [(k + 2, k + 1) for k in range(len(node.inputs) - 2)]
    if node.op_type == "Scan":
        scanned = node.attributes["num_scan_inputs"].as_int()
        return [(k, k) for k in range(len(node.inputs) - scanned)]
    return []


def scan_attribute(node: ir.Node, name: str, count: int) -> list[int]:
    """Return the axes or directions of the `count` scan inputs or outputs of `node`; they are 0 where not given."""
    given = list(node.attributes[name].as_ints()) if name in node.attributes else []
    return given + [0] * (count - len(given))


Typed = tuple[ir.TypeProtocol | None, ir.Shape | None]


def _given(node: ir.Node, body: ir.Graph) -> list[Typed]:
    """Return the type and shape of each body input, taken from the node's inputs."""
    if node.op_type == "Loop":
        going = node.inputs[1] if len(node.inputs) > 1 else None
        fixed: list[Typed] = [
            (ir.TensorType(ir.DataType.INT64), _one(body.inputs[0])),
            (ir.TensorType(ir.DataType.BOOL), _one(body.inputs[1], going)),
        ]
        return fixed + [_typed(v) for v in node.inputs[2:]]
    if node.op_type == "SequenceMap":
        return [_element(v) for v in node.inputs]
    scanned = node.attributes["num_scan_inputs"].as_int()
    states = len(node.inputs) - scanned
    axes = scan_attribute(node, "scan_input_axes", scanned)
    given = [_typed(v) for v in node.inputs[:states]]
    for value, axis in zip(node.inputs[states:], axes, strict=True):
        type_, shape = _typed(value)
        if shape is not None:
            kept = list(shape)
            del kept[axis]
            shape = ir.Shape(kept)
        given.append((type_, shape))
    return given


def _one(*values: Value | None) -> ir.Shape:
    """Return the shape of a Loop's counter or condition: [1] if the file writes it so, as Paddle does, else []."""
    listed = any(v is not None and v.shape is not None and len(v.shape) == 1 for v in values)
    return ir.Shape([1] if listed else [])


def _typed(value: Value | None) -> Typed:
    return (None, None) if value is None else (value.type, value.shape)


def _element(value: Value | None) -> Typed:
    if value is not None and isinstance(value.type, ir.SequenceType):
        return value.type.elem_type, value.shape
    return _typed(value)


def _infer(body: ir.Graph, given: Sequence[Typed], carried: Sequence[tuple[int, int]], opset: int) -> None:
    for value, (type_, shape) in zip(body.inputs, given, strict=False):
        if type_ is not None:
            value.type = type_
        if shape is not None:
            value.shape = shape.copy()
    declared = [(v, v.shape) for n in walk.all_nodes(body) for v in n.outputs]
    while True:
        for value, shape in declared:  # forget what followed from assumptions since given up
            value.shape = shape
        symbols = _run(body, opset)
        changed = [_give_up(body.inputs[source], body.outputs[target]) for source, target in carried]
        if not any(changed):
            body.meta[_SYMBOLS] = frozenset(symbols)
            return


def _give_up(before: Value, after: Value) -> bool:
    """Forget the dimensions of a carried value that the body changes; return whether there were any."""
    was, now = shapes.dims(before), shapes.dims(after)
    if was is None or before is after:
        return False
    if now is None or len(now) != len(was):
        before.shape = None
        return True
    kept = tuple(a if a == b else None for a, b in zip(was, now, strict=True))
    if kept == was:
        return False
    before.shape = ir.Shape(kept)
    return True


def _run(body: ir.Graph, opset: int) -> set[str]:
    """Infer the body as a graph of its own; return the symbols with the same value in every iteration."""
    model = onnx.ModelProto()
    graph, light = model.graph, Writer(put_light([]))
    light.graph(graph, body)
    del graph.value_info[:], graph.output[:]  # what was found before may rest on an assumption that was given up
    outer = walk.captured(body)
    for value in outer:
        constant = walk.constant_of(value)
        if constant is None or constant.dtype == object:  # strings take part by type and shape
            value_info(graph.input.add(), value)
        else:
            light.put(graph.initializer.add(), ir.tensor(constant, name=value.name))
    for domain in {n.domain for n in walk.all_nodes(body)} | {""}:
        model.opset_import.add(domain=domain, version=1 if domain else opset)
    shapes.merge_inferred(body, shapes.infer(model))
    known = [d for v in [*body.inputs, *outer] if v.shape is not None for d in v.shape if not isinstance(d, int)]
    return {d.value for d in known if d.value is not None}
