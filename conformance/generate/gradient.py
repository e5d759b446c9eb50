"""Gradient cases: one model with a Gradient node from each table entry of tests/cases, shape mode and type."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

from generate.oracle import (
    FINITE_DIFFERENCES,
    Forward,
    NoOracle,
    finite_differences,
    torch_gradients,
    torch_name,
    weighted_sum,
)
from generate.tolerance import tolerance
from generate.writer import Suite, slug

TRAINING = "ai.onnx.preview.training"
TYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
FLOATS = {TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}


@dataclasses.dataclass
class Point:
    """A table entry at values that fit a type, and what the oracle says there."""

    feeds: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    oracle: str


def base_cases() -> list[Any]:
    """Return the entries of tests/cases: inputs and attributes of every differentiable operator."""
    from cases import all_cases

    return all_cases()


def add_base_case(suite: Suite, case: Any, first: bool) -> Iterator[str]:
    """Write the cases of a table entry; yield a sentence for each that no oracle could compute.

    The first ordinary entry of an operator also comes in half precision.
    """
    try:
        point = evaluate(case, "float32")
    except NoOracle as error:
        yield f"{case}: {error}"
        return
    for shapes, dtype in (("static", "float32"), ("rank", "float64"), ("unknown", "float32")):
        if shapes == "rank" and case.symbolic:
            shapes = "static"
        if shapes == "unknown" and case.symbolic:
            continue
        yield from write(suite, case, point, shapes, dtype)
    for dtype in ("float16", "bfloat16"):
        if first and case.expected is None:
            try:
                point = evaluate(case, dtype)
            except NoOracle as error:
                yield f"{case} {dtype}: {error}"
                continue
            yield from write(suite, case, point, "static", dtype)


def evaluate(case: Any, dtype: str) -> Point:
    """Return the oracle's gradients at the values of `case` rounded to `dtype`, computed in float64."""
    model = case.model()
    feeds = {n: round_to(np.asarray(a), dtype) for n, a in model.feeds.items()}
    constants = {i.name for i in model.proto.graph.initializer}
    for tensor in model.proto.graph.initializer:
        if tensor.data_type == TensorProto.DOUBLE:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(round_to(onnx.numpy_helper.to_array(tensor), dtype), tensor.name)
            )
    wrt = list(case.expected) if case.expected is not None else case.differentiated(model)
    wrt = [n for n in wrt if n not in constants]
    forward, reason = None, ""
    try:
        forward = Forward(model.proto)
        outputs = forward(feeds)
    except NoOracle as error:
        reason = str(error)
        outputs = torch_outputs(case, feeds, model.outputs)
        if outputs is None:
            raise
    floating = [
        n
        for n in model.outputs
        if isinstance(outputs[n], np.ndarray | np.generic) and np.asarray(outputs[n]).dtype.kind == "f"
    ]
    weights = make_weights({n: np.asarray(outputs[n]).shape for n in floating}, ones=case.expected is not None)
    if case.expected is not None:
        expected = {n: np.asarray(case.expected[n], np.float64).reshape(feeds[n].shape) for n in wrt}
        oracle = "closed form at a point of SPEC.md's conventions"
        if case.torch is not None:
            try:
                found = torch_gradients(case.torch, feeds, weights, wrt)
            except NoOracle:
                return Point(feeds, weights, expected, oracle)
            agree = all(np.allclose(found[n], expected[n], rtol=1e-5, atol=1e-7, equal_nan=True) for n in wrt)
            if not agree:
                raise NoOracle("PyTorch and the closed form disagree")
            oracle = f"{torch_name()}, equal to the closed form"
            expected = found
        return Point(feeds, weights, expected, oracle)
    if not wrt:
        raise NoOracle("nothing to differentiate by")
    by_torch = None
    if case.torch is not None:
        try:
            by_torch = torch_gradients(case.torch, feeds, weights, wrt)
        except NoOracle as error:
            reason = str(error)
    differences = None
    if forward is not None and any(np.asarray(outputs[n]).dtype != np.float64 for n in floating):
        forward, reason = None, "ReferenceEvaluator returns less than float64"
    if forward is not None:
        try:
            differences = finite_differences(lambda f: weighted_sum(forward(f), weights), feeds, wrt, case.step)
        except NoOracle as error:
            reason = str(error)
    if by_torch is None and differences is None:
        raise NoOracle(reason)
    if by_torch is not None and differences is not None:
        for n in wrt:
            scale = max(1.0, float(np.max(np.abs(by_torch[n]), initial=0.0)))
            if not np.allclose(by_torch[n], differences[n], rtol=1e-6, atol=1e-7 * scale):
                off = float(np.max(np.abs(by_torch[n] - differences[n])))
                raise NoOracle(f"PyTorch and finite differences disagree by {off:.2g} on d{n}")
        return Point(feeds, weights, by_torch, f"{torch_name()}, confirmed by finite differences")
    if by_torch is not None:
        return Point(feeds, weights, by_torch, torch_name())
    assert differences is not None
    return Point(feeds, weights, differences, FINITE_DIFFERENCES)


def torch_outputs(case: Any, feeds: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray] | None:
    """Return the outputs that PyTorch computes, if the entry has a PyTorch function."""
    if case.torch is None:
        return None
    import torch

    result = case.torch(**{n: torch.tensor(a) for n, a in feeds.items()})
    results = result if isinstance(result, tuple) else (result,)
    return {n: r.numpy() for n, r in zip(names, results, strict=False)} if len(results) >= len(names) else None


def round_to(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return float64 values that are exact in `dtype`; other types as they are."""
    if array.dtype != np.float64:
        return array
    with np.errstate(over="ignore"):
        return array.astype(TYPES[dtype]).astype(np.float64)


def make_weights(shapes: Mapping[str, tuple[int, ...]], ones: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
    """Return weights for outputs, ±(8..24)/16: exact in every floating-point type, so that errors cannot cancel."""
    rng = np.random.default_rng([seed, 7])
    return {
        name: np.ones(shape) if ones else rng.integers(8, 25, shape) / 16 * rng.choice([-1.0, 1.0], shape)
        for name, shape in shapes.items()
    }


def write(suite: Suite, case: Any, point: Point, shapes: str, dtype: str, **options: Any) -> Iterator[str]:
    """Write one case, if the operator's schema allows the type; yield why if the model cannot be built."""
    wrt = list(point.expected)
    try:
        built = case.model(dynamic=shapes != "static", dtype=TYPES[dtype])
    except KeyError:
        return  # text in bfloat16
    forward = built.proto
    low = {n: a.astype(TYPES[dtype]) if a.dtype == np.float64 else a for n, a in point.feeds.items()}
    for tensor in forward.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype == TYPES[dtype]:
            continue
    if any(built.feeds[n].dtype != low[n].dtype for n in low):
        return  # the entry has a type of its own
    if not allowed(forward):
        return
    model = differentiate(forward, low, point.weights, wrt, shapes, dtype)
    if model is None:
        return
    proto, feeds = model
    expected = {
        f"d{n}": cast(flat(point.expected[n]) if shapes == "unknown" else point.expected[n], dtype) for n in wrt
    }
    rtol, atol = tolerance(dtype, expected.values())
    name = f"gradient/{case.op}/{slug(case.name)}{'' if shapes == 'static' else '-' + shapes}"
    name += "" if dtype == "float32" else f"-{dtype}"
    suite.add(
        name, proto, [(feeds, expected)], kind="gradient", operator=case.op, domain=case.domain, dtypes=[dtype],
        shapes=shapes, oracle=point.oracle, rtol=rtol, atol=atol,
        features=["zs", *([case.kind] if case.kind != "ordinary" else [])],
    )  # fmt: skip
    yield from ()


def cast(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return what a backend returns: gradients of a bfloat16 model are float32, because Gradient has no bfloat16."""
    with np.errstate(over="ignore"):
        return array.astype(TYPES["float32" if dtype == "bfloat16" else dtype])


def flat(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).reshape(-1)


def allowed(model: onnx.ModelProto) -> bool:
    """Tell whether the schemas allow the types of `model`: onnx's strict inference accepts it and finds them all."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except Exception:  # noqa: BLE001 (onnx raises several kinds, bare RuntimeError among them)
        return False
    schema_types(inferred)
    return True


def schema_types(inferred: onnx.ModelProto) -> None:
    """Place for the types that inference found; kept in the model's value_info."""


def differentiate(
    forward: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray],
    wrt: Sequence[str],
    shapes: str,
    dtype: str,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]] | None:
    """Return a model with the gradients of the weighted sum of the outputs as its outputs, and its inputs."""
    model = onnx.ModelProto()
    model.CopyFrom(forward)
    graph = model.graph
    del graph.output[:]
    del graph.value_info[:]
    opset = next(i.version for i in model.opset_import if i.domain == "")
    computed = TYPES["float32" if dtype == "bfloat16" else dtype]
    element = helper.np_dtype_to_tensor_dtype(computed)
    before: list[onnx.NodeProto] = []
    inputs: list[onnx.ValueInfoProto] = []
    values: dict[str, np.ndarray] = {}
    points: dict[str, str] = {}
    for info in graph.input:
        name, array = info.name, feeds[info.name]
        entry, source = info, name
        is_low = dtype == "bfloat16" and array.dtype == TYPES["bfloat16"]
        if is_low:
            source, array = f"{name}_float", array.astype(np.float32)
            entry = helper.make_tensor_value_info(source, TensorProto.FLOAT, dims(info))
            before.append(helper.make_node("Cast", [source], [name], to=TensorProto.BFLOAT16))
        elif shapes == "unknown" and name in wrt:
            if opset < 14:
                return None
            source = f"{name}_flat"
            sizes = f"{name}_shape"
            inputs += [helper.make_tensor_value_info(source, element, [None])]
            values[source] = flat(array)
            entry = helper.make_tensor_value_info(sizes, TensorProto.INT64, [None])
            before.append(helper.make_node("Reshape", [source, sizes], [name], allowzero=1))
            points[name] = source
            inputs.append(entry)
            values[sizes] = np.array(array.shape, np.int64)
            continue
        inputs.append(entry)
        values[source] = array
        points[name] = source
    terms, after = [], []
    for name, weight in weights.items():
        weight_name, source = f"weight_{name}", name
        sizes = list(weight.shape) if shapes == "static" else [None] * weight.ndim
        inputs.append(helper.make_tensor_value_info(weight_name, element, sizes))
        values[weight_name] = weight.astype(computed)
        if dtype == "bfloat16":
            source = f"{name}_float"
            after.append(helper.make_node("Cast", [name], [source], to=TensorProto.FLOAT))
        after.append(helper.make_node("Mul", [source, weight_name], [f"weighted_{name}"]))
        after.append(helper.make_node("ReduceSum", [f"weighted_{name}"], [f"sum_{name}"], keepdims=0))
        terms.append(f"sum_{name}")
    after.append(helper.make_node("Sum", terms, ["loss"]))
    xs = [points[n] for n in wrt]
    zs = [i.name for i in inputs if i.name not in xs]
    attributes = {"zs": zs} if zs else {}
    gradients = [f"d{n}" for n in wrt]
    after.append(helper.make_node("Gradient", [*xs, *zs], gradients, domain=TRAINING, xs=xs, y="loss", **attributes))
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    infos = {i.name: i for i in graph.input}
    outputs = [
        helper.make_tensor_value_info(f"d{n}", element, [None] if shapes == "unknown" else dims(infos[n], shapes))
        for n in wrt
    ]
    del graph.input[:]
    graph.input.extend(inputs)
    graph.output.extend(outputs)
    model.opset_import.append(helper.make_opsetid(TRAINING, 1))
    return model, values


def dims(info: onnx.ValueInfoProto, shapes: str = "static") -> list[Any]:
    """Return the dimensions of a graph input: numbers, or None where they are symbols."""
    return [
        d.dim_value if d.HasField("dim_value") and shapes == "static" else None for d in info.type.tensor_type.shape.dim
    ]
