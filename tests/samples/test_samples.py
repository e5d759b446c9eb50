from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

from onward import samples
from onward.check import check
from onward.compiler.compile import compile_model
from onward.errors import ArgumentError
from onward.model.inference import combined_proto


@pytest.mark.parametrize("name", sorted(samples.SAMPLES))
def test_a_sample_has_nothing_to_report(name: str) -> None:
    proto = samples.build(name).proto()

    report = check(proto, pedantic=True)

    assert report.findings == ()


@pytest.mark.parametrize("name", sorted(samples.SAMPLES))
def test_onnx_accepts_the_combined_graph_of_a_sample(name: str) -> None:
    model = samples.build(name)

    proto = combined_proto(model, model.entries[0])

    onnx.checker.check_model(proto, full_check=True)


def digest(name: str, hash_seed: str) -> str:
    program = f"""import hashlib, onward
print(hashlib.sha256(onward.samples.build({name!r}).proto().SerializeToString()).hexdigest())"""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    return result.stdout.decode()


@pytest.mark.parametrize("name", sorted(samples.SAMPLES))
def test_a_sample_has_the_same_bytes_in_every_process(name: str) -> None:
    assert digest(name, "1") == digest(name, "2") != ""


def test_the_weights_of_the_samples_never_change() -> None:
    found = {}
    for name in ("digits", "mnist"):
        tensors = sorted(samples.build(name).parameters.items())
        found[name] = hashlib.sha256(b"".join(v.const_value.numpy().tobytes() for _, v in tensors)).hexdigest()[:16]

    assert found == {"digits": "205c045ac76b3a1c", "mnist": "ed03a83aa6e2d199"}


@pytest.mark.parametrize("name", sorted(samples.SAMPLES))
def test_a_sample_learns(name: str) -> None:
    model = samples.build(name)
    rng = np.random.default_rng(0)
    if name == "linear":
        x = rng.normal(size=(32, 1)).astype(np.float32)
        feeds = {"X": x, "labels": 3 * x}
    else:
        side = int(model.graph.inputs[0].shape[2])
        feeds = {
            "images": rng.uniform(size=(16, 1, side, side)).astype(np.float32),
            "labels": rng.integers(0, 10, 16),
        }
    program = compile_model(model)
    step = program.first.step
    session = onnxruntime.InferenceSession(step.proto().SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    known, found = {**program.state, **program.settings, **feeds}, []

    for _ in range(40):
        inputs = {i.name: known[i.name] for i in session.get_inputs()}
        outputs = dict(zip(names, session.run(None, inputs), strict=True))
        known.update({state: outputs[output] for output, state in step.replaces.items()})
        found.append(float(outputs["loss"]))

    assert found[-1] < 0.6 * found[0]


def test_the_linear_sample_is_adagrad_with_r_t_and_h() -> None:
    model = samples.build("linear")

    (optimizer,) = [n for n in model.entries[0].algorithm if n.op_type == "Adagrad"]

    assert [v.name for v in optimizer.inputs] == ["R", "T", "W", "grad/W", "H"]


@pytest.mark.parametrize(("name", "side"), [("digits", 8), ("mnist", 28)])
def test_the_image_samples_read_images_and_labels(name: str, side: int) -> None:
    model = samples.build(name)

    assert (model.inputs, model.targets, model.outputs) == (["images"], ["labels"], ["logits"])
    assert [str(d) for d in model.graph.inputs[0].shape] == ["N", "1", str(side), str(side)]


def test_an_unknown_sample_lists_those_that_exist() -> None:
    with pytest.raises(ArgumentError) as caught:
        samples.build("minst")

    assert str(caught.value) == (
        "error[A100]: no such sample `minst`\n  needed: one of: digits, linear, mnist\n\nhint: did you mean `mnist`?"
    )
