"""Gradient rules of the user's own (`register_gradient`) hold in training on every backend, as in `onward.gradient`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import onward
from models import batch, perceptron
from onward.autodiff import registry
from onward.autodiff import rules as built_in


def reversed_in_the_middle() -> onnx.ModelProto:
    """Return a perceptron whose first layer ends in a function that hands its input on: a gradient reversal."""
    model = perceptron()
    model.graph.node[1].input[0] = "r0"
    model.graph.node.insert(1, helper.make_node("Reverse", ["z0"], ["r0"], name="reverse", domain="my.ops"))
    model.opset_import.append(helper.make_opsetid("my.ops", 1))
    body = [helper.make_node("Identity", ["X"], ["Y"])]
    model.functions.append(helper.make_function("my.ops", "Reverse", ["X"], ["Y"], body, [helper.make_opsetid("", 18)]))
    return model


def moved(model: onnx.ModelProto, backend: str) -> np.ndarray:
    """Return what one step of plain SGD adds to the first weight."""
    made = onward.make_trainable(model, loss="cross_entropy", optimizer=onward.SGD(0.1))
    if backend == "to_torch":
        torch = pytest.importorskip("torch")
        module, optimizer = onward.to_torch(made)
        before = module.tensor("W0").detach().numpy().copy()
        module.loss(*(torch.as_tensor(v) for v in batch().values())).backward()
        optimizer.step()
        return np.asarray(module.tensor("W0").detach().numpy() - before)
    trainer = onward.Trainer(made, backend=backend)
    before = trainer.parameters["W0"]
    trainer.step(batch())
    return np.asarray(trainer.parameters["W0"] - before)


@pytest.fixture
def rules() -> Iterator[None]:
    """Put the rules back afterwards."""
    assert built_in  # its import registers those of the standard
    held = {key: list(rules) for key, rules in registry._RULES.items()}
    yield
    registry._RULES.clear()
    registry._RULES.update(held)


def negative(rule: Any, dY: Any) -> dict[str, Any]:
    return {"X": rule.op.Neg(dY)}


@pytest.mark.parametrize("backend", ["onnxruntime", "torch", "to_torch"])
def test_the_rule_of_a_function_that_the_model_brings_along_is_used(rules: None, backend: str) -> None:
    expected = moved(perceptron(), backend)
    onward.register_gradient("Reverse", domain="my.ops")(negative)

    found = moved(reversed_in_the_middle(), backend)

    np.testing.assert_allclose(found, -expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("backend", ["onnxruntime", "torch", "to_torch"])
def test_a_rule_that_replaces_one_of_the_standard_is_used(rules: None, backend: str) -> None:
    onward.register_gradient("Relu")(negative)

    found = moved(perceptron(), backend)

    expected = moved_without_relu()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)


def moved_without_relu() -> np.ndarray:
    """Return the step of W0 where the gradient goes back through Relu as through a change of sign."""
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in perceptron().graph.initializer}
    x, labels = batch().values()
    hidden = np.maximum(x @ weights["W0"] + weights["b0"], 0)
    scores = hidden @ weights["W1"] + weights["b1"]
    parts = np.exp(scores - scores.max(1, keepdims=True))
    by_scores = (parts / parts.sum(1, keepdims=True) - np.eye(3)[labels]) / len(x)
    return np.asarray(0.1 * x.T @ (by_scores @ weights["W1"].T))
