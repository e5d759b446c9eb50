"""Random draws of an inference graph, from PyTorch's generator; in training they are arithmetic over a random key.

A seed gives the same numbers in every run. Without one, every run differs, as `torch.manual_seed` says.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onward.backends.torch.registry import Attributes, op
from onward.backends.torch.tensors import torch_type


def _generator(attributes: Attributes, device: torch.device) -> torch.Generator | None:
    seed = attributes.get("seed")
    return None if seed is None else torch.Generator(device).manual_seed(int(seed))


def _draw(attributes: Attributes, like: Any, function: str) -> Tensor:
    """Return the draws of `Tensor.normal_` or `Tensor.uniform_` in the shape of `like`, or of the attribute."""
    given = attributes.get("dtype")
    if like is None:
        drawn = torch.empty(attributes["shape"], dtype=torch.float32 if given is None else torch_type(given))
    else:
        drawn = torch.empty(like.shape, dtype=like.dtype if given is None else torch_type(given), device=like.device)
    names = ("mean", "scale") if function == "normal_" else ("low", "high")
    first, second = (attributes[name] for name in names)
    result: Tensor = getattr(drawn, function)(first, second, generator=_generator(attributes, drawn.device))
    return result


@op("RandomNormal", "RandomNormalLike")
def random_normal(attributes: Attributes, like: Any = None) -> Tensor:
    return _draw(attributes, like, "normal_")


@op("RandomUniform", "RandomUniformLike")
def random_uniform(attributes: Attributes, like: Any = None) -> Tensor:
    return _draw(attributes, like, "uniform_")


@op("Bernoulli", since=15)
def bernoulli(attributes: Attributes, probability: Tensor) -> Tensor:
    drawn = torch.bernoulli(probability, generator=_generator(attributes, probability.device))
    given = attributes.get("dtype")
    return drawn if given is None else drawn.to(torch_type(given))


@op("Multinomial", since=7)
def multinomial(attributes: Attributes, logits: Tensor) -> Tensor:
    weights = torch.softmax(logits.float(), 1)
    generator = _generator(attributes, logits.device)
    drawn = torch.multinomial(weights, attributes["sample_size"], replacement=True, generator=generator)
    return drawn.to(torch_type(attributes["dtype"]))
