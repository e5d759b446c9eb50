"""Cases of autodiff/rules/convolution.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases import array, case


def torch_conv(**options: Any) -> Any:
    """Return PyTorch's convolution of the right rank."""

    def run(X: Any, W: Any, B: Any = None) -> Any:
        import torch.nn.functional as F

        return [F.conv1d, F.conv2d, F.conv3d][X.ndim - 3](X, W, B, **options)

    return run


def torch_conv_transpose(**options: Any) -> Any:
    """Return PyTorch's transposed convolution of the right rank."""

    def run(X: Any, W: Any, B: Any = None) -> Any:
        import torch.nn.functional as F

        return [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d][X.ndim - 3](X, W, B, **options)

    return run


def conv(
    name: str, X: tuple[int, ...], W: tuple[int, ...], *, bias: bool = False, op: str = "Conv", **rest: Any
) -> Any:
    """Return a case with random data of the given shapes."""
    outputs = W[0] if op == "Conv" else W[1] * rest.get("group", 1)
    B = {"B": array(outputs, seed=2)} if bias else {}
    return case(op, name, X=array(*X), W=array(*W, seed=1), **B, **rest)


CASES = [
    conv("1-D", (2, 2, 5), (3, 2, 3), bias=True, torch=torch_conv()),
    conv("2-D", (2, 2, 4, 5), (3, 2, 3, 2), bias=True, kernel_shape=[3, 2], torch=torch_conv()),
    conv("3-D", (1, 1, 3, 3, 4), (2, 1, 2, 2, 2), torch=torch_conv()),
    conv("stride with a rest", (1, 2, 6, 5), (2, 2, 3, 2), strides=[2, 3], torch=torch_conv(stride=(2, 3))),
    conv(
        "strides pads dilations", (2, 1, 6, 7), (2, 1, 2, 3), bias=True, strides=[2, 1], pads=[1, 2, 1, 2],
        dilations=[3, 2], torch=torch_conv(stride=(2, 1), padding=(1, 2), dilation=(3, 2)),
    ),
    conv("pads on one side", (1, 1, 5, 4), (2, 1, 3, 3), pads=[2, 0, 0, 1], strides=[1, 2]),
    conv("auto_pad VALID", (1, 2, 5, 4), (1, 2, 2, 3), auto_pad="VALID", strides=[2, 1]),
    conv("auto_pad SAME_UPPER", (2, 1, 5, 6), (2, 1, 2, 4), auto_pad="SAME_UPPER", strides=[2, 3], bias=True),
    conv("auto_pad SAME_LOWER", (1, 2, 5, 6), (2, 2, 2, 3), auto_pad="SAME_LOWER", strides=[2, 2]),
    conv("auto_pad SAME_UPPER stride 1", (1, 1, 4, 5), (2, 1, 2, 3), auto_pad="SAME_UPPER", kernel_shape=[2, 3]),
    conv("auto_pad SAME_UPPER stride beyond kernel", (1, 1, 7), (1, 1, 2), auto_pad="SAME_UPPER", strides=[4]),
    conv("auto_pad SAME_LOWER dilated", (1, 1, 6, 7), (1, 1, 3, 2), auto_pad="SAME_LOWER", dilations=[2, 3],
         strides=[1, 2], onnxruntime="refuses dilations with SAME pads"),
    conv("groups", (2, 4, 4, 3), (6, 2, 2, 2), group=2, bias=True, strides=[2, 1],
         torch=torch_conv(groups=2, stride=(2, 1))),
    conv("groups kernel known", (1, 4, 4, 4), (4, 2, 3, 3), group=2, kernel_shape=[3, 3], pads=[1, 1, 1, 1],
         torch=torch_conv(groups=2, padding=1)),
    conv("depthwise", (2, 3, 4, 4), (3, 1, 3, 3), group=3, pads=[1, 1, 1, 1], kernel_shape=[3, 3],
         torch=torch_conv(groups=3, padding=1)),
    conv("depthwise strides and dilations", (2, 3, 9, 8), (3, 1, 3, 2), group=3, strides=[2, 3], dilations=[1, 2],
         pads=[1, 0, 2, 3], kernel_shape=[3, 2]),
    conv("depthwise cut by the stride", (1, 2, 9), (2, 1, 2), group=2, strides=[4],
         torch=torch_conv(groups=2, stride=4)),
    conv("depthwise volume", (2, 2, 3, 4, 4), (2, 1, 2, 3, 1), group=2, strides=[1, 2, 2], pads=[1, 1, 0, 0, 1, 0],
         kernel_shape=[2, 3, 1]),
    conv("depthwise with multiplier", (1, 2, 5), (4, 1, 2), group=2, torch=torch_conv(groups=2)),
    conv("small image, many channels", (2, 1, 4, 4), (9, 1, 3, 3), kernel_shape=[3, 3], torch=torch_conv()),
    conv("kernel 1", (2, 3, 2, 2), (2, 3, 1, 1), kernel_shape=[1, 1], torch=torch_conv()),
    conv("kernel 1 stride 2", (1, 2, 5, 4), (3, 2, 1, 1), strides=[2, 2], torch=torch_conv(stride=2)),
    conv("kernel as large as the image", (2, 2, 3, 3), (2, 2, 3, 3), kind="edge", torch=torch_conv()),
    conv("size 1 everywhere", (1, 1, 1, 1), (1, 1, 1, 1), kind="edge", bias=True, torch=torch_conv()),
    conv("pads beyond the kernel", (1, 1, 3, 3), (1, 1, 2, 2), kind="edge", pads=[2, 2, 2, 2],
         torch=torch_conv(padding=2)),
    conv("empty batch", (0, 2, 4, 4), (3, 2, 2, 2), kind="edge", kernel_shape=[2, 2],
         onnxruntime="ConvTranspose refuses an empty batch"),
    case("Conv", "zeros and large values", kind="special", X=np.array([[[0.0, 1e4, -1e4, 0.0]]]),
         W=np.array([[[0.0, 1e-4]]]), torch=torch_conv(), rtol=1e-5),
    conv("1-D", (2, 2, 3), (2, 2, 3), op="ConvTranspose", bias=True, torch=torch_conv_transpose()),
    conv("2-D", (2, 2, 3, 2), (2, 2, 2, 3), op="ConvTranspose", bias=True, strides=[2, 3], kernel_shape=[2, 3],
         torch=torch_conv_transpose(stride=(2, 3))),
    conv("3-D", (1, 1, 2, 2, 2), (1, 2, 2, 2, 2), op="ConvTranspose", torch=torch_conv_transpose()),
    conv("pads output_padding dilations", (1, 2, 3, 3), (2, 1, 3, 2), op="ConvTranspose", strides=[2, 2],
         pads=[1, 1, 1, 1], output_padding=[1, 1], dilations=[1, 2],
         torch=torch_conv_transpose(stride=2, padding=1, output_padding=1, dilation=(1, 2))),
    conv("pads on one side", (1, 1, 3, 4), (1, 2, 3, 3), op="ConvTranspose", pads=[0, 2, 1, 0]),
    conv("output_padding beyond the stride", (1, 1, 3), (1, 1, 3), op="ConvTranspose", dilations=[3],
         output_padding=[2], onnxruntime="refuses output_padding beyond the stride",
         torch=torch_conv_transpose(dilation=3, output_padding=2)),
    conv("groups", (2, 4, 2, 3), (4, 3, 2, 2), op="ConvTranspose", group=2, bias=True, strides=[2, 1],
         kernel_shape=[2, 2], torch=torch_conv_transpose(groups=2, stride=(2, 1))),
    conv("depthwise", (1, 3, 3, 2), (3, 1, 2, 2), op="ConvTranspose", group=3, torch=torch_conv_transpose(groups=3)),
    conv("auto_pad SAME_UPPER", (1, 1, 3, 2), (1, 2, 4, 3), op="ConvTranspose", strides=[2, 2], auto_pad="SAME_UPPER"),
    conv("auto_pad SAME_LOWER", (1, 1, 3, 2), (1, 2, 4, 3), op="ConvTranspose", strides=[1, 2], auto_pad="SAME_LOWER",
         kernel_shape=[4, 3]),
    conv("auto_pad SAME_UPPER kernel below the stride", (1, 2, 3, 2), (2, 1, 3, 2), op="ConvTranspose", group=2,
         strides=[2, 4], auto_pad="SAME_UPPER"),
    conv("auto_pad SAME_LOWER kernel below the stride", (1, 1, 2, 2), (1, 2, 2, 1), op="ConvTranspose", strides=[3, 3],
         output_padding=[0, 1], auto_pad="SAME_LOWER"),
    conv("auto_pad VALID", (1, 2, 2, 2), (2, 1, 2, 2), op="ConvTranspose", auto_pad="VALID"),
    conv("output_shape", (1, 1, 3, 3), (1, 2, 3, 3), op="ConvTranspose", strides=[3, 2], output_shape=[8, 6]),
    conv("output_shape SAME_UPPER", (1, 1, 3, 3), (1, 2, 3, 3), op="ConvTranspose", strides=[3, 2],
         output_shape=[8, 6], auto_pad="SAME_UPPER", kernel_shape=[3, 3]),
    conv("output_shape much larger than the windows", (1, 1, 2, 2), (1, 1, 2, 1), op="ConvTranspose",
         strides=[4, 4], output_shape=[8, 9], auto_pad="SAME_UPPER", kind="edge",
         onnxruntime="refuses an output_shape that no pads give"),
    conv("output_shape larger than the windows", (1, 1, 2, 2), (1, 1, 2, 2), op="ConvTranspose",
         output_shape=[5, 4], kind="edge", onnxruntime="refuses an output_shape that no pads give"),
    conv("size 1 everywhere", (1, 1, 1), (1, 1, 1), op="ConvTranspose", kind="edge", torch=torch_conv_transpose()),
    case("ConvTranspose", "zeros", kind="special", X=np.zeros((1, 1, 2)), W=np.zeros((1, 1, 2)),
         torch=torch_conv_transpose()),
]  # fmt: skip
