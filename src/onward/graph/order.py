"""Orders of execution that need little memory.

A node is a number here, and `makers[n]` are the nodes whose results node n reads. The nodes are numbered in some order
in which each comes after its makers.
"""

from __future__ import annotations

from collections.abc import Sequence

Makers = Sequence[Sequence[int]]


def by_depth(makers: Makers) -> list[int]:
    """Return the nodes sorted by their depth, and behind them those that nothing reads, the deepest first.

    What leads to one result only, as from the gradient of a layer's output to that of its kernel, adds no depth.
    """
    many = _reach_several(makers)
    depth: list[tuple[int, int]] = []
    for node, read in enumerate(makers):
        shared, own = max((depth[maker] for maker in read), default=(0, 0))
        depth.append((shared + 1, 0) if many[node] else (shared, own + 1))
    is_read = [False] * len(makers)
    for read in makers:
        for maker in read:
            is_read[maker] = True
    inner = sorted((n for n in range(len(makers)) if is_read[n]), key=depth.__getitem__)
    last = sorted((n for n in range(len(makers)) if not is_read[n]), key=depth.__getitem__, reverse=True)
    return inner + last


def backwards(makers: Makers, order: Sequence[int]) -> list[int]:
    """Return the order in which ONNX Runtime executes nodes that are in this order in the file.

    It goes back from the nodes that nothing reads, the last one first, and from each node to those that it reads, again
    the last one first. A node runs when all that it reads has run.
    """
    place = [0] * len(order)
    for position, node in enumerate(order):
        place[node] = position
    is_read = {maker for read in makers for maker in read}
    stack = [node for node in order if node not in is_read]
    seen = [False] * len(order)
    done: list[int] = []
    while stack:
        node = stack.pop()
        if node < 0:
            done.append(~node)
        elif not seen[node]:
            seen[node] = True
            stack.append(~node)
            stack += sorted((m for m in makers[node] if not seen[m]), key=place.__getitem__)
    return done


def _reach_several(makers: Makers) -> list[bool]:
    """Return for each node whether several nodes that nothing reads can be reached from it."""
    several = [False] * len(makers)
    only = [-1] * len(makers)
    for node in reversed(range(len(makers))):
        if only[node] < 0:
            only[node] = node
        end = only[node]
        for maker in makers[node]:
            if only[maker] < 0:
                only[maker] = end
            if several[node] or only[maker] != end:
                several[maker] = True
    return several
