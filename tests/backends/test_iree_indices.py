"""Inputs that are indices: one that is out of range is an error in every step, because a binary would not look."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onward
from backends.iree_models import MODELS, batches
from onward.errors import DataError
from onward.model import serde

pytest.importorskip("iree.compiler")

from onward.backends.iree.indices import index_sizes


@pytest.mark.parametrize("index", [11, -12])
def test_an_index_out_of_range_is_an_error_in_every_step(index):
    """A binary would read whatever lies there; the first batch alone is compared with ONNX Runtime."""
    trainer = onward.Trainer(MODELS["transformer"](), backend="iree", threads=1)
    batch = {**batches(trainer, 1)[0], "tokens": np.array([[-11, 10, 0, 1, 2, 3]] * 8)}
    trainer.step(batch)
    before = {name: value.tobytes() for name, value in trainer.state.items()}
    batch["tokens"][3, 2] = index

    with pytest.raises(DataError, match=rf"`tokens` has an index that is out of range.*\s.*{index}"):
        trainer.step(batch)

    assert {name: value.tobytes() for name, value in trainer.state.items()} == before
    batch["tokens"][3, 2] = 0
    assert np.isfinite(trainer.step(batch)["loss"])


@pytest.mark.parametrize(
    ("nodes", "size"),
    [
        ("y = Gather(E, i)", 5),
        ("y = Gather <axis = 1> (E, i)", 3),
        ("y = Gather <axis = -1> (E, i)", 3),
        ("j = Cast <to = 6> (i)  s = Constant <value_ints = [-1]> ()  k = Reshape(j, s)  y = Gather(E, k)", 5),
        ("y = Gather(E, i)  z = Gather <axis = 1> (E, i)", 3),
        ("j = Add(i, i)  y = Gather(E, j)", None),
        ("y = Gather(i, i)", None),
    ],
)
def test_how_far_indices_reach(nodes, size):
    text = f'<ir_version: 8, opset_import: ["": 18]> g (int64[N] i, float[5, 3] E) => (y) {{ {nodes} }}'

    assert index_sizes(serde.load(onnx.parser.parse_model(text)).ir.graph).get("i") == size
