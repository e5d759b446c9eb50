"""Export LSTMs with `proj_size`, which ONNX's LSTM does not have: each layer and direction is a `Scan`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir
import torch
import torch.nn.functional as F

from onward.frontends.torch.placeholders import placeholders, writer
from onward.frontends.torch.replacements import replaced
from onward.graph.builder import Builder, Value


@contextlib.contextmanager
def decompose_projected_lstms() -> Iterator[None]:
    """Replace the function that `torch.nn.LSTM` calls, for LSTMs with a projection."""
    original = torch._VF.lstm

    def lstm(input: Any, hx: Any, *rest: Any) -> Any:
        packed = isinstance(hx, torch.Tensor)  # then they are the batch sizes
        if packed or hx[0].shape[-1] == hx[1].shape[-1]:
            return original(input, hx, *rest)
        return _layers(input, hx, *rest)

    with replaced(torch._VF, {"lstm": lstm}):
        yield


def _layers(
    x: Any,
    start: Any,
    weights: Sequence[Any],
    biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    directions = 2 if bidirectional else 1
    each = 5 if biases else 3  # of the input, of the hidden state, their biases, of the projection
    x = x.transpose(0, 1) if batch_first else x
    hidden, cells = [], []
    for layer in range(num_layers):
        if layer and dropout and train:
            x = F.dropout(x, dropout, True)
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            w_x, w_h, *bias, projection = weights[each * index : each * (index + 1)]
            gates = F.linear(x, w_x, bias[0] + bias[1] if bias else None)
            h, c = start[0][index], start[1][index]
            y, h, c = placeholders(
                "ProjectedLSTM",
                (gates, h, c, w_h.t(), projection.t()),
                {"reverse": direction},
                shapes=[(*x.shape[:2], h.shape[-1]), h.shape, c.shape],
            )
            outputs.append(y)
            hidden.append(h)
            cells.append(c)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
    return (x.transpose(0, 1) if batch_first else x), torch.stack(hidden), torch.stack(cells)


@writer("ProjectedLSTM")
def _write_layer(op: Builder, node: ir.Node) -> Sequence[Value]:
    """i, f, g, o = gates + h·W; c' = σ(f)·c + σ(i)·tanh(g); h' = (σ(o)·tanh(c'))·P."""
    gates, h, c, weight, projection = (v for v in node.inputs if v is not None)
    direction = node.attributes["reverse"].as_int()
    step = Builder(op.opset, op.names, prefix=f"{op.prefix}step/")
    inside = [
        ir.Value(name=op.names.unique(f"{step.prefix}{name}"), type=v.type, shape=_last(v))
        for name, v in (("h", h), ("c", c), ("gates", gates))
    ]
    old_h, old_c, now = inside
    parts = step.multi("Split", step.Add(now, step.MatMul(old_h, weight)), axis=-1, num_outputs=4, outputs=4)
    i, f, o = (step.Sigmoid(parts[k]) for k in (0, 1, 3))
    new_c = step.Add(step.Mul(f, old_c), step.Mul(i, step.Tanh(parts[2])))
    new_h = step.MatMul(step.Mul(o, step.Tanh(new_c)), projection)
    y = step.Identity(new_h)
    for value, like in ((new_h, old_h), (new_c, old_c), (y, old_h)):
        value.type, value.shape = like.type, like.shape
    body = ir.Graph(inside, [new_h, new_c, y], nodes=step.nodes, name="projected_lstm_step")
    last_h, last_c, ys = op.multi(
        "Scan",
        h,
        c,
        gates,
        outputs=3,
        body=body,
        num_scan_inputs=1,
        scan_input_directions=[direction],
        scan_output_directions=[direction],
    )
    return [ys, last_h, last_c]


def _last(value: Value) -> ir.Shape:
    """Return the last two dimensions: those of the batch and of the features."""
    assert value.shape is not None
    return ir.Shape(list(value.shape)[-2:])
