"""`onward.doctor`: what can be done with an ONNX file, and what stands in the way."""

from __future__ import annotations

from onward.diagnosis.examination import Diagnosis, doctor

__all__ = ["Diagnosis", "doctor"]
