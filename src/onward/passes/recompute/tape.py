"""A step's graph as numbers: what each node reads, makes and costs, and how much memory a choice of copies needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from onward.graph import walk
from onward.graph.order import backwards, by_depth
from onward.passes.recompute import costs

_TINY = 500  # a value below this fraction of all that is kept is not worth a second run of anything


class Tape:
    """The nodes of a graph by number, in the order of the file, and its values by number.

    `forward` are the nodes that the loss needs, `backward` those that only the gradients need. A view, such as a
    Reshape, has the memory of its root. A value is `held` if it needs no memory of its own that could be saved: an
    input, a constant, an output, or a value too small to matter.
    """

    def __init__(
        self,
        graph: ir.Graph,
        shapes: Mapping[str, costs.Shape],
        forward: Collection[ir.Node],
        backward: Collection[ir.Node],
    ) -> None:
        self.nodes = list(graph)
        self.number: dict[ir.Value, int] = {}
        self.values: list[ir.Value] = []
        self.maker: list[int] = []
        self.size: list[int] = []
        self.known: list[bool] = []
        self.root: list[int] = []
        self.reads: list[list[int]] = []  # inputs, by position
        self.captured: list[list[int]] = []  # what bodies read
        self.makes: list[list[int]] = []
        self.cost: list[float] = []
        self._shapes = shapes
        outer = [*graph.inputs, *graph.initializers.values()]
        for value in outer:
            self._add(value, -1)
        self.inputs_size = sum(self.size)
        for index, node in enumerate(self.nodes):
            self._add_node(index, node)
        outputs = {self.root[self.number[v]] for v in graph.outputs if v in self.number}
        self.outputs_size = sum(self.size[root] for root in outputs)
        self.forward = [n in forward for n in self.nodes]
        self.backward = [n in backward for n in self.nodes]
        self.outputs = outputs
        self.held = self._find_held()
        self.residuals = self._find_residuals()
        total = sum(self.size[r] for r in self.residuals)
        for root in range(len(self.values)):
            if self.size[root] * _TINY < total:
                self.held[root] = True
        self.residuals = {r for r in self.residuals if not self.held[r]}
        self.fresh = self._find_fresh()

    def _add(self, value: ir.Value, maker: int) -> int:
        number = self.number[value] = len(self.values)
        self.values.append(value)
        self.maker.append(maker)
        size = costs.byte_size(value, self._shapes.get(value.name or ""))
        self.size.append(size or 0)
        self.known.append(size is not None)
        self.root.append(number)
        return number

    def _add_node(self, index: int, node: ir.Node) -> None:
        self.reads.append([self.number[v] for v in node.inputs if v is not None])
        self.captured.append([self.number[v] for g in walk.subgraphs(node) for v in walk.captured(g)])
        self.makes.append([self._add(v, index) for v in node.outputs])
        if node.op_type in costs.VIEWS and node.domain in ("", "ai.onnx") and self.reads[-1]:
            self.root[self.makes[-1][0]] = self.root[self.reads[-1][0]]
        moved = sum(self.size[v] for v in {*self.reads[-1], *self.makes[-1]})
        inputs = [None if v is None else self._shapes.get(v.name or "") for v in node.inputs]
        self.cost.append(costs.cost(node, inputs, [self._shapes.get(v.name or "") for v in node.outputs], moved))

    def _find_held(self) -> list[bool]:
        held = [maker < 0 for maker in self.maker]
        for index, node in enumerate(self.nodes):
            moves = node.op_type == "Transpose" and self.maker[self.reads[index][0]] < 0  # runtimes fuse it
            for value in self.makes[index]:
                held[value] = moves or node.op_type == "Constant" or not self.known[value]
        for root in self.outputs:
            held[root] = True
        return held

    def _find_residuals(self) -> set[int]:
        """Return the roots of the forward pass that the backward pass reads."""
        found: set[int] = set()
        for index, node in enumerate(self.nodes):
            if self.backward[index] and node.op_type not in ("Shape", "Size"):
                found.update(self.root[v] for v in (*self.reads[index], *self.captured[index]))
        return {r for r in found if not self.held[r] and self.forward[self.maker[r]]}

    def _find_fresh(self) -> set[int]:
        """Return the values that each copy of a node needs for itself: what a BatchNormalization overwrites."""
        found: set[int] = set()
        for index, node in enumerate(self.nodes):
            if node.op_type == "BatchNormalization" and node.attributes.get_int("training_mode", 0) == 1:
                queue = self.reads[index][3:5]
                while queue:
                    value = queue.pop()
                    if self.maker[value] >= 0 and self.nodes[self.maker[value]].op_type != "Constant":
                        found.add(value)
                        queue += self.reads[self.maker[value]]
        return found

    def made_size(self, index: int) -> int:
        """Return the bytes that a node makes."""
        return sum(self.size[v] for v in self.makes[index] if self.root[v] == v)


@dataclasses.dataclass(frozen=True)
class Copies:
    """Which nodes run a second time, each before which node of the backward pass; `kept` are roots that stay."""

    kept: frozenset[int]
    before: Mapping[int, int]  # node -> the first node of the backward pass that needs its copy

    @property
    def nodes(self) -> list[int]:
        return sorted(self.before)


def copies_for(tape: Tape, kept: Iterable[int], dropped: Collection[int]) -> Copies:
    """Return the copies that compute the `dropped` residuals from what is held or `kept`."""
    stays = frozenset(kept)
    before: dict[int, int] = {}
    queue: list[tuple[int, int]] = []
    for index in range(len(tape.nodes)):
        if tape.backward[index] and tape.nodes[index].op_type not in ("Shape", "Size"):
            queue += [(v, index) for v in tape.reads[index] if tape.root[v] in dropped and tape.forward[tape.maker[v]]]
    while queue:
        value, reader = queue.pop()
        node = tape.maker[value]
        if before.get(node, reader + 1) <= reader:
            continue
        before[node] = reader
        for read in tape.reads[node]:
            root = tape.root[read]
            if read in tape.fresh or not (tape.held[root] or root in stays):
                queue.append((read, reader))
    return Copies(stays, before)


def reads_copy(tape: Tape, copies: Copies, dropped: Collection[int], index: int, value: int, *, is_copy: bool) -> bool:
    """Return whether a node reads the copy of a value and not the value itself."""
    maker = tape.maker[value]
    if maker < 0 or maker not in copies.before:
        return False
    root = tape.root[value]
    if is_copy:
        return value in tape.fresh or not (tape.held[root] or root in copies.kept)
    return tape.backward[index] and root in dropped and tape.nodes[index].op_type not in ("Shape", "Size")


def peak(tape: Tape, copies: Copies, dropped: Collection[int]) -> int:
    """Return the bytes that a step needs at most: its inputs, its outputs, and what it computes while that is in use.

    The order is that of ONNX Runtime.
    """
    placed: dict[int, list[int]] = {}
    for node in copies.nodes:
        placed.setdefault(copies.before[node], []).append(node)
    steps: list[tuple[int, bool]] = []
    for index in range(len(tape.nodes)):
        steps += [(node, True) for node in placed.get(index, ())]
        steps.append((index, False))
    count = len(tape.values)
    made_at: dict[int, int] = {}
    reads: list[list[int]] = []
    makers: list[list[int]] = []
    for at, (index, is_copy) in enumerate(steps):
        row = [
            v + count if reads_copy(tape, copies, dropped, index, v, is_copy=is_copy) else v for v in tape.reads[index]
        ]
        row += tape.captured[index]
        reads.append(row)
        makers.append([made_at[v] for v in row if v in made_at])
        for value in tape.makes[index]:
            made_at[value + count if is_copy else value] = at
    return tape.inputs_size + tape.outputs_size + _most_in_use(tape, steps, reads, makers)


def _most_in_use(
    tape: Tape, steps: Sequence[tuple[int, bool]], reads: Sequence[Sequence[int]], makers: Sequence[Sequence[int]]
) -> int:
    order = backwards(makers, by_depth(makers))
    count = len(tape.values)
    root: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, step in enumerate(order):
        index, is_copy = steps[step]
        shift = count if is_copy else 0
        needs_data = tape.nodes[index].op_type not in ("Shape", "Size")
        for value in reads[step]:
            if needs_data:
                last[root.get(value, value)] = at
        for value in tape.makes[index]:
            is_view = tape.root[value] != value
            root[value + shift] = root.get(reads[step][0], reads[step][0]) if is_view else value + shift
            last[root[value + shift]] = at
    dying: dict[int, list[int]] = {}
    for value, at in last.items():
        dying.setdefault(at, []).append(value)
    used: dict[int, int] = {}
    now = most = 0
    for at, step in enumerate(order):
        index, is_copy = steps[step]
        in_place = tape.nodes[index].op_type in costs.IN_PLACE
        for value in tape.makes[index]:
            own = value + count if is_copy else value
            if tape.root[value] != value or tape.maker[value] < 0 or (not is_copy and value in tape.outputs):
                continue
            size = tape.size[value]
            if in_place:
                for read in reads[step]:
                    old = root.get(read, read)
                    if last.get(old) == at and used.get(old) == size:
                        now -= used.pop(old)
                        break
            used[own] = size
            now += size
        most = max(most, now)
        for value in dying.get(at, ()):
            now -= used.pop(value, 0)
    return most
