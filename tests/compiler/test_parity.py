"""One compiler: for every recipe, every backend computes the same values, and nobody else lowers anything."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from compiler.zoo import ZOO, dropping_branch, feeds
from onward.backends.base import open_session
from onward.backends.reference import Evaluator
from onward.compiler.compile import Compiler
from onward.compiler.program import PlainGraph
from onward.compiler.recipes import LOWERED, RECIPES, Recipe
from onward.model.roles import RANDOM_KEY, RANDOM_STEP
from onward.upgrade import normalise

ROOT = Path(onward.__file__).parent
BACKENDS = ("onnxruntime", "reference", "torch")
GRAPHS = [r for r in RECIPES if r is not LOWERED]


def on_reference(graph: PlainGraph, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return Evaluator(graph.proto()).run(values)


def on_onnxruntime(graph: PlainGraph, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(graph.proto().SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip(graph.output_names, session.run(list(graph.output_names), values), strict=True))


def on_torch(graph: PlainGraph, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import torch

    from onward.backends.torch.interpreter import Interpreter
    from onward.backends.torch.tensors import to_numpy, to_tensor

    with torch.no_grad():
        found = Interpreter(graph.copy_model().graph, graph.opset).run({n: to_tensor(v) for n, v in values.items()})
    return {n: to_numpy(v) for n, v in found.items()}


RUNNERS = {"reference": on_reference, "onnxruntime": on_onnxruntime, "torch": on_torch}


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("recipe", GRAPHS, ids=lambda r: r.name)
def test_every_backend_computes_the_same_values(recipe: Recipe, name: str) -> None:
    model = normalise(ZOO[name]())
    compiler = Compiler(model)
    program = onward.compile(model)
    batch = feeds(program.input_names, 0)
    random = {RANDOM_KEY: np.array(7), RANDOM_STEP: np.array(3)}
    rng = np.random.default_rng(5)

    for entry in model.entries:
        graph = compiler.build(recipe, entry)
        given: dict[str, Any] = {**program.state, **program.settings, **batch, **random}
        for value in graph.model.graph.inputs:  # gradients, for the update
            if value.name not in given:
                given[value.name or ""] = rng.standard_normal(tuple(value.shape or ())).astype(np.float32)
        values = {n: np.asarray(given[n]) for n in graph.input_names}

        results = {backend: run(graph, values) for backend, run in RUNNERS.items()}

        assert set(graph.output_names) == {*graph.outputs, *graph.replaces, *results["reference"]}
        for backend in ("onnxruntime", "torch"):
            for output, expected in results["reference"].items():
                np.testing.assert_allclose(
                    results[backend][output], expected, rtol=2e-5, atol=2e-6, err_msg=f"{backend}: {output}"
                )


@pytest.mark.parametrize("name", ZOO)
def test_every_way_to_the_outputs_gives_the_same_values(name: str) -> None:
    """The step, the gradients, the loss and the training forward agree; so do evaluation and inference."""
    model = normalise(ZOO[name]())
    program, compiler = onward.compile(model), Compiler(model)
    recipes = {r.name: r for r in RECIPES}
    values = {**program.state, **program.settings, **feeds(program.input_names, 0)}
    values |= {RANDOM_KEY: np.array(7), RANDOM_STEP: np.array(3)}

    def run(recipe: str) -> tuple[PlainGraph, dict[str, np.ndarray]]:
        graph = compiler.build(recipes[recipe], model.entries[0])
        return graph, on_reference(graph, {n: np.asarray(values[n]) for n in graph.input_names})

    (step, stepped), (_, differentiated), (loss, lost) = run("step"), run("gradients"), run("loss")
    (forward, went), (_, evaluated), (_, inferred) = run("training forward"), run("evaluate"), run("infer")

    np.testing.assert_array_equal(lost[loss.outputs[0]], stepped[step.outputs[0]])
    np.testing.assert_array_equal(differentiated[step.outputs[0]], stepped[step.outputs[0]])
    for output, state in forward.replaces.items():
        np.testing.assert_array_equal(went[output], stepped[f"next/{state}"], err_msg=state)
    for output, value in inferred.items():
        np.testing.assert_array_equal(evaluated[output], value, err_msg=output)


def test_a_module_in_training_mode_drops_inside_a_branch() -> None:
    """Once `to_torch(model).train()` dropped nothing there: it looked for random nodes at the top level only."""
    torch = pytest.importorskip("torch")
    model = onward.make_trainable(dropping_branch(), loss="mse")
    module, _ = onward.to_torch(model)
    session = open_session(onward.compile(model), "onnxruntime")
    batch = feeds(("x", "labels"), 0, rows=64)
    x, target = (torch.as_tensor(v) for v in batch.values())

    module.train()
    found = float(module.loss(x, target).detach())
    dropped = int((module(x) == 0).sum())

    assert found == pytest.approx(float(session.step(batch)["loss"]), rel=1e-5)
    assert 60 < dropped < 132  # of 192, each with probability 1/2
    assert int((module.eval()(x) == 0).sum()) == 0


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
    return found


def test_no_module_outside_the_compiler_uses_a_lowering_pass() -> None:
    tables = ("onward.passes.core.operators", "onward.passes.core.registry", "onward.passes.portable.deny_list")
    settings = "onward.passes.recompute.settings"  # what a user asks for
    free = ("onward.passes.base", "onward.passes.randomness.is_random", settings, *tables)
    guilty = {}
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] not in ("passes", "compiler", "autodiff"):
            lowering = {n for n in imported(path) if n.startswith(("onward.passes.", "onward.autodiff.lowering"))}
            wrong = {n for n in lowering if not n.startswith(free) and not any(f.startswith(f"{n}.") for f in free)}
            if wrong:
                guilty[str(path.relative_to(ROOT))] = wrong

    assert not guilty
