"""Random keys and draws.

A graph has no keys: Onward computes random numbers from one key and the number of the step (passes/randomness.py). So a
key of JAX becomes a `Key` at translation time, which knows where it comes from, and only a draw becomes nodes. Two
draws with the same key and shape are one draw, as in JAX.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onward.frontends.jaxpr import versions
from onward.frontends.jaxpr.registry import UnsupportedError
from onward.graph.builder import Value

if TYPE_CHECKING:
    from onward.frontends.jaxpr.frame import Frame

GOLDEN = 0.61803398875
SPREAD = 3.4  # the patterns of the normal distribution lie in ±1.7


@dataclasses.dataclass(frozen=True)
class Key:
    """A random key: how it was derived, and from which arguments of the traced function.

    `steps` are the loops in which it is another key in each iteration. `raw` says that it is held as integers.
    """

    origin: tuple[Any, ...]
    roots: frozenset[Any]
    steps: frozenset[int] = frozenset()
    raw: bool = False


# Primitives that make keys of keys or move them about; what they do to the numbers of a key does not matter.
MOVES = frozenset(
    {
        "random_wrap", "random_unwrap", "random_split", "random_fold_in", "random_clone", "slice", "squeeze", "reshape",
        "broadcast_in_dim", "expand_dims", "gather", "dynamic_slice", "concatenate", "transpose", "copy", "copy_p",
        "convert_element_type", "select_n", "split", "rev", "optimization_barrier", "stop_gradient",
    }
)  # fmt: skip
DRAWS = {"_uniform": "uniform", "_normal_real": "normal"}
"""Functions of jax.random, by their private names, that become draws. The others call these."""


def moved(equation: Any, inputs: Sequence[Any]) -> list[Key]:
    """Return the keys that an equation over keys makes.

    Raises:
        UnsupportedError: the numbers of the key would be used.
    """
    name = equation.primitive.name
    if name not in MOVES:
        raise UnsupportedError("it reads the bits of a random key in a way that is not a known draw of jax.random")
    _check_repeated(equation, inputs)
    roots: frozenset[Any] = frozenset()
    steps: frozenset[int] = frozenset()
    parts: list[Any] = []
    for value in inputs:
        if isinstance(value, Key):
            roots, steps = roots | value.roots, steps | value.steps
            parts.append(value.origin)
        else:
            constant = _constant(value)
            parts.append(id(value) if constant is None else constant)
            roots = roots if constant is not None else roots | {value}
    origin = (name, str({k: v for k, v in equation.params.items() if k != "impl"}), *parts)
    if name in ("random_wrap", "random_unwrap", "random_clone", "copy", "copy_p"):
        origin = parts[0] if isinstance(parts[0], tuple) else origin  # the same key
    return [
        Key((*origin, index) if len(equation.outvars) > 1 else origin, roots, steps, not versions.is_key(v.aval))
        for index, v in enumerate(equation.outvars)
    ]


def _check_repeated(equation: Any, inputs: Sequence[Any]) -> None:
    """Raise where one key may come to stand in two places of an array of keys: each place draws its own numbers."""
    name = equation.primitive.name

    def count(variable: Any) -> int:
        whole = variable.aval.shape if versions.is_key(variable.aval) else variable.aval.shape[:-1]
        return math.prod(whole)

    if name not in ("broadcast_in_dim", "gather", "concatenate"):
        return
    after = count(equation.outvars[0])
    origins = [v.origin for v in inputs if isinstance(v, Key)]
    if (
        (name == "broadcast_in_dim" and after != count(equation.invars[0]))
        or (name == "gather" and after > 1)
        or (name == "concatenate" and len(set(origins)) < len(origins))
    ):
        raise UnsupportedError("it may repeat a key, so that JAX draws the same numbers in several places; use split")


def _constant(value: Value) -> Any:
    from onward.frontends.jaxpr.frame import constant_of

    array = constant_of(value)
    return None if array is None or array.size > 64 else ("constant", array.dtype.str, array.tobytes())


def draw(frame: Frame, kind: str, key: Key, shape: Sequence[Any], dtype: Any) -> Value:
    """Return random numbers of the standard distribution `kind`, "uniform" or "normal".

    In the body of a loop, a key that is another one in each iteration draws outside, for all iterations at once.
    """
    if not key.roots:
        raise UnsupportedError(
            "it draws from a constant key, so that JAX would draw the same numbers in every step; take the key as an "
            "argument of the loss function, or keep it in the state"
        )
    wide = np.dtype(dtype)
    if wide not in (np.float32, np.float64, np.float16):
        raise UnsupportedError(f"a draw of {wide.name} numbers")
    named = (kind, key.origin, tuple(map(str, shape)), wide.name)
    at: Frame | None = frame
    while at is not None:
        if named in at.draws:
            return at.draws[named]
        at = at.parent
    home = frame
    while home.parent is not None and (home.loop is None or home.loop.number not in key.steps):
        home = home.parent  # the numbers are the same in every iteration: draw them once, outside
    if home.loop is None or home.loop.number not in key.steps:
        made = _numbers(home, kind, key, shape, wide)
    else:
        made = home.loop.draw(home, kind, key, shape, wide)
    made.type, made.shape = ir.TensorType(ir.DataType.from_numpy(wide)), frame_shape(shape)
    home.draws[named] = made
    frame.translator.drawn.append(key)
    return made


def frame_shape(shape: Sequence[Any]) -> ir.Shape:
    """Return a shape for a value."""
    from onward.frontends.jaxpr.sizes import shape_of

    return shape_of(shape)


def _numbers(frame: Frame, kind: str, key: Key, shape: Sequence[Any], dtype: np.dtype[Any]) -> Value:
    op = frame.op
    if frame.translator.pattern:
        return _pattern(frame, kind, shape, dtype)
    like = frame.zeros(shape, dtype)
    if kind == "normal":
        made: Value = op.RandomNormalLike(like, dtype=ir.DataType.from_numpy(dtype))
    else:
        made = op.RandomUniformLike(like, dtype=ir.DataType.from_numpy(dtype))
    return made


def _pattern(frame: Frame, kind: str, shape: Sequence[Any], dtype: np.dtype[Any]) -> Value:
    """Return numbers that look random and are the same in JAX: see `pattern`."""
    op = frame.op
    sizes = frame.shape(shape)
    count = op.constant(np.int64(np.prod(sizes))) if isinstance(sizes, np.ndarray) else op.ReduceProd(sizes, keepdims=0)
    index = op.Range(op.constant(np.int64(0)), count, op.constant(np.int64(1)))
    numbers = op.Mod(op.Mul(op.cast(index, ir.DataType.FLOAT), np.float32(GOLDEN)), np.float32(1.0), fmod=1)
    if kind == "normal":
        numbers = op.Mul(op.Sub(numbers, np.float32(0.5)), np.float32(SPREAD))
    return op.cast(op.Reshape(numbers, sizes, allowzero=1), ir.DataType.from_numpy(dtype))


def pattern(kind: str, shape: Sequence[int], dtype: Any) -> Any:
    """Return, in JAX, the numbers that take the place of a draw when a graph is compared with JAX."""
    import jax.numpy as jnp

    count = int(np.prod(shape, dtype=np.int64))
    numbers = jnp.fmod(jnp.arange(count).astype(jnp.float32) * np.float32(GOLDEN), np.float32(1.0))
    if kind == "normal":
        numbers = (numbers - np.float32(0.5)) * np.float32(SPREAD)
    return numbers.reshape(shape).astype(dtype)
