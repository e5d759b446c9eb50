"""The files of a site, without a browser: complete, checked, written all or none."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from threading import Thread

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

import onward
from onward import samples
from onward.cli import build_app
from onward.errors import ArgumentError, BackendError, ModelError
from onward.model.class_names import PREPARATION
from onward.storage.tensor_file import read_tensor_bytes, tensor_file_chunks
from onward.train import Preparation
from onward.web import build_site, fetch_runtime, read_runtime, serve, write_site
from onward.web import runtime as runtime_module
from onward.web.describe import describe, prepared_program
from web.networks import picture_of_one_thing


@pytest.fixture(scope="module")
def digits() -> onward.Program:
    return onward.compile(samples.build("digits"))


@pytest.fixture
def site(digits, stand_in):
    return build_site(digits, stand_in)


def described(program: onward.Program, change=None, classes=()) -> dict:
    return describe(prepared_program(program, change, classes)[0])


def test_every_file_is_listed_with_its_checksum_and_the_page_knows_that_of_the_list(site):
    listed = json.loads(site.files["site.json"])["files"]

    assert set(site.files) == {*listed, "site.json", "index.html", "sw.js"}
    assert all(hashlib.sha256(site.files[n]).hexdigest() == entry["sha256"] for n, entry in listed.items())
    assert f'data-site="{hashlib.sha256(site.files["site.json"]).hexdigest()}"' in site.files["index.html"].decode()
    assert {"app.mjs", "worker.mjs", "onward-train.mjs", "style.css", "ort/LICENSE.txt", "program/step.onnx"} <= set(
        listed
    )


def test_nothing_comes_from_or_goes_to_another_place(site):
    page = site.files["index.html"].decode()

    assert "default-src 'none'" in page
    assert "connect-src 'self'" in page
    assert "unsafe-inline" not in page
    assert "unsafe-eval" not in page.replace("'wasm-unsafe-eval'", "")
    own = [name for name in site.files if not name.startswith(("ort/", "program/"))]
    addresses = re.findall(r"https?://[^\s\"'`<)]+", "".join(site.files[n].decode("utf-8", "ignore") for n in own))
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<script(?![^>]*\bsrc=)|\bon\w+=|style=", page)  # the policy refuses them


def test_a_title_cannot_break_out_of_the_page(digits, stand_in):
    page = build_site(digits, stand_in, title="</title><script>alert(1)</script>").files["index.html"].decode()

    assert "<script>alert" not in page


def test_zero_moments_are_left_to_the_initialisation(digits, site):
    state, _ = read_tensor_bytes(site.files["program/state.safetensors"])
    manifest = json.loads(site.files["program/manifest.json"])
    left_out = {t["name"] for t in manifest["state"]["tensors"]} - set(state)
    trainer = onward.Trainer(digits)
    trainer.initialize(seed=5)

    assert left_out
    assert set(digits.parameters) <= set(state)
    assert all(not np.any(trainer.state[name]) and not np.any(digits.state[name]) for name in left_out)
    assert all(np.array_equal(state[name], digits.state[name]) for name in state)
    assert hashlib.sha256(site.files["program/state.safetensors"]).hexdigest() == manifest["state"]["sha256"]


def test_python_trains_the_program_of_a_site_from_zero_moments(digits, site, tmp_path):
    write_site(site, tmp_path / "site")

    program = onward.Program.load(tmp_path / "site" / "program")

    assert {n: v.tobytes() for n, v in program.state.items()} == {n: v.tobytes() for n, v in digits.state.items()}


def test_a_weight_that_the_program_of_a_site_lost_is_not_made_up(digits, site, tmp_path):
    write_site(site, tmp_path / "site")
    path, lost = tmp_path / "site/program/state.safetensors", digits.parameters[0]
    state, about = read_tensor_bytes(path.read_bytes())
    path.write_bytes(b"".join(tensor_file_chunks({n: v for n, v in state.items() if n != lost}, about)))

    with pytest.raises(ModelError, match=f"not a complete program: its state lacks `{lost}`"):
        onward.Program.load(tmp_path / "site" / "program")


def test_moments_that_are_not_zero_are_kept(digits, stand_in):
    state = {n: v if n in digits.parameters else np.ones_like(v) for n, v in digits.state.items()}

    files = build_site(dataclasses.replace(digits, state=state), stand_in).files

    assert set(read_tensor_bytes(files["program/state.safetensors"])[0]) == set(state)


def test_a_model_of_pictures_and_classes_gets_the_page_of_pictures(digits):
    about = described(digits)

    assert about["kind"] == "image"
    assert about["image"] == {"input": "images", "channels": 1, "height": 8, "width": 8, "layout": "CHW"}
    assert about["task"] == {"kind": "classes", "output": "logits", "ending": ""}
    assert about["classes"] == list("0123456789")
    assert about["rates"] == [{"name": "learning_rate", "default": pytest.approx(1e-3)}]


def test_any_other_model_gets_a_form():
    model = onward.make_trainable(samples.perceptron(), loss="cross_entropy", optimizer=onward.SGD(0.1))
    about = described(onward.compile(model))

    assert about["kind"] == "form"
    x, labels = about["fields"]
    assert (x["role"], labels["role"]) == ("input", "target")
    assert (labels["classes"], labels["one_hot"]) == (True, False)
    assert x["features"] == [{"column": "x_0"}, {"column": "x_1"}, {"column": "x_2"}]


def test_numbers_that_are_predicted_have_no_classes():
    model = onward.make_trainable(samples.perceptron(), loss="mse", optimizer=onward.SGD(0.1))
    about = described(onward.compile(model))

    assert (about["task"]["kind"], about["classes"]) == ("values", [])
    assert [f["classes"] for f in about["fields"]] == [False, False]


def test_the_preparation_of_the_model_goes_with_the_page_and_with_what_it_exports(digits):
    said = Preparation(scale=0.5, mean=[0.25], classes=tuple("abcdefghij"))
    program, notes = prepared_program(digits, lambda _: said, ())

    assert not notes
    assert describe(program)["preparation"] == {"scale": 0.5, "mean": [0.25], "std": 1.0}
    assert describe(program)["classes"] == list("abcdefghij")
    assert json.loads(program.infer_graph.model.metadata_props[PREPARATION])["scale"] == 0.5
    assert PREPARATION not in digits.infer_graph.model.metadata_props  # the given program is unchanged


def test_pictures_of_which_nothing_is_said_become_0_to_1_and_a_note_says_so(digits):
    program, notes = prepared_program(digits, None, ())

    assert describe(program)["preparation"]["scale"] == 1 / 255
    assert "--scale 1/255" in notes[0]


def test_examples_come_with_the_page_as_bytes(digits, stand_in):
    images = np.random.default_rng(0).integers(0, 256, (50, 8, 8), np.uint8)
    labels = np.arange(50) % 10

    site = build_site(digits, stand_in, data=(images, labels), examples=40)

    columns, _ = read_tensor_bytes(site.files["examples.safetensors"])
    assert site.about["examples"] == {"file": "examples.safetensors", "train": 32, "test": 8}
    assert (columns["images"].dtype, columns["images"].shape) == (np.uint8, (40, 1, 8, 8))
    rows = {tuple(i.ravel()): n for i, n in zip(images, labels, strict=True)}
    pairs = zip(columns["images"], columns["labels"], strict=True)
    assert all(rows[tuple(i.ravel())] == n for i, n in pairs)


def test_a_program_that_a_page_cannot_feed_is_refused_with_all_reasons(digits):
    odd = [dataclasses.replace(s, dtype="bfloat16") for s in (*digits.inputs, *digits.targets)]

    with pytest.raises(ArgumentError) as caught:
        describe(dataclasses.replace(digits, inputs=tuple(odd[:1]), targets=tuple(odd[1:])))

    assert [d.found for d in caught.value.diagnostics] == ["bfloat16", "bfloat16"]


def test_inputs_that_do_not_begin_with_the_batch_are_refused_by_name():
    """As in silero_vad_v6: a state whose second size is the batch, and the rate of the samples as a single number."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        stateful (float[N, 3] x, float[2, N, 3] state, float rate) => (float[N, 2] y) <int64[1] axes = {0}> {
            s = ReduceSum <keepdims = 0> (state, axes)
            t = Mul (s, rate)
            u = Add (x, t)
            y = MatMul (u, W)
        }""")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((3, 2), np.float32), "W"))
    program = onward.compile(onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.1)))

    with pytest.raises(ArgumentError) as caught:
        describe(program)

    assert [(d.message, d.found) for d in caught.value.diagnostics] == [
        ("a page cannot give `state`", "[2, 'N', 3]"),
        ("a page cannot give `rate`", "a single number"),
    ]


@pytest.mark.parametrize(("ending", "said"), [("Identity", "YesNoLogit"), ("Sigmoid", "YesNo")])
def test_a_picture_of_which_one_thing_is_said_has_two_classes(ending, said):
    program = picture_of_one_thing(ending)
    about = describe(prepared_program(program, None, ["bare", "glasses"])[0])

    assert (about["kind"], about["classes"]) == ("image", ["bare", "glasses"])
    assert about["task"] == {"kind": "classes", "output": "y", "ending": said}
    assert [(f["classes"], f["one_hot"]) for f in about["fields"]] == [(True, False)]
    assert described(program)["classes"] == ["no", "yes"]
    assert described(program, classes=["glasses"])["classes"] == ["not glasses", "glasses"]


def test_a_model_without_training_is_refused(stand_in):
    with pytest.raises(ArgumentError, match="no training entry"):
        build_site(onward.compile(samples.digits_network()), stand_in)


def test_a_site_replaces_a_site_and_nothing_else(site, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ModelError, match=r"M410.*not a site(.|\n)*mine.txt"):
        write_site(site, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]

    write_site(site, tmp_path / "site")
    assert {str(p.relative_to(tmp_path / "site")) for p in (tmp_path / "site").rglob("*") if p.is_file()} == set(
        site.files
    )

    less = {n: c for n, c in site.files.items() if n != "program/evaluate.onnx"}
    write_site(dataclasses.replace(site, files=less), tmp_path / "site")
    assert not (tmp_path / "site/program/evaluate.onnx").exists()


def test_a_full_disk_leaves_nothing_behind(site, tmp_path, monkeypatch):
    from onward.storage import atomic

    def full(operation: str, path: Path) -> None:
        if path.name == "index.html":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "boundary", full)
    with pytest.raises(ModelError, match=r"M410.*No space left"):
        write_site(site, tmp_path / "site")

    assert not (tmp_path / "site").exists()


def test_a_run_and_a_program_are_sources_too(tmp_path, stand_in):
    rng = np.random.default_rng(0)
    trainer = onward.Trainer(samples.build("digits"))
    x, y = rng.random((8, 1, 8, 8), np.float32), rng.integers(0, 10, 8)
    trainer.fit(x, y, epochs=1, batch_size=8, checkpoint=tmp_path / "run", progress=False)
    trainer.program.save(tmp_path / "program")

    states = [
        read_tensor_bytes(build_site(tmp_path / source, stand_in).files["program/state.safetensors"])[0]
        for source in ("run", "program")
    ]

    name = trainer.program.parameters[0]
    assert np.array_equal(states[0][name], trainer.state[name])
    assert np.array_equal(states[1][name], trainer.program.state[name])


# -- onnxruntime-web


def test_without_npm_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setattr(runtime_module.shutil, "which", lambda _: None)

    with pytest.raises(BackendError, match=r"B400.*npm is needed(.|\n)*--runtime"):
        fetch_runtime()


def test_offline_the_message_says_so(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "npm error code ENOTFOUND")
    monkeypatch.setattr(runtime_module.shutil, "which", lambda _: "npm")
    monkeypatch.setattr(runtime_module.subprocess, "run", lambda *_, **__: failed)

    with pytest.raises(
        BackendError, match=r"B400.*could not get onnxruntime-web@(.|\n)*ENOTFOUND(.|\n)*online(.|\n)*--runtime"
    ):
        fetch_runtime()


def test_a_folder_that_is_no_runtime_is_named(tmp_path):
    (tmp_path / "package.json").write_text('{"name": "left-pad", "version": "1.0.0"}')

    with pytest.raises(BackendError, match=r"B400.*is not the npm package onnxruntime-web"):
        read_runtime(tmp_path)


# -- the command and the server


def runtime_folder(folder: Path) -> Path:
    (folder / "dist").mkdir(parents=True)
    (folder / "package.json").write_text('{"name": "onnxruntime-web", "version": "9.9.9"}')
    for name in (runtime_module.MODULE, runtime_module.WASM):
        (folder / "dist" / name).write_bytes(b"x")
    return folder


def test_the_command_writes_a_site_that_names_its_classes(tmp_path):
    onward.save(samples.build("digits"), tmp_path / "digits.onnx")
    runtime = runtime_folder(tmp_path / "ort")
    words = [
        "web",
        str(tmp_path / "digits.onnx"),
        "-o",
        str(tmp_path / "site"),
        "--runtime",
        str(runtime),
        "--title",
        "Mine",
    ]

    done = CliRunner().invoke(build_app(), [*words, "--classes", "a,b,c,d,e,f,g,h,i,j", "--mean", "0.5"])

    about = json.loads((tmp_path / "site/site.json").read_text())
    assert done.exit_code == 0, done.output
    assert "--serve" in done.output
    assert (about["title"], about["classes"]) == ("Mine", list("abcdefghij"))
    assert about["preparation"] == {"scale": 1 / 255, "mean": 0.5, "std": 1.0}
    assert about["runtime"]["version"] == "9.9.9"
    assert json.loads((tmp_path / "site/program/manifest.json").read_text())["profile"] == "portable"
    infer = onnx.load(tmp_path / "site/program/infer.onnx")
    assert any(p.key == PREPARATION and "0.5" in p.value for p in infer.metadata_props)


def test_the_command_needs_a_place_to_write_to(tmp_path):
    with pytest.raises(ArgumentError, match=r"no directory to write to(.|\n)*-o DIR"):
        CliRunner().invoke(build_app(), ["web", str(tmp_path / "x.onnx"), "--serve"], catch_exceptions=False)


def test_the_server_allows_threads_and_lists_no_files(site, tmp_path):
    write_site(site, tmp_path / "site")
    with serve(tmp_path / "site", 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        with urllib.request.urlopen(address + "app.mjs") as answer:
            headers = answer.headers
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address + "program/")
        with pytest.raises(ArgumentError, match=r"port \d+ cannot be used"):
            serve(tmp_path, server.server_address[1])
        server.shutdown()

    assert headers["Content-Type"] == "text/javascript"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"


EXPORTERS = ["main_graph", "torch-jit-export", "Model from PaddlePaddle.", "PaddlePaddle Graph in PIR mode"]


@pytest.mark.parametrize("name", [*EXPORTERS, "spox_graph", "lgbm"])
def test_where_an_exporter_named_the_graph_the_heading_is_the_name_of_the_file(name, tmp_path, stand_in):
    network = samples.perceptron()
    network.graph.name = name
    model = onward.make_trainable(network, loss="cross_entropy", optimizer=onward.Adam(1e-2))
    onward.save(model, tmp_path / "flowers.train.onnx")

    assert build_site(tmp_path / "flowers.train.onnx", stand_in).about["title"] == "flowers"
