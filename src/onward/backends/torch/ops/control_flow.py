"""If, Loop and Scan, as Python control flow that autograd records; sequences as lists, optionals as None."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onward.backends.graph.common import register_sequences
from onward.backends.graph.control_flow import Unrolled
from onward.backends.torch.framework import TORCH, ints
from onward.backends.torch.registry import Attributes, op

_STEPS = Unrolled(TORCH)
op("If")(_STEPS.if_)
op("Loop")(_STEPS.loop)
op("Scan", since=9)(_STEPS.scan)
register_sequences(TORCH)


@op("ConcatFromSequence")
def concat_from_sequence(attributes: Attributes, sequence: list[Tensor]) -> Tensor:
    join = torch.stack if attributes.get("new_axis", 0) else torch.cat
    return join(sequence, attributes["axis"])


@op("SplitToSequence")
def split_to_sequence(attributes: Attributes, x: Tensor, split: Any = None) -> list[Tensor]:
    axis = attributes["axis"]
    if split is None:
        parts = list(torch.split(x, 1, axis))
        return parts if attributes.get("keepdims", 1) else [p.squeeze(axis) for p in parts]
    sizes = ints(split)
    return list(torch.split(x, sizes if len(split.shape) else sizes[0], axis))
