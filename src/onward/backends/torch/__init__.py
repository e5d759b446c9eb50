"""The torch backend, and `to_torch`: convert a training model to a module and an optimizer.

torch is imported on first use.
"""

from __future__ import annotations

import inspect
from typing import Any

from onward import versions
from onward.arguments import check_names
from onward.backends.onnx_backend import OnnxBackend
from onward.backends.onnx_backend import check_model as check_model
from onward.errors import require_extra

BACKEND = OnnxBackend("torch")
"""ONNX's interface: `onnx.backend.test.BackendTest(onward.backends.torch, __name__)` runs ONNX's tests."""
prepare, run_model, run_node = BACKEND.prepare, BACKEND.run_model, BACKEND.run_node
supports_device, is_compatible = BACKEND.supports_device, BACKEND.is_compatible
prepare_training = BACKEND.prepare_training


def to_torch(model: Any, mode: str = "both", **options: Any) -> Any:
    """Return (module, optimizer): `model` as a real `nn.Module` and a real `torch.optim.Optimizer`.

    Parameters and buffers have the ONNX names, so `state_dict()` round-trips; tied weights stay tied; `.train()` runs
    the training-mode forward (dropout, batch statistics) and `.eval()` the inference graph.
    `module.loss(*inputs, *targets)` is the model's own loss. The optimizer is one of `torch.optim`, with its state, if
    that computes exactly the same update. Otherwise it is a `GraphOptimizer`, which runs the model's own update graph.
    A model with several training entries (a GAN) gives a dict of optimizers by entry name.

    Args:
        model: a `TrainingModel`, a `ModelProto`, or a path.
        mode: "both"; "inference" gives only the evaluation forward and no optimizer; "training" refuses `.eval()`.
        options: `prefer_graph=True` always gives a `GraphOptimizer`. `gradients="graph"` differentiates
            `module.loss` with the lowered Gradient node of the file instead of PyTorch's autograd.

    Raises:
        ArgumentError: the mode is unknown, or it needs training information that the model lacks.
        BackendError: lists all operators that the torch backend lacks.
    """
    versions.check(installed_torch("onward.to_torch"))
    from onward.backends.torch.convert import convert

    valid = list(inspect.signature(convert).parameters)[2:]
    check_names("option of `to_torch`", options, valid)
    return convert(model, mode, **options)


def installed_torch(purpose: str) -> dict[str, str]:
    """Return the version of torch for `onward.versions.check`; raise an error that names `purpose` without torch."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise require_extra("torch", "torch", purpose) from error
    return {"torch": torch.__version__}
