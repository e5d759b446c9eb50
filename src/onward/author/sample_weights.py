"""Give the loss of a training model one weight per sample, as a further input of its training step.

The weight of a sample multiplies its part of the loss. What the loss divides by stays as it is: with "mean", the number
of samples (as Keras does with "sum_over_batch_size"), and with class weights of its own, their sum. So a weight of 2
counts a sample twice, a weight of 0 leaves it out, and the weights of other samples of the batch do not matter.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onward.errors import ArgumentError, Diagnostic
from onward.graph import shapes, walk
from onward.graph.builder import Builder, Names, Value
from onward.model.roles import Role, entry_roles, loss_of, mark
from onward.model.serde import from_proto, to_proto
from onward.model.training_model import TrainingEntry, TrainingModel, is_gradient

A141 = "A141"

SAMPLE_WEIGHT = "sample_weight"

_CLASS_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
_SAME = {"Identity", "Cast", "CastLike", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Neg"}  # of a single number
_SUMS = {"Add", "Sub", "Sum"}
_ELEMENTWISE = {
    "Abs", "Add", "Cast", "CastLike", "Clip", "Div", "Exp", "Identity", "Log", "Max", "Min", "Mul", "Neg", "Pow",
    "Relu", "Softplus", "Sqrt", "Sub", "Sum", "Where",
}  # fmt: skip
_BATCH = "onward.batch"  # the name of a batch axis that the file does not name


def add_sample_weight(model: TrainingModel, entry: str | None = None) -> tuple[TrainingModel, str]:
    """Return a copy of `model` whose losses are weighted by a further input of the step, and the name of that input.

    With `entry`, only the loss of that training entry is weighted. `model` does not change.

    Raises:
        ArgumentError: a loss is not a mean or a sum over samples; every place that hinders it is listed.
    """
    copy = from_proto(to_proto(model))
    _name_batch(copy)
    problems: list[Diagnostic] = []
    taken = walk.all_names(copy.graph)
    entries = [e for e in copy.entries if e.algorithm is not None and entry in (None, e.name)]
    for each in entries:
        assert each.algorithm is not None
        taken |= walk.all_names(each.algorithm)
    name = Names(taken).unique(SAMPLE_WEIGHT)
    for each in entries:
        try:
            _weigh(copy, each, name)
        except ArgumentError as error:
            problems += error.diagnostics
    if problems:
        raise ArgumentError(problems)
    return copy, name


def _name_batch(model: TrainingModel) -> None:
    """Give the first axis of inputs and targets that have no name for it one name, so that inference can follow it."""
    graphs = [model.graph, *(e.algorithm for e in model.entries if e.algorithm is not None)]
    for value in [v for g in graphs for v in g.inputs if v.name not in g.initializers]:
        sizes = shapes.dims(value)
        if sizes and sizes[0] is None:
            value.shape = ir.Shape([_BATCH, *sizes[1:]])
    for value in [v for g in graphs for node in g for v in node.outputs]:
        if any(d is None or str(d).startswith("unk__") for d in shapes.dims(value) or ()):
            value.shape = None  # inferred again, with the name


def _weigh(model: TrainingModel, entry: TrainingEntry, name: str) -> None:
    graph = entry.algorithm
    assert graph is not None
    shapes.infer_shapes(model.ir, graph)
    work = _Weighing(model, entry, name)
    work.search()
    if work.problems:
        raise ArgumentError(work.problems)
    work.finish()


@dataclasses.dataclass
class _Reduction:
    """A node that reduces the losses of samples to one number, to be replaced by the weighted one."""

    node: ir.Node
    elements: Value | None  # None for a loss of classes, which makes its own


class _Weighing:
    """Finds the reductions behind the loss, and replaces them."""

    def __init__(self, model: TrainingModel, entry: TrainingEntry, name: str) -> None:
        graph = entry.algorithm
        assert graph is not None
        self.graph = graph
        self._model, self._name = model, name
        roles = entry_roles(model, entry)
        produced = {v.name: v for node in graph for v in node.outputs}
        self.loss = produced[roles.loss]
        self._loss_name = roles.loss  # which the weighted loss will take over
        targets = [v for v in graph.inputs if v.name in roles.targets]
        inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
        self._data = {*targets, *inputs}
        self._predicts = {*inputs, *model.parameters.values()}
        like = (targets or inputs)[0]
        self._batch = (shapes.dims(like) or (None,))[0]
        self.problems: list[Diagnostic] = []
        self._found: dict[ir.Node, _Reduction] = {}

    # -- find ------------------------------------------------------------------------------------------------------

    def search(self) -> None:
        """Find the reductions behind the whole loss."""
        self._visit(self.loss)
        node = self.loss.producer()
        if not self._found and not self.problems and node is not None:
            self._refuse(node, "it does not depend on the samples")

    def _visit(self, value: Value) -> None:
        """Find the reductions of samples that a summand of the loss is made of."""
        node = value.producer()
        if node is None or not self._reads(value, self._data):
            return  # a constant, or a penalty of weights: it has no samples
        kind = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        if kind in _SAME:
            self._visit(_input(node, 0))
        elif kind in _SUMS:
            for part in node.inputs:
                assert part is not None
                self._visit(part)
        elif kind in ("Mul", "Div"):
            self._product(node)
        elif kind in _CLASS_LOSSES and node.attributes.get_string("reduction", "mean") != "none":
            self._reduction(node, _input(node, 1), None)
        elif kind in ("ReduceMean", "ReduceSum") and shapes.reduces_all(node):
            self._reduction(node, _input(node, 0), _input(node, 0))
        else:
            self._refuse(node, f"the loss passes through `{kind}`")

    def _product(self, node: ir.Node) -> None:
        first, second = _input(node, 0), _input(node, 1)
        if node.op_type == "Div" or not self._reads(second, self._data):
            if self._reads(second, self._predicts):
                self._refuse(node, "the loss divides by what the model computes")
            else:  # a number, or a count of labels: it stays as it is
                self._visit(first)
        elif not self._reads(first, self._data):
            self._visit(second)
        else:
            self._refuse(node, "the loss is a product of two numbers of the batch")

    def _reduction(self, node: ir.Node, like: Value, elements: Value | None) -> None:
        if not self._starts_with_samples(like):
            sizes = shapes.dims(like)
            found = "unknown" if sizes is None else str(list(sizes))
            self._refuse(node, "what the loss adds up does not have the samples as its first axis", f"shape {found}")
        else:
            self._found[node] = _Reduction(node, elements)

    def _starts_with_samples(self, value: Value) -> bool:
        """Return whether the samples are the first axis. onnx does not follow its name through a reduction."""
        sizes, node = shapes.dims(value), value.producer()
        if not sizes:
            return False
        if sizes[0] is not None and not str(sizes[0]).startswith("unk__"):
            return sizes[0] == self._batch
        if node is None or node.domain not in ("", "ai.onnx"):
            return False
        if node.op_type.startswith("Reduce") and (axes := shapes.reduced_axes(node)):
            return 0 not in axes and self._starts_with_samples(_input(node, 0))
        same = [v for v in node.inputs if v is not None and len(shapes.dims(v) or ()) == len(sizes)]
        return node.op_type in _ELEMENTWISE and any(self._starts_with_samples(v) for v in same)

    def _reads(self, value: Value, wanted: set[Value]) -> bool:
        """Return whether a value depends on the numbers of `wanted`; sizes and types do not count."""
        queue, seen = [value], {value}
        while queue:
            current = queue.pop()
            if current in wanted:
                return True
            node = current.producer()
            if node is None or (node.op_type in ("Shape", "Size") and node.domain in ("", "ai.onnx")):
                if node is not None and wanted is self._data:
                    return True  # a count of samples belongs to the batch
                continue
            read = walk.reads(node)[:1] if node.op_type == "CastLike" else walk.reads(node)
            new = [v for v in read if v not in seen]
            seen.update(new)
            queue += new
        return False

    def _refuse(self, node: ir.Node, message: str, found: str = "") -> None:
        self.problems.append(
            Diagnostic(
                A141,
                f"the loss in the file cannot take a weight for each sample: {message}",
                place=f"node `{node.name or node.op_type}` of entry `{self.graph.name}`",
                found=found,
                needed="a loss that is a mean or a sum over the samples, such as cross_entropy, mse or bce",
                hint="make the model trainable with such a loss; or draw the samples of each class equally often: "
                "sampler='balanced'",
            )
        )

    # -- replace ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Replace the reductions by weighted ones, and make the weight an input of the step."""
        names = Names(walk.all_names(self._model.graph) | walk.all_names(self.graph))
        kind = next(iter(self._found)).inputs[0].dtype if self._found else self.loss.dtype  # type: ignore[union-attr]
        weight = ir.Value(name=self._name, type=ir.TensorType(kind or ir.DataType.FLOAT), shape=ir.Shape([self._batch]))
        mark(weight, Role.TARGET)
        targets = [v for v in self.graph.inputs if v.name not in self.graph.initializers]
        self.graph.inputs.insert(len(targets), weight)
        for found in self._found.values():
            op = Builder(self._model.opset, names, prefix="weighted/")
            new = self._weighted(op, found, weight)
            self.graph.insert_before(found.node, op.nodes)
            self._replace(found.node.outputs[0], new, names)
        for node in self.graph:
            if is_gradient(node) and loss_of(node) == self._loss_name:
                self._tell(node, weight)

    def _weighted(self, op: Builder, found: _Reduction, weight: Value) -> Value:
        node = found.node
        if found.elements is not None:
            make = op.ReduceMean if node.op_type == "ReduceMean" else op.ReduceSum
            return make(self._times(op, found.elements, weight), keepdims=node.attributes.get_int("keepdims", 1))
        scores, labels = _input(node, 0), _input(node, 1)
        classes = node.inputs[2] if len(node.inputs) > 2 else None
        ignored = node.attributes.get_int("ignore_index", None)
        each = op.call(node.op_type, [scores, labels, classes], ignore_index=ignored, reduction="none")[0]
        each.shape = None if labels.shape is None else labels.shape.copy()
        weighted = self._times(op, each, weight)
        if node.attributes.get_string("reduction", "mean") == "sum":
            return op.ReduceSum(weighted, keepdims=0)
        if classes is None and ignored is None:
            return op.ReduceMean(weighted, keepdims=0)
        counted = None if ignored is None else op.Not(op.Equal(labels, ignored))
        if classes is None:
            parts = op.CastLike(counted, scores)
        else:
            parts = op.Gather(classes, labels if counted is None else op.Where(counted, labels, 0))
            parts = parts if counted is None else op.Where(counted, parts, 0.0)
        return op.Div(op.ReduceSum(weighted, keepdims=0), op.ReduceSum(parts, keepdims=0))

    def _times(self, op: Builder, elements: Value, weight: Value) -> Value:
        rank = len(shapes.dims(elements) or ())
        shaped = weight if rank == 1 else op.Reshape(weight, [-1] + [1] * (rank - 1))
        if elements.dtype is not None:
            shaped = op.cast(shaped, elements.dtype)
        return op.Mul(elements, shaped)

    def _replace(self, old: Value, new: Value, names: Names) -> None:
        new.type, new.shape = old.type, None if old.shape is None else old.shape.copy()
        new.metadata_props.update(old.metadata_props)
        name = old.name or ""
        old.name = names.unique(f"{name}/unweighted")
        new.name = name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        node = old.producer()
        assert node is not None
        if not any(v.uses() for v in node.outputs) and not any(v in self.graph.outputs for v in node.outputs):
            self.graph.remove(node, safe=True)

    def _tell(self, gradient: ir.Node, weight: Value) -> None:
        """Add the weight to what the loss depends on, as the standard wants of a Gradient node."""
        zs = list(gradient.attributes["zs"].as_strings()) if "zs" in gradient.attributes else []
        gradient.resize_inputs(len(gradient.inputs) + 1)
        gradient.replace_input_with(len(gradient.inputs) - 1, weight)
        gradient.attributes["zs"] = ir.AttrStrings("zs", [*zs, self._name])


def _input(node: ir.Node, index: int) -> Value:
    value = node.inputs[index]
    assert value is not None
    return value
