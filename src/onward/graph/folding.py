"""Fold a large graph into a tree of parts, so that each level is small enough to be read at once.

The modules that PyTorch's exporter notes at each node, else names of nodes with a path (`/layer1/conv/Conv`,
`encoder.layer.3.add`), else those of their weights (`layer1.0.conv1.weight`), give the parts that the author of the
network meant. Without names, or inside a part that is still large, sequences of operators that repeat become blocks,
and what is left is cut where the fewest values cross. Each part of a sequence is a run of the topological order, so no
cycle arises.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import onnx_ir as ir

SMALL = 48  # nodes that are drawn as they are
_MOST = 14  # parts of one level
_ROOMY = 12  # parts that are easy to read at once
_LONGEST = 200  # nodes of a block that repeats
_FEWEST = 0.6  # share of the nodes that must have a path
_WORTH = 4  # nodes of a module that is worth a part
_SCOPES = "pkg.torch.onnx.name_scopes"
_HEAVY = ("Conv", "MatMul", "Gemm", "LSTM", "GRU", "Attention")  # they do most of the work


@dataclasses.dataclass(frozen=True)
class Fold:
    """A part of a graph: nodes, and parts of them in their turn."""

    title: str
    items: tuple[Item, ...]

    @property
    def nodes(self) -> list[ir.Node]:
        """All nodes of the part."""
        return [node for item in self.items for node in nodes_of(item)]


Item = ir.Node | Fold


def nodes_of(item: Item) -> list[ir.Node]:
    """Return the nodes of a part, or the node itself."""
    return item.nodes if isinstance(item, Fold) else [item]


def fold(nodes: Sequence[ir.Node]) -> list[Item]:
    """Return the top level of the tree: the nodes themselves if they are few."""
    if len(nodes) <= SMALL:
        return list(nodes)
    for paths in (_scopes(nodes), _paths(nodes), _paths_of_weights(nodes)):
        if sum(bool(p) for p in paths.values()) >= _FEWEST * len(nodes):
            return _opened(_at_most(_modules(nodes, paths, 0)))
    return _opened(_at_most(list(nodes)))


def _opened(items: list[Item]) -> list[Item]:
    """Return the items with the part that holds most of the graph replaced by what is in it, while there is room."""
    largest = max((i for i in items if isinstance(i, Fold)), key=lambda i: len(i.nodes), default=None)
    total = sum(len(nodes_of(i)) for i in items)
    if largest is None or 2 * len(largest.nodes) < total or len(items) - 1 + len(largest.items) > _ROOMY:
        return items
    place = items.index(largest)
    return _opened([*items[:place], *largest.items, *items[place + 1 :]])


# ------------------------------------------------------------------ by name


def _scopes(nodes: Sequence[ir.Node]) -> dict[ir.Node, tuple[str, ...]]:
    """Return the module of each node as PyTorch's exporter notes it: `['', 'blocks.0', 'blocks.0.attn', 'linear']`."""
    noted = {node: scopes_of(node) for node in nodes}
    return {node: tuple(scopes[-2].split(".")) if len(scopes) > 2 else () for node, scopes in noted.items()}


def scopes_of(node: ir.Node) -> list[str]:
    """Return the modules that a node is in, the outermost first, and its name, as PyTorch's exporter notes them."""
    return re.findall(r"'([^']*)'", node.metadata_props.get(_SCOPES, ""))


def _paths(nodes: Sequence[ir.Node]) -> dict[ir.Node, tuple[str, ...]]:
    """Return the path of each node; one without a name is where its readers are."""
    paths: dict[ir.Node, tuple[str, ...]] = {}
    for node in reversed(nodes):
        path = _path(node.name or "", node.op_type)
        if not path:
            readers = [paths[use.node] for v in node.outputs for use in v.uses() if paths.get(use.node)]
            path = _common(readers) if readers else ()
        paths[node] = path
    return paths


def _paths_of_weights(nodes: Sequence[ir.Node]) -> dict[ir.Node, tuple[str, ...]]:
    """Return the path of each node by the names of its weights; one without weights is where its last input is made.

    A node that reads nothing with a path, such as a constant, is where its readers are.
    """
    paths: dict[ir.Node, tuple[str, ...]] = {}
    place = {node: i for i, node in enumerate(nodes)}
    weighted = set()
    for node in nodes:
        weights = [v.name or "" for v in node.inputs if v is not None and v.is_initializer()]
        named = [p for name in weights if (p := _path(name, ""))]
        makers = [n for v in node.inputs if v is not None and (n := v.producer()) in paths]
        if named:
            paths[node] = named[0]
            weighted.add(node)
        elif makers:
            last = max(makers, key=lambda n: place[n])
            paths[node] = paths[last][:-1] if last in weighted else paths[last]  # beside the layer, not in it
        else:
            paths[node] = ()
    for node in reversed(nodes):
        readers = [paths[use.node] for v in node.outputs for use in v.uses() if paths.get(use.node)]
        if not paths[node] and readers:
            paths[node] = _common(readers)
    return paths


def _path(name: str, op_type: str) -> tuple[str, ...]:
    """Return the modules in a node's name, without the node itself.

    >>> _path("/layer1/layer1.0/conv1/Conv", "Conv"), _path("encoder.layer.3.add", "Add"), _path("Conv.7", "Conv")
    (('layer1', 'layer1.0', 'conv1'), ('encoder', 'layer', '3'), ())
    """
    parts = name.strip("/").split("/") if "/" in name else name.split(".")
    path = [p for p in parts[:-1] if p]
    return tuple(path[:-1] if path and path[-1] == op_type else path)  # Conv.7 is a number, not a module


def _common(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    first, last = min(paths), max(paths)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]


def _modules(nodes: Sequence[ir.Node], paths: dict[ir.Node, tuple[str, ...]], depth: int) -> list[Item]:
    """Return one part for each module at this depth, in the order of their first nodes."""
    groups: dict[object, list[ir.Node]] = {}
    for node in nodes:
        path = paths[node]
        groups.setdefault(path[depth] if len(path) > depth else node, []).append(node)
    if len(groups) == 1 and len(nodes) > 1:  # a module around everything says nothing
        return _modules(nodes, paths, depth + 1)
    items: list[Item] = []
    for name, members in groups.items():
        if len(members) < _WORTH:
            items += members
        else:
            inner = _modules(members, paths, depth + 1)
            title = f"{paths[members[0]][depth - 1]}.{name}" if depth and str(name).isdigit() else str(name)
            items.append(Fold(title, tuple(_at_most(inner) if len(members) > SMALL else inner)))
    return items


# ------------------------------------------------------------------ by repetition


def _at_most(items: list[Item]) -> list[Item]:
    """Return few items: blocks that repeat are folded, and the rest is cut into parts."""
    if len(items) <= _MOST:
        return items
    found = list(_repeated(items))
    if len(found) > _MOST:
        found = [Fold(f"{len(f)} × block", tuple(f)) if len(f) > 1 else f[0] for f in _runs(found)]
    return _parts(found) if len(found) > _MOST else found


def _repeated(items: list[Item]) -> Iterator[Item]:
    """Yield the items with each repeated sequence as blocks."""
    kinds = [_kind(item) for item in items]
    best = _best_repeat(kinds, SMALL) or _best_repeat(kinds, _LONGEST)
    if best is None:
        yield from items
        return
    start, period, count = best
    yield from _repeated(items[:start])
    for number in range(count):
        part = items[start + number * period : start + (number + 1) * period]
        inner = part if len(part) <= SMALL else _at_most(part)
        yield part[0] if period == 1 else Fold(f"Block {number + 1} of {count}", tuple(inner))
    yield from _repeated(items[start + count * period :])


def _kind(item: Item) -> str:
    if isinstance(item, ir.Node):
        return item.op_type
    return "(" + " ".join(n.op_type for n in item.nodes) + ")"


def _best_repeat(kinds: Sequence[str], longest: int = SMALL) -> tuple[int, int, int] | None:
    """Return (start, length, count) of the repetition that covers the most, the shortest block of equals.

    >>> _best_repeat("x abc abc abc y".split(" ")), _best_repeat([*"pq", *"abc" * 4, "z"]), _best_repeat([*"abcd"])
    (None, (2, 3, 4), None)
    """
    best, covered = None, 7  # fewer are not worth a fold
    for period in range(3, min(longest, len(kinds) // 2) + 1):
        run = 0
        for i in range(len(kinds) - period + 1):
            same = i + period < len(kinds) and kinds[i] == kinds[i + period]
            if same:
                run += 1
                continue
            count = run // period + 1
            if count > 1 and count * period > covered:
                best, covered = (i - run, period, count), count * period
            run = 0
    return best


def _runs(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Yield the blocks of one repetition together, and each other item as a part of its own."""
    run: list[Item] = []
    for item in items:
        block = isinstance(item, Fold) and re.fullmatch(r"Block \d+ of \d+", item.title)
        if run and not (isinstance(item, Fold) and block and not item.title.startswith("Block 1 of")):
            yield run
            run = []
        run.append(item)
        if not block:
            yield run
            run = []
    if run:
        yield run


# ------------------------------------------------------------------ by size


def _parts(items: list[Item]) -> list[Item]:
    """Cut a sequence into parts of about the same size, where the fewest values cross."""
    crossing = _crossing(items)
    size = -(-len(items) // (_MOST - 2))
    slices: list[list[Item]] = []
    start = 0
    while start < len(items):
        low, high = start + max(1, size * 2 // 3), min(len(items), start + size * 4 // 3 + 1)
        end = len(items) if high >= len(items) else min(range(low, high + 1), key=lambda i: (crossing[i], -i))
        if slices and sum(len(nodes_of(i)) for i in slices[-1] + items[start:end]) <= SMALL // 2:
            slices[-1] += items[start:end]  # two small parts are one
        else:
            slices.append(items[start:end])
        start = end
    return [
        part[0] if len(part) == 1 else Fold(_span(part), tuple(part if len(part) <= SMALL else _at_most(part)))
        for part in slices
    ]


def _span(part: Sequence[Item]) -> str:
    """Return the title of a part: the modules from the first to the last, or what is in it."""
    named = [i.title for i in part if isinstance(i, Fold) and not re.match(r"Block \d|\d+ ", i.title)]
    if not named:
        return _contents([node for item in part for node in nodes_of(item)])
    return named[0] if len(named) == 1 else f"{named[0]} … {named[-1]}"


def _crossing(items: Sequence[Item]) -> list[int]:
    """Return, for each place between two items, how many values are made before it and read after it."""
    where = {node: i for i, item in enumerate(items) for node in nodes_of(item)}
    change: Counter[int] = Counter()
    for node, place in where.items():
        for value in node.outputs:
            last = max((where.get(use.node, -1) for use in value.uses()), default=-1)
            if last > place:
                change[place + 1] += 1
                change[last + 1] -= 1
    found, open_values = [], 0
    for i in range(len(items) + 1):
        open_values += change[i]
        found.append(open_values)
    return found


def _contents(nodes: Sequence[ir.Node]) -> str:
    """Return the operators that do most of the work, with their numbers: `12 Conv, 24 Mul, 22 Add`."""
    counts = Counter(n.op_type for n in nodes)
    if len(counts) > 1:
        del counts["Constant"]  # which says nothing
    heavy = [op for op in _HEAVY if counts[op]]
    rest = [op for op, _ in counts.most_common() if op not in heavy]
    return ", ".join(f"{counts[op]} {op}" for op in [*heavy, *rest][:3])


def describe(part: Fold) -> str:
    """Return what a closed part says about its inside beside its title; equal parts of it are described once."""
    parts = [item for item in part.items if isinstance(item, Fold)]
    if len(parts) > 1 and len(parts) == len(part.items) and len({_kind(p) for p in parts}) == 1:
        return f"{len(parts)} × ({_contents(parts[0].nodes)})"
    text = _contents(part.nodes)
    return "" if text == part.title else text
