"""Optimizer cases: Adagrad, Adam and Momentum at T = 0 and T > 0, in both types, several tensors, every attribute."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import onnx
from onnx import TensorProto, helper

from generate.formulas import STATES, exact
from generate.gradient import TRAINING, TYPES
from generate.writer import Suite, slug

ORACLE = f"the standard's formula with 50 digits (mpmath {mpmath.__version__})"
MOMENTUM = {"alpha": 0.9, "beta": 0.75, "norm_coefficient": 0.0, "mode": "standard"}
ATTRIBUTES: dict[str, dict[str, dict[str, Any]]] = {
    "Adagrad": {
        "defaults": {},
        "epsilon": {"epsilon": 0.5},
        "decay_factor": {"decay_factor": 0.25},
        "norm_coefficient": {"norm_coefficient": 0.125},
        "all attributes": {"epsilon": 0.01, "decay_factor": 0.1, "norm_coefficient": 0.3},
    },
    "Adam": {
        "defaults": {},
        "alpha": {"alpha": 0.5},
        "beta": {"beta": 0.75},
        "epsilon": {"epsilon": 0.5},
        "norm_coefficient": {"norm_coefficient": 0.125},
        "norm_coefficient_post": {"norm_coefficient_post": 0.25},
        "all attributes": {
            "alpha": 0.8, "beta": 0.95, "epsilon": 0.01, "norm_coefficient": 0.3, "norm_coefficient_post": 0.05,
        },
    },
    "Momentum": {
        "standard": MOMENTUM,
        "nesterov": {**MOMENTUM, "mode": "nesterov"},
        "norm_coefficient": {**MOMENTUM, "norm_coefficient": 0.125},
        "beta zero": {**MOMENTUM, "beta": 0.0},
        "all attributes": {"alpha": 0.6, "beta": 0.3, "norm_coefficient": 0.2, "mode": "nesterov"},
    },
}  # fmt: skip
SHAPES = [(2, 3), (4,), (1, 2, 2)]
ZEROS = {"Adagrad": "H", "Adam": "H", "Momentum": "V"}


def add_all(suite: Suite) -> Iterator[str]:
    """Write every optimizer case."""
    for operator, variants in ATTRIBUTES.items():
        for (label, attributes), T in itertools.product(variants.items(), (0, 1, 10)):
            add(suite, operator, f"{label}, T {T}", attributes, T, ["float32"], SHAPES[:1])
            add(suite, operator, f"{label}, T {T}, float64", attributes, T, ["float64"], SHAPES[:1])
        label, attributes = list(variants.items())[-1]
        for T, dtype in itertools.product((0, 3), ("float32", "float64")):
            add(suite, operator, f"three tensors, T {T}, {dtype}", attributes, T, [dtype] * 3, SHAPES)
            add(suite, operator, f"three tensors, T {T}, {dtype}, rank", attributes, T, [dtype] * 3, SHAPES, "rank")
        for T in (0, 3):
            add(suite, operator, f"tensors of two types, T {T}", attributes, T, ["float32", "float64"], SHAPES[:2])
            add(suite, operator, f"R of another type, T {T}", attributes, T, ["float32"], SHAPES[:1], rate="float64")
            add(suite, operator, f"a scalar and an empty tensor, T {T}", attributes, T, ["float32"] * 2, [(), (0, 3)])
            add(suite, operator, f"state of zeros, T {T}", attributes, T, ["float32"], SHAPES[:1], zeros=True)
            add(suite, operator, f"R zero, T {T}", attributes, T, ["float64"], SHAPES[:1], R=0.0)
        for dtype in ("float32", "float64"):
            add(suite, operator, f"T one million, {dtype}", attributes, 10**6, [dtype], SHAPES[:1])
    yield from ()


def add(
    suite: Suite,
    operator: str,
    label: str,
    attributes: dict[str, Any],
    T: int,
    dtypes: list[str],
    sizes: list[tuple[int, ...]],
    shapes: str = "static",
    *,
    rate: str | None = None,
    R: float = 0.1,
    zeros: bool = False,
) -> None:
    """Write one case: one node that updates `len(sizes)` tensors."""
    rng = np.random.default_rng([T, len(sizes), len(label)])
    rate = rate or dtypes[0]
    kinds = ["X", "G", *STATES[operator]]
    R = float(np.float32(R))
    feeds: dict[str, np.ndarray] = {"R": np.array(R, TYPES[rate]), "T": np.array(T, np.int64)}
    infos = [
        helper.make_tensor_value_info("R", helper.np_dtype_to_tensor_dtype(TYPES[rate]), []),
        helper.make_tensor_value_info("T", TensorProto.INT64, []),
    ]
    for kind in kinds:
        for i, (dtype, size) in enumerate(zip(dtypes, sizes, strict=True)):
            low = 0.0 if kind == "H" else -2.0
            value = rng.uniform(low, 2.0, size).astype(np.float32)
            if zeros and kind not in "XG":
                value = np.zeros_like(value)
            feeds[f"{kind}{i + 1}"] = np.asarray(value, TYPES[dtype])
            infos.append(info(f"{kind}{i + 1}", dtype, size, shapes))
    expected: dict[str, np.ndarray] = {}
    outputs = []
    results = [exact(operator, R, T, [feeds[f"{k}{i + 1}"] for k in kinds], **attributes) for i in range(len(sizes))]
    for k, kind in enumerate(["X", *STATES[operator]]):
        for i, (dtype, size) in enumerate(zip(dtypes, sizes, strict=True)):
            expected[f"{kind}{i + 1}_new"] = results[i][k].astype(TYPES[dtype])
            outputs.append(info(f"{kind}{i + 1}_new", dtype, size, shapes))
    node = helper.make_node(operator, list(feeds), list(expected), domain=TRAINING, **attributes)
    graph = helper.make_graph([node], operator, infos, outputs)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(TRAINING, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    low_type = "float32" if "float32" in [*dtypes, rate] else "float64"
    rtol, atol = (1e-5, 1e-6) if low_type == "float32" else (1e-12, 1e-13)
    suite.add(
        f"optimizer/{operator}/{slug(label)}", model, [(feeds, expected)], kind="optimizer", operator=operator,
        domain=TRAINING, dtypes=sorted({*dtypes, rate}), shapes=shapes, oracle=ORACLE, rtol=rtol, atol=atol,
        features=["T>0"] if T else [],
    )  # fmt: skip


def info(name: str, dtype: str, size: tuple[int, ...], shapes: str) -> onnx.ValueInfoProto:
    dims: list[Any] = list(size) if shapes == "static" else [None] * len(size)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(TYPES[dtype]), dims)
