"""New classes for files of scikit-learn, which give a label from a table and a map of probabilities."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.ensemble import VotingClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import onward
from onward.errors import ArgumentError

X, Y = load_iris(return_X_y=True)
X = X.astype(np.float32)
TEXT = np.array(["setosa", "versicolor", "virginica"])[Y]
NEW = np.minimum(Y + (X[:, 0] > 6.5), 3)  # four classes
NAMES = ["p", "q", "r", "s"]


def exported(model, target, **options) -> onnx.ModelProto:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few iterations
        return to_onnx(make_pipeline(StandardScaler(), model).fit(X, target), X[:1], options=options or None)


PERCEPTRON = MLPClassifier((8,), max_iter=30, random_state=0)
FILES = {
    "perceptron of text": lambda: exported(PERCEPTRON, TEXT),
    "perceptron of numbers": lambda: exported(PERCEPTRON, Y),
    "perceptron of two classes": lambda: exported(PERCEPTRON, Y > 0),
    "regression of text": lambda: exported(LogisticRegression(), TEXT),
    "one against the rest": lambda: exported(SGDClassifier(loss="log_loss", random_state=0), TEXT),
    "tensor of probabilities": lambda: exported(PERCEPTRON, TEXT, zipmap=False),
    "scores": lambda: to_onnx(LinearSVC(random_state=0).fit(X, Y), X[:1]),
}


def run(model, rows=X):
    """Return (labels, scores [N, classes], keys of the maps) as ONNX Runtime gives them."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    label, scores = session.run(None, {"X": rows})
    keys = list(scores[0]) if isinstance(scores, list) else []
    return label, np.array([list(s.values()) for s in scores]) if keys else scores, keys


@pytest.mark.parametrize("name", FILES)
def test_label_and_probabilities_know_the_new_classes(name):
    proto = FILES[name]()
    text = proto.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.STRING
    mapped = proto.graph.output[1].type.HasField("sequence_type")

    model = onward.make_trainable(proto, classes=NAMES, train="head", optimizer=onward.Adam(0.05))
    trainer = onward.Trainer(model)
    trainer.fit(X, NEW, epochs=20, progress=False)
    tuned = trainer.to_inference()

    label, scores, keys = run(tuned)
    table = np.array(NAMES if text else range(4))
    assert [v.name for v in tuned.graph.output] == [v.name for v in proto.graph.output]
    assert scores.shape == (150, 4)
    np.testing.assert_array_equal(label, table[scores.argmax(1)])
    assert keys == (table.tolist() if mapped else [])
    if name != "scores":
        np.testing.assert_allclose(scores.sum(1), 1, rtol=1e-5)
    assert (scores.argmax(1) == NEW).mean() > 0.7
    assert onward.Trainer(tuned).preparation.classes == tuple(NAMES)
    onnx.checker.check_model(tuned, full_check=True)


def test_the_new_layer_is_trained_as_scikit_learn_would_train_it():
    """Its loss is between those of scikit-learn's regressions with and without a penalty, on the same features."""
    proto = exported(LogisticRegression(), TEXT)
    model = onward.make_trainable(proto, classes=4, train="head", optimizer=onward.Adam(0.2))
    trainer = onward.Trainer(model)

    for rate in (0.2, 0.02, 0.002):
        trainer.fit(X, NEW, epochs=150, batch_size=150, learning_rate=rate, progress=False)

    features = StandardScaler().fit_transform(X)
    found = trainer.evaluate(X, NEW)["loss"]
    assert loss_of_regression(features, C=np.inf) - 1e-4 <= found < loss_of_regression(features, C=1.0)


def loss_of_regression(features, **settings):
    model = LogisticRegression(max_iter=5000, **settings).fit(features, NEW)
    return -np.log(model.predict_proba(features)[np.arange(150), NEW]).mean()


@pytest.mark.parametrize(
    ("given", "labels"), [(["3", "7", "9"], [3, 7, 9]), (["a", "b", "c"], [0, 1, 2]), (3, [0, 1, 2])]
)
def test_a_file_of_numbers_gives_numbers(given, labels):
    model = onward.surgery.replace_head(exported(PERCEPTRON, Y), given)

    found, scores, keys = run(onward.to_inference(model))

    assert keys == labels
    np.testing.assert_array_equal(found, np.array(labels)[scores.argmax(1)])


def test_without_names_a_file_of_text_counts_its_classes():
    found, _, keys = run(onward.to_inference(onward.surgery.replace_head(exported(PERCEPTRON, TEXT), 4)))

    assert keys == ["0", "1", "2", "3"]
    assert set(found) <= set(keys)


def test_a_vote_of_several_models_has_no_last_layer():
    voters = [("a", LogisticRegression()), ("b", MLPClassifier((4,), max_iter=5, random_state=0))]

    with pytest.raises(ArgumentError, match="A132"):
        onward.surgery.replace_head(exported(VotingClassifier(voters, voting="soft", flatten_transform=False), TEXT), 4)


def test_weights_of_known_classes_are_not_kept():
    with pytest.raises(ArgumentError, match="chooses its labels from a table"):
        onward.surgery.replace_head(exported(PERCEPTRON, TEXT), ["setosa", "x"], old_classes=["setosa", "b", "c"])
