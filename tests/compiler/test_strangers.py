"""Training models as others write them: no roles, other structures than `make_trainable` gives."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import onward
from models import batch, dropout_network, perceptron
from onward.compiler.compile import named_entries
from onward.errors import ArgumentError

HEADER = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.preview.training": 1]>'
WEIGHTS = "<float[4,3] W = {0.1,0.2,0.3,0.4,0.5,-0.1,-0.2,-0.3,-0.4,0.5,0.6,0.7}>"
NET = f"""{HEADER}
net (float[N, 4] x, float[N,3] t) => (float cost) {WEIGHTS} {{
    h = MatMul(x, W)
    d = Sub(h, t)
    d2 = Mul(d, d)
    cost = ReduceMean <keepdims = 0> (d2)
}}"""


def trained(algorithm: str) -> onnx.ModelProto:
    model = parser.parse_model(NET)
    info = model.training_info.add()
    info.algorithm.CopyFrom(parser.parse_graph(algorithm))
    info.update_binding.add(key="W", value="W_new")
    return model


def data() -> dict[str, np.ndarray]:
    return {"x": batch()["x"], "t": np.ones((16, 3), np.float32)}


def test_a_loss_that_repeats_a_value_of_the_inference_graph_is_evaluated() -> None:
    model = trained("""alg (float lr) => (float[4,3] W_new, float train_loss) <float lr = {0.1}> {
        h_ = MatMul(x, W)
        e = Sub(h_, t)
        e2 = Mul(e, e)
        train_loss = ReduceMean <keepdims = 0> (e2)
        gW = ai.onnx.preview.training.Gradient <xs = ["W"], zs = ["x", "t"], y = "train_loss"> (W, x, t)
        s = Mul(gW, lr)
        W_new = Sub(W, s)
    }""")
    trainer = onward.Trainer(model, backend="reference")

    found = trainer.evaluate(data())

    assert found["loss"] == pytest.approx(found["cost"])
    assert float(trainer.step(data())["loss"]) == pytest.approx(found["loss"], rel=1e-6)


@pytest.mark.parametrize("backend", ["onnxruntime", "reference", "torch"])
def test_a_loss_that_is_an_output_of_the_inference_graph_is_reported(backend: str) -> None:
    model = trained("""alg (float lr) => (float[4,3] W_new) <float lr = {0.1}> {
        gW = ai.onnx.preview.training.Gradient <xs = ["W"], zs = ["x", "t"], y = "cost"> (W, x, t)
        s = Mul(gW, lr)
        W_new = Sub(W, s)
    }""")
    trainer = onward.Trainer(model, backend=backend)

    before = trainer.evaluate(data())["loss"]
    history = trainer.fit(data(), epochs=2, batch_size=16, validation_data=data(), progress=False)

    assert trainer.program.loss == "cost"
    assert history.epochs[0]["loss"] == pytest.approx(before, rel=1e-5)
    assert history.epochs[1]["val_loss"] < before


def test_a_gradient_in_a_branch_may_name_a_value_outside() -> None:
    model = parser.parse_model(f"""{HEADER}
    net (float[N, 4] x) => (float[N, 4] f) {WEIGHTS} {{
        h = MatMul(x, W)
        a = Tanh(h)
        e = ReduceSum <keepdims = 0> (a)
        level = ReduceSum <keepdims = 0> (x)
        least = Constant <value_float = -1000.0> ()
        high = Greater(level, least)
        f = If (high) <
            then_branch = one () => (float[N,4] o) {{
                o = ai.onnx.preview.training.Gradient <xs = ["x"], zs = ["W"], y = "e"> (x, W)
            }},
            else_branch = other () => (float[N,4] p) {{ p = Identity(x) }}
        >
    }}""")
    trainable = onward.make_trainable(model, loss="mse", optimizer=onward.Adam(0.1))
    feeds = {"x": batch()["x"], "labels": np.ones((16, 4), np.float32)}

    losses = [
        [float(session.step(feeds)["loss"]) for _ in range(3)]
        for session in (onward.Trainer(trainable, backend=b) for b in ("onnxruntime", "reference", "torch"))
    ]

    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-5)
    assert onward.Trainer(trainable).evaluate(feeds)["loss"] == pytest.approx(losses[0][0], rel=1e-6)


@pytest.mark.parametrize("profile", ["default", "portable"])
def test_branches_of_two_ranks_train_where_stated_shapes_must_be_those_inferred(profile: str) -> None:
    """torch exports `squeeze` so. onnxruntime-web refuses what ONNX Runtime refuses with this setting."""
    model = parser.parse_model(f"""{HEADER}
    net (float[N, 4] x) => (float[N, 3] y)
    <float[4,3] W = {{0.1,0.2,0.3,0.4,0.5,-0.1,-0.2,-0.3,-0.4,0.5,0.6,0.7}}, float[3,3] V = {{1,2,-1,3,1,2,-1,1,2}},
     int64[1] first = {{0}}, int64 zero = {{0}}, int64 one = {{1}}> {{
        h = MatMul(x, W)
        sizes = Shape(x)
        samples = Gather(sizes, zero)
        single = Equal(samples, one)
        s = If (single) <
            then_branch = squeezed () => (float[3] a) {{ a = Squeeze(h, first) }},
            else_branch = whole () => (float[N, 3] b) {{ b = Tanh(h) }}
        >
        y = MatMul(s, V)
    }}""")
    program = onward.compile(
        onward.make_trainable(model, loss="mse", freeze=["V"], optimizer=onward.SGD(0.1)), profile=profile
    )
    strict = onnxruntime.SessionOptions()
    strict.add_session_config_entry("session.strict_shape_type_inference", "1")

    for graph in (program.entries["train"].step.proto(), program.infer):
        onnxruntime.InferenceSession(graph.SerializeToString(), strict, ["CPUExecutionProvider"])
    losses = [
        [float(session.step({"x": batch()["x"], "labels": np.ones((16, 3), np.float32)})["loss"]) for _ in range(3)]
        for session in (onward.Trainer(program, backend=b) for b in ("onnxruntime", "reference"))
    ]

    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert losses[0][2] < losses[0][0]


@pytest.mark.parametrize("gradients", ["autograd", "graph"])
def test_marks_that_a_tool_dropped_in_part_are_inferred(gradients: str) -> None:
    """`value_info` is optional, and the marks of inner values are in it."""
    torch = pytest.importorskip("torch")
    whole = onward.make_trainable(dropout_network(), optimizer=onward.Adam(0.1)).proto()
    partial = onnx.ModelProto()
    partial.CopyFrom(whole)
    del partial.training_info[0].algorithm.value_info[:]
    feeds = batch()
    results = []

    for model in (whole, partial):
        module, optimizer = onward.to_torch(model, gradients=gradients)
        module.loss(torch.as_tensor(feeds["x"]), torch.as_tensor(feeds["labels"])).backward()
        optimizer.step()
        results.append(module.tensor("W0").detach().numpy().copy())

    np.testing.assert_array_equal(*results)


def several(*names: str) -> onward.TrainingModel:
    model = onward.make_trainable(perceptron(), entry="e0")
    for index in range(1, len(names)):
        model = onward.make_trainable(model, entry=f"e{index}", label=f"l{index}", loss_name=f"loss{index}")
    for entry, name in zip(model.entries, names, strict=True):
        assert entry.algorithm is not None
        entry.algorithm.name = name
    return model


def test_every_entry_has_a_name_of_its_own() -> None:
    model = several("a", "a_2", "a")

    assert len(named_entries(model)) == len(onward.compile(model).entries) == 3


def test_graphs_whose_names_collide_are_not_confused() -> None:
    model = several("step", "evaluate b", "b step")
    feeds = {**batch(), "l1": batch()["labels"], "l2": batch()["labels"]}
    trainer = onward.Trainer(model, backend="reference")

    found = [trainer.session.evaluate(feeds, entry=entry) for entry in trainer.program.entries]
    trainer.step(feeds)

    assert float(found[0]["loss"]) == pytest.approx(float(found[2]["loss2"]))


def test_the_written_backward_pass_of_several_entries_is_refused() -> None:
    pytest.importorskip("torch")

    with pytest.raises(ArgumentError, match="the written backward pass is that of one training entry"):
        onward.to_torch(several("a", "b"), gradients="graph")


def test_a_model_may_be_given_as_bytes() -> None:
    content = several("a").proto().SerializeToString()

    assert onward.Trainer(content).steps == 0


def test_the_step_of_an_inference_model_is_a_clear_error() -> None:
    with pytest.raises(ArgumentError, match="the model has no training entry"):
        onward.compile(perceptron()).step
