"""The layout of a graph: layers from top to bottom, few crossings, straight edges.

It uses the classic layered method. Every node is one layer below its deepest predecessor. Long edges get a bend in each
layer that they cross, which the edges of one node share. Layers are ordered by the mean position of their neighbours.
The horizontal positions are the least-squares optimum that keeps this order. Apart from sorting, the time is linear in
nodes and bends.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

_GAP_X, _GAP_Y = 28.0, 46.0
_BEND = 10.0  # the width of an edge that passes through a layer
_MOST_BENDS = 40_000
_SHELF = 1100.0  # unconnected parts fill rows of about this width
_ORDER_SWEEPS, _PLACE_SWEEPS = 8, 12
_PULL = (2.0, 0.5, 8.0)  # of an edge between two nodes, from a node to a bend, between two bends
_PLACE_VISITS = 40_000  # a small graph is swept more often, until its long chains are straight


@dataclasses.dataclass
class Layout:
    """The centre of each node, the points of each edge, and the total size."""

    places: list[tuple[float, float]]
    routes: list[list[tuple[float, float]]]
    width: float
    height: float


def lay_out(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Layout:
    """Return the layout of nodes with these widths and heights; unconnected parts are placed side by side.

    >>> layout = lay_out([(10, 10), (10, 10)], [(0, 1)])
    >>> layout.places[0][1] < layout.places[1][1]
    True
    """
    places: list[tuple[float, float]] = [(0.0, 0.0)] * len(sizes)
    routes: list[list[tuple[float, float]]] = [[]] * len(edges)
    parts = _parts(len(sizes), edges)
    drawn = []
    for nodes, part_edges in parts:
        number = {node: i for i, node in enumerate(nodes)}
        inner = [(number[edges[e][0]], number[edges[e][1]]) for e in part_edges]
        drawn.append((_lay_out_part([sizes[n] for n in nodes], inner), nodes, part_edges))
    shelf_width = max([_SHELF, *(part.width for part, _, _ in drawn)])
    x = y = shelf = width = 0.0
    for part, nodes, part_edges in sorted(drawn, key=lambda d: -len(d[1])):
        if x and x + part.width > shelf_width:
            x, y, shelf = 0.0, y + shelf + _GAP_Y, 0.0
        for node, (px, py) in zip(nodes, part.places, strict=True):
            places[node] = (x + px, y + py)
        for edge, route in zip(part_edges, part.routes, strict=True):
            routes[edge] = [(x + px, y + py) for px, py in route]
        x += part.width + 2 * _GAP_X
        shelf = max(shelf, part.height)
        width = max(width, x - 2 * _GAP_X)
    return Layout(places, routes, width, y + shelf)


def _parts(count: int, edges: Sequence[tuple[int, int]]) -> list[tuple[list[int], list[int]]]:
    """Return the connected parts: their nodes and the numbers of their edges."""
    leader = list(range(count))

    def find(node: int) -> int:
        while leader[node] != node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    for source, target in edges:
        leader[find(source)] = find(target)
    parts: dict[int, tuple[list[int], list[int]]] = {}
    for node in range(count):
        parts.setdefault(find(node), ([], []))[0].append(node)
    for index, (source, _) in enumerate(edges):
        parts[find(source)][1].append(index)
    return list(parts.values())


def _lay_out_part(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Layout:
    count = len(sizes)
    layers = _layers(count, edges)
    widths = [w for w, _ in sizes]
    chains = _add_bends(layers, widths, edges)
    below: list[list[int]] = [[] for _ in widths]
    above: list[list[int]] = [[] for _ in widths]
    for upper, lower in dict.fromkeys(step for chain in chains for step in itertools.pairwise(chain)):
        below[upper].append(lower)
        above[lower].append(upper)
    rows: list[list[int]] = [[] for _ in range(max(layers) + 1)]
    for node, layer in enumerate(layers):
        rows[layer].append(node)
    _order(rows, above, below)
    x = _place(rows, widths, above, below, count)
    y, halves, height = _heights(rows, sizes, count)
    left = min(x[i] - widths[i] / 2 for i in range(len(widths)))
    x = [value - left for value in x]
    width = max(x[i] + widths[i] / 2 for i in range(len(widths)))
    places = [(x[i], y[layers[i]]) for i in range(count)]
    routes = []
    for chain in chains:
        first, last = chain[0], chain[-1]
        points = [(x[first], y[layers[first]] + sizes[first][1] / 2)]
        for i in chain[1:-1]:  # straight between the boxes of the layer
            middle, half = y[layers[i]], halves[layers[i]]
            points += [(x[i], middle - half), (x[i], middle + half)] if half else [(x[i], middle)]
        points.append((x[last], y[layers[last]] - sizes[last][1] / 2))
        routes.append(points)
    return Layout(places, routes, width, height)


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each node; edges that would close a cycle (an invalid graph) are ignored."""
    after: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for source, target in edges:
        if source != target:
            after[source].append(target)
            waiting[target] += 1
    layers = [0] * count
    ready = [i for i in range(count) if not waiting[i]]
    order: list[int] = []
    while ready:
        node = ready.pop()
        order.append(node)
        for target in after[node]:
            layers[target] = max(layers[target], layers[node] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    for node in reversed(order):  # as low as its readers allow, so that a weight is computed right above its use
        if after[node]:
            layers[node] = max(layers[node], min(layers[t] for t in after[node]) - 1)
    return layers


def _add_bends(layers: list[int], widths: list[float], edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the chain of nodes and bends of each edge; bends are appended to `layers` and `widths`.

    The long edges of one node share their bends, so a value that many nodes read is one line with branches.
    """
    spans = sum(max(0, layers[t] - layers[s] - 1) for s, t in edges)
    chains = []
    bends: dict[tuple[int, int], int] = {}
    for source, target in edges:
        chain = [source]
        if spans <= _MOST_BENDS:
            for layer in range(layers[source] + 1, layers[target]):
                if (source, layer) not in bends:
                    bends[source, layer] = len(layers)
                    layers.append(layer)
                    widths.append(_BEND)
                chain.append(bends[source, layer])
        chains.append([*chain, target])
    return chains


def _order(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
    position: dict[int, float] = {node: float(i) for row in rows for i, node in enumerate(row)}
    for sweep in range(_ORDER_SWEEPS):
        downwards = sweep % 2 == 0
        neighbours = above if downwards else below
        for row in rows if downwards else reversed(rows):
            keys = {
                n: sum(position[m] for m in neighbours[n]) / len(neighbours[n]) if neighbours[n] else position[n]
                for n in row
            }
            row.sort(key=keys.__getitem__)
            for index, node in enumerate(row):
                position[node] = float(index)


def _place(
    rows: list[list[int]], widths: list[float], above: list[list[int]], below: list[list[int]], count: int
) -> list[float]:
    """Return the horizontal positions; nodes from `count` on are bends, and long edges are kept straight."""
    x = [0.0] * len(widths)
    for row in rows:
        offset = 0.0
        for node in row:
            x[node] = offset + widths[node] / 2
            offset += widths[node] + _GAP_X
        for node in row:
            x[node] -= offset / 2
    pulls = [[(n, _PULL[(n >= count) + (node >= count)]) for n in above[node] + below[node]] for node in range(len(x))]
    total = [sum(pull for _, pull in near) for near in pulls]
    for sweep in range(max(_PLACE_SWEEPS, min(200, _PLACE_VISITS // len(widths)))):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [sum(x[n] * pull for n, pull in pulls[i]) / total[i] if pulls[i] else x[i] for i in row]
            for node, value in zip(row, _spread(wanted, [widths[n] for n in row]), strict=True):
                x[node] = value
    return x


def _spread(wanted: list[float], widths: list[float]) -> list[float]:
    """Return the positions nearest to the wanted ones (least squares) that keep the order and do not overlap.

    >>> _spread([0.0, 0.0], [20.0, 20.0])
    [-24.0, 24.0]
    """
    offsets = [0.0]
    for left, right in itertools.pairwise(widths):
        offsets.append(offsets[-1] + (left + right) / 2 + _GAP_X)
    blocks: list[tuple[float, int]] = []  # mean and size; merge neighbours that are in the wrong order
    for value, offset in zip(wanted, offsets, strict=False):
        mean, size = value - offset, 1
        while blocks and blocks[-1][0] > mean:
            other, other_size = blocks.pop()
            mean = (mean * size + other * other_size) / (size + other_size)
            size += other_size
        blocks.append((mean, size))
    flat = [mean for mean, size in blocks for _ in range(size)]
    return [value + offset for value, offset in zip(flat, offsets, strict=False)]


def _heights(
    rows: list[list[int]], sizes: Sequence[tuple[float, float]], count: int
) -> tuple[list[float], list[float], float]:
    """Return the middle of each layer, half its height, and the height of all."""
    y: list[float] = []
    halves: list[float] = []
    offset = 0.0
    for row in rows:
        height = max((sizes[n][1] for n in row if n < count), default=0.0)
        y.append(offset + height / 2)
        halves.append(height / 2)
        offset += height + _GAP_Y
    return y, halves, max(0.0, offset - _GAP_Y)
