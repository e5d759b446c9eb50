"""Every form that a rule offers, forced in turn: the same gradients as the usual form, which other tests prove."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import onward.testing.gradcheck as gradcheck
from cases import Case, all_cases
from onward.autodiff.forms import Forms, Question, answering
from onward.autodiff.rules import convolution
from onward.backends.reference import Evaluator
from onward.compiler.derivatives import gradient
from onward.testing import one_node_model
from rules.test_gradients import OLD_FAULTS
from rules.test_gradients import test_gradient_agrees_with_torch as agrees_with_torch

COLUMNS = {"image-sum", "conv-sum", "conv-flat", "slices-sum", "slices-flat", "lines", "taps", "sums", "textbook"}
FORMS = {
    "Conv dX": {"transpose", "flipped", "product"},
    "Conv dW": COLUMNS | {"image-flat"},
    "ConvTranspose dW": COLUMNS,  # its cases with a kernel of one element have a batch of one, which is flat already
    "MaxPool dX": {"indices", "compare"},
    "AveragePool dX": {"repeat", "pool", "scatter"},
    "LpPool dX": {"repeat", "pool", "scatter"},
}
CASES = [c for c in all_cases() if c.op in {name.split()[0] for name in FORMS}]
by_case = pytest.mark.parametrize("case", CASES, ids=str)


class Force(Forms):
    """Gives one form to one input of every node that offers it."""

    def __init__(self, what: str = "", form: str = "") -> None:
        super().__init__()
        self.what, self.form, self.given = what, form, 0

    def answer(self, question: Question) -> str:
        usual = super().answer(question)
        if f"{question.op_type} d{question.of}" != self.what or self.form not in question.forms:
            return usual
        self.given += 1
        return self.form


def offered(build: Any) -> Iterator[tuple[str, str]]:
    """Yield the other forms that are offered while `build` builds a gradient."""
    asking = Force()
    with answering(asking):
        build()
    for question in asking.asked.values():
        for form in question.forms:
            if form != question.usual:
                yield f"{question.op_type} d{question.of}", form


def built(case: Case, **options: Any) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    model = case.model(**options)
    weights = gradcheck._random_weights(case.model(dtype=options.get("dtype")), seed=0)
    with_loss = gradcheck._with_loss(model, weights)
    return gradient(with_loss, of="testing/loss", wrt=case.differentiated(model)), dict(model.feeds)


def forced(case: Case, what: str, form: str, **options: Any) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    forcing = Force(what, form)
    with answering(forcing):
        made = built(case, **options)
    assert forcing.given
    return made


@pytest.mark.parametrize("dynamic", [False, True], ids=["known", "unknown"])
@by_case
def test_every_form_gives_the_gradient_of_the_usual_one(case: Case, dynamic: bool) -> None:
    if dynamic and case.symbolic:
        pytest.skip(case.symbolic)
    usual, feeds = built(case, dynamic=dynamic)
    expected = Evaluator(usual).run(feeds)

    for what, form in offered(lambda: built(case, dynamic=dynamic)):
        actual = Evaluator(forced(case, what, form, dynamic=dynamic)[0]).run(feeds)

        for name in (n for n in expected if n.startswith("grad/")):
            np.testing.assert_allclose(actual[name], expected[name], rtol=1e-9, atol=1e-11, err_msg=f"{name} {form}")


@pytest.mark.parametrize("case", [c for c in CASES if c.torch is not None], ids=str)
def test_every_form_agrees_with_torch(case: Case) -> None:
    for what, form in offered(lambda: built(case)):
        with answering(Force(what, form)):
            agrees_with_torch(case)


@pytest.mark.parametrize("case", [c for c in CASES if not c.onnxruntime and str(c) not in OLD_FAULTS], ids=str)
def test_onnxruntime_runs_every_form_with_the_reference_numbers(case: Case) -> None:
    for what, form in offered(lambda: built(case, dtype=np.float32)):
        model, feeds = forced(case, what, form, dtype=np.float32)
        onnx.checker.check_model(model, full_check=True)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

        actual = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))

        expected = Evaluator(model).run(feeds)
        for name in (n for n in actual if n.startswith("grad/")):
            np.testing.assert_allclose(actual[name], expected[name], rtol=1e-3, atol=1e-4, err_msg=f"{name} {form}")


def test_the_cases_offer_every_form_there_is() -> None:
    seen: dict[str, set[str]] = {}
    for case in CASES:
        asking = Force()
        with answering(asking):
            built(case)
        for question in asking.asked.values():
            seen.setdefault(f"{question.op_type} d{question.of}", set()).update(question.forms)

    assert seen == FORMS


def test_a_form_that_is_wrong_by_a_thousandth_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = convolution._by_tap
    monkeypatch.setattr(convolution, "_by_tap", lambda rule, *rest: rule.op.Mul(right(rule, *rest), 1.001))
    case = next(c for c in CASES if str(c) == "Conv-2-D")

    with pytest.raises(AssertionError, match="grad/W taps"):
        test_every_form_gives_the_gradient_of_the_usual_one(case, False)


def test_the_portable_profile_has_one_form() -> None:
    case = next(c for c in CASES if c.op == "MaxPool")
    model = case.model()
    asking = Force()

    with answering(asking):
        gradient(gradcheck._with_loss(model, {}), of="testing/loss", wrt=case.differentiated(model), profile="portable")

    assert not asking.asked


def test_a_form_that_does_not_exist_is_the_usual_one() -> None:
    model = one_node_model("MaxPool", X=np.zeros((1, 1, 4, 4)), kernel_shape=[2, 2], strides=[2, 2])
    asking = Forms()
    with answering(asking):
        usual = gradient(gradcheck._with_loss(model, {}), of="testing/loss", wrt=["X"])
    (key,) = asking.asked

    with answering(Forms({key: "a form of another version"})):
        other = gradient(gradcheck._with_loss(model, {}), of="testing/loss", wrt=["X"])

    assert other == usual
