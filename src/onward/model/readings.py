"""What the loss of a training entry reads: which value, which output of the model goes with it, and which target.

Metrics compare the same things that the loss compares. So they ask here which output and target those are, instead of
taking the first ones.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onward.graph.closing import ACTIVATIONS, PASSING
from onward.graph.walk import constant_of, reads, unmapped
from onward.model.roles import EntryRoles
from onward.model.training_model import FLOAT_TYPES, TrainingEntry, TrainingModel

# The last ones are of a Softmax or Sigmoid that is written out, of an old Softmax that is given back its shape, of the
# two columns 1 - p and p, and of scikit-learn's Normalizer.
_WRITTEN_OUT = frozenset(
    {
        "Log", "Exp", "Neg", "Reciprocal", "ReduceSum", "ReduceMax", "Div", "Sub", "Shape", "Concat", "ReduceL1",
        "Equal", "Where",
    }
)  # fmt: skip
_CHEAP = PASSING | ACTIVATIONS | _WRITTEN_OUT | {"Constant", "Expand"}


@dataclasses.dataclass(frozen=True)
class Reading:
    """A value of the inference graph that the loss reads.

    `output` is the model's output that it is, or that derives from it; `target` is what the loss compares it with.
    Both are empty where there is none.
    """

    value: str
    output: str = ""
    target: str = ""


def readings(model: TrainingModel, entry: TrainingEntry, roles: EntryRoles) -> tuple[Reading, ...]:
    """Return the floating-point tensors that the loss of `entry` reads, in the order in which it reads them."""
    algorithm = entry.algorithm
    assert algorithm is not None
    known = ir.convenience.create_value_mapping(model.graph)
    found: dict[str, ir.Value] = {}
    targets: dict[str, str] = {}
    reach: dict[ir.Value, set[str]] = {}  # of the values that the loss computes: what it read for them
    order = [v.name or "" for v in algorithm.inputs if v.name not in algorithm.initializers]
    for node in _loss_nodes(algorithm, roles):
        read: set[str] = set()
        for value in reads(node):
            name = roles.training.get(value.name or "", value.name or "")
            if value in reach:
                read |= reach[value]
            elif name in order:
                read.add(name)
            elif name in known and _is_prediction(known[name]):
                found.setdefault(name, known[name])
                read.add(name)
        for output in node.outputs:
            reach[output] = read
        met = [name for name in order if name in read]
        for name in read & found.keys() - targets.keys():
            if met:
                targets[name] = met[0]
    return tuple(Reading(name, _output_of(model, value), targets.get(name, "")) for name, value in found.items())


def _loss_nodes(algorithm: ir.Graph, roles: EntryRoles) -> list[ir.Node]:
    """Return the nodes that compute the loss from what it reads, in order."""
    made = {v.name: v for node in algorithm for v in node.outputs}
    queue = [made[roles.loss]] if roles.loss in made else []
    needed: set[ir.Node] = set()
    while queue:
        value = queue.pop()
        node = value.producer()
        if node is None or node in needed or node.graph is not algorithm or value.name in roles.training:
            continue
        needed.add(node)
        queue += reads(node)
    return [node for node in algorithm if node in needed]


def _is_prediction(value: ir.Value) -> bool:
    """Return whether the model computes `value`, a floating-point tensor of at least one dimension."""
    computed = value.producer() is not None and not value.is_graph_input() and not value.is_initializer()
    return computed and value.dtype in (None, *FLOAT_TYPES) and (value.shape is None or len(value.shape) > 0)


def _output_of(model: TrainingModel, value: ir.Value) -> str:
    """Return the output that `value` is, or else the nearest one that derives from it; activations are the nearest."""
    if value in model.graph.outputs:
        return value.name or ""
    distance: dict[ir.Value, tuple[bool, int]] = {value: (False, 0)}
    for node in model.graph:
        before = [distance[v] for v in reads(node) if v in distance]
        if before:
            dear, steps = min(before)
            for output in node.outputs:
                distance[output] = (dear or not is_cheap(node), steps + 1)
    readable = [v for v in model.graph.outputs if v in distance and unmapped(v).dtype in (None, *FLOAT_TYPES)]
    return min(readable, key=lambda v: distance[v]).name or "" if readable else ""


def is_cheap(node: ir.Node) -> bool:
    """Return whether a training step may run `node` only for metrics: an activation, or a change of shape or type."""
    if node.domain in ("", "ai.onnx"):
        if node.op_type in _CHEAP:
            return True
        if node.op_type in ("Add", "Mul"):  # with one number, as in 1 + exp(-x)
            return any(array is not None and array.size == 1 for array in map(constant_of, node.inputs))
    return unmapped(node.outputs[0]) is not node.outputs[0]
