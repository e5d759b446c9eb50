"""Without TensorFlow: one line with the command that installs it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import onward
from models import perceptron
from onward.backends import open_session
from onward.errors import MissingExtra


@pytest.mark.parametrize(
    ("use", "purpose"),
    [
        (lambda: onward.to_tensorflow(perceptron()), "onward.to_tensorflow"),
        (lambda: open_session(onward.compile(perceptron()), "tensorflow"), "the tensorflow backend"),
    ],
)
def test_missing_tensorflow_is_told_with_the_command(
    use: Callable[[], Any], purpose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)

    with pytest.raises(MissingExtra, match=f"{purpose} needs `tensorflow`, which is not installed") as caught:
        use()

    assert "pip install 'onward[tensorflow]'" in str(caught.value)
