"""Find the first tensor of a step that holds NaN or Inf, by running it once more with all values as outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import onnx

from onward.program import Program


@dataclasses.dataclass(frozen=True)
class FirstBad:
    """The first bad tensor: its name, where it was made, what is wrong, and what may help."""

    name: str
    place: str
    what: str
    hint: str = ""


def find_first_bad(
    program: Program, feeds: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray], entry: str | None
) -> FirstBad | None:
    """Return the first NaN (or else the first Inf) in the order batch, state, nodes; None when none shows up.

    An Inf alone may be meant (an attention mask), so a NaN goes before it; the Inf it came from is named with it.
    """
    for name, array in feeds.items():
        if not is_finite(array):
            return FirstBad(
                name,
                "the batch given to the step",
                _what(array),
                "the data itself is bad: clean it, or use on_nan='skip'",
            )
    names = list(program.steps) if entry is None else [entry]
    first_inf: FirstBad | None = None
    values = dict(state)
    for step_name in names:
        step = program.steps[step_name]
        traced = _trace(step.model, {**program.settings, **values, **feeds})
        if traced is None:
            return None
        for name, place, array in traced:
            if is_finite(array):
                continue
            bad = FirstBad(name, place, _what(array))
            if np.isnan(array).any():
                if first_inf is None or first_inf.name == name:
                    return bad
                return dataclasses.replace(
                    bad, place=f"{place}; the first Inf was in `{first_inf.name}`, {first_inf.place}"
                )
            first_inf = first_inf or bad
        by_name = {name: array for name, _, array in traced}
        values.update({s: by_name[o] for o, s in step.replaces.items() if o in by_name})
    return first_inf


def _trace(model: onnx.ModelProto, values: Mapping[str, np.ndarray]) -> list[tuple[str, str, np.ndarray]] | None:
    """Return (name, place, array) of every value in the order of the nodes; None when the graph cannot be run here.

    This only explains an error that has already happened, so a graph that onnxruntime refuses gives no explanation
    and no second error.
    """
    try:
        import onnxruntime as ort
    except ImportError:
        return None
    places = {
        out: f"node `{node.name or '(no name)'}` ({node.op_type})"
        for node in model.graph.node
        for out in node.output
        if out
    }
    traced = onnx.ModelProto()
    traced.CopyFrom(model)
    existing = {o.name for o in traced.graph.output}
    traced.graph.output.extend(onnx.ValueInfoProto(name=n) for n in places if n not in existing)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(traced.SerializeToString(), options, providers=["CPUExecutionProvider"])
        wanted = [i.name for i in session.get_inputs()]
        if any(name not in values for name in wanted):
            return None
        results = session.run(list(places), {name: np.asarray(values[name]) for name in wanted})
    except Exception:  # noqa: BLE001 -- onnxruntime's errors share no base class; the NaN itself is reported anyway
        return None
    return [
        (name, place, array)
        for (name, place), array in zip(places.items(), results, strict=True)
        if isinstance(array, np.ndarray)
    ]


def is_finite(array: np.ndarray) -> bool:
    """Return True when no element is NaN or Inf; integers, booleans and strings always are."""
    kind = array.dtype.kind
    if kind == "f" and array.size == 1:  # the loss of every step: the quick way
        return math.isfinite(array.item())
    if kind in "iubSUO" or (kind == "V" and array.dtype.name.startswith(("int", "uint"))):
        return True
    return bool(np.isfinite(array).all())


def _what(array: np.ndarray) -> str:
    return "NaN" if np.isnan(array).any() else "Inf"
