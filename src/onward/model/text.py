"""Render graphs as text for people.

>>> from onward.samples import perceptron
>>> print(render_graph(perceptron().graph))  # doctest: +ELLIPSIS
perceptron
  input   x: float[N, 3]
  weight  W1: float[3, 4]
  ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from onward.errors import counted
from onward.graph.walk import subgraphs

_LONG = 60  # characters of one attribute


def type_text(value: ir.Value) -> str:
    """Return the type of a value without its shape: `float`, `sequence of int64`, `?`."""
    return _type(value.type)


def _type(kind: object) -> str:
    if isinstance(kind, ir.SequenceType):
        return f"sequence of {_type(kind.elem_type)}"
    if isinstance(kind, ir.OptionalType):
        return f"optional {_type(kind.elem_type)}"
    if isinstance(kind, ir.TensorType | ir.SparseTensorType):
        sparse = "sparse " if isinstance(kind, ir.SparseTensorType) else ""
        return sparse + kind.dtype.name.lower()
    return "?" if kind is None else "map or opaque"


def shape_text(value: ir.Value) -> str:
    """Return the shape, such as `[N, 3]` or `[]`; an empty string if the rank is not known."""
    if value.shape is None:
        return ""
    dims = (str(d) if isinstance(d, int) else str(d.value) if d.value is not None else "?" for d in value.shape)
    return "[" + ", ".join(dims) + "]"


def value_text(value: ir.Value) -> str:
    """Return the name, type and shape of a value."""
    return f"{value.name}: {type_text(value)}{shape_text(value)}"


def attribute_text(attribute: ir.Attr, limit: int = _LONG) -> str:
    """Return a short text for the value of an attribute."""
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    kind, value = attribute.type, attribute.value
    if kind == ir.AttributeType.FLOAT:
        text = f"{value:.7g}"
    elif kind == ir.AttributeType.FLOATS:
        text = "[" + ", ".join(f"{v:.7g}" for v in value) + "]"
    elif kind in (ir.AttributeType.INTS, ir.AttributeType.STRINGS):
        text = str(list(value))
    elif kind == ir.AttributeType.TENSOR:
        text = tensor_text(value)
    elif kind == ir.AttributeType.GRAPH:
        text = f"graph {value.name or ''} of {counted(len(value), 'node')}"
    elif kind == ir.AttributeType.GRAPHS:
        text = counted(len(value), "graph")
    elif kind in (ir.AttributeType.INT, ir.AttributeType.STRING):
        text = str(value)
    else:
        text = kind.name.lower().replace("_", " ")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def tensor_text(tensor: ir.TensorProtocol) -> str:
    """Return a short text for a tensor: its value if it is small, else its type and shape."""
    shape = ", ".join(str(d) for d in tensor.shape)
    if tensor.size > 6 or tensor.dtype == ir.DataType.STRING:
        return f"{tensor.dtype.name.lower()}[{shape}]"
    values = tensor.numpy().reshape(-1).tolist()
    texts = [f"{v:.7g}" if isinstance(v, float) else str(v) for v in values]
    return texts[0] if not tensor.shape.numpy() and texts else "[" + ", ".join(texts) + "]"


def node_text(node: ir.Node) -> str:
    """Return a node as an assignment: `y = Conv(x, W; strides=[2, 2])  → float[N, 8]`."""
    outputs = ", ".join(v.name or "_" for v in node.outputs)
    inputs = ", ".join("_" if v is None else v.name or "_" for v in node.inputs)
    attributes = ", ".join(f"{name}={attribute_text(a)}" for name, a in node.attributes.items())
    operator = node.op_type if not node.domain else f"{node.domain}.{node.op_type}"
    if node.overload:
        operator += f":{node.overload}"
    text = f"{outputs} = {operator}({inputs}{'; ' if attributes and inputs else ''}{attributes})"
    known = [v for v in node.outputs if v.name and v.type is not None]
    return text + ("  → " + ", ".join(f"{type_text(v)}{shape_text(v)}" for v in known) if known else "")


def render_graph(graph: ir.Graph, *, roles: Mapping[str, str] | None = None, indent: str = "") -> str:
    """Return the inputs, weights, nodes and outputs of a graph, one per line; inner graphs are indented.

    `roles` maps the name of an initializer to its role: parameter, frozen or state.
    """
    return "\n".join(_lines(graph, roles or {}, indent, graph.name or "graph"))


def render_function(function: ir.Function) -> str:
    """Return a function with its body, one node per line."""
    overload = f":{function.overload}" if function.overload else ""
    head = f"function {function.domain}.{function.name}{overload}"
    lines = [f"{head}({', '.join(v.name or '_' for v in function.inputs)})"]
    lines += [f"  attribute {name}" for name in function.attributes]
    for node in function:
        lines.append(f"  {node_text(node)}")
        for inner in subgraphs(node):
            lines += _lines(inner, {}, "    ", inner.name or "graph")
    lines.append(f"  output  {', '.join(v.name or '_' for v in function.outputs)}")
    return "\n".join(lines)


def _lines(graph: ir.Graph, roles: Mapping[str, str], indent: str, title: str) -> Iterator[str]:
    yield f"{indent}{title}"
    for value in graph.inputs:
        default = "  (has a default)" if value.name in graph.initializers else ""
        yield f"{indent}  input   {value_text(value)}{default}"
    for name, value in graph.initializers.items():
        role = roles.get(name, "")
        tensor = value.const_value
        small = f" = {tensor_text(tensor)}" if tensor is not None and tensor.size == 1 else ""
        yield f"{indent}  weight  {value_text(value)}{small}{f'  ({role})' if role else ''}"
    for node in graph:
        yield f"{indent}  {node_text(node)}"
        for inner in subgraphs(node):
            yield from _lines(inner, {}, indent + "    ", inner.name or "graph")
    for value in graph.outputs:
        yield f"{indent}  output  {value_text(value)}"
