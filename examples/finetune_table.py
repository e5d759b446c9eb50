"""Fine-tune a network on a table with text and empty cells, and write one file that takes raw rows.

    python examples/finetune_table.py --output tuned_table

The table is real: 398 cars of the years 1970 to 1982 (UCI's Auto MPG), which the package vega_datasets holds. A network
predicts the consumption from numbers (some are missing) and the country (text). What it needs is found on the training
rows alone, shown, saved with the model, and at the end written into the ONNX file, which ONNX Runtime runs on raw rows.
"""

from __future__ import annotations

import argparse
import json
from importlib import resources
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pandas as pd
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.train import Preparation

NUMBERS = ["Cylinders", "Displacement", "Horsepower", "Weight_in_lbs", "Acceleration"]
FEATURES = [*NUMBERS, "Origin"]
TARGET = "Miles_per_Gallon"


def load_cars() -> pd.DataFrame:
    """Return the cars whose consumption is known, the last 80 of them for testing."""
    rows = json.loads((resources.files("vega_datasets") / "_data" / "cars.json").read_text())
    table = pd.DataFrame(rows).dropna(subset=[TARGET])
    return table.sample(frac=1.0, random_state=0).reset_index(drop=True)


def build_network(width: int, hidden: int = 16) -> onnx.ModelProto:
    """Return an untrained network of two layers; any ONNX file that you have would do."""
    rng = np.random.default_rng(0)
    shapes = {"W1": (width, hidden), "b1": (hidden,), "W2": (hidden, 1), "b2": (1,)}
    weights = [numpy_helper.from_array((rng.normal(size=s) * 0.4).astype("f"), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Gemm", ["x", "W1", "b1"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "W2", "b2"], ["consumption"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", width])
    y = helper.make_tensor_value_info("consumption", TensorProto.FLOAT, ["N", 1])
    graph = helper.make_graph(nodes, "cars", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("tuned_table"))
    parser.add_argument("--epochs", type=int, default=60)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)

    table = load_cars()
    training, test = table[:-80], table[-80:]
    network = build_network(len(NUMBERS) + 3)  # the country becomes three numbers
    model = onward.make_trainable(network, loss="huber", optimizer=onward.AdamW(0.02), label="mpg")
    trainer = onward.Trainer(model)
    trainer.fit(
        training,
        target=TARGET,
        features=FEATURES,
        preparation=Preparation(rescale="standard", missing="median", unknown="ignore"),
        epochs=options.epochs,
        validation_data=0.1,
        progress="none",
    )
    print(trainer.preparation)
    error = float(trainer.evaluate(test, metrics=["mae"])["mae"])
    guess = float(np.abs(test[TARGET] - training[TARGET].mean()).mean())
    print(f"mean error on 80 other cars: {error:.2f} miles per gallon ({guess:.2f} for the mean of all cars)")

    path = options.output / "cars.onnx"
    onward.save(trainer.to_inference(embed_preparation=True), path)
    session = onnxruntime.InferenceSession(str(path))
    raw = {name: test[name].to_numpy("float64") for name in NUMBERS} | {"Origin": test["Origin"].to_numpy(object)}
    (predicted,) = session.run(None, raw)
    difference = float(np.abs(predicted - trainer.predict(test)).max())
    print(f"ONNX Runtime on raw rows of {path.name}: the same within {difference:.0e}")
    (options.output / "result.json").write_text(json.dumps({"error": error, "guess": guess, "difference": difference}))


if __name__ == "__main__":
    main()
