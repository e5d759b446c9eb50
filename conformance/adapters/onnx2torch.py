"""onnx2torch: the converted module, called; gradients by PyTorch's autograd through that module.

torchvision's kernels do not load beside a PyTorch for the CPU only; without them, RoiAlign and NonMaxSuppression fail.
"""
# packages: torch==2.13.0 onnx2torch==1.5.15 onnx==1.23.2

from __future__ import annotations

import importlib
import re
import sys
import unittest
from typing import Any

import numpy as np
import onnx
import torch
from _gradient import Question, split

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for _ in range(20):
    try:
        importlib.import_module("torchvision")
        break
    except RuntimeError as error:  # its operators are not registered; to be imported it needs their names only
        missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
        if missing is None:
            raise
        LIBRARY.define(f"{missing.group(1)}(Tensor x) -> Tensor")
        for module in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
            del sys.modules[module]
from onnx2torch import convert  # noqa: E402

PACKAGES = ["onnx2torch", "torch"]


def supports_device(device: str) -> bool:
    return device == "CPU"


class Prepared:
    def __init__(self, model: onnx.ModelProto, question: Question | None) -> None:
        self.question = question
        try:
            self.module = convert(model if question is None else question.forward)
        except NotImplementedError as error:
            raise unittest.SkipTest(" ".join(str(error).split())[:500]) from error
        self.module.eval()
        graph = model.graph if question is None else question.forward.graph
        stored = {t.name for t in graph.initializer}
        self.names = [v.name for v in graph.input if v.name not in stored]
        self.outputs = [o.name for o in graph.output]

    def run(self, inputs: Any) -> tuple[Any, ...]:
        tensors = [_tensor(v) for v in inputs]
        if self.question is None:
            with torch.no_grad():
                return tuple(map(_array, self._call(tensors)))
        feeds = dict(zip(self.names, tensors, strict=False))
        xs = [feeds.get(x) for x in self.question.xs]
        if any(x is None for x in xs):
            raise unittest.SkipTest("the adapter differentiates with respect to inputs only")
        for x in xs:
            x.requires_grad_(True)
        values = dict(zip(self.outputs, self._call(tensors), strict=False))
        total = values[self.question.y].sum()
        found = torch.autograd.grad(total, xs, allow_unused=True)
        for x, gradient, name in zip(xs, found, self.question.gradients, strict=False):
            values[name] = torch.zeros_like(x) if gradient is None else gradient
        return tuple(map(_array, self.question.answer(values)))

    def _call(self, tensors: list[Any]) -> list[Any]:
        try:
            found = self.module(*tensors)
        except NotImplementedError as error:
            raise unittest.SkipTest(" ".join(str(error).split())[:500]) from error
        return list(found) if isinstance(found, (list, tuple)) else [found]


def _tensor(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_tensor(v) for v in value]
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    if array.dtype.isbuiltin != 1 or array.dtype.kind not in "biufc":
        raise unittest.SkipTest(f"PyTorch has no element type {array.dtype}")
    return torch.from_numpy(np.array(array, order="C"))


def _array(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_array(v) for v in value]
    if value is None or not isinstance(value, torch.Tensor):
        return value
    if value.dtype == torch.bfloat16:
        import ml_dtypes

        return value.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.detach().numpy()


def prepare(model: onnx.ModelProto, device: str = "CPU", **_: Any) -> Prepared:
    return Prepared(model, split(model))
