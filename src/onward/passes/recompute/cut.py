"""The smallest set of values that must be kept: a minimum cut between what is not computed twice and its readers."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from onward.passes.recompute.tape import Tape

_ENDLESS = 1 << 62


class _Network:
    """Edges with capacities; `flow` saturates a minimum cut (Dinic's algorithm)."""

    def __init__(self, count: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(count)]
        self.to: list[int] = []
        self.left: list[int] = []

    def add(self, start: int, end: int, capacity: int) -> None:
        for a, b, c in ((start, end, capacity), (end, start, 0)):
            self.edges[a].append(len(self.to))
            self.to.append(b)
            self.left.append(c)

    def flow(self, source: int, sink: int) -> None:
        while True:
            level = self._levels(source, sink)
            if level[sink] < 0:
                return
            following = [0] * len(self.edges)
            while self._push(source, sink, level, following):
                pass

    def _levels(self, source: int, sink: int) -> list[int]:
        level = [-1] * len(self.edges)
        level[source] = 0
        queue = deque([source])
        while queue and level[sink] < 0:
            at = queue.popleft()
            for edge in self.edges[at]:
                if self.left[edge] and level[self.to[edge]] < 0:
                    level[self.to[edge]] = level[at] + 1
                    queue.append(self.to[edge])
        return level

    def _push(self, source: int, sink: int, level: list[int], following: list[int]) -> bool:
        """Send as much as fits along one path of increasing levels; return whether there was one."""
        path: list[int] = []
        at = source
        while at != sink:
            edges = self.edges[at]
            while following[at] < len(edges):
                edge = edges[following[at]]
                if self.left[edge] and level[self.to[edge]] == level[at] + 1:
                    path.append(edge)
                    at = self.to[edge]
                    break
                following[at] += 1
            else:
                if not path:
                    return False
                at = self.to[path.pop() ^ 1]
                following[at] += 1
        amount = min(self.left[edge] for edge in path)
        for edge in path:
            self.left[edge] -= amount
            self.left[edge ^ 1] += amount
        return True

    def before(self, sink: int) -> set[int]:
        """Return the vertices from which the sink can still be reached."""
        found = {sink}
        queue = [sink]
        while queue:
            at = queue.pop()
            for edge in self.edges[at]:  # its twin leads here
                if self.left[edge ^ 1] and self.to[edge] not in found:
                    found.add(self.to[edge])
                    queue.append(self.to[edge])
        return found


def smallest_cut(tape: Tape, again: Collection[int], fixed: Collection[int]) -> set[int]:
    """Return the roots to keep, of the fewest bytes, if only the nodes of `again` may run twice.

    `fixed` roots are not computed twice either. Of several smallest sets, the one nearest to the backward pass is
    chosen: fewer nodes run twice.
    """
    vertices: dict[int, int] = {}
    for index in range(len(tape.nodes)):
        if tape.forward[index]:
            for value in tape.makes[index]:
                if tape.root[value] == value and not tape.held[value]:
                    vertices[value] = 2 + 2 * len(vertices)
    network = _Network(2 + 2 * len(vertices))
    for root, vertex in vertices.items():
        maker = tape.maker[root]
        network.add(vertex, vertex + 1, tape.size[root])
        if maker not in again or root in fixed:
            network.add(0, vertex, _ENDLESS)
        if root in tape.residuals:
            network.add(vertex + 1, 1, _ENDLESS)
        for read in {tape.root[v] for v in tape.reads[maker]}:
            if read in vertices and read != root:
                network.add(vertices[read] + 1, vertex, _ENDLESS)
    network.flow(0, 1)
    near = network.before(1)
    return {root for root, vertex in vertices.items() if vertex + 1 in near and vertex not in near}
