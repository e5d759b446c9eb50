"""Train one case in TensorFlow, with a loop of the user's own, and in Onward, and compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import onward
from frontends.tensorflow.tf_models import Case


def batches(case: Case, count: int, size: int, last: int, seed: int) -> list[Any]:
    random = np.random.RandomState(seed)
    return [case.batch(random, size if i < count - 1 else last) for i in range(count)]


def loop(case: Case, optimizer: Any) -> Any:
    """Return one step of the user's loop: forward in training mode, GradientTape, the optimizer of Keras."""
    variables = case.module.trainable_variables
    mode = {"training": True} if hasattr(case.module, "rate") else {}

    @tf.function(reduce_retracing=True)
    def step(x: Any, t: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = case.loss(case.module(x, **mode), t)
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]
        optimizer.apply(gradients, variables)
        return loss

    return step


def errors(
    case: Case,
    optimizer: Any,
    *,
    before: int,
    steps: int = 50,
    size: int = 6,
    last: int = 3,
    backend: str = "onnxruntime",
) -> dict[str, float]:
    """Return the largest relative error of losses, weights and state after `steps` steps on changing batches.

    `before` steps run in TensorFlow first, so that a half-trained model is converted.
    """
    optimizer.build(case.module.trainable_variables)
    step = loop(case, optimizer)
    for x, t in batches(case, before, size, size, seed=3):
        step(tf.constant(x), tf.constant(t))
    x, t = batches(case, 1, size, size, seed=5)[0]
    model = onward.from_tensorflow(
        case.module, loss=case.loss, optimizer=optimizer, example_inputs=x, example_targets=t
    )
    assert onward.check(model).ok
    trainer = onward.Trainer(model, backend=backend)
    losses = []
    for x, t in batches(case, steps, size, last, seed=7):
        mine = float(trainer.step(dict(zip([*model.inputs, *model.targets], (x, t), strict=True)))["loss"])
        losses.append((mine, float(step(tf.constant(x), tf.constant(t)))))
    found = {"losses": max(abs(a - b) / max(abs(b), 1e-3) for a, b in losses)}
    names = {v.name.split(":")[0]: v for v in case.module.variables}
    names.update({v.path: v.value for v in optimizer.variables if v.path in trainer.state})
    compared = 0
    for name, variable in names.items():
        if name not in trainer.state:
            continue
        wanted, mine = variable.numpy(), np.asarray(trainer.state[name])
        assert (mine.dtype, mine.shape) == (wanted.dtype, wanted.shape)
        scale = max(float(np.abs(wanted).max(initial=0.0)), 1e-6)
        found[name] = float(np.abs(np.float64(mine) - np.float64(wanted)).max(initial=0.0)) / scale
        compared += 1
    bound = set(model.entries[0].update_binding)
    assert bound <= set(names), bound - set(names)  # everything that a step changes was compared
    return found
