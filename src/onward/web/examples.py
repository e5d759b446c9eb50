"""Samples that come with a page: for it to learn from beside the person's own, and to test on."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from onward.compiler.program import Program
from onward.storage.tensor_file import tensor_file_chunks
from onward.train.data import BatchRequest, Data, as_source, match
from onward.train.data.preparation import Preparation
from onward.train.data.source import no_batches
from onward.train.stored_model import stored_preparation

FILE = "examples.safetensors"
_TESTED = 0.2  # the share that is kept for the test


def take_examples(program: Program, data: Data, most: int) -> tuple[bytes, dict[str, Any]]:
    """Return some samples of `data` as a file, and what the page must know of it: the first `train` are for training.

    They are stored before scaling, because the page prepares them as it prepares a picture; bytes stay bytes.

    Raises:
        DataError: the data does not fit the program.
    """
    preparation = stored_preparation(program) or Preparation()
    source = as_source(data, None, program.inputs, program.targets, preparation, part="train")
    plain = dataclasses.replace(preparation, scale=1.0, mean=0.0, std=1.0)
    matching = match(source, program.inputs, program.targets, plain, lenient=True)
    batch = next(iter(source.batches(BatchRequest(most, shuffle=True))), None)
    if batch is None:
        raise no_batches("the page")
    columns = {name: _small(np.asarray(array)) for name, array in matching.make(batch).items()}
    count = len(next(iter(columns.values())))
    tested = int(count * _TESTED)
    return b"".join(tensor_file_chunks(columns, {})), {"file": FILE, "train": count - tested, "test": tested}


def _small(array: np.ndarray) -> np.ndarray:
    """Return the same numbers as bytes, where they all are whole numbers from 0 to 255."""
    with np.errstate(invalid="ignore"):  # NaN is no byte
        small = array.astype(np.uint8)
    return small if np.array_equal(small, array) else array
