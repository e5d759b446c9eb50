"""Gradient cases: one model with a Gradient node from each table entry of tests/cases, shape mode and type."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

from generate.known import KNOWN, function_of
from generate.oracle import (
    Forward,
    NoOracle,
    Runtime,
    finite_differences,
    same,
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
# The standard leaves open what they return: every runtime draws numbers, or orders elements, in its own way.
NOT_PORTABLE = {
    "Dropout-training", "Dropout-training, default ratio", "Dropout-training, with its mask",
    "Dropout-mode and ratio at run time", "TopK-unsorted",
    "GroupNormalization-per group (opset 18)",  # deprecated: a checker refuses it
}  # fmt: skip
# onnx's ReferenceEvaluator loses states of loops and puts elements into sequences at the wrong place.
FAULTY_IN_REFERENCE = {
    "Loop", "Scan", "SequenceAt", "SequenceConstruct", "SequenceErase", "SequenceInsert", "ConcatFromSequence",
}  # fmt: skip
FLAT = {"Bernoulli"}  # random, but its gradient is zero whatever is drawn


@dataclasses.dataclass
class Point:
    """A table entry at values that fit a type, and what the oracle says there."""

    feeds: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    oracle: str


# Where onnx's ReferenceEvaluator is the only evaluator, and wrong.
UNCONFIRMED = {
    "LRN": "onnx's ReferenceEvaluator leaves out the window of an even size, and ONNX Runtime refuses it",
    "ConvTranspose": "onnx's ReferenceEvaluator and PyTorch place an output_shape that exceeds the windows differently",
}


def base_cases() -> list[Any]:
    """Return the entries of tests/cases: inputs and attributes of every differentiable operator."""
    from cases import all_cases

    found = [c for c in all_cases() if str(c) not in NOT_PORTABLE]
    return [dataclasses.replace(c, torch=function_of(c)) for c in found]


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


def evaluate(case: Any, dtype: str, *, ones: bool = False) -> Point:
    """Return the oracle's gradients at the values of `case` rounded to `dtype`, computed in float64.

    The outputs are weighted with random numbers, or with ones.
    """
    model = case.model()
    feeds = {n: round_to(np.asarray(a), dtype) for n, a in model.feeds.items()}
    for tensor in model.proto.graph.initializer:
        if tensor.data_type == TensorProto.DOUBLE:
            rounded = round_to(onnx.numpy_helper.to_array(tensor), dtype)
            tensor.CopyFrom(onnx.numpy_helper.from_array(rounded, tensor.name))
    wrt = list(case.expected) if case.expected is not None else case.differentiated(model)
    wrt = [n for n in wrt if n in feeds]
    if not wrt:
        raise NoOracle("nothing to differentiate by")
    if case.op in FLAT:
        flat_weights = make_weights({n: next(iter(feeds.values())).shape for n in model.outputs}, ones=True)
        return Point(
            feeds, flat_weights, {n: np.zeros_like(feeds[n]) for n in wrt}, "closed form: flat almost everywhere"
        )
    evaluators, torch_result, outputs, trusted = vote(case, model, feeds)
    if not trusted and case.op in UNCONFIRMED:
        raise NoOracle(UNCONFIRMED[case.op])
    floating = [n for n in model.outputs if is_float(outputs[n])]
    weights = make_weights({n: np.asarray(outputs[n]).shape for n in floating}, ones=ones or case.expected is not None)
    by_torch = None
    if case.torch is not None and torch_result is not None:
        by_torch = torch_gradients(case.torch, feeds, weights, wrt)
    if case.expected is not None:
        expected = {n: np.asarray(case.expected[n], np.float64).reshape(feeds[n].shape) for n in wrt}
        if by_torch is None:
            return Point(feeds, weights, expected, "closed form at a point of SPEC.md's conventions")
        if not all(np.allclose(by_torch[n], expected[n], rtol=1e-5, atol=1e-7, equal_nan=True) for n in wrt):
            raise NoOracle("PyTorch and the closed form disagree")
        return Point(feeds, weights, by_torch, f"{torch_name()}, equal to the closed form")
    differences, reason, by = None, "no evaluator in float64", ""
    for evaluator in evaluators:
        try:
            differences = finite_differences(lambda f: weighted_sum(evaluator(f), weights), feeds, wrt, case.step)  # noqa: B023
            by = evaluator.name
            break
        except NoOracle as error:
            reason = str(error)
    if by_torch is not None and differences is not None:
        for n in wrt:
            scale = max(1.0, float(np.max(np.abs(by_torch[n]), initial=0.0)))
            if not np.allclose(by_torch[n], differences[n], rtol=1e-6, atol=1e-7 * scale):
                off = float(np.max(np.abs(by_torch[n] - differences[n])))
                raise NoOracle(f"PyTorch and finite differences disagree by {off:.2g} on d{n}")
        return Point(feeds, weights, by_torch, f"{torch_name()}, confirmed by finite differences")
    if by_torch is not None:
        return Point(feeds, weights, by_torch, torch_name())
    if differences is not None:
        return Point(feeds, weights, differences, by + ("" if trusted else " (its forward values not confirmed)"))
    raise NoOracle(reason)


def vote(case: Any, model: Any, feeds: Mapping[str, np.ndarray]) -> tuple[list[Any], Any, dict[str, Any], bool]:
    """Return the evaluators in float64 and PyTorch's outputs that can be trusted, the outputs, and if two agree.

    Raises NoOracle if several evaluations exist and no two of them agree.
    """
    found: list[tuple[str, Any, dict[str, Any]]] = []
    reasons = []
    for kind, maker in (("reference", Forward), ("runtime", Runtime)):
        if kind == "reference" and (case.op in KNOWN or case.op in FAULTY_IN_REFERENCE):
            continue  # KNOWN: it has none, or computes in float32
        try:
            evaluator = maker(model.proto)
            found.append((kind, evaluator, evaluator(feeds)))
        except NoOracle as error:
            reasons.append(str(error))
    if not any(kind == "runtime" for kind, _, _ in found):
        try:
            low = case.model(dtype=np.float32)
            rounded = {n: a.astype(np.float32) if a.dtype == np.float64 else a for n, a in feeds.items()}
            found.append(("runtime in float32", None, Runtime(low.proto)(rounded)))
        except NoOracle as error:
            reasons.append(str(error))
    by_torch = torch_outputs(case, feeds, model.outputs)
    if by_torch is not None:
        found.append(("torch", None, by_torch))
    usable = [f for f in found if all(n in f[2] for n in model.outputs)]
    if not usable:
        raise NoOracle("; ".join(reasons))
    names = [n for n in model.outputs if is_float(usable[0][2][n])]
    if not names:
        raise NoOracle("no floating-point output")
    trusted = usable
    if len(usable) > 1:
        trusted = [f for f in usable if any(f is not g and same(f[2], g[2], names) for g in usable)]
        if not trusted:
            raise NoOracle(f"{' and '.join(f[0] for f in usable)} disagree on the forward values")
    exact = [f[1] for f in trusted if f[1] is not None and all(np.asarray(f[2][n]).dtype == np.float64 for n in names)]
    return exact, next((f[2] for f in trusted if f[0] == "torch"), None), trusted[0][2], len(usable) > 1


def is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and np.asarray(value).dtype.kind == "f"


def torch_outputs(case: Any, feeds: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray] | None:
    """Return the outputs that PyTorch computes, if the entry has a PyTorch function."""
    if case.torch is None:
        return None
    import torch

    result = case.torch(**{n: torch.tensor(np.asarray(a)) for n, a in feeds.items()})
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
    if any(built.feeds[n].dtype != low[n].dtype for n in low):
        return  # the entry has a type of its own
    types = output_types(forward, helper.np_dtype_to_tensor_dtype(TYPES[dtype]))
    if types is None:
        return
    model = differentiate(forward, low, point.weights, wrt, shapes, dtype, types)
    if model is None:
        return
    proto, feeds = model
    if shapes == "unknown" and output_types(proto, TensorProto.FLOAT) is None:
        return  # the standard's inference wants to know the rank
    expected = {
        f"d{n}": cast(flat(point.expected[n]) if shapes == "unknown" else point.expected[n], dtype) for n in wrt
    }
    rtol, atol = tolerance(dtype, expected.values(), case.op)
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


def output_types(model: onnx.ModelProto, default: int) -> dict[str, int] | None:
    """Return the element types of the outputs, or None if the schemas do not allow the types of `model`."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except Exception:  # noqa: BLE001 (onnx raises several kinds, bare RuntimeError among them)
        return None
    return {o.name: o.type.tensor_type.elem_type or default for o in inferred.graph.output}


def differentiate(
    forward: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray],
    wrt: Sequence[str],
    shapes: str,
    dtype: str,
    types: Mapping[str, int],
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
        if types[name] != element:
            source = f"{name}_cast"
            after.append(helper.make_node("Cast", [name], [source], to=element))
        after.append(helper.make_node("Mul", [source, weight_name], [f"weighted_{name}"]))
        after.append(helper.make_node("ReduceSum", [f"weighted_{name}"], [f"sum_{name}"], keepdims=0))
        terms.append(f"sum_{name}")
    after.append(helper.make_node("Sum", terms, ["total"]))
    xs = [points[n] for n in wrt]
    zs = [i.name for i in inputs if i.name not in xs]
    attributes = {"zs": zs} if zs else {}
    gradients = [f"d{n}" for n in wrt]
    after.append(helper.make_node("Gradient", [*xs, *zs], gradients, domain=TRAINING, xs=xs, y="total", **attributes))
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
