"""A head at a place of one's own choice: a linear layer, or a graph of one's own, on any value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import ArgumentError, Diagnostic
from onward.graph.builder import Builder, Names, Value
from onward.graph.closing import closing
from onward.graph.random_numbers import uniform
from onward.graph.shapes import dims
from onward.graph.walk import all_names, reads, unmapped
from onward.model.training_model import FLOAT_TYPES, TrainingModel
from onward.surgery.class_list import ClassList
from onward.surgery.notes import NewHead
from onward.surgery.splice import (
    A133,
    HeadSource,
    check_consistent,
    described,
    find_values,
    remove_unused,
    set_outputs,
    shape_text,
    splice,
)
from onward.surgery.which_head import find_head


def attach_head(
    work: TrainingModel,
    classes: ClassList | None,
    output: str | None,
    cut: str | None,
    head: HeadSource | None,
    activation: str,
    seed: int,
) -> NewHead:
    """Attach `head`, or a linear layer, to the value `cut`, or to what the last linear layer reads.

    Raises:
        ArgumentError: it does not fit the value or the classes.
    """
    graph = work.graph
    if cut is None:
        features = find_head(work, output).linear.features
    else:
        (features,) = find_values(graph, [cut], "cut=")
    kind, name = _old_output(graph, features, output)
    logits: Value | None = None
    if head is None:
        assert classes is not None
        made, weights, logits = linear_head(work, features, classes.count, kind, activation, seed)
    else:
        name_of_features = features.name or ""
        results, weights = splice(work, head, [features])
        graph = work.graph
        (features,) = find_values(graph, [name_of_features], "cut=")
        if len(results) != 1:
            raise ArgumentError(
                Diagnostic(
                    A133, "the head has several results", place="head=", found=str(len(results)), needed="one output"
                )
            )
        made = results[0]
    _take_output(graph, features, made, name)
    remove_unused(graph)
    check_consistent(work)
    found = closing(made)
    logits = logits or (made if found is None else found.before)
    sizes = dims(logits)
    axis = None if sizes is None else _axis_of(sizes, classes)
    if classes is not None and sizes is not None and axis is None:
        raise ArgumentError(
            Diagnostic(
                A133,
                f"the head does not have {classes.count} classes",
                place="classes=",
                found=f"`{logits.name}` {shape_text(sizes)}",
                needed=f"an axis of size {classes.count}, the last or the second",
            )
        )
    count = classes.count if classes is not None else None
    what = (
        f"a linear layer with {count} classes and {_features(features)} features" if head is None else "the given head"
    )
    return NewHead(
        output=made.name or "",
        logits=logits.name or "",
        axis=axis,
        weights=tuple(weights),
        classes=count,
        text=f"{what} reads `{features.name}` {shape_text(dims(features))}; output `{made.name}` is "
        f"{shape_text(dims(made))}",
    )


def _axis_of(sizes: Sequence[Any], classes: ClassList | None) -> int | None:
    """Return the axis of the classes: the last one of their number, or else the second."""
    if classes is None:
        return len(sizes) - 1 if len(sizes) == 2 else None
    for axis in (len(sizes) - 1, 1):
        if 0 <= axis < len(sizes) and (sizes[axis] == classes.count or not isinstance(sizes[axis], int)):
            return axis
    return None


def _old_output(graph: ir.Graph, features: Value, output: str | None) -> tuple[str | None, str]:
    """Return the activation and the name of the output that the new head replaces."""
    after = _after(graph, features)
    gone = [v for v in graph.outputs if v in after]
    if output is not None:
        gone = [v for v in gone if v.name == output] or gone
    if not gone:
        return None, output or "logits"
    found = closing(unmapped(gone[0])) if gone[0] is not features else None
    return (None if found is None else found.kind), gone[0].name or ""


def _after(graph: ir.Graph, value: Value) -> set[Value]:
    """Return `value` and all values that depend on it."""
    found = {value}
    for node in graph:
        if any(v in found for v in reads(node)):
            found.update(node.outputs)
    return found


def _take_output(graph: ir.Graph, features: Value, made: Value, name: str) -> None:
    """Make `made` the output in place of those that depend on `features`; it takes the name `name`."""
    after = _after(graph, features)
    set_outputs(graph, [*(made if value in after else value for value in graph.outputs), made])
    if features.name == name:  # the output itself is what the head reads
        made.name = Names(all_names(graph)).unique("logits")
        return
    for value in (v for node in graph for v in node.outputs):
        if value.name == name:
            value.name = f"{name}/old"
    made.name = name


def _features(value: Value) -> int | None:
    """Return the number of features of a value: its channels if it is an image, else its last axis."""
    sizes = dims(value) or ()
    found = sizes[1] if len(sizes) > 3 else sizes[-1] if len(sizes) > 1 else None
    return found if isinstance(found, int) else None


def linear_head(
    work: TrainingModel, features: Value, count: int, kind: str | None, activation: str, seed: int
) -> tuple[Value, list[str], Value]:
    """Add a linear layer over `features`; return its result, its weights and its logits."""
    sizes = dims(features)
    channels = _features(features)
    if channels is None or features.dtype not in FLOAT_TYPES:
        raise ArgumentError(
            Diagnostic(
                A133,
                f"a linear layer cannot read `{features.name}`",
                place="cut=",
                found=described(features),
                needed="floating-point numbers: [N, features], [N, steps, features] or [N, channels, height, width], "
                "with a known number of features",
            )
        )
    names = Names(all_names(work.graph))
    op = Builder(work.opset, names, prefix="head/")
    assert sizes is not None
    assert features.dtype is not None
    weights = []
    arrays = (("weight", fresh_weight((channels, count), 1, seed)), ("bias", np.zeros(count)))
    for name, array in arrays:
        full = names.unique(f"head.{name}")
        tensor = ir.tensor(array.astype(features.dtype.numpy()), name=full)
        value = ir.Value(name=full, type=features.type, shape=ir.Shape(array.shape), const_value=tensor)
        work.graph.register_initializer(value)
        weights.append(value)
    vector = op.Flatten(op.GlobalAveragePool(features), axis=1) if len(sizes) > 3 else features
    if len(sizes) == 3:
        logits = op.Add(op.MatMul(vector, weights[0]), weights[1])
    else:
        logits = op.Gemm(vector, *weights)
    closes = {"softmax": "Softmax", "sigmoid": "Sigmoid", "none": None, "keep": kind}[activation]
    made = logits
    if closes in ("Softmax", "LogSoftmax"):
        made = getattr(op, closes)(logits, axis=-1)
    elif closes in ("Sigmoid", "HardSigmoid"):
        made = op.Sigmoid(logits)
    work.graph.extend(op.nodes)
    return made, [v.name or "" for v in weights], logits


def fresh_weight(shape: tuple[int, ...], axis: int, seed: int) -> np.ndarray:
    """Return uniform numbers of ±1/√(fan-in), as PyTorch draws the weights of a linear layer."""
    fan_in = max(1, math.prod(d for i, d in enumerate(shape) if i != axis))
    return np.asarray((2.0 * uniform(seed, 0, shape) - 1.0) / math.sqrt(fan_in))


__all__ = ["attach_head", "fresh_weight", "linear_head"]
