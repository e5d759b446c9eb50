"""The public names are a contract: adding one is a decision, losing one breaks somebody."""

from __future__ import annotations

import subprocess
import sys

import pytest

import onward

NAMES = {
    "Adagrad", "Adam", "AdamW", "LossScale", "Momentum", "OnwardError", "Phase", "Program", "SGD", "Trainer",
    "TrainingModel", "__version__", "augment", "check", "compile", "doctor", "from_jax", "from_keras",
    "from_tensorflow", "from_torch", "gradient", "jvp", "load", "losses", "lower_gradients", "make_trainable", "mlir",
    "optimizers", "register_gradient", "samples", "save", "schedules", "straight_through", "surgery", "testing",
    "to_inference", "to_jax", "to_keras", "to_tensorflow", "to_torch", "train", "vjp",
}  # fmt: skip


def test_the_public_names_are_exactly_these() -> None:
    assert set(onward.__all__) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_public_name_can_be_had(name: str) -> None:
    assert getattr(onward, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        onward.no_such_name


def test_what_the_pages_call_onward_train_is_there_before_anything_loaded_it() -> None:
    code = "import onward; print(onward.train.EarlyStopping.__name__)"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "EarlyStopping"


def test_importing_onward_loads_no_framework() -> None:
    code = (
        "import sys, onward, onward.cli; onward.make_trainable; onward.Trainer; onward.gradient;"
        "onward.cli.build_app();"
        "frameworks = ('torch', 'tensorflow', 'jax', 'keras', 'sklearn', 'pandas', 'numba', 'matplotlib', 'PIL',"
        "              'onnxscript', 'iree');"
        "print([m for m in frameworks if m in sys.modules])"
    )

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"
