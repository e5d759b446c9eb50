"""ONNX's own files, exported by PyTorch at operator set 6 to 9, give the results stored with them after an upgrade."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from onward.upgrade import upgrade

DATA = pathlib.Path(onnx.__file__).parent / "backend" / "test" / "data"
FILES = [p for kind in ("pytorch-converted", "pytorch-operator") for p in sorted((DATA / kind).rglob("model.onnx"))]


def stored(path: pathlib.Path, kind: str) -> list[np.ndarray]:
    files = sorted((path.parent / "test_data_set_0").glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
    return [numpy_helper.to_array(onnx.TensorProto.FromString(p.read_bytes())) for p in files]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.parent.name)
def test_an_exported_file_gives_its_stored_results_after_the_upgrade(path):
    new = upgrade(path)

    assert new.opset == 18
    session = onnxruntime.InferenceSession(new.proto().SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = dict(zip(new.inputs, stored(path, "input"), strict=True))
    for expected, found in zip(stored(path, "output"), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
