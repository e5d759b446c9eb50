"""Operators that the standard defines by others, in a body that is exact."""

from __future__ import annotations

from onward.passes.core.registry import by_body

for _op_type in (
    "Bernoulli", "BlackmanWindow", "Celu", "CenterCropPad", "Elu", "Gelu",
    "HammingWindow", "HannWindow", "HardSigmoid", "HardSwish", "LeakyRelu", "LogSoftmax",
    "NegativeLogLikelihoodLoss", "PRelu", "RMSNormalization", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceSumSquare", "RotaryEmbedding", "Selu", "SequenceMap", "Shrink", "Softmax", "SoftmaxCrossEntropyLoss",
    "Softsign", "SwiGLU", "Swish", "ThresholdedRelu",
):  # fmt: skip
    by_body(_op_type)
for _op_type in ("Attention", "FlexAttention", "LinearAttention"):
    by_body(_op_type, kernel="the scores of all pairs need not be stored at once")
