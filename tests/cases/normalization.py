"""Cases of autodiff/rules/normalization.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases import array, case


def functional(name: str, *arguments: Any, **options: Any) -> Any:
    import torch

    return getattr(torch.nn.functional, name)(*arguments, **options)


def vector(size: int, seed: int = 0) -> np.ndarray:
    return array(size, seed=seed, low=0.5)


def f32(x: float) -> float:
    """Return the float32 nearest to x, as attributes are stored."""
    return float(np.float32(x))


def batch(*shape: int) -> dict[str, np.ndarray]:
    """Return the inputs of BatchNormalization for X of `shape`."""
    c = shape[1]
    return {"X": array(*shape), "scale": vector(c), "B": array(c, seed=1), "input_mean": array(c, seed=2),
            "input_var": vector(c, 3)}  # fmt: skip


def batch_norm_inference(X: Any, scale: Any, B: Any, input_mean: Any, input_var: Any) -> Any:
    shape = [1, -1] + [1] * (X.dim() - 2)
    inverse = (input_var.reshape(shape) + f32(1e-5)).rsqrt()
    return (X - input_mean.reshape(shape)) * inverse * scale.reshape(shape) + B.reshape(shape)


def batch_norm_training(X: Any, scale: Any, B: Any, input_mean: Any, input_var: Any) -> Any:
    axes = [i for i in range(X.dim()) if i != 1]
    mean, var = X.mean(axes), X.var(axes, correction=0)
    momentum = f32(0.9)
    return (
        batch_norm_inference(X, scale, B, mean, var),
        momentum * input_mean + (1 - momentum) * mean,
        momentum * input_var + (1 - momentum) * var,
    )


ONLY_FLOAT = (np.float32,)  # the standard's body has float constants: onnx's inference refuses other types
ALL = ["Y", "running_mean", "running_var"]

CASES = [
    case("BatchNormalization", "inference", **batch(2, 3, 2), torch=batch_norm_inference),
    case("BatchNormalization", "inference, images", kind="edge", **batch(2, 2, 2, 2), epsilon=1e-2),
    case("BatchNormalization", "inference, (N, C)", kind="edge", **batch(3, 2), torch=batch_norm_inference),
    case("BatchNormalization", "inference, constant parameters", kind="edge", **batch(2, 3, 2),
         constants=["scale", "B", "input_mean", "input_var"]),
    case("BatchNormalization", "inference, empty", kind="edge", **batch(0, 3, 2), torch=batch_norm_inference),
    case("BatchNormalization", "inference, zero variance", kind="special",
         **{**batch(2, 1, 2), "input_var": np.zeros(1)}, epsilon=0.25, wrt=["X", "scale", "B"]),
    case("BatchNormalization", "training", **batch(2, 3, 2), training_mode=1, outputs=ALL,
         torch=batch_norm_training),
    case("BatchNormalization", "training, momentum", kind="edge", **batch(3, 2), training_mode=1, momentum=0.5,
         epsilon=1e-2, outputs=ALL),
    case("BatchNormalization", "training, equal elements", kind="special",
         **{**batch(2, 1, 2), "X": np.ones((2, 1, 2))}, training_mode=1, outputs=ALL, wrt=["X", "scale"],
         expected={"scale": [0]}),
    case("InstanceNormalization", "images", input=array(2, 2, 2, 2), scale=vector(2), B=array(2, seed=1),
         torch=lambda input, scale, B: functional("instance_norm", input, weight=scale, bias=B, eps=f32(1e-5))),
    case("InstanceNormalization", "epsilon, (N, C, d)", kind="edge", input=array(1, 3, 4), scale=vector(3),
         B=array(3, seed=1), epsilon=1e-2),
    case("InstanceNormalization", "equal elements", kind="special", input=np.ones((1, 2, 3)), scale=vector(2),
         B=array(2, seed=1), epsilon=0.1),
    case("LayerNormalization", "last axis", X=array(3, 4), Scale=vector(4), B=array(4, seed=1),
         torch=lambda X, Scale, B: functional("layer_norm", X, (4,), Scale, B, eps=f32(1e-5))),
    case("LayerNormalization", "no bias, axis 1 of 3", X=array(2, 3, 2), Scale=array(3, 2, seed=1), axis=1,
         epsilon=1e-3, torch=lambda X, Scale: functional("layer_norm", X, (3, 2), Scale, eps=f32(1e-3))),
    case("LayerNormalization", "axis 0", kind="edge", X=array(2, 3), Scale=array(2, 3, seed=1), B=array(2, 3, seed=2),
         axis=0, torch=lambda X, Scale, B: functional("layer_norm", X, (2, 3), Scale, B, eps=f32(1e-5))),
    case("LayerNormalization", "scalar scale", kind="edge", X=array(3, 4), Scale=np.array([1.5]), B=np.array([0.5])),
    case("LayerNormalization", "axis -2", kind="edge", X=array(2, 3, 2), Scale=array(3, 2, seed=1), axis=-2),
    case("LayerNormalization", "statistics in double", kind="edge", X=array(3, 4), Scale=vector(4), stash_type=11),
    case("LayerNormalization", "empty", kind="edge", X=array(0, 4), Scale=vector(4), B=array(4, seed=1)),
    case("LayerNormalization", "equal elements", kind="special", X=np.ones((2, 3)), Scale=vector(3),
         B=array(3, seed=1), epsilon=0.1),
    case("RMSNormalization", "last axis", X=array(3, 4), scale=vector(4),
         torch=lambda X, scale: functional("rms_norm", X, (4,), scale, eps=f32(1e-5))),
    case("RMSNormalization", "axis 1 of 3", kind="edge", X=array(2, 3, 2), scale=array(3, 2, seed=1), axis=1,
         epsilon=1e-3, torch=lambda X, scale: functional("rms_norm", X, (3, 2), scale, eps=f32(1e-3))),
    case("RMSNormalization", "zeros", kind="special", X=np.zeros((2, 3)), scale=vector(3), epsilon=0.1),
    case("GroupNormalization", "per channel", X=array(2, 4, 3), scale=vector(4), bias=array(4, seed=1), num_groups=2,
         torch=lambda X, scale, bias: functional("group_norm", X, 2, scale, bias, eps=f32(1e-5))),
    case("GroupNormalization", "images, one group", kind="edge", X=array(1, 2, 2, 3), scale=vector(2),
         bias=array(2, seed=1), num_groups=1, epsilon=1e-2,
         torch=lambda X, scale, bias: functional("group_norm", X, 1, scale, bias, eps=f32(1e-2))),
    case("GroupNormalization", "(N, C)", kind="edge", X=array(2, 6), scale=vector(6), bias=array(6, seed=1),
         num_groups=3),
    case("GroupNormalization", "equal elements", kind="special", X=np.ones((1, 4, 2)), scale=vector(4),
         bias=array(4, seed=1), num_groups=2, epsilon=0.1),
    case("GroupNormalization", "per group (opset 18)", X=array(2, 4, 3), scale=vector(2), bias=array(2, seed=1),
         num_groups=2, opset=18, dtypes=()),  # deprecated: the checker refuses it
    case("MeanVarianceNormalization", "images", X=array(2, 2, 2, 3), dtypes=()),  # inference refuses absent axes
    case("MeanVarianceNormalization", "images, axes", X=array(2, 2, 2, 3), axes=[0, 2, 3], dtypes=ONLY_FLOAT),
    case("MeanVarianceNormalization", "axes", kind="edge", X=array(3, 4), axes=[-1],
         torch=lambda X: (X - X.mean(-1, True)) / (X.std(-1, correction=0, keepdim=True) + 1e-9),
         dtypes=ONLY_FLOAT),
    case("MeanVarianceNormalization", "equal elements", kind="special", X=np.ones((2, 2)), axes=[1],
         expected={"X": np.zeros((2, 2))}, dtypes=ONLY_FLOAT,
         onnxruntime="the body's variance E[X²] - E[X]² may be below 0 here: NaN"),
    case("LpNormalization", "p 2", input=array(2, 3), torch=lambda input: functional("normalize", input, p=2, dim=-1)),
    case("LpNormalization", "p 1", input=array(2, 3), p=1,
         torch=lambda input: functional("normalize", input, p=1, dim=-1)),
    case("LpNormalization", "axis 0", kind="edge", input=array(3, 2), axis=0,
         torch=lambda input: functional("normalize", input, p=2, dim=0)),
    case("LpNormalization", "size 1", kind="edge", input=array(2, 1), p=1),
    case("LpNormalization", "zeros", kind="special", input=np.array([[0.0, 0.0], [3.0, 4.0]]),
         expected={"input": [[0, 0], [0.032, -0.024]]}),
    case("LRN", "images", X=array(2, 5, 2, 1), size=3, alpha=0.5,
         torch=lambda X: functional("local_response_norm", X, 3, alpha=0.5, k=1.0)),
    case("LRN", "all attributes, even size", kind="edge", X=array(1, 6, 1, 2), size=4, alpha=0.7, beta=0.5, bias=2.0,
         onnxruntime="stock ONNX Runtime takes only odd sizes"),
    case("LRN", "size 1", kind="edge", X=array(2, 3, 1, 1), size=1, alpha=0.3),
    case("LRN", "window larger than the channels", kind="edge", X=array(1, 2, 2, 2), size=7, alpha=0.3),
    case("LRN", "zeros", kind="special", X=np.zeros((1, 3, 1, 1)), size=3, expected={"X": np.ones((1, 3, 1, 1))}),
]  # fmt: skip
