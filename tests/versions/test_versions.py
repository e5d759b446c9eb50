"""The versions of other packages: stated once, checked, and told clearly when they do not fit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from packaging.requirements import Requirement

import onward
from onward import versions
from onward.backends import open_session
from onward.errors import BackendError, MissingExtra

tomllib = pytest.importorskip("tomllib")  # Python 3.11
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SRC = Path(onward.__file__).parent


def bounds_of(listed: list[str]) -> dict[str, str]:
    """The lower bounds of what this Python needs."""
    needed = [r for r in map(Requirement, listed) if r.marker is None or r.marker.evaluate()]
    return {r.name: next(s.version for s in r.specifier if s.operator == ">=") for r in needed}


def requirements() -> dict[str, str]:
    """The lower bounds in pyproject.toml, extras included."""
    extras = PROJECT["optional-dependencies"]
    return bounds_of([*PROJECT["dependencies"], *(r for name, rs in extras.items() if name != "dev" for r in rs)])


def pinned(name: str) -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    return dict(line.split("==") for line in lines if line)


def series(version: str) -> tuple[int, int]:
    return versions.parse(version)[:2]


def test_the_code_asks_for_what_pyproject_asks_for() -> None:
    bounds = requirements()

    assert {n: r.oldest for n, r in versions.SUPPORTED.items()} == {n: bounds[n] for n in versions.SUPPORTED}


def test_the_oldest_constraints_are_the_lower_bounds() -> None:
    oldest, bounds = pinned("constraints-oldest.txt"), requirements()

    assert {n: versions.parse(oldest[n]) for n in bounds} == {n: versions.parse(b) for n, b in bounds.items()}


def test_the_newest_tested_are_the_ones_the_tests_run_with() -> None:
    ours = {name.replace("_", "-"): version for name, version in pinned("constraints.txt").items()}

    assert {n: series(r.newest_tested) for n, r in versions.SUPPORTED.items()} == {
        n: series(ours[n]) for n in versions.SUPPORTED
    }


def test_the_page_shows_the_table_of_the_code() -> None:
    page = (ROOT / "docs" / "versions.md").read_text()

    for name, supported in versions.SUPPORTED.items():
        assert f"| {name} | {supported.oldest} | {supported.newest_tested} | {supported.untested} |" in page
    for version, reads in versions.RUNTIMES.items():
        assert f"| {version} | {reads.opset} | {reads.ir_version} |" in page


@pytest.mark.parametrize("name", versions.SUPPORTED)
def test_an_older_version_is_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(BackendError) as caught:
        versions.check({name: "0.0.1"})

    text = str(caught.value)
    assert f"error[B310]: {name} 0.0.1 is too old" in text
    assert f"needed: {versions.SUPPORTED[name].oldest} or newer" in text
    assert "hint: pip install --upgrade" in text


def test_a_patch_version_below_the_oldest_is_refused() -> None:
    versions.check({"onnxscript": "0.7.1"})

    with pytest.raises(BackendError, match=r"onnxscript 0\.7\.0 is too old"):
        versions.check({"onnxscript": "0.7.0"})


def test_a_newer_patch_version_is_not_beyond_what_was_tested() -> None:
    assert versions.beyond_tested({"torch": "2.13.7"}) == ""


def test_all_old_packages_are_named_at_once() -> None:
    with pytest.raises(BackendError) as caught:
        versions.check({"onnx": "1.10.0", "torch": "1.13.1", "numpy": "2.0.0"})

    assert [d.message for d in caught.value.diagnostics] == ["onnx 1.10.0 is too old", "torch 1.13.1 is too old"]


@pytest.mark.parametrize(
    ("module", "use"),
    [
        ("onnx", "onward.load('x.onnx')"),
        ("onnx_ir", "onward.load('x.onnx')"),
        ("numpy", "onward.load('x.onnx')"),
        ("google.protobuf", "onward.load('x.onnx')"),
        ("onnxruntime", "onward.Trainer(onward.samples.build('linear'))"),
    ],
)
def test_each_package_is_checked_where_it_is_first_used(module: str, use: str) -> None:
    code = f"import {module}; {module}.__version__ = '0.1.2'; import onward; {use}"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)

    assert f"error[B310]: {module.removeprefix('google.').replace('_', '-')} 0.1.2 is too old" in result.stderr


def test_the_command_line_says_it_without_a_traceback(tmp_path: Path) -> None:
    code = (
        "import onnx; onnx.__version__ = '0.1.2'; import sys; sys.argv = ['onward', 'sample', 'linear', '-o', 'x'];"
        "from onward.cli import main; main()"
    )

    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    assert "onnx 0.1.2 is too old" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.returncode == 1


def test_to_torch_and_its_backend_check_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.__version__", "1.13.1")
    model = onward.samples.build("linear")

    with pytest.raises(BackendError, match=r"torch 1\.13\.1 is too old"):
        onward.to_torch(model)
    with pytest.raises(BackendError, match=r"torch 1\.13\.1 is too old"):
        onward.Trainer(model, backend="torch")


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(MissingExtra, match=r"onward\[torch\]"):
        onward.to_torch(onward.samples.build("linear"))


def test_without_jax_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)

    with pytest.raises(MissingExtra, match=r"onward.to_jax needs `jax`(.|\n)*pip install 'onward\[jax\]'"):
        onward.to_jax(onward.samples.build("linear"))
    with pytest.raises(MissingExtra, match=r"the jax backend needs `jax`"):
        onward.Trainer(onward.samples.build("linear"), backend="jax")


def test_a_capture_that_fails_names_a_torch_newer_than_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    if versions.parse(torch.__version__) < (2, 9):
        pytest.skip("this PyTorch captures the branch that the example takes")

    class Undecided(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    monkeypatch.setattr("torch.__version__", "9.1.0")
    net = Undecided(2, 2)

    with pytest.raises(onward.OnwardError, match=r"torch 9\.1\.0 is newer than the newest tested"):
        onward.from_torch(net, loss=torch.nn.MSELoss(), optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
                          example_inputs=torch.ones(2, 2), example_targets=torch.ones(2, 2))  # fmt: skip


def test_a_graph_that_the_runtime_cannot_read_names_one_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    from onward.backends import open_session

    program = onward.compile(onward.samples.build("linear"))
    step = program.entries["train"].step.model
    step.opset_imports[""] = 26
    monkeypatch.setattr(onnxruntime, "__version__", "1.22.0")
    step.graph[0].op_type = "NoSuchOperator"
    session = open_session(program, "onnxruntime")

    with pytest.raises(BackendError, match="ONNX Runtime 1.25 or newer for operator set 26"):
        session.step({})


def test_only_one_module_names_versions_of_packages() -> None:
    """A comparison with a version, or a probe for an interface, elsewhere is code for a version in a second place."""
    probes = re.compile(
        r"__version__ *(<|>|==)|parse\([^)]*__version__|__version__\.split|find_spec|OLDEST_|sys\.version_info"
    )

    found = [str(p.relative_to(SRC)) for p in SRC.rglob("*.py") if probes.search(p.read_text())]

    # They look for a package, not for its version: numba; Keras, whose first import fixes its backend; the suite.
    assert sorted(found) == [
        "backends/onnxruntime/fused_update.py",
        "cli/convert.py",
        "frontends/keras/convert.py",
        "registration.py",
        "scoreboard/tests.py",
        "scoreboard/worker.py",
    ]


def test_rules_for_operators_newer_than_the_installed_onnx_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from onward.autodiff import registry

    monkeypatch.setattr(registry, "_RULES", {})
    monkeypatch.setattr(registry, "newest_opset", lambda: 20)

    registry.declare("BitCast", opset=26, input=registry.NON_DIFFERENTIABLE)

    assert registry.find_rule("BitCast") is None


def test_the_runtime_in_use_is_in_the_table_or_newer() -> None:
    known = [versions.parse(v) for v in versions.RUNTIMES]

    assert known == sorted(known)
    assert versions.parse(onnxruntime.__version__) >= known[0]
    assert onnx.defs.onnx_opset_version() >= max(r.opset for r in versions.RUNTIMES.values())


def test_a_fusion_without_a_kernel_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime 1.24 and older fuse a Transpose into a float64 MatMul and have no kernel for the result."""
    from onward.backends.onnxruntime import session

    calls = []

    def load(*arguments: object, **keywords: object) -> str:
        calls.append(keywords)
        if "MatmulTransposeFusion" not in keywords["disabled_optimizers"]:
            message = "Failed to find kernel for com.microsoft.FusedMatMul(1)"
            raise onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented(message)
        return "loaded"

    monkeypatch.setattr(onnxruntime, "InferenceSession", load)

    assert session._load(ir.Model(ir.Graph([], [], nodes=[], name="g"), ir_version=10), None, []) == "loaded"
    assert calls[1]["disabled_optimizers"] == ["MatmulTransposeFusion"]


def test_a_factor_of_a_float64_product_keeps_its_64_bits() -> None:
    """ONNX Runtime fuses a constant factor into the MatMul that follows, as an attribute of 32 bits."""
    proto = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["": 18]>
        g (double[2, 3] x, double[3, 4] w) => (double[2, 4] y) {
            five = Constant<value = double {5.0}>()
            mean = Div(x, five)
            y = MatMul(mean, w)
        }
        """
    )
    x, w = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4) / 7

    found = onward.compile(proto)
    results = open_session(found, "onnxruntime").infer({"x": x, "w": w})

    np.testing.assert_allclose(results["y"], (x / 5) @ w, rtol=1e-14)
