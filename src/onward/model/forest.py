"""Read the trees of `TreeEnsemble`, `TreeEnsembleRegressor` and `TreeEnsembleClassifier` into one form.

Nodes and leaves have one numbering. A leaf points at itself, so that walking on changes nothing. `forest_problems`
reports attributes that contradict each other; `read_forest` reads those that do not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, LEAF = range(8)
_MODES = {
    "BRANCH_LEQ": LEQ, "BRANCH_LT": LT, "BRANCH_GTE": GTE, "BRANCH_GT": GT, "BRANCH_EQ": EQ, "BRANCH_NEQ": NEQ,
    "BRANCH_MEMBER": MEMBER, "LEAF": LEAF,
}  # fmt: skip
DEEPEST = 2048  # levels; ONNX Runtime 1.31 loads 5,000 and crashes at 20,000
TREES = ("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor")

Attributes = Mapping[str, Any]
Problem = tuple[str, str, str]  # what is wrong, what was found, what is needed


@dataclasses.dataclass
class Forest:
    """Trees as arrays over all nodes, leaves included."""

    modes: np.ndarray
    features: np.ndarray
    splits: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing_is_true: np.ndarray
    roots: np.ndarray
    sets: dict[int, np.ndarray]  # node -> the members that BRANCH_MEMBER compares with
    leaves: np.ndarray  # of each weight: its leaf
    targets: np.ndarray  # of each weight: its class or target
    count: int  # of classes or targets

    def depth(self) -> int:
        """Return the largest number of decisions on a way from a root to a leaf."""
        front, depth = self.roots, 0
        while True:
            front = front[self.modes[front] != LEAF]
            if not front.size:
                return depth
            front = np.concatenate([self.yes[front], self.no[front]])
            depth += 1

    def tree_of(self) -> np.ndarray:
        """Return the tree of each node; -1 for nodes that no root reaches."""
        found = np.full(len(self.modes), -1, np.int64)
        front, tree = self.roots, np.arange(len(self.roots))
        while front.size:
            found[front] = tree
            inner = self.modes[front] != LEAF
            front, tree = front[inner], tree[inner]
            front, tree = np.concatenate([self.yes[front], self.no[front]]), np.concatenate([tree, tree])
        return found


def weights_name(op_type: str, attributes: Attributes) -> str:
    """Return the attribute that holds the numbers of the leaves."""
    if op_type == "TreeEnsemble":
        return "leaf_weights"
    kind = "class" if op_type == "TreeEnsembleClassifier" else "target"
    tensor = f"{kind}_weights_as_tensor"
    return tensor if _has(attributes, tensor) else f"{kind}_weights"


def read_forest(op_type: str, attributes: Attributes) -> Forest:
    """Return the trees of a node without problems."""
    return _read_new(attributes) if op_type == "TreeEnsemble" else _read_old(op_type, attributes)


def forest_problems(op_type: str, attributes: Attributes) -> Iterator[Problem]:
    """Yield what is wrong with the attributes of a tree operator."""
    found = list(_problems_new(attributes) if op_type == "TreeEnsemble" else _problems_old(op_type, attributes))
    yield from found
    if not found:
        yield from _shape_problems(read_forest(op_type, attributes))


def _shape_problems(forest: Forest) -> Iterator[Problem]:
    """Yield whether the nodes make trees: each has one parent at most, and no root has one, so every way ends."""
    inner = np.flatnonzero(forest.modes != LEAF)
    children = np.concatenate([forest.yes[inner], forest.no[inner]])
    if np.unique(forest.roots).size != forest.roots.size:
        yield "two trees begin at one node", _few(_repeated(forest.roots)), "one root for each tree"
    is_inner = forest.modes[children] != LEAF  # two decisions may share a leaf
    repeated = _repeated(children[is_inner])
    if repeated.size:
        yield "nodes do not make a tree: some have two parents", f"node {_few(repeated)}", "one parent for each node"
    elif np.isin(forest.roots, children).any():
        yield "nodes do not make a tree: they make a circle", f"root {_few(forest.roots)}", "a root without a parent"
    elif (depth := forest.depth()) > DEEPEST:
        yield "a tree is too deep: runtimes that walk it by recursion crash", f"{depth} levels", f"at most {DEEPEST}"


def _few(numbers: np.ndarray) -> str:
    listed = ", ".join(str(int(n)) for n in numbers[:5])
    return f"{listed} and {len(numbers) - 5} more" if len(numbers) > 5 else listed


def _repeated(numbers: np.ndarray) -> np.ndarray:
    values, counts = np.unique(numbers, return_counts=True)
    return values[counts > 1]


def _has(attributes: Attributes, name: str) -> bool:
    value = attributes.get(name)
    return value is not None and np.size(value) > 0


def numbers(attributes: Attributes, name: str) -> np.ndarray:
    """Return an attribute of numbers, or its form as a tensor, flat."""
    tensor = attributes.get(f"{name}_as_tensor")
    if tensor is not None and np.size(tensor):
        return np.asarray(tensor).reshape(-1)
    value = attributes.get(name)
    if value is None:
        return np.zeros(0, np.float32)
    array = np.asarray(value).reshape(-1)
    return array.astype(np.float32) if isinstance(value, (list, tuple)) else array


def whole(attributes: Attributes, name: str) -> np.ndarray:
    """Return an attribute of integers."""
    value = attributes.get(name)
    return np.asarray([] if value is None else value, np.int64).reshape(-1)


def _is_real(name: str) -> bool:
    return name.endswith(("values", "weights", "splits"))


def _size(attributes: Attributes, name: str) -> int:
    value = attributes.get(name)
    return 0 if value is None else int(np.size(value))


def _lengths(attributes: Attributes, names: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Problem]:
    sizes = {n: numbers(attributes, n).size if _is_real(n) else _size(attributes, n) for n in names}
    sizes |= {n: np.size(attributes[n]) for n in optional if _has(attributes, n)}
    if len(set(sizes.values())) > 1 or not next(iter(sizes.values())):
        listed = ", ".join(f"{n} {size}" for n, size in sizes.items())
        yield (
            "the lists differ in length" if any(sizes.values()) else "the lists are empty",
            listed,
            (
                "one number for each node in each"
                if names[0].startswith("nodes")
                else "one number for each weight in each"
            ),
        )


# -- TreeEnsembleRegressor and TreeEnsembleClassifier ----------------------------------------------------------------

_NODES = ("nodes_nodeids", "nodes_treeids", "nodes_featureids", "nodes_values", "nodes_modes", "nodes_truenodeids",
          "nodes_falsenodeids")  # fmt: skip


def _kind(op_type: str) -> str:
    return "class" if op_type == "TreeEnsembleClassifier" else "target"


def _count(op_type: str, attributes: Attributes) -> int:
    if op_type != "TreeEnsembleClassifier":
        return int(attributes.get("n_targets") or 0)
    return np.size(attributes.get("classlabels_strings") or attributes.get("classlabels_int64s") or ())


def _problems_old(op_type: str, attributes: Attributes) -> Iterator[Problem]:
    kind = _kind(op_type)
    for name in ("nodes_values", "base_values", f"{kind}_weights", "nodes_hitrates"):
        if _has(attributes, name) and _has(attributes, f"{name}_as_tensor"):
            yield f"`{name}` and `{name}_as_tensor` are both there", "", "one of them"
    found = [
        *_lengths(attributes, _NODES, ("nodes_missing_value_tracks_true",)),
        *_lengths(attributes, [f"{kind}_{n}" for n in ("ids", "nodeids", "treeids", "weights")]),
    ]
    yield from found
    unknown = sorted({str(m) for m in attributes.get("nodes_modes") or ()} - {*_MODES} | {
        m for m in attributes.get("nodes_modes") or () if m == "BRANCH_MEMBER"})  # fmt: skip
    if unknown:
        yield (
            "unknown kinds of nodes",
            ", ".join(unknown[:5]),
            f"one of: {', '.join(m for m in _MODES if m != 'BRANCH_MEMBER')}",
        )
    count = _count(op_type, attributes)
    if kind == "class" and _has(attributes, "classlabels_strings") and _has(attributes, "classlabels_int64s"):
        yield "the classes have labels of text and of integers", "", "`classlabels_strings` or `classlabels_int64s`"
    if count < 1:
        needed = "the labels of the classes" if kind == "class" else "n_targets of 1 or more"
        yield f"there is no {kind}", str(count), needed
        return
    ids = whole(attributes, f"{kind}_ids")
    wrong = ids[(ids < 0) | (ids >= count)]
    if wrong.size:
        yield f"`{kind}_ids` are out of range", _few(wrong), f"numbers from 0 to {count - 1}"
    if found or unknown:
        return
    features = whole(attributes, "nodes_featureids")
    if (features < 0).any():
        yield "`nodes_featureids` are negative", _few(features[features < 0]), "the columns of the input"
    keys = _keys(attributes)
    if np.unique(keys, axis=0).shape[0] != keys.shape[0]:
        yield "nodes have the same tree and number", "", "a number of its own for each node of a tree"
        return
    inner = np.flatnonzero(_modes(attributes) != LEAF)
    known = {tuple(k) for k in keys.tolist()}
    trees = keys[:, 0]
    for name in ("nodes_truenodeids", "nodes_falsenodeids"):
        given = whole(attributes, name)[inner]
        lost = [n for t, n in zip(trees[inner].tolist(), given.tolist(), strict=True) if (t, n) not in known]
        if lost:
            yield f"`{name}` name nodes that do not exist", _few(np.array(lost)), "nodes of the same tree"
    pairs = zip(
        whole(attributes, f"{kind}_treeids").tolist(), whole(attributes, f"{kind}_nodeids").tolist(), strict=True
    )
    lost_leaves = [n for n in pairs if n not in known]
    if lost_leaves:
        found_text = ", ".join(f"tree {t} node {n}" for t, n in lost_leaves[:3])
        yield "weights belong to nodes that do not exist", found_text, "leaves of the trees"
    else:
        leaves = _old_leaves(kind, attributes)
        if (_modes(attributes)[leaves] != LEAF).any():
            return  # ONNX Runtime ignores the weights of inner nodes
        bare = np.setdiff1d(np.flatnonzero(_modes(attributes) == LEAF), leaves)
        if bare.size and kind == "target" and count == 1:
            yield "leaves have no weight", f"{len(bare)} leaves", "a weight for each leaf"
    base = len(numbers(attributes, "base_values"))
    if base not in (0, 1, count):
        yield "`base_values` do not fit", str(base), f"none, or one for each {kind} ({count})"


def _keys(attributes: Attributes) -> np.ndarray:
    return np.stack([whole(attributes, "nodes_treeids"), whole(attributes, "nodes_nodeids")], axis=1)


def _modes(attributes: Attributes) -> np.ndarray:
    return np.array([_MODES[str(m)] for m in attributes["nodes_modes"]], np.int64)


def _index(attributes: Attributes) -> dict[tuple[int, int], int]:
    return {(t, n): i for i, (t, n) in enumerate(_keys(attributes).tolist())}


def _old_leaves(kind: str, attributes: Attributes) -> np.ndarray:
    index = _index(attributes)
    pairs = zip(
        whole(attributes, f"{kind}_treeids").tolist(), whole(attributes, f"{kind}_nodeids").tolist(), strict=True
    )
    return np.array([index[p] for p in pairs], np.int64)


def _read_old(op_type: str, attributes: Attributes) -> Forest:
    kind, modes, index = _kind(op_type), _modes(attributes), _index(attributes)
    trees = whole(attributes, "nodes_treeids")
    own = np.arange(len(modes))
    yes, no = own.copy(), own.copy()
    for name, target in (("nodes_truenodeids", yes), ("nodes_falsenodeids", no)):
        given = whole(attributes, name)
        for i in np.flatnonzero(modes != LEAF).tolist():
            target[i] = index[int(trees[i]), int(given[i])]
    first = np.flatnonzero(np.diff(trees, prepend=trees[0] - 1))  # a tree begins where the number changes
    missing = whole(attributes, "nodes_missing_value_tracks_true")
    return Forest(
        modes, whole(attributes, "nodes_featureids"), numbers(attributes, "nodes_values"), yes, no,
        missing == 1 if missing.size else np.zeros(len(modes), bool), first, {},
        _old_leaves(kind, attributes), whole(attributes, f"{kind}_ids"), _count(op_type, attributes),
    )  # fmt: skip


# -- TreeEnsemble ----------------------------------------------------------------------------------------------------

_NEW_NODES = ("nodes_featureids", "nodes_splits", "nodes_modes", "nodes_truenodeids", "nodes_falsenodeids",
              "nodes_trueleafs", "nodes_falseleafs")  # fmt: skip


def _problems_new(attributes: Attributes) -> Iterator[Problem]:
    found = [
        *_lengths(attributes, _NEW_NODES, ("nodes_missing_value_tracks_true",)),
        *_lengths(attributes, ("leaf_targetids", "leaf_weights")),
    ]
    yield from found
    modes = whole(attributes, "nodes_modes")
    if ((modes < 0) | (modes > MEMBER)).any():
        wrong = modes[(modes < 0) | (modes > MEMBER)]
        yield "unknown kinds of nodes in `nodes_modes`", _few(wrong), "numbers from 0 to 6"
    count = int(attributes.get("n_targets") or 0)
    targets = whole(attributes, "leaf_targetids")
    if count < 1:
        yield "there is no target", str(count), "n_targets of 1 or more"
    elif ((targets < 0) | (targets >= count)).any():
        wrong = targets[(targets < 0) | (targets >= count)]
        yield "`leaf_targetids` are out of range", _few(wrong), f"numbers from 0 to {count - 1}"
    features = whole(attributes, "nodes_featureids")
    if (features < 0).any():
        yield "`nodes_featureids` are negative", _few(features[features < 0]), "the columns of the input"
    for name, least, most in (("aggregate_function", 0, 3), ("post_transform", 0, 4)):
        value = attributes.get(name)
        if value is not None and not least <= int(value) <= most:
            yield f"`{name}` is out of range", str(value), f"a number from {least} to {most}"
    members, delimiters = int((modes == MEMBER).sum()), _members(attributes)
    if members != len(delimiters):
        yield ("there is not one set of members for each node of kind 6", f"{len(delimiters)} sets, {members} nodes",
               "`membership_values` with NaN after each set")  # fmt: skip
    if found:
        return
    nodes, leaves = len(modes), len(targets)
    for child, leaf in (("nodes_truenodeids", "nodes_trueleafs"), ("nodes_falsenodeids", "nodes_falseleafs")):
        given, is_leaf = whole(attributes, child), whole(attributes, leaf) != 0
        wrong = given[(given < 0) | (given >= np.where(is_leaf, leaves, nodes))]
        if wrong.size:
            yield f"`{child}` are out of range", _few(wrong), f"one of {nodes} nodes, or of {leaves} leaves"
    roots = whole(attributes, "tree_roots")
    if not roots.size or ((roots < 0) | (roots >= nodes)).any():
        yield "`tree_roots` are out of range", _few(roots), f"numbers from 0 to {nodes - 1}"


def _members(attributes: Attributes) -> list[np.ndarray]:
    values = numbers(attributes, "membership_values")
    ends = np.flatnonzero(np.isnan(values.astype(np.float64))) if values.size else np.zeros(0, np.int64)
    starts = [0, *(ends[:-1] + 1).tolist()] if ends.size else []
    return [values[a:b] for a, b in zip(starts, ends.tolist(), strict=True)]


def _read_new(attributes: Attributes) -> Forest:
    modes = whole(attributes, "nodes_modes")
    nodes, leaves = len(modes), len(whole(attributes, "leaf_targetids"))
    own = np.arange(nodes, nodes + leaves)

    def child(name: str, leaf: str) -> np.ndarray:
        return np.concatenate([whole(attributes, name) + nodes * (whole(attributes, leaf) != 0), own])

    yes, no = child("nodes_truenodeids", "nodes_trueleafs"), child("nodes_falsenodeids", "nodes_falseleafs")
    splits = numbers(attributes, "nodes_splits")
    missing = whole(attributes, "nodes_missing_value_tracks_true")
    is_missing = missing == 1 if missing.size else np.zeros(nodes, bool)
    return Forest(
        np.concatenate([modes, np.full(leaves, LEAF)]),
        np.concatenate([whole(attributes, "nodes_featureids"), np.zeros(leaves, np.int64)]),
        np.concatenate([splits, np.zeros(leaves, splits.dtype)]), yes, no,
        np.concatenate([is_missing, np.zeros(leaves, bool)]), whole(attributes, "tree_roots"),
        dict(zip(np.flatnonzero(modes == MEMBER).tolist(), _members(attributes), strict=True)),
        own, whole(attributes, "leaf_targetids"), int(attributes["n_targets"]),
    )  # fmt: skip
