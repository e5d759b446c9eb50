"""Weights that were chosen for training and that no gradient reaches: training leaves them as they are, and says so."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from onward.errors import Diagnostic, Severity, counted
from onward.graph.builder import Value
from onward.model.trainable import as_patterns, obstacle

A122 = "A122"


class FlatWeightsWarning(UserWarning):
    """Weights are not trained because no gradient reaches them; `diagnostic` lists them."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.render())
        self.diagnostic = diagnostic


def flat_weights(
    weights: Sequence[Value],
    influential: Collection[ir.Node],
    train: str | Sequence[str],
    freeze: str | Sequence[str],
    without_gradient: Mapping[str, str],
) -> FlatWeightsWarning | None:
    """Return the warning for weights that `train` chooses, `freeze` does not, and no gradient reaches; None without.

    `without_gradient` holds the weights that no gradient reaches, with the reason. Constants are no weights.
    """
    wanted, unwanted = as_patterns(train), as_patterns(freeze)
    found = {}
    for value in weights:
        name = value.name or ""
        chosen = any(fnmatch.fnmatchcase(name, p) for p in wanted)
        if not chosen or name not in without_gradient or any(fnmatch.fnmatchcase(name, p) for p in unwanted):
            continue
        if obstacle(value, influential) is None:
            found[name] = without_gradient[name].partition(": ")[2]
    if not found:
        return None
    them = "it" if len(found) == 1 else "them"
    listed = "; ".join(f"`{name}`: {reason}" for name, reason in list(found.items())[:3])
    more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
    return FlatWeightsWarning(
        Diagnostic(
            A122,
            f"{counted(len(found), 'weight')} will not be trained: no gradient reaches {them}",
            place="train=",
            found=listed + more,
            hint="`onward doctor FILE` lists what blocks which weights; freeze= names those that are meant to stay",
            severity=Severity.WARNING,
        )
    )


__all__ = ["A122", "FlatWeightsWarning", "flat_weights"]
