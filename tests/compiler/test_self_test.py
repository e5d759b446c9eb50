"""Every program carries a test that finds a runtime with wrong numbers, and names the tensor."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

import onward
from models import batch, dropout_network, perceptron
from onward.backends.onnxruntime.native import library
from onward.backends.self_test import run_self_test
from onward.cli import build_app
from onward.compiler.make_self_test import NoSelfTestWarning, make_self_test
from onward.compiler.package import manifest_text, pack_program
from onward.compiler.program import Program
from onward.compiler.self_test import checksum
from onward.errors import ArgumentError, BackendError, ModelError
from onward.graph.builder import Builder, Names
from onward.graph.walk import all_names
from whole import sample


def trainable(net: onnx.ModelProto | None = None, optimizer=None, **options) -> onward.TrainingModel:
    options = {"loss": "cross_entropy", **options}
    return onward.make_trainable(net or perceptron(), optimizer=optimizer or onward.Adam(1e-2), **options)


def program_of(model: onward.TrainingModel, **options) -> Program:
    program = onward.compile(model, **options)
    return dataclasses.replace(program, self_test=make_self_test(program))


def normalised() -> onnx.ModelProto:
    """Return a network whose first bias has no influence: its gradient is rounding, of which Adam makes whole steps."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        net (float[N, 3, 8, 8] x) => (float[N, 4] logits)
        {
            c = Conv<kernel_shape = [3, 3]>(x, W, b)
            n = BatchNormalization(c, scale, shift, mean, var)
            r = Relu(n)
            p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
            f = Flatten(p)
            logits = MatMul(f, V)
        }""")
    weights = {
        "W": rng.normal(size=(6, 3, 3, 3)) * 0.3,
        "b": rng.normal(size=6) * 0.1,
        "scale": rng.uniform(0.5, 1.5, 6),
        "shift": rng.normal(size=6) * 0.1,
        "mean": rng.normal(size=6) * 0.1,
        "var": rng.uniform(0.5, 1.5, 6),
        "V": rng.normal(size=(54, 4)) * 0.2,
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items())
    return model


def embedding() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        net (int64[N, T] ids) => (float[N, 3] logits)
        {
            axis = Constant<value_ints = [1]>()
            e = Gather(table, ids)
            m = ReduceMean<keepdims = 0>(e, axis)
            logits = MatMul(m, W)
        }""")
    weights = {"table": rng.normal(size=(50, 6)), "W": rng.normal(size=(6, 3))}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items())
    return model


MODELS = {
    **{name: (lambda name=name: onward.samples.build(name)) for name in onward.samples.SAMPLES},
    "dropout": lambda: trainable(dropout_network()),
    "normalised": lambda: trainable(normalised()),
    "embedding": lambda: trainable(embedding(), onward.SGD(0.1)),
    "lion": lambda: trainable(optimizer=onward.optimizers.Lion(1e-3)),
}


PAIRS = [(name, backend) for name in MODELS for backend in ("onnxruntime", "reference", "torch", "jax")]
COMPILED = [(name, "jax") for name in ("digits", "mnist", "normalised", "embedding", "lion")]  # seconds each


@pytest.mark.parametrize(("name", "backend"), sample(PAIRS, [p for p in PAIRS if p not in COMPILED]))
def test_our_backends_pass(name: str, backend: str) -> None:
    program = program_of(MODELS[name]())

    assert run_self_test(program, backend) == 1 + len(program.entries[next(iter(program.entries))].step.replaces)


# ------------------------------------------------------------------ what it finds


def planted(program: Program, gradient: str, factor: float) -> Program:
    """Return the program with one gradient of its step multiplied."""
    (entry,) = program.entries.values()
    model = entry.step.copy_model()
    value = next(o for node in model.graph for o in node.outputs if o.name == gradient)
    op = Builder(entry.step.opset, Names(all_names(model.graph)))
    users = [(node, at) for node, at in value.uses()]
    wrong = op.Mul(value, np.asarray(factor, value.dtype.numpy()))
    model.graph.insert_after(value.producer(), op.nodes)
    for node, at in users:
        node.replace_input_with(at, wrong)
    step = dataclasses.replace(entry.step, model=model)
    return dataclasses.replace(program, entries={entry.name: dataclasses.replace(entry, step=step)})


def deviating(program: Program) -> list[str]:
    """Return the states that the self-test names."""
    try:
        run_self_test(program, "onnxruntime")
    except BackendError as error:
        return [d.message.split("`")[1] for d in error.diagnostics]
    return []


@pytest.mark.parametrize("name", MODELS)
def test_a_gradient_that_is_wrong_by_a_thousandth_is_found(name: str) -> None:
    model = MODELS[name]()
    program = program_of(model)
    (split,) = onward.compile(model, split=True).entries.values()
    gradients = {x: gradient for gradient, (_, x) in split.gradients.gradient_of.items()}

    found = {x: deviating(planted(program, gradient, 1.001)) for x, gradient in gradients.items()}

    # The bias in front of the normalisation has no gradient but rounding.
    assert [x for x, names in found.items() if not names] == (["b"] if name == "normalised" else [])
    assert not [(x, n) for x, names in found.items() for n in names if n in program.parameters and n != x]


def test_the_message_says_where_what_and_how_much() -> None:
    program = program_of(trainable())

    with pytest.raises(BackendError) as caught:
        run_self_test(planted(program, "grad/W0", 2.0), "onnxruntime")

    text = str(caught.value)
    assert "error[B102]: the new state `" in text
    assert "deviates on backend `onnxruntime`" in text
    assert f"self-test of training entry `{next(iter(program.entries))}`" in text
    assert "found: checksum " in text
    assert "needed: checksum " in text


def test_checksums_see_a_swap_and_a_sign() -> None:
    old, new = np.zeros(4), np.array([1.0, 2.0, 3.0, 4.0])

    assert checksum(old, new)[0] != checksum(old, new[::-1])[0]
    assert checksum(old, new) != checksum(old, -new)
    assert checksum(np.array([True, False]), np.array([True, True])) == (np.cos(1.0), 1.0)
    assert not np.isfinite(checksum(old, np.array([1, np.inf, 0, 0]))).any()


def test_a_long_tensor_is_summed_in_parts() -> None:
    change = np.random.default_rng(0).normal(size=3_000_001)

    sums = checksum(np.zeros_like(change), change)

    np.testing.assert_allclose(sums, [change @ np.cos(np.arange(change.size)), np.abs(change).sum()], rtol=1e-9)


# ------------------------------------------------------------------ the batch


def test_indices_stay_within_classes_and_rows() -> None:
    test = make_self_test(onward.compile(trainable(embedding())))

    assert test.batch["ids"].max() < 50
    assert test.batch["ids"].max() > 3  # and are not only the first rows
    assert set(test.batch["labels"]) <= {0, 1, 2}


def test_a_given_batch_is_used_and_kept(tmp_path: Path) -> None:
    program = onward.compile(trainable())
    given = batch(5)

    program.save(tmp_path / "first", self_test=given)
    again = Program.load(tmp_path / "first")
    again.save(tmp_path / "second")

    np.testing.assert_array_equal(Program.load(tmp_path / "second").self_test.batch["x"], given["x"])
    assert Program.load(tmp_path / "second").self_test.entries == again.self_test.entries


def test_a_batch_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    program = onward.compile(trainable())

    with pytest.raises(ArgumentError, match=r"A142.*the batch lacks `labels`"):
        program.save(tmp_path, self_test={"x": batch()["x"]})
    with pytest.raises(ArgumentError, match="no such input `y`"):
        program.save(tmp_path, self_test={**batch(), "y": 1})
    with pytest.raises(ArgumentError, match="does not run"):
        program.save(tmp_path, self_test={**batch(), "x": np.zeros((2, 3, 4))})
    with pytest.raises(ArgumentError, match="the batch is 5"):
        program.save(tmp_path, self_test=5)
    assert list(tmp_path.iterdir()) == []


def test_without_a_finite_loss_there_is_none_and_a_warning_says_why(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        net (float[N, 2] x) => (float[N, 2] y)
        <float[2] w = {0, 0}> { t = Mul(x, w) y = Log(t) }""")
    program = onward.compile(trainable(model, loss="mse"))

    with pytest.warns(NoSelfTestWarning, match=r"warning\[A142\]: no self-test can be made: the loss .* is "):
        program.save(tmp_path)

    assert "self_test" not in json.loads((tmp_path / "manifest.json").read_text())
    assert Program.load(tmp_path).self_test is None


def test_text_cannot_be_stored() -> None:
    program = onward.compile(trainable())
    inputs = (dataclasses.replace(program.inputs[0], dtype="object"),)

    with pytest.raises(ArgumentError, match="cannot hold what `x` takes"):
        make_self_test(dataclasses.replace(program, inputs=inputs))


# ------------------------------------------------------------------ files


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    onward.compile(trainable(dropout_network())).save(tmp_path / "program")
    return tmp_path / "program"


def test_the_manifest_has_the_expected_numbers(directory: Path) -> None:
    manifest = json.loads((directory / "manifest.json").read_text())

    stored = manifest["self_test"]
    (entry,) = stored["entries"].values()

    assert stored["file"] == "self_test.safetensors"
    assert set(entry["state"]) == {o["replaces"] for o in manifest["graphs"]["step"]["outputs"] if o["role"] == "state"}
    assert entry["state"]["random/step"]["checksum"] == [1.0, 1.0]
    assert all(t["tolerance"] > 0 for t in entry["state"].values())


def test_the_same_model_gives_the_same_bytes(directory: Path, tmp_path: Path) -> None:
    onward.compile(trainable(dropout_network())).save(tmp_path / "again")

    assert {p.name: p.read_bytes() for p in directory.iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "again").iterdir()
    }


def test_a_program_of_an_earlier_version_has_none_and_works(directory: Path) -> None:
    manifest = json.loads((directory / "manifest.json").read_text())
    del manifest["self_test"], manifest["sha256"]
    (directory / "manifest.json").write_text(json.dumps(manifest))
    (directory / "self_test.safetensors").unlink()

    trainer = onward.Trainer(directory, backend="torch")

    assert np.isfinite(trainer.step(batch())["loss"])


def test_a_damaged_test_is_noticed(directory: Path) -> None:
    manifest = json.loads((directory / "manifest.json").read_text())
    path = directory / "self_test.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ModelError, match=r"`self_test.safetensors` was changed"):
        Program.load(directory)
    path.write_bytes(data)

    for change in ({"file": "../self_test.safetensors"}, {"entries": {"other": {}}}, {"entries": 3}):
        broken = {**manifest, "self_test": {**manifest["self_test"], **change}}
        (directory / "manifest.json").write_text(json.dumps(broken))
        with pytest.raises(ModelError, match="not a complete program"):
            Program.load(directory)


def test_a_checkpoint_does_not_carry_it(directory: Path) -> None:
    program = Program.load(directory)

    assert pack_program(program) == pack_program(dataclasses.replace(program, self_test=None))


# ------------------------------------------------------------------ who runs it


def wrong(directory: Path) -> Program:
    return planted(Program.load(directory), "grad/W1", 1.01)


def test_a_trainer_runs_it_on_other_backends(directory: Path) -> None:
    with pytest.raises(BackendError, match=r"B102.*deviates on backend `reference`"):
        onward.Trainer(wrong(directory), backend="reference")

    onward.Trainer(wrong(directory), backend="reference", self_test=False)
    onward.Trainer(wrong(directory), native=False)  # ONNX Runtime on the CPU made it
    with pytest.raises(BackendError, match=r"B102.*deviates on backend `onnxruntime`"):
        onward.Trainer(wrong(directory), self_test=True)


@pytest.mark.skipif(library.compiler() is None, reason="no C compiler: there are no native kernels")
def test_a_trainer_runs_it_on_native_kernels(tmp_path: Path) -> None:
    program = onward.compile(onward.samples.build("digits"))
    program.save(tmp_path / "digits")
    loaded = Program.load(tmp_path / "digits")
    assert loaded.self_test is not None
    expected = loaded.self_test.entries["train"]
    test = dataclasses.replace(
        loaded.self_test, entries={"train": dataclasses.replace(expected, loss=expected.loss * 1.01)}
    )
    other = dataclasses.replace(loaded, self_test=test)

    onward.Trainer(loaded, native=True)
    onward.Trainer(other, native=False)
    with pytest.raises(BackendError, match=r"B102.*the loss deviates on backend `onnxruntime`"):
        onward.Trainer(other, native=True)


def test_a_trainer_makes_one_for_a_model_if_asked() -> None:
    trainer = onward.Trainer(trainable(), backend="torch", self_test=True)

    assert trainer.program.self_test is not None
    assert trainer.steps == 0


def run(*words: str):
    return CliRunner().invoke(build_app(), [str(w) for w in words])


def test_check_runs_it(directory: Path) -> None:
    done = run("check", directory, "--backend", "torch")

    assert done.exit_code == 0, done.output
    assert "no problems found" in done.output
    assert "the self-test passes on backend `torch`: 15 values compared" in done.output


def test_check_fails_where_it_deviates(directory: Path, tmp_path: Path) -> None:
    wrong(directory).save(tmp_path / "wrong")
    manifest = json.loads((tmp_path / "wrong" / "manifest.json").read_text())
    manifest["self_test"] = json.loads((directory / "manifest.json").read_text())["self_test"]
    (tmp_path / "wrong" / "manifest.json").write_text(manifest_text(manifest))

    done = run("check", tmp_path / "wrong", "--json")

    assert done.exit_code == 1
    assert {f["code"] for f in json.loads(done.output)["findings"]} == {"B102"}


def test_check_without_one_says_so_and_a_model_has_no_backend(directory: Path, tmp_path: Path) -> None:
    Program.load(directory).save(directory, self_test=False)
    onward.save(trainable(), tmp_path / "model.onnx")

    assert "the program has no self-test" in run("check", directory).output
    assert run("check", tmp_path / "model.onnx", "--backend", "torch").exit_code == 2
    (directory / "step.onnx").write_bytes(b"")
    assert run("check", directory).exit_code == 2


def test_compile_takes_data_for_it_or_leaves_it_out(tmp_path: Path) -> None:
    onward.save(trainable(), tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", **batch(rows=9))

    done = run("compile", tmp_path / "model.onnx", "-o", tmp_path / "program", "--self-test", tmp_path / "data.npz")
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(Program.load(tmp_path / "program").self_test.batch["x"], batch(rows=9)["x"][:4])

    run("compile", tmp_path / "model.onnx", "-o", tmp_path / "program", "--no-self-test")
    assert Program.load(tmp_path / "program").self_test is None


def variance_of_close_numbers() -> onward.TrainingModel:
    """Return a frozen table whose rows hardly vary, their variance as E[x²] − E[x]², and a head that is trained."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        net (int64[N, 6] ids) => (float[N, 3] y) <int64[1] last = {-1}, float tiny = {1e-6}> {
            x = Gather (table, ids)
            m = ReduceMean (x, last)
            xx = Mul (x, x)
            s = ReduceMean (xx, last)
            mm = Mul (m, m)
            v = Sub (s, mm)
            w = Max (v, tiny)
            d = Sqrt (w)
            c = Sub (x, m)
            n = Div (c, d)
            f = Flatten (n)
            y = MatMul (f, W)
        }""")
    table = 1 + 0.01 * rng.normal(size=(50, 32))
    weights = {"table": table, "W": 0.1 * rng.normal(size=(192, 3))}
    model.graph.initializer.extend(numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items())
    return onward.make_trainable(model, loss="cross_entropy", optimizer=onward.SGD(0.1), train=["W"])


def test_rounding_that_frozen_weights_amplify_is_no_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference backend adds in another order; here that changes the loss by more than a ten-thousandth."""
    model = variance_of_close_numbers()

    assert run_self_test(program_of(model), "reference") > 1

    monkeypatch.setattr("onward.compiler.make_self_test._frozen", lambda model: {})
    with pytest.raises(BackendError, match="loss"):
        run_self_test(program_of(model), "reference")
