"""Compute operators of 16-bit numbers in float32, where numpy has no arithmetic for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
from onnx.reference.op_run import OpRun

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_Operator = TypeVar("_Operator", bound=type[OpRun])


def widened(*narrow: Any) -> Any:
    """Return a decorator of an operator: inputs of the types `narrow` become float32, and its results narrow again."""
    types = [np.dtype(n) for n in narrow]

    def decorate(operator: _Operator) -> _Operator:
        inner: Callable[..., tuple[Any, ...]] = operator._run

        @functools.wraps(inner)
        def run(self: OpRun, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
            given = next((v.dtype for v in inputs if isinstance(v, np.ndarray) and v.dtype in types), None)
            if given is None:
                return tuple(inner(self, *inputs, **attributes))
            wide = [v.astype(np.float32) if isinstance(v, np.ndarray) and v.dtype in types else v for v in inputs]
            results = inner(self, *wide, **attributes)
            return tuple(r.astype(given) if r.dtype == np.float32 else r for r in results)

        operator._run = run  # type: ignore[method-assign]
        return operator

    return decorate
