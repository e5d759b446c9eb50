"""Python manners: plain functions, classes without traps, panels for notebooks, the learning-rate finder, loggers."""

from __future__ import annotations

import io
import json
import sys
import types
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import sklearn.metrics

import onward
from onward.errors import ArgumentError, DataError, MissingExtra
from onward.train import (
    BestSoFar,
    Callback,
    EarlyStopping,
    History,
    JsonLines,
    Metric,
    MLflow,
    Report,
    WandB,
)
from onward.train.metrics.functions import function_metric
from onward.train.progress import MODES
from onward.train.rate_finder import suggest
from train.test_backends import model, samples


@pytest.fixture
def trainer():
    return onward.Trainer(model())


X, Y = samples(96)


# ------------------------------------------------------------------ functions


def test_a_function_of_output_and_target_is_a_metric_over_all_samples(trainer):
    seen = []

    def spread(output, target):
        seen.append((output.shape, target.shape))
        return output.max() - output.min()

    history = trainer.fit(X, Y, validation_data=(X, Y), metrics=[spread], batch_size=10, progress=False)
    found = trainer.evaluate(X, Y, metrics=[spread, "accuracy"], batch_size=7)

    outputs = trainer.predict(X)
    assert seen[-1] == (outputs.shape, Y.shape)
    assert found["spread"] == pytest.approx(float(outputs.max() - outputs.min()), rel=1e-5)
    assert history.last["val_spread"] == pytest.approx(found["spread"], rel=1e-5)


def test_a_function_of_scikit_learn_gets_its_arguments_in_its_own_order(trainer):
    def log_loss(y_true, y_pred):
        chances = np.exp(y_pred) / np.exp(y_pred).sum(axis=1, keepdims=True)
        return sklearn.metrics.log_loss(y_true, chances, labels=np.arange(y_pred.shape[1]))

    found = trainer.evaluate(X, Y, metrics=[log_loss, ("named", log_loss)], batch_size=11)

    assert found["log_loss"] == pytest.approx(found["loss"], rel=1e-5)
    assert found["named"] == found["log_loss"]
    assert function_metric(sklearn.metrics.mean_absolute_error)._swapped
    assert not function_metric(lambda a, b: 0.0)._swapped


@pytest.mark.parametrize(
    ("metric", "message"),
    [(lambda output: 0.0, "cannot be called with the outputs and the targets"), (3, "3 is not a metric")],
)
def test_a_function_that_is_no_metric_is_refused_before_the_first_step(trainer, metric, message):
    with pytest.raises(ArgumentError, match=message):
        trainer.fit(X, Y, metrics=[metric], progress=False)

    assert trainer.steps == 0


def test_a_metric_that_gives_no_number_says_so(trainer):
    with pytest.raises(DataError, match="gave no number") as error:
        trainer.evaluate(X, Y, metrics=[lambda output, target: "high"])

    assert error.value.code == "T120"


def test_a_run_with_a_function_as_metric_is_resumed_exactly(trainer, tmp_path):
    def mean(output, target):
        return float(output.astype(np.float64).mean())

    def stop(run, logs):
        if logs["step"] == 5:
            raise RuntimeError("power cut")

    settings = {"epochs": 1, "batch_size": 10, "metrics": [mean], "progress": False}
    whole = onward.Trainer(model()).fit(X, Y, **settings)

    from onward.train import FunctionCallback

    with pytest.raises(RuntimeError, match="power cut"):
        trainer.fit(X, Y, **settings, checkpoint=tmp_path, callbacks=[FunctionCallback(on_step_end=stop)])
    resumed = onward.Trainer.resume(tmp_path).fit(X, Y, metrics=[mean], progress=False)

    assert resumed.last["mean"] == whole.last["mean"]


def test_functions_are_callbacks(trainer):
    both, alone = [], []

    def watch(run, logs):
        both.append((run.trainer is trainer, logs["epoch"]))

    trainer.fit(X, Y, epochs=2, callbacks=[watch, lambda logs: alone.append(logs["loss"])], progress=False)

    assert both == [(True, 1), (True, 2)]
    assert alone == trainer.history["loss"]
    with pytest.raises(ArgumentError, match=r"a function takes \(run, logs\) or \(logs\)"):
        trainer.fit(X, Y, callbacks=[lambda: None], progress=False)


def test_a_watcher_asks_which_way_a_function_is_better_before_the_first_step(trainer):
    def error(output, target):
        return 1.0

    with pytest.raises(ArgumentError, match="nothing says whether a larger `error` is better"):
        trainer.fit(X, Y, validation_data=0.2, metrics=[error], callbacks=[EarlyStopping("val_error")], progress=False)
    assert trainer.steps == 0

    error.larger_is_better = False
    history = trainer.fit(
        X, Y, epochs=9, validation_data=0.2, metrics=[error], callbacks=[EarlyStopping("val_error", patience=2)],
        progress=False,
    )  # fmt: skip
    assert len(history) == 3  # 1.0 never improves


# ------------------------------------------------------------------ classes without super().__init__()


def test_a_metric_class_needs_no_super_init(trainer):
    class Largest(Metric):
        def __init__(self):
            self.scale = 2.0

        def reset(self):
            self._largest = np.float64(-np.inf)

        def update(self, output, target):
            self._largest = max(self._largest, np.float64(output.max()))

        def compute(self):
            return self.scale * float(self._largest)

    history = trainer.fit(X, Y, validation_data=(X, Y), metrics=[Largest()], progress=False)

    assert history.last["val_largest"] == pytest.approx(2 * float(trainer.predict(X).max()), rel=1e-5)
    assert np.isfinite(history.last["largest"])


@pytest.mark.parametrize("base", [Callback, EarlyStopping, BestSoFar])
def test_a_callback_class_needs_no_super_init(trainer, base):
    class Own(base):
        def __init__(self):
            self.epochs = 0

        def on_epoch_end(self, run, logs):
            super().on_epoch_end(run, logs)
            self.epochs += 1

    own = Own()
    trainer.fit(X, Y, epochs=2, callbacks=[own], progress=False)

    assert own.epochs == 2


# ------------------------------------------------------------------ history, panels


def test_the_history_is_a_frame_and_a_chart(trainer, tmp_path):
    history = trainer.fit(X, Y, epochs=3, validation_data=0.2, metrics=["accuracy"], progress=False)

    frame = history.to_frame()
    history.plot().save(tmp_path / "loss.svg")
    chart = history.plot("accuracy", "val_accuracy")

    assert frame["val_loss"].tolist() == history["val_loss"]
    assert frame["epoch"].tolist() == [1, 2, 3]
    ET.parse(tmp_path / "loss.svg")
    assert chart.save(tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "val_accuracy" in chart._repr_svg_()
    with pytest.raises(ArgumentError, match="did you mean `accuracy`"):
        history.plot("acuracy")
    with pytest.raises(ArgumentError, match="cannot be written as"):
        history.plot().save(tmp_path / "loss.docx")


def parsed(html: str) -> str:
    """The text of a piece of HTML; raises where it is not well-formed."""
    body = html.replace("<br>", "<br/>")
    return "".join(ET.fromstring(body).itertext())


def test_objects_show_themselves_in_a_notebook(trainer, tmp_path):
    made = model()
    history = trainer.fit(X, Y, epochs=2, callbacks=[report := Report(tmp_path / "r.html")], progress=False)

    shown = parsed(made._repr_html_())
    assert "Training model" in shown
    assert "CrossEntropy" in shown
    assert "labels" in shown
    program = parsed(trainer.program._repr_html_())
    assert "train step" in program
    assert "learning_rate" in program
    broken = onward.check(made)
    assert "no problems found" in parsed(broken._repr_html_())
    assert f"{history.last['loss']:.4g}" in parsed(history._repr_html_())
    assert "no epoch has ended" in parsed(History()._repr_html_())
    assert "<iframe" in report._repr_html_()
    assert "not written yet" in Report(tmp_path / "none.html")._repr_html_()
    assert "class" in parsed(trainer.predictions(X)._repr_html_())


def test_a_report_of_the_checker_shows_its_findings_and_no_markup_of_the_file():
    made = model()
    made.entries[0].update_binding["<script>alert(1)</script>"] = "nowhere"

    html = onward.check(made)._repr_html_()

    assert "<script>" not in html
    assert "error" in parsed(html)


def test_the_bar_of_a_notebook_is_a_mode(trainer):
    assert "notebook" in MODES
    with pytest.raises(ArgumentError, match="did you mean `notebook`"):
        trainer.fit(X, Y, progress="notbook")


# ------------------------------------------------------------------ the learning-rate finder


def test_the_finder_leaves_every_byte_of_the_state_as_it_was(trainer):
    trainer.fit(X, Y, progress=False)
    before, steps = {n: a.tobytes() for n, a in trainer.state.items()}, trainer.steps

    found = trainer.find_learning_rate(X, Y, steps=60)

    assert {n: a.tobytes() for n, a in trainer.state.items()} == before
    assert trainer.steps == steps
    assert len(found.rates) == len(found.losses) > 20
    assert found.rates[0] == pytest.approx(1e-7)


def test_the_suggestion_trains_well():
    found = onward.Trainer(model()).find_learning_rate(X, Y, steps=80)

    losses = {}
    for rate in (found.suggestion, found.suggestion / 1000):
        trainer = onward.Trainer(model())
        losses[rate] = trainer.fit(X, Y, epochs=20, learning_rate=rate, progress=False).last["loss"]

    assert losses[found.suggestion] < 0.8 * losses[found.suggestion / 1000]


def test_the_search_ends_where_the_loss_explodes_and_draws_it(tmp_path):
    from train.fake import linear_program  # plain SGD, which diverges

    x = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)
    trainer = onward.Trainer(linear_program(), "fake")

    found = trainer.find_learning_rate(x, x[:, :1], highest=1000.0)

    assert found.diverged
    assert found.rates[-1] < 1000
    assert found.suggestion < found.rates[-1]
    ET.fromstring(found.plot().svg)
    assert "suggestion" in found._repr_html_()
    assert found.to_frame()["learning_rate"].tolist() == list(found.rates)


def test_a_loss_that_never_falls_has_no_suggestion():
    assert suggest([1e-3, 1e-2, 1e-1, 1.0], [1.0, 1.1, 1.2, 1.3]) is None


def test_wrong_arguments_of_the_finder_are_listed_at_once(trainer):
    with pytest.raises(ArgumentError) as error:
        trainer.find_learning_rate(X, Y, lowest=-1.0, highest=float("nan"), steps=1)

    assert len(error.value.diagnostics) == 3
    with pytest.raises(ArgumentError, match="lowest < highest"):
        trainer.find_learning_rate(X, Y, lowest=1.0, highest=0.1)


# ------------------------------------------------------------------ loggers


def test_json_lines_are_what_the_log_file_holds(trainer):
    stream = io.StringIO()

    trainer.fit(X, Y, epochs=2, batch_size=32, callbacks=[JsonLines(stream)], progress=False)

    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [e["event"] for e in events] == ["start", *["step"] * 3, "epoch", *["step"] * 3, "epoch", "end"]
    assert [e["loss"] for e in events if e["event"] == "epoch"] == trainer.history["loss"]


def test_mlflow_gets_every_number(trainer, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="heavy: not in [dev]")
    where = (tmp_path / "mlruns").as_uri()
    log = MLflow("exp", run_name="first", tracking_uri=where)

    history = trainer.fit(
        X, Y, epochs=2, batch_size=32, validation_data=0.2, metrics=["accuracy"], callbacks=[log], progress=False
    )

    run = mlflow.MlflowClient(where).get_run(log.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["batch size"] == "32"
    assert run.data.metrics["val_accuracy"] == history.last["val_accuracy"]
    steps = mlflow.MlflowClient(where).get_metric_history(log.run_id, "step/loss")
    assert [s.step for s in steps] == list(range(1, trainer.steps + 1))


def test_wandb_gets_every_number(trainer, tmp_path):
    pytest.importorskip("wandb", reason="heavy: not in [dev]")
    log = WandB("exp", mode="offline", dir=str(tmp_path))

    trainer.fit(X, Y, epochs=2, batch_size=32, callbacks=[log], progress=False)

    assert log.run_id
    assert list((tmp_path / "wandb").glob(f"offline-run-*-{log.run_id}"))


class FakeWandB(types.ModuleType):
    """What `WandB` uses of the library: `init`, and `log` and `finish` of the run."""

    def __init__(self):
        super().__init__("wandb")
        self.lines, self.ended = [], []

    def init(self, **given):
        self.given = given
        run = types.SimpleNamespace(id="abc")
        run.log = lambda values, step: self.lines.append((step, values))
        run.finish = lambda exit_code: self.ended.append(exit_code)
        return run


def test_wandb_gets_steps_epochs_and_the_end(trainer, monkeypatch, tmp_path):
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)

    history = trainer.fit(
        X, Y, epochs=2, batch_size=32, callbacks=[WandB("p", name="n")], checkpoint=tmp_path, progress=False
    )

    assert fake.given["project"] == "p"
    assert fake.given["name"] == "n"
    assert fake.given["config"]["batch size"] == "32"
    assert [s for s, v in fake.lines if "step/loss" in v] == [1, 2, 3, 4, 5, 6]
    assert [v["loss"] for _, v in fake.lines if "loss" in v] == history["loss"]
    assert fake.ended == [0]

    onward.Trainer.resume(tmp_path).fit(X, Y, epochs=3, callbacks=[WandB("p")], progress=False)
    assert fake.given["id"] == "abc"  # the same run goes on


def test_the_folder_that_wandb_leaves_behind_is_not_the_library(monkeypatch, tmp_path):
    (tmp_path / "wandb" / "offline-run-1").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)

    with pytest.raises(onward.OnwardError, match="needs `wandb`, which is not installed"):
        WandB("p")


@pytest.mark.parametrize(("logger", "module"), [(MLflow, "mlflow"), (WandB, "wandb")])
def test_a_logger_without_its_library_says_what_to_install(logger, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(MissingExtra, match=rf"pip install 'onward\[{module}\]'"):
        logger("x")
