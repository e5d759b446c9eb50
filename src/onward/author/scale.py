"""Refuse a loss whose output has the wrong scale: probabilities where it expects logits, for example."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onward.errors import ArgumentError, Diagnostic, named_node
from onward.graph.builder import Value
from onward.graph.closing import Closing, closing
from onward.losses import CTC, Loss, Scale, Weighted

A115 = "A115"

# What is mathematically wrong. Softmax of LogSoftmax is the same Softmax again, so that cross entropy may read both;
# and a binary cross entropy may read the probability of each class out of a Softmax.
_PROBABILITIES = ("Softmax", "Sigmoid", "SigmoidPair", "HardSigmoid")
_WRONG = {
    Scale.SOFTMAX_LOGITS: (*_PROBABILITIES, "LogSigmoid"),
    Scale.SIGMOID_LOGITS: (*_PROBABILITIES, "LogSoftmax", "LogSigmoid"),
    Scale.LOG_PROBABILITIES: _PROBABILITIES,
    Scale.PROBABILITIES: ("LogSoftmax", "LogSigmoid"),
}


def check_scale(loss: Loss, outputs: Sequence[Value]) -> None:
    """Raise if a loss expects another scale than that of the activation that its output comes out of.

    Raises:
        ArgumentError: lists each such loss of a sum, with the value to read instead.
    """
    found = closing(outputs[0]) if outputs else None
    if found is None:
        return
    problems = [
        _problem(each, scale, outputs[0], found) for each, scale in _scales(loss) if found.kind in _WRONG[scale]
    ]
    if problems:
        raise ArgumentError(problems)


def _scales(loss: Loss) -> Iterator[tuple[Loss, Scale]]:
    if isinstance(loss, Weighted):
        for _, term in loss.terms:
            yield from _scales(term)
    elif (scale := loss.expects()) is not None:
        yield loss, scale


def _problem(loss: Loss, scale: Scale, output: Value, found: Closing) -> Diagnostic:
    name, kind = type(loss).__name__, found.kind.removesuffix("Pair")
    wants_logits = scale in (Scale.SOFTMAX_LOGITS, Scale.SIGMOID_LOGITS)
    applied = "Softmax" if scale is Scale.SOFTMAX_LOGITS else "Sigmoid"
    if wants_logits:
        found_text = f"{kind} would be applied twice" if kind == applied else f"{applied} would be applied to {kind}"
    else:
        found_text = "probabilities" if found.gives_probabilities else "log-probabilities"
    return Diagnostic(
        A115,
        f"`{name}` expects {'logits' if wants_logits else scale.value}, and output `{output.name}` is "
        + ("already a" if wants_logits and kind == applied else "the result of a")
        + f" {kind}",
        place=named_node(found.node),
        found=found_text,
        hint=f'let the loss read the logits: output="{found.before.name}"' + _instead(loss, scale, found.kind),
    )


def _instead(loss: Loss, scale: Scale, kind: str) -> str:
    """Return which loss to use for the logits, or for the output as it is."""
    exclusive = kind in ("Softmax", "LogSoftmax")  # of several classes, one is right
    if kind == "SigmoidPair":
        return ', with loss="bce_with_logits"'
    if isinstance(loss, CTC):
        return "" if loss.logits else ", with CTC(logits=True)"
    if scale is Scale.SOFTMAX_LOGITS:
        return "" if exclusive else ', with loss="bce_with_logits" if several classes may be right at once'
    if scale is Scale.SIGMOID_LOGITS:
        return ', with loss="cross_entropy"' if exclusive else ', or use loss="bce"'
    return ', with loss="cross_entropy"' if exclusive else ', with loss="bce_with_logits"'


__all__ = ["A115", "check_scale"]
