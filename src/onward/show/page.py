"""A self-contained HTML page that draws a model, without network access or a framework."""

from __future__ import annotations

import importlib.resources
import json
from typing import Any

import onnx
import onnx_ir as ir

from onward.graph.shapes import infer_shapes
from onward.model.training_model import TrainingModel
from onward.show.drawing import Drawings, integers_of, weights_of
from onward.show.summary import summarize

_MOST_FUNCTIONS = 40  # drawn at most


def render_page(model: TrainingModel, title: str = "") -> str:
    """Return a self-contained HTML page with drawings of the model's graphs, its summary and its weights.

    Shapes are inferred first and stored in `model`.
    """
    fill_in_shapes(model)
    facts = summarize(model)
    data: dict[str, Any] = {"title": title or facts["name"] or "model", "facts": facts, "drawings": draw(model)}
    data["weights"] = weights_of(model.graph)
    data["integers"] = integers_of(model.graph)
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    parts = importlib.resources.files("onward.show")
    page = (parts / "page.html").read_text(encoding="utf-8")
    for mark, content in (
        ("/*STYLE*/", (parts / "page.css").read_text(encoding="utf-8")),
        ("/*SCRIPT*/", (parts / "page.js").read_text(encoding="utf-8")),
        ("/*DATA*/", text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")),
    ):
        page = page.replace(mark, content)
    return page


def draw(model: TrainingModel) -> list[dict[str, Any]]:
    """Return the drawings of all graphs: inference, then each entry's training and reset, then functions."""
    roles = dict.fromkeys(model.frozen, "frozen")
    roles.update(dict.fromkeys(model.state, "state"))
    roles.update(dict.fromkeys(model.parameters, "parameter"))
    functions: dict[tuple[str, str, str], int] = {}
    drawings = Drawings(roles, functions)
    # Functions are last in the list, but earlier drawings refer to them, so their numbers are assigned first.
    graphs: list[tuple[ir.Graph, str, str, dict[str, str]]] = [(model.graph, "Forward", "forward", {})]
    several = len(model.entries) > 1
    for entry in model.entries:
        suffix = f" ({entry.name})" if several else ""
        if entry.algorithm is not None:
            graphs.append((entry.algorithm, f"Training{suffix}", "training", entry.update_binding))
        if entry.initialization is not None:
            graphs.append((entry.initialization, f"Reset{suffix}", "reset", entry.initialization_binding))
    for key in list(model.ir.functions)[:_MOST_FUNCTIONS]:
        functions[key] = -1 - len(functions)
    for graph, name, kind, bindings in graphs:
        drawings.add_folded(graph, name, kind, bindings)
    numbers = {}
    for key, placeholder in functions.items():
        function = model.ir.functions[key]
        label = f"{function.domain}.{function.name}" + (f":{function.overload}" if function.overload else "")
        numbers[placeholder] = drawings.add(function, label, "function")
    for drawing in drawings.drawings:
        for box in drawing["boxes"]:
            box["d"]["inner"] = [numbers.get(i, i) for i in box["d"].get("inner", [])]
    return drawings.drawings


def fill_in_shapes(model: TrainingModel) -> None:
    """Infer the shapes of all graphs; graphs with contradictory shapes stay unchanged."""
    algorithms: list[ir.Graph | None] = [e.algorithm for e in model.entries if e.algorithm is not None]
    for algorithm in algorithms or [None]:
        try:
            infer_shapes(model.ir, algorithm)
        except (RuntimeError, ValueError, onnx.shape_inference.InferenceError):
            continue
