"""The rewrites of step graphs for ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator

from onward.backends.onnxruntime.batch_statistics import ShareBatchStatistics
from onward.backends.onnxruntime.gru_gates import KeepGatesOfGru
from onward.backends.onnxruntime.lstm_gates import KeepGates
from onward.backends.onnxruntime.native import library
from onward.backends.onnxruntime.native.convolutions import UseNativeConvolutions
from onward.backends.onnxruntime.native.normalizations import UseNativeNormalizations
from onward.backends.onnxruntime.native.pools import UseNativePools
from onward.backends.onnxruntime.native.products import UseNativeProducts
from onward.backends.onnxruntime.native.recurrent import UseNativeGru, UseNativeLstm
from onward.backends.onnxruntime.native.rows import UseNativeRows
from onward.backends.onnxruntime.relu import MaskByHardSigmoid
from onward.backends.onnxruntime.stored import WaitForStored
from onward.backends.onnxruntime.sums import SumRowsByProducts
from onward.backends.onnxruntime.transposed_convolutions import MergeThinProducts, TransposeConvolutionsAtOnce
from onward.backends.onnxruntime.unpooling import UnpoolGradients
from onward.passes.base import Pass

NATIVE: tuple[Pass, ...] = (
    ShareBatchStatistics(),
    UseNativeNormalizations(),
    UseNativeRows(),  # before the convolutions, which do the work of the Relu behind them
    UseNativeConvolutions(),
    UseNativePools(),
    UseNativeLstm(),
    UseNativeGru(),
)
REWRITES: tuple[Pass, ...] = (
    KeepGates(),
    KeepGatesOfGru(),
    ShareBatchStatistics(),
    SumRowsByProducts(),
    UnpoolGradients(),
    MaskByHardSigmoid(),
    MergeThinProducts(),
    WaitForStored(),
)
ON_SEVERAL_THREADS: tuple[Pass, ...] = (TransposeConvolutionsAtOnce(),)


def rewrites(threads: int, *, native: bool, parts: frozenset[str]) -> Iterator[Pass]:
    """Yield the passes for a session, whose library of native kernels has these parts."""
    if native:
        yield from NATIVE
    if native and "products" in parts:
        yield UseNativeProducts(threads, tiles=library.has_tiles(parts))
    yield from REWRITES
    if threads > 1:
        yield from ON_SEVERAL_THREADS
