"""Build the initialization graph, which sets the initial weights and state."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.arguments import check_name, check_number
from onward.author.training_mode import is_batch_norm
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Names, Value
from onward.graph.random_numbers import normal, uniform
from onward.model.trainable import final_uses, no_match
from onward.model.training_model import TrainingEntry
from onward.optimizers.emit import Update, const_array

Initialize = str | Mapping[str, Any]
KINDS = ("keep", "he", "xavier", "normal")
_NORMALISERS = frozenset(
    {"BatchNormalization", "InstanceNormalization", "GroupNormalization", "LayerNormalization", "RMSNormalization"}
)


@dataclasses.dataclass(frozen=True)
class Draw:
    """How one tensor is initialized: with a constant, or from a distribution of scale `amount`."""

    kind: str  # "constant", "normal" (amount: standard deviation), "uniform" (amount: half the width)
    amount: float


def build_initialization(
    entry: TrainingEntry,
    parameters: Sequence[Value],
    statistics: Sequence[Value],
    update: Update,
    initialize: Initialize,
    opset: int,
    seed: int,
) -> None:
    """Add an initialization graph and its bindings to `entry`; initialize the stored weights in the same way.

    The graph always resets the optimizer's state. It resets weights and running statistics where `initialize` says so.
    """
    op = Builder(opset, Names())
    outputs: dict[str, Value] = {}
    draws = choose_draws(parameters, statistics, initialize)
    for stream, (value, draw) in enumerate(draws.items()):
        name = value.name or ""
        shape = const_array(value).shape
        outputs[name] = _emit_draw(op, draw, value, seed * 1000 + stream + 1)
        assert value.dtype is not None
        value.const_value = ir.tensor(sample(draw, seed, stream, shape).astype(value.dtype.numpy()), name=name)
    by_name = {v.name or "": v for v in draws}
    filled: dict[tuple[Any, ...], Value] = {}  # state of the same shape and content starts from the same tensor
    for state in update.state:
        name = state.name or ""
        if name not in update.like:
            array = const_array(state)
            key = (array.dtype.str, array.shape, array.reshape(-1)[:1].tobytes())
            if key not in filled:
                filled[key] = _filled(op, array, state)
            outputs[name] = filled[key]
        elif update.like[name] in by_name:
            original = by_name[update.like[name]]
            outputs[name] = outputs[original.name or ""]
            state.const_value = ir.tensor(const_array(original), name=name)
    for name, value in outputs.items():
        if not (value.name or "").startswith("init/"):
            value.name = f"init/{name}"
    unique = list(dict.fromkeys(outputs.values()))
    entry.initialization = ir.Graph([], unique, nodes=op.nodes, name="initialize")
    entry.initialization_binding = {k: v.name or "" for k, v in outputs.items()}


def choose_draws(parameters: Sequence[Value], statistics: Sequence[Value], initialize: Initialize) -> dict[Value, Draw]:
    """Return how each weight and running statistic is initialized, without those that keep their value."""
    rules: list[tuple[str, Any]] = [("*", initialize)] if isinstance(initialize, str) else list(initialize.items())
    names = [v.name or "" for v in [*parameters, *statistics]]
    problems = [
        no_match(pattern, names, "parameter or running statistic", "initialize=")
        for pattern, _ in rules
        if pattern != "*" and not any(fnmatch.fnmatchcase(n, pattern) for n in names)
    ]
    if problems:
        raise ArgumentError(problems)
    for _, rule in rules:
        _check_rule(rule)
    draws: dict[Value, Draw] = {}
    for value in [*parameters, *statistics]:
        rule = next((r for p, r in rules if fnmatch.fnmatchcase(value.name or "", p)), "keep")
        if rule != "keep":
            draws[value] = _draw(value, rule)
    return draws


def _check_rule(rule: Any) -> None:
    if isinstance(rule, str):
        check_name("initialisation", rule, KINDS, place="initialize=")
    elif isinstance(rule, tuple) and len(rule) == 2:
        check_name("distribution", rule[0], ("normal", "uniform"), place="initialize=")
        check_number("scale", rule[1], "initialize", low=0.0)
    elif isinstance(rule, int | float):
        check_number("value", rule, "initialize")
    else:
        raise ArgumentError(
            Diagnostic(
                A101,
                "invalid initialisation",
                place="initialize=",
                found=repr(rule),
                needed=f'{", ".join(KINDS)}, a number, or a pair such as ("normal", 0.02)',
            )
        )


def _draw(value: Value, rule: Any) -> Draw:
    if isinstance(rule, tuple):
        return Draw(rule[0], float(rule[1]))
    if not isinstance(rule, str):
        return Draw("constant", float(rule))
    uses = final_uses(value)
    if any(is_batch_norm(node) and index in (3, 4) for node, index in uses):
        return Draw("constant", float(any(is_batch_norm(n) and i == 4 for n, i in uses)))
    if any(node.op_type in _NORMALISERS and index == 1 for node, index in uses):
        return Draw("constant", 1.0)
    if any(node.op_type == "PRelu" and index == 1 for node, index in uses):
        return Draw("constant", 0.25)
    shape = const_array(value).shape
    recurrent = any(node.op_type in ("LSTM", "GRU", "RNN") and index in (3, 7) for node, index in uses)
    if len(shape) < 2 or recurrent or any(n.op_type in _NORMALISERS for n, _ in uses):
        return Draw("constant", 0.0)  # a bias
    if rule == "normal":
        return Draw("normal", 0.02)
    fan_in, fan_out = fans(value)
    if rule == "he":
        return Draw("normal", math.sqrt(2.0 / max(fan_in, 1)))
    return Draw("uniform", math.sqrt(6.0 / max(fan_in + fan_out, 1)))


def fans(value: Value) -> tuple[int, int]:
    """Return the fan-in and fan-out of a weight, from the operator that reads it."""
    shape = const_array(value).shape
    field = int(np.prod(shape[2:], dtype=np.int64))
    for node, index in final_uses(value):
        groups = node.attributes.get_int("group", 1)
        if node.op_type in ("Conv", "DeformConv"):
            return shape[1] * field, shape[0] * field // groups
        if node.op_type == "ConvTranspose":
            return shape[0] * field // groups, shape[1] * field
        if node.op_type == "Gemm":
            transposed = bool(node.attributes.get_int("transB" if index == 1 else "transA", 0))
            rows_in = (index == 1) != transposed
            return (shape[0], shape[1]) if rows_in else (shape[1], shape[0])
        if node.op_type == "MatMul":
            reading, writing = (shape[-2], shape[-1]) if index == 1 else (shape[-1], shape[-2])
            direct = any(user is node for user, _ in value.uses())
            return (reading, writing) if direct else (writing, reading)  # read through a Transpose
        if node.op_type in ("LSTM", "GRU", "RNN"):
            return shape[-1], shape[-2]
    return shape[-1], shape[0]


def sample(draw: Draw, seed: int, stream: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return the float64 array that `draw` describes, the same on every machine."""
    if draw.kind == "constant":
        return np.full(shape, draw.amount)
    if draw.kind == "normal":
        return normal(seed, stream, shape) * draw.amount
    return (2.0 * uniform(seed, stream, shape) - 1.0) * draw.amount


def _emit_draw(op: Builder, draw: Draw, value: Value, seed: int) -> Value:
    array = const_array(value)
    assert value.dtype is not None
    if draw.kind == "constant":
        return _filled(op, np.full(array.shape, draw.amount, value.dtype.numpy()), value)
    common = {"dtype": value.dtype, "shape": list(array.shape), "seed": float(seed)}
    if draw.kind == "normal":
        made: Value = op.RandomNormal(mean=0.0, scale=draw.amount, **common)
    else:
        made = op.RandomUniform(low=-draw.amount, high=draw.amount, **common)
    made.type, made.shape = value.type, ir.Shape(array.shape)
    return made


def _filled(op: Builder, array: np.ndarray, like: Value) -> Value:
    """Return a tensor filled with the one number that fills `array`."""
    value: Value = op.ConstantOfShape(np.array(array.shape, np.int64), value=array.reshape(-1)[:1])
    value.type, value.shape = like.type, ir.Shape(array.shape)
    return value
