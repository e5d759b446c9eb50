"""Cases of autodiff/rules/loss.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases import array, case

LABELS = np.array([2, 0, 3, 1])
IGNORING = np.array([2, -1, 3, -1])
SPATIAL = np.array([[0, 2], [1, 1]])
WEIGHTS = np.array([0.5, 1.5, 1.0, 2.0])


def cross_entropy(**options: Any) -> Any:
    def call(scores: Any, labels: Any, weights: Any = None) -> Any:
        import torch

        weight = None if weights is None else weights.detach()
        return torch.nn.functional.cross_entropy(scores, labels, weight, **options)

    return call


def nll(**options: Any) -> Any:
    def call(input: Any, target: Any, weight: Any = None) -> Any:
        import torch

        weight = None if weight is None else weight.detach()
        return torch.nn.functional.nll_loss(input, target, weight, **options)

    return call


def with_log_prob(scores: Any, labels: Any) -> Any:
    return cross_entropy()(scores, labels), scores.log_softmax(1)


CASES = []
for _r in ("mean", "sum", "none"):
    _S = {"scores": array(4, 4), "labels": LABELS, "reduction": _r}
    _N = {"input": array(4, 4), "target": LABELS, "reduction": _r}
    CASES += [
        case("SoftmaxCrossEntropyLoss", _r, **_S, torch=cross_entropy(reduction=_r)),
        case("SoftmaxCrossEntropyLoss", f"{_r}, weights", **_S, weights=WEIGHTS, wrt=["scores"],
             torch=cross_entropy(reduction=_r)),
        case("SoftmaxCrossEntropyLoss", f"{_r}, gradient by weights", **_S, weights=WEIGHTS),
        case("SoftmaxCrossEntropyLoss", f"{_r}, ignoring, gradient by weights", **{**_S, "labels": IGNORING},
             weights=WEIGHTS, ignore_index=-1),
        case("SoftmaxCrossEntropyLoss", f"{_r}, ignoring", kind="edge", **{**_S, "labels": IGNORING}, ignore_index=-1,
             torch=cross_entropy(reduction=_r, ignore_index=-1)),
        case("SoftmaxCrossEntropyLoss", f"{_r}, (N, C, d)", kind="edge", scores=array(2, 3, 2), labels=SPATIAL,
             reduction=_r, torch=cross_entropy(reduction=_r)),
        case("SoftmaxCrossEntropyLoss", f"{_r}, (N, C, d, d), all options", kind="edge", scores=array(1, 3, 2, 2),
             labels=SPATIAL[None], weights=WEIGHTS[:3], ignore_index=2, reduction=_r, wrt=["scores"],
             torch=cross_entropy(reduction=_r, ignore_index=2)),
        case("NegativeLogLikelihoodLoss", _r, **_N, torch=nll(reduction=_r)),
        case("NegativeLogLikelihoodLoss", f"{_r}, gradient by weight", **_N, weight=WEIGHTS),
        case("NegativeLogLikelihoodLoss", f"{_r}, ignoring", kind="edge", **{**_N, "target": IGNORING},
             ignore_index=-1, torch=nll(reduction=_r, ignore_index=-1)),
        case("NegativeLogLikelihoodLoss", f"{_r}, (N, C, d), all options", kind="edge", input=array(2, 3, 2),
             target=SPATIAL, weight=WEIGHTS[:3], ignore_index=2, reduction=_r, wrt=["input"],
             torch=nll(reduction=_r, ignore_index=2)),
    ]  # fmt: skip
CASES += [
    case("SoftmaxCrossEntropyLoss", "through log_prob", scores=array(4, 4), labels=LABELS,
         outputs=["output", "log_prob"], torch=with_log_prob),
    case("SoftmaxCrossEntropyLoss", "int32 labels", kind="edge", scores=array(4, 4), labels=LABELS.astype(np.int32)),
    case("SoftmaxCrossEntropyLoss", "one class", kind="edge", scores=array(2, 1), labels=np.array([0, 0]),
         torch=cross_entropy()),
    case("SoftmaxCrossEntropyLoss", "large scores", kind="special", scores=np.array([[1000.0, -1000.0], [800.0, 0.0]]),
         labels=np.array([1, 1]), expected={"scores": [[0.5, -0.5], [0.5, -0.5]]}, torch=cross_entropy()),
    case("SoftmaxCrossEntropyLoss", "all ignored", kind="special", scores=array(2, 3), labels=np.array([-1, -1]),
         ignore_index=-1, expected={"scores": np.zeros((2, 3))}, torch=cross_entropy(ignore_index=-1)),
    case("SoftmaxCrossEntropyLoss", "masked class", kind="special", scores=np.array([[1.0, -np.inf]]),
         labels=np.array([0]), expected={"scores": [[0, 0]]}, torch=cross_entropy()),
    case("NegativeLogLikelihoodLoss", "infinite elsewhere", kind="special", input=np.array([[-1.0, -np.inf]]),
         target=np.array([0]), expected={"input": [[-1, 0]]}, torch=nll()),
]  # fmt: skip
