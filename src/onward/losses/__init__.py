"""Losses, one per file, written once as ONNX operators.

`make_trainable(loss=...)` takes one of these, its name (`"cross_entropy"`), or a custom loss.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from onward.arguments import check_name, check_names
from onward.losses.base import LabelSpec, Loss
from onward.losses.bce import BCE
from onward.losses.bce_with_logits import BCEWithLogits
from onward.losses.cosine_embedding import CosineEmbedding
from onward.losses.cross_entropy import CrossEntropy
from onward.losses.ctc import CTC
from onward.losses.custom import FunctionLoss, ModelLoss, PythonLoss, custom
from onward.losses.hinge import Hinge
from onward.losses.huber import Huber
from onward.losses.kl_div import KLDiv
from onward.losses.l1 import L1
from onward.losses.mse import MSE
from onward.losses.nll import NLL
from onward.losses.smooth_l1 import SmoothL1
from onward.losses.triplet_margin import TripletMargin
from onward.losses.weighted import Weighted

NAMES: dict[str, type[Loss]] = {
    "bce": BCE,
    "bce_with_logits": BCEWithLogits,
    "cosine_embedding": CosineEmbedding,
    "cross_entropy": CrossEntropy,
    "ctc": CTC,
    "hinge": Hinge,
    "huber": Huber,
    "kl_div": KLDiv,
    "l1": L1,
    "mse": MSE,
    "nll": NLL,
    "smooth_l1": SmoothL1,
    "triplet_margin": TripletMargin,
}


def by_name(name: str, **settings: Any) -> Loss:
    """Return the loss of that name with the given settings; an unknown name or setting is an error.

    >>> by_name("huber", delta=0.5)
    Huber(reduction='mean', delta=0.5)
    """
    check_name("loss", name, NAMES)
    loss = NAMES[name]
    known = [f.name for f in dataclasses.fields(loss) if f.init]  # type: ignore[arg-type]  # each is a dataclass
    check_names("setting", settings, known, place=f"loss `{name}`")
    return loss(**settings)


__all__ = [
    "BCE",
    "CTC",
    "L1",
    "MSE",
    "NAMES",
    "NLL",
    "BCEWithLogits",
    "CosineEmbedding",
    "CrossEntropy",
    "FunctionLoss",
    "Hinge",
    "Huber",
    "KLDiv",
    "LabelSpec",
    "Loss",
    "ModelLoss",
    "PythonLoss",
    "SmoothL1",
    "TripletMargin",
    "Weighted",
    "by_name",
    "custom",
]
