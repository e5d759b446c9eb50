"""Without Keras: one line with the command that installs it; and `import onward` imports no Keras."""

from __future__ import annotations

import subprocess
import sys

import pytest

import onward
from models import perceptron
from onward.errors import MissingExtra


def test_missing_keras_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)

    with pytest.raises(MissingExtra, match="onward.to_keras needs `keras`, which is not installed") as caught:
        onward.to_keras(perceptron())

    assert "pip install 'onward[keras]'" in str(caught.value)


def test_from_keras_without_keras_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)

    with pytest.raises(MissingExtra, match="onward.from_keras needs `keras`, which is not installed") as caught:
        onward.from_keras("net.keras")

    assert "pip install 'onward[keras]'" in str(caught.value)


def test_classes_are_registered_when_keras_is_imported_and_not_before(tmp_path) -> None:
    """A module that stands for Keras, which takes long to import."""
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras" / "__init__.py").write_text(
        "class saving:\n"
        "    known = {}\n"
        "    @staticmethod\n"
        "    def register_keras_serializable(package, name):\n"
        "        return lambda cls: saving.known.setdefault(f'{package}>{name}', cls)\n"
    )
    code = (
        "import sys; import onward; assert 'keras' not in sys.modules;"
        "import keras; print(sorted(keras.saving.known)); print('onward.backends' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"},
    )

    assert done.stdout.splitlines() == ["['onward>OnnxModel', 'onward>OnnxOptimizer']", "False"], done.stderr
