"""The JAX backend, and `to_jax`: convert a training model to a pure function. JAX is imported on first use."""

from __future__ import annotations

import inspect
from typing import Any

from onward import versions
from onward.arguments import check_names
from onward.backends.onnx_backend import OnnxBackend
from onward.backends.onnx_backend import check_model as check_model
from onward.errors import require_extra

BACKEND = OnnxBackend("jax")
"""ONNX's interface: `onnx.backend.test.BackendTest(onward.backends.jax, __name__)` runs ONNX's tests."""
prepare, run_model, run_node = BACKEND.prepare, BACKEND.run_model, BACKEND.run_node
supports_device, is_compatible = BACKEND.supports_device, BACKEND.is_compatible
prepare_training = BACKEND.prepare_training


def to_jax(model: Any, **options: Any) -> Any:
    """Return (function, params, state): `model` as a pure function of its weights.

    `function(params, state, batch, key)` returns (loss, new state). It works under `jax.jit`, `jax.grad`, `jax.vmap`
    and `jax.shard_map`. `params` are the trained weights and `state` the rest (frozen weights, running statistics,
    counters), both dicts by ONNX name. `batch` holds inputs and targets, by name or in order. `key` decides the dropout
    masks: a number, or a key of `jax.random`. `function.predict(params, state, inputs)` runs the inference graph.

    Args:
        model: a `TrainingModel`, a `ModelProto`, or a path.
        options: `entry="name"` chooses the loss of a model with several. `gradients="graph"` differentiates with the
            lowered Gradient node of the file instead of JAX.

    Raises:
        ArgumentError: the model has no training information, or several losses and no `entry`.
        BackendError: lists all operators that the JAX backend lacks; or the model needs data to know a size or a number
            of steps, which JAX does not have while it traces.
    """
    versions.check(installed_jax("onward.to_jax"))
    from onward.backends.jax.function import convert

    check_names("option of `to_jax`", options, list(inspect.signature(convert).parameters)[1:])
    return convert(model, **options)


def installed_jax(purpose: str) -> dict[str, str]:
    """Return the version of JAX for `onward.versions.check`; raise an error that names `purpose` without JAX."""
    try:
        import jax
    except ModuleNotFoundError as error:
        if error.name != "jax":
            raise
        raise require_extra("jax", "jax", purpose) from error
    return {"jax": jax.__version__}
