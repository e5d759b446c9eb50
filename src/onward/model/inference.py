"""From a training model to the plain models it stands for: the combined graph, and inference alone."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir

from onward.arguments import check_name
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.shapes import forget_marks
from onward.graph.walk import subgraphs
from onward.model import serde
from onward.model.ml_nodes import restore
from onward.model.origin import write_back
from onward.model.quantized import forget
from onward.model.requantize import quantize_weights
from onward.model.roles import PROGRAM_STATE, RANDOM_STEP_ENTRY, averages, unmark_graph
from onward.model.task import TASK, task_of
from onward.model.training_model import TrainingEntry, TrainingModel
from onward.storage.reader import VALUE_INFO


def combined_proto(model: TrainingModel, entry: TrainingEntry) -> onnx.ModelProto:
    """Return the standard's combined graph of one entry: the inference graph, then the algorithm."""
    proto = serde.to_proto(TrainingModel(model.ir))
    if entry.algorithm is not None:
        algorithm = ir.serde.serialize_graph(entry.algorithm)
        for field in ("input", "initializer", "output", "node", "value_info", "sparse_initializer"):
            getattr(proto.graph, field).extend(getattr(algorithm, field))
    return proto


def to_inference(
    model: serde.Source,
    state: Mapping[str, np.ndarray] | None = None,
    *,
    average: bool = False,
    quantize: bool = False,
) -> onnx.ModelProto:
    """Return a clean inference `ModelProto`: the same names and outputs, no training information.

    Where training needed a newer operator set than the file had, and nothing else of it was changed, the result is that
    file with the current weights: its operator set, IR version and nodes. After a new head, or another change of the
    graph, it has the operator set of the training model.

    `state` holds current values by name (as `Session.get_state()` gives them): those of the inference graph's
    initializers replace the stored ones, the rest (moments, counters) is left out. Functions and operator sets that
    only training used are left out too. With `average`, each weight that has a moving average takes it. With
    `quantize`, the weights that `make_trainable(dequantize=True)` made floats are stored as integers again.
    Operators of `ai.onnx.ml` that were written as plain operators are put back, with the current numbers in their
    attributes; a `PlainOperatorsWarning` names one that cannot be.

    Raises:
        ArgumentError: a value in `state` has another shape than the initializer of its name, or `average` was asked of
            a model that keeps no averages, or `quantize` of one without weights that were integers.
    """
    clean = converted_inference(model, state, average=average, quantize=quantize)
    written = write_back(clean)
    return serde.to_proto(clean) if written is None else written


def converted_inference(
    model: serde.Source,
    state: Mapping[str, np.ndarray] | None = None,
    *,
    average: bool = False,
    quantize: bool = False,
) -> TrainingModel:
    """Return the same as `to_inference`, as a model at the operator set of training: for who changes it further."""
    source = serde.load(model)
    proto = serde.to_proto(TrainingModel(source.ir))
    clean = serde.from_proto(proto)
    current = dict(state or {})
    if average:
        current |= _averages(source, current)
    _write_state(clean, source, current)
    if quantize:
        quantize_weights(clean)
    for plain in restore(clean.ir):
        warnings.warn(plain, stacklevel=2)
    for value in clean.graph.initializers.values():
        forget(value)
    unmark_graph(clean.graph)
    for value in clean.graph.initializers.values():
        # The entry held marks. Without them it repeats the tensor, and ONNX Runtime's quantizer, which transposes
        # weights and leaves the entries, refuses what follows.
        value.meta.pop(VALUE_INFO, None)
    forget_marks(clean.ir)
    _drop_unused(clean)
    clean.ir.metadata_props.pop(RANDOM_STEP_ENTRY, None)
    task = task_of(source)
    if task is not None:
        clean.ir.metadata_props[TASK] = task.text()
    return clean


def _averages(source: TrainingModel, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the moving average of each weight that has one, from `state` or as stored."""
    found: dict[str, np.ndarray] = {}
    for parameter, name in averages(source).items():
        stored = source.state[name].const_value
        assert stored is not None
        found[parameter] = state.get(name, stored.numpy())
    if not found:
        raise ArgumentError(
            Diagnostic(
                A101,
                "the model keeps no moving average of its weights",
                place="average=",
                hint="ask for one when it is made trainable: onward.Adam(1e-3, ema=0.999)",
            )
        )
    return found


def _write_state(clean: TrainingModel, source: TrainingModel, state: Mapping[str, np.ndarray]) -> None:
    known = source.initializers()
    problems = []
    for name, array in state.items():
        if name in PROGRAM_STATE and name not in known:
            continue
        check_name("initializer", name, known, place="state=")
        value = clean.graph.initializers.get(name)
        if value is None:
            continue
        assert value.const_value is not None
        stored = value.const_value
        array = np.asarray(array)
        if array.shape != tuple(stored.shape.numpy()) or array.dtype != stored.dtype.numpy():
            problems.append(
                Diagnostic(
                    A101,
                    f"the state of `{name}` does not fit",
                    place="state=",
                    found=f"{array.dtype} {list(array.shape)}",
                    needed=f"{stored.dtype.numpy()} {list(stored.shape.numpy())}",
                )
            )
            continue
        value.const_value = ir.tensor(array, name=name)
    if problems:
        raise ArgumentError(problems)


def _drop_unused(model: TrainingModel) -> None:
    """Remove functions and operator sets that the inference graph does not use."""
    used: set[tuple[str, str, str]] = set()
    domains: set[str] = {""}

    def visit(graph: ir.Graph | ir.Function) -> None:
        for node in graph:
            domains.add(node.domain)
            key = (node.domain, node.op_type, node.overload)
            if key in model.ir.functions and key not in used:
                used.add(key)
                visit(model.ir.functions[key])
            for inner in subgraphs(node):
                visit(inner)

    visit(model.graph)
    for key in list(model.ir.functions):
        if key not in used:
            del model.ir.functions[key]
    for domain in list(model.ir.opset_imports):
        if domain not in domains and domain != "ai.onnx":
            del model.ir.opset_imports[domain]
