"""Cases of autodiff/rules/pooling.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases import array, case, distinct


def torch_pool(kind: str, **options: Any) -> Any:
    """Return PyTorch's pool `kind` ("max_pool", "avg_pool") of the right rank."""

    def run(X: Any) -> Any:
        import torch.nn.functional as F

        return getattr(F, f"{kind}{X.ndim - 2}d")(X, **options)

    return run


def max_pool(**options: Any) -> Any:
    return torch_pool("max_pool", **options)


def avg_pool(**options: Any) -> Any:
    return torch_pool("avg_pool", **options)


DILATED_SAME = "ONNX Runtime gives another output shape than the standard for SAME pads with dilations"

CASES = [
    case("MaxPool", "1-D", X=distinct(2, 2, 6), kernel_shape=[2], strides=[2], torch=max_pool(kernel_size=2)),
    case("MaxPool", "2-D overlapping", X=distinct(2, 2, 4, 5), kernel_shape=[3, 2],
         torch=max_pool(kernel_size=(3, 2), stride=1)),
    case("MaxPool", "3-D", X=distinct(1, 1, 3, 4, 3), kernel_shape=[2, 2, 2], strides=[1, 2, 1],
         torch=max_pool(kernel_size=2, stride=(1, 2, 1))),
    case("MaxPool", "pads strides", X=distinct(1, 2, 5, 5), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1],
         torch=max_pool(kernel_size=3, stride=2, padding=1)),
    case("MaxPool", "dilations", X=distinct(1, 1, 6, 6), kernel_shape=[2, 3], dilations=[3, 2], strides=[2, 1],
         torch=max_pool(kernel_size=(2, 3), dilation=(3, 2), stride=(2, 1))),
    case("MaxPool", "ceil_mode", X=distinct(1, 1, 6, 5), kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1,
         torch=max_pool(kernel_size=(3, 2), stride=2, ceil_mode=True)),
    case("MaxPool", "auto_pad SAME_UPPER", X=distinct(1, 1, 5, 6), kernel_shape=[2, 3], strides=[2, 2],
         auto_pad="SAME_UPPER"),
    case("MaxPool", "auto_pad SAME_LOWER", X=distinct(1, 1, 5, 6), kernel_shape=[2, 3], strides=[2, 2],
         auto_pad="SAME_LOWER"),
    case("MaxPool", "auto_pad VALID", X=distinct(1, 1, 5, 6), kernel_shape=[2, 3], auto_pad="VALID"),
    case("MaxPool", "storage_order", X=distinct(2, 2, 3, 4), kernel_shape=[2, 2], storage_order=1, outputs=["Y",
         "Indices"]),
    case("MaxPool", "storage_order 3-D", X=distinct(1, 1, 2, 4, 3), kernel_shape=[2, 2, 2], storage_order=1),
    case("MaxPool", "indices used", X=distinct(1, 2, 4, 4), kernel_shape=[2, 2], outputs=["Y", "Indices"]),
    case("MaxPool", "size 1", kind="edge", X=array(2, 1, 1, 1), kernel_shape=[1, 1],
         torch=max_pool(kernel_size=1)),
    case("MaxPool", "ties", kind="edge", X=np.ones((1, 1, 4)), kernel_shape=[2], strides=[2],
         expected={"X": [[[1.0, 0.0, 1.0, 0.0]]]}),
    case("MaxPool", "infinite", kind="special", X=np.array([[[-np.inf, 0.0, np.inf, 1.0]]]), kernel_shape=[2],
         strides=[2], expected={"X": [[[0.0, 1.0, 1.0, 0.0]]]}),
    case("AveragePool", "1-D", X=array(2, 2, 6), kernel_shape=[2], strides=[2], torch=avg_pool(kernel_size=2)),
    case("AveragePool", "tiles", X=array(1, 2, 4, 6), kernel_shape=[2, 3], strides=[2, 3],
         torch=avg_pool(kernel_size=(2, 3))),
    case("AveragePool", "tiles with a rest", X=array(1, 1, 5, 7), kernel_shape=[2, 3], strides=[2, 3],
         torch=avg_pool(kernel_size=(2, 3))),
    case("AveragePool", "overlapping 3-D", X=array(1, 1, 3, 4, 3), kernel_shape=[2, 2, 2],
         torch=avg_pool(kernel_size=2, stride=1)),
    case("AveragePool", "overlapping 3-D strided", X=array(1, 1, 3, 4, 3), kernel_shape=[3, 3, 2], strides=[1, 2, 1],
         pads=[1, 1, 0, 1, 1, 0], count_include_pad=1,
         torch=avg_pool(kernel_size=(3, 3, 2), stride=(1, 2, 1), padding=(1, 1, 0))),
    case("AveragePool", "pads excluded", X=array(1, 2, 4, 5), kernel_shape=[3, 3], pads=[1, 1, 1, 1],
         torch=avg_pool(kernel_size=3, stride=1, padding=1, count_include_pad=False)),
    case("AveragePool", "pads included", X=array(1, 2, 4, 5), kernel_shape=[3, 3], pads=[1, 1, 1, 1],
         count_include_pad=1, torch=avg_pool(kernel_size=3, stride=1, padding=1)),
    case("AveragePool", "pads excluded strided", X=array(2, 1, 5, 5), kernel_shape=[3, 2], pads=[1, 0, 1, 1],
         strides=[2, 3]),
    case("AveragePool", "ceil_mode", X=array(1, 1, 6, 5), kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1,
         torch=avg_pool(kernel_size=(3, 2), stride=2, ceil_mode=True)),
    case("AveragePool", "ceil_mode pads included", X=array(1, 1, 7, 6), kernel_shape=[4, 3], strides=[3, 2],
         ceil_mode=1,
         pads=[1, 1, 1, 1], count_include_pad=1,
         torch=avg_pool(kernel_size=(4, 3), stride=(3, 2), ceil_mode=True, padding=1)),
    case("AveragePool", "ceil_mode pads excluded", X=array(1, 1, 7, 6), kernel_shape=[4, 3], strides=[3, 2],
         ceil_mode=1,
         pads=[1, 1, 1, 1],
         torch=avg_pool(kernel_size=(4, 3), stride=(3, 2), ceil_mode=True, padding=1, count_include_pad=False)),
    case("AveragePool", "ceil_mode last window in the pads", X=array(1, 1, 5), kernel_shape=[2], strides=[3],
         ceil_mode=1,
         pads=[1, 1], kind="edge", torch=avg_pool(kernel_size=2, stride=3, padding=1, ceil_mode=True,
         count_include_pad=False)),
    case("AveragePool", "dilations", X=array(1, 1, 6, 6), kernel_shape=[2, 3], dilations=[3, 2], pads=[1, 0, 0, 1]),
    case("AveragePool", "dilations strided", X=array(1, 1, 7), kernel_shape=[2], dilations=[3], strides=[2]),
    case("AveragePool", "auto_pad SAME_UPPER", X=array(1, 1, 5, 6), kernel_shape=[2, 3], strides=[2, 2],
         auto_pad="SAME_UPPER"),
    case("AveragePool", "auto_pad SAME_LOWER included", X=array(1, 1, 5, 6), kernel_shape=[2, 3], strides=[2, 2],
         auto_pad="SAME_LOWER", count_include_pad=1),
    case("AveragePool", "auto_pad SAME_LOWER stride 1", X=array(1, 1, 4, 5), kernel_shape=[2, 3],
         auto_pad="SAME_LOWER"),
    case("AveragePool", "auto_pad SAME_UPPER dilated", X=array(1, 1, 7), kernel_shape=[2], dilations=[2], strides=[2],
         auto_pad="SAME_UPPER", onnxruntime=DILATED_SAME),
    case("AveragePool", "auto_pad VALID", X=array(1, 1, 5, 6), kernel_shape=[2, 3], strides=[2, 2], auto_pad="VALID"),
    case("AveragePool", "opset 18", X=array(1, 1, 5, 6), kernel_shape=[2, 3], strides=[2, 2], opset=18),
    case("AveragePool", "size 1", kind="edge", X=array(1, 1, 1), kernel_shape=[1], torch=avg_pool(kernel_size=1)),
    case("AveragePool", "infinite", kind="special", X=np.array([[[np.inf, 1.0]]]), kernel_shape=[2],
         expected={"X": [[[0.5, 0.5]]]}),
    case("LpPool", "p 2", X=array(1, 2, 4, 5), kernel_shape=[3, 2]),
    case("LpPool", "p 1", X=array(1, 1, 7), kernel_shape=[3], strides=[2], p=1, pads=[1, 1]),
    case("LpPool", "p 3 strides pads", X=array(1, 1, 5, 5), kernel_shape=[2, 3], strides=[2, 2], p=3, pads=[1, 1,
         0, 1]),
    case("LpPool", "p 4 3-D", X=array(1, 1, 3, 3, 3), kernel_shape=[2, 2, 2], p=4),
    case("LpPool", "ceil_mode dilations", X=array(1, 1, 7, 6), kernel_shape=[2, 2], strides=[3, 2], dilations=[2, 1],
         ceil_mode=1),
    case("LpPool", "auto_pad SAME_UPPER", X=array(1, 1, 5, 6), kernel_shape=[2, 3], strides=[2, 2],
         auto_pad="SAME_UPPER"),
    case("LpPool", "window of zeros", kind="special", X=np.array([[[0.0, 0.0, 3.0, 4.0]]]), kernel_shape=[2],
         strides=[2], expected={"X": [[[0.0, 0.0, 0.6, 0.8]]]}),
    case("LpPool", "size 1", kind="edge", X=array(1, 1, 1), kernel_shape=[1]),
    case("GlobalAveragePool", "2-D", X=array(2, 3, 2, 2), torch=lambda X: X.mean((2, 3), keepdim=True)),
    case("GlobalAveragePool", "1-D", X=array(2, 3, 4), torch=lambda X: X.mean(2, keepdim=True)),
    case("GlobalAveragePool", "size 1", kind="edge", X=array(1, 2, 1, 1, 1)),
    case("GlobalAveragePool", "infinite", kind="special", X=np.array([[[np.inf, 1.0]]]), expected={"X": [[[0.5,
         0.5]]]}),
    case("GlobalMaxPool", "2-D", X=distinct(2, 3, 2, 3), torch=lambda X: X.amax((2, 3), keepdim=True)),
    case("GlobalMaxPool", "1-D", X=distinct(2, 3, 4), torch=lambda X: X.amax(2, keepdim=True)),
    case("GlobalMaxPool", "3-D size 1", kind="edge", X=array(1, 2, 1, 1, 1)),
    case("GlobalMaxPool", "ties", kind="special", X=np.ones((1, 1, 3)), expected={"X": [[[1.0, 0.0, 0.0]]]}),
    case("GlobalLpPool", "p 2", opset=21, X=array(2, 2, 2, 3), torch=lambda X: X.square().sum((2, 3),
         keepdim=True).sqrt()),
    case("GlobalLpPool", "p 1", opset=21, X=array(2, 2, 4), p=1),
    case("GlobalLpPool", "p 3", opset=21, X=array(1, 2, 2, 2), p=3),
    case("GlobalLpPool", "zeros", opset=21, kind="special", X=np.zeros((1, 1, 2)), expected={"X": np.zeros((1, 1, 2))}),
    case("GlobalLpPool", "size 1", opset=21, kind="edge", X=array(1, 1, 1, 1)),
    case("MaxUnpool", "2-D", X=array(1, 2, 2, 2), I=np.array([[[[0, 3], [8, 11]], [[16, 19], [29, 31]]]]),
         kernel_shape=[2, 2], strides=[2, 2]),
    case("MaxUnpool", "pads", X=array(1, 1, 3), I=np.array([[[0, 2, 4]]]), kernel_shape=[3], strides=[2], pads=[1, 1]),
    case("MaxUnpool", "output_shape", X=array(1, 1, 2, 2), I=np.array([[[[5, 7], [13, 15]]]]),
         output_shape=np.array([1, 1, 5, 5]), kernel_shape=[2, 2], strides=[2, 2], constants=["output_shape"],
         onnxruntime="counts I in output_shape, the standard in the shape that the attributes give"),
    case("MaxUnpool", "size 1", kind="edge", X=array(1, 1, 1), I=np.zeros((1, 1, 1), np.int64), kernel_shape=[1]),
    case("MaxUnpool", "zeros", kind="special", X=np.zeros((1, 1, 2)), I=np.array([[[1, 2]]]), kernel_shape=[2],
         strides=[2]),
]  # fmt: skip
