"""The data of one call of `fit`: opened, split, prepared, weighted and matched to the model, before the first step."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onward.arguments import did_you_mean, nearest
from onward.compiler.program import Program, TensorSpec
from onward.errors import A101, ArgumentError, DataError, Diagnostic
from onward.train.arguments import FitSettings, hold_back, remember_data
from onward.train.data import Data, as_source
from onward.train.data.augmenting import with_probabilities
from onward.train.data.choice import columns_for
from onward.train.data.feed import Feed, numpy_dtype
from onward.train.data.images import check_images
from onward.train.data.lengths import Lengths
from onward.train.data.matching import T110, Matching, SizeRule, match
from onward.train.data.preparation import Preparation
from onward.train.data.sampling import balanced
from onward.train.data.source import ArrayColumn, ColumnSource, DataSource
from onward.train.data.table import TableSource
from onward.train.weights import SAMPLE_WEIGHT, ClassTarget, WeightedMatching, check_sample_weights, weight_spec


@dataclasses.dataclass
class TrainingData:
    """What a run trains on and what it is validated on."""

    source: DataSource
    matching: Matching
    held: DataSource | None
    preparation: Preparation


def with_columns(
    preparation: Preparation,
    target: Any,
    features: Any,
    inputs: Sequence[TensorSpec],
    targets: Sequence[TensorSpec],
) -> Preparation:
    """Return the preparation with the columns that `target=` and `features=` name."""
    chosen = columns_for(target, features, inputs, targets)
    return dataclasses.replace(preparation, columns={**preparation.columns, **chosen}) if chosen else preparation


def open_training_data(
    x: Data,
    y: Any,
    settings: FitSettings,
    program: Program,
    whole_program: Program,
    preparation: Preparation,
    sizes: SizeRule,
    weighted: Program | None,
) -> TrainingData:
    """Return the data of `fit`. `program` is that of the chosen entry; `weighted` is given where weights are wanted.

    Raises:
        DataError, ArgumentError: it does not fit the model; every problem is listed.
    """
    preparation = with_columns(preparation, settings.target, settings.features, program.inputs, program.targets)
    column = settings.sample_weight if isinstance(settings.sample_weight, str) else None
    opened, targets = preparation, list(program.targets)
    if column is not None:
        opened = dataclasses.replace(preparation, columns={**preparation.columns, SAMPLE_WEIGHT: [column]})
        targets.append(TensorSpec(SAMPLE_WEIGHT, "float32", ("N",)))
    source = as_source(x, y, program.inputs, targets, opened, settings.steps_per_epoch)
    preparation = with_probabilities(source, program.targets, preparation, settings.augment)
    preparation = remember_data(preparation, source, whole_program)
    weights = _weights_of(source, settings.sample_weight)
    given, held, whole = settings.validation_data, None, source
    if isinstance(given, (int, float)):
        by = _target_column(source, program, preparation)
        if weights is not None and isinstance(source, ColumnSource):
            weights = weights[source.split_rows(float(given), settings.seed, by)[0]]
        source, held = hold_back(source, float(given), settings.seed, by)
    elif given is not None:
        vx, vy = given if isinstance(given, (tuple, list)) and len(given) == 2 else (given, None)
        held = as_source(vx, vy, program.inputs, program.targets, preparation, part="evaluate")
    check_images(whole, held)
    if isinstance(source, TableSource):
        preparation = source.fit(preparation)
    if isinstance(held, TableSource):
        held.apply(preparation)
    size = settings.batch_size if isinstance(source, ColumnSource) else None
    wanted: Sequence[TensorSpec] = program.targets
    if column is not None and weights is None and weighted is not None:  # an iterable: its batches hold the weights
        spec = weight_spec(whole_program, weighted)
        wanted = [*program.targets, spec]
        preparation = dataclasses.replace(preparation, columns={**preparation.columns, spec.name: column})
    lengths = Lengths.of(program)
    matching = match(source, program.inputs, wanted, preparation, batch_size=size, sizes=sizes, lengths=lengths)
    if settings.class_weight is not None or settings.sampler is not None:
        wanted_by = "sampler" if settings.sampler else "class_weight"
        classes = ClassTarget.of(program, source, matching, preparation, wanted_by)
    if settings.sampler is not None:
        if not isinstance(source, ColumnSource):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "balanced sampling needs data that can be read in any order",
                    found=type(source).__name__,
                    needed="arrays, tables, files, folders, or a dataset with a length",
                )
            )
        source = balanced(source, classes.of_source(source))
    if weighted is not None:
        spec = weight_spec(whole_program, weighted)
        by_class: Mapping[int, float] = {}
        if settings.class_weight is not None:
            by_class = classes.weights(settings.class_weight, source)
        if weights is not None:
            assert isinstance(source, ColumnSource)
            source, feed = _with_weights(source, weights, spec)
            matching = Matching([*matching.feeds, feed], sizes)
        matching = WeightedMatching(matching, spec, classes if settings.class_weight is not None else None, by_class)
    return TrainingData(source, matching, held, preparation)


def _target_column(source: DataSource, program: Program, preparation: Preparation) -> str | None:
    """Return the column that holds the only target; None if there are several, or none in memory."""
    if not isinstance(source, ColumnSource) or len(program.targets) != 1:
        return None
    if isinstance(source, TableSource):
        return program.targets[0].name
    if source.positional:
        return next(iter(list(source.columns)[len(program.inputs) :]), None)
    named = preparation.columns.get(program.targets[0].name, program.targets[0].name)
    return named if isinstance(named, str) else named[0] if len(named) == 1 else None


def _weights_of(source: DataSource, sample_weight: Any) -> np.ndarray | None:
    """Return the weight of every sample; None where there is none, or where only batches hold it."""
    if sample_weight is None or not isinstance(source, ColumnSource):
        if sample_weight is not None and not isinstance(sample_weight, str):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "an array of sample weights needs data that can be read in any order",
                    found=type(source).__name__,
                    needed="the name of the array that holds the weights in each batch",
                )
            )
        return None
    if isinstance(sample_weight, str):
        name = SAMPLE_WEIGHT if isinstance(source, TableSource) else sample_weight
        if name not in source.columns:
            raise DataError(
                Diagnostic(
                    T110,
                    f"no column `{sample_weight}` in the data",
                    found=", ".join(f"`{c}`" for c in source.columns),
                    needed="the column of the sample weights",
                    hint=did_you_mean(nearest(sample_weight, source.columns, 1)),
                )
            )
        array = np.asarray(source.columns[name].take(slice(None)), dtype=np.float64)
    else:
        array = np.asarray(sample_weight, dtype=np.float64)
    array = array.reshape(len(array), -1)[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if array.shape != (source.size,):
        raise ArgumentError(
            Diagnostic(
                A101,
                f"sample_weight has the shape {array.shape}",
                needed=f"({source.size},): one weight for each sample",
            )
        )
    check_sample_weights(array)
    return array


def _with_weights(source: ColumnSource, weights: np.ndarray, spec: TensorSpec) -> tuple[ColumnSource, Feed]:
    weighted = copy.copy(source)
    weighted.columns = {**source.columns, SAMPLE_WEIGHT: ArrayColumn(weights)}
    return weighted, Feed(spec, SAMPLE_WEIGHT, True, Preparation(), numpy_dtype(spec.dtype))
