"""A new head for files that give labels from a table, as those of scikit-learn: label, and a map of probabilities.

skl2onnx writes the names of the classes into the graph: in the table from which the label is chosen, and in the ZipMap.
Both are written anew behind the new layer. The outputs keep their names and types: text stays text, and numbers stay
numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Names, Value
from onward.graph.closing import PASSING, closing
from onward.graph.shapes import dims
from onward.graph.walk import all_names, reads, unmapped
from onward.model.training_model import FLOAT_TYPES, TrainingModel
from onward.surgery.class_list import ClassList
from onward.surgery.head import Linear, computed_values, linear_layers, name_of
from onward.surgery.notes import NewHead
from onward.surgery.own_head import linear_head
from onward.surgery.splice import check_consistent, remove_unused, set_outputs, shape_text

_ML = "ai.onnx.ml"


@dataclasses.dataclass(frozen=True)
class Classifier:
    """The last linear layer, the output with the scores, and the one with the label from a table, if there is one."""

    linear: Linear
    scores: Value
    label: Value | None

    @property
    def is_mapped(self) -> bool:
        """Whether the scores are a map from class to probability."""
        return unmapped(self.scores) is not self.scores

    @property
    def has_text(self) -> bool:
        """Whether the labels are text; else they are whole numbers."""
        if self.label is not None:
            return self.label.dtype is ir.DataType.STRING
        node = self.scores.producer()
        return node is not None and "classlabels_strings" in node.attributes

    @property
    def gives_probabilities(self) -> bool:
        """Whether the scores are more than what the linear layer computes."""
        if self.is_mapped or closing(self.scores) is not None:
            return True
        node = self.scores.producer()
        while node is not None and node is not self.linear.node:
            if node.op_type not in PASSING | {"Add"}:
                return True
            node = next((v.producer() for v in node.inputs if v is not None and v.producer() is not None), None)
        return False


def find_classifier(graph: ir.Graph, output: str | None) -> Classifier | None:
    """Return the classifier that the graph is; None if no table of labels depends on its last layer."""
    scores = [v for v in graph.outputs if unmapped(v).dtype in FLOAT_TYPES or unmapped(v) is not v]
    labels = [v for v in graph.outputs if v not in scores and _is_from_table(graph, v)]
    if len(scores) != 1 or len(labels) != len(graph.outputs) - 1 or len(labels) > 1:
        return None
    if not labels and unmapped(scores[0]) is scores[0]:
        return None
    if output is not None and output not in {v.name for v in graph.outputs}:
        return None
    layers = linear_layers(graph)
    if not layers or not _goes_through(graph, layers[-1]):
        return None
    return Classifier(layers[-1], scores[0], labels[0] if labels else None)


def _is_from_table(graph: ir.Graph, value: Value) -> bool:
    """Return whether a value is chosen from a table of labels."""
    computed = computed_values(graph)
    node = value.producer()
    while node is not None and node.op_type in PASSING and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None:
        return False
    if node.domain == _ML and node.op_type == "LabelEncoder":
        return True
    chooses = node.op_type == "Gather" or (node.domain == _ML and node.op_type == "ArrayFeatureExtractor")
    return chooses and node.inputs[0] not in computed and node.inputs[1] in computed


def _goes_through(graph: ir.Graph, layer: Linear) -> bool:
    """Return whether every way from the inputs to the outputs goes through the layer."""
    around = {v for v in graph.inputs if v.name not in graph.initializers}
    for node in graph:
        if node is not layer.node and any(v in around for v in reads(node)):
            around.update(node.outputs)
    return not any(v in around for v in graph.outputs)


def replace_classifier(
    work: TrainingModel,
    found: Classifier,
    classes: ClassList,
    activation: str,
    old_classes: Sequence[str],
    seed: int,
) -> NewHead:
    """Put a fresh linear layer, its Softmax, and the labels of the new classes in place of the old ones.

    Raises:
        ArgumentError: classes are to keep their weights, which a file with a table of labels does not offer.
    """
    if old_classes:
        raise ArgumentError(
            Diagnostic(
                A101,
                "classes cannot keep their weights: the file chooses its labels from a table",
                place="old_classes=",
                hint="leave it out; a network that ends in its scores can keep them",
            )
        )
    graph, linear = work.graph, found.linear
    before = shape_text(dims(linear.node.inputs[linear.weight]))  # type: ignore[arg-type]  # a weight is a value
    closes = "Softmax" if found.gives_probabilities else None
    made, weights, logits = linear_head(work, linear.features, classes.count, closes, activation, seed)
    op = Builder(work.opset, Names(all_names(graph)), prefix="head/")
    labels = _labels(classes, found.has_text)
    old_names = {v: v.name or "" for v in (found.scores, found.label) if v is not None}
    for value, name in old_names.items():
        value.name = f"{name}/old"
    batch = list(dims(linear.features) or (None,))[:1]
    new: dict[Value, Value] = {found.scores: made}
    if found.is_mapped:
        names = {"classlabels_strings": labels} if found.has_text else {"classlabels_int64s": labels}
        node = ir.node("ZipMap", [made], names, domain=_ML, name=f"{old_names[found.scores]}/ZipMap")
        node.outputs[0].type = found.scores.type
        new[found.scores] = node.outputs[0]
        op.nodes.append(node)
    if found.label is not None:
        table = op.Constant(**({"value_strings": labels} if found.has_text else {"value_ints": labels}))
        index = op.ArgMax(made, axis=-1, keepdims=0)
        chosen = op.Gather(table, index, axis=0)
        chosen.type, chosen.shape = found.label.type, ir.Shape(batch)
        new[found.label] = chosen
    for value, replacement in new.items():
        replacement.name = old_names[value]
    graph.extend(op.nodes)
    set_outputs(graph, [new[v] for v in graph.outputs])
    remove_unused(graph)
    check_consistent(work)
    where = " and ".join(f"`{new[v].name}`" for v in (found.label, found.scores) if v is not None)
    known = ", ".join(str(name) for name in labels[:8]) + (", …" if len(labels) > 8 else "")
    return NewHead(
        output=new[found.scores].name or "",
        logits=logits.name or "",
        axis=1,
        weights=tuple(weights),
        classes=classes.count,
        text=f"{linear.node.op_type} {name_of(linear.node)} with {linear.classes} "
        f"{'class' if linear.classes == 1 else 'classes'} (weight {before}) became one with {classes.count}; {where} "
        f"give the classes {known}",
    )


def _labels(classes: ClassList, has_text: bool) -> list[str] | list[int]:
    """Return the labels of the classes in the type that the file gives: their names, or else their numbers."""
    if has_text:
        return list(classes.names) or [str(i) for i in range(classes.count)]
    try:
        return [int(name) for name in classes.names] or list(range(classes.count))
    except ValueError:
        return np.arange(classes.count).tolist()


__all__ = ["Classifier", "find_classifier", "replace_classifier"]
