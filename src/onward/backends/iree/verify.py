"""Compare a compiled graph with ONNX Runtime's CPU kernels, on the batch that it is first used with.

All outputs are compared, each within a tolerance of its own: that which the self-test of a program has
(docs/program_format.md), for the checksums and also for the largest difference of one element.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
import onnx_ir as ir

from onward.compiler.make_self_test import LEAST, TINY, precision_of, tolerance_of, varied_runs
from onward.compiler.program import PlainGraph
from onward.compiler.self_test import checksum
from onward.errors import BackendError, Diagnostic, named_node

B505 = "B505"

_SHOWN = 6
Arrays = Mapping[str, np.ndarray]
Run = Callable[[onnx.ModelProto, Arrays], Arrays]


@dataclasses.dataclass(frozen=True)
class Deviation:
    """An output that is not what ONNX Runtime computes."""

    output: str
    found: str
    needed: str


def check_graph(
    graph: PlainGraph, model: onnx.ModelProto, feeds: Arrays, fixed: set[str], found: Arrays, again: Run
) -> None:
    """Raise if what a compiled graph gave for `feeds` is not what ONNX Runtime gives.

    `model` is the graph with known sizes; `fixed` are the inputs whose last digits matter, such as settings and
    targets. `again` compiles and runs a model; it finds the first operator that is wrong.

    Raises:
        BackendError: names each output that deviates and the operator that made it, and the first wrong operator; or
            ONNX Runtime itself cannot run the graph.
    """
    wrong = _deviations(model, feeds, fixed, found, graph.replaces, graph.name)
    if not wrong:
        return
    first = _first_wrong(model, feeds, fixed, again, graph.name)
    makers = {o: n for n in model.graph.node for o in n.output}
    problems = []
    for each in wrong[:_SHOWN]:
        state, maker = graph.replaces.get(each.output), makers.get(each.output)
        what = f"the new state `{state}`" if state else f"the output `{each.output}`"
        made = f"made by {maker.op_type}, {named_node(maker, model.graph.node)}" if maker is not None else "an input"
        problems.append(
            Diagnostic(
                B505,
                f"{what}, {made}, is not what ONNX Runtime computes",
                place=f"the {graph.name} graph, compiled by IREE",
                found=each.found,
                needed=each.needed,
                hint=first,
            )
        )
    if len(wrong) > _SHOWN:
        problems.append(Diagnostic(B505, f"{len(wrong) - _SHOWN} more of {len(found)} outputs deviate"))
    raise BackendError(problems)


def _first_wrong(model: onnx.ModelProto, feeds: Arrays, fixed: set[str], again: Run, name: str) -> str:
    """Return a sentence about the first operator whose result is wrong, when every result is an output."""
    every = onnx.ModelProto()
    every.CopyFrom(model)
    known = {v.name for v in every.graph.output}
    types = {v.name: v for v in every.graph.value_info}
    makers = {o: n for n in every.graph.node for o in n.output if n.op_type != "Constant"}
    every.graph.output.extend(types[o] for o in makers if o in types and o not in known)
    order = {o: place for place, o in enumerate(makers)}
    try:
        wrong = _deviations(every, feeds, fixed, again(every, feeds), {}, name)
    except BackendError as error:
        return f"which operator is wrong could not be found ({error.diagnostics[0].message}); use another backend"
    if not wrong:
        return (
            "compiled again, with all intermediate results as outputs, the graph is right: the binary is damaged, or "
            "the compiler merges operators wrongly; use another backend"
        )
    first = min(wrong, key=lambda d: order.get(d.output, len(order)))
    node = makers[first.output]
    where = f"{node.op_type}, {named_node(node, every.graph.node)}"
    return f"the first wrong result is `{first.output}` of {where}; use another backend"


def _deviations(
    model: onnx.ModelProto, feeds: Arrays, fixed: set[str], found: Arrays, replaces: Mapping[str, str], name: str
) -> list[Deviation]:
    names = [v.name for v in model.graph.output]
    try:
        varied, runs = varied_runs(model, feeds, fixed, precision_of(_kinds(model)))
    except Exception as error:  # exceptions of ONNX Runtime have no common base
        raise BackendError(
            Diagnostic(
                B505,
                "the compiled graph cannot be verified, because ONNX Runtime does not run it",
                place=f"the {name} graph",
                found=str(error).strip()[:300],
                hint="verify=False uses it all the same",
            )
        ) from error
    wrong = []
    for output in names:
        old = [
            f[replaces[output]] if replaces.get(output) in f else np.zeros_like(r[output])
            for f, r in zip(varied, runs, strict=True)
        ]
        each = _compared(output, found[output], [r[output] for r in runs], old)
        if each is not None:
            wrong.append(each)
    return wrong


def _kinds(model: onnx.ModelProto) -> Iterator[ir.DataType]:
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        yield ir.DataType(value.type.tensor_type.elem_type)


def _compared(output: str, found: np.ndarray, runs: list[np.ndarray], old: list[np.ndarray]) -> Deviation | None:
    """Return how an output differs from the first of the runs, by more than the others differ from it."""
    needed = runs[0]
    if found.shape != needed.shape or found.dtype != needed.dtype:
        return Deviation(output, f"{found.dtype}{list(found.shape)}", f"{needed.dtype}{list(needed.shape)}")
    if not needed.size:
        return None
    usable = np.isfinite(needed.astype(np.float64)) if needed.dtype.kind == "f" else np.ones(needed.shape, bool)
    if not usable.all():  # where the model itself gives no number: the same infinities in the same places
        same = (found == needed) | (np.isnan(found) & np.isnan(needed))
        if not same[~usable].all():
            return Deviation(output, "a number or another infinity", "NaN or infinity in some elements")
        if not usable.any():
            return None
        found, runs, old = found[usable], [r[usable] for r in runs], [o[usable] for o in old]
        needed = runs[0]
    changes = [r.astype(np.float64) - o.astype(np.float64) for r, o in zip(runs, old, strict=True)]
    whole = needed.dtype.kind in "iub"
    with np.errstate(all="ignore"):
        spread = max(float(np.abs(c - changes[0]).max()) for c in changes[1:])
        off = float(np.abs(found.astype(np.float64) - needed.astype(np.float64)).max())
    size = float(np.abs(changes[0]).max())
    rounding = 0.0 if whole else float(np.finfo(needed.dtype).eps) * float(np.abs(needed.astype(np.float64)).max())
    allowed = tolerance_of(spread, 0.0 if whole else max(TINY, LEAST * size, 4 * rounding))
    if not off <= allowed:
        return Deviation(output, f"an element that is off by {off:.3g}", f"within {allowed:.2g}, of at most {size:.3g}")
    if whole:
        return None
    sums = [checksum(o, r) for o, r in zip(old, runs, strict=True)]
    got = checksum(old[0], found)
    loose = max(TINY, LEAST * sums[0][1], rounding * needed.size**0.5 * 2)
    limit = tolerance_of(float(np.abs(np.subtract(sums[1:], sums[0])).max()), loose)
    if not all(abs(g - s) <= limit for g, s in zip(got, sums[0], strict=True)):
        shown = ["checksum " + ", ".join(f"{v:.9g}" for v in values) for values in (got, sums[0])]
        return Deviation(output, shown[0], f"{shown[1]}, within {limit:.2g}")
    return None
