"""The initialization graph, and the stored weights that go with it."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from onward import optimizers, samples
from onward.author import make_trainable
from onward.compiler.compile import compile_model
from onward.errors import ArgumentError
from onward.graph.random_numbers import normal, uniform
from onward.model.inference import to_inference


def run_initialization(model) -> dict[str, np.ndarray]:
    info = model.proto().training_info[0]
    proto = onnx.helper.make_model(info.initialization, opset_imports=[onnx.helper.make_opsetid("", model.opset)])
    onnx.checker.check_model(proto, full_check=True)
    outputs = dict(
        zip([o.name for o in info.initialization.output], ReferenceEvaluator(proto).run(None, {}), strict=True)
    )
    return {b.key: outputs[b.value] for b in info.initialization_binding}


def test_keep_resets_the_optimizer_and_not_the_weights() -> None:
    model = make_trainable(samples.perceptron(), loss="mse", optimizer=optimizers.Adagrad(initial_accumulator=0.5))

    values = run_initialization(model)

    assert set(values) == set(model.state)
    assert values["step"] == 0
    np.testing.assert_array_equal(values["adagrad/h/W1"], np.full((3, 4), 0.5, np.float32))


def test_he_draws_weights_and_clears_biases() -> None:
    network = samples.perceptron(inputs=100, hidden=300, outputs=2)
    model = make_trainable(network, loss="mse", optimizer="sgd", initialize="he")

    values = run_initialization(model)

    assert values["W1"].shape == (100, 300)
    np.testing.assert_allclose(values["W1"].std(), np.sqrt(2 / 100), rtol=0.02)
    np.testing.assert_array_equal(values["b1"], np.zeros(300))


def test_xavier_is_uniform_between_its_bounds() -> None:
    network = samples.perceptron(inputs=100, hidden=300, outputs=2)
    model = make_trainable(network, loss="mse", optimizer="sgd", initialize="xavier")

    found = run_initialization(model)["W1"]

    bound = np.sqrt(6 / 400)
    assert 0.99 * bound < np.abs(found).max() <= bound


def test_fans_of_convolutions_count_the_kernel() -> None:
    model = make_trainable(samples.mnist_network(), optimizer="sgd", initialize="he")

    np.testing.assert_allclose(run_initialization(model)["conv2.weight"].std(), np.sqrt(2 / (6 * 25)), rtol=0.05)


def test_fans_of_a_transposed_gemm_are_read_from_its_attribute() -> None:
    model = make_trainable(samples.mnist_network(), optimizer="sgd", initialize="he")

    np.testing.assert_allclose(run_initialization(model)["fc1.weight"].std(), np.sqrt(2 / 400), rtol=0.02)


def test_the_stored_weights_are_drawn_too() -> None:
    network = samples.perceptron(inputs=100, hidden=300, outputs=2)

    model = make_trainable(network, loss="mse", optimizer="sgd", initialize="he")

    stored = model.parameters["W1"].const_value.numpy()
    np.testing.assert_allclose(stored.std(), np.sqrt(2 / 100), rtol=0.02)


def test_another_seed_gives_other_weights() -> None:
    first, second = (
        make_trainable(samples.perceptron(), loss="mse", initialize="he", seed=seed).proto().SerializeToString()
        for seed in (0, 1)
    )

    assert first != second


def test_globs_choose_how_each_weight_starts() -> None:
    model = make_trainable(
        samples.perceptron(),
        loss="mse",
        optimizer="sgd",
        initialize={"b*": 0.25, "W1": ("uniform", 0.5), "W2": "keep"},
    )

    values = run_initialization(model)

    assert set(values) == {"b1", "b2", "W1", "step"}
    np.testing.assert_array_equal(values["b1"], np.full(4, 0.25))
    assert np.abs(values["W1"]).max() <= 0.5


def test_the_average_starts_where_the_weights_start() -> None:
    model = make_trainable(samples.perceptron(), loss="mse", optimizer=optimizers.SGD(ema=0.9), initialize="he")

    binding = model.entries[0].initialization_binding

    assert binding["ema/W1"] == binding["W1"] == "init/W1"
    stored = model.initializers()
    np.testing.assert_array_equal(stored["ema/W1"].const_value.numpy(), stored["W1"].const_value.numpy())


def test_running_statistics_start_at_zero_and_one(build) -> None:
    ones = np.ones(2, np.float32)
    proto = build(
        "m (float[N, 2] x) => (float[N, 2] y) { y = BatchNormalization(x, s, b, m, v) }",
        s=3 * ones, b=ones, m=5 * ones, v=7 * ones,
    )  # fmt: skip

    values = run_initialization(make_trainable(proto, loss="mse", optimizer="sgd", initialize="he"))

    assert {n: v.tolist() for n, v in values.items() if n != "step"} == {
        "s": [1.0, 1.0], "b": [0.0, 0.0], "m": [0.0, 0.0], "v": [1.0, 1.0],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"*": ("gauss", 1.0)}, "no such distribution `gauss`"),
        ({"*": ("normal", -1.0)}, "`scale` of `initialize` is out of range"),
        ({"*": [1]}, "invalid initialisation"),
    ],
)
def test_a_wrong_initialisation_says_what_is_right(rule, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_trainable(samples.perceptron(), loss="mse", initialize=rule)


def test_our_random_numbers_are_splitmix64() -> None:
    """The published sequence for seed 0; the samples' bytes depend on it."""
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]

    np.testing.assert_array_equal(uniform(0, 0, (4,)), [(bits >> 11) / 2**53 for bits in published])


def test_our_random_numbers_have_the_right_moments() -> None:
    flat, bell = uniform(1, 2, (100_000,)), normal(1, 2, (100_000,))

    np.testing.assert_allclose([flat.mean(), flat.var()], [1 / 2, 1 / 12], rtol=0.01)
    np.testing.assert_allclose([bell.mean(), bell.std()], [0, 1], atol=0.01)
    assert 0 <= flat.min() < flat.max() < 1


def test_inference_takes_the_average_when_asked() -> None:
    model = make_trainable(samples.perceptron(), loss="mse", optimizer=optimizers.SGD(ema=0.9))
    state = {"ema/W1": np.full((3, 4), 7.0, np.float32)}

    proto = to_inference(model, state, average=True)

    weights = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    np.testing.assert_array_equal(weights["W1"], state["ema/W1"])
    np.testing.assert_array_equal(weights["W2"], model.parameters["W2"].const_value.numpy())


def test_inference_takes_the_current_state_and_leaves_the_rest_out() -> None:
    model = make_trainable(samples.perceptron(), loss="mse", optimizer=optimizers.TorchAdam())
    state = {
        "W1": np.ones((3, 4), np.float32),
        "torchadam/m/W1": np.ones((3, 4), np.float32),
        "step": np.array(5),
        "random/key": np.array(1),
    }

    proto = to_inference(model, state)

    onnx.checker.check_model(proto, full_check=True)
    assert [t.name for t in proto.graph.initializer] == ["W1", "b1", "W2", "b2"]
    assert (len(proto.functions), [o.domain for o in proto.opset_import]) == (0, [""])
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(proto.graph.initializer[0]), state["W1"])
    assert not np.array_equal(model.parameters["W1"].const_value.numpy(), state["W1"])


def test_state_of_the_wrong_shape_is_refused() -> None:
    model = make_trainable(samples.perceptron(), loss="mse", optimizer="sgd")

    with pytest.raises(ArgumentError) as caught:
        to_inference(model, {"W1": np.ones((3, 5), np.float32), "b1": np.ones(4)})

    assert str(caught.value) == (
        "error[A101]: the state of `W1` does not fit\n  at state=\n"
        "  found: float32 [3, 5]\n  needed: float32 [3, 4]\n\n"
        "error[A101]: the state of `b1` does not fit\n  at state=\n  found: float64 [4]\n  needed: float32 [4]"
    )


def test_unknown_state_is_refused() -> None:
    model = make_trainable(samples.perceptron(), loss="mse", optimizer="sgd")

    with pytest.raises(ArgumentError, match="no such initializer `W3`"):
        to_inference(model, {"W3": np.ones(1)})


def test_the_compiled_initialisation_draws_and_clears() -> None:
    model = make_trainable(
        samples.perceptron(inputs=50, hidden=200), loss="mse", optimizer=optimizers.Adam(ema=0.9), initialize="he"
    )
    program = compile_model(model)
    session = onnxruntime.InferenceSession(program.initialize.SerializeToString(), providers=["CPUExecutionProvider"])

    feeds = {i.name: np.array(3, np.int64) for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    values = dict(zip(names, session.run(None, feeds), strict=True))

    np.testing.assert_allclose(values["next/W1"].std(), np.sqrt(2 / 50), rtol=0.05)
    np.testing.assert_array_equal(values["next/ema/W1"], values["next/W1"])
    np.testing.assert_array_equal(values["next/adam/v/W1"], np.zeros((50, 200)))
