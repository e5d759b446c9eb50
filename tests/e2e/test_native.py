"""`onward compile --target iree`: what it writes, what it refuses, and a C program that trains with it.

The C program needs IREE's runtime as a library with headers, which the wheel does not have: a source tree in the folder
that IREE_SOURCE names and its CMake build in IREE_BUILD (docs/native.md). The tests of other processors need a command
that runs modules for them in ARM64_RUNNER and RISCV64_RUNNER, such as QEMU with an iree-run-module for that processor.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from typer.testing import CliRunner, Result

import onward
from hostile.files import known_gap
from onward.cli import build_app
from onward.cli.speech import spoken
from onward.compiler import package
from onward.compiler.program import Program
from onward.errors import ModelError, OnwardError
from whole import WHOLE

pytest.importorskip("iree.compiler")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def kept(tmp_path_factory):
    """Keep the binaries of this module in a folder of their own, so that each graph is compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONWARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def run(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), [str(a) for a in arguments], catch_exceptions=True)


@pytest.fixture(scope="module")
def linear(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "linear.onnx"
    onward.save(onward.samples.build("linear"), path)
    return path


@pytest.fixture(scope="module")
def native(linear, tmp_path_factory, kept) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("native") / "program"
    result = run("compile", linear, "--target", "iree", "--batch", 4, "-o", folder)
    assert result.exit_code == 0, result.output
    return folder, result.output


def test_a_native_program_is_whole_and_says_what_it_is(native):
    folder, said = native
    manifest = json.loads((folder / "manifest.json").read_text())
    schema = json.loads((Path(package.__file__).parent / "manifest.schema.json").read_text())

    jsonschema.validate(manifest, schema)

    assert {"step.vmfb", "evaluate.vmfb", "infer.vmfb", "initialize.vmfb", "arguments.txt"} <= set(os.listdir(folder))
    about = manifest["native"]
    assert about["target"] == "iree:cpu"
    assert about["compiler"].startswith("iree 3.")
    assert "--iree-input-demote-f64-to-f32=false" in about["flags"]
    assert about["graphs"]["step"]["inputs"] == [v["name"] for v in manifest["graphs"]["step"]["inputs"]]
    outputs = sum(len(g["outputs"]) for g in about["graphs"].values())
    assert f"verified: {outputs} outputs are those of ONNX Runtime" in said
    assert "peak RAM kB" in said
    assert Program.load(folder).inputs[0].shape == (4, 1)


def test_the_arguments_as_text_place_every_state(native):
    folder, _ = native
    state = (folder / "state.safetensors").read_bytes()
    program = Program.load(folder)

    rows = [line.split(" ", 6) for line in (folder / "arguments.txt").read_text().splitlines()]

    step = [r for r in rows if r[0] == "step.run"]
    assert [r[6] for r in step if r[1] == "input"] == list(program.first.step.input_names)
    for _, side, role, dtype, shape, where, name in step:
        if (side, role) == ("input", "state"):
            value = program.state[name]
            found = np.frombuffer(state, dtype, value.size, int(where)).reshape(value.shape)
            np.testing.assert_array_equal(found, value)
            assert shape == (",".join(map(str, value.shape)) or "scalar")


def test_a_changed_binary_is_refused(native, tmp_path):
    folder, _ = native
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with (tmp_path / "step.vmfb").open("r+b") as file:
        file.seek(100)
        file.write(b"\xff")

    with pytest.raises(ModelError, match=r"`step.vmfb` was changed after compiling"):
        Program.load(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--target", "iree"), "pass --batch"),
        (("--target", "iree:toaster", "--batch", 4), "no such target of IREE `toaster`"),
        (("--target", "iree:vulkan", "--batch", 4), "iree:vulkan:NAME"),
        (("--target", "iree", "--batch", 4, "--size", "time=3"), "no free size is called `time`"),
        (("--batch", 4), "--batch belongs to --target or --tune"),
        (("--target", "iree", "--batch", 4, "--seconds", 0.05), "did not finish within 0.05 seconds"),
    ],
)
def test_a_mistake_is_explained_and_nothing_is_written(linear, tmp_path, monkeypatch, options, words):
    monkeypatch.setenv("ONWARD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "program"

    result = run("compile", linear, *options, "-o", folder)

    assert isinstance(result.exception, OnwardError)
    said = "\n".join(spoken(problem).render() for problem in result.exception.diagnostics)
    assert words in said
    assert not folder.exists()


def test_a_full_disk_leaves_no_directory(linear, native, tmp_path, monkeypatch):
    def full(operation: str, path: Path) -> None:
        if operation == "write" and path.name.startswith(".onward-tmp-step.vmfb"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("onward.storage.atomic.boundary", full)
    folder = tmp_path / "program"

    result = run("compile", linear, "--target", "iree", "--batch", 4, "-o", folder)

    assert isinstance(result.exception, ModelError)
    assert "No space left on device" in str(result.exception)
    assert not folder.exists()


def test_integers_of_32_bits_are_refused_where_random_numbers_need_64(tmp_path):
    from models import dropout_network

    path = tmp_path / "net.onnx"
    onward.save(onward.make_trainable(dropout_network(), loss="cross_entropy", optimizer=onward.SGD(0.1)), path)

    result = run("compile", path, "--target", "iree", "--batch", 4, "--int32", "-o", tmp_path / "program")

    assert "which need integers of 64 bits" in str(result.exception)


@pytest.mark.skipif(not WHOLE, reason="make test-whole: a minute of compilation")
def test_a_microcontroller_gets_a_library_and_c(linear, tmp_path):
    result = run("compile", linear, "--target", "iree:cortex-m", "--batch", 1, "-o", tmp_path / "program")

    assert result.exit_code == 0, result.output
    assert {"step.c", "step.h", "step.o"} <= set(os.listdir(tmp_path / "program"))
    assert (tmp_path / "program" / "step.o").read_bytes()[:4] == b"\x7fELF"
    assert "compiled, not run" in result.output


@pytest.mark.parametrize(("target", "runner"), [("android-arm64", "ARM64_RUNNER"), ("riscv64", "RISCV64_RUNNER")])
def test_another_processor_computes_what_onnxruntime_computes(target, runner, linear, tmp_path):
    if runner not in os.environ:
        pytest.skip(known_gap("other_processors"))
    options = ("--target", f"iree:{target}", "--batch", 4, "--runner", os.environ[runner])

    result = run("compile", linear, *options, "-o", tmp_path / "program")

    assert "verified: 11 outputs" in result.output, (result.output, result.exception)


def test_the_c_program_is_short():
    assert len((ROOT / "examples/native_training.c").read_text().splitlines()) <= 150


@pytest.mark.skipif("IREE_BUILD" not in os.environ, reason=known_gap("iree_runtime_for_c"))
def test_c_trains_as_python_does(native, linear, tmp_path):
    source, build = Path(os.environ["IREE_SOURCE"]), Path(os.environ["IREE_BUILD"])
    includes = [f"-I{source}/runtime/src", f"-I{build}/runtime/src"]
    libraries = [
        build / "runtime/src/iree/runtime/libiree_runtime_unified.a",
        build / "build_tools/third_party/flatcc/libflatcc_parsing.a",
    ]
    define = "-DIREE_ALLOCATOR_SYSTEM_CTL=iree_allocator_libc_ctl"
    program = tmp_path / "native_training"
    command = ["gcc", "-O2", define, *includes, ROOT / "examples/native_training.c", *libraries, "-lpthread", "-lm"]
    subprocess.run([*map(str, command), "-o", str(program)], check=True)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, 1)).astype(np.float32)
    x.tofile(tmp_path / "x")
    (3 * x).tofile(tmp_path / "y")

    done = subprocess.run(
        [program, native[0], "2", tmp_path / "x", tmp_path / "y"], capture_output=True, text=True, check=True
    )

    trainer = onward.Trainer(linear)
    for line in done.stdout.splitlines():
        losses = [trainer.step({"X": x[i : i + 4], "labels": 3 * x[i : i + 4]})["loss"] for i in range(0, 16, 4)]
        assert float(line.rpartition(" ")[2]) == pytest.approx(np.mean(losses), rel=1e-5)
    assert len(done.stdout.splitlines()) == 2
