"""scikit-learn's models as ONNX files: they predict as scikit-learn does, and learn as its `partial_fit` does."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import onward
from onward.backends.base import open_session
from upgrade.ml_cases import CASES, DOUBLE, FLOAT, ROUND, Case, grown, model_of, new_trees

skl2onnx = pytest.importorskip("skl2onnx")
pytest.importorskip("sklearn")
from sklearn import datasets, ensemble, linear_model, neural_network, pipeline, preprocessing, svm, tree  # noqa: E402

TWO = datasets.load_breast_cancer(return_X_y=True)
THREE = datasets.load_iris(return_X_y=True)
NUMBERS = datasets.load_diabetes(return_X_y=True)
SCALED = preprocessing.StandardScaler

MODELS: dict[str, tuple[Any, Any]] = {
    "logistic regression of two": (lambda: pipeline.make_pipeline(SCALED(), linear_model.LogisticRegression()), TWO),
    "logistic regression": (lambda: pipeline.make_pipeline(SCALED(), linear_model.LogisticRegression()), THREE),
    "linear regression": (linear_model.LinearRegression, NUMBERS),
    "linear svc": (lambda: svm.LinearSVC(random_state=0), THREE),
    "svc of two": (lambda: pipeline.make_pipeline(SCALED(), svm.SVC()), TWO),
    "svc": (svm.SVC, THREE),
    "svc with probabilities of two": (
        lambda: pipeline.make_pipeline(SCALED(), svm.SVC(probability=True, random_state=0)), TWO),
    "svc with probabilities": (lambda: svm.SVC(probability=True, random_state=0), THREE),
    "svr": (svm.SVR, NUMBERS),
    "boosting of two": (lambda: ensemble.GradientBoostingClassifier(n_estimators=5), TWO),
    "boosting": (lambda: ensemble.GradientBoostingClassifier(n_estimators=5), THREE),
    "boosted regression": (lambda: ensemble.GradientBoostingRegressor(n_estimators=5), NUMBERS),
    "forest of two": (lambda: ensemble.RandomForestClassifier(5, max_depth=4, random_state=0), TWO),
    "forest": (lambda: ensemble.RandomForestClassifier(5, max_depth=4, random_state=0), THREE),
    "forest regression": (lambda: ensemble.RandomForestRegressor(5, max_depth=6, random_state=0), NUMBERS),
    "a tree": (lambda: tree.DecisionTreeClassifier(max_depth=3), THREE),
    "mlp": (lambda: neural_network.MLPClassifier((8,), max_iter=3, random_state=0), THREE),
}  # fmt: skip


def exported(name: str) -> tuple[Any, onnx.ModelProto, np.ndarray, np.ndarray]:
    """Return a fitted estimator, its file, and the data."""
    make, (features, truth) = MODELS[name]
    features = features.astype(np.float32)
    made = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.fit(features, truth)
        return made, skl2onnx.to_onnx(made, features[:1]), features, truth


def infer(model: Any, features: np.ndarray) -> list[Any]:
    found = open_session(onward.compile(model), "onnxruntime").infer({"X": features})
    return list(found.values())


@pytest.mark.parametrize("name", MODELS)
def test_the_file_predicts_as_scikit_learn_does(name: str) -> None:
    made, proto, features, _ = exported(name)

    results = infer(proto, features)

    if len(results) == 1:
        np.testing.assert_allclose(results[0][:, 0], made.predict(features), rtol=1e-4)
        return
    scores = made.predict_proba if hasattr(made, "predict_proba") else made.decision_function
    assert (results[0] == made.predict(features)).mean() > 0.99  # a score at the limit may be rounded across it
    wanted, found = scores(features), results[1]
    if wanted.ndim == 1:  # ONNX's score of two classes is that of the first
        found = found[:, 0]
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("name", MODELS)
def test_the_tuned_file_is_of_the_same_operators_and_gives_what_was_trained(name: str) -> None:
    _, proto, features, _ = exported(name)
    advice = next(o for o in onward.doctor(proto).outputs if o.trains)
    model = onward.make_trainable(proto, loss="mse", output=advice.on, optimizer=onward.SGD(1e-4))
    trainer = onward.Trainer(model)
    shape = infer(proto, features[:1])[-1].shape if advice.on in model.outputs else None
    wanted = open_session(trainer.program, "onnxruntime").evaluate
    spec = trainer.program.targets[0]
    targets = np.ones((len(features), *[d if isinstance(d, int) else 1 for d in spec.shape[1:]]), np.float32)
    assert shape is None or shape[1:] == targets.shape[1:]

    losses = [float(trainer.step({"X": features, spec.name: targets})["loss"]) for _ in range(3)]
    tuned = trainer.to_inference()

    assert losses[-1] < losses[0] == float(wanted({"X": features, spec.name: targets})["loss"])
    assert [n.op_type for n in tuned.graph.node] == [n.op_type for n in proto.graph.node]
    assert not onward.check(tuned).errors
    session = onnxruntime.InferenceSession(tuned.SerializeToString(), providers=["CPUExecutionProvider"])
    native = session.run(None, {"X": features})[-1]
    if isinstance(native, list):
        native = np.array([list(row.values()) for row in native], np.float32)
    found = list(trainer.session.infer({"X": features}).values())[-1]
    np.testing.assert_allclose(native, found, rtol=1e-4, atol=1e-5)
    before = infer(proto, features)[-1]
    assert np.abs(before - found).max() > 1e-6


def test_logistic_regression_learns_as_sgd_classifier_does() -> None:
    """A constant rate and one sample at a time: equal losses and equal weights, to the rounding of float32."""
    made, proto, features, truth = exported("logistic regression of two")
    scaled = made[0].transform(features).astype(np.float64)
    judge = linear_model.SGDClassifier(loss="log_loss", penalty=None, learning_rate="constant", eta0=0.05)
    judge.partial_fit(scaled[:1], truth[:1], classes=[0, 1])
    judge.coef_, judge.intercept_ = (
        made[1].coef_.astype(np.float64).copy(),
        made[1].intercept_.astype(np.float64).copy(),
    )
    model = onward.make_trainable(
        proto, loss="bce_with_logits", output="LinearClassifier/Gemm:out", optimizer=onward.SGD(0.05)
    )
    trainer = onward.Trainer(model)

    for row in range(60):
        margin = judge.decision_function(scaled[row : row + 1])[0] * (2 * truth[row] - 1)
        judge.partial_fit(scaled[row : row + 1], truth[row : row + 1])
        batch = {"X": features[row : row + 1], model.targets[0]: truth[row : row + 1, None].astype(np.float32)}
        loss = float(trainer.step(batch)["loss"])
        np.testing.assert_allclose(loss, np.log1p(np.exp(-margin)), rtol=1e-4, atol=1e-6)

    held = {a.name: np.array(a.floats) for a in trainer.to_inference().graph.node[1].attribute}
    np.testing.assert_allclose(held["coefficients"], np.concatenate([-judge.coef_[0], judge.coef_[0]]), atol=1e-5)
    np.testing.assert_allclose(held["intercepts"], [-judge.intercept_[0], judge.intercept_[0]], atol=1e-5)
    assert np.abs(judge.coef_ - made[1].coef_).max() > 1e-2


@pytest.mark.parametrize("solver", ["sgd", "adam"])
def test_a_perceptron_learns_as_partial_fit_does(solver: str) -> None:
    """Full batches, no penalty: equal losses and weights over ten steps, to the rounding of float32."""
    features, truth = THREE[0].astype(np.float32), THREE[1]
    judge = neural_network.MLPClassifier(
        (8,), solver=solver, alpha=0.0, momentum=0.0, learning_rate_init=0.01, batch_size=len(features),
        random_state=0, shuffle=False,
    )  # fmt: skip
    judge.partial_fit(features, truth, classes=[0, 1, 2])
    optimizer = onward.SGD(0.01)
    if solver == "adam":
        judge._optimizer.t, judge._optimizer.ms, judge._optimizer.vs = (
            0, [np.zeros_like(m) for m in judge._optimizer.ms], [np.zeros_like(v) for v in judge._optimizer.vs],
        )  # fmt: skip
        optimizer = onward.Adam(0.01, epsilon=1e-8)
    proto = skl2onnx.to_onnx(judge, features[:1])
    model = onward.make_trainable(proto, loss="cross_entropy", output="add_result1", optimizer=optimizer)
    trainer = onward.Trainer(model)

    for _ in range(10):
        judge.partial_fit(features, truth)
        loss = float(trainer.step({"X": features, model.targets[0]: truth})["loss"])
        np.testing.assert_allclose(loss, judge.loss_, rtol=2e-5)

    state = trainer.session.get_state()
    for index, name in enumerate(("coefficient", "coefficient1")):
        np.testing.assert_allclose(state[name], judge.coefs_[index], atol=2e-5)
    for index, name in enumerate(("intercepts", "intercepts1")):
        np.testing.assert_allclose(state[name].reshape(-1), judge.intercepts_[index], atol=2e-5)


@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
def test_the_gradient_of_the_leaves_agrees_with_finite_differences(aggregate: int) -> None:
    """A TreeEnsemble of doubles: the leaves have a gradient, the input has zeros."""
    more = {"n_targets": 1, "leaf_targetids": [0] * 6} if aggregate > 1 else {}
    proto, feeds = model_of(new_trees(DOUBLE, aggregate_function=aggregate, **more))
    width = int(more.get("n_targets", 2))
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y0", DOUBLE, ["N", width]))
    seed = np.random.default_rng(1).normal(size=(len(feeds["x0"]), width))

    def value(weights: np.ndarray) -> float:
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        (held,) = (a for a in copy.graph.node[0].attribute if a.name == "leaf_weights")
        held.t.CopyFrom(onnx.numpy_helper.from_array(weights))
        session = onnxruntime.InferenceSession(copy.SerializeToString(), providers=["CPUExecutionProvider"])
        return float((session.run(None, feeds)[0] * seed).sum())

    model = onward.make_trainable(
        proto, loss=lambda op, outputs, labels: op.ReduceSum(op.Mul(outputs, labels), keepdims=0),
        label={"seed": (np.float64, ["N", width])}, optimizer=onward.SGD(1.0), output="y0",
    )  # fmt: skip
    trainer = onward.Trainer(model)
    before = trainer.session.get_state()["it/leaf_weights"]
    trainer.step({**feeds, "seed": seed})
    gradient = before - trainer.session.get_state()["it/leaf_weights"]

    step = 1e-6
    numeric = [(value(before + step * e) - value(before - step * e)) / (2 * step) for e in np.eye(len(before))]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-8)
    assert np.abs(gradient).max() > 0.1
    zeros = onward.gradient(proto, of="y0", wrt=["x0"])
    session = onnxruntime.InferenceSession(zeros.SerializeToString(), providers=["CPUExecutionProvider"])
    assert not session.run(["grad/x0"], feeds)[0].any()


PAIRS = (
    "svm probabilities NONE",
    "svm probabilities of two NONE",
    "two scores LOGISTIC",
    "two scores in pairs LOGISTIC",
)


@pytest.mark.parametrize("name", [*PAIRS, "two scores, one base NONE"])
def test_the_gradient_of_classes_agrees_with_finite_differences_of_onnxruntime(name: str) -> None:
    """Every weight of a classifier: the slope of what stock ONNX Runtime gives for the file, in float32."""
    proto, feeds = model_of(CASES[name])
    width = 2 if "vectors_per_class" not in CASES[name].attributes else len(CASES[name].attributes["vectors_per_class"])
    proto.graph.output[1].CopyFrom(onnx.helper.make_tensor_value_info("y1", FLOAT, ["N", width]))
    seed = np.random.default_rng(1).normal(size=(len(feeds["x0"]), width)).astype(np.float32)
    model = onward.make_trainable(
        proto, loss=lambda op, outputs, labels: op.ReduceSum(op.Mul(outputs, labels), keepdims=0),
        label={"seed": (np.float32, ["N", width])}, optimizer=onward.SGD(1.0), output="y1",
    )  # fmt: skip
    trainer = onward.Trainer(model)
    before = {n: v.astype(np.float64) for n, v in trainer.session.get_state().items() if n in model.parameters}

    def value(weights: dict[str, np.ndarray]) -> float:
        trainer.session.set_state({n: v.astype(np.float32) for n, v in weights.items()})
        tuned = trainer.to_inference()
        assert [n.op_type for n in tuned.graph.node] == [CASES[name].op_type]
        session = onnxruntime.InferenceSession(tuned.SerializeToString(), providers=["CPUExecutionProvider"])
        return float((session.run(["y1"], feeds)[0].astype(np.float64) * seed).sum())

    numeric = {}
    for weight, array in before.items():
        for place in range(min(array.size, 6)):
            away = np.zeros(array.size)
            away[place] = 2e-3
            ends = [value({**before, weight: array + sign * away.reshape(array.shape)}) for sign in (1, -1)]
            numeric[weight, place] = (ends[0] - ends[1]) / 4e-3
    trainer.session.set_state({n: v.astype(np.float32) for n, v in before.items()})
    trainer.step({**feeds, "seed": seed})

    after = trainer.session.get_state()
    found = {(w, i): (before[w] - after[w]).reshape(-1)[i] for w, i in numeric}
    np.testing.assert_allclose(list(found.values()), list(numeric.values()), rtol=2e-2, atol=2e-3)
    assert {w for (w, _), slope in numeric.items() if abs(slope) > 0.01} == set(before)


def test_a_weight_of_one_number_trains() -> None:
    """The rho of two classes, the base value of one target: operators of ai.onnx.ml hold them as weights."""
    for name, weights in (
        ("svm of two NONE", {"it/coefficients", "it/rho"}),
        ("trees SUM", {"it/target_weights", "it/base_values"}),
    ):
        proto, _ = model_of(CASES[name])
        output = proto.graph.output[-1].name
        proto.graph.output[-1].CopyFrom(onnx.helper.make_tensor_value_info(output, FLOAT, ["N", None]))

        assert set(onward.make_trainable(proto, loss="mse", output=output, optimizer="sgd").parameters) == weights


def test_a_score_that_was_no_probability_and_becomes_one_stays_plain() -> None:
    """Runtimes read the two classes of trees in another way if no leaf is negative: the file says so, and is right."""
    attributes = {**grown(1, 1, kind="class"), "classlabels_int64s": [0, 1]}
    attributes["class_weights"] = [-1e-3, 1.0]
    proto, feeds = model_of(Case("TreeEnsembleClassifier", [ROUND], attributes, [onnx.TensorProto.INT64, FLOAT]))
    proto.graph.output[1].CopyFrom(onnx.helper.make_tensor_value_info("y1", FLOAT, ["N", 2]))
    model = onward.make_trainable(proto, loss="mse", output="y1", optimizer=onward.SGD(0.5))
    trainer = onward.Trainer(model)
    trainer.step({**feeds, model.targets[0]: np.tile(np.float32([-1, 1]), (len(ROUND), 1))})

    with pytest.warns(onward.model.ml_nodes.PlainOperatorsWarning, match=r"(?s)A139.*only positive numbers"):
        tuned = trainer.to_inference()

    session = onnxruntime.InferenceSession(tuned.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, feeds)[1]
    np.testing.assert_allclose(found, trainer.session.infer(feeds)["y1"], atol=1e-6)
    assert not any(n.domain for n in tuned.graph.node)


def test_the_leaves_of_a_forest_of_two_classes_stay_probabilities() -> None:
    _, proto, features, truth = exported("forest of two")
    model = onward.make_trainable(proto, loss="mse", output="probabilities", optimizer=onward.SGD(5.0))
    trainer = onward.Trainer(model)
    for _ in range(3):
        trainer.step({"X": features, model.targets[0]: np.eye(2, dtype=np.float32)[truth]})

    tuned = trainer.to_inference()

    (held,) = (a for a in tuned.graph.node[0].attribute if a.name == "class_weights")
    assert min(trainer.session.get_state()["TreeEnsembleClassifier/class_weights"]) < 0
    assert min(held.floats) == 0
