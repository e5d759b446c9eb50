"""Write docs/core_operators.md from the decompositions and from what they do to ONNX's own node tests.

`docs/generate.py` calls it; its numbers are counts, not times.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
_FREE = frozenset({"Constant", "Identity", "Shape", "Reshape"})  # they move no elements


@dataclasses.dataclass
class Row:
    """What is known of one operator that is not core."""

    name: str
    level: int = 0
    example: str = ""
    nodes: int = 0
    ratio: float = 0.0
    becomes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    direct: tuple[str, ...] = ()


def minimal_backend() -> Any:
    """Return examples/minimal_backend.py as a module."""
    if "minimal_backend" not in sys.modules:
        spec = importlib.util.spec_from_file_location("minimal_backend", ROOT / "examples/minimal_backend.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["minimal_backend"] = module
        spec.loader.exec_module(module)
    return sys.modules["minimal_backend"]


def examples() -> dict[str, Any]:
    """Return the first of ONNX's node tests whose only node is the operator, in float32 or in any type."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sorted(collect_testcases(None), key=lambda c: c.name)
    chosen: dict[str, Any] = {}
    for case in found:
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].domain or "_expanded" in case.name:
            continue
        kind = nodes[0].op_type
        if kind == "Pad" and all(a.s != b"edge" for a in nodes[0].attribute):
            continue
        if kind not in chosen:
            chosen[kind] = case
    for case in found:  # Upsample is in none alone: a deprecated operator has no test
        for node in case.model.graph.node:
            chosen.setdefault(node.op_type, case)
    return chosen


def measure() -> dict[str, Row]:
    """Lower one example of each operator that is not core, and count its nodes and the bytes that they move."""
    from onward.compiler.core import lower_to_core
    from onward.errors import OnwardError
    from onward.passes.core.lowering import Record
    from onward.passes.core.operators import CORE
    from onward.passes.core.registry import table

    backend, record, cases = minimal_backend(), Record(), examples()
    rows: dict[str, Row] = {}
    for name in sorted(table()):
        rows[name] = row = Row(name)
        case = cases.get(name)
        if case is None:
            continue
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        try:
            lowered = lower_to_core(model, record=record)
        except OnwardError:  # a model that is too old to be converted
            continue
        row.example = case.name
        counts = collections.Counter(n.op_type for n in _all(lowered.graph))
        row.nodes = sum(v for k, v in counts.items() if k != "Constant")
        row.becomes = counts
        if name != "SequenceMap" and not _is_random(counts):
            row.ratio = _ratio(backend, lowered, case)
    for name, row in rows.items():
        row.direct = tuple(sorted(record.direct.get(name, {})))
        row.level = _level(name, record.direct, set(CORE), ())
    return rows


def _is_random(counts: collections.Counter[str]) -> bool:
    return "RandomUniformLike" in counts


def _all(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    found = []
    for node in graph.node:
        found.append(node)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += _all(attribute.g)
    return found


def _level(name: str, direct: dict[str, Any], core: set[str], seen: tuple[str, ...]) -> int:
    """Return how many steps lead from an operator to core operators alone."""
    if (name in core and name != "Pad") or name in seen:
        return 0
    inner = [n for n in direct.get(name, {}) if n != name]
    return 1 + max((_level(n, direct, core, (*seen, name)) for n in inner), default=0)


def _ratio(backend: Any, lowered: onnx.ModelProto, case: Any) -> float:
    """Return the bytes that the nodes read and write, divided by those of the operator's inputs and outputs."""
    moved = 0
    plain = backend._Step.run

    def counting(step: Any, values: Any) -> None:
        nonlocal moved
        plain(step, values)
        if step.kind not in _FREE and step.kind not in ("If", "Loop"):
            moved += sum(_bytes(values[n]) for n in (*step.inputs, *step.outputs) if n)

    inputs, expected = case.data_sets[0]
    backend._Step.run = counting
    try:
        backend.Prepared(lowered).run([_array(v) for v in inputs])
    finally:
        backend._Step.run = plain
    own = sum(_bytes(_array(v)) for v in (*inputs, *expected))
    return moved / max(own, 1)


def _array(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_array(v) for v in value]
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _bytes(value: Any) -> int:
    if isinstance(value, list):
        return sum(_bytes(v) for v in value)
    return 0 if value is None else np.asarray(value).nbytes


LEVELS = {1: "function of core", 2: "function of functions"}


def page() -> str:
    """Return docs/core_operators.md."""
    from onward.graph.schema import all_schemas, newest_opset
    from onward.passes.core.operators import CANNOT, CATEGORIES, CORE
    from onward.passes.core.registry import table

    rows, made = measure(), table()
    total = len(all_schemas(""))
    kept = [o for o in CORE.values() if o.instead]
    functions = [r for r in rows.values() if r.name not in CORE]
    first = sum(r.level == 1 for r in functions)
    deepest = max(r.level for r in functions)
    kernels = [d for d in made.values() if d.kernel]
    bodies = [d for d in made.values() if d.function is None]
    used = collections.Counter(n for r in rows.values() for n in r.becomes)
    lines = [
        "# The core operators",
        "",
        *_wrapped(
            "Generated by `python docs/generate.py` from `src/onward/passes/core`. Which operators must a backend have?"
            f" Of the {total} operators of ai.onnx at opset {newest_opset()}, **{len(CORE)} are core**,"
            f" {len(functions)} are written with them, and {len(CANNOT)} cannot be. `onward compile --core` (in Python"
            " `onward.compile(model, core=True)`) emits only core operators, in every graph of a program: forward,"
            ' gradients, optimizers, losses, initialisation. Its `manifest.json` says `"core": true`.'
            " [examples/minimal_backend.py](../examples/minimal_backend.py) has these operators and no others, and"
            " trains every sample; [Writing a backend](writing_a_backend.md) begins there. `make conformance-core` runs"
            " the whole [conformance suite](../conformance/README.md) through them."
        ),
        "",
        "## The principle",
        *_wrapped(
            "An operator is core if the others cannot express it with the same values and in the same complexity class."
            " The same values: NaN, infinities, -0, overflow and integer types included, and floating-point results"
            " within a few units in the last place. The same complexity class: work, and depth, the number of steps"
            " that must follow one another. So `Mul` is core, because `Exp(Log(A) + Log(B))` loses signs and zeros;"
            " `CumSum` is, because a `Loop` has n steps and a `MatMul` with a triangle n * n products; `Gemm` is not."
            f" {len(kept)} of the {len(CORE)} are kept although others could express them, because nearly every graph"
            " has them and one node would become two or more; the table says how each could be written. Without them"
            f" {len(CORE) - len(kept)} are left, the least that is honest."
        ),
        "",
        *_wrapped(
            "Where the sizes are known only at run time, the decompositions compute them with `Shape` and integer"
            " arithmetic. Operators that need a rank or the number of spatial axes, and do not have it, are refused"
            " ([M304](codes.md)), all of them at once with their places."
        ),
        "",
        "## Are two levels enough?",
        *_wrapped(
            "ONNX has primitives and functions. For a backend that must be complete, these two are enough: what is not"
            f" core is a function, {first} of core operators alone, {len(functions) - first} of other functions, at"
            f" most {deepest} steps deep, and {len(bodies)} of them have a body in the standard that serves. For a"
            f" backend that must be fast there is a third kind: {len(kernels)} functions want a kernel of their own,"
            " because their decomposition stores what a kernel need not store, repeats what it need not repeat, or has"
            " a worse complexity. They are marked *kernel* below, with the reason. A backend starts with the core,"
            " and adds kernels where its models spend their time."
        ),
        "",
        *_wrapped(
            "For comparison, counted in their own code: PyTorch 2.13 tags 193 overloads (164 names) as core ATen, among"
            " them pools and their backward, and `torch._prims` has 123 primitives; the specification of StableHLO"
            " (August 2026) has 113 operations, among them `convolution`, `reduce_window` and `fft`."
        ),
        "",
        "## The set",
        "*Used by*: the number of other operators whose example needs it.",
        "",
        "| operator | category | why it is core | could be | used by |",
        "|---|---|---|---|---|",
    ]
    for category in CATEGORIES:
        for operator in (o for o in CORE.values() if o.category == category):
            could = f"`{operator.instead}`" if operator.instead else ""
            lines.append(f"| {operator.name} | {category} | {operator.why} | {could} | {used[operator.name] or ''} |")
    lines += [
        "",
        *_wrapped(
            "Sequences and optionals are needed only by models that have them, and `RandomUniformLike` only by"
            " inference graphs that draw numbers: a training step computes its random numbers from a key, with integer"
            " arithmetic. `Pad` is core with constants; `If` and `Loop` have bodies of core operators."
        ),
        "",
        "## Every other operator",
        *_wrapped(
            "*Nodes* and *bytes* are those of one of ONNX's own node tests, named in the last column: the nodes after"
            " lowering, without constants, and the bytes that these nodes read and write, divided by the bytes of the"
            " operator's own inputs and outputs (Constant, Identity, Shape and Reshape move nothing). The tests are"
            " small, so indices and sizes weigh more than they do in practice. *Steps*: how many times functions are"
            " replaced until only core operators are left. *Standard*: the body is ONNX's own."
        ),
        "",
        "| operator | level | steps | written as | core operators | nodes | bytes | example |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in sorted({*made, *CANNOT}):
        if name in CANNOT:
            lines.append(f"| {name} | cannot be decomposed | | {CANNOT[name]} | | | | |")
            continue
        row, how = rows[name], made[name]
        level = "core with constants, else function" if name == "Pad" else LEVELS[min(row.level, 2)]
        if how.kernel:
            level += f"; kernel: {how.kernel}"
        formula = how.formula.rstrip(".") if how.function is not None else "standard"
        becomes = ", ".join(
            k + (f" x {v}" if v > 1 else "") for k, v in sorted(row.becomes.items()) if k not in ("Constant",)
        )
        numbers = [str(row.nodes), f"{row.ratio:.1f}" if row.ratio else ""] if row.example else ["", ""]
        cells = [name, level, str(row.level), formula.replace("|", "\\|"), becomes, *numbers, row.example]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "src")]
    (ROOT / "docs/core_operators.md").write_text(page())
