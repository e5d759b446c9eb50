"""Keras optimizers: `stateless_apply` is traced with the current state. There is no table of optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import keras
import numpy as np

from onward.errors import ArgumentError, Diagnostic
from onward.frontends.jax.optimizers import Traced
from onward.frontends.jax.trees import Leaf, Tree
from onward.frontends.keras import versions

A247 = "A247"


class KerasOptimizer(Traced):
    """The optimizer of a compiled model, built for `variables`, with its current state.

    `names` are the names of its variables in the file. Unless it has `begun`, its state is that before the first step.
    """

    def __init__(
        self, optimizer: Any, variables: Sequence[Any], params: Tree, names: Sequence[str], *, begun: bool
    ) -> None:
        self.optimizer = optimizer
        self.name = f"keras.{type(optimizer).__name__}"
        self.params = params
        paths = [_path(v, variables, params) for v in optimizer.variables]
        self.state = _tree(names, paths, [v.value for v in optimizer.variables])
        self.fresh = _tree(names, paths, self._fresh(variables)) if begun else self.state
        rate = versions.learning_rate(optimizer)
        self.rates = frozenset(
            name for name, v in zip(names, optimizer.variables, strict=True) if rate is not None and v is rate
        )

    def step(self, gradients: Any, state: Any, params: Any, value: Any) -> tuple[Any, Any]:
        """Return the new parameters and the new state; gradients of the scaled loss are made of the given ones."""
        with versions.doubles():
            return self._step(gradients, state, params, value)

    def _step(self, gradients: Any, state: Any, params: Any, value: Any) -> tuple[Any, Any]:
        optimizer = self.optimizer
        if versions.scales_loss(optimizer):
            mapping = list(zip(optimizer.variables, state, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                scale = optimizer.scale_loss(jax.numpy.ones((), value.dtype))
            gradients = [g * scale for g in gradients]
        new_params, new_state = optimizer.stateless_apply(list(state), list(gradients), list(params))
        return list(new_params), list(new_state)

    def refuse(self, error: Exception, name: str) -> ArgumentError:
        """Return what to raise where a step cannot be traced."""
        line = next((text for text in str(error).splitlines() if text.strip()), "")
        return ArgumentError(
            Diagnostic(
                A247,
                f"the optimizer's `{name}` cannot be traced: {type(error).__name__}: {line[:200]}",
                place=f"optimizer `{self.optimizer.name}`",
                hint="write it with keras.ops, as the optimizers of Keras are",
            )
        )

    def _fresh(self, variables: Sequence[Any]) -> list[Any]:
        """Return the state of the same optimizer before its first step."""
        try:
            fresh = type(self.optimizer).from_config(self.optimizer.get_config())
            fresh.build(list(variables))
        except Exception as error:  # an optimizer may raise any type
            raise self.refuse(error, "from_config") from error
        return [v.value for v in fresh.variables]


def _path(variable: Any, variables: Sequence[Any], params: Tree) -> str:
    """Return what a variable is, then the path of the trained variable it belongs to: `velocity.dense/kernel`."""
    name = variable.path.rsplit("/", 1)[-1]
    owners = [
        (len(v.path), name[len(v.path) + 1 :], leaf.path)
        for v, leaf in zip(variables, params.leaves, strict=True)
        if name.startswith(v.path.replace("/", "_") + "_")
    ]
    if not owners:
        return str(name)
    _, slot, path = max(owners)
    return f"{slot}.{path}"


def _tree(names: Sequence[str], paths: Sequence[str], values: Sequence[Any]) -> Tree:
    arrays = [jax.numpy.asarray(v) for v in values]
    leaves = [
        Leaf(name, path, np.asarray(a), jax.ShapeDtypeStruct(a.shape, a.dtype))
        for name, path, a in zip(names, paths, arrays, strict=True)
    ]
    return Tree(leaves, jax.tree.structure(arrays))
