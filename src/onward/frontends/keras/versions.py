"""What Onward uses of Keras beyond its public interface: the only file that depends on the version of Keras."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras.src.backend import nn
from keras.src.backend.common import dtypes
from keras.src.saving import saving_lib

from onward import versions

VERSION: str = keras.__version__


def check_versions() -> None:
    """Raise unless the installed Keras is new enough."""
    versions.check({"keras": VERSION})


def is_seed(variable: Any) -> bool:
    """Return whether a variable is the state of a seed generator."""
    return bool(variable.path.rsplit("/", 1)[-1] == "seed_generator_state")


@contextlib.contextmanager
def keyed_draws(key: Any) -> Iterator[None]:
    """Let every seed generator give another key, derived from `key`, instead of its own seeds."""
    import jax

    generator = keras.random.SeedGenerator
    own, number = generator.next, itertools.count()

    def following(self: Any, ordered: bool = True) -> Any:
        return jax.random.key_data(jax.random.fold_in(key, next(number)))

    generator.next = following
    try:
        yield
    finally:
        generator.next = own


@contextlib.contextmanager
def doubles() -> Iterator[None]:
    """Let float64 be float64 where Keras is set to it.

    On every backend but TensorFlow, Keras computes means and a few other results in float32 even then, and JAX's own
    attention computes its softmax so.
    """
    if keras.config.floatx() != "float64":
        yield
        return
    table, own = dtypes.BIT64_TO_BIT32_DTYPE, dtypes.BIT64_TO_BIT32_DTYPE["float64"]
    attention = getattr(nn, "dot_product_attention", None)  # Keras 3.5 has none
    table["float64"] = "float64"
    if attention is not None:
        nn.dot_product_attention = _attention
    try:
        yield
    finally:
        table["float64"] = own
        if attention is not None:
            nn.dot_product_attention = attention


def _attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    scale: Any = None,
    is_causal: bool = False,
    **_: Any,
) -> Any:
    """Return softmax(scale Q Kᵀ + bias) V in the type of Q; arrays are [batch, length, heads, size]."""
    import jax
    import jax.numpy as jnp

    repeats = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(a, repeats, axis=2) if repeats > 1 else a for a in (key, value))
    scale = 1.0 / np.sqrt(query.shape[-1]) if scale is None else scale
    logits = jnp.einsum("btnh,bsnh->bnts", query, key) * jnp.asarray(scale, query.dtype)
    if bias is not None:
        logits = logits + bias
    if is_causal:
        causal = np.tri(logits.shape[-2], logits.shape[-1], dtype=bool)
        logits = jnp.where(causal, logits, np.float64(-1e30))
    if mask is not None:
        logits = jnp.where(mask, logits, np.float64(-1e30))
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(logits, axis=-1), value)


def build_all(model: Any, x: Any, y: Any, weights: Any) -> None:
    """Create the variables of losses, metrics and optimizer, as `train_on_batch` does before its first step."""
    model._symbolic_build(data_batch=(x, y, weights))


def loss_and_state(
    model: Any, params: Any, state: Any, x: Any, y: Any, weights: Any, *, training: bool = True
) -> tuple[Any, Any]:
    """Return the loss of a training step, without loss scaling, and the new non-trainable variables."""
    _, (loss, _, new, _) = model.compute_loss_and_updates(
        params,
        state,
        [v.value for v in model.metrics_variables],
        x,
        y,
        weights,
        training=training,
        optimizer_variables=[v.value for v in model.optimizer.variables],
    )
    return loss, new


def layers(model: Any) -> list[Any]:
    """Return the model, its layers, and the layers inside of them."""
    return list(model._flatten_layers())


def unbuilt(model: Any) -> list[Any]:
    """Return the layers whose weights do not exist yet.

    A layer that has no `build` of its own makes no weights there. Keras 3.5 does not build such layers inside others,
    such as the dropout of MultiHeadAttention, and no version builds those that are never called.
    """
    return [v for v in layers(model) if not v.built and type(v).build is not keras.layers.Layer.build]


def declared_inputs(model: Any) -> Any:
    """Return the symbolic inputs of a functional or Sequential model, structured as it takes them; else None."""
    declared = getattr(model, "inputs", None)
    if not declared:
        return None
    structure = getattr(model, "_inputs_struct", None)
    return structure if structure is not None else declared[0] if len(declared) == 1 else declared


def takes_training(model: Any) -> bool:
    """Return whether the model's `call` has the argument `training`."""
    return bool(model._call_has_training_arg)


def trained_by(optimizer: Any) -> list[Any]:
    """Return the variables that the optimizer was built for."""
    return list(getattr(optimizer, "inner_optimizer", optimizer)._trainable_variables)


def learning_rate(optimizer: Any) -> Any:
    """Return the variable that holds the learning rate; None where a schedule computes it, or there are several."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    rate = None if hasattr(inner, "optimizers") else inner._learning_rate
    return rate if isinstance(rate, keras.Variable) else None


def scales_loss(optimizer: Any) -> bool:
    """Return whether the optimizer multiplies the loss before it is differentiated."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or optimizer.loss_scale_factor is not None


def own_step(model: Any) -> list[str]:
    """Return the methods of a training step that the model's class writes itself."""
    names = ("train_step", "make_train_function", "train_on_batch")
    return [n for n in names if getattr(type(model), n) is not getattr(keras.Model, n)]


def save(model: Any) -> bytes:
    """Return the `.keras` file of a model."""
    stream = io.BytesIO()
    saving_lib.save_model(model, stream)
    return stream.getvalue()


def load(data: bytes) -> Any:
    """Return the model of a `.keras` file; Python code in it is not run."""
    return saving_lib.load_model(io.BytesIO(_for_every_backend(data)), safe_mode=True)


def _for_every_backend(data: bytes) -> bytes:
    """Return a `.keras` file whose optimizer is that of every backend: Keras on torch names classes of its own."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
    except zipfile.BadZipFile:
        return data  # which Keras refuses with its own words
    config = files.get("config.json", b"")
    portable = re.sub(rb"keras\.src\.backend\.torch\.optimizers\.\w+", b"keras.optimizers", config)
    if portable == config:
        return data
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in (files | {"config.json": portable}).items():
            archive.writestr(name, content)
    return stream.getvalue()


def custom_objects() -> list[Any]:
    """Return the classes and functions that are registered with Keras."""
    return list(keras.saving.get_custom_objects().values())
