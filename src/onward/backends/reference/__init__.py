"""The numpy oracle: onnx's reference evaluator, with the operators it gets wrong put right."""

from __future__ import annotations

from onward.backends.reference.evaluator import Evaluator as Evaluator
