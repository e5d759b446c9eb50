"""Codes that no test of a whole feature raises, each at the function that reports it."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from onward.compiler.program import TensorSpec
from onward.errors import ArgumentError, BackendError, CheckpointError


def test_a_scheduler_of_another_kind_is_refused() -> None:
    import torch

    from onward.frontends.torch.schedulers import convert_scheduler

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)

    with pytest.raises(ArgumentError, match=r"A211.*`LambdaLR` cannot be converted"):
        convert_scheduler(scheduler, optimizer)


def test_an_element_type_that_torch_lacks_is_named() -> None:
    from onward.backends.torch.tensors import torch_type

    with pytest.raises(BackendError, match=r"B302.*PyTorch has no element type STRING"):
        torch_type(ir.DataType.STRING)


def test_a_batch_size_that_the_model_does_not_take_is_named() -> None:
    from onward.train.data.matching import _check_batch

    (problem,) = _check_batch(TensorSpec("x", "float32", (4, 2)), 3)

    assert problem.code == "T114"
    assert problem.needed == "batch_size=4"
    assert "free the first dimension" in str(problem.hint)
    assert not _check_batch(TensorSpec("x", "float32", ("N", 2)), 3)


def test_a_checkpoint_that_may_not_be_read_is_named() -> None:
    from onward.storage.checkpoints import reading

    with pytest.raises(CheckpointError, match=r"K107.*cannot read `run/step.*`: Permission denied"):  # noqa: SIM117
        with reading(Path("run/step-1.safetensors")):
            raise PermissionError(13, "Permission denied")
