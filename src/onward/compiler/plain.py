"""Any model as plain ONNX, for a backend that runs it as a whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from onward.autodiff.function_bodies import body_of, inline_call
from onward.compiler.core import lower_to_core
from onward.errors import OnwardError
from onward.graph import shapes
from onward.graph.schema import TRAINING_DOMAIN, WORKING_OPSET, schema
from onward.model import serde
from onward.passes.base import Unit, collector_paused, run_passes
from onward.passes.gradients import LowerGradients
from onward.passes.inline import InlineFunctions
from onward.passes.opset import LabelOpset, lowest_opset
from onward.passes.optimizers import LowerOptimizers
from onward.passes.portable.rewrites import AvoidDenied
from onward.passes.randomness import LowerRandomness
from onward.upgrade import normalise
from onward.upgrade.opset import default_opset
from onward.upgrade.scan import has_batched_scan


def trains(model: onnx.ModelProto) -> bool:
    """Return whether a model imports ONNX's training operators, which a backend never sees."""
    return any(o.domain == TRAINING_DOMAIN for m in (model, *model.functions) for o in m.opset_import)


def without_training(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without `Gradient`, `Adam`, `Adagrad`, `Momentum` and Scan of opset 8; itself if it has none.

    Raises:
        NotDifferentiable: lists every node that blocks a gradient.
    """
    return lowered(model, draw=False).training.proto() if trains(model) or has_batched_scan(model) else model


def without_denied(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without gradients and functions, and without what the deny-list of portable programs names.

    Raises:
        OnwardError: some of it cannot be written with other operators.
    """
    unit = Unit(normalise(model, copy=True), name="model")
    run_passes((LowerGradients(), InlineFunctions(), AvoidDenied()), unit)
    return unit.training.proto()


def lowered(model: onnx.ModelProto, *, draw: bool = True) -> Unit:
    """Return a model in plain operators of one operator set, without functions, with inferred types.

    With `draw`, random nodes are arithmetic on two further inputs, the random key and the random step.

    Raises:
        NotDifferentiable: lists every node that blocks a gradient.
        ModelError: a node cannot be converted to the working opset; lists all of them.
    """
    with collector_paused():
        training = normalise(model, copy=True)
        training.entries.clear()
        unit = Unit(training, name="model")
        run_passes((LowerGradients(), InlineFunctions(), LowerOptimizers()), unit)
        infer(unit.model)
        if draw:
            run_passes((LowerRandomness(advance=False),), unit)
            infer(unit.model)
        return unit


def infer(model: ir.Model) -> None:
    """Infer the types of all values; what onnx cannot infer stays unknown."""
    shapes.infer_shapes(model)


def other_forms(model: onnx.ModelProto, *, core: bool = True) -> Iterator[onnx.ModelProto]:
    """Yield a model as it is, then as other runtimes take it.

    A model of an old operator set is upgraded. Of a new one, first the opset and the IR version are the lowest that
    keep the meaning of every node; then the nodes that stand in the way are replaced by their bodies, where the
    standard defines them as functions. With `core`, the last form has core operators only, if the model can be written
    with them.
    """
    yield model
    if default_opset(model.opset_import) < WORKING_OPSET:
        yield lowered(model, draw=False).training.proto()
    else:
        unit = Unit(serde.load(model), name="model")
        run_passes((InlineFunctions(),), unit)
        infer(unit.model)
        _label(unit)
        yield unit.training.proto()
        if _expand(unit):
            _label(unit)
            yield unit.training.proto()
    if not core:
        return
    with contextlib.suppress(OnwardError):  # the error of a form before says what is wrong with the model
        unit = Unit(serde.load(lower_to_core(model)), name="model")
        run_passes((InlineFunctions(),), unit)
        _label(unit)
        yield unit.training.proto()


def _label(unit: Unit) -> None:
    LabelOpset(lowest_opset(unit.model, min(unit.opset, WORKING_OPSET)))(unit)


def _expand(unit: Unit) -> bool:
    """Replace the nodes that need an opset above the working one by their function bodies."""
    found = False
    queue = list(unit.graph)
    while queue:
        node = queue.pop(0)
        known = schema(node.op_type, node.domain, unit.opset)
        if known is None or (not node.domain and known.since_version <= WORKING_OPSET):
            continue
        function = body_of(node, {}, unit.opset)
        if function is not None:
            queue = inline_call(node, function, unit.names) + queue
            infer(unit.model)
            found = True
    return found
