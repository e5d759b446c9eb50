"""The example batch: what the user gave, or arrays made up from the shapes of the model's inputs and its losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import keras
import numpy as np

from onward.errors import A101, ArgumentError, Diagnostic
from onward.frontends.keras import versions
from onward.frontends.keras.checks import A240

SIZE = 3


def example_of(
    model: Any, example: tuple[Any, Any], sample_weight: Any, outputs_of: Callable[[Any], Any]
) -> tuple[Any, Any, Any]:
    """Return inputs, targets and weights of the samples as arrays; a part that does not exist is None.

    `outputs_of` returns the shapes of the model's outputs for some inputs.
    """
    given, targets = example
    inputs = _inputs(model) if given is None else arrays(given, "example_inputs")
    size = next((int(a.shape[0]) for a in jax.tree.leaves(inputs) if a.ndim), SIZE)
    made = _targets(model, outputs_of(inputs)) if targets is None else arrays(targets, "example_targets")
    if sample_weight is False or sample_weight is None:
        return inputs, made, None
    if sample_weight is True:
        one = np.linspace(0.5, 1.5, size, dtype=keras.config.floatx())
        weights = dict.fromkeys(made, one) if isinstance(made, dict) else [one for _ in made] if _several(made) else one
        return inputs, made, arrays(weights, "sample_weight")
    return inputs, made, arrays(sample_weight, "sample_weight")


def arrays(tree: Any, place: str) -> Any:
    """Return a tree of arrays of JAX; floating-point numbers have the type that Keras is set to, as in `fit`."""

    def convert(leaf: Any) -> Any:
        array = np.asarray(leaf)
        if array.dtype.kind not in "fiub":
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "an example that is not numbers",
                    place=f"{place}=",
                    found=f"an array of {array.dtype.name}" if array.dtype.kind != "O" else f"a {type(leaf).__name__}",
                    needed="arrays, or a list or dict of arrays, as train_on_batch takes them",
                    hint="texts become numbers before the model: apply the preprocessing layers to the data first",
                )
            )
        return jax.numpy.asarray(array.astype(keras.config.floatx()) if array.dtype.kind == "f" else array)

    return jax.tree.map(convert, tree)


def fixed_size(model: Any) -> bool:
    """Return whether the model was built for one batch size only."""
    shapes = [tuple(t.shape) for t in getattr(model, "inputs", None) or []]
    return any(shape and shape[0] is not None for shape in shapes)


def _several(tree: Any) -> bool:
    return isinstance(tree, list | tuple)


def _inputs(model: Any) -> Any:
    declared = getattr(model, "inputs", None)
    if not declared:
        raise ArgumentError(
            Diagnostic(
                A240,
                "the model does not say which inputs it takes",
                place=f"model `{model.name}`",
                found=f"a {type(model).__qualname__}, which is neither Sequential nor functional",
                hint="pass example_inputs= and example_targets=",
            )
        )
    open_ended = [t.name for t in declared if None in tuple(t.shape)[1:]]
    if open_ended:
        raise ArgumentError(
            Diagnostic(
                A240,
                f"the size of input {', '.join(f'`{n}`' for n in open_ended)} is not known",
                place=f"model `{model.name}`",
                found=", ".join(str(tuple(t.shape)) for t in declared),
                hint="pass example_inputs=: only the batch size stays free",
            )
        )
    random = np.random.RandomState(0)

    def made(tensor: Any) -> Any:
        shape = tuple(SIZE if d is None else d for d in tensor.shape)
        if "int" in tensor.dtype or tensor.dtype == "bool":  # 0 and 1 are indices into every table
            return random.randint(0, 2, shape).astype(tensor.dtype)
        return random.uniform(-1.0, 1.0, shape)

    return arrays(keras.tree.map_structure(made, versions.declared_inputs(model)), "example_inputs")


def _targets(model: Any, outputs: Any) -> Any:
    """Return targets that fit the outputs and losses."""
    loss = model.loss
    if loss is None:
        return None
    if isinstance(loss, Mapping):
        by_name = outputs
        if not isinstance(outputs, dict):
            by_name = dict(zip(model.output_names, jax.tree.leaves(outputs), strict=True))
        return {k: _target(model, by_name[k], one) for k, one in loss.items() if one is not None and k in by_name}
    if isinstance(loss, list | tuple):
        leaves = jax.tree.leaves(outputs)
        if len(leaves) == 1 and len(loss) == 1:
            return _target(model, leaves[0], loss[0])
        return [_target(model, o, one) for o, one in zip(leaves, loss, strict=True)]
    return jax.tree.map(lambda output: _target(model, output, loss), outputs)


def _target(model: Any, output: Any, loss: Any) -> Any:
    name = loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", "")
    name = str(name).lower()
    if "ctc" in name:
        raise ArgumentError(
            Diagnostic(
                A240,
                f"targets of the loss `{name}` cannot be made up",
                place=f"model `{model.name}`",
                hint="pass example_inputs= and example_targets=",
            )
        )
    if "sparse" in name:
        shape, classes = output.shape[:-1], output.shape[-1]
        return jax.numpy.asarray(np.arange(math.prod(shape)).reshape(shape) % classes, "int32")
    # Positive numbers whose sum is 1 over the classes: every other loss takes them.
    random = np.random.RandomState(1).uniform(0.1, 0.9, output.shape)
    last = random.shape[-1] if random.ndim > 1 else 1
    return jax.numpy.asarray(random / random.sum(-1, keepdims=True) if last > 1 else random, keras.config.floatx())
