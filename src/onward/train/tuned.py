"""The argument `tune=` of a trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.compiler.tuning import Tuner
from onward.errors import A101, ArgumentError, Diagnostic
from onward.train.stored_model import StoredModel

_CPU = ["CPUExecutionProvider"]


def tuner_of(tune: Any, stored: StoredModel, backend: str, options: Mapping[str, Any]) -> Tuner | None:
    """Return what chooses the forms of gradients for a trainer; None for the usual ones.

    Raises:
        ArgumentError: the model is compiled already, or the backend is not ONNX Runtime on the CPU.
    """
    tuner = Tuner.of(tune, options.get("threads"))
    if tuner is None:
        return None
    if stored.model is None:
        raise ArgumentError(
            Diagnostic(
                A101,
                "a Program has its gradients already, and cannot be tuned",
                place="tune=",
                hint="give the model or its file, or compile it with onward.compile(model, tune=True)",
            )
        )
    providers = options.get("providers")
    if backend != "onnxruntime" or (providers is not None and list(providers) != _CPU):
        raise ArgumentError(
            Diagnostic(
                A101,
                "tune measures ONNX Runtime's CPU kernels, and other ones would run the model",
                place="tune=",
                found=f"backend {backend!r}" + (f", providers {list(providers)}" if providers else ""),
                needed="backend 'onnxruntime' on the CPU",
            )
        )
    return tuner
