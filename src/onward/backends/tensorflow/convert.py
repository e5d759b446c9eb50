"""The implementation of `to_tensorflow`, which imports TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.arguments import check_name, check_names, whole
from onward.backends.tensorflow.autograd import GRADIENTS
from onward.backends.tensorflow.module import OnnxModule
from onward.compiler.compile import compile_model
from onward.errors import A101, ArgumentError, Diagnostic

MODES = ("both", "training", "inference")


def convert(
    model: Any,
    mode: str,
    *,
    sizes: Mapping[str, int] | None = None,
    gradients: str = "auto",
    report: bool = False,
    ragged: bool = False,
) -> Any:
    """Return the module of `model`, with `report` also what its layout costs; see `to_tensorflow`."""
    check_name("mode=", mode, MODES)
    check_name("gradients=", gradients, GRADIENTS)
    program = compile_model(model, split=mode != "inference")
    if not program.entries and mode == "training":
        raise ArgumentError(
            Diagnostic(A101, "the model has no training information", hint="use onward.make_trainable(...) first")
        )
    open_sizes = {d for spec in (*program.inputs, *program.targets) for d in spec.shape if isinstance(d, str)}
    fixed = {name: whole(f"sizes[{name!r}]", size, 1) for name, size in (sizes or {}).items()}
    check_names("size in `sizes`", fixed, open_sizes)
    module = OnnxModule(program, mode, gradients=gradients, sizes=fixed, ragged=ragged)
    return (module, module.transposes()) if report else module
