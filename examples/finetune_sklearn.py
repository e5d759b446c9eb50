"""Let a pipeline of scikit-learn go on learning as an ONNX file: gaps and words in its columns, new rows every month.

    pip install onward scikit-learn skl2onnx
    python examples/finetune_sklearn.py

The pipeline fills gaps, scales, encodes words and ends in a logistic regression, or in boosted trees. It was fitted on
customers of one kind; the new ones differ. The tuned file has the operators of the first one, with new numbers in their
attributes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import skl2onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import onward

CITIES = np.array(["Bonn", "Lyon", "Turin"])


def customers(count: int, seed: int, shift: float) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return columns and labels; `shift` says how much the customers differ from the first ones."""
    random = np.random.default_rng(seed)
    numbers = random.normal(size=(count, 2)).astype(np.float32)
    city = random.integers(3, size=count)
    score = numbers @ np.array([1.5, -1.0 + 2 * shift]) + np.array([-1.0, 0.0, 1.0])[city] * (1 - 2 * shift)
    numbers[random.random((count, 2)) < 0.1] = np.nan
    labels = (score + random.logistic(size=count) > 0).astype(np.int64)
    return {"numbers": numbers, "city": CITIES[city].astype(object)[:, None]}, labels


def accuracy(file: onnx.ModelProto, columns: dict[str, np.ndarray], labels: np.ndarray) -> float:
    """Return the share of right labels that ONNX Runtime gives, with its own kernels."""
    session = onnxruntime.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
    return float((session.run(None, columns)[0] == labels).mean())


def main() -> None:
    """Fit, export, go on learning, and compare."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--epochs", type=int, default=20)
    options.add_argument("--folder", type=Path, default=Path("."))
    given = options.parse_args()

    old, old_labels = customers(600, 0, shift=0.0)
    new, new_labels = customers(600, 1, shift=1.0)
    test, test_labels = customers(600, 2, shift=1.0)

    table = np.concatenate([old["numbers"].astype(object), old["city"]], axis=1)
    prepare = ColumnTransformer(
        [("numbers", make_pipeline(SimpleImputer(), StandardScaler()), [0, 1]), ("city", OneHotEncoder(), [2])]
    )
    inputs = [("numbers", FloatTensorType([None, 2])), ("city", StringTensorType([None, 1]))]
    for name, classifier in {
        "logistic": LogisticRegression(),
        "boosting": GradientBoostingClassifier(n_estimators=20, random_state=0),
    }.items():
        pipeline = make_pipeline(prepare, classifier).fit(table, old_labels)
        file = skl2onnx.convert_sklearn(pipeline, initial_types=inputs)

        advice = next(o for o in onward.doctor(file).outputs if o.trains)
        model = onward.make_trainable(file, loss=advice.loss, output=advice.on, optimizer=onward.Adam(0.05))
        trainer = onward.Trainer(model)
        batch = {**new, model.targets[0]: new_labels[:, None].astype(np.float32)}
        losses = [float(trainer.step(batch)["loss"]) for _ in range(given.epochs)]
        tuned = trainer.to_inference()
        onnx.save(tuned, given.folder / f"{name}_tuned.onnx")

        same = [n.op_type for n in tuned.graph.node] == [n.op_type for n in file.graph.node]
        print(
            f"{name}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, accuracy on new customers "
            f"{accuracy(file, test, test_labels):.2f} -> {accuracy(tuned, test, test_labels):.2f}, "
            f"{'the same operators' if same else 'other operators'}"
        )


if __name__ == "__main__":
    main()
