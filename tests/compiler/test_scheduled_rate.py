"""The learning rate of a schedule, as a graph of its own."""

from __future__ import annotations

import numpy as np
import onnx

import onward


def test_a_loss_whose_body_reads_outer_values_compiles_with_a_schedule() -> None:
    """CTC is a Scan, whose body reads values of the graph around it: they go together where only the rate is needed."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> net (float[N, T, 4] x) => (float[N, T, 3] y) { y = MatMul(x, W) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(4, 3, dtype=np.float32), "W"))
    loss = onward.losses.CTC(logits=True, time_axis=1)

    trainable = onward.make_trainable(model, loss=loss, optimizer=onward.Adam(onward.schedules.Cosine(1e-2, 10)))

    trainer = onward.Trainer(trainable)
    feeds = {
        "x": np.ones((1, 6, 4), np.float32),
        "labels": np.array([[1, 2]]),
        "labels/output_lengths": np.array([6]),
        "labels/label_lengths": np.array([2]),
    }
    losses = [float(trainer.step(feeds)["loss"]) for _ in range(3)]
    assert losses[-1] < losses[0]
