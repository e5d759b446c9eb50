"""A program as a directory: it comes back equal, and damage is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import onward
from models import batch, dropout_network, perceptron
from onward.backends import open_session
from onward.compiler.package import manifest_text
from onward.errors import ModelError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    model = onward.make_trainable(dropout_network(), loss="cross_entropy", optimizer=onward.Adam(1e-2))
    onward.compile(model).save(tmp_path / "program")
    return tmp_path / "program"


def test_a_program_read_back_trains_the_same(directory: Path) -> None:
    model = onward.make_trainable(dropout_network(), loss="cross_entropy", optimizer=onward.Adam(1e-2))
    sessions = [open_session(p, "onnxruntime") for p in (onward.compile(model), onward.Program.load(directory))]

    losses = [[float(s.step(batch(seed=i))["loss"]) for i in range(5)] for s in sessions]

    assert losses[0] == losses[1]


def test_a_folder_of_other_files_is_not_written_to(directory: Path, tmp_path: Path) -> None:
    program = onward.Program.load(directory)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("my project")

    with pytest.raises(ModelError, match="contains files that are not a program"):
        program.save(tmp_path / "mine")

    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["README.md"]
    program.save(directory)  # a program is replaced


def test_the_manifest_follows_its_schema(directory: Path) -> None:
    schema = json.loads((Path(onward.__file__).parent / "compiler" / "manifest.schema.json").read_text())

    jsonschema.validate(json.loads((directory / "manifest.json").read_text()), schema)


def test_the_manifest_says_which_output_replaces_which_state(directory: Path) -> None:
    manifest = json.loads((directory / "manifest.json").read_text())

    outputs = manifest["graphs"]["step"]["outputs"]
    replaced = {o["replaces"] for o in outputs if o["role"] == "state"}

    assert replaced == {t["name"] for t in manifest["state"]["tensors"]} - {"random/key"}
    assert [o["name"] for o in outputs if o["role"] == "loss"] == ["loss"]


def test_the_loop_of_the_readme_trains(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    text = (directory / "README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(directory)

    exec(code, {"np": np, "batches": [batch(seed=0)] * 20})

    losses = [float(line) for line in capsys.readouterr().out.split()]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("file", ["step.onnx", "state.safetensors", "manifest.json", "infer.onnx"])
def test_a_damaged_file_is_noticed(directory: Path, file: str) -> None:
    data = bytearray((directory / file).read_bytes())
    data[len(data) // 2] ^= 0x10
    (directory / file).write_bytes(bytes(data))

    with pytest.raises(ModelError, match="not a complete program"):
        onward.Program.load(directory)


def test_every_flipped_bit_of_a_number_or_a_name_in_the_manifest_is_noticed(directory: Path) -> None:
    content = (directory / "manifest.json").read_bytes()
    for position in (content.index(b'"default": ') + 12, content.index(b'"replaces": "') + 13, len(content) - 3):
        data = bytearray(content)
        data[position] ^= 1
        (directory / "manifest.json").write_bytes(bytes(data))

        with pytest.raises(ModelError, match="not a complete program"):
            onward.Program.load(directory)


def test_a_directory_that_is_no_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"manifest\.json"):
        onward.Program.load(tmp_path)


def test_a_manifest_must_not_name_files_outside(directory: Path) -> None:
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["graphs"]["step"]["file"] = "../step.onnx"
    (directory / "manifest.json").write_text(manifest_text(manifest))

    with pytest.raises(ModelError, match="outside the directory"):
        onward.Program.load(directory)


def test_an_inference_model_compiles_too(tmp_path: Path) -> None:
    onward.compile(perceptron()).save(tmp_path)

    assert onward.Program.load(tmp_path).entries == {}
