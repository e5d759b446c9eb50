"""The rewrites of step graphs for ONNX Runtime."""

from __future__ import annotations

from onward.backends.onnxruntime.batch_statistics import ShareBatchStatistics
from onward.backends.onnxruntime.gru_gates import KeepGatesOfGru
from onward.backends.onnxruntime.lstm_gates import KeepGates
from onward.backends.onnxruntime.relu import MaskByHardSigmoid
from onward.backends.onnxruntime.sums import SumRowsByProducts
from onward.backends.onnxruntime.transposed_convolutions import MergeThinProducts, TransposeConvolutionsAtOnce
from onward.backends.onnxruntime.unpooling import UnpoolGradients
from onward.passes.base import Pass

REWRITES: tuple[Pass, ...] = (
    KeepGates(),
    KeepGatesOfGru(),
    ShareBatchStatistics(),
    SumRowsByProducts(),
    UnpoolGradients(),
    MaskByHardSigmoid(),
    MergeThinProducts(),
)
ON_SEVERAL_THREADS: tuple[Pass, ...] = (TransposeConvolutionsAtOnce(),)
