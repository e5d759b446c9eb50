"""Every optimizer of Keras, traced with its state, against `train_on_batch` over 50 steps."""

from __future__ import annotations

import pytest

from frontends.keras.keras_optimizers import MADE, classes, compare

# Rounding errors that an optimizer enlarges in float32, each with its cause; in float64 all agree.
FLOAT32 = {}


def test_no_optimizer_of_keras_is_missing() -> None:
    assert classes() == {name.split("(")[0] for name in MADE}


@pytest.mark.parametrize("name", MADE)
def test_an_optimizer_continues_in_float64(name: str) -> None:
    found = compare(name, "float64")

    assert max(found.values()) <= 1e-10, found


@pytest.mark.parametrize("name", ["Adam", "Muon", "Adam(use_ema)", "Adam(gradient_accumulation_steps)"])
def test_an_optimizer_continues_in_float32(name: str) -> None:
    found = compare(name, "float32", steps=20)

    assert max(found.values()) <= FLOAT32.get(name, 1e-5), found
