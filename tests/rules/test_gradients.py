"""Every case of every rule, against finite differences, symbolic shapes, PyTorch, ONNX's checker and ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import tomllib

import onward.testing.gradcheck as gradcheck
from cases import Case, all_cases
from cases.text import TextCase
from onward.backends.reference import Evaluator
from onward.compiler.derivatives import gradient
from onward.errors import ModelError
from onward.model.training_model import TrainingModel
from onward.passes.base import INLINED, Unit
from onward.passes.opset import LabelOpset
from onward.testing import assert_gradients, gradients
from onward.versions import RUNTIMES, parse, runtime_needed
from whole import WHOLE

CASES = all_cases()
FIRST = list({(c.op, c.kind): c for c in reversed(CASES)}.values())  # one of each kind for each operator
by_case = pytest.mark.parametrize("case", CASES, ids=str)
by_kind = pytest.mark.parametrize("case", CASES if WHOLE else FIRST, ids=str)  # what rarely depends on the case alone


def weighted(case: Case, **options: object) -> tuple:
    """Return the model, its random output weights and the names to differentiate by."""
    model = case.model(**options)
    return model, gradcheck._random_weights(model, seed=0), case.differentiated(model)


@by_case
def test_gradient_agrees_with_finite_differences(case: Case) -> None:
    model = case.model()
    if case.expected is None:
        assert_gradients(model, case.differentiated(model), rtol=case.rtol, atol=case.atol, step=case.step)
    else:
        actual = gradients(model, list(case.expected))
        for name, expected in case.expected.items():
            np.testing.assert_allclose(actual[name], expected, rtol=case.rtol, atol=case.atol)


@by_case
def test_gradient_is_the_same_with_every_dimension_symbolic(case: Case) -> None:
    if case.symbolic:
        pytest.skip(case.symbolic)
    static, weights, names = weighted(case)
    symbolic = case.model(dynamic=True)

    expected = gradients(static, names, weights=weights)
    actual = gradients(symbolic, names, weights=weights)

    for name in names:
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-12, atol=1e-14)


@by_kind
def test_lowered_graph_passes_the_checker_with_strict_shape_inference(case: Case) -> None:
    for dtype in case.dtypes:
        model = case.model(dtype=dtype)
        names = case.differentiated(model)
        lowered = gradient(gradcheck._with_loss(model, {}), of="testing/loss", wrt=names)

        onnx.checker.check_model(lowered, full_check=True)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")  # special values too large for it
@pytest.mark.parametrize("case", [c for c in FIRST if not isinstance(c, TextCase)], ids=str)
def test_lowered_graph_is_valid_in_bfloat16(case: Case) -> None:
    model = case.model(dtype=ml_dtypes.bfloat16)
    names = [n for n in case.wrt or model.feeds if model.feeds[n].dtype == ml_dtypes.bfloat16]
    try:
        forward = gradcheck._with_loss(model, {})
        onnx.checker.check_model(forward, full_check=True)
    except (KeyError, StopIteration, IndexError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        pytest.skip("the operator does not take bfloat16")
    if not names:
        pytest.skip("nothing to differentiate by in bfloat16")

    lowered = gradient(forward, of="testing/loss", wrt=names)

    onnx.checker.check_model(lowered, full_check=True)


@by_kind
def test_gradient_agrees_with_torch(case: Case) -> None:
    if case.torch is None:
        pytest.skip("PyTorch has no such operator (the case gives none)")
    import torch

    for dtype, rtol, atol in ((np.float64, 1e-9, 1e-11), (np.float32, 2e-4, 2e-5)):
        model, weights, names = weighted(case, dtype=dtype)
        tensors = {n: torch.tensor(np.asarray(a), requires_grad=n in names) for n, a in model.feeds.items()}
        result = case.torch(**tensors)
        results = result if isinstance(result, tuple) else (result,)
        loss = sum(
            (r * torch.tensor(weights[n].astype(r.detach().numpy().dtype))).sum()
            for n, r in zip(weights, results, strict=False)
        )
        expected = torch.autograd.grad(loss, [tensors[n] for n in names], allow_unused=True)

        actual = gradients(model, names, weights=weights)

        for name, grad in zip(names, expected, strict=True):
            wanted = np.zeros_like(model.feeds[name]) if grad is None else grad.numpy()
            np.testing.assert_allclose(actual[name], wanted, rtol=rtol, atol=atol, err_msg=name)


@by_case
def test_onnxruntime_gives_the_reference_numbers(case: Case) -> None:
    if case.onnxruntime:
        pytest.skip(case.onnxruntime)
    if str(case) in OLD_FAULTS:
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__} {OLD_FAULTS[str(case)]}")
    model, weights, names = weighted(case, dtype=np.float32)
    lowered = gradient(gradcheck._with_loss(model, weights), of="testing/loss", wrt=names)
    readable = _with_labels_that_are_read(lowered)
    session = onnxruntime.InferenceSession(readable.SerializeToString(), providers=["CPUExecutionProvider"])

    actual = session.run([f"grad/{n}" for n in names], dict(model.feeds))

    expected = Evaluator(lowered).run(model.feeds)
    for name, value in zip(names, actual, strict=True):
        np.testing.assert_allclose(value, expected[f"grad/{name}"], rtol=1e-3, atol=1e-4, err_msg=name)


def _old_faults() -> dict[str, str]:
    """Return what the oldest runtime does with some cases, by case, if it is the one in use."""
    major, minor, _ = parse(onnxruntime.__version__)
    path = Path(__file__).parents[1] / "versions" / f"onnxruntime_{major}.{minor}.toml"
    listed = tomllib.loads(path.read_text()) if path.exists() else {}
    return {case: what for what, cases in listed.items() for case in cases}


OLD_FAULTS = _old_faults()


def _with_labels_that_are_read(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` as it is, or for a runtime too old for its labels with those that the runtime reads."""
    needed = runtime_needed(onnxruntime.__version__, model.opset_import[0].version, model.ir_version)
    if not needed:
        return model
    major, minor, _ = parse(onnxruntime.__version__)
    reads, lower = RUNTIMES[f"{major}.{minor}"], ir.from_proto(model)
    try:
        LabelOpset(reads.opset)(Unit(TrainingModel(lower), facts={INLINED}))
    except ModelError as error:
        pytest.skip(f"{needed}: {error.diagnostics[0].message}")
    lower.ir_version = reads.ir_version
    return ir.to_proto(lower)


@by_kind
def test_second_derivative_agrees_with_finite_differences(case: Case) -> None:
    if not case.smooth or case.expected is not None:
        pytest.skip("not smooth here")
    model, weights, names = weighted(case)
    rng = np.random.default_rng(1)
    once = gradient(gradcheck._with_loss(model, weights), of="testing/loss", wrt=names)
    # The second derivative is taken along one random direction: d/dx <grad, v>.
    direction = {n: rng.uniform(-1, 1, model.feeds[n].shape) for n in names}
    for name in names:
        once.graph.initializer.append(onnx.numpy_helper.from_array(direction[name], f"v/{name}"))
        once.graph.node.append(onnx.helper.make_node("Mul", [f"grad/{name}", f"v/{name}"], [f"gv/{name}"]))
        once.graph.node.append(onnx.helper.make_node("ReduceSum", [f"gv/{name}"], [f"gvs/{name}"], keepdims=0))
    once.graph.node.append(onnx.helper.make_node("Sum", [f"gvs/{n}" for n in names], ["gv"]))
    once.graph.output.append(onnx.helper.make_tensor_value_info("gv", onnx.TensorProto.DOUBLE, []))
    twice = gradient(once, of="gv", wrt=names)

    actual = Evaluator(twice).run(model.feeds)

    step = 1e-4
    evaluator = Evaluator(once)
    shifted = [
        evaluator.run({n: a + s * step * direction[n] if n in direction else a for n, a in model.feeds.items()})
        for s in (-2, -1, 1, 2)
    ]
    for name in names:
        far, near = shifted[3], shifted[2]
        expected = (
            8 * (near[f"grad/{name}"] - shifted[1][f"grad/{name}"]) - (far[f"grad/{name}"] - shifted[0][f"grad/{name}"])
        ) / (12 * step)
        # H v along the same direction as the difference, so the Hessian is compared as a whole.
        np.testing.assert_allclose(actual[f"grad/{name}_2"], expected, rtol=1e-5, atol=1e-6, err_msg=name)
