"""Forward cases: ONNX's own node tests without sizes, and the element types that they leave out."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from generate.gradient import TRAINING
from generate.oracle import Forward, NoOracle, Runtime
from generate.tolerance import RELATIVE, tolerance
from generate.writer import Suite, slug

NODE_TESTS = f"onnx {onnx.__version__} node test data"
LARGEST = 40_000  # bytes of all inputs and outputs of a case
RANDOM = {"Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial"}
# What they return in a type is written in an attribute, or is the point of the type itself.
OWN_TYPES = {
    "Cast", "CastLike", "BitCast", "Constant", "ConstantOfShape", "EyeLike", "QuantizeLinear", "DequantizeLinear",
    "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "Dropout", "ImageDecoder",
}  # fmt: skip
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMPY = {n: np.dtype(n) for n in (*INTEGERS, "float16", "float32", "float64", "bool")}
NUMPY["bfloat16"] = np.dtype(ml_dtypes.bfloat16)
ONNX_NAMES = {"float64": "double", "float32": "float"}
# Integers between integers: the standard does not say how they are rounded, and no second oracle has them.
INTERPOLATES = {"GridSample", "Resize"}
# They align the corners of an image whose size was not rounded yet (3.2 pixels). The text of Resize says "the length of
# the resized tensor", and ONNX Runtime and PyTorch agree with the text.
DISPUTED = {"test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"}


def load_tests() -> list[Any]:
    """Return ONNX's node tests, in the order of their names."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sorted(load_model_tests(kind="node"), key=lambda test: str(test.name))


def add_all(suite: Suite) -> Iterator[str]:
    """Write every forward case; yield a sentence for each that no oracle could confirm."""
    tests = [t for t in load_tests() if usable(t)]
    operators = {t.name: operator_of(t).op_type for t in tests if "_expanded" not in t.name}
    for test in tests:
        add_without_sizes(suite, test, operators.get(test.name.split("_expanded")[0], operator_of(test).op_type))
    yield from add_types(suite, [t for t in tests if "_expanded" not in t.name and len(t.model.graph.node) == 1])


def usable(test: Any) -> bool:
    """Tell whether a test has one result that is the same everywhere, and is not large."""
    nodes = test.model.graph.node
    if test.name in DISPUTED:
        return False
    if any(n.op_type in RANDOM or n.domain == TRAINING for n in nodes) or test.name.startswith("test_bernoulli"):
        return False
    if test.name.startswith("test_training_dropout") and "zero_ratio" not in test.name:
        return False
    return sum(size(v) for inputs, outputs in test.data_sets for v in [*inputs, *outputs]) <= LARGEST


def size(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(size, value))
    return 0 if value is None else int(np.asarray(value).nbytes)


def operator_of(test: Any) -> onnx.NodeProto:
    """Return the node under test."""
    return test.model.graph.node[0]


def add_without_sizes(suite: Suite, test: Any, operator: str) -> None:
    """Write a node test with the ranks of its inputs and outputs only."""
    model = without_sizes(test.model)
    if model is None:
        return
    title = test.name.removeprefix("test_")
    expanded = "_expanded" in title
    node = operator_of(test)
    sets = []
    for inputs, outputs in test.data_sets:
        sets.append((named(model.graph.input, inputs), named(model.graph.output, outputs)))
    rtol, atol = allowed(test)
    suite.add(
        f"forward/{operator}/{slug(title)}-rank", model, sets, kind="forward", operator=operator,
        domain="" if expanded else node.domain, dtypes=types_of(test), shapes="rank", oracle=NODE_TESTS, rtol=rtol,
        atol=atol, features=["expanded"] if expanded else [],
    )  # fmt: skip


def allowed(test: Any) -> tuple[float, float]:
    """Return rtol and atol of a node test: ONNX's, or the suite's for the coarsest type of its outputs if larger.

    The expected values of ONNX were computed in the type of the test, so they hold roundings of numpy.
    """
    arrays = [a for _, outputs in test.data_sets for v in outputs for a in (v if isinstance(v, list) else [v])]
    floats = [a for a in map(np.asarray, arrays) if a.dtype.name in RELATIVE]
    if not floats:
        return test.rtol, test.atol
    coarsest = max((a.dtype.name for a in floats), key=RELATIVE.__getitem__)
    rtol, atol = tolerance(coarsest, floats)
    return max(rtol, test.rtol), max(atol, test.atol)


def without_sizes(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return a copy of `model` with ranks only, or None if onnx refuses it so.

    onnx's inference wants to know the length of some vectors (`sizes` of Resize); they keep it if it does.
    """
    for kept in (0, 1):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        for info in [*copy.graph.input, *copy.graph.output]:
            if not kept or len(info.type.tensor_type.shape.dim) != 1:
                forget_sizes(info.type)
        del copy.graph.value_info[:]
        try:
            onnx.checker.check_model(copy, full_check=True)
        except Exception:  # noqa: BLE001 (onnx raises several kinds)
            continue
        return copy
    return None


def named(infos: Sequence[onnx.ValueInfoProto], values: Sequence[Any]) -> dict[str, Any]:
    """Return values by name, an optional or a sequence as the message of its type."""
    found = {}
    for info, value in zip(infos, values, strict=True):
        kind = info.type.WhichOneof("value")
        if kind == "optional_type":
            inner = info.type.optional_type.elem_type.WhichOneof("value")
            code = onnx.OptionalProto.SEQUENCE if inner == "sequence_type" else onnx.OptionalProto.TENSOR
            found[info.name] = onnx.numpy_helper.from_optional(value, info.name, None if value is None else code)
        elif kind == "sequence_type":
            found[info.name] = onnx.numpy_helper.from_list(value, info.name, onnx.SequenceProto.TENSOR)
        else:
            found[info.name] = value
    return found


def forget_sizes(kind: onnx.TypeProto) -> None:
    """Make every dimension unknown and keep the rank, also inside sequences and optionals."""
    which = kind.WhichOneof("value")
    if which in ("sequence_type", "optional_type"):
        forget_sizes(getattr(kind, which).elem_type)
    elif which == "tensor_type" and kind.tensor_type.HasField("shape"):
        for dim in kind.tensor_type.shape.dim:
            dim.Clear()


def types_of(test: Any) -> list[str]:
    """Return the element types of a test's tensors."""
    found = set()
    for inputs, outputs in test.data_sets:
        for value in [*inputs, *outputs]:
            for array in value if isinstance(value, list) else [value]:
                if isinstance(array, np.ndarray | np.generic):
                    kind = np.asarray(array).dtype
                    found.add("string" if kind.kind in "OUS" else kind.name)
    return sorted(found)


def add_types(suite: Suite, tests: Sequence[Any]) -> Iterator[str]:
    """Write, for each operator, one test in each type that its schema allows and no node test of it has."""
    seen: dict[str, set[str]] = collections.defaultdict(set)
    for test in tests:
        seen[operator_of(test).op_type] |= {
            np.asarray(v).dtype.name for inputs, _ in test.data_sets for v in inputs if isinstance(v, np.ndarray)
        }
    for test in tests:
        node = operator_of(test)
        if node.op_type in OWN_TYPES or node.domain not in ("", "ai.onnx") or len(test.data_sets) != 1:
            continue
        if not all(isinstance(v, np.ndarray) for part in test.data_sets[0] for v in part):
            continue
        opset = next(i.version for i in test.model.opset_import if i.domain in ("", "ai.onnx"))
        schema = onnx.defs.get_schema(node.op_type, opset, "")
        for constraint in schema.type_constraints:
            for dtype in sorted(NUMPY):
                name = ONNX_NAMES.get(dtype, dtype)
                if node.op_type in INTERPOLATES and dtype in INTEGERS:
                    continue
                if f"tensor({name})" in constraint.allowed_type_strs and dtype not in seen[node.op_type]:
                    try:
                        if add_type(suite, test, schema, constraint.type_param_str, dtype):
                            seen[node.op_type].add(dtype)
                    except NoOracle as error:
                        yield f"forward {node.op_type} in {dtype}: {error}"


def add_type(suite: Suite, test: Any, schema: Any, parameter: str, dtype: str) -> bool:
    """Write `test` with the inputs of one type parameter in `dtype`; return whether the operator can have it so."""
    node = operator_of(test)
    formal = list(schema.inputs)
    graph = test.model.graph
    given = dict(zip([i.name for i in graph.input], test.data_sets[0][0], strict=True))
    of_parameter = {
        name
        for index, name in enumerate(node.input)
        if name and (formal[index] if index < len(formal) else formal[-1]).type_str == parameter
    }
    if not of_parameter or not all(n in given and given[n].dtype.kind in "fiu" for n in of_parameter):
        return False
    feeds = {n: convert(a, dtype, node.op_type) if n in of_parameter else a for n, a in given.items()}
    is_float = dtype in ("float64", "float16", "bfloat16", "float32")
    wide = {n: a.astype(np.float64) if is_float and n in of_parameter else a for n, a in feeds.items()}
    outputs = Forward(retyped(test.model, wide, None))(wide)
    if any(not isinstance(v, np.ndarray | np.generic) for v in outputs.values()):
        return False
    # The type parameter of an output says whether it comes in the new type.
    expected = {}
    for index, name in enumerate(node.output):
        if not name:
            continue
        value = np.asarray(outputs[name])
        follows = (list(schema.outputs)[min(index, len(schema.outputs) - 1)]).type_str == parameter
        expected[name] = value.astype(NUMPY[dtype]) if follows else value
        if not follows and is_float and value.dtype == np.float64:
            expected[name] = value.astype(np.float32)
    model = retyped(test.model, feeds, expected)
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # noqa: BLE001 (onnx raises several kinds: the type is not allowed here)
        return False
    oracle = f"onnx {onnx.__version__} ReferenceEvaluator" + (" in float64" if is_float else " (numpy)")
    confirmed = confirm(test, model, feeds, expected, dtype, is_float)
    if confirmed is False:
        raise NoOracle(f"ReferenceEvaluator and ONNX Runtime disagree on {test.name}")
    oracle += ", confirmed by ONNX Runtime" if confirmed else ""
    rtol, atol = (0.0, 0.0)
    floats = [a for a in expected.values() if a.dtype.kind == "f" or a.dtype == NUMPY["bfloat16"]]
    if floats:
        rtol, atol = tolerance(dtype if is_float else "float32", floats)
    title = slug(test.name.removeprefix("test_"))
    loose = without_sizes(model)
    if loose is None:
        return False
    suite.add(
        f"forward/{node.op_type}/{title}-{dtype}-rank", loose, [(feeds, expected)], kind="forward",
        operator=node.op_type, dtypes=[dtype], shapes="rank", oracle=oracle, rtol=rtol, atol=atol, features=["types"],
    )  # fmt: skip
    return True


def convert(array: np.ndarray, dtype: str, operator: str) -> np.ndarray:
    """Return similar values in another type: integers are three times as large, so that they differ."""
    values = array.astype(np.float64)
    if dtype == "bool":
        return values > 0
    if dtype in INTEGERS:
        values = np.trunc(values * 3 if array.dtype.kind == "f" else values)
        values = np.abs(values) if dtype.startswith("u") else values
        values = np.clip(values, -11, 11)
        if operator in ("Div", "Mod"):
            values = np.where(values == 0, 1, values)
        return values.astype(NUMPY[dtype])
    with np.errstate(over="ignore"):
        return values.astype(NUMPY[dtype])


def retyped(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray], outputs: dict[str, np.ndarray] | None
) -> onnx.ModelProto:
    """Return a copy of `model` whose inputs, and outputs if given, have the types of the arrays."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for info in copy.graph.input:
        info.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(feeds[info.name].dtype)
    for info in copy.graph.output if outputs else ():
        info.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(outputs[info.name].dtype)
        del info.type.tensor_type.shape.dim[:]
        for length in outputs[info.name].shape:
            info.type.tensor_type.shape.dim.add().dim_value = length
    return copy


def confirm(
    test: Any, model: onnx.ModelProto, feeds: dict[str, np.ndarray], expected: dict[str, np.ndarray], dtype: str,
    is_float: bool,
) -> bool | None:  # fmt: skip
    """Return whether ONNX Runtime gives the same values, or None if it has no such kernel."""
    if dtype == "bfloat16":
        return None  # its Python interface does not take it
    try:
        found = Runtime(model)(feeds)
    except NoOracle:
        return None
    for name, value in expected.items():
        got = np.asarray(found[name])
        if got.shape != value.shape or got.dtype != value.dtype:
            return False
        if value.dtype.kind == "f":
            rtol, atol = tolerance(dtype if is_float else "float32", [value])
            if not np.allclose(got.astype(np.float64), value.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True):
                return False
        elif not np.array_equal(got, value):
            return False
    return True
