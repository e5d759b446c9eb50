"""`make_trainable`: turn an inference model into a training model."""

from __future__ import annotations

from onward.author.loss_scale import LossScale
from onward.author.make import make_trainable
from onward.author.phases import Phase
from onward.author.tied_weights import TiedWeightsWarning

__all__ = ["LossScale", "Phase", "TiedWeightsWarning", "make_trainable"]
