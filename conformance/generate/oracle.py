"""The oracles of gradients: PyTorch's autograd, and finite differences in float64 with Richardson extrapolation.

Finite differences evaluate the forward model with onnx's ReferenceEvaluator or with ONNX Runtime in double. Each has
faults of its own, so two independent forward evaluations must agree where two exist.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

FINITE_DIFFERENCES = f"float64 finite differences, Richardson, of onnx {onnx.__version__} ReferenceEvaluator"


class NoOracle(Exception):
    """The oracle cannot compute this case; the text says why."""


class Forward:
    """A forward model in double precision, evaluated by onnx's ReferenceEvaluator."""

    name = FINITE_DIFFERENCES

    def __init__(self, model: onnx.ModelProto) -> None:
        try:
            self.evaluator = ReferenceEvaluator(model)
        except Exception as error:
            raise NoOracle(f"ReferenceEvaluator cannot load it: {error!r}"[:200]) from error
        self.names = [o.name for o in model.graph.output]

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name."""
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                values = self.evaluator.run(None, dict(feeds))
        except Exception as error:
            raise NoOracle(f"ReferenceEvaluator fails: {error!r}"[:200]) from error
        return dict(zip(self.names, values, strict=True))


class Runtime:
    """A forward model in the types of the file, evaluated by ONNX Runtime."""

    name = f"float64 finite differences, Richardson, of onnxruntime {onnxruntime.__version__}"

    def __init__(self, model: onnx.ModelProto) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            self.session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise NoOracle(f"ONNX Runtime cannot load it: {error!r}"[:200]) from error
        self.names = [o.name for o in self.session.get_outputs()]
        self.inputs = {i.name for i in self.session.get_inputs()}

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name."""
        try:
            values = self.session.run(None, {n: a for n, a in feeds.items() if n in self.inputs})
        except Exception as error:
            raise NoOracle(f"ONNX Runtime fails: {error!r}"[:200]) from error
        return dict(zip(self.names, values, strict=True))


def same(first: Mapping[str, Any], second: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Tell whether two evaluations mean the same function: equal up to the precision of float32."""
    for name in names:
        a, b = np.asarray(first[name]), np.asarray(second[name])
        if a.shape != b.shape:
            return False
        a, b = a.astype(np.float64), b.astype(np.float64)
        finite = np.abs(a[np.isfinite(a)])
        scale = max(1.0, float(np.max(finite, initial=0.0)))
        if not np.allclose(a, b, rtol=2e-4, atol=2e-5 * scale, equal_nan=True):
            return False
    return True


def weighted_sum(outputs: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> float:
    """Return the sum of all weighted elements, rounded once."""
    products: list[float] = []
    for name, weight in weights.items():
        value = np.asarray(outputs[name])
        if value.shape != weight.shape:
            raise NoOracle(f"the shape of {name} depends on the values")
        products += (value.astype(np.float64) * weight).ravel().tolist()
    return math.fsum(products)


def finite_differences(
    loss: Callable[[Mapping[str, np.ndarray]], float],
    feeds: Mapping[str, np.ndarray],
    wrt: Sequence[str],
    step: float,
    uncertain: float = 1e-7,
) -> dict[str, np.ndarray]:
    """Return d(loss)/d(x) for each x: central differences at 2h, h and h/2, extrapolated twice.

    The error is of the order h^6. Raises NoOracle if the two extrapolations differ by more than `uncertain`.
    """
    found = {}
    for name in wrt:
        point = np.array(feeds[name], dtype=np.float64)
        gradient, error = np.zeros_like(point), np.zeros_like(point)
        for position in np.ndindex(point.shape):
            slopes = []
            for h in (2 * step, step, step / 2):
                sides = []
                for offset in (h, -h):
                    moved = point.copy()
                    moved[position] += offset
                    sides.append((loss({**feeds, name: moved}), moved[position]))
                slopes.append((sides[0][0] - sides[1][0]) / (sides[0][1] - sides[1][1]))
            coarse, fine = (4 * slopes[1] - slopes[0]) / 3, (4 * slopes[2] - slopes[1]) / 3
            gradient[position] = (16 * fine - coarse) / 15
            error[position] = abs(gradient[position] - fine)
        scale = max(1.0, float(np.max(np.abs(gradient), initial=0.0)))
        if not np.isfinite(gradient).all():
            raise NoOracle(f"the differences by {name} are not finite")
        if np.max(error, initial=0.0) > uncertain * scale:
            raise NoOracle(f"the differences by {name} are uncertain by {np.max(error):.2g}")
        found[name] = gradient
    return found


def torch_gradients(
    function: Callable[..., Any],
    feeds: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray],
    wrt: Sequence[str],
    second: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Return d(weighted sum of the outputs of `function`)/d(x) by PyTorch's autograd in float64.

    With `second`, return instead the derivatives of the sum of the first ones, weighted by it.
    """
    import torch

    tensors = {n: torch.tensor(np.asarray(a), requires_grad=n in wrt) for n, a in feeds.items()}
    result = function(**tensors)
    results = result if isinstance(result, tuple) else (result,)
    pairs = list(zip(weights, results, strict=False))
    if len(pairs) < len(weights):
        raise NoOracle("PyTorch has only some of the outputs")
    for name, value in pairs:
        if tuple(value.shape) != weights[name].shape:
            raise NoOracle(f"PyTorch's {name} has another shape")
    loss = sum((value * torch.tensor(weights[name])).sum() for name, value in pairs)
    points = [tensors[n] for n in wrt]
    if not loss.requires_grad:
        return {n: np.zeros_like(feeds[n]) for n in wrt}
    first = torch.autograd.grad(loss, points, allow_unused=True, create_graph=second is not None)
    if second is not None:
        terms = [(g * torch.tensor(second[n])).sum() for n, g in zip(wrt, first, strict=True) if g is not None]
        total = sum(terms) if terms else torch.zeros(())
        if not total.requires_grad:
            return {n: np.zeros_like(feeds[n]) for n in wrt}
        first = torch.autograd.grad(total, points, allow_unused=True)
    return {
        n: np.zeros_like(feeds[n]) if g is None else g.detach().numpy().copy() for n, g in zip(wrt, first, strict=True)
    }


def torch_name() -> str:
    """Return PyTorch's name and version without its build."""
    import torch

    return f"torch {torch.__version__.split('+')[0]} autograd in float64"
