"""Distillation: a teacher becomes frozen nodes of the training algorithm, and of nothing else."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

import onward
from onward import losses
from onward.errors import ArgumentError

RNG = np.random.default_rng(31)


def network(
    hidden: int, seed: int, *, opset: int = 18, softmax: bool = False, name: str = "x", classes: int = 3
) -> onnx.ModelProto:
    """x[N, 4] -> MatMul W1 -> Relu -> MatMul W2 -> y[N, classes]; all names are the same for every size."""
    rng = np.random.default_rng(seed)
    text = f"""
    <ir_version: 8, opset_import: ["": {opset}]>
    net (float[N, 4] {name}) => (float[N, {classes}] y) {{
        h = MatMul({name}, W1)
        r = Relu(h)
        {"logits = MatMul(r, W2) y = Softmax<axis = 1>(logits)" if softmax else "y = MatMul(r, W2)"}
    }}"""
    model = onnx.parser.parse_model(text)
    for key, shape in (("W1", (4, hidden)), ("W2", (hidden, classes))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), key))
    return model


X, LABELS = RNG.normal(size=(6, 4)).astype(np.float32), np.array([0, 2, 1, 1, 0, 2])


def run(model: onnx.ModelProto, x: np.ndarray = X) -> torch.Tensor:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x})[0])


def first_loss(model: onward.TrainingModel, backend: str = "onnxruntime") -> float:
    feeds = dict(zip(onward.Trainer(model).input_names, [X, LABELS], strict=False))
    return float(onward.Trainer(model, backend=backend).step(feeds)["loss"])


def expected(student: onnx.ModelProto, teacher: onnx.ModelProto, alpha: float = 0.5, T: float = 4.0) -> float:
    ours, theirs = run(student), run(teacher)
    soft = F.kl_div(F.log_softmax(ours / T, 1), F.softmax(theirs / T, 1), reduction="batchmean") * T * T
    return float(alpha * soft + (1 - alpha) * F.cross_entropy(ours, torch.from_numpy(LABELS)))


def test_the_loss_is_that_of_hinton_although_all_names_collide() -> None:
    student, teacher = network(5, 1), network(32, 2)

    model = onward.make_trainable(student, teacher=teacher, loss="distillation", optimizer=onward.SGD(0.1))

    assert first_loss(model) == pytest.approx(expected(student, teacher), rel=1e-5)
    assert list(model.parameters) == ["W1", "W2"]
    assert onward.check(model).ok, onward.check(model)


@pytest.mark.parametrize(("alpha", "temperature"), [(0.0, 4.0), (0.3, 1.0), (1.0, 2.0)])
def test_alpha_and_temperature(alpha: float, temperature: float) -> None:
    student, teacher = network(5, 1), network(32, 2)

    model = onward.make_trainable(
        student, teacher=teacher, loss=losses.Distillation(alpha=alpha, temperature=temperature)
    )

    assert first_loss(model) == pytest.approx(expected(student, teacher, alpha, temperature), rel=1e-5)
    assert model.targets == ([] if alpha == 1 else ["labels"])


def test_one_step_moves_the_student_as_pytorch_does_and_leaves_the_teacher() -> None:
    student, teacher = network(5, 1), network(32, 2)
    model = onward.make_trainable(student, teacher=teacher, loss="distillation", optimizer=onward.SGD(0.1))
    trainer = onward.Trainer(model)

    trainer.step({"x": X, "labels": LABELS})

    weights = [
        torch.from_numpy(onnx.numpy_helper.to_array(t).copy()).requires_grad_() for t in student.graph.initializer
    ]
    ours = torch.relu(torch.from_numpy(X) @ weights[0]) @ weights[1]
    soft = F.kl_div(F.log_softmax(ours / 4, 1), F.softmax(run(teacher) / 4, 1), reduction="batchmean") * 16
    (0.5 * soft + 0.5 * F.cross_entropy(ours, torch.from_numpy(LABELS))).backward()
    tuned = {t.name: onnx.numpy_helper.to_array(t) for t in trainer.to_inference().graph.initializer}
    for name, weight in zip(("W1", "W2"), weights, strict=True):
        np.testing.assert_allclose(tuned[name], (weight - 0.1 * weight.grad).detach(), rtol=1e-5, atol=1e-6)


def test_the_inference_model_holds_nothing_of_the_teacher(tmp_path) -> None:
    model = onward.make_trainable(network(5, 1), teacher=network(32, 2), loss="distillation")
    onward.save(model, tmp_path / "both.onnx")

    plain = onward.to_inference(onward.load(tmp_path / "both.onnx"))

    assert [n.op_type for n in plain.graph.node] == ["MatMul", "Relu", "MatMul"]
    assert {t.name for t in plain.graph.initializer} == {"W1", "W2"}
    assert not any("teacher" in text for text in str(plain).split())


def test_a_file_and_a_program_hold_the_teacher(tmp_path) -> None:
    student, teacher = network(5, 1), network(32, 2)
    onward.save(onward.make_trainable(student, teacher=teacher, loss="distillation"), tmp_path / "both.onnx")

    model = onward.load(tmp_path / "both.onnx")

    assert first_loss(model) == pytest.approx(expected(student, teacher), rel=1e-5)
    assert not any("teacher" in name for name in model.state), "an update never replaces what the teacher holds"


@pytest.mark.parametrize(("ours", "theirs"), [(11, 18), (18, 11), (18, 21), (21, 13)])
def test_opsets_are_aligned(ours: int, theirs: int) -> None:
    student, teacher = network(5, 1, opset=ours), network(32, 2, opset=theirs)

    model = onward.make_trainable(student, teacher=teacher, loss="distillation")

    assert first_loss(model) == pytest.approx(expected(student, teacher), rel=1e-5)
    assert onward.check(model).ok


def test_a_softmax_at_the_end_of_the_teacher_is_left_out() -> None:
    model = onward.make_trainable(network(5, 1), teacher=network(32, 2, softmax=True), loss="distillation")

    assert first_loss(model) == pytest.approx(expected(network(5, 1), network(32, 2)), rel=1e-5)


def test_masks_are_taught_with_a_sigmoid() -> None:
    student, teacher = network(5, 1), network(32, 2)
    loss = losses.Distillation(alpha=1.0, temperature=2.0, activation="sigmoid")

    model = onward.make_trainable(student, teacher=teacher, loss=loss)

    p, q = (torch.distributions.Bernoulli(logits=run(net) / 2) for net in (student, teacher))
    expected = 4 * float(torch.distributions.kl_divergence(q, p).mean())
    assert first_loss(model) == pytest.approx(expected, rel=1e-5)


def test_a_softmax_of_one_class_is_refused() -> None:
    with pytest.raises(ArgumentError, match="of output `y` is 1 everywhere"):
        onward.make_trainable(network(5, 1, classes=1), teacher=network(5, 2, classes=1), loss="distillation")


def test_a_softmax_at_the_end_of_the_student_is_refused() -> None:
    with pytest.raises(ArgumentError, match="expects logits, and output `y` is already a Softmax"):
        onward.make_trainable(network(5, 1, softmax=True), teacher=network(8, 2), loss="distillation")


def test_another_name_of_the_only_input_is_joined_by_its_place() -> None:
    model = onward.make_trainable(network(5, 1), teacher=network(32, 2, name="pixels"), loss="distillation")

    assert first_loss(model) == pytest.approx(expected(network(5, 1), network(32, 2)), rel=1e-5)
    assert model.inputs == ["x"]


def test_features_add_their_squared_error() -> None:
    student, teacher = network(5, 1), network(5, 2)

    model = onward.make_trainable(
        student, teacher=teacher, loss=losses.Distillation(features={"r": "h"}, feature_weight=0.7)
    )

    weights = [
        [torch.from_numpy(onnx.numpy_helper.to_array(t).copy()) for t in m.graph.initializer]
        for m in (student, teacher)
    ]
    r, h = torch.relu(torch.from_numpy(X) @ weights[0][0]), torch.from_numpy(X) @ weights[1][0]
    assert first_loss(model) == pytest.approx(expected(student, teacher) + 0.7 * float(F.mse_loss(r, h)), rel=1e-5)


@pytest.mark.parametrize("backend", ["onnxruntime", "reference", "torch"])
def test_the_student_comes_to_agree_with_the_teacher(backend: str) -> None:
    teacher = network(32, 2)
    x = RNG.normal(size=(64, 4)).astype(np.float32)
    model = onward.make_trainable(
        network(16, 1),
        teacher=teacher,
        loss=losses.Distillation(alpha=1.0, temperature=2.0),
        optimizer=onward.Adam(0.05),
    )
    trainer = onward.Trainer(model, backend=backend)

    values = [float(trainer.step({"x": x})["loss"]) for _ in range(40)]

    assert values[-1] < 0.1 * values[0]
    tuned = run(onnx.load_from_string(trainer.to_inference().SerializeToString()), x)
    agreement = float((tuned.argmax(1) == run(teacher, x).argmax(1)).float().mean())
    assert agreement > 0.75, "a third is chance"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "distillation"}, "error[A140]: `Distillation` reads a teacher, and there is none"),
        ({"teacher": network(8, 2)}, "error[A140]: no loss reads the teacher"),
        (
            {"teacher": network(8, 2, classes=4), "loss": "distillation"},
            "the teacher's value `y` has another shape than `y`\n  at loss `Distillation`\n  found: float[N, 4]",
        ),
        (
            {"teacher": network(8, 2), "loss": losses.Distillation(teacher_output="z", features={"h": "hh"})},
            "the teacher has no value `z`",
        ),
        (
            {"teacher": network(8, 2), "loss": losses.Distillation(inputs={"x": "q"})},
            "no input of the student fits the teacher's input `x`",
        ),
        (
            {"teacher": network(8, 2), "loss": losses.Distillation(features={"r": "h"})},
            "the teacher's value `h` has another shape than `r`",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_before_anything_is_made(arguments, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        onward.make_trainable(network(5, 1), **arguments)

    assert message in str(caught.value)


def test_all_values_that_the_teacher_does_not_have_are_listed() -> None:
    with pytest.raises(ArgumentError) as caught:
        onward.make_trainable(
            network(5, 1), teacher=network(8, 2), loss=losses.Distillation(teacher_output="z", features={"h": "hh"})
        )

    assert "`z`" in str(caught.value)
    assert "`hh`" in str(caught.value)


def test_a_teacher_of_another_input_is_refused() -> None:
    teacher = network(8, 2)
    teacher.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 7
    teacher.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.zeros((7, 8), np.float32), "W1"))

    with pytest.raises(ArgumentError, match="the teacher cannot read the student's input `x`"):
        onward.make_trainable(network(5, 1), teacher=teacher, loss="distillation")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.Distillation(alpha=2), "`alpha` of `Distillation` is out of range"),
        (lambda: losses.Distillation(loss=losses.Distillation()), "is not a loss of labels"),
        (lambda: losses.Distillation(features=["h"]), "`features` of `Distillation` is not a mapping"),
        (lambda: losses.Distillation() + losses.MSE(), "a loss that reads a teacher cannot be part of a sum"),
    ],
)
def test_a_wrong_setting_says_what_is_right(make, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make()

    assert message in str(caught.value)


def test_two_losses_share_one_teacher() -> None:
    student, teacher = network(5, 1), network(32, 2)
    student.graph.output.extend([onnx.helper.make_tensor_value_info("r", 1, ["N", 5])])

    model = onward.make_trainable(
        student, teacher=teacher, loss={"y": "distillation", "r": losses.L1()}, label={"y": "labels", "r": "more"}
    )

    trainer = onward.Trainer(model)
    value = trainer.step({"x": X, "labels": LABELS, "more": np.zeros((6, 5), np.float32)})["loss"]
    assert np.isfinite(value)
