"""What make_trainable writes, and what it refuses."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onward
from author.small import MLP, f32, gradient
from onward import losses, optimizers, samples, schedules
from onward.author import make_trainable
from onward.check import check
from onward.errors import ArgumentError
from onward.model import serde
from onward.model.inference import combined_proto

VARIANTS = {
    "plain": {},
    "schedule": {"optimizer": optimizers.Adam(schedules.Warmup(schedules.Cosine(1e-3, 100), 10))},
    "groups": {"optimizer": optimizers.AdamW(1e-3, groups={"b*": {"weight_decay": 0.0}})},
    "function": {"optimizer": optimizers.TorchAdam(1e-3, amsgrad=True)},
    "everything": {
        "optimizer": optimizers.RMSprop(
            1e-3, clip_value=1.0, clip_norm=1.0, clip_global_norm=1.0, accumulate=4, ema=0.99, momentum=0.9
        )
    },
    "scalars in the state": {"optimizer": optimizers.NAdam()},
    "frozen": {"freeze": ["W1", "b1"]},
    "initialised": {"initialize": "he"},
    "average initialised": {"initialize": "xavier", "optimizer": optimizers.SGD(0.1, ema=0.9)},
    "sum of losses": {"loss": losses.MSE() + 0.1 * losses.L1()},
    "other names": {"label": "t", "loss_name": "error"},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_file_passes_the_strict_checker(name: str) -> None:
    model = make_trainable(samples.perceptron(), **{"loss": "mse", "optimizer": "adam", **VARIANTS[name]})

    report = check(model.proto(), pedantic=True)

    assert report.findings == ()


@pytest.mark.parametrize("name", VARIANTS)
def test_onnx_accepts_the_combined_graph(name: str) -> None:
    model = make_trainable(samples.perceptron(), **{"loss": "mse", "optimizer": "adam", **VARIANTS[name]})

    proto = combined_proto(serde.from_proto(model.proto()), model.entries[0])

    onnx.checker.check_model(proto, full_check=True)


# They read outputs of other shapes; tests/losses/test_valid_files.py makes files with them.
OF_OTHER_SHAPES = {
    "ctc",
    "dice",
    "tversky",
    "iou",
    "giou",
    "diou",
    "ciou",
    "ssd",
    "yolo",
    "anchor_yolo",
    "distillation",
}


@pytest.mark.parametrize(
    "loss", sorted(n for n, kind in losses.NAMES.items() if kind.num_outputs == 1 and n not in OF_OTHER_SHAPES)
)
def test_every_loss_of_one_output_gives_a_valid_file(loss: str) -> None:
    model = make_trainable(samples.perceptron(), loss=loss, optimizer="sgd")

    assert check(model.proto(), pedantic=True).findings == ()


@pytest.mark.parametrize("optimizer", sorted(optimizers.NAMES))
def test_every_optimizer_gives_a_valid_file(optimizer: str) -> None:
    train = "W*" if optimizer == "muon" else "*"  # Muon is for matrices
    model = make_trainable(samples.perceptron(), loss="mse", optimizer=optimizer, train=train)

    assert check(model.proto(), pedantic=True).findings == ()


def test_xs_are_the_parameters_and_zs_all_else_that_the_loss_reads(mlp) -> None:
    model = make_trainable(mlp, loss="mse", optimizer="sgd", freeze="W1")

    node = gradient(model)

    assert node.attributes["xs"].as_strings() == ("W2",)
    assert node.attributes["zs"].as_strings() == ("x", "labels", "W1")
    assert [v.name for v in node.inputs] == ["W2", "x", "labels", "W1"]
    assert [v.name for v in node.outputs] == ["grad/W2"]


def test_labels_loss_and_rate_have_the_agreed_names(mlp) -> None:
    model = make_trainable(mlp, loss="mse", optimizer="adam")

    algorithm = model.entries[0].algorithm

    assert [v.name for v in algorithm.inputs] == ["labels", "learning_rate"]
    assert algorithm.outputs[0].name == "loss"
    assert set(model.state) == {"step", "adam/v/W1", "adam/h/W1", "adam/v/W2", "adam/h/W2"}


def test_labels_take_their_shape_from_the_output(build) -> None:
    proto = build("m (float[batch, 3, 8, 8] x) => (float[batch, 5, 8, 8] y) { y = Conv(x, W) }", W=f32(5, 3, 1, 1))

    model = make_trainable(proto, loss="cross_entropy", optimizer="sgd")

    label = model.entries[0].algorithm.inputs[0]
    assert (label.dtype.name, [str(d) for d in label.shape]) == ("INT64", ["batch", "8", "8"])


def test_the_model_that_was_given_stays_as_it_was(mlp) -> None:
    before = mlp.SerializeToString()

    make_trainable(mlp, loss="mse", optimizer="adam", initialize="he")

    assert mlp.SerializeToString() == before


def test_the_inference_graph_keeps_its_nodes(mlp) -> None:
    model = make_trainable(mlp, loss="mse", optimizer="adam")

    assert model.proto().graph.node == serde.from_proto(mlp).proto().graph.node


def test_reading_the_file_again_gives_the_same_file(mlp) -> None:
    proto = make_trainable(mlp, loss="mse", optimizer=optimizers.TorchAdam(accumulate=2)).proto()

    again = serde.from_proto(proto).proto()

    assert again.SerializeToString() == proto.SerializeToString()


def test_parameters_listed_as_inputs_are_inputs_no_more(build) -> None:
    text = "m (float[N, 3] x, float[3, 2] W) => (float[N, 2] y) { y = MatMul(x, W) }"
    proto = build(text, W=f32(3, 2))

    model = make_trainable(proto, loss="mse", optimizer="sgd")

    assert [v.name for v in model.graph.inputs] == ["x"]
    assert check(model.proto(), pedantic=True).findings == ()


def test_an_old_model_is_upgraded_first(build) -> None:
    text = "m (float[N, 3] x) => (float[N] y) { h = MatMul(x, W) y = Squeeze <axes = [1]> (h) }"

    model = make_trainable(build(text, opset=11, ir_version=6, W=f32(3, 1)), loss="mse", optimizer="sgd")

    assert (model.opset, model.ir.ir_version) == (18, 8)
    assert check(model.proto(), pedantic=True).findings == ()


def test_half_precision_weights_train(build) -> None:
    text = "m (float16[N, 3] x) => (float16[N, 2] y) { y = MatMul(x, W) }"

    model = make_trainable(build(text, W=f32(3, 2).astype(np.float16)), loss="mse", optimizer="adam")

    assert model.state["adam/v/W"].dtype.name == "FLOAT"
    assert check(model.proto(), pedantic=True).findings == ()


def test_bfloat16_is_refused_because_gradient_does_not_take_it(build) -> None:
    proto = build("m (float[N, 3] x) => (float[N, 2] y) { b = Cast <to = 1> (W) y = MatMul(x, b) }", W=f32(3, 2))
    raw = np.zeros(6, np.uint16).tobytes()
    proto.graph.initializer[0].CopyFrom(helper.make_tensor("W", TensorProto.BFLOAT16, [3, 2], raw, raw=True))

    with pytest.raises(ArgumentError, match="error\\[A114\\]: `W` is bfloat16, which Gradient cannot differentiate"):
        make_trainable(proto, loss="mse")


def test_a_taken_name_asks_for_another(build) -> None:
    text = "m (float[N, 3] x) => (float[N, 2] y) { y = MatMul(x, W) }"

    with pytest.raises(ArgumentError) as caught:
        make_trainable(build(text, W=f32(3, 2)), loss="mse", label="x")

    assert str(caught.value) == (
        "error[A112]: the model already has a value called `x`\n  at label=\n"
        '  needed: a name that the model does not use\n\nhint: pass label="target/x" or another free name'
    )


def test_the_default_names_give_way_to_those_of_the_model(build) -> None:
    """mne-icalabel's ICLabelNet has an output `labels`."""
    text = "m (float[N, 3] loss) => (float[N, 2] labels) { labels = MatMul(loss, W) }"

    trainer = onward.Trainer(make_trainable(build(text, W=f32(3, 2)), loss="mse", optimizer=optimizers.SGD(0.1)))

    assert trainer.input_names == ("loss", "target/labels")
    batch = {"loss": f32(4, 3), "target/labels": f32(4, 2)}
    losses = [float(trainer.step(batch)["train/loss"]) for _ in range(2)]
    assert losses[1] < losses[0]


@pytest.mark.parametrize("argument", ["label", "loss_name"])
def test_an_empty_name_is_refused(argument: str) -> None:
    with pytest.raises(ArgumentError, match="a value must have a name"):
        make_trainable(samples.perceptron(), loss="mse", optimizer=optimizers.SGD(0.1), **{argument: ""})


def test_a_model_with_training_information_is_refused() -> None:
    with pytest.raises(ArgumentError, match="error\\[A113\\]: the model already has a training entry `train`"):
        make_trainable(samples.build("linear"), loss="mse")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "mze"}, "error[A100]: no such loss `mze`"),
        ({"optimizer": "adamm"}, "error[A100]: no such optimizer `adamm`"),
        ({"optimizer": 3}, "error[A101]: invalid optimizer"),
        ({"loss": 3}, "error[A101]: invalid loss"),
        ({"output": "z"}, "error[A100]: no such value in the model `z`\n  at output="),
        ({"batch_norm": "eval"}, "needed: one of: always, freeze, recover, train"),
        ({"initialize": "hee"}, "error[A100]: no such initialisation `hee`"),
        ({"initialize": {"Z": "he"}}, "error[A110]: `Z` matches no parameter or running statistic"),
        ({"loss": losses.MSE(reduction="none")}, "error[A115]: the loss is not one number\n  at loss=\n  found: shape"),
    ],
)
def test_a_wrong_argument_names_the_right_ones(mlp, arguments, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make_trainable(mlp, **{"loss": "mse", **arguments})

    assert message in str(caught.value)


@pytest.mark.parametrize("optimizer", ["adam", "torch_adam", "sgd"])
@pytest.mark.parametrize(("dtype", "text"), [(np.float64, "double"), (np.float16, "float16")])
def test_other_precisions_train(build, steps, dtype: type, text: str, optimizer: str) -> None:
    proto = build(MLP.replace("float[", f"{text}["), W1=f32(3, 4).astype(dtype), W2=f32(4, 2).astype(dtype))
    model = make_trainable(proto, loss="mse", optimizer=optimizers.by_name(optimizer, learning_rate=0.01))
    feeds = {"x": f32(8, 3).astype(dtype), "labels": f32(8, 2).astype(dtype)}

    running = steps(model)
    found = [float(running.step(feeds)["loss"]) for _ in range(20)]

    assert running.state["W1"].dtype == dtype
    assert found[-1] < found[0]
    assert check(model.proto(), pedantic=True).findings == ()


def test_the_metadata_says_loss_and_optimizer(mlp) -> None:
    model = make_trainable(mlp, loss="mse", optimizer=optimizers.SGD(schedules.Step(0.1, every=5)))

    metadata = model.entries[0].algorithm.metadata_props

    assert metadata["onward.loss"] == "MSE(reduction='mean')"
    assert '"name": "SGD"' in metadata["onward.optimizer"]
    assert '"every": 5' in metadata["onward.optimizer"]
