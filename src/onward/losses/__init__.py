"""Losses, one per file, written once as ONNX operators.

`make_trainable(loss=...)` takes one of these, its name (`"cross_entropy"`), or a custom loss.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from onward.arguments import check_name, check_names
from onward.errors import A101, ArgumentError, Diagnostic, require_extra
from onward.losses.anchor_yolo import AnchorYOLO
from onward.losses.base import LabelSpec, Loss, Scale
from onward.losses.batch_triplet import BatchTriplet
from onward.losses.bce import BCE
from onward.losses.bce_with_logits import BCEWithLogits
from onward.losses.box_iou import CIoU, DIoU, GIoU, IoU
from onward.losses.contrastive import InfoNCE, NTXent, SupervisedContrastive
from onward.losses.cosine_embedding import CosineEmbedding
from onward.losses.cross_entropy import CrossEntropy
from onward.losses.ctc import CTC, ctc_decode
from onward.losses.custom import FunctionLoss, ModelLoss, PythonLoss, custom
from onward.losses.detection import grid_anchors, pad_boxes
from onward.losses.dice import Dice
from onward.losses.distillation import Distillation
from onward.losses.focal import BinaryFocal, Focal
from onward.losses.hinge import Hinge
from onward.losses.huber import Huber
from onward.losses.kl_div import KLDiv
from onward.losses.l1 import L1
from onward.losses.mse import MSE
from onward.losses.nll import NLL
from onward.losses.smooth_l1 import SmoothL1
from onward.losses.ssd import SSD
from onward.losses.triplet_margin import TripletMargin
from onward.losses.tversky import Tversky
from onward.losses.weighted import Weighted
from onward.losses.yolo import YOLO

NAMES: dict[str, type[Loss]] = {
    "anchor_yolo": AnchorYOLO,
    "batch_triplet": BatchTriplet,
    "bce": BCE,
    "bce_with_logits": BCEWithLogits,
    "binary_focal": BinaryFocal,
    "ciou": CIoU,
    "cosine_embedding": CosineEmbedding,
    "cross_entropy": CrossEntropy,
    "ctc": CTC,
    "dice": Dice,
    "diou": DIoU,
    "distillation": Distillation,
    "focal": Focal,
    "giou": GIoU,
    "hinge": Hinge,
    "huber": Huber,
    "info_nce": InfoNCE,
    "iou": IoU,
    "kl_div": KLDiv,
    "l1": L1,
    "mse": MSE,
    "nll": NLL,
    "nt_xent": NTXent,
    "smooth_l1": SmoothL1,
    "ssd": SSD,
    "supervised_contrastive": SupervisedContrastive,
    "triplet_margin": TripletMargin,
    "tversky": Tversky,
    "yolo": YOLO,
}


def by_name(name: str, **settings: Any) -> Loss:
    """Return the loss of that name with the given settings; an unknown name or setting is an error.

    >>> by_name("huber", delta=0.5)
    Huber(reduction='mean', delta=0.5)
    """
    check_name("loss", name, NAMES)
    loss = NAMES[name]
    fields = [f for f in dataclasses.fields(loss) if f.init]  # type: ignore[arg-type]  # each is a dataclass
    check_names("setting", settings, [f.name for f in fields], place=f"loss `{name}`")
    nothing = dataclasses.MISSING
    missing = [f.name for f in fields if f.default is nothing and f.default_factory is nothing]
    problems = [
        Diagnostic(
            A101,
            f"the loss `{name}` needs the setting `{each}`",
            place="loss=",
            hint=f"give it: {loss.__name__}({each}=…); docs/losses.md describes it",
        )
        for each in missing
        if each not in settings
    ]
    if problems:
        raise ArgumentError(problems)
    return loss(**settings)


def from_torch(function: Callable[..., Any], outputs: Any = None, targets: Any = None) -> Loss:
    """Return a loss for a Python function over torch tensors: `function(outputs, targets)` returns one number.

    PyTorch's exporter makes an ONNX graph of it, of any batch size; training needs no PyTorch. Value and gradients of
    the graph are compared with those of the function on the example, and on twice as many samples.

    Args:
        function: a function, or an object such as `torch.nn.CrossEntropyLoss()`. It gets tensors, or lists of tensors
            where there are several outputs or targets; without targets it gets the outputs alone.
        outputs: an example of what the model gives: a tensor or numpy array, or a list of them, of two samples or more.
            None: the function is exported when the loss is used, with random numbers in the shapes of the model's
            outputs, and of the labels that `make_trainable(label={"labels": ("int64", ["N"])})` describes.
        targets: an example of the targets, likewise.

    Raises:
        ArgumentError: PyTorch cannot export the function, or the graph gives other numbers.
    """
    try:
        module = importlib.import_module("onward.frontends.torch.function_loss")
    except ModuleNotFoundError as error:
        raise require_extra(error.name or "torch", "torch", "`onward.losses.from_torch`") from error
    loss: Loss = module.from_torch(function, outputs, targets)
    return loss


__all__ = [
    "BCE",
    "CTC",
    "L1",
    "MSE",
    "NAMES",
    "NLL",
    "SSD",
    "YOLO",
    "AnchorYOLO",
    "BCEWithLogits",
    "BatchTriplet",
    "BinaryFocal",
    "CIoU",
    "CosineEmbedding",
    "CrossEntropy",
    "DIoU",
    "Dice",
    "Distillation",
    "Focal",
    "FunctionLoss",
    "GIoU",
    "Hinge",
    "Huber",
    "InfoNCE",
    "IoU",
    "KLDiv",
    "LabelSpec",
    "Loss",
    "ModelLoss",
    "NTXent",
    "PythonLoss",
    "Scale",
    "SmoothL1",
    "SupervisedContrastive",
    "TripletMargin",
    "Tversky",
    "Weighted",
    "by_name",
    "ctc_decode",
    "custom",
    "from_torch",
    "grid_anchors",
    "pad_boxes",
]
