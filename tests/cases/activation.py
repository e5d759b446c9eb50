"""Cases of autodiff/rules/activation.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases import array, case

AWAY = np.array([[-4.1, -1.3, -0.4], [0.3, 1.7, 5.2]])  # away from every kink
BIG = np.array([800.0, -800.0])  # where e^|X| overflows


def functional(name: str, **options: Any) -> Any:
    """Return torch.nn.functional.<name> as a function of X."""

    def call(X: Any) -> Any:
        import torch

        return getattr(torch.nn.functional, name)(X, **options)

    return call


def one(op: str, torch: Any, *, kinks: Any, slopes: Any, big: Any, **keywords: Any) -> list:
    """Return the cases of an activation: ordinary, empty, scalar, at its kinks, and where exponentials overflow."""
    return [
        case(op, "ordinary", X=AWAY, torch=torch, **keywords),
        case(op, "empty", kind="edge", X=array(0, 3), torch=torch, **keywords),
        case(op, "scalar", kind="edge", X=np.array(-0.4), torch=torch, **keywords),
        case(op, "at zero or the kinks", kind="special", X=np.array(kinks), expected={"X": slopes}, torch=torch,
             **keywords),
        case(op, "large", kind="special", X=BIG, expected={"X": big}, atol=1e-12, torch=torch, **keywords),
    ]  # fmt: skip


def f32(x: float) -> float:
    """Return the float32 nearest to x, as attributes are stored."""
    return float(np.float32(x))


SELU_ALPHA, SELU_GAMMA = f32(1.67326319217681884765625), f32(1.05070102214813232421875)
TOO_NEW = "double needs opset 28, which is newer than stock ONNX Runtime 1.31"


def selu(X: Any) -> Any:
    """Return torch's selu with ONNX's constants, which are rounded to float32."""
    return SELU_GAMMA * ((X > 0) * X + (X <= 0) * SELU_ALPHA * X.clamp(max=0).expm1())


CASES = [
    *one("Relu", functional("relu"), kinks=[0.0, -0.0], slopes=[0, 0], big=[1, 0]),
    *one("LeakyRelu", functional("leaky_relu", negative_slope=f32(0.01)), kinks=[0.0], slopes=[f32(0.01)],
         big=[1, f32(0.01)]),
    case("LeakyRelu", "negative alpha", kind="edge", X=AWAY, alpha=-0.5,
         torch=functional("leaky_relu", negative_slope=-0.5)),
    case("LeakyRelu", "alpha zero", kind="edge", X=AWAY, alpha=0.0, torch=functional("relu")),
    *one("Elu", functional("elu"), kinks=[0.0], slopes=[1], big=[1, 0]),
    case("Elu", "alpha", X=AWAY, alpha=1.5, torch=functional("elu", alpha=1.5)),
    case("Elu", "alpha large", kind="special", X=BIG, alpha=1.5, expected={"X": [1, 0]}, atol=1e-12),
    *one("Selu", selu, kinks=[0.0], slopes=[SELU_ALPHA * SELU_GAMMA], big=[SELU_GAMMA, 0]),
    case("Selu", "attributes", X=AWAY, alpha=0.5, gamma=2.0),
    *one("Celu", functional("celu"), kinks=[0.0], slopes=[1], big=[1, 0], opset=28, onnxruntime=TOO_NEW),
    case("Celu", "alpha", X=AWAY, alpha=2.5, torch=functional("celu", alpha=2.5), opset=28, onnxruntime=TOO_NEW),
    *one("ThresholdedRelu", functional("threshold", threshold=1.0, value=0.0), kinks=[1.0], slopes=[0], big=[1, 0]),
    case("ThresholdedRelu", "alpha", X=AWAY, alpha=0.2, torch=functional("threshold", threshold=f32(0.2), value=0.0)),
    *one("HardSigmoid", functional("hardsigmoid"), kinks=[3.0, -3.0], slopes=[0, 0], big=[0, 0], alpha=1 / 6)[1:2],
    case("HardSigmoid", "ordinary", X=AWAY),
    case("HardSigmoid", "attributes", X=AWAY, alpha=0.25, beta=0.25),
    case("HardSigmoid", "at the corners", kind="special", X=np.array([2.0, -2.0]), alpha=0.25, expected={"X": [0, 0]}),
    *one("HardSwish", functional("hardswish"), kinks=[3.0, -3.0], slopes=[1, 0], big=[1, 0]),
    *one("Sigmoid", functional("sigmoid"), kinks=[0.0], slopes=[0.25], big=[0, 0]),
    *one("Softplus", lambda X: -functional("logsigmoid")(-X), kinks=[0.0], slopes=[0.5], big=[1, 0]),
    *one("Mish", functional("mish"), kinks=[0.0], slopes=[0.6], big=[1, 0]),
    *one("Gelu", functional("gelu"), kinks=[0.0], slopes=[0.5], big=[1, 0]),
    case("Gelu", "tanh", X=AWAY, approximate="tanh", torch=functional("gelu", approximate="tanh")),
    case("Gelu", "tanh large", kind="special", X=BIG, approximate="tanh", expected={"X": [1, 0]}, atol=1e-12),
    *one("Swish", functional("silu"), kinks=[0.0], slopes=[0.5], big=[1, 0], opset=24),
    case("Swish", "alpha", X=AWAY, alpha=1.5, opset=24, torch=lambda X: X * (1.5 * X).sigmoid()),
    case("Softsign", "ordinary", input=AWAY, torch=lambda input: input / (1 + input.abs())),
    case("Softsign", "empty", kind="edge", input=array(0, 3)),
    case("Softsign", "large", kind="special", input=np.array([0.0, 1e4]), expected={"input": [1, 1 / (1 + 1e4) ** 2]}),
    case("Shrink", "ordinary", input=AWAY, lambd=0.35, bias=0.35,
         torch=lambda input: functional("softshrink", lambd=f32(0.35))(input)),
    case("Shrink", "hard", input=AWAY, torch=lambda input: functional("hardshrink")(input)),
    case("Shrink", "negative lambd", kind="edge", input=AWAY, lambd=-0.5, bias=0.1),
    case("Shrink", "at lambd", kind="special", input=np.array([0.5, -0.5, 0.0]), expected={"input": [0, 0, 0]},
         torch=lambda input: functional("hardshrink")(input)),
    case("PRelu", "one slope", X=AWAY, slope=np.array([0.2]),
         torch=lambda X, slope: (X > 0) * X + (X <= 0) * X * slope),
    case("PRelu", "per channel", X=array(2, 3, 2), slope=array(3, 1, seed=1),
         torch=lambda X, slope: functional("prelu", weight=slope.reshape(-1))(X)),
    case("PRelu", "full", kind="edge", X=AWAY, slope=array(2, 3, seed=1),
         torch=lambda X, slope: (X > 0) * X + (X <= 0) * X * slope),
    case("PRelu", "empty", kind="edge", X=array(0, 3), slope=array(3, seed=1)),
    case("PRelu", "at zero", kind="special", X=np.array([0.0]), slope=np.array([0.3]),
         expected={"X": [0.3], "slope": [0]}, torch=lambda X, slope: functional("prelu", weight=slope)(X)),
    case("SwiGLU", "ordinary", A=AWAY, B=array(2, 3, seed=1), opset=28,
         torch=lambda A, B: functional("silu")(A) * B, onnxruntime=TOO_NEW),
    case("SwiGLU", "alpha, size 1", kind="edge", A=array(1, 1), B=array(1, 1, seed=1), alpha=1.5, opset=28,
         torch=lambda A, B: A * (1.5 * A).sigmoid() * B,
         onnxruntime=TOO_NEW),
    case("SwiGLU", "large", kind="special", A=BIG, B=np.array([2.0, 2.0]), opset=28,
         expected={"A": [2, 0], "B": [800, 0]}, atol=1e-12,
         onnxruntime=TOO_NEW),
]  # fmt: skip
