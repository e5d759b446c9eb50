"""50 steps on changing batches, the last one smaller: losses, weights, statistics and optimizer state agree."""

from __future__ import annotations

import numpy as np
import pytest

import onward
from frontends.tensorflow.tf_models import CASES, normed
from frontends.tensorflow.tf_runs import batches, errors

LIMITS = {"float32": 1e-5, "float64": 1e-10}


@pytest.mark.parametrize("before", [0, 3], ids=["fresh", "half-trained"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_float64_follows_tensorflow(name, before, keras):
    backend = "torch" if name in ("normed", "attention") else "onnxruntime"  # which has no float64 Conv and Erf
    optimizer = keras.optimizers.Adagrad(0.25, epsilon=0.125)

    found = errors(CASES[name]("float64"), optimizer, before=before, backend=backend)

    assert max(found.values()) <= LIMITS["float64"], found


@pytest.mark.parametrize("name", sorted(CASES))
def test_float32_follows_tensorflow(name, keras):
    found = errors(CASES[name]("float32"), keras.optimizers.SGD(0.05, momentum=0.9), before=2)

    assert max(found.values()) <= LIMITS["float32"], found


def test_dropout_drops_its_share_and_evaluation_leaves_it_out():
    case = normed(rate=0.4)
    x, t = batches(case, 1, 8, 8, seed=1)[0]
    model = onward.from_tensorflow(case.module, loss=case.loss, optimizer="sgd", example_inputs=x, example_targets=t)
    algorithm = model.entries[0].algorithm

    drops = [node for node in algorithm if node.op_type == "Dropout"]
    assert [float(node.inputs[1].const_value.numpy()) for node in drops] == [pytest.approx(0.4)]

    trainer = onward.Trainer(model)
    feeds = {"x": x, "target": t}
    assert trainer.evaluate(x, t)["loss"] == pytest.approx(float(case.loss(case.module(x), t)), rel=1e-5)
    first, second = (float(trainer.step(feeds)["loss"]) for _ in range(2))
    assert first != second
    again = onward.Trainer(model)
    assert [float(again.step(feeds)["loss"]) for _ in range(2)] == [first, second]  # keyed: every run is the same


def test_the_users_variables_do_not_change(keras):
    case = normed()
    x, t = batches(case, 1, 4, 4, seed=1)[0]
    optimizer = keras.optimizers.Adam()
    optimizer.build(case.module.trainable_variables)
    every = [*case.module.variables, *(v.value for v in optimizer.variables)]
    before = [v.numpy() for v in every]

    onward.from_tensorflow(case.module, loss=case.loss, optimizer=optimizer, example_inputs=x, example_targets=t)

    assert all(np.array_equal(v.numpy(), old) for v, old in zip(every, before, strict=True))
