"""Run ONNX's tests and Onward's suite against any backends, and show how they do: `onward scoreboard`."""

from __future__ import annotations
