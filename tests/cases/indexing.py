"""Cases of autodiff/rules/indexing.py."""

from __future__ import annotations

import numpy as np
import torch as _torch

from cases import array, case, distinct


def ints(values):
    return np.array(values, dtype=np.int64)


def _reduce(name, axis=0):
    def compute(data, indices, updates):
        return data.scatter_reduce(axis, indices, updates, name)

    return compute


ROWS = ints([[2, 0, 1], [0, 2, 0]])
TWICE = ints([[1, 1, 2], [1, 0, 2]])
PAIRS = ints([[0, 1], [2, 0], [0, 1]])

CASES = [
    case("Gather", "one known index", kind="edge", data=array(3, 2, 4), indices=np.array(1), constants=["indices"],
         axis=0, torch=lambda data: data.select(0, 1)),
    case("Gather", "one known negative index in a vector", kind="edge", data=array(2, 3), indices=np.array([-1]),
         constants=["indices"], axis=-1, torch=lambda data: data[:, -1:]),
    case("Gather", "rows", data=array(4, 3), indices=ints([2, 0, 2]), torch=lambda data, indices: data[indices]),
    case("Gather", "constant indices", data=array(4, 3), indices=ints([[2, 0], [1, 1]]), constants=["indices"]),
    case("Gather", "axis 1", data=array(2, 4, 2), indices=ints([[3, 0], [1, 3]]), axis=1,
         torch=lambda data, indices: data[:, indices]),
    case("Gather", "negative indices", kind="edge", data=array(3, 4), indices=ints([-1, 0, -4]), axis=-1,
         torch=lambda data, indices: data[:, indices]),
    case("Gather", "scalar index", kind="edge", data=array(3, 2), indices=ints(1),
         torch=lambda data, indices: data[indices]),
    case("Gather", "vector", kind="edge", data=array(4), indices=ints([[1, 1], [3, 0]])),
    case("Gather", "int32", kind="edge", data=array(3, 2), indices=np.array([1, 1], np.int32)),
    case("Gather", "no indices", kind="edge", data=array(3, 2), indices=np.zeros((0,), np.int64)),
    case("Gather", "infinite", kind="special", data=np.array([np.inf, 1.0]), indices=ints([0, 0]),
         expected={"data": [2.0, 0.0]}),
    case("GatherElements", "rows", data=array(3, 3), indices=ROWS,
         torch=lambda data, indices: _torch.gather(data, 0, indices)),
    case("GatherElements", "axis 1", data=array(2, 3), indices=ints([[0, 0, 2, 1], [2, 1, 0, 0]]), axis=1,
         torch=lambda data, indices: _torch.gather(data, 1, indices)),
    case("GatherElements", "negative", kind="edge", data=array(2, 3), indices=ints([[-1, 0], [-3, 1]]), axis=-1),
    case("GatherElements", "infinite", kind="special", data=np.array([np.inf, 1.0]), indices=ints([0, 0]),
         expected={"data": [2.0, 0.0]}),
    case("GatherND", "elements", data=array(3, 2), indices=PAIRS,
         torch=lambda data, indices: data[indices[:, 0], indices[:, 1]]),
    case("GatherND", "slices", data=array(3, 2, 2), indices=ints([[[0], [2]], [[2], [-1]]]),
         torch=lambda data, indices: data[indices[..., 0]]),
    case("GatherND", "batch_dims", data=array(2, 3, 2), indices=ints([[[1]], [[0]]]), batch_dims=1),
    case("GatherND", "batch_dims elements", kind="edge", data=array(2, 3), indices=ints([[1], [0]]), batch_dims=1),
    case("GatherND", "constant indices", data=array(3, 2, 2), indices=PAIRS, constants=["indices"]),
    case("GatherND", "infinite", kind="special", data=np.array([np.inf, 1.0]), indices=ints([[0], [0]]),
         expected={"data": [2.0, 0.0]}),
    case("Scatter", "opset 10", opset=10, data=array(3, 3), indices=ROWS, updates=array(2, 3, seed=1)),
    case("Scatter", "axis", kind="edge", opset=10, data=array(2, 4), indices=ints([[0, 3], [2, 1]]),
         updates=array(2, 2, seed=1), axis=1),
    case("Scatter", "infinite", kind="special", opset=9, data=np.array([np.inf, 1.0]), indices=ints([0]),
         updates=np.array([2.0]), expected={"data": [0.0, 1.0], "updates": [1.0]}),
    case("ScatterElements", "none", data=array(3, 3), indices=ROWS, updates=array(2, 3, seed=1),
         torch=lambda data, indices, updates: data.scatter(0, indices, updates)),
    case("ScatterElements", "axis 1", data=array(2, 4), indices=ints([[0, -1], [2, 1]]), updates=array(2, 2, seed=1),
         axis=-1),
    case("ScatterElements", "add", data=array(3, 3), indices=TWICE, updates=array(2, 3, seed=1), reduction="add",
         torch=_reduce("sum")),
    case("ScatterElements", "mul", data=array(3, 3), indices=TWICE, updates=array(2, 3, seed=1), reduction="mul",
         torch=_reduce("prod")),
    case("ScatterElements", "mul with zeros", kind="special", data=array(2), indices=ints([0, 0, 1, 1]),
         updates=np.array([0.0, 2.0, 0.0, 0.0]), reduction="mul", smooth=False, torch=_reduce("prod")),
    case("ScatterElements", "max", data=distinct(3, 3), indices=TWICE, updates=distinct(2, 3, seed=1) + 0.01,
         reduction="max", torch=_reduce("amax")),
    case("ScatterElements", "min", data=distinct(3, 3), indices=TWICE, updates=distinct(2, 3, seed=1) + 0.01,
         reduction="min", torch=_reduce("amin")),
    case("ScatterElements", "ties share", kind="edge", data=np.array([1.0, 5.0]), indices=ints([0, 0, 1]),
         updates=np.array([1.0, 0.0, 2.0]), reduction="max", torch=_reduce("amax"),
         expected={"data": [0.5, 1.0], "updates": [0.5, 0.0, 0.0]}),
    case("ScatterElements", "no updates", kind="edge", data=array(3), indices=np.zeros(0, np.int64), updates=array(0)),
    case("ScatterND", "none", data=array(3, 2), indices=ints([[0, 1], [2, 0]]), updates=array(2, seed=1)),
    case("ScatterND", "slices", data=array(4, 2), indices=ints([[3], [-4]]), updates=array(2, 2, seed=1)),
    case("ScatterND", "add", data=array(3, 2), indices=PAIRS, updates=array(3, seed=1), reduction="add"),
    case("ScatterND", "mul", data=array(3, 2), indices=PAIRS, updates=array(3, seed=1), reduction="mul"),
    case("ScatterND", "mul slices", data=array(3, 2), indices=ints([[1], [1]]), updates=array(2, 2, seed=1),
         reduction="mul"),
    case("ScatterND", "max", data=distinct(3, 2), indices=PAIRS, updates=distinct(3, seed=1) + 0.01, reduction="max"),
    case("ScatterND", "min", kind="edge", data=distinct(3, 2), indices=ints([[0], [2], [0]]),
         updates=distinct(3, 2, seed=1) + 0.01, reduction="min"),
    case("ScatterND", "infinite", kind="special", data=np.array([np.inf, 1.0]), indices=ints([[0]]),
         updates=np.array([2.0]), expected={"data": [0.0, 1.0], "updates": [1.0]}),
    case("TensorScatter", "linear", opset=24, past_cache=array(2, 1, 4, 2), update=array(2, 1, 2, 2, seed=1),
         write_indices=ints([1, 2])),
    case("TensorScatter", "circular", opset=24, past_cache=array(2, 4, 2), update=array(2, 2, 2, seed=1),
         write_indices=ints([3, 1]), mode="circular"),
    case("TensorScatter", "axis", kind="edge", opset=24, past_cache=array(2, 2, 3), update=array(2, 2, 2, seed=1),
         write_indices=ints([1, 0]), axis=2),
    case("TensorScatter", "no write_indices", kind="edge", opset=24, past_cache=array(2, 3, 2),
         update=array(2, 1, 2, seed=1)),
    case("TensorScatter", "infinite", kind="special", opset=24, past_cache=np.array([[[np.inf], [1.0]]]),
         update=np.array([[[2.0]]]), expected={"past_cache": [[[0.0], [1.0]]], "update": [[[1.0]]]}),
    case("Compress", "axis", input=array(3, 4), condition=np.array([False, True, True]), axis=0,
         torch=lambda input, condition: input[condition]),
    case("Compress", "short condition", kind="edge", input=array(2, 4), condition=np.array([True, False, True]),
         axis=-1),
    case("Compress", "no axis", kind="edge", input=array(2, 3), condition=np.array([False, True, True, False, True])),
    case("Compress", "nothing", kind="edge", input=array(2, 3), condition=np.array([False, False]), axis=0),
    case("Compress", "infinite", kind="special", input=np.array([np.inf, 1.0]), condition=np.array([False, True]),
         expected={"input": [0.0, 1.0]}),
    case("TopK", "largest", X=distinct(2, 5), K=ints([2]), outputs=["Values", "Indices"],
         torch=lambda X, K: _torch.topk(X, 2).values),
    case("TopK", "smallest along axis 0", X=distinct(5, 2), K=ints([3]), axis=0, largest=0,
         torch=lambda X, K: _torch.topk(X, 3, 0, largest=False).values),
    case("TopK", "unsorted", kind="edge", X=distinct(2, 4), K=ints([2]), sorted=0, constants=["K"],
         onnxruntime="the order of unsorted values is not defined"),
    case("TopK", "ties", kind="edge", X=np.array([1.0, 1.0, 0.0]), K=ints([1]), expected={"X": [1.0, 0.0, 0.0]}),
    case("TopK", "infinite", kind="special", X=np.array([1.0, np.inf]), K=ints([1]), expected={"X": [0.0, 1.0]}),
    case("Unique", "sorted", X=distinct(2, 3)),
    case("Unique", "along an axis", X=distinct(3, 2), axis=0),
    case("Unique", "repeated", kind="edge", X=np.array([2.0, 1.0, 2.0]), sorted=0, expected={"X": [1.0, 1.0, 0.0]}),
    case("Unique", "infinite", kind="special", X=np.array([2.0, np.inf]), expected={"X": [1.0, 1.0]}),
]  # fmt: skip
