"""Trees of arrays: their leaves with names, as initializers and inputs have them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np

from onward.errors import ArgumentError, Diagnostic
from onward.frontends.jaxpr import versions
from onward.frontends.jaxpr.frame import element_type

A223 = "A223"


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of a tree: its name, its path in the tree, and its value (None for a random key)."""

    name: str
    path: str
    value: Any
    struct: Any

    @property
    def is_key(self) -> bool:
        """Whether it is a typed random key, which a graph does not hold."""
        return versions.is_key(self.struct)


@dataclasses.dataclass
class Tree:
    """The leaves of a tree, in order, and its structure."""

    leaves: list[Leaf]
    structure: Any

    @property
    def structs(self) -> Any:
        """The tree with shapes instead of arrays."""
        return jax.tree.unflatten(self.structure, [leaf.struct for leaf in self.leaves])

    @property
    def values(self) -> Any:
        """The tree itself, with its arrays."""
        return jax.tree.unflatten(self.structure, [leaf.value for leaf in self.leaves])


def read_tree(
    tree: Any,
    what: str,
    place: str,
    taken: Collection[str] = (),
    struct: Callable[[Any], Any] | None = None,
    prefix: str = "",
) -> Tree:
    """Return the leaves of `tree` with unique names: their paths, after `what` where a path alone is no name.

    Raises:
        ArgumentError: lists every leaf that is not an array.
    """
    found, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves: list[Leaf] = []
    problems: list[Diagnostic] = []
    used = set(taken)
    for path, value in found:
        text = jax.tree_util.keystr(path, simple=True, separator=".")
        array = _array(value)
        if array is None:
            problems.append(
                Diagnostic(
                    A223,
                    f"`{text or what}` is not an array",
                    place=place,
                    found=f"a {type(value).__name__}: {str(value)[:80]}",
                    hint="split arrays from the rest first: equinox.partition(model, equinox.is_inexact_array), "
                    "flax.nnx.split(model)",
                )
            )
            continue
        if (reason := _unreadable(array)) != "":
            problems.append(Diagnostic(A223, f"the array `{text or what}` {reason}", place=place))
            continue
        name = f"{prefix}{text}" if text else what
        if name in used or name[0].isdigit() or (not prefix and text == ""):
            name = f"{what}.{text}" if text else what
        count = 2
        while name in used:
            name, count = f"{what}.{text}_{count}", count + 1
        used.add(name)
        shape = jax.ShapeDtypeStruct(array.shape, array.dtype)
        leaves.append(Leaf(name, text, array, shape if struct is None else struct(array)))
    if problems:
        raise ArgumentError(problems)
    return Tree(leaves, structure)


def _unreadable(array: Any) -> str:
    """Return why the numbers of an array cannot be read, or ""."""
    if isinstance(array, jax.core.Tracer):
        return "is being traced: call onward outside of jax.jit, jax.grad and the like"
    if array.is_deleted():
        return "was donated to a jitted function and is gone: pass what that function returned"
    return ""


def _array(value: Any) -> Any:
    """Return a leaf as an array of JAX; None if it is not one, or has a type that ONNX lacks."""
    try:
        array = jax.numpy.asarray(value)
    except (TypeError, ValueError):
        return None
    if versions.is_key(array):
        return array
    try:
        element_type(array.dtype)
    except (TypeError, ValueError, KeyError):
        return None
    return None if np.issubdtype(array.dtype, np.complexfloating) else array
