"""A sample of the zoo in every test run: small files of many producers, for the causes that kept files from training.

`make zoo` takes all of them; `make test` leaves the longest to `make test-whole`. The files come from the registries;
without a network the tests are skipped.
"""

from __future__ import annotations

import pytest

from whole import sample
from zoo.run import Unreachable, examine, manifest, misses, title, trains

SAMPLE = {
    "silero-vad 6.2.3: silero_vad_half.onnx": "nested If whose branches have other ranks",
    "onnx-asr 0.12.0: nemo80.onnx": "an STFT front end",
    "onnx-asr 0.12.0: resample_44_8.onnx": "vectors that onnx takes for shapes; a pole that a Where avoids",
    "rapidocr-onnxruntime 1.4.4: ch_ppocr_mobile_v2.0_cls_infer.onnx": "PaddlePaddle: weights in Constant nodes",
    "reachy_mini 1.13.0: fknetwork_int8.onnx": "all weights are quantised",
    "speechmos 0.0.1.1: Run_1663915512_Stage_0.onnx": "an output whose first axis is not the batch",
    "openwakeword 0.5.1: alexa_v0.1.onnx": "PyTorch's old exporter, a fixed batch of 1",
    "swift-f0 0.3.0: model.onnx": "outputs of two types",
    "basic-pitch 0.4.0: nmp.onnx": "TensorFlow",
    "playground 0.0.4: go1_policy.onnx": "JAX by way of TensorFlow",
    "qonnx 1.0.0: model.onnx": "CNTK, operator set 8",
    "onnxruntime 1.31.1: mul_1.onnx": "IR version 3, initializers that are no inputs",
}
# More than half of the seconds of all; `make test-whole` and `make zoo` take them.
LONG = {
    "rapidocr-onnxruntime 1.4.4: ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "speechmos 0.0.1.1: Run_1663915512_Stage_0.onnx",
    "swift-f0 0.3.0: model.onnx",
    "basic-pitch 0.4.0: nmp.onnx",
}
ENTRIES = {title(e): e for e in manifest() if title(e) in SAMPLE}


def test_the_sample_is_in_the_manifest() -> None:
    assert set(ENTRIES) == set(SAMPLE)


def test_the_manifest_is_as_large_and_as_mixed_as_it_should_be() -> None:
    entries = manifest()

    assert len({e["sha256"] for e in entries}) == len(entries) >= 60
    assert len({e["producer"] for e in entries}) >= 12


@pytest.mark.parametrize("name", sample(SAMPLE, [n for n in SAMPLE if n not in LONG]))
def test_a_file_of_a_stranger_trains(name: str) -> None:
    entry = ENTRIES[name]
    try:
        found = examine(entry, seconds=300)
    except Unreachable as error:
        pytest.skip(f"the package registry cannot be reached: {error}")

    assert misses(entry, found) == {}
    assert trains(found) or entry.get("expect")
