"""The suite itself: a sample on the backends, equal bytes of two runs, damaged folders, its command and its wheel."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

ROOT = Path(__file__).parents[2]
# Which cases of the sample each backend runs: the slow ones a part. Everything runs in `make conformance-run`.
SAMPLES = {
    "onnxruntime": ["gradient/Sub/", "gradient/Gradient/", "optimizer/Adam/", "training/", "invalid/gradient/"],
    "reference": ["gradient/Max/", "optimizer/Momentum/", "training/linear", "training/batch", "training/two"],
    "torch": ["gradient/Sub/", "optimizer/Adagrad/", "training/mlp", "training/cnn", "training/schedule"],
    "minimal_backend": ["gradient/Max/", "optimizer/Adam/", "training/legacy", "training/scan", "training/two"],
}


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_passes(suite: Path, name: str) -> None:
    import onward_conformance

    backend = importlib.import_module(name if name == "minimal_backend" else f"onward.backends.{name}")
    chosen = [c for c in onward_conformance.cases(suite) if any(c.name.startswith(p) for p in SAMPLES[name])]

    results = [(c, onward_conformance.run(c, backend)) for c in chosen]

    assert [f"{c.name}: {r.message}" for c, r in results if r.status == "failed"] == []
    skipped = [c.name for c, r in results if r.status == "skipped"]
    assert all(
        set(c.dtypes) & {"float16", "bfloat16", "float64"} or "mixed" in c.name for c in chosen if c.name in skipped
    )
    assert len(skipped) < len(chosen) / 10


def test_two_runs_give_equal_bytes(suite: Path, tmp_path: Path) -> None:
    from generate import build, networks, optimizer
    from generate.writer import Suite

    again = Suite(tmp_path)
    list(build.add_operator(again, "Sub"))
    list(networks.add_all(again))
    list(optimizer.add_all(again))

    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) > 500
    assert all(p.read_bytes() == (suite / p.relative_to(tmp_path)).read_bytes() for p in files)


def test_no_two_entries_of_the_standard_formulas_disagree_with_torch() -> None:
    import torch
    from generate.formulas import adagrad, momentum

    rng = np.random.default_rng(0)
    X, H, V = rng.normal(size=5), np.zeros(5), np.zeros(5)
    weight = torch.tensor(X, requires_grad=True)
    other = torch.tensor(X, requires_grad=True)
    # Attributes are float32 numbers, so PyTorch gets the same ones.
    eps, decay, mu = (float(np.float32(v)) for v in (1e-6, 0.1, 0.9))
    ada = torch.optim.Adagrad([weight], lr=0.1, lr_decay=decay, eps=eps)
    sgd = torch.optim.SGD([other], lr=0.1, momentum=mu, dampening=0.25, nesterov=False)
    A, M = X.copy(), X.copy()
    for step in range(4):
        G = rng.normal(size=5)
        weight.grad = other.grad = torch.tensor(G)
        ada.step()
        sgd.step()
        A, H = adagrad(0.1, step, A, G, H, decay_factor=0.1)
        M, V = momentum(0.1, step, M, G, V, alpha=0.9, beta=0.75, norm_coefficient=0.0, mode="standard")

        np.testing.assert_allclose(A, weight.detach().numpy(), rtol=1e-12)
        np.testing.assert_allclose(M, other.detach().numpy(), rtol=1e-12)


def test_every_case_says_where_its_numbers_come_from(suite: Path) -> None:
    import onward_conformance

    for case in onward_conformance.cases(suite):
        assert case.oracle
        assert "onward" not in case.oracle.lower()
        assert bool(case.rule) == (case.kind == "invalid")


def test_the_package_does_not_import_onward() -> None:
    code = "import onward_conformance, sys; assert 'onward' not in sys.modules; print(len(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "conformance" / "src")}

    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd="/")


def test_what_a_backend_refuses_is_skipped_and_what_breaks_fails(suite: Path) -> None:
    import onward_conformance

    (case,) = onward_conformance.cases(suite, only="optimizer/Adam/defaults-t-0-float64")

    def run(prepare: Any) -> tuple[str, str]:
        result = onward_conformance.run(case, SimpleNamespace(prepare=prepare))
        return result.status, result.message

    def refuses(model: onnx.ModelProto, device: str) -> Any:
        raise unittest.SkipTest("no double here")

    def breaks(model: onnx.ModelProto, device: str) -> Any:
        raise RuntimeError("out of luck")

    expected = list(case.data_sets()[0][1].values())
    wrong = [expected[0] + 1, *expected[1:]]
    assert run(refuses) == ("skipped", "no double here")
    assert run(breaks) == ("failed", "RuntimeError: out of luck")
    assert run(lambda m, d: SimpleNamespace(run=lambda inputs: expected)) == ("passed", "")
    status, message = run(lambda m, d: SimpleNamespace(run=lambda inputs: wrong))
    assert status == "failed"
    assert "`X1_new` deviates at" in message
    assert "6 of 6 elements are wrong" in message
    assert (
        run(lambda m, d: SimpleNamespace(run=lambda inputs: expected[:1]))[1]
        == "`V1_new` is missing; `H1_new` is missing"
    )
    single = [a.astype(np.float32) for a in expected]
    assert "has element type float32" in run(lambda m, d: SimpleNamespace(run=lambda inputs: single))[1]
    assert onward_conformance.run(case, SimpleNamespace()).status == "skipped"


def test_a_half_written_or_damaged_suite_is_reported_with_its_place(suite: Path, tmp_path: Path) -> None:
    import onward_conformance

    with pytest.raises(onward_conformance.SuiteError, match="there is no such folder"):
        onward_conformance.cases(tmp_path / "nowhere")
    with pytest.raises(onward_conformance.SuiteError, match="manifest.json: cannot be read"):
        onward_conformance.cases(tmp_path)
    (tmp_path / "manifest.json").write_text('{"version": "1.0.0", "ca')
    with pytest.raises(onward_conformance.SuiteError, match="manifest.json is damaged"):
        onward_conformance.cases(tmp_path)
    (case,) = onward_conformance.cases(suite, only="optimizer/Adam/defaults-t-0-float64")
    shutil.copytree(suite / case.name, tmp_path / case.name)
    shutil.copy(suite / "manifest.json", tmp_path / "manifest.json")
    (tmp_path / case.name / "test_data_set_0" / "output_0.pb").write_bytes(b"\xff\xff")
    (case,) = onward_conformance.cases(tmp_path, only=case.name)
    with pytest.raises(onward_conformance.SuiteError, match="output_0.pb is damaged"):
        case.data_sets()


def test_the_command_prints_a_table_and_writes_json(suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    from onward_conformance.__main__ import main

    out = tmp_path / "results.json"
    status = main(["--backend", "onnx.checker", "--folder", str(suite), "--kind", "invalid", "--json", str(out)])

    printed = capsys.readouterr().out
    assert status == 1
    assert "FAILED invalid/" in printed
    results = json.loads(out.read_text())["results"]
    assert len(results) == sum(r["kind"] == "invalid" for r in results) > 70


def test_a_backend_may_be_a_file_and_one_that_cannot_be_loaded_is_one_line(
    suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    from onward_conformance.__main__ import main

    good, bad = tmp_path / "good_backend.py", tmp_path / "bad_backend.py"
    good.write_text("def check_model(model):\n    raise ValueError('refused')\n")
    bad.write_text("raise RuntimeError('no device')\n")
    chosen = ["--folder", str(suite), "--kind", "invalid", "--only", "key-twice"]

    assert main(["--backend", str(good), *chosen]) == 1
    assert "refuses the valid twin of the file: ValueError: refused" in capsys.readouterr().out
    for name, why in ((str(bad), "RuntimeError: no device"), ("no.such.module", "ModuleNotFoundError")):
        assert main(["--backend", name, *chosen]) == 2
        assert f"error: {name} cannot be used: {why}" in capsys.readouterr().err


def test_the_archive_of_the_wheel_holds_the_same_cases(suite: Path, tmp_path: Path) -> None:
    import onward_conformance
    from generate.pack import pack

    archive = tmp_path / "data.zip"
    pack(suite, archive)
    first = archive.read_bytes()
    pack(suite, archive)

    assert archive.read_bytes() == first
    packed = onward_conformance.cases(archive)
    assert [c.name for c in packed] == [c.name for c in onward_conformance.cases(suite)]
    assert packed[0].model() == onward_conformance.cases(suite)[0].model()


def test_failures_and_skips_that_are_not_known_gaps_and_gaps_that_are_closed_are_all_reported() -> None:
    spec = importlib.util.spec_from_file_location("gaps", Path(__file__).parent / "gaps.py")
    gaps = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gaps)
    results = [
        {"name": "forward/A/x", "status": "failed", "message": "known"},
        {"name": "forward/A/y", "status": "failed", "message": "new"},
        {"name": "forward/B/x", "status": "passed", "message": ""},
        {"name": "forward/D/x", "status": "skipped", "message": "no kernel for int8"},
        {"name": "forward/D/y", "status": "skipped", "message": "no such operator"},
    ]
    report = {"backend": "onward.backends.torch", "results": results}
    lines = [{"backend": "torch", "cases": c, "reason": "r"} for c in ("forward/A/x", "forward/B/.*", "forward/C/.*")]

    skips = [{"backend": "torch", "says": s, "reason": "r"} for s in ("kernel for", "no text")]

    problems = gaps.judge(report, lines, skips)

    assert problems == [
        "torch: forward/A/y failed: new",
        "torch: known_gaps.toml: `forward/B/.*` does not fail any more: forward/B/x",
        "torch: known_gaps.toml: no failure matches `forward/C/.*`",
        "torch: forward/D/y is skipped: no such operator",
        "torch: known_gaps.toml: no skip says `no text`",
    ]
