"""The example batch: how it is passed to the function, the shapes that are traced, and a batch of another size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from onward.errors import A101, ArgumentError, Diagnostic
from onward.frontends.tensorflow.source import Source

_MADE_UP = 4  # the batch size of an example that is made up


def read_inputs(source: Source, given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the example as positional and keyword arguments of tensors.

    Raises:
        ArgumentError: there is none and the function does not declare what it takes, or it holds no tensors.
    """
    if given is None:
        return _made_up(source)
    if isinstance(given, Mapping) and (source.by_name or set(given) <= set(source.parameters)):
        args: tuple[Any, ...] = ()
        kwargs = dict(given)
    else:
        args, kwargs = given if isinstance(given, tuple) else (given,), {}
    if source.by_name and args and source.signature is not None:
        kwargs = dict(zip(source.signature[1], args, strict=False))
        args = ()
    args, kwargs = tensors((args, kwargs), "example_inputs=")
    return args, kwargs


def tensors(structure: Any, place: str) -> Any:
    """Return a structure of arrays as one of tensors."""
    try:
        return tf.nest.map_structure(tf.convert_to_tensor, structure)
    except (TypeError, ValueError) as error:
        line = next((text for text in str(error).splitlines() if text.strip()), "")
        raise ArgumentError(
            Diagnostic(A101, f"the example is not made of tensors: {line[:200]}", place=place, needed="arrays")
        ) from error


def _made_up(source: Source) -> tuple[tuple[Any, ...], dict[str, Any]]:
    leaves = [] if source.signature is None else tf.nest.flatten(source.signature)
    unknown = [s for s in leaves if s.shape.rank is None or any(d is None for d in s.shape.as_list()[1:])]
    if not leaves or unknown:
        raise ArgumentError(
            Diagnostic(
                A101,
                "an example batch is needed",
                place="example_inputs=",
                found=f"{source.name} declares {unknown[0] if unknown else 'no input_signature'}",
                needed="a tensor, a tuple of positional inputs, or a dict of named ones",
            )
        )
    random = np.random.RandomState(0)

    def one(spec: Any) -> Any:
        shape = [_MADE_UP if d is None else d for d in spec.shape.as_list()]
        values = random.randn(*shape) if spec.dtype.is_floating else np.zeros(shape)
        return tf.constant(np.asarray(values).astype(spec.dtype.as_numpy_dtype))

    args, kwargs = tf.nest.map_structure(one, source.signature)
    return tuple(args), dict(kwargs)


def batch_size(structure: Any) -> int | None:
    """Return the first dimension of the first tensor that has one."""
    return next((int(t.shape[0]) for t in tf.nest.flatten(structure) if t.shape.rank), None)


def is_free(source: Source, dynamic: bool) -> bool:
    """Return whether the batch size is free: a function may declare a fixed one."""
    leaves = [] if source.signature is None else tf.nest.flatten(source.signature)
    return dynamic and not any(s.shape.rank and s.shape.as_list()[0] is not None for s in leaves)


def specs(structure: Any, size: int | None, free: bool) -> Any:
    """Return how the tensors of a batch are traced: with `free`, a first dimension of the batch's size is open."""

    def one(tensor: Any) -> Any:
        shape = tensor.shape.as_list()
        if free and shape and shape[0] == size:
            shape = [None, *shape[1:]]
        return tf.TensorSpec(shape, tensor.dtype)

    return tf.nest.map_structure(one, structure)


def another_batch(structure: Any, size: int) -> Any:
    """Return a batch with one sample more, made of the same samples."""

    def longer(tensor: Any) -> Any:
        if tensor is None or not tensor.shape.rank or tensor.shape[0] != size:
            return tensor
        return tf.concat([tensor, tensor[::-1]], axis=0)[: size + 1]

    return tf.nest.map_structure(longer, structure)
