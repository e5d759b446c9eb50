"""Random operators: Dropout has a gradient through its mask, random draws have none."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.registry import NON_DIFFERENTIABLE, ZERO, declare, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph.builder import Value


@gradient("Dropout", opset=13, ratio=NON_DIFFERENTIABLE, training_mode=NON_DIFFERENTIABLE)
def dropout(rule: Rule, doutput: Value) -> Grads:
    """output = data * mask / (1 - ratio) in training, else data, so ddata = doutput * mask / (1 - ratio), or doutput.

    The mask is an output of the forward node: stock ONNX Runtime deletes a Dropout whose mask is not read.
    """
    op, training = rule.op, rule.optional_input("training_mode")
    known = rule.constant_input("training_mode")
    if training is None or (known is not None and not known.any()):
        return {"data": doutput}
    assert doutput.dtype is not None
    ratio = rule.constant_input("ratio")
    if rule.optional_input("ratio") is None or ratio is not None:
        kept = 1.0 - (0.5 if ratio is None else float(ratio.reshape(())))
        if kept == 0:  # everything is dropped; the standard's 1 / (1 - ratio) is infinite
            return {"data": op.Mul(doutput, 0.0)}
        scaled = op.Div(doutput, kept)
    else:
        scaled = op.Div(doutput, op.Sub(1.0, op.cast(rule.input("ratio"), doutput.dtype)))
    if known is None:
        scaled = op.Where(training, scaled, doutput)
    mask = rule.request_output("mask")
    mask.type, mask.shape = ir.TensorType(ir.DataType.BOOL), rule.input("data").shape
    # Where, not Mul: if the ratio is 1 at run time, the scaled gradient is infinite and the mask all false.
    if ratio is None and rule.optional_input("ratio") is not None:
        return {"data": op.Where(mask, scaled, 0.0)}
    return {"data": op.Mul(scaled, op.cast(mask, doutput.dtype))}


declare("Bernoulli", opset=15, input=ZERO)  # the draw is flat in the probability almost everywhere (PyTorch: 0)
declare("Multinomial", opset=7, input=NON_DIFFERENTIABLE)
declare("RandomNormal")
declare("RandomUniform")
declare("RandomNormalLike", input=NON_DIFFERENTIABLE)
declare("RandomUniformLike", input=NON_DIFFERENTIABLE)
