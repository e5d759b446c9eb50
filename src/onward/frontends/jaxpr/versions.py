"""What Onward uses of JAX beyond its public interface: the only file that depends on the version of JAX."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.export  # before JAX 0.8 it is not a part of `import jax`
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval

from onward import versions

ClosedJaxpr = core.ClosedJaxpr
Jaxpr = core.Jaxpr
Equation = core.JaxprEqn
Literal = core.Literal
InconclusiveSize = (
    core if hasattr(core, "InconclusiveDimensionOperation") else jax.core
).InconclusiveDimensionOperation
"""What JAX raises where it cannot compare a symbolic size; before 0.10 it is at another place."""

VERSION: str = jax.__version__


def check_versions() -> None:
    """Raise unless the installed JAX is new enough."""
    versions.check({"jax": VERSION})


def is_key(aval: Any) -> bool:
    """Return whether a value is a typed random key."""
    return bool(jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key))


def free_size(name: str) -> Any:
    """Return a symbol that stands for a size while JAX traces."""
    return jax.export.symbolic_shape(name)[0]


def size_value(size: Any, known: dict[str, Any]) -> Any:
    """Return a symbolic size, such as 2*batch, computed from the sizes `known` by name."""
    return size._evaluate(known)


def is_static(size: Any) -> bool:
    """Return whether a size is a plain number."""
    return isinstance(size, int | np.integer)


def quick_jit(function: Any) -> Any:
    """Return `function`, compiled quickly: it runs once or twice, so optimizing it costs more than it gains."""
    return jax.jit(function, compiler_options=_quick())


@functools.cache
def _quick() -> dict[str, Any]:
    """Return the options with which XLA compiles quickest, of those that this version knows."""
    every = {
        "xla_backend_optimization_level": 0,
        "xla_cpu_use_fusion_emitters": False,  # each fusion would go through MLIR: most of the time of a compilation
        "xla_cpu_parallel_codegen_split_count": 1,
    }
    if _accepted(every):
        return every
    return {name: value for name, value in every.items() if _accepted({name: value})}


def _accepted(options: dict[str, Any]) -> bool:
    """Return whether this version of XLA knows all of these options."""
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(0).compile()
    except jax.errors.JaxRuntimeError:  # no such option
        return False
    return True


def remove_dead(jaxpr: Any, wanted: Sequence[bool]) -> tuple[Any, list[bool]]:
    """Return the jaxpr with the wanted outputs only, and which of its inputs it then reads."""
    made, used = partial_eval.dce_jaxpr(jaxpr, list(wanted))
    return made, list(used)


def bind(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """Return the outputs of an equation, computed or traced by JAX itself."""
    params = equation.primitive.get_bind_params(equation.params)
    functions: Sequence[Any] = ()
    if isinstance(params, tuple):  # before JAX 0.10
        functions, params = params
    outputs = equation.primitive.bind(*functions, *inputs, **params)
    return list(outputs) if equation.primitive.multiple_results else [outputs]


def user_line(equation: Any) -> str:
    """Return file and line of the user's code that made the equation, or the place inside a library."""
    from jax._src import source_info_util

    frame = source_info_util.user_frame(getattr(equation.source_info, "traceback", None))
    if frame is None:
        return ""
    return f"{os.path.basename(frame.file_name)} line {frame.start_line}, in {frame.function_name}"


def made_by_jax(closed: Any) -> bool:
    """Return whether JAX itself defines the function of a jaxpr, so that its name says what it computes."""
    jaxpr = getattr(closed, "jaxpr", closed)
    place = getattr(jaxpr.debug_info, "func_src_info", "") or ""
    return _home() in place


@functools.cache
def _home() -> str:
    return os.path.join(os.path.dirname(os.path.abspath(jax.__file__)), "")


def inner_jaxprs(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs inside an equation: bodies, branches, called functions."""
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, Jaxpr):
                yield item


CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_lin": "call_jaxpr",
}
"""Primitives that only call a function, and the parameter that holds it."""


def called(equation: Any) -> Any | None:
    """Return the function that an equation merely calls, as a closed jaxpr; None for another equation."""
    name = CALLS.get(equation.primitive.name)
    if name is None or name not in equation.params:
        return None
    found = equation.params[name]
    return found if isinstance(found, ClosedJaxpr) else ClosedJaxpr(found, ())
