"""Run as a script with KERAS_BACKEND set to tensorflow or torch: convert models that live there; print what happens."""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

import keras
import numpy as np

import onward

layers = keras.layers
wide = "float64"
keras.config.set_floatx(wide)
keras.config.set_dtype_policy(wide)
keras.utils.set_random_seed(0)


def train(model: Any, x: Any, y: Any) -> float:
    model.reset_metrics()
    return float(np.ravel(model.train_on_batch(x, y, return_dict=True)["loss"])[0])


def refused(model: Any, *example: Any) -> str:
    try:
        onward.from_keras(model, *example)
    except onward.OnwardError as error:
        return str(error)
    return "captured"


def continued() -> dict[str, Any]:
    """Return the worst difference of 10 steps after 3, in float64, with batch normalisation, Adam and a penalty."""
    penalty = keras.regularizers.L2(1e-2)
    parts = [layers.Dense(8, kernel_regularizer=penalty, use_bias=False), layers.BatchNormalization(), layers.ReLU()]
    model = keras.Sequential([keras.Input((6,)), *parts, layers.Dense(3)], name="net")
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    random = np.random.RandomState(0)
    batches = [(random.normal(size=(n, 6)), random.randint(0, 3, n).astype("int32")) for n in [8] * 12 + [3]]
    for x, y in batches[:3]:
        train(model, x, y)
    captured = onward.from_keras(model, *batches[0])
    trainer = onward.Trainer(captured)
    worst = 0.0
    for x, y in batches[3:]:
        ours = float(trainer.step({"x": x, "target": y})["loss"])
        worst = max(worst, abs(ours - train(model, x, y)))
    variables = [*model.trainable_variables, *model.non_trainable_variables, *model.optimizer.variables]
    for v in variables:
        theirs = np.asarray(keras.ops.convert_to_numpy(v.value))
        worst = max(worst, float(np.abs(np.float64(trainer.state[v.path]) - np.float64(theirs)).max()))
    return {"worst": worst, "names": sorted(captured.parameters)}


class Unregistered(layers.Layer):
    def call(self, x: Any) -> Any:
        return x * 2


def simple(*parts: Any) -> Any:
    model = keras.Sequential([keras.Input((4,)), *parts, layers.Dense(1)], name="net")
    model.compile(optimizer="adam", loss="mse")
    return model


def words() -> Any:
    model = keras.Sequential([keras.Input((5,), dtype="int32"), layers.Embedding(7, 2, name="words"), layers.Flatten()])
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="mse")
    return model


def main() -> None:
    """Print one line of JSON."""
    found: dict[str, Any] = {"continued": continued()}
    print(found, file=sys.stderr)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        onward.from_keras(words())
    found["warned"] = [str(w.message) for w in said]
    found["unregistered"] = refused(simple(Unregistered()))
    found["lambda"] = refused(simple(layers.Lambda(lambda x: x * 2, output_shape=(4,))))
    found["left"] = [n for n in os.listdir(os.environ["TMPDIR"]) if not n.startswith(".")]  # a library writes .ses
    if keras.backend.backend() == "tensorflow":
        sys.path.insert(0, os.path.dirname(__file__))
        from raw_layer import Raw

        found["raw"] = refused(simple(Raw(name="raw")))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
