"""One weight, mean squared error, Adagrad with R, T and H: the standard's own first example."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder, Value
from onward.graph.schema import TRAINING_DOMAIN
from onward.losses import MSE
from onward.model.training_model import TrainingEntry, TrainingModel
from onward.samples.network import Network

_DOC = "Y = X W with one weight; trained on the mean squared error by Adagrad with R, T and H."


def linear() -> TrainingModel:
    """Return the smallest training model: `Y = X W`, with the names of the standard's text.

    Written node by node, without `make_trainable`, so that it shows what a training file consists of.
    """
    net = Network("linear", "X", ("N", 1))
    W = net.initializer("W", np.zeros((1, 1), np.float32))
    Y = net.op.MatMul(net.input, W, name="forward")
    model = net.finish(Y, "Y", ("N", 1), _DOC)

    labels = ir.Value(name="labels", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(("N", 1)))
    R = _initializer("R", np.array(0.1, np.float32))
    T = _initializer("T", np.array(0, np.int64))
    H = _initializer("H", np.zeros((1, 1), np.float32))
    op = Builder(model.opset, net.op.names)
    op.names.taken.update(["labels", "R", "T", "H", "loss"])
    loss = MSE().emit(op, [Y], [labels])
    loss.name, loss.shape = "loss", ir.Shape([])
    (dW,) = op.call(
        "Gradient", [W, net.input, labels], domain=TRAINING_DOMAIN, xs=["W"], zs=["X", "labels"], y="loss",
        name="backward",
    )  # fmt: skip
    dW.name, dW.type, dW.shape = "grad/W", W.type, ir.Shape([1, 1])
    W_new, H_new = op.call(
        "Adagrad", [R, T, W, dW, H], domain=TRAINING_DOMAIN, outputs=2,
        norm_coefficient=0.0, decay_factor=0.0, epsilon=1e-6, name="update",
    )  # fmt: skip
    T_new = op.Add(T, 1)
    for new, old in ((W_new, W), (H_new, H), (T_new, T)):
        new.name, new.type, new.shape = f"new/{old.name}", old.type, ir.Shape(old.shape or [])
    algorithm = ir.Graph([labels, R], [loss, W_new, H_new, T_new], nodes=op.nodes, initializers=[R, T, H], name="train")
    init = Builder(model.opset)
    zeros = init.ConstantOfShape([1, 1], value=np.zeros(1, np.float32))
    start = init.Constant(value=np.array(0, np.int64))
    for value, old in ((zeros, W), (start, T)):
        value.name, value.type, value.shape = f"init/{old.name}", old.type, ir.Shape(old.shape or [])
    reset = ir.Graph([], [zeros, start], nodes=init.nodes, name="initialize")
    model.entries.append(
        TrainingEntry(
            algorithm,
            reset,
            update_binding={"W": "new/W", "H": "new/H", "T": "new/T"},
            initialization_binding={"W": "init/W", "H": "init/W", "T": "init/T"},
        )
    )
    model.ir.opset_imports[TRAINING_DOMAIN] = 1
    return model


def _initializer(name: str, array: np.ndarray) -> Value:
    tensor = ir.tensor(array, name=name)
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
