"""A directory of checkpoints is a model wherever a model is taken."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import onward
from onward.cli import build_app
from onward.errors import ModelError, OnwardError
from onward.model import serde
from onward.train import CheckpointWarning, Preparation, Trainer
from train.fake import linear_data
from train.test_backends import model, samples
from train.test_fit import make_trainer


def call(*arguments):
    result = CliRunner().invoke(build_app(), [str(a) for a in arguments], catch_exceptions=True)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


@pytest.fixture
def trained(tmp_path):
    """A trainer after two epochs, whose checkpoints are in `run`, and the data in `d.npz`."""
    x, y = samples(120)
    np.savez(tmp_path / "d.npz", x=x, labels=y)
    trainer = Trainer(model())
    trainer.fit(
        x, y, epochs=2, batch_size=16, preparation=Preparation(scale=0.5), checkpoint=tmp_path / "run", progress="none"
    )
    return trainer


@pytest.fixture
def run(trained, tmp_path):
    return tmp_path / "run"


def weights(proto: onnx.ModelProto) -> dict[str, bytes]:
    return {t.name: onnx.numpy_helper.to_array(t).tobytes() for t in proto.graph.initializer}


def test_load_gives_the_model_with_the_state_reached(trained, run):
    loaded = onward.load(run)

    assert serde.to_proto(loaded) == serde.to_proto(trained.to_model())
    assert weights(loaded.proto()) != weights(onnx.load(run / "model.onnx"))


def test_strip_writes_what_the_trainer_would(trained, run, tmp_path):
    call("strip", run, "-o", tmp_path / "i.onnx")

    written, expected = onnx.load(tmp_path / "i.onnx"), trained.to_inference()
    for proto in (written, expected):  # a map, whose order means nothing
        proto.metadata_props.sort(key=lambda entry: entry.key)
    assert {"onward.preparation", "onward.task"} <= {entry.key for entry in written.metadata_props}
    assert written == expected


def test_show_and_check_read_it(run):
    shown = json.loads(call("show", run, "--json").stdout)
    checked = call("check", run).stdout

    assert shown.pop("metadata") == {"onward.preparation": json.dumps(Preparation(scale=0.5).as_dict())}
    assert shown.items() <= json.loads(call("show", run / "model.onnx", "--json").stdout).items()
    assert checked == f"{run}: no problems found\n"


def test_compile_starts_from_its_state(trained, run, tmp_path):
    call("compile", run, "-o", tmp_path / "program")

    program = onward.Program.load(tmp_path / "program")
    for name in program.parameters:
        np.testing.assert_array_equal(program.state[name], trained.parameters[name])


def test_evaluate_gives_the_trainer_s_loss(trained, run, tmp_path):
    x, y = samples(120)

    printed = json.loads(call("evaluate", run, "-d", tmp_path / "d.npz", "--json").stdout)

    assert printed["loss"] == pytest.approx(trained.evaluate(x, y)["loss"], rel=1e-6)


def test_train_starts_a_new_run_from_its_state(trained, run, tmp_path):
    call("train", run, "-d", tmp_path / "d.npz", "-b", 16, "-q", "-o", tmp_path / "more.onnx")

    onward.save(trained.to_model(), tmp_path / "saved.onnx")
    call("train", tmp_path / "saved.onnx", "-d", tmp_path / "d.npz", "-b", 16, "-q", "-o", tmp_path / "same.onnx")
    assert (tmp_path / "more.onnx").read_bytes() == (tmp_path / "same.onnx").read_bytes()
    assert weights(onnx.load(tmp_path / "more.onnx")) != weights(trained.to_model().proto())


def test_train_resumes_the_run_that_it_is_given(run, tmp_path):
    common = ["train", run, "-d", tmp_path / "d.npz", "--scale", "0.5", "-q", "--checkpoint", run, "--resume"]

    call(*common, "--epochs", 3)

    assert Trainer.resume(run).steps == 24


def test_trainer_remembers_how_the_data_was_prepared(run):
    assert Trainer(run).preparation == Preparation(scale=0.5)


def test_doctor_looks_at_it(run):
    found = onward.doctor(run)

    assert found.runtime.runs
    assert found.commands == [f"onward train {run} --data DATA"]


def test_to_torch_takes_it(trained, run):
    pytest.importorskip("torch")

    module, _ = onward.to_torch(run)

    for name, value in module.named_parameters():
        np.testing.assert_array_equal(value.detach().numpy(), trained.parameters[name])


def test_a_damaged_newest_checkpoint_is_passed_over(run):
    newest, older = sorted(run.glob("step-*"), reverse=True)[:2]
    newest.write_bytes(newest.read_bytes()[:-1])

    with pytest.warns(CheckpointWarning, match=f"`{older.name}` is used instead"):
        loaded = onward.load(run)

    expected = onnx.load(run / "model.onnx")
    assert weights(loaded.proto()) != weights(expected)


def test_a_run_without_a_usable_checkpoint_is_no_model(run):
    for path in run.glob("step-*"):
        path.write_bytes(b"")

    with pytest.raises(ModelError, match="no usable checkpoint"):
        onward.load(run)


def test_a_state_of_another_model_is_refused(trained, run, tmp_path):
    other = onnx.load(run / "model.onnx")
    name = next(iter(trained.parameters))
    tensor = next(t for t in other.graph.initializer if t.name == name)
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros(7, np.float32), name))
    stored = trained._stored
    stored._content = other.SerializeToString(deterministic=True)
    stored.__dict__.pop("sha256", None)
    trained.save_checkpoint(tmp_path / "other")

    with pytest.raises(ModelError, match=f"`{name}` of checkpoint .* does not fit the model"):
        onward.load(tmp_path / "other")


def test_a_run_of_a_program_says_that_it_is_no_model(tmp_path):
    trainer = make_trainer()
    trainer.fit(*linear_data(32), batch_size=8, checkpoint=tmp_path / "run", progress="none")

    with pytest.raises(ModelError, match="holds the checkpoints of a compiled program"):
        onward.load(tmp_path / "run")
    again = Trainer(tmp_path / "run", backend="fake")
    np.testing.assert_array_equal(again.state["w"], trainer.state["w"])


def test_another_directory_is_no_model(tmp_path):
    with pytest.raises(OnwardError, match="is a directory, not a model file"):
        onward.load(tmp_path)
