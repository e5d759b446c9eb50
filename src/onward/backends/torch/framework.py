"""PyTorch for the interpreter: how to make and read a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onward.backends.graph.framework import Framework
from onward.backends.graph.host import Host
from onward.backends.torch.registry import REGISTRY
from onward.backends.torch.tensors import to_tensor

_HOST_TYPES = {"int64": torch.int64, "int32": torch.int32, "int8": torch.int8, "bool": torch.bool}


class Torch(Framework):
    """PyTorch's tensors."""

    title = "PyTorch"

    def to_tensor(self, array: np.ndarray) -> Tensor:
        return to_tensor(array)

    def from_host(self, value: Host, like: Sequence[Any] = ()) -> Tensor:
        tensors = [v for v in like if isinstance(v, Tensor)]
        device = tensors[0].device if tensors else None
        return torch.tensor(value.values, dtype=_HOST_TYPES[value.dtype], device=device).reshape(value.shape)

    def read(self, tensor: Any) -> list[Any]:
        flat: list[Any] = torch.as_tensor(tensor).reshape(-1).tolist()
        return flat

    def number(self, value: Any) -> Any:
        return value.item() if isinstance(value, Tensor) else super().number(value)

    def select(self, tensor: Tensor, axis: int, index: int) -> Tensor:
        return tensor.select(axis, index)

    def stack(self, tensors: list[Tensor], axis: int) -> Tensor:
        return torch.stack(tensors, axis)


TORCH = Torch(REGISTRY)
ints, floats, number = TORCH.ints, TORCH.floats, TORCH.number


def host_type(value: Host) -> torch.dtype:
    """Return the torch type of a host value."""
    return _HOST_TYPES[value.dtype]
