"""What a value is, as data on the value: the file carries it, and names are cosmetic.

A role is up to three entries in a value's metadata: `onward.role`; `onward.of`, the name of the value that it relates
to; and `onward.slot`, which of several states it is.

    parameter                       an initializer that training replaces and differentiates with respect to
    frozen                          a weight that no training entry replaces
    state          of, slot         another initializer that training replaces: a moment, a statistic, a counter
    average        of a parameter   its moving average
    learning_rate                   an input with a default; also what a schedule of the optimizer makes of it
    target                          an input of the training step: labels, for example
    loss                            what the entry minimises
    evaluation                      the loss in inference mode, where a value of its own computes it
    training       of a value       what stands for a value of the inference graph in a training step
    gradient       of a parameter   the derivative of the loss with respect to it

A `Gradient` node with the entry `onward.straight_through` takes the slope of rounding as 1. One with `onward.scaled`
differentiates the loss of that name times a scale.

Whoever makes a value marks it. This module alone reads the marks. A file without them was written by another program or
by an older Onward: then the second half of this module infers the roles from the structure, or else from names.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any

import onnx_ir as ir

from onward.graph.walk import ancestors, reads
from onward.model.training_model import TrainingEntry, TrainingModel, differentiated, is_gradient

_ROLE, _OF, _SLOT = "onward.role", "onward.of", "onward.slot"
_STRAIGHT_THROUGH = "onward.straight_through"
_SCALED = "onward.scaled"

RANDOM_KEY = "random/key"
RANDOM_STEP = "random/step"
PROGRAM_STATE = (RANDOM_KEY, RANDOM_STEP)
"""State that a compiled program adds to the model's own."""

RANDOM_STEP_ENTRY = "onward.random_step"
"""The metadata entry of a model with the number of its next training step, as far as random numbers are concerned."""

STEP, BATCHES, STATISTIC = "step", "batches", "statistic"
"""Slots that belong to no optimizer: the count of updates, the count of batches, a running mean or variance."""

LOSS_SCALE = "loss_scale"
"""The slot of the number that multiplies the loss before it is differentiated."""


def random_step(model: TrainingModel) -> int:
    """Return the value of `random/step` at which the random masks of a model go on: 0 for one that never trained."""
    text = model.ir.metadata_props.get(RANDOM_STEP_ENTRY, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def keep_random_step(model: TrainingModel, state: Mapping[str, Any]) -> None:
    """Write into `model` the number of draws that `state` holds, so that its file goes on with the next masks."""
    if RANDOM_STEP in state:
        model.ir.metadata_props[RANDOM_STEP_ENTRY] = str(int(state[RANDOM_STEP]))


class Role(enum.Enum):
    """What a value is; the module's docstring describes each."""

    PARAMETER = "parameter"
    FROZEN = "frozen"
    STATE = "state"
    AVERAGE = "average"
    LEARNING_RATE = "learning_rate"
    TARGET = "target"
    LOSS = "loss"
    EVALUATION = "evaluation"
    TRAINING = "training"
    GRADIENT = "gradient"


def mark(value: ir.Value, role: Role, *, of: str | None = None, slot: str | None = None) -> None:
    """Give `value` a role; an earlier one is replaced."""
    unmark(value)
    for key, text in ((_ROLE, role.value), (_OF, of), (_SLOT, slot)):
        if text:
            value.metadata_props[key] = text


def unmark(value: ir.Value) -> None:
    """Remove the role of `value`."""
    for key in (_ROLE, _OF, _SLOT):
        value.metadata_props.pop(key, None)


def unmark_graph(graph: ir.Graph) -> None:
    """Remove the roles of all values of `graph`: a plain model does not train."""
    for value in _values(graph):
        if value.metadata_props:
            unmark(value)


def has_role(value: ir.Value, role: Role) -> bool:
    """Return whether `value` is marked with `role`."""
    return value.metadata_props.get(_ROLE) == role.value


def mark_straight_through(gradient: ir.Node) -> None:
    """Let a `Gradient` node take the slope of rounding as 1."""
    gradient.metadata_props[_STRAIGHT_THROUGH] = "1"


def is_straight_through(gradient: ir.Node) -> bool:
    """Return whether a `Gradient` node takes the slope of rounding as 1."""
    return gradient.metadata_props.get(_STRAIGHT_THROUGH) == "1"


def mark_scaled(gradient: ir.Node, loss: str) -> None:
    """Let a `Gradient` node say of which loss its `y` is a multiple."""
    gradient.metadata_props[_SCALED] = loss


def loss_of(gradient: ir.Node) -> str:
    """Return the loss that a `Gradient` node differentiates, without the scale that may multiply it."""
    attribute = gradient.attributes.get("y")
    if attribute is None or attribute.is_ref() or not isinstance(attribute.value, str):
        return ""  # for `check` to report
    return gradient.metadata_props.get(_SCALED) or attribute.value


def trained(model: TrainingModel) -> dict[str, ir.Value]:
    """Return the initializers that are marked as parameters, or that a Gradient differentiates with respect to.

    What another program adds to a file may train a weight that is marked as frozen.
    """
    inferred = {name for node in model.gradient_nodes() for name in differentiated(node)}
    return {k: v for k, v in model.initializers().items() if k in inferred or has_role(v, Role.PARAMETER)}


@dataclasses.dataclass(frozen=True)
class EntryRoles:
    """What the values of one training entry are, by name."""

    loss: str
    """What is minimised; empty where nothing is."""
    targets: tuple[str, ...]
    learning_rates: tuple[str, ...]
    scheduled_rate: str
    """The learning rate of the step, where the optimizer has a schedule; else empty."""
    gradients: dict[str, str]
    """The parameter of each gradient."""
    training: dict[str, str]
    """The value of the inference graph that each value of the step stands for."""
    slots: dict[tuple[str, str], str]
    """(slot, parameter) -> state; the parameter is empty for a state that belongs to none."""
    forward_state: tuple[str, ...]
    """State that a forward pass in training mode changes: running statistics and batch counters."""
    evaluation: str = ""
    """What an evaluation reports instead of the loss of the step; empty where that is the loss in inference mode."""


def entry_roles(model: TrainingModel, entry: TrainingEntry) -> EntryRoles:
    """Return what the values of `entry` are: as marked, or inferred if nothing is marked or the marks are out of date.

    They are out of date if one refers to a value that does not exist: a tool renamed values without their metadata.
    """
    graph = entry.algorithm
    assert graph is not None
    produced = [v for node in graph for v in node.outputs if v.name]
    known = model.initializers()
    state = [known[k] for k in entry.update_binding if k in known]
    existing = {"", *known, *(v.name for v in _values(model.graph))}
    marked = any(_ROLE in v.metadata_props for v in produced) and all(_of(v) in existing for v in [*produced, *state])
    loss = next((v.name or "" for v in produced if has_role(v, Role.LOSS)), None)
    evaluation = next((v for v in produced if has_role(v, Role.EVALUATION)), None)
    training = {v.name or "": _of(v) for v in produced if has_role(v, Role.TRAINING)}
    slots = {(_slot(v), _of(v)): v.name or "" for v in state if has_role(v, Role.STATE)}
    own = [v for v in graph.inputs if v.name in graph.initializers]
    rates = [v.name or "" for v in own if has_role(v, Role.LEARNING_RATE)]
    forward = tuple(v.name or "" for v in state if _slot(v) in (BATCHES, STATISTIC))
    return EntryRoles(
        loss=loss or _inferred_loss(entry),
        targets=tuple(v.name or "" for v in graph.inputs if v.name not in graph.initializers),
        learning_rates=tuple(rates) or learning_rates_by_name([] if marked else [v.name or "" for v in own]),
        scheduled_rate=next((v.name or "" for v in produced if has_role(v, Role.LEARNING_RATE)), "")
        or _scheduled_rate_by_name(graph),
        gradients={v: parameter for v, parameter in _gradients(graph) if parameter in entry.update_binding},
        training=_inferred_training(model.graph, _without(graph, evaluation)) | (training if marked else {}),
        slots=slots if marked else _slots_by_name([v.name or "" for v in state], model.parameters),
        forward_state=forward if marked else tuple(_inferred_forward_state(entry, known)),
        evaluation=evaluation.name or "" if evaluation is not None else "",
    )


def averages(model: TrainingModel) -> dict[str, str]:
    """Return the moving average of each parameter that has one: parameter -> state."""
    marked = {_of(v): k for k, v in model.state.items() if has_role(v, Role.AVERAGE)}
    found = {parameter: k for parameter, k in marked.items() if parameter in model.graph.initializers}
    return found or averages_by_name(model.state, model.graph.initializers)


def _of(value: ir.Value) -> str:
    return value.metadata_props.get(_OF, "")


def _slot(value: ir.Value) -> str:
    return value.metadata_props.get(_SLOT, "")


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


# -- files without roles: the only place that infers them ------------------------------------------------------------


def learning_rates_by_name(settings: Iterable[str]) -> tuple[str, ...]:
    """Return the settings that Onward named as learning rates before it marked them."""
    return tuple(n for n in settings if re.fullmatch(r"learning_rate(_\d+)?", n.rsplit("/", 1)[-1]))


def _scheduled_rate_by_name(graph: ir.Graph) -> str:
    """Return the rate that Onward named as scheduled before it marked it."""
    named = (n.outputs[0].name or "" for n in graph if (n.name or "").startswith("scheduled_learning_rate"))
    return next(named, "")


def averages_by_name(state: Iterable[str], parameters: Collection[str]) -> dict[str, str]:
    """Return the averages that Onward named `ema/<parameter>` before it marked them."""
    return {n.removeprefix("ema/"): n for n in state if n.startswith("ema/") and n.removeprefix("ema/") in parameters}


def _slots_by_name(state: Iterable[str], parameters: Collection[str]) -> dict[tuple[str, str], str]:
    """Return the slots of names such as `adam/m/fc.weight`, and the counter `step`."""
    found: dict[tuple[str, str], str] = {}
    for name in state:
        parts = name.split("/")
        if parts[-1] == STEP:
            found.setdefault((STEP, ""), name)
        for index in range(2, len(parts)):
            parameter = "/".join(parts[index:])
            if parameter in parameters:
                found[parts[index - 1], parameter] = name
    return found


def _inferred_loss(entry: TrainingEntry) -> str:
    """Return what the first Gradient differentiates."""
    assert entry.algorithm is not None
    return next((loss_of(n) for n in entry.algorithm if is_gradient(n) and "y" in n.attributes), "")


def _gradients(graph: ir.Graph) -> Iterator[tuple[str, str]]:
    """Yield each output of a Gradient node with what it is differentiated with respect to: the node itself says it."""
    for node in graph:
        if is_gradient(node):
            named = zip(node.outputs, differentiated(node), strict=False)
            yield from ((v.name, parameter) for v, parameter in named if v.name)


def _inferred_forward_state(entry: TrainingEntry, known: Collection[str]) -> Iterator[str]:
    """Yield the state whose new value comes from a batch normalisation and from no gradient, and batch counters."""
    assert entry.algorithm is not None
    outputs = {v.name: v for n in entry.algorithm for v in n.outputs}
    normalised: set[ir.Value] = set()
    differentiated: set[ir.Value] = set()
    for node in entry.algorithm:
        read = reads(node)
        if node.op_type == "BatchNormalization" or not normalised.isdisjoint(read):
            normalised.update(node.outputs)
        if is_gradient(node) or not differentiated.isdisjoint(read):
            differentiated.update(node.outputs)
    for key, value in entry.update_binding.items():
        new = outputs.get(value)
        changes = new in normalised or key.endswith("num_batches_tracked")
        if new is not None and changes and key in known and new not in differentiated:
            yield key


_RANDOM = {"RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}


def _without(algorithm: ir.Graph, evaluation: ir.Value | None) -> Iterable[ir.Node]:
    """Return the nodes of a step without those that only an evaluation runs: they are in inference mode already."""
    if evaluation is None:
        return algorithm
    needed = ancestors(algorithm.outputs)
    alone = ancestors([evaluation]) - needed
    return [node for node in algorithm if node not in alone]


def _inferred_training(graph: ir.Graph, algorithm: Iterable[ir.Node]) -> dict[str, str]:
    """Return what stands for what: a node stands for one of `graph` with the same operator, attributes and inputs.

    Inputs are the same if one stands for the other. A Dropout may have another mode, a BatchNormalization other
    statistics.
    """
    same: dict[ir.Value, ir.Value] = {}
    known: dict[Hashable, ir.Node] = {}
    for node in graph:
        known.setdefault(_signature(node, same), node)
    for node in algorithm:
        twin = known.get(_signature(node, same)) if node.inputs and node.op_type not in _RANDOM else None
        if twin is not None:
            same.update(zip(node.outputs[: len(twin.outputs)], twin.outputs, strict=False))
    return {new.name: old.name for new, old in same.items() if new.name and old.name}


def _signature(node: ir.Node, same: Mapping[ir.Value, Hashable]) -> Hashable:
    differs = {"BatchNormalization": 3, "Dropout": 1}.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    inputs = tuple(same.get(v, v) if v is not None else None for v in node.inputs[:differs])
    attributes = () if differs else tuple(_attribute_signature(a, same) for _, a in sorted(node.attributes.items()))
    return (node.domain, node.op_type, node.overload, inputs, attributes)


def _attribute_signature(attribute: ir.Attr, same: Mapping[ir.Value, Hashable]) -> Hashable:
    if attribute.type == ir.AttributeType.GRAPH:
        return (attribute.name, _body_signature(attribute.as_graph(), same))
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        small = tensor.size <= 1024 and tensor.dtype != ir.DataType.STRING
        return (attribute.name, tensor.dtype, tuple(tensor.shape), tensor.tobytes() if small else tensor.name)
    value = attribute.value
    return (attribute.name, tuple(value) if isinstance(value, (list, tuple)) else str(value))


def _body_signature(graph: ir.Graph, same: Mapping[ir.Value, Hashable]) -> Hashable:
    """Return what a body computes; its own values count by position."""
    own: dict[ir.Value, Hashable] = {v: ("own", position) for position, v in enumerate(graph.inputs)}
    nodes = []
    for node in graph:
        nodes.append(_signature(node, {**same, **own}))
        own.update({v: ("own", len(own) + position) for position, v in enumerate(node.outputs)})
    return (tuple(nodes), tuple(own.get(v, same.get(v, v)) for v in graph.outputs))
