"""What users get wrong: every mistake is an `OnwardError` that says what was found and what is needed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onward
from onward.errors import DataError, OnwardError
from onward.train import (
    BestSoFar,
    DataSource,
    EarlyStopping,
    FunctionCallback,
    JsonLog,
    LearningRateSchedule,
    LossPlot,
    Preparation,
    ReduceOnPlateau,
    Report,
    TensorBoard,
    Trainer,
)
from onward.train.data import ColumnSource, IterableSource
from onward.train.metrics import METRICS, Accuracy, TopK
from train.test_backends import model, samples

NAN = float("nan")
X, Y = samples(40)


@pytest.fixture(scope="module")
def trainer():
    return Trainer(model(), backend="reference")


@pytest.fixture(autouse=True)
def unchanged(trainer):
    """No mistake leaves a trace in the state."""
    before = trainer.state
    yield
    for name, value in trainer.state.items():
        np.testing.assert_array_equal(value, before[name])


def problems_of(action) -> list[str]:
    with pytest.raises(OnwardError) as caught:
        action()
    for problem in caught.value.diagnostics:
        assert problem.needed or problem.hint, f"it does not say what is needed: {problem.render()}"
    return [d.message for d in caught.value.diagnostics]


STEPS = {
    "nothing": (None, "the feeds of a step are None"),
    "a list": ([X, Y], "the feeds of a step are a list"),
    "text and a missing target": ({"x": "abc"}, "the step lacks `labels`"),
    "text": ({"x": "abc", "labels": Y}, "`x` of the step holds no numbers"),
    "None for an array": ({"x": None, "labels": Y}, "`x` of the step holds no numbers"),
    "lists of unequal length": ({"x": [[1.0, 2.0], [3.0]], "labels": Y}, "`x` of the step is not an array"),
    "text for the learning rate": (
        {"x": X, "labels": Y, "learning_rate": "abc"},
        "setting `learning_rate` holds no numbers",
    ),
    "NaN for the learning rate": ({"x": X, "labels": Y, "learning_rate": NAN}, "setting `learning_rate` cannot be nan"),
    "two learning rates": ({"x": X, "labels": Y, "learning_rate": [1, 2]}, "setting `learning_rate` cannot be [1, 2]"),
    "NaN in the data": ({"x": X * np.float32("nan"), "labels": Y}, "NaN in `x` at step 1; the update was not kept"),
    "float labels": ({"x": X, "labels": Y.astype(float)}, "a batch of column `labels` has the wrong element type"),
    "NaN labels": ({"x": X, "labels": Y * NAN}, "a batch of column `labels` has the wrong element type"),
    "labels too high": ({"x": X, "labels": Y + 10}, "`labels` holds class 13, and output `logits` has 4 classes"),
    "labels below 0": ({"x": X, "labels": Y - 10}, "`labels` holds class -10"),
    "another rank": ({"x": X[None], "labels": Y}, "column `x` does not have the shape of `x`"),
    "rows instead of classes": ({"x": X, "labels": np.eye(4)[Y]}, "column `labels` does not have the shape"),
    "complex numbers": ({"x": X.astype(complex), "labels": Y}, "a batch of column `x` has the wrong element type"),
    "no samples": ({"x": X[:0], "labels": Y[:0]}, "the batch of the step holds no samples"),
    "another number of labels": ({"x": X, "labels": Y[:3]}, "the inputs of a step have different numbers of samples"),
    "a name that is no text": ({3: X, "labels": Y}, "the step has no input `3`"),
}


@pytest.mark.parametrize(("feeds", "message"), STEPS.values(), ids=STEPS)
def test_step_says_what_is_wrong_with_its_feeds(trainer, feeds, message):
    assert problems_of(lambda: trainer.step(feeds))[0].startswith(message)


@pytest.mark.parametrize("entry", ["nope", 3, ["a"]])
def test_step_names_the_entries(trainer, entry):
    assert problems_of(lambda: trainer.step({"x": X, "labels": Y}, entry=entry)) == [
        f"no such training entry `{entry}`"
    ]


ARGUMENTS = {
    "epochs": [-1, 0, 1.5, "a", [1], True],
    "batch_size": [0, -1, "a", 1.5, True],
    "seed": [-1, "a", 1.5, 1 << 80],
    "shuffle": ["no", 3],
    "drop_last": ["no"],
    "steps_per_epoch": [0, "a", 1.5],
    "learning_rate": ["abc", -1, NAN, float("inf"), [1], True, lambda step: "abc", lambda step: NAN, lambda: 0.1],
    "entry": ["nope", 3, ["a"]],
    "preparation": [3, "a", {"scale": 2}],
    "metrics": [["nope"], [3], 3, "nope", [None], ["accuracy:nope"], ["top0"], [Accuracy], ["f1", "f1"]],
    "callbacks": [[1], 1, [None], EarlyStopping, [EarlyStopping], [lambda: None], EarlyStopping(), "abc"],
    "validation_data": [
        True, 0, 1, 1.5, -0.1, NAN, "nope.npz", 3j, (X,), (X, Y, Y), (X, Y[:5]), X, {"x": X}, {"nope": X}, [], (), [1],
        object(), (X[:, :3], Y), (X, Y.astype(float)), lambda: 3, np.array(3), (None, None),
    ],
    "checkpoint": [3, b"a"],
    "checkpoint_every": [0, "a", 1.5],
    "keep": [0, "a", -1, 1.5],
    "on_nan": ["no", 3, True],
    "prefetch": [-1, "a", 1.5],
    "progress": ["loud", 3, None],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in ARGUMENTS.items() for v in values], ids=lambda v: None
)
def test_fit_refuses_a_wrong_argument_before_the_first_step(trainer, name, value):
    problems_of(lambda: trainer.fit(X, Y, **{"progress": "none", name: value}))

    assert trainer.steps == 0


def test_fit_names_all_wrong_arguments_at_once(trainer):
    messages = problems_of(lambda: trainer.fit(X, Y, epochs=1.5, callbacks=[1, EarlyStopping], preparation=3, keep="a"))

    assert messages == [
        "callbacks[0] is 1",
        f"callbacks[1] is {EarlyStopping!r}",
        "preparation is 3",
        "keep is 'a'",
        "epochs is 1.5",
    ]


def test_integers_of_numpy_are_integers():
    trainer = Trainer(model(), backend="reference")

    trainer.fit(X, Y, epochs=np.int64(1), batch_size=np.int32(20), learning_rate=np.float32(0.1), progress="none")

    assert trainer.steps == 2


def test_numbers_of_numpy_are_used_and_stored(tmp_path):
    given, plain = Trainer(model(), backend="reference"), Trainer(model(), backend="reference")

    given.fit(X, Y, learning_rate=np.float32(0.5), shuffle=np.bool_(False), checkpoint=tmp_path, progress="none")
    plain.fit(X, Y, learning_rate=0.5, shuffle=False, progress="none")

    for name, value in plain.state.items():
        np.testing.assert_array_equal(given.state[name], value)
    assert Trainer.resume(tmp_path).steps == given.steps


def test_a_single_metric_needs_no_list():
    assert set(Trainer(model(), backend="reference").evaluate(X, Y, metrics="accuracy")) == {"loss", "accuracy"}


OBJECTS = np.array([None] * 40)
DATA = {
    "None": (None,), "a number": (3,), "text for y": (X, "abc"), "no y": (X,), "no such file": ("nope.csv",),
    "a list of text": (["a"],), "an empty list": ([],), "an empty generator": (lambda: iter(()),),
    "a batch of None": (lambda: iter([None]),), "a number as a batch": (lambda: iter([1]),),
    "None in a batch": (lambda: [(None, None)],), "three arrays for two": (lambda: [(X, Y, Y)],),
    "one array for two": (lambda: [(X,)],), "objects": (OBJECTS, Y), "class names": (X, np.array(["a"] * 40)),
    "other lengths": (X, Y[:3]), "another rank": (X[None], Y), "two arrays for one": ((X, X), Y),
    "two targets for one": (X, (Y, Y)), "text in a dict": ({"x": X, "labels": "abc"},), "a number of numbers": (3.0, Y),
    "float labels": (X, Y.astype(float)), "NaN labels": (X, Y * NAN), "labels below 0": (X, Y - 3),
    "labels too high": (X, Y + 3), "rows instead of classes": (X, np.eye(4)[Y]),
    "more columns": (np.zeros((40, 9), np.float32), Y), "complex numbers": (X.astype(complex), Y),
    "dates": (X, np.array(["2020-01-01"] * 40, "M8[D]")), "too large": (X, np.full(40, 1 << 63, np.uint64)),
    "a function of two": (lambda a, b: [(X, Y)],), "a function that gives nothing": (lambda: None,),
    "bytes": (b"abc",), "a set": ({1, 2},), "lists of unequal length": ([[1, 2], [3]], Y),
    "another name for y": (X, {"nope": Y}),
}  # fmt: skip


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_data_that_does_not_fit_is_explained(trainer, method, data):
    more = {"progress": "none"} if method == "fit" else {}

    problems_of(lambda: getattr(trainer, method)(*data, **more))


def test_rows_where_the_model_takes_classes_get_the_way_out(trainer):
    with pytest.raises(OnwardError, match=r"labels\.argmax\(axis=-1\)"):
        trainer.fit(X, np.eye(4)[Y], progress="none")


def later_batches(batches):
    return lambda: Trainer(model(), backend="reference").fit(batches, epochs=3, steps_per_epoch=2, progress="none")


@pytest.mark.parametrize(
    "batches",
    [
        iter([(X, Y)] * 3),
        [(X, Y)],
        [(X, Y), (X[:, :3], Y)],
        [(X, Y), (X, Y[:3])],
        [(X, Y), 3],
        [(X, Y), {"x": X}],
        [(X, Y), (X, "abc")],
    ],
    ids=["a generator that ends early", "a list too short", "shape", "lengths", "no batch", "names", "text"],
)
def test_a_bad_later_batch_is_explained(batches):
    problems_of(later_batches(batches))


def test_a_generator_that_ends_early_says_where():
    assert problems_of(later_batches(iter([(X, Y)] * 3))) == ["the iterable gave 1 batch in epoch 2"]


METHODS = {
    "set_state(None)": lambda t, d: t.set_state(None),
    "set_state(text)": lambda t, d: t.set_state({"w1": "abc"}),
    "set_state(unknown)": lambda t, d: t.set_state({"nope": X}),
    "set_state(shape)": lambda t, d: t.set_state({"w1": X}),
    "initialize(text)": lambda t, d: t.initialize("a"),
    "initialize(negative)": lambda t, d: t.initialize(-1),
    "initialize(fraction)": lambda t, d: t.initialize(1.5),
    "initialize(huge)": lambda t, d: t.initialize(1 << 80),
    "save_checkpoint(3)": lambda t, d: t.save_checkpoint(3),
    "save_checkpoint(keep=0)": lambda t, d: t.save_checkpoint(d, keep=0),
    "save_checkpoint(a file)": lambda t, d: t.save_checkpoint("/dev/null"),
    "resume(3)": lambda t, d: Trainer.resume(3),
    "resume(nothing there)": lambda t, d: Trainer.resume(d / "none"),
    "Trainer(3)": lambda t, d: Trainer(3),
    "Trainer(None)": lambda t, d: Trainer(None),
    "Trainer(backend=3)": lambda t, d: Trainer(model(), backend=3),
    "Trainer(unknown option)": lambda t, d: Trainer(model(), backend="reference", nope=3),
    "evaluate(batch_size='a')": lambda t, d: t.evaluate(X, Y, batch_size="a"),
    "evaluate(batch_size=0)": lambda t, d: t.evaluate(X, Y, batch_size=0),
    "evaluate(metrics=[3])": lambda t, d: t.evaluate(X, Y, metrics=[3, "nope"]),
    "evaluate(preparation=3)": lambda t, d: t.evaluate(X, Y, preparation=3),
    "predict(preparation=3)": lambda t, d: t.predict(X, preparation=3),
    "predict(batch_size=1.5)": lambda t, d: t.predict(X, batch_size=1.5),
    "predict(None)": lambda t, d: t.predict(None),
    "predict(two arrays)": lambda t, d: t.predict((X, X)),
    "to_inference(average)": lambda t, d: t.to_inference(average=True),
    "ColumnSource(3)": lambda t, d: ColumnSource(3),
    "ColumnSource.split('a')": lambda t, d: ColumnSource({"x": X}).split("a"),
    "ColumnSource.split(2)": lambda t, d: ColumnSource({"x": X}).split(2),
    "IterableSource(3)": lambda t, d: IterableSource(3),
    "IterableSource(steps_per_epoch=0)": lambda t, d: IterableSource([], steps_per_epoch=0),
    "TopK(0)": lambda t, d: TopK(0),
    "TopK('a')": lambda t, d: TopK("a"),
    "EarlyStopping(monitor=3)": lambda t, d: EarlyStopping(3),
    "EarlyStopping(patience='a')": lambda t, d: EarlyStopping(patience="a"),
    "EarlyStopping(patience=1.5)": lambda t, d: EarlyStopping(patience=1.5),
    "EarlyStopping(mode=3)": lambda t, d: EarlyStopping(mode=3),
    "EarlyStopping(min_delta='a')": lambda t, d: EarlyStopping(min_delta="a"),
    "BestSoFar(monitor=3)": lambda t, d: BestSoFar(3),
    "ReduceOnPlateau(factor='a')": lambda t, d: ReduceOnPlateau(factor="a"),
    "ReduceOnPlateau(factor=2)": lambda t, d: ReduceOnPlateau(factor=2),
    "ReduceOnPlateau(patience=0)": lambda t, d: ReduceOnPlateau(patience=0),
    "ReduceOnPlateau(cooldown=-1)": lambda t, d: ReduceOnPlateau(cooldown=-1),
    "ReduceOnPlateau(min_rate='a')": lambda t, d: ReduceOnPlateau(min_rate="a"),
    "LearningRateSchedule(3)": lambda t, d: LearningRateSchedule(3),
    "FunctionCallback(3)": lambda t, d: FunctionCallback(3),
    "JsonLog(3)": lambda t, d: JsonLog(3),
    "JsonLog(every=0)": lambda t, d: JsonLog(d / "log", every=0),
    "LossPlot(3)": lambda t, d: LossPlot(3),
    "Report(3)": lambda t, d: Report(3),
    "TensorBoard(3)": lambda t, d: TensorBoard(3),
}


@pytest.mark.parametrize("call", METHODS.values(), ids=METHODS)
def test_every_public_method_explains_a_mistake(trainer, call, tmp_path):
    problems_of(lambda: call(trainer, tmp_path))


@pytest.mark.parametrize(
    ("name", "value"),
    [(n, v) for n in ("scale", "mean", "std") for v in ("a", None, NAN, [[1]], [], object())]
    + [("scale", 0), ("std", 0), ("scale", [1, 2]), ("one_hot", "a"), ("columns", 3), ("columns", {"x": 3})]
    + [("classes", 3), ("classes", "abc")],
)  # fmt: skip
def test_a_preparation_that_cannot_be_is_refused_when_it_is_made(name, value):
    assert problems_of(lambda: Preparation(**{name: value}))[0].startswith(f"{name} is ")


SCORES = np.random.default_rng(0).random((40, 4))
PAIRS = {
    "None": (None, None),
    "text": ("a", "b"),
    "other lengths": (X, Y[:3]),
    "another rank": (X, X[0]),
    "objects": (OBJECTS, OBJECTS),
}
CLASS_PAIRS = {"NaN": (SCORES, Y * NAN), "fractions": (SCORES, Y + 0.5)}
REGRESSION = ("mae", "rmse", "r2")


@pytest.mark.parametrize(
    ("name", "pair"),
    [(n, p) for n in METRICS for p in PAIRS]
    + [(n, p) for n in METRICS if n not in REGRESSION for p in CLASS_PAIRS]
    + [("top5", "too high"), ("perplexity", "too high")],
)
def test_metrics_explain_what_they_cannot_compare(name, pair):
    output, target = {**PAIRS, **CLASS_PAIRS, "too high": (SCORES, Y + 9)}[pair]

    problems_of(lambda: METRICS[name]().update(output, target))


class _Wrong(DataSource):
    def __init__(self, columns, batches):
        self._columns, self._batches = columns, batches

    def specs(self):
        return self._columns

    def batches(self, request):
        return iter(self._batches)


GOOD = ColumnSource({"x": X, "labels": Y}).specs()


@pytest.mark.parametrize(
    "source",
    [_Wrong([3], []), _Wrong(None, []), _Wrong(GOOD, []), _Wrong(GOOD, [None]), _Wrong(GOOD, [{"x": X}])],
    ids=["specs of numbers", "no specs", "no batches", "a batch of None", "a batch without labels"],
)
@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_a_data_source_that_breaks_its_word_is_explained(trainer, source, method):
    more = {"progress": "none"} if method == "fit" else {}

    problems_of(lambda: getattr(trainer, method)(source, **more))


def test_a_data_source_may_give_lists():
    trainer = Trainer(model(), backend="reference")

    trainer.fit(_Wrong(GOOD, [{"x": X.tolist(), "labels": Y.tolist()}]), progress="none")

    assert trainer.steps == 1


def test_the_tester_notices_an_error_that_says_nothing():
    from onward.errors import A101, ArgumentError, Diagnostic

    def fail():
        raise ArgumentError(Diagnostic(A101, "wrong"))

    with pytest.raises(AssertionError, match="does not say what is needed"):
        problems_of(fail)


def reader_of_symbols():
    """Return a trainer for a network that reads three symbols and a blank in each of six steps, with CTC."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> net (float[N, 6, 2] x) => (float[N, 6, 4] y) '
        "<float[2, 4] W = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8}> { z = MatMul(x, W) y = Softmax(z) }"
    )
    loss = onward.losses.CTC(time_axis=1, logits=True)
    return onward.Trainer(onward.make_trainable(proto, loss=loss, output="z", optimizer="sgd"))


def symbols(labels, lengths):
    count = len(labels)
    return {
        "x": np.ones((count, 6, 2), np.float32),
        "labels": np.array(labels),
        "labels/output_lengths": np.full(count, 6),
        "labels/label_lengths": np.array(lengths),
    }


def test_a_symbol_beyond_the_alphabet_is_compared_with_the_alphabet_and_not_with_the_steps():
    with pytest.raises(DataError, match=r"holds class 5, and output `y` has 4 classes[\s\S]*0 to 3"):
        reader_of_symbols().fit(symbols([[1, 5]] * 4, [2] * 4), epochs=1, progress="none")


def test_more_labels_than_steps_are_the_reason_of_an_infinite_ctc_loss():
    with pytest.raises(onward.OnwardError) as caught:
        reader_of_symbols().fit(symbols([[1, 2, 3, 1, 2, 3, 1]] * 4, [7] * 4), epochs=1, progress="none")

    assert "a sample may have more labels than the output has steps" in str(caught.value)
    assert "zero_infinity=True" in str(caught.value)
    assert "(Constant)" not in str(caught.value)
