"""The numpy oracle: onnx's reference evaluator with corrected operators."""

from __future__ import annotations

from onward.backends.reference.evaluator import Evaluator as Evaluator
