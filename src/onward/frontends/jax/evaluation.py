"""The loss of an evaluation, which the user gives as a function of its own.

The loss function of a training step uses the statistics of the batch; nothing in a jaxpr says that there are running
ones. So the nodes of the other function stand beside the step, and only the evaluate graph reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onward.errors import ArgumentError, Diagnostic
from onward.frontends.jax.functions import check_scalar, name_of, traced, user_errors
from onward.frontends.jaxpr.frame import element_type
from onward.frontends.jaxpr.translator import Translator
from onward.graph.builder import Builder, Names
from onward.model.roles import Role, mark

if TYPE_CHECKING:
    from onward.frontends.jax.build import Parts

A224 = "A224"
OPSET = 20


def emit_evaluation(
    parts: Parts, names: Names, values: Sequence[Any], labels: Sequence[str], algorithm: ir.Graph
) -> None:
    """Add the nodes of `parts.evaluate` to the algorithm and mark what they compute.

    `values` are those of all leaves, and `labels` their names.
    """
    assert parts.evaluate is not None
    what = f"evaluate `{name_of(parts.evaluate)}`"
    hint = f"it is called as evaluate(params, {'state, ' if parts.has_state else ''}batch) and returns the loss"
    with user_errors(what, hint):
        closed, shape = traced(parts.evaluation, *parts.arguments())
    check_scalar(shape, what)
    op = Builder(OPSET, names, prefix="evaluate/")
    translator = Translator(what)
    (value,) = translator.translate(closed, values, op, labels)
    if translator.drawn:
        raise ArgumentError(
            Diagnostic(
                A224,
                "an evaluation draws random numbers, and would give another loss each time",
                place=what,
                hint="compute the loss from what predict returns, without dropout and noise",
            )
        )
    assert isinstance(value, ir.Value)
    made = op.Identity(value)
    made.name = names.unique(f"evaluate/{parts.loss_name}")
    made.type, made.shape = ir.TensorType(element_type(shape.dtype)), ir.Shape([])
    mark(made, Role.EVALUATION)
    algorithm.extend(op.nodes)
