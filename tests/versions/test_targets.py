"""Compiled programs fit the oldest runtime that is promised, ONNX Runtime 1.17: operator set 20, IR version 9."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import onward
from models import dropout_network
from onward.errors import OnwardError
from onward.graph.schema import schema
from onward.versions import RUNTIMES
from versions.old_runtimes import _write, losses

OLDEST = RUNTIMES["1.17"]


def recurrent() -> onnx.ModelProto:
    return onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        lstm (float[7, N, 5] x) => (float[N, 6] y)
        <float[1, 24, 5] W = {}, float[1, 24, 6] R = {}, float[1, 48] B = {}> {
            all, last, cell = LSTM <hidden_size = 6> (x, W, R, B)
            axes = Constant <value_ints = [0]> ()
            y = Squeeze(last, axes)
        }""".replace("[1, 24, 5] W = {}", "[1, 24, 5] W = {" + ", ".join(["0.1"] * 120) + "}")
        .replace("[1, 24, 6] R = {}", "[1, 24, 6] R = {" + ", ".join(["-0.1"] * 144) + "}")
        .replace("[1, 48] B = {}", "[1, 48] B = {" + ", ".join(["0.2"] * 48) + "}")
    )  # fmt: skip


def trainable(name: str) -> onward.TrainingModel:
    if name in onward.samples.SAMPLES:
        return onward.samples.build(name)
    network = recurrent() if name == "lstm" else dropout_network()
    return onward.make_trainable(network, loss="cross_entropy", optimizer=onward.Adam(1e-2))


NAMES = [*onward.samples.SAMPLES, "lstm", "dropout"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", [None, OLDEST.opset])
def test_every_graph_of_a_program_is_one_that_the_oldest_runtime_reads(name: str, target: int | None) -> None:
    program = onward.compile(trainable(name), split=True, target_opset=target)

    graphs = [g.proto() for g in program.graphs()]
    assert len(graphs) >= 4
    for model in graphs:
        assert [(o.domain, o.version <= OLDEST.opset) for o in model.opset_import] == [("", True)]
        assert model.ir_version <= OLDEST.ir_version
        onnx.checker.check_model(model, full_check=True)
        for node in model.graph.node:
            found = schema(node.op_type, "", model.opset_import[0].version)
            assert found is not None, node.op_type
            assert not found.deprecated, node.op_type


def test_an_operator_that_the_target_does_not_have_is_refused() -> None:
    network = onnx.parser.parse_model("""<ir_version: 11, opset_import: ["" : 23]>
        m (float[N, 4] x) => (float[N, 4] y) <float[4] s = {1, 1, 1, 1}> { y = RMSNormalization(x, s) }""")
    model = onward.make_trainable(network, loss="mse", optimizer="sgd")

    with pytest.raises(OnwardError, match="does not fit opset 20: it was introduced in opset 23"):
        onward.compile(model, target_opset=20)


@pytest.mark.parametrize("name", ["linear", "dropout"])
def test_the_loop_without_onward_gives_the_losses_of_the_backend(name: str, tmp_path: Path) -> None:
    program = onward.compile(trainable(name))
    folder = _write(tmp_path / "program", program, [])
    from onward.backends import open_session
    from versions.run_program import read_safetensors

    session = open_session(program, "onnxruntime", threads=1)
    arrays = read_safetensors(folder.with_suffix(".batches"))
    steps = sorted({int(k.split("/")[0]) for k in arrays})
    expected = [
        float(session.step({k.partition("/")[2]: v for k, v in arrays.items() if k.startswith(f"{i}/")})["loss"])
        for i in steps
    ]

    np.testing.assert_allclose(losses(sys.executable, folder), expected, rtol=1e-6)


def test_the_runner_needs_neither_onward_nor_onnx() -> None:
    runner = Path(__file__).with_name("run_program.py")
    code = (
        "import sys, runpy; sys.modules.update(onnx=None, onward=None, safetensors=None); runpy.run_path(sys.argv[1])"
    )

    result = subprocess.run(
        [sys.executable, "-c", code, str(runner)], capture_output=True, text=True, check=False, timeout=60
    )

    assert result.returncode == 0, result.stderr
