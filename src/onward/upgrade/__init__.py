"""Upgrade models of older opsets and of ONNX 1.7, and decompose the operators of `com.microsoft` and `ai.onnx.ml`.

>>> from onnx import helper
>>> graph = helper.make_graph([helper.make_node("Squeeze", ["x"], ["y"], axes=[0])], "g", [], [])
>>> old = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)])
>>> upgrade(old).opset
18
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import onnx_ir as ir

from onward.errors import A101, ArgumentError, Diagnostic, ModelError, named_nodes
from onward.graph import walk
from onward.graph.schema import WORKING_OPSET, newest_opset
from onward.graph.shapes import dims
from onward.model import serde
from onward.model.ml_attributes import attribute_problems
from onward.model.ml_nodes import ML, plain_attributes
from onward.model.stash import from_light, to_light
from onward.model.training_model import TrainingModel
from onward.passes.base import Pass, Trace, Unit, run_passes
from onward.upgrade import ml as ml  # importing it registers its decompositions
from onward.upgrade.dequantize import DequantizeWeights
from onward.upgrade.graph_call import has_graph_call, remove_graph_calls
from onward.upgrade.microsoft import decompose_microsoft, has_microsoft
from onward.upgrade.mixed_types import has_mixed_normalization, split_mixed_normalizations
from onward.upgrade.opset import convert_model
from onward.upgrade.ranges import has_vector_range, make_scalar_ranges

__all__ = ["normalise", "upgrade"]

M122 = "M122"


class SortNodes(Pass):
    """Put the nodes of each graph into execution order; the unit gets a new model if they were not."""

    def run(self, unit: Unit) -> bool:
        if all(map(walk.is_sorted, _graphs(unit.training))):
            return False
        unit.training = from_light(*to_light(unit.training))
        for graph in _graphs(unit.training):
            with contextlib.suppress(ValueError):  # a cycle: what comes next reports it
                graph.sort()
        return True


class ForgetNegativeSizes(Pass):
    """Make dimensions of size -1 unknown, as ONNX Runtime does: PaddlePaddle's exporter writes free ones so.

    onnx's own inference, and gradients, would calculate with the number. The unit gets a new model if there are any.
    """

    def run(self, unit: Unit) -> bool:
        if not any(_has_negative_size(v) for v in _declared(unit.training)):
            return False
        unit.training = from_light(*to_light(unit.training))
        for value in _declared(unit.training):
            if value.shape is not None and _has_negative_size(value):
                value.shape = ir.Shape([None if isinstance(d, int) and d < 0 else d for d in value.shape])
        return True


class AvoidRefusals(Pass):
    """Rewrite what ONNX Runtime runs in the file and would refuse from here on: see `ranges` and `mixed_types`.

    The unit gets a new model if there is any.
    """

    def run(self, unit: Unit) -> bool:
        bodies = _bodies(unit.training)
        found = [rewrite for is_there, rewrite in _REFUSED if is_there(bodies)]
        if not found:
            return False
        unit.training = from_light(*to_light(unit.training))
        for body in _bodies(unit.training):
            for rewrite in found:
                rewrite(body, unit.opset)
        return True


_REFUSED = ((has_vector_range, make_scalar_ranges), (has_mixed_normalization, split_mixed_normalizations))


def _has_negative_size(value: ir.Value) -> bool:
    return value.shape is not None and any(isinstance(d, int) and d < 0 for d in value.shape)


def _declared(model: TrainingModel) -> Iterator[ir.Value]:
    """Yield inputs and results of nodes: of the inference graph, the algorithms, and the graphs in them."""
    graphs = [model.graph, *(e.algorithm for e in model.entries if e.algorithm is not None)]
    while graphs:
        graph = graphs.pop()
        yield from graph.inputs
        for node in graph:
            yield from node.outputs
            graphs += walk.subgraphs(node)


class UpgradeOperators(Pass):
    """Convert all graphs and functions to one operator set, and replace the `GraphCall` nodes of ONNX 1.7.

    The unit gets a new model with the same names, bindings, metadata, `Gradient` attributes and weights.
    """

    def __init__(self, target: int | None = None) -> None:
        self._target = target

    def run(self, unit: Unit) -> bool:
        target = max(unit.opset, WORKING_OPSET) if self._target is None else self._target
        if not _needs_work(unit.training, target):
            return False
        proto, stash = to_light(unit.training)
        if has_graph_call(proto):
            remove_graph_calls(proto)
        convert_model(proto, target)
        unit.training = from_light(proto, stash)
        return True


class RefuseContradictions(Pass):
    """Refuse operators of `ai.onnx.ml` whose attributes contradict each other, before a runtime reads them."""

    def run(self, unit: Unit) -> bool:
        problems = []
        everything: list[walk.GraphLike] = [*_graphs(unit.training), *unit.model.functions.values()]
        for graph in everything:
            nodes = [n for n in walk.all_nodes(graph) if n.domain == ML]
            for node, place in zip(nodes, named_nodes(nodes), strict=True):
                for message, found, needed in attribute_problems(node.op_type, plain_attributes(node), _width(node)):
                    where = f"{place} ({node.op_type})" * bool(node.name) or place
                    problems.append(Diagnostic(M122, message, place=where, found=found, needed=needed))
        if problems:
            raise ModelError(problems)
        return False


def _width(node: ir.Node) -> int | None:
    """Return the number of columns that a node reads, where it is known."""
    known = dims(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
    return known[-1] if known and isinstance(known[-1], int) and known[-1] >= 0 else None


class ReplaceMicrosoftOperators(Pass):
    """Decompose operators of `com.microsoft` and `ai.onnx.ml`; the unit gets a new model if there are any."""

    def run(self, unit: Unit) -> bool:
        if not has_microsoft(unit.model):
            return False
        unit.training = from_light(*to_light(unit.training))
        return decompose_microsoft(unit.model)


def normalise(
    source: serde.Source, *, copy: bool = False, dequantize: bool = False, trace: list[Trace] | None = None
) -> TrainingModel:
    """Return the model at the working opset, without `GraphCall`, in plain operators and in execution order.

    No dimension has a size below 0.

    `source` does not change. A `TrainingModel` of this form is returned itself, or as a copy if `copy` is True. With
    `dequantize`, weights that are stored as integers become floats. `trace` receives what each pass did.

    Raises:
        ModelError: the model cannot be read, or a node cannot be converted; lists all of them.
        ArgumentError: `dequantize`, and an operator on integers has no float form; lists all of them.
    """
    unit = Unit(serde.load(source), name="normalise", trace=trace)
    floats = (DequantizeWeights(),) if dequantize else ()
    gate = (
        SortNodes(), ForgetNegativeSizes(), RefuseContradictions(), UpgradeOperators(), AvoidRefusals(), *floats,
        ReplaceMicrosoftOperators(),
    )  # fmt: skip
    run_passes(gate, unit)
    return from_light(*to_light(unit.training)) if copy and unit.training is source else unit.training


def upgrade(source: serde.Source, opset: int | None = None) -> TrainingModel:
    """Return the model at operator set `opset` (default: Onward's working opset, or the model's own if that is newer).

    The inference graph, all training graphs, functions and subgraphs are converted together; names, bindings,
    metadata, `Gradient` attributes and weights are kept. `source` does not change.

    Raises:
        ModelError: the model cannot be read, or a node cannot be converted; lists all of them.
        ArgumentError: `opset` is older than the model's or newer than the installed onnx knows.
    """
    unit = Unit(serde.load(source), name="upgrade")
    target = max(unit.opset, WORKING_OPSET) if opset is None else opset
    newest = newest_opset()
    if not isinstance(target, int) or not unit.opset <= target <= max(newest, unit.opset):
        raise ArgumentError(
            Diagnostic(
                A101,
                f"cannot upgrade to operator set {target}",
                found=f"the model is at {unit.opset}",
                needed=f"a version from {unit.opset} to {newest}",
            )
        )
    run_passes((SortNodes(), UpgradeOperators(target)), unit)
    return unit.training


def _graphs(model: TrainingModel) -> list[ir.Graph]:
    """Return the inference graph and the training graphs."""
    parts = [g for e in model.entries for g in (e.algorithm, e.initialization)]
    return [model.graph, *(g for g in parts if g is not None)]


def _bodies(model: TrainingModel) -> list[walk.GraphLike]:
    """Return the graphs and the functions."""
    return [*_graphs(model), *model.ir.functions.values()]


def _needs_work(model: TrainingModel, target: int) -> bool:
    functions = [f.opset_imports.get("", f.opset_imports.get("ai.onnx", target)) for f in model.ir.functions.values()]
    algorithms = [e.algorithm for e in model.entries if e.algorithm is not None]
    return min(model.opset, *functions, target) < target or any(
        n.op_type == "GraphCall" for algorithm in algorithms for n in walk.all_nodes(algorithm)
    )
