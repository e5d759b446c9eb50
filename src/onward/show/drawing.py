"""The drawing of a graph as boxes and edges: their texts, sizes and categories, and the details behind a click."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onward.errors import counted
from onward.graph.folding import Fold, Item, describe, fold, nodes_of
from onward.graph.schema import TRAINING_DOMAIN, schema
from onward.graph.walk import GraphLike, captured, subgraphs
from onward.model.text import attribute_text, shape_text, tensor_text, type_text
from onward.show.layout import Layout, lay_out

_CHARACTER, _BOLD, _TITLE, _ROW, _PADDING = 6.6, 7.9, 26.0, 16.0, 11.0
_LABEL = 5.9  # of a letter in the label of an edge
_MOST_ROWS, _ROW_CHARACTERS = 6, 34
_UNKNOWN = re.compile(r"\bunk__\d+\b")  # the names that shape inference gives to sizes it does not know
_FEW = 4  # elements of a constant that is shown by its value
_MANY = 6  # a larger number of inputs or outputs of one kind is drawn as one box

_CATEGORIES = {
    "linear": "Conv ConvTranspose ConvInteger QLinearConv DeformConv Gemm MatMul MatMulInteger QLinearMatMul Einsum"
              " LSTM GRU RNN Attention",
    "activation": "Relu LeakyRelu PRelu Elu Selu Celu Gelu Mish Sigmoid HardSigmoid HardSwish Swish Tanh Softmax"
                  " LogSoftmax Softplus Softsign ThresholdedRelu Hardmax Clip Erf",
    "normal": "BatchNormalization LayerNormalization InstanceNormalization GroupNormalization RMSNormalization"
              " LpNormalization MeanVarianceNormalization LRN Dropout",
    "pool": "MaxPool AveragePool GlobalAveragePool GlobalMaxPool LpPool GlobalLpPool MaxUnpool Resize Upsample RoiAlign"
            " ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp",
    "shape": "Reshape Transpose Flatten Squeeze Unsqueeze Concat Split Slice Gather GatherElements GatherND Pad Shape"
             " Size Expand Tile Cast CastLike Identity Constant ConstantOfShape ScatterElements ScatterND Range",
    "loss": "SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss",
    "control": "If Loop Scan",
    "gradient": "Gradient",
    "optimizer": "Adam Adagrad Momentum",
}  # fmt: skip
_CATEGORY = {op: category for category, ops in _CATEGORIES.items() for op in ops.split()}


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)

FunctionId = tuple[str, str, str]


class Drawings:
    """Draws the graphs of one model; a subgraph becomes a separate drawing, to which its node refers."""

    def __init__(
        self, roles: Mapping[str, str], functions: Mapping[tuple[str, str, str], int], limit: int = 80
    ) -> None:
        self.roles = roles
        self.functions = functions
        self.limit = limit
        self.drawings: list[dict[str, Any]] = []
        self.inner: dict[ir.Graph, int] = {}  # the drawings of subgraphs, which several drawings of a node refer to

    def add(
        self, graph: ir.Graph | ir.Function, title: str, kind: str, bindings: Mapping[str, str] | None = None
    ) -> int:
        """Draw a graph and return the number of its drawing."""
        number = len(self.drawings)
        self.drawings.append({})
        self.drawings[number] = _Drawing(self, graph, title, kind, bindings or {}).build()
        return number

    def add_folded(
        self, graph: ir.Graph | ir.Function, title: str, kind: str, bindings: Mapping[str, str] | None = None
    ) -> int:
        """Draw a large graph as few parts, each of which has a drawing of its own; return the number of the first."""
        drawing = _Drawing(self, graph, title, kind, bindings or {})
        items = fold([n for n in graph if n not in drawing.constants])
        if not any(isinstance(item, Fold) for item in items):
            return self.add(graph, title, kind, bindings)
        number = len(self.drawings)
        self.drawings.append({})
        self.drawings[number] = drawing.build(items, number)
        self.add(graph, f"{title}: all nodes", "flat", bindings)
        self.drawings[number]["flat"] = len(self.drawings) - 1
        return number

    def add_part(self, graph: GraphLike, part: Fold, parent: int) -> int:
        """Draw the inside of a part, with what it reads and what is read of it as pills."""
        number = len(self.drawings)
        self.drawings.append({"parent": parent})
        self.drawings[number] = _Drawing(self, graph, part.title, "part", {}).build(part.items, number, parent)
        return number


class _Drawing:
    def __init__(
        self, drawings: Drawings, graph: GraphLike, title: str, kind: str, bindings: Mapping[str, str]
    ) -> None:
        self.drawings, self.graph, self.title, self.kind, self.bindings = drawings, graph, title, kind, bindings
        self.boxes: list[dict[str, Any]] = []
        self.edges: dict[tuple[int, int], dict[str, Any]] = {}
        self.maker: dict[str, int] = {}
        self.labelled: set[str] = set()
        self.stored: dict[str, ir.Value] = dict(graph.initializers) if isinstance(graph, ir.Graph) else {}
        self.constants = self._constants()
        self.folded = False

    def build(self, items: Sequence[Item] | None = None, number: int = -1, parent: int | None = None) -> dict[str, Any]:
        """Return the drawing of the whole graph, of its parts (`items`), or of the inside of one (`parent`)."""
        if items is None:
            items = [n for n in self.graph if n not in self.constants]
        inside = {node for item in items for node in nodes_of(item)}
        if parent is None:
            self._pills([v for v in self.graph.inputs if v.name not in self.stored], "input", "Inputs")
        else:
            self._pills(self._read_from_outside(inside), "outer", "From outside")
        if isinstance(self.graph, ir.Graph) and parent is None:
            own = {v.name for v in self.graph.inputs} | set(self.stored)
            outer = [v for v in captured(self.graph) if v.name and v.name not in own]
            weights = [v for v in outer if v.const_value is not None or v.name in self.drawings.roles]
            self.stored.update({v.name or "": v for v in weights})
            self._pills([v for v in outer if v.name not in self.stored], "outer", "From outside")
        self.folded = any(isinstance(item, Fold) for item in items)
        boxes = [self._part(item, number) if isinstance(item, Fold) else self._node(item) for item in items]
        for item, box in zip(items, boxes, strict=True):
            for node in nodes_of(item):
                for value in node.inputs:
                    self._connect(value, box)
                for inner in subgraphs(node):
                    for value in captured(inner):
                        self._connect(value, box, dashed=True)
                if node.op_type == "Gradient" and node.domain == TRAINING_DOMAIN:
                    self._differentiates(node, box)
        if parent is None:
            self._outputs(self.graph.outputs)
        else:
            self._outputs([v for node in inside for v in node.outputs if _leaves(v, inside)])
        layout = self._lay_out()
        for drawn, (x, y) in zip(self.boxes, layout.places, strict=True):
            drawn["x"], drawn["y"] = round(x, 1), round(y, 1)
        edges = []
        for edge, route in zip(self.edges.values(), layout.routes, strict=True):
            edges.append({**edge, "p": [round(c, 1) for point in route for c in point]})
        return {
            "title": self.title,
            "kind": self.kind,
            "parent": parent,
            "count": len(list(self.graph)) if parent is None else len(inside),
            "width": round(max([layout.width, *(_label_end(edge) for edge in edges if edge["l"])]), 1),
            "height": round(layout.height, 1),
            "boxes": self.boxes,
            "edges": edges,
        }

    def _lay_out(self) -> Layout:
        """Return the layout; modules may form a cycle, so an edge back to an earlier box is laid out upside down."""
        sizes = [(b["w"], b["h"]) for b in self.boxes]
        back = [bool(self.boxes[s].get("g") or self.boxes[t].get("g")) and s > t for s, t in self.edges]
        layout = lay_out(sizes, [(t, s) if b else (s, t) for (s, t), b in zip(self.edges, back, strict=True)])
        layout.routes = [r[::-1] if b else r for r, b in zip(layout.routes, back, strict=True)]
        return layout

    def _read_from_outside(self, inside: set[ir.Node]) -> list[ir.Value]:
        """Return the values that the nodes read and do not make, each once; weights are shown in the nodes."""
        read = [v for n in self.graph if n in inside for v in n.inputs if v is not None]
        read += [v for n in self.graph if n in inside for g in subgraphs(n) for v in captured(g)]
        found = dict.fromkeys(v for v in read if v.producer() not in inside)
        self.stored.update({v.name or "": v for v in found if v.const_value is not None})
        return [v for v in found if v.name and v.name not in self.stored and v.name not in self.drawings.roles]

    def _part(self, part: Fold, parent: int) -> int:
        """Draw a part as one box, which opens its own drawing."""
        numbers = weights_of(part.nodes)
        rows = [(counted(len(part.nodes), "node"), counted(numbers, "weight") if numbers > 1 else "", "")]
        if inside := describe(part):
            rows.append((inside, "", ""))
        inner = self.drawings.add_part(self.graph, part, parent)
        number = self._box(
            "op",
            [f"{part.title} ▸", *(f"{a}  {b}" for a, b, _ in rows)],
            t=_cut(part.title, 40),
            c="module",
            g=inner,
            r=rows,
            d={
                "name": part.title, "operator": "part of the graph", "doc": "", "inputs": [], "outputs": [],
                "attributes": [], "inner": [inner],
            },
        )  # fmt: skip
        self.maker.update({v.name or "": number for n in part.nodes for v in n.outputs})
        return number

    def _constants(self) -> set[ir.Node]:
        """Return the Constant nodes, which are shown inside the nodes that read them, like weights."""
        outputs = {v.name for v in self.graph.outputs}
        found = set()
        for node in self.graph:
            if node.op_type == "Constant" and not node.domain and len(node.outputs) == 1:
                value = node.outputs[0]
                if value.name not in outputs and "value" in node.attributes and not node.attributes["value"].is_ref():
                    self.stored[value.name or ""] = value
                    found.add(node)
        return found

    def _node(self, node: ir.Node) -> int:
        rows: list[tuple[str, str, str]] = []
        for index, value in enumerate(node.inputs):
            if value is not None and value.name in self.stored:
                role = self.drawings.roles.get(value.name or "", "constant")
                name = _input_name(node, index) if value.producer() is not None else value.name
                rows.append((name or value.name or "", _held(value), role))
        for name, attribute in node.attributes.items():
            if attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) and name not in (
                "xs",
                "zs",
                "y",
            ):
                rows.append((name, attribute_text(attribute, 24), "attribute"))
        shown = (
            rows[:1]  # between parts a node is small too; a click shows the rest
            if self.folded
            else rows
            if len(rows) <= _MOST_ROWS
            else [*rows[: _MOST_ROWS - 1], ("", f"{len(rows) - _MOST_ROWS + 1} more", "")]
        )
        title = node.op_type
        key = (node.domain, node.op_type, node.overload)
        category = "function" if key in self.drawings.functions else _category(node)
        texts = [title, *(f"{_cut(a, 22)}  {_cut(b)}" for a, b, _ in shown)]
        inner = [i for g in subgraphs(node) if (i := self._inner(node, g)) is not None]
        if key in self.drawings.functions:
            inner.append(self.drawings.functions[key])
        number = self._box(
            "op",
            texts,
            t=title,
            c=category,
            r=[(_cut(a, 22), _cut(b), c) for a, b, c in shown],
            d={
                "name": node.name or "",
                "operator": f"{node.domain}.{node.op_type}" if node.domain else node.op_type,
                "doc": node.doc_string or "",
                "inputs": [self._detail(v) for v in node.inputs],
                "outputs": [self._detail(v) for v in node.outputs],
                "attributes": [[n, attribute_text(a, 400)] for n, a in node.attributes.items()],
                "metadata": [[k, v] for k, v in node.metadata_props.items()],
                "inner": inner,
            },
        )
        for value in node.outputs:
            if value.name:
                self.maker[value.name] = number
        return number

    def _inner(self, node: ir.Node, graph: ir.Graph) -> int | None:
        known = self.drawings.inner
        if graph not in known:
            if len(known) >= self.drawings.limit:
                return None
            known[graph] = -1  # it counts before the graphs inside it
            known[graph] = self.drawings.add(
                graph, f"{node.name or node.op_type} / {graph.name or 'graph'}", "subgraph"
            )
        return known[graph]

    def _detail(self, value: ir.Value | None) -> list[str]:
        if value is None:
            return ["(none)", "", ""]
        name = value.name or ""
        role = self.drawings.roles.get(name, "constant") if name in self.stored else ""
        return [name, _full_type(value), role]

    def _pills(self, values: list[ir.Value], kind: str, many: str) -> None:
        """Draw values as pills; a large number of them as one."""
        if len(values) > 4 * _MANY:
            number = self._box(
                kind, [f"{len(values)} values"], t=f"{many}: {len(values)} values", d=_value_details(many, values)
            )
            self.maker.update({v.name or "": number for v in values})
            return
        for value in values:
            label = value.name or ""
            shape = _type_label(value)
            number = self._box(kind, [label, shape], t=_cut(label), s=_cut(shape), d=_value_details(many, [value]))
            self.maker[value.name or ""] = number

    def _outputs(self, outputs: Sequence[ir.Value]) -> None:
        """Draw the outputs; an output that replaces a state names it, and many outputs of one node are drawn as one."""
        replaces: dict[str, list[str]] = {}
        for key, value_name in self.bindings.items():
            replaces.setdefault(value_name, []).append(key)
        groups: dict[int | None, list[ir.Value]] = {}
        for value in outputs:
            groups.setdefault(self.maker.get(value.name or ""), []).append(value)
        for source, values in groups.items():
            plain = [v for v in values if v.name not in replaces]
            bound = [v for v in values if v.name in replaces]
            for group in (plain, bound):
                if len(group) > _MANY:
                    label = f"{len(group)} updated states" if group is bound else f"{len(group)} outputs"
                    self._output(source, label, "", group, replaces)
                    continue
                for value in group:
                    keys = replaces.get(value.name or "", [])
                    label = f"→ {', '.join(keys)}" if keys else value.name or ""
                    self._output(source, label, _type_label(value), [value], replaces)

    def _output(
        self, source: int | None, label: str, shape: str, values: list[ir.Value], replaces: Mapping[str, list[str]]
    ) -> None:
        details = _value_details("Replaces" if values[0].name in replaces else "Outputs", values)
        for row in details["outputs"]:
            if row[0] in replaces:
                row[2] = "→ " + ", ".join(replaces[row[0]])
        kind = "update" if values[0].name in replaces else "output"
        number = self._box(kind, [label, shape], t=_cut(label, 40), s=_cut(shape), d=details)
        if source is not None:
            self.edges.setdefault((source, number), {"s": source, "t": number, "l": "", "n": [v.name for v in values]})

    def _connect(self, value: ir.Value | None, target: int, dashed: bool = False) -> None:
        if value is None or value.name in self.stored or value.name not in self.maker:
            return
        source = self.maker[value.name or ""]
        if source == target:
            return
        label = ""
        if self.boxes[source]["k"] == "op" and value.name not in self.labelled:  # only on its first edge
            label = shape_label(value)
            self.labelled.add(value.name or "")
        edge = self.edges.setdefault((source, target), {"s": source, "t": target, "l": label, "n": []})
        if value.name not in edge["n"]:
            edge["n"].append(value.name)
        if len(edge["n"]) > 1:
            edge["l"] = f"{len(edge['n'])} values"
        if dashed:
            edge["dash"] = 1

    def _differentiates(self, node: ir.Node, number: int) -> None:
        """Draw the edge from `y` to its Gradient node, which names `y` but does not have it as an input."""
        attribute = node.attributes.get("y")
        name = attribute.value if attribute is not None and not attribute.is_ref() else None
        if isinstance(name, str) and name in self.maker and self.maker[name] != number:
            source = self.maker[name]
            self.edges.setdefault(
                (source, number), {"s": source, "t": number, "l": f"∂ {name}", "n": [name], "dash": 1}
            )

    def _box(self, kind: str, texts: Iterable[str], **fields: Any) -> int:
        lines = [t for t in texts if t]
        letters = max([len(lines[0]) * _BOLD, *(len(t) * _CHARACTER for t in lines[1:])]) if lines else 0.0
        width = min(320.0, max(64.0, letters + 2 * _PADDING))
        height = _TITLE + _ROW * (len(lines) - 1) + (6.0 if kind == "op" and len(lines) > 1 else 0.0)
        self.boxes.append({"k": kind, "w": round(width, 1), "h": height, **fields})
        return len(self.boxes) - 1


def _label_end(edge: Mapping[str, Any]) -> float:
    """Return the right end of an edge's label, which page.js writes beside the middle of the edge or its first bend."""
    points = edge["p"]
    begin = points[2] if len(points) > 4 else (points[0] + points[2]) / 2
    return float(begin + 6 + len(edge["l"]) * _LABEL)


def _leaves(value: ir.Value, inside: set[ir.Node]) -> bool:
    """Return whether the value is an output of the graph, or a node elsewhere reads it."""
    return bool(value.name) and (value.is_graph_output() or any(use.node not in inside for use in value.uses()))


def shape_label(value: ir.Value) -> str:
    """Return the shape as edges show it: `N×6×28×28`; a size that is a long name is cut, one that is unknown is `?`."""
    return "×".join(_sizes(value))


def _sizes(value: ir.Value) -> list[str]:
    return ["?" if _UNKNOWN.fullmatch(d) else _cut(d, 12) for d in shape_text(value)[1:-1].split(", ")]


def _full_type(value: ir.Value) -> str:
    return type_text(value) + _UNKNOWN.sub("?", shape_text(value))


def _type_label(value: ir.Value) -> str:
    """Return the type and shape as pills show them: `float[N, 3, ?]`."""
    return f"{type_text(value)}[{', '.join(_sizes(value))}]" if shape_text(value) else type_text(value)


def held_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer, or of a value that a Constant node makes."""
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    attribute = None if node is None or node.op_type != "Constant" else node.attributes.get("value")
    tensor = attribute.value if attribute is not None and attribute.type == ir.AttributeType.TENSOR else None
    return tensor if isinstance(tensor, ir.TensorProtocol) else None


_SMALL_INTEGERS = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4})


def weights_of(nodes: Iterable[ir.Node]) -> int:
    """Return how many numbers the nodes read from initializers and from all but the smallest Constant nodes."""
    tensors = {v: held_tensor(v) for node in nodes for v in node.inputs if v is not None}
    return sum(t.size for v, t in tensors.items() if t is not None and (v.producer() is None or t.size > _FEW))


def integers_of(nodes: Iterable[ir.Node]) -> int:
    """Return how many numbers of at most eight bits the nodes read from initializers: quantised weights."""
    tensors = {v: v.const_value for node in nodes for v in node.inputs if v is not None and v.is_initializer()}
    return sum(t.size for t in tensors.values() if t is not None and t.dtype in _SMALL_INTEGERS)


def _input_name(node: ir.Node, index: int) -> str:
    """Return what the standard calls an input, for a constant whose own name says nothing."""
    known = schema(node.op_type, node.domain)
    if known is None or not known.inputs:
        return ""
    return known.input_at(index).name


def _held(value: ir.Value) -> str:
    """Return the value of a weight or constant if it has few elements, else its shape."""
    tensor = held_tensor(value)
    if tensor is None:
        return shape_text(value)
    if tensor.size <= _FEW and tensor.dtype != ir.DataType.STRING:
        return tensor_text(tensor)
    return "⟨" + "×".join(str(d) for d in tensor.shape) + "⟩"


def _value_details(title: str, values: list[ir.Value]) -> dict[str, Any]:
    rows = [[v.name or "", _full_type(v), ""] for v in values]
    docs = "\n".join(v.doc_string for v in values if v.doc_string)
    return {"name": "", "operator": title, "doc": docs, "inputs": [], "outputs": rows, "attributes": [], "inner": []}


def _category(node: ir.Node) -> str:
    if node.domain not in ("", TRAINING_DOMAIN):
        return "function"
    return _CATEGORY.get(node.op_type, "plain")


def _cut(text: str, limit: int = _ROW_CHARACTERS) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
