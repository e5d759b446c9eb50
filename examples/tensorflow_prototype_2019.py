"""The first prototype of ONNX training, redone: a linear model with mean squared error and Adagrad.

    python examples/tensorflow_prototype_2019.py --output linear.train.onnx

In 2019 a prototype read such a file into TensorFlow: it looked for the words MSE and Adagrad, and ignored `Gradient`,
the attributes of the optimizer and the update bindings. Here the file is authored by hand as a standard
`TrainingInfoProto`, with the parts of that file: W is the weight, H the sum of squared gradients, R the learning rate
and T the number of the step. Two programs then train it by what it says, and agree:

    ONNX Runtime   `onward.Trainer(file)`
    TensorFlow     `onward.to_tensorflow(file)`, a tf.Module whose `train_step` differentiates with a GradientTape

Then the way back, which the prototype did not have: the same model in TensorFlow becomes such a file with
`onward.from_tensorflow`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TRAINING = "ai.onnx.preview.training"
DECAY, EPSILON = 0.1, 1e-7


def author() -> onnx.ModelProto:
    """Return the linear model with its training information: loss, gradient, optimizer and update bindings."""
    rows = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", 1])
    result = helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["N", 1])
    weight = numpy_helper.from_array(np.array([[-0.0075]], np.float32), "W")
    graph = helper.make_graph([helper.make_node("MatMul", ["X", "W"], ["Y"])], "linear", [rows], [result], [weight])

    algorithm = helper.make_graph(
        [
            helper.make_node("Sub", ["Y", "label"], ["error"]),
            helper.make_node("Mul", ["error", "error"], ["squared"]),
            helper.make_node("ReduceMean", ["squared"], ["loss"], keepdims=0),
            helper.make_node(
                "Gradient", ["W", "X", "label"], ["grad_W"], domain=TRAINING, xs=["W"], zs=["X", "label"], y="loss"
            ),
            helper.make_node(
                "Adagrad",
                ["R", "T", "W", "grad_W", "H"],
                ["new_W", "new_H"],
                domain=TRAINING,
                decay_factor=DECAY,
                epsilon=EPSILON,
                norm_coefficient=0.0,
            ),
            helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.array(1, np.int64))),
            helper.make_node("Add", ["T", "one"], ["new_T"]),
        ],
        "adagrad",
        [
            helper.make_tensor_value_info("label", TensorProto.FLOAT, ["N", 1]),
            helper.make_tensor_value_info("R", TensorProto.FLOAT, []),  # with an initializer: a default, to be set
        ],
        [
            helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("new_W", TensorProto.FLOAT, [1, 1]),
            helper.make_tensor_value_info("new_H", TensorProto.FLOAT, [1, 1]),
            helper.make_tensor_value_info("new_T", TensorProto.INT64, []),
        ],
        [
            numpy_helper.from_array(np.array(0, np.int64), "T"),
            numpy_helper.from_array(np.array(0.2, np.float32), "R"),
            numpy_helper.from_array(np.array([[1.0]], np.float32), "H"),
        ],
    )
    updates = [("W", "new_W"), ("H", "new_H"), ("T", "new_T")]
    training = helper.make_training_info(algorithm, updates, onnx.GraphProto(), [])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(TRAINING, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="prototype")
    model.training_info.append(training)
    return model


def batches(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return changing batches, the last one smaller."""
    random = np.random.RandomState(2019)
    found = []
    for size in [5] * (count - 1) + [3]:
        x = random.randn(size, 1).astype(np.float32)
        found.append((x, (-1.5 * x + 0.1 * random.randn(size, 1)).astype(np.float32)))
    return found


def main(output: Path, steps: int) -> float:
    """Write the file, train it twice, and return the largest difference of the losses and the weights."""
    import tensorflow as tf

    import onward

    onnx.save(author(), output)
    assert onward.check(output).ok

    trainer = onward.Trainer(output)
    runtime = [float(trainer.step({"X": x, "label": y})["loss"]) for x, y in batches(steps)]

    module = onward.to_tensorflow(output)
    tensorflow = [float(module.train_step(tf.constant(x), tf.constant(y))["loss"]) for x, y in batches(steps)]

    difference = max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(runtime, tensorflow, strict=True))
    for name in ("W", "H", "T"):
        mine, its = np.asarray(trainer.state[name]), module.state[name].numpy()
        difference = max(difference, float(np.abs(mine - its).max()) / max(float(np.abs(its).max()), 1e-3))
        print(f"{name}: ONNX Runtime {mine.reshape(-1)[0]:.6g}, TensorFlow {its.reshape(-1)[0]:.6g}")
    print(f"loss: {runtime[0]:.4f} at the start, {runtime[-1]:.4f} after {steps} steps")
    print(f"largest relative difference between ONNX Runtime and TensorFlow: {difference:.1e}")

    w = tf.Variable([[-0.0075]], name="W")
    again = onward.from_tensorflow(
        lambda x: x @ w,
        loss=lambda y, label: tf.reduce_mean(tf.square(y - label)),
        optimizer=onward.Adagrad(0.2, decay_factor=DECAY, epsilon=EPSILON, initial_accumulator=1.0),
        example_inputs=batches(1)[0][0],
        example_targets=batches(1)[0][1],
        label="label",
    )
    back = onward.Trainer(again)
    returned = [float(back.step({back.input_names[0]: x, "label": y})["loss"]) for x, y in batches(steps)]
    worst = max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(returned, runtime, strict=True))
    print(f"from TensorFlow to a file: {', '.join(again.initializers())}; largest difference {worst:.1e}")
    return max(difference, worst)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("linear.train.onnx"), help="where to write the file")
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    main(arguments.output, arguments.steps)
