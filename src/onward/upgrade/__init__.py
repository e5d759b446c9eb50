"""Old models in today's form: ONNX 1.7 `GraphCall` files, and older operator sets. Nothing is dropped.

>>> from onnx import helper
>>> graph = helper.make_graph([helper.make_node("Squeeze", ["x"], ["y"], axes=[0])], "g", [], [])
>>> old = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)])
>>> upgrade(old).opset
18
"""

from __future__ import annotations

import onnx

from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.schema import WORKING_OPSET, newest_opset
from onward.model import serde
from onward.model.stash import from_light, to_light
from onward.model.training_model import TrainingModel
from onward.upgrade.graph_call import has_graph_call, remove_graph_calls
from onward.upgrade.opset import convert_model, default_opset

__all__ = ["to_working_opset", "upgrade"]


def upgrade(source: serde.Source, opset: int | None = None) -> TrainingModel:
    """Return the model in today's form, at operator set `opset` (by default the one Onward works with, if it is older).

    The inference graph, all training graphs, functions and subgraphs are converted together; names, bindings,
    metadata, `Gradient` attributes and weights are kept. `source` is left as it was.

    Raises:
        ModelError: the model cannot be read, or a node cannot be converted; lists all of them.
        ArgumentError: `opset` is older than the model's or newer than the installed onnx knows.
    """
    model = serde.load(source)
    target = max(model.opset, WORKING_OPSET) if opset is None else opset
    newest = newest_opset()
    if not isinstance(target, int) or not model.opset <= target <= max(newest, model.opset):
        raise ArgumentError(
            Diagnostic(
                A101,
                f"cannot upgrade to operator set {target}",
                found=f"the model is at {model.opset}",
                needed=f"a version from {model.opset} to {newest}",
            )
        )
    proto, stash = to_light(model)
    if not _needs_work(proto, target):
        return model
    if has_graph_call(proto):
        remove_graph_calls(proto)
    convert_model(proto, target)
    return from_light(proto, stash)


def to_working_opset(source: serde.Source) -> TrainingModel:
    """Return the model at the operator set that Onward's rules and lowerings rely on, or newer."""
    return upgrade(source)


def _needs_work(proto: onnx.ModelProto, target: int) -> bool:
    versions = [default_opset(proto.opset_import), *(default_opset(f.opset_import) for f in proto.functions)]
    return min(versions) < target or has_graph_call(proto)
