"""The layers of a network by its graph, and the words that choose them: `head`, `last:3`.

A layer is one operator with weights of its own (Conv, ConvTranspose, Gemm, MatMul, LSTM, GRU, RNN, Gather from a table,
…), with the bias that is added to its result and the normalisation that follows it. An If, Loop or Scan is one layer
with all the weights that its bodies read. Every weight belongs to one layer: the last such operator that is computed
before the weight is read, or where there is none (a normalisation of the input), the first after it. A weight that
several layers share belongs to the last of them.
"""

from __future__ import annotations

import dataclasses
import glob
import re
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onward.errors import ArgumentError, Diagnostic
from onward.graph.builder import Names, Value
from onward.graph.walk import all_names, ancestors, reads, subgraphs
from onward.model import serde
from onward.model.trainable import as_patterns, final_uses, influential_nodes, obstacle
from onward.model.training_model import TrainingModel
from onward.surgery.constants import lift_constants
from onward.surgery.head import NoHead, find
from onward.surgery.notes import read_note
from onward.surgery.splice import find_values
from onward.upgrade import normalise

A131 = "A131"
HEAD = "head"
_LAST = re.compile(r"last:(.*)")
# Operators that carry a layer by these inputs; what else reads weights (Add, Mul, normalisations) belongs to a layer.
_CARRIERS = {
    *((op, 1) for op in ("Conv", "ConvTranspose", "DeformConv")),
    ("Gather", 0), ("Gemm", 0), ("Gemm", 1), ("MatMul", 0), ("MatMul", 1),
    *((op, i) for op in ("LSTM", "GRU", "RNN") for i in (1, 2)),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Layer:
    """One operator with weights, its bias and its normalisation."""

    operator: str
    """The operator, `Conv` for example."""
    name: str
    """The name of its node."""
    weights: tuple[str, ...]
    """The names of its weights."""
    depth: int
    """The number of layers on the longest way from it to the output, itself included: 1 for the last."""


def layers(model: serde.Source, output: str | Sequence[str] | None = None) -> list[Layer]:
    """Return the layers before `output` (default: all outputs), the last one first.

    They are ordered by the longest way to the output; layers beside each other, by their order in the file. Weights in
    `Constant` nodes count, as `make_trainable` trains them too.

    >>> from onward import samples
    >>> [(layer.depth, layer.weights) for layer in layers(samples.perceptron())]
    [(1, ('W2', 'b2')), (2, ('W1', 'b1'))]

    Raises:
        ArgumentError: there is no such value; lists all of them.
    """
    work = normalise(serde.load(model), copy=True)
    lift_constants(work.graph, Names(all_names(work.graph)))
    outputs = work.graph.outputs if output is None else find_values(work.graph, as_patterns(output), "output=")
    return layers_before(work.graph, list(outputs))


def layers_before(graph: ir.Graph, outputs: Sequence[Value]) -> list[Layer]:
    """Return the layers that `outputs` depend on, the last one first."""
    reached = ancestors(outputs)
    order = {node: position for position, node in enumerate(graph) if node in reached}
    influential = influential_nodes(outputs)
    owners = _owners(order)
    uses: dict[Value, list[ir.Node]] = {}
    for weight in graph.initializers.values():
        if obstacle(weight, influential) is None:
            uses[weight] = [owners.get(node, node) for node, _ in final_uses(weight)]
    carriers = _carriers(uses, owners, order)
    before = _nearest(order, carriers)
    found: dict[ir.Node, list[str]] = {}
    for weight, nodes in uses.items():
        at = max((n for n in nodes if n in order), key=lambda n: order[n], default=None)
        carrier = None if at is None else _layer_of(at, carriers, before, order)
        if carrier is not None:
            found.setdefault(carrier, []).append(weight.name or "")
    depth = _depths(order, set(found))
    ranked = sorted(found, key=lambda node: (depth[node], -order[node]))
    return [Layer(n.op_type, n.name or n.outputs[0].name or "", tuple(found[n]), depth[n]) for n in ranked]


def _owners(order: Iterable[ir.Node]) -> dict[ir.Node, ir.Node]:
    """Return the outermost node of each node inside a body."""
    found: dict[ir.Node, ir.Node] = {}

    def visit(graph: ir.Graph, owner: ir.Node) -> None:
        for node in graph:
            found[node] = owner
            for inner in subgraphs(node):
                visit(inner, owner)

    for node in order:
        for graph in subgraphs(node):
            visit(graph, node)
    return found


def _carriers(
    uses: dict[Value, list[ir.Node]], owners: dict[ir.Node, ir.Node], order: dict[ir.Node, int]
) -> set[ir.Node]:
    found = set()
    for weight in uses:
        for node, index in final_uses(weight):
            outer = owners.get(node, node)
            known = node.domain in ("", "ai.onnx")
            if outer in order and (outer is not node or not known or (node.op_type, index) in _CARRIERS):
                found.add(outer)
    return found


def _nearest(order: dict[ir.Node, int], carriers: set[ir.Node]) -> dict[ir.Node, ir.Node]:
    """Return for each node the last carrier among the nodes that it depends on, itself included."""
    found: dict[ir.Node, ir.Node] = {}
    for node in order:
        if node in carriers:
            found[node] = node
            continue
        makers = [maker for v in reads(node) if (maker := v.producer()) in found]
        near = [found[maker] for maker in makers if maker is not None]
        if near:
            found[node] = max(near, key=lambda n: order[n])
    return found


def _layer_of(
    node: ir.Node, carriers: set[ir.Node], before: dict[ir.Node, ir.Node], order: dict[ir.Node, int]
) -> ir.Node | None:
    if node in before:
        return before[node]
    queue, seen = [node], {node}
    while queue:  # the first carrier after it, or the node itself
        following = sorted(
            (u.node for n in queue for v in n.outputs for u in v.uses() if u.node in order), key=lambda n: order[n]
        )
        carrier = next((n for n in following if n in carriers), None)
        if carrier is not None:
            return carrier
        queue = [n for n in dict.fromkeys(following) if n not in seen]
        seen.update(queue)
    return node


def _depths(order: dict[ir.Node, int], carriers: set[ir.Node]) -> dict[ir.Node, int]:
    """Return the number of carriers on the longest way from each node to the end."""
    depth: dict[ir.Node, int] = {}
    for node in reversed(order):
        users = [depth.get(use.node, 0) for v in node.outputs for use in v.uses()]
        depth[node] = max(users, default=0) + (node in carriers)
    return depth


def expand_selection(
    model: TrainingModel, selection: str | Iterable[str], outputs: Sequence[Value] | None = None, place: str = "train="
) -> list[str]:
    """Return globs for a selection: `head` and `last:3` become the names of weights, other globs stay as they are.

    `outputs` are the values that the loss reads (default: all outputs). A weight that is itself called `head` is
    chosen by the glob `[h]ead`.

    Raises:
        ArgumentError: the graph has no head, or the number behind `last:` is none; lists all such problems.
    """
    found: list[str] = []
    problems: list[Diagnostic] = []
    ends = list(model.graph.outputs) if outputs is None else list(outputs)
    for pattern in as_patterns(selection):
        last = _LAST.fullmatch(pattern)
        try:
            if pattern == HEAD:
                found += map(glob.escape, head_weights(model, ends, place))
            elif last is not None:
                found += map(glob.escape, _last(model, last[1], ends, place))
            else:
                found.append(pattern)
        except ArgumentError as error:
            problems += error.diagnostics
    if problems:
        raise ArgumentError(problems)
    return list(dict.fromkeys(found))


def is_word(pattern: str) -> bool:
    """Return whether `pattern` chooses layers by the graph instead of weights by their names."""
    return pattern == HEAD or _LAST.fullmatch(pattern) is not None


def head_weights(model: TrainingModel, outputs: Sequence[Value], place: str = "train=") -> list[str]:
    """Return the weights of the head: of the one that was attached, or of the last linear layer.

    Raises:
        ArgumentError: the outputs are not computed by a linear layer that can be found.
    """
    attached = [name for name in read_note(model).get("weights", ()) if name in model.graph.initializers]
    influential = influential_nodes(outputs)
    attached = [n for n in attached if obstacle(model.graph.initializers[n], influential, named=True) is None]
    if attached:
        return attached
    names: dict[str, None] = {}
    reasons = []
    for output in outputs:
        try:
            weights = find(model.graph, output).weights
        except NoHead as reason:
            reasons.append(str(reason))
        else:
            names.update((v.name or "", None) for v in weights if obstacle(v, influential, named=True) is None)
    if not names:
        raise ArgumentError(
            Diagnostic(
                A131,
                "`head` chooses no weights: no linear layer was found at the end of the network",
                place=place,
                found="; ".join(reasons),
                hint='"last:1" chooses the last layer with weights, whatever it is; globs choose weights by name',
            )
        )
    return list(names)


def _last(model: TrainingModel, text: str, outputs: Sequence[Value], place: str) -> list[str]:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentError(
            Diagnostic(
                A131,
                f"`last:{text}` does not say how many layers",
                place=place,
                needed="a whole number of at least 1: last:3",
            )
        )
    found = layers_before(model.graph, outputs)
    if int(text) > len(found):
        raise ArgumentError(
            Diagnostic(
                A131,
                f"the network has fewer than {text} layers with weights",
                place=place,
                found=str(len(found)),
                needed=f'at most last:{len(found)}; "*" chooses all weights',
            )
        )
    return [name for layer in found[: int(text)] for name in layer.weights]


__all__ = ["HEAD", "Layer", "expand_selection", "head_weights", "is_word", "layers", "layers_before"]
