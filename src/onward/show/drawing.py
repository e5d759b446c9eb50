"""The drawing of a graph as boxes and edges: their texts, sizes and categories, and the details behind a click."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx_ir as ir

from onward.graph.schema import TRAINING_DOMAIN
from onward.graph.walk import GraphLike, captured, subgraphs
from onward.model.text import attribute_text, shape_text, tensor_text, type_text
from onward.show.layout import lay_out

_CHARACTER, _BOLD, _TITLE, _ROW, _PADDING = 6.6, 7.9, 26.0, 16.0, 11.0
_MOST_ROWS, _ROW_CHARACTERS = 6, 34
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

    def add(
        self, graph: ir.Graph | ir.Function, title: str, kind: str, bindings: Mapping[str, str] | None = None
    ) -> int:
        """Draw a graph and return the number of its drawing."""
        number = len(self.drawings)
        self.drawings.append({})
        self.drawings[number] = _Drawing(self, graph, title, kind, bindings or {}).build()
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

    def build(self) -> dict[str, Any]:
        folded = self._constants()
        self._pills([v for v in self.graph.inputs if v.name not in self.stored], "input", "Inputs")
        nodes = [n for n in self.graph if n not in folded]
        if isinstance(self.graph, ir.Graph):
            own = {v.name for v in self.graph.inputs} | set(self.stored)
            outer = [v for v in captured(self.graph) if v.name and v.name not in own]
            weights = [v for v in outer if v.const_value is not None or v.name in self.drawings.roles]
            self.stored.update({v.name or "": v for v in weights})
            self._pills([v for v in outer if v.name not in self.stored], "outer", "From outside")
        numbers = {node: self._node(node) for node in nodes}
        for node, number in numbers.items():
            for value in node.inputs:
                self._connect(value, number)
            for inner in subgraphs(node):
                for value in captured(inner):
                    self._connect(value, number, dashed=True)
            if node.op_type == "Gradient" and node.domain == TRAINING_DOMAIN:
                self._differentiates(node, number)
        self._outputs()
        sizes = [(b["w"], b["h"]) for b in self.boxes]
        layout = lay_out(sizes, list(self.edges))
        for box, (x, y) in zip(self.boxes, layout.places, strict=True):
            box["x"], box["y"] = round(x, 1), round(y, 1)
        edges = []
        for edge, route in zip(self.edges.values(), layout.routes, strict=True):
            edges.append({**edge, "p": [round(c, 1) for point in route for c in point]})
        return {
            "title": self.title,
            "kind": self.kind,
            "count": len(list(self.graph)),
            "width": round(layout.width, 1),
            "height": round(layout.height, 1),
            "boxes": self.boxes,
            "edges": edges,
        }

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
        for value in node.inputs:
            if value is not None and value.name in self.stored:
                rows.append((value.name or "", _held(value), self.drawings.roles.get(value.name or "", "constant")))
        for name, attribute in node.attributes.items():
            if attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) and name not in (
                "xs",
                "zs",
                "y",
            ):
                rows.append((name, attribute_text(attribute, 24), "attribute"))
        shown = (
            rows
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
        if len(self.drawings.drawings) >= self.drawings.limit:
            return None
        return self.drawings.add(graph, f"{node.name or node.op_type} / {graph.name or 'graph'}", "subgraph")

    def _detail(self, value: ir.Value | None) -> list[str]:
        if value is None:
            return ["(none)", "", ""]
        name = value.name or ""
        role = self.drawings.roles.get(name, "constant") if name in self.stored else ""
        return [name, f"{type_text(value)}{shape_text(value)}", role]

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
            shape = f"{type_text(value)}{shape_text(value)}"
            number = self._box(kind, [label, shape], t=_cut(label), s=_cut(shape), d=_value_details(many, [value]))
            self.maker[value.name or ""] = number

    def _outputs(self) -> None:
        """Draw the outputs; an output that replaces a state names it, and many outputs of one node are drawn as one."""
        replaces: dict[str, list[str]] = {}
        for key, value_name in self.bindings.items():
            replaces.setdefault(value_name, []).append(key)
        groups: dict[int | None, list[ir.Value]] = {}
        for value in self.graph.outputs:
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
                    self._output(source, label, f"{type_text(value)}{shape_text(value)}", [value], replaces)

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


def shape_label(value: ir.Value) -> str:
    """Return the shape as edges show it: `N×6×28×28`."""
    return shape_text(value)[1:-1].replace(", ", "×")


def _held(value: ir.Value) -> str:
    """Return the value of a weight or constant if it has few elements, else its shape."""
    tensor = value.const_value
    if tensor is None:
        node = value.producer()
        attribute = None if node is None else node.attributes.get("value")
        tensor = attribute.value if attribute is not None and attribute.type == ir.AttributeType.TENSOR else None
    if tensor is None:
        return shape_text(value)
    if tensor.size <= 4 and tensor.dtype != ir.DataType.STRING:
        return tensor_text(tensor)
    return "⟨" + "×".join(str(d) for d in tensor.shape) + "⟩"


def _value_details(title: str, values: list[ir.Value]) -> dict[str, Any]:
    rows = [[v.name or "", f"{type_text(v)}{shape_text(v)}", ""] for v in values]
    docs = "\n".join(v.doc_string for v in values if v.doc_string)
    return {"name": "", "operator": title, "doc": docs, "inputs": [], "outputs": rows, "attributes": [], "inner": []}


def _category(node: ir.Node) -> str:
    if node.domain not in ("", TRAINING_DOMAIN):
        return "function"
    return _CATEGORY.get(node.op_type, "plain")


def _cut(text: str, limit: int = _ROW_CHARACTERS) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
