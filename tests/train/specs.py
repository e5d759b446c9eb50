"""What small models take, for the tests of data."""

from __future__ import annotations

from onward.compiler.program import TensorSpec
from onward.train.data import BatchRequest, Preparation, as_source, match

IMAGES = (TensorSpec("images", "float32", ("N", 1, 4, 4)),)


LABELS = (TensorSpec("labels", "int64", ("N",)),)


FEATURES = (TensorSpec("x", "float32", ("N", 3)),)


TARGET = (TensorSpec("t", "float32", ("N", 1)),)


def feeds_of(source, inputs, targets, preparation=None, batch_size=1000):
    matching = match(source, inputs, targets, preparation or Preparation())
    return [matching.make(b) for b in source.batches(BatchRequest(batch_size))]


def arrays(*values):
    return as_source(values, None, IMAGES, LABELS, Preparation())
