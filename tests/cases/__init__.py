"""Every operator's cases, described once: gradient tests, backends and the coverage page all read them from here."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onward.graph.schema import newest_opset
from onward.testing import OneNodeModel, one_node_model


@dataclasses.dataclass(frozen=True)
class Case:
    """One use of one operator. Inputs and attributes are keywords, as for `onward.testing.one_node_model`.

    kind       "ordinary", "edge" (empty, scalar, broadcast, ties, size 1, negative axis) or "special" (values)
    wrt        the inputs to differentiate by (default: every floating-point graph input)
    expected   gradients by input where finite differences do not exist (kinks, infinities): kinds "edge" and "special"
    torch      f(**inputs as torch tensors) -> output(s), where PyTorch has the operator
    smooth     second derivatives are compared too
    symbolic   "" if it works with every dimension unknown, else the reason it does not
    onnxruntime  "" if stock ONNX Runtime runs it in float32, else the reason it does not
    dtypes     the floating-point types the operator is defined for
    """

    op: str
    name: str
    arguments: Mapping[str, Any]
    kind: str = "ordinary"
    opset: int | None = None
    domain: str = ""
    outputs: Sequence[str] | None = None
    constants: Sequence[str] = ()
    wrt: Sequence[str] | None = None
    expected: Mapping[str, Any] | None = None
    torch: Callable[..., Any] | None = None
    smooth: bool = True
    rtol: float = 1e-6
    atol: float = 1e-8
    step: float = 1e-3
    onnxruntime: str = ""
    symbolic: str = ""
    dtypes: Sequence[Any] = (np.float64, np.float32, np.float16)

    def model(self, *, dynamic: bool = False, dtype: Any = None) -> OneNodeModel:
        """Return the one-node model, with every dimension symbolic if `dynamic`, floats in `dtype` if given."""

        def convert(value: Any) -> Any:
            if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
                return [convert(v) for v in value]
            if dtype is not None and isinstance(value, np.ndarray) and value.dtype == np.float64:
                return value.astype(dtype)
            return value

        return one_node_model(
            self.op,
            opset=self.opset,
            domain=self.domain,
            outputs=self.outputs,
            constants=self.constants,
            dynamic=dynamic,
            **{k: convert(v) for k, v in self.arguments.items()},
        )

    def differentiated(self, model: OneNodeModel) -> list[str]:
        """Return the names of the graph inputs to differentiate by."""
        if self.wrt is not None:
            return list(self.wrt)
        return [n for n, a in model.feeds.items() if a.dtype.kind == "f"]

    def __str__(self) -> str:
        return f"{self.op}-{self.name}"


def case(op: str, name: str, *, kind: str = "ordinary", **keywords: Any) -> Case:
    """Return a Case; keywords that are not fields of it are the operator's inputs and attributes."""
    fields = {f.name for f in dataclasses.fields(Case)} - {"op", "name", "kind", "arguments"}
    options = {k: keywords.pop(k) for k in list(keywords) if k in fields}
    return Case(op, name, keywords, kind=kind, **options)


def all_cases() -> list[Case]:
    """Return the cases of every family that the installed onnx knows."""
    found: list[Case] = []
    for module in pkgutil.iter_modules(__path__):
        found += importlib.import_module(f"cases.{module.name}").CASES
    return [c for c in found if c.opset is None or c.domain or c.opset <= newest_opset()]


def array(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Return float64 numbers drawn uniformly from [low, high), the same for the same arguments."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape)


def distinct(*shape: int, seed: int = 0) -> np.ndarray:
    """Return float64 numbers no two of which are nearer than 0.1: for max, sorting and other ties."""
    size = int(np.prod(shape))
    return (np.random.default_rng(seed).permutation(size).reshape(shape) - size / 2 + 0.25) * 0.1
