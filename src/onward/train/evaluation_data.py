"""The data of one call of `evaluate`, `predict` or `find_learning_rate`: opened, prepared and matched to the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from onward.compiler.program import Program
from onward.errors import A101, ArgumentError, Diagnostic
from onward.train.asked import Asked, ask
from onward.train.data import Data, as_source
from onward.train.data.images import check_images
from onward.train.data.lengths import Lengths
from onward.train.data.matching import Matching, SizeRule, match
from onward.train.data.preparation import Preparation
from onward.train.data.source import DataSource
from onward.train.evaluation import evaluated_targets, loose_targets
from onward.train.metrics import Metric
from onward.train.training_data import with_columns


def open_evaluation_data(
    x: Data,
    y: Any,
    program: Program,
    preparation: Preparation,
    metrics: Sequence[str | Metric],
    *,
    target: Any,
    features: Any,
    sizes: SizeRule,
) -> tuple[DataSource, Matching, list[Asked]]:
    """Return what `evaluate` reads, and the metrics that it was asked for.

    Raises:
        ArgumentError: an inference model without metrics, or without a target in the data.
    """
    wanted = evaluated_targets(program, preparation, target)
    preparation = with_columns(preparation, target, features, program.inputs, wanted)
    source = as_source(x, y, program.inputs, wanted, preparation, part="evaluate")
    infers = program.first is None
    targets = loose_targets(program, source) if infers else wanted
    lengths = Lengths.of(program)
    matching = match(source, program.inputs, targets, preparation, sizes=sizes, lenient=infers, lengths=lengths)
    if infers and (not metrics or not targets):
        raise ArgumentError(
            Diagnostic(
                A101,
                "an inference model has no loss to evaluate",
                needed="metrics, and data with a target beside the inputs",
            )
        )
    asked = ask(program, metrics, targets=targets)
    check_images(source)
    return source, matching, asked


def match_validation(source: DataSource, program: Program, preparation: Preparation, sizes: SizeRule) -> Matching:
    """Return how the samples that are held back during training fit the model."""
    targets = evaluated_targets(program, preparation)
    return match(source, program.inputs, targets, preparation, sizes=sizes, lengths=Lengths.of(program))


def open_prediction_data(
    x: Data, program: Program, preparation: Preparation, features: Any
) -> tuple[DataSource, Matching]:
    """Return what `predict` reads: the inputs alone."""
    preparation = with_columns(preparation, None, features, program.inputs, ())
    source = as_source(x, None, program.inputs, (), preparation, part="evaluate")
    kept = {k: v for k, v in preparation.columns.items() if k in {s.name for s in program.inputs}}
    return source, match(source, program.inputs, (), dataclasses.replace(preparation, columns=kept), lenient=True)


def open_search_data(
    x: Data, y: Any, program: Program, preparation: Preparation, sizes: SizeRule
) -> tuple[DataSource, Matching]:
    """Return what the search for a learning rate trains on."""
    source = as_source(x, y, program.inputs, program.targets, preparation)
    lengths = Lengths.of(program)
    return source, match(source, program.inputs, program.targets, preparation, sizes=sizes, lengths=lengths)
