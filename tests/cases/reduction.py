"""Cases of autodiff/rules/reduction.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases import array, case, distinct


def axes(*values: int) -> np.ndarray:
    """Return axes as the operators take them."""
    return np.array(values, np.int64)


def one(op: str, torch: Any, make: Any, *, empty: bool = True) -> list:
    """Return the cases common to all reductions; `torch` is f(data, dim, keepdim)."""
    data = make(2, 3, 2)
    shapes = [
        case(op, "one axis", data=data, axes=axes(1), constants=["axes"], torch=lambda data: torch(data, 1, True)),
        case(op, "all axes", data=data, torch=lambda data: torch(data, (0, 1, 2), True)),
        case(op, "without keepdims", data=data, axes=axes(0, 2), keepdims=0, constants=["axes"],
             torch=lambda data: torch(data, (0, 2), False)),
        case(op, "all without keepdims", kind="edge", data=data, keepdims=0,
             torch=lambda data: torch(data, (0, 1, 2), False)),
        case(op, "negative axis", kind="edge", data=data, axes=axes(-2), keepdims=0, constants=["axes"],
             torch=lambda data: torch(data, -2, False)),
        case(op, "computed axes", kind="edge", data=data, axes=axes(-1, 0), keepdims=0,
             torch=lambda data, axes: torch(data, tuple(axes.tolist()), False)),
        case(op, "size 1", kind="edge", data=make(2, 1), axes=axes(1), constants=["axes"],
             torch=lambda data: torch(data, 1, True)),
        case(op, "scalar", kind="edge", data=np.asarray(make()), torch=lambda data: torch(data.reshape(1), 0, False)),
        case(op, "noop", kind="edge", data=make(2, 3), noop_with_empty_axes=1,
             torch=lambda data: torch(data[None], 0, False)),
        case(op, "noop, axes empty", kind="edge", data=make(2, 3), axes=axes(), noop_with_empty_axes=1, keepdims=0,
             constants=["axes"], torch=lambda data: torch(data[None], 0, False)),
        case(op, "axes empty", kind="edge", data=make(2, 3), axes=axes(), keepdims=0, constants=["axes"],
             torch=lambda data: torch(data, (0, 1), False)),
    ]  # fmt: skip
    if empty:
        shapes.append(case(op, "empty", kind="edge", data=make(0, 3), axes=axes(0), constants=["axes"], smooth=False))
    return shapes


def positive(*shape: int, **keywords: Any) -> np.ndarray:
    return array(*shape, low=0.5, **keywords)


def nonzero(*shape: int) -> np.ndarray:
    return positive(*shape) * np.where(array(*shape, seed=5) > 0, 1, -1)


def product(data: Any, dim: Any, keepdim: bool) -> Any:
    for d in sorted((d % max(data.dim(), 1) for d in (dim if isinstance(dim, tuple) else (dim,))), reverse=True):
        data = data.prod(d, keepdim=keepdim)
    return data


CASES = [
    *one("ReduceSum", lambda data, dim, keepdim: data.sum(dim, keepdim), array),
    case("ReduceSum", "infinite", kind="special", data=np.array([np.inf, 1.0]), expected={"data": [1, 1]}),
    *one("ReduceMean", lambda data, dim, keepdim: data.mean(dim, keepdim), array, empty=False),
    case("ReduceMean", "empty batch", kind="edge", data=array(0, 3), axes=axes(1), constants=["axes"]),
    case("ReduceMean", "infinite", kind="special", data=np.array([np.inf, 1.0]), expected={"data": [0.5, 0.5]}),
    *one("ReduceMax", lambda data, dim, keepdim: data.amax(dim, keepdim), distinct),
    case("ReduceMax", "ties", kind="special", data=np.array([[1.0, 1.0, 0.0, 1.0]]), axes=axes(1), constants=["axes"],
         expected={"data": [[1 / 3, 1 / 3, 0, 1 / 3]]}, torch=lambda data: data.amax(1, True)),
    *one("ReduceMin", lambda data, dim, keepdim: data.amin(dim, keepdim), distinct),
    case("ReduceMin", "ties", kind="special", data=np.array([[1.0, 1.0, 2.0]]), expected={"data": [[0.5, 0.5, 0]]},
         torch=lambda data: data.amin((0, 1), True)),
    *one("ReduceProd", product, nonzero),
    case("ReduceProd", "one zero", kind="special", data=np.array([[2.0, 0.0, 3.0], [2.0, 1.0, 3.0]]), axes=axes(1),
         constants=["axes"], torch=lambda data: data.prod(1, True)),
    case("ReduceProd", "two zeros", kind="special", data=np.array([[2.0, 0.0, 0.0]]),
         torch=lambda data: data.prod().reshape(1, 1)),
    case("ReduceProd", "three zeros", kind="special", data=np.array([[2.0, 0.0], [0.0, 0.0]]),
         torch=lambda data: data.prod().reshape(1, 1)),
    *one("ReduceL1", lambda data, dim, keepdim: data.abs().sum(dim, keepdim), nonzero),
    case("ReduceL1", "zeros", kind="special", data=np.array([0.0, -1.0]), expected={"data": [0, -1]}),
    *one("ReduceL2", lambda data, dim, keepdim: (data * data).sum(dim, keepdim).sqrt(), nonzero),
    case("ReduceL2", "zeros", kind="special", data=np.zeros(3), expected={"data": [0, 0, 0]},
         torch=lambda data: data.norm().reshape(1)),
    *one("ReduceSumSquare", lambda data, dim, keepdim: (data * data).sum(dim, keepdim), array),
    case("ReduceSumSquare", "zeros", kind="special", data=np.zeros(3), expected={"data": [0, 0, 0]}),
    *one("ReduceLogSum", lambda data, dim, keepdim: data.sum(dim, keepdim).log(), positive, empty=False),
    case("ReduceLogSum", "infinite", kind="special", data=np.array([np.inf, 1.0]), expected={"data": [0, 0]}),
    *one("ReduceLogSumExp", lambda data, dim, keepdim: data.logsumexp(dim, keepdim), array, empty=False),
    case("ReduceLogSumExp", "large", kind="special", data=np.array([800.0, -800.0, 800.0]),
         expected={"data": [0.5, 0, 0.5]}, atol=1e-12, torch=lambda data: data.logsumexp(0, True)),
    case("ReduceLogSumExp", "masked", kind="special", data=np.array([1.0, -np.inf]), expected={"data": [1, 0]},
         torch=lambda data: data.logsumexp(0, True)),
]  # fmt: skip
