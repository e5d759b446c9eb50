"""Cases of autodiff/rules/random.py."""

from __future__ import annotations

import numpy as np

from cases import array, case

OWN_DRAW = "another generator: the mask differs from the reference's"
NO_KERNEL = "the body needs RandomUniformLike-22, which stock ONNX Runtime 1.31 lacks"
TRUE, FALSE = np.array(True), np.array(False)

CASES = [
    case("Dropout", "training", data=array(3, 4), ratio=np.array(0.25), training_mode=TRUE, seed=7,
         constants=["ratio", "training_mode"], onnxruntime=OWN_DRAW),
    case("Dropout", "training, default ratio", data=array(3, 4), training_mode=TRUE, seed=7,
         constants=["training_mode"], onnxruntime=OWN_DRAW),
    case("Dropout", "training, with its mask", data=array(3, 4), ratio=np.array(0.25), training_mode=TRUE, seed=7,
         constants=["ratio", "training_mode"], outputs=["output", "mask"], onnxruntime=OWN_DRAW),
    case("Dropout", "mode and ratio at run time", kind="edge", data=array(3, 4), ratio=np.array(0.25),
         training_mode=TRUE, seed=7, wrt=["data"], onnxruntime=OWN_DRAW),
    case("Dropout", "mode at run time, off", kind="edge", data=array(3, 4), ratio=np.array(0.25),
         training_mode=FALSE, wrt=["data"], torch=lambda data, ratio, training_mode: data * 1),
    case("Dropout", "inference", kind="edge", data=array(3, 4), torch=lambda data: data * 1),
    case("Dropout", "empty", kind="edge", data=array(0, 4), training_mode=TRUE, constants=["training_mode"],
         seed=7),
    case("Dropout", "ratio 0", kind="special", data=array(3, 4), ratio=np.array(0.0), training_mode=TRUE,
         constants=["ratio", "training_mode"], torch=lambda data: data * 1),
    case("Dropout", "ratio 1", kind="special", data=array(3), ratio=np.array(1.0), training_mode=TRUE,
         constants=["ratio", "training_mode"], expected={"data": [0, 0, 0]}, onnxruntime="refuses ratio 1"),
    case("Dropout", "ratio 1 at run time", kind="special", data=array(3), ratio=np.array(1.0), training_mode=TRUE,
         constants=["training_mode"], wrt=["data"], expected={"data": [0, 0, 0]}, onnxruntime="refuses ratio 1"),
    case("Bernoulli", "flat", input=array(3, 4, low=0.1, high=0.9), seed=7.0, onnxruntime=OWN_DRAW),
    case("Bernoulli", "scalar", kind="edge", input=np.array(0.3), seed=7.0, onnxruntime=OWN_DRAW),
    case("Bernoulli", "certain", kind="special", input=np.array([0.0, 1.0]), expected={"input": [0, 0]},
         onnxruntime=NO_KERNEL),
]  # fmt: skip
