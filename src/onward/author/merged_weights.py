"""Separate weights that an exporter merged because they were equal.

Exporters and graph optimizers keep one initializer where several hold the same numbers. In an untrained model all zero
biases become one tensor, and a zero bias may share it with a zero running mean. Inference is not affected; training
would update them together (docs/decisions/merged-initializers.md).
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Names, Value
from onward.model.training_model import FLOAT_TYPES

_NORMALISERS = ("BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization")
_ROLES = {
    **{(op, 1): "weight" for op in _NORMALISERS},
    **{(op, 2): "bias" for op in (*_NORMALISERS, "Conv", "ConvTranspose", "Gemm")},
    ("BatchNormalization", 3): "running_mean",
    ("BatchNormalization", 4): "running_var",
    ("Add", 0): "bias",
    ("Add", 1): "bias",
}
_STATISTICS = ("running_mean", "running_var")


def separate_merged(graph: ir.Graph, names: Names) -> list[Value]:
    """Replace each merged weight or running statistic by separate initializers; return the new ones.

    A vector of one repeated number (zeros, ones) that several nodes read as scale or bias counts as merged. If those
    nodes share other weights too, they are one layer that is used twice, and the vector stays tied. A running statistic
    is separated from everything that is not the same statistic.
    """
    made: list[Value] = _resolve_identities(graph)
    for roles in (("weight", "bias"), _STATISTICS):  # statistics are named after the weights beside them
        for value in list(graph.initializers.values()):
            if value.dtype in FLOAT_TYPES and len(value.uses()) > 1:
                made += _separate(graph, names, value, roles)
    return made


def _resolve_identities(graph: ir.Graph) -> list[Value]:
    """Turn `bn.running_mean = Identity(bn.bias)`, as PyTorch writes a merged weight, back into an initializer."""
    made = []
    for node in list(graph):
        if node.op_type != "Identity" or node.domain not in ("", "ai.onnx"):
            continue
        source, output = node.inputs[0], node.outputs[0]
        if source is None or not source.is_initializer() or source.const_value is None or output.is_graph_output():
            continue
        roles = {_ROLES.get((user.op_type, index), "") for user, index in output.uses()}
        if not roles or "" in roles or not (_is_uniform(source) or roles <= set(_STATISTICS)):
            continue
        name = output.name or ""
        copy = copy_initializer(source, name)
        output.replace_all_uses_with(copy)
        graph.remove(node, safe=True)
        graph.register_initializer(copy)
        made.append(copy)
    return made


def copy_initializer(value: Value, name: str) -> Value:
    assert value.const_value is not None
    return ir.Value(
        name=name,
        type=value.type,
        shape=None if value.shape is None else value.shape.copy(),
        const_value=ir.tensor(value.const_value.numpy(), name=name),
    )


def _separate(graph: ir.Graph, names: Names, value: Value, roles: tuple[str, ...]) -> list[Value]:
    uniform = _is_uniform(value)
    groups: dict[Hashable, list[tuple[ir.Node, int, str]]] = {}
    for node, index in value.uses():
        role = _ROLES.get((node.op_type, index), "") if node.domain in ("", "ai.onnx") else ""
        kind: Hashable = None  # keeps its value
        if role in _STATISTICS or (role and uniform):
            kind = (role, _layer(node, value))
        groups.setdefault(kind, []).append((node, index, role))
    own = [k for k in groups if k is not None and groups[k][0][2] in roles]
    if len(groups) < 2 or not own:
        return []
    keeper = None if None in groups else _keeper(value, list(groups))
    made = []
    for key in own:
        if key == keeper:
            continue
        node, _, role = groups[key][0]
        copy = copy_initializer(value, names.unique(_name(node, value, role)))
        graph.register_initializer(copy)
        for user, index, _ in groups[key]:
            user.replace_input_with(index, copy)
        made.append(copy)
    return made


def _keeper(value: Value, keys: list[Hashable]) -> Hashable:
    """Return the group that keeps the value: the one whose role fits its name, else the first weight."""
    name = (value.name or "").lower()
    words = {"weight": ("weight", "scale", "gamma"), "bias": ("bias", "beta"), "running_mean": ("mean",),
             "running_var": ("var",)}  # fmt: skip

    def name_fits(key: Hashable) -> bool:
        assert isinstance(key, tuple)
        return any(word in name for word in words[key[0]])

    weights = [k for k in keys if isinstance(k, tuple) and k[0] not in _STATISTICS]
    return next((k for k in keys if name_fits(k)), (weights or keys)[0])


def _layer(node: ir.Node, value: Value) -> Hashable:
    """Return a key for the layer of `node`: the other weights that the node, or the one before it, reads."""
    own = _weights_beside(node, value)
    if own:
        return own
    before = [v.producer() for v in node.inputs if v is not None and v.producer() is not None]
    earlier = _weights_beside(before[0], value) if before and before[0] is not None else ()
    return earlier or id(node)


def _weights_beside(node: ir.Node, value: Value) -> tuple[int, ...]:
    return tuple(
        id(v) for v in node.inputs if v is not None and v is not value and v.is_initializer() and not _is_uniform(v)
    )


def _is_uniform(value: Value) -> bool:
    """Return whether the value is a vector or scalar of one repeated number."""
    tensor = value.const_value
    if tensor is None or value.shape is None or len(value.shape) > 1 or tensor.size == 0:
        return False
    array = np.asarray(tensor.numpy())
    return bool((array == array.reshape(-1)[0]).all())


def _name(node: ir.Node, value: Value, role: str) -> str:
    """Return `conv2.bias` beside `conv2.weight`, `bn1.running_mean` beside `bn1.bias`; else a name like the node's."""
    for other in node.inputs[1:]:
        if other is None or other is value or not other.is_initializer() or not other.name:
            continue
        if role in _STATISTICS or not _is_uniform(other):
            for separator in (".", "/"):
                stem, found, _ = other.name.rpartition(separator)
                if found and stem:
                    return f"{stem}{separator}{role}"
    return f"{(node.name or node.op_type).strip('/')}/{role}"
