"""Each folder imports only from those to its left in ARROW; a framework only inside its own adapter.

`python docs/generate.py` writes ARROW into CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import onward

ROOT = Path(onward.__file__).parent
ARROW = [
    {"errors"},
    {"arguments", "notebook", "registration"},
    {"runtime", "versions"},
    {"storage"},
    {"augment"},
    {"reading"},
    {"graph"},
    {"model"},
    {"check"},
    {"autodiff"},
    {"passes"},
    {"upgrade"},
    {"losses", "optimizers", "schedules"},
    {"surgery"},
    {"author"},
    {"samples"},
    {"compiler"},
    {"mlir"},
    {"backends"},
    {"frontends"},
    {"train"},
    {"diagnosis", "show", "testing", "web"},
    {"scoreboard"},
    {"cli"},
    {"__init__", "__main__"},
]
RANK = {name: rank for rank, names in enumerate(ARROW) for name in names}
FRAMEWORKS = {
    "torch": ("backends/torch", "frontends/torch"),
    "onnxscript": ("frontends/torch",),
    "tensorflow": ("backends/tensorflow", "frontends/tensorflow"),
    "tf2onnx": ("frontends/tensorflow",),
    "jax": ("backends/jax", "frontends/jax", "frontends/jaxpr", "frontends/keras"),
    "keras": ("backends/keras", "frontends/keras", "frontends/tensorflow", "registration.py"),
    "optax": ("frontends/jax",),
    "iree": ("backends/iree",),
    "onnxruntime": ("backends/onnxruntime", "runtime.py"),
    "numba": ("backends/onnxruntime",),
    "pandas": ("train/data",),
    "pyarrow": ("train/data",),
    "PIL": ("augment", "reading"),
    "sklearn": (),
    "tensorboard": ("train",),
}
FILES = sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module == "onward":
                yield from (f"onward.{a.name}" for a in node.names)
            else:
                yield node.module


def room(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_from_its_left(path: Path) -> None:
    own = room(path)
    if own in ("__init__", "__main__"):
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "onward" and len(parts) > 1 and parts[1] in RANK:
            allowed = RANK[parts[1]] <= RANK[own]
            assert allowed, f"{path.relative_to(ROOT)} imports {name}, which is to its right"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_framework_is_imported_only_in_its_adapter(path: Path) -> None:
    where = str(path.relative_to(ROOT))
    for name in imports(path):
        homes = FRAMEWORKS.get(name.split(".")[0])
        if homes is not None:
            assert where.startswith(homes or ("nowhere",)), f"{where} imports {name}"


def test_every_room_is_in_the_arrow() -> None:
    rooms = {room(p) for p in FILES}

    assert rooms <= set(RANK)
