"""Make the self-test of a program: draw a batch, run each step on ONNX Runtime, and measure the tolerances.

A tolerance is what rounding explains: the step runs again with inputs and weights, frozen ones too, that differ in
their last digits, and the largest change of a checksum, times `_FACTOR`, is allowed. So a gradient that is a rounding
error itself, such as that of a bias in front of a BatchNormalization, raises no false alarm, and all others are held
to a small part of their size.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.arguments import check_names, shown
from onward.compiler.program import Entry, Program, TensorSpec
from onward.compiler.self_test import Checksum, Expected, SelfTest, checksum
from onward.errors import ArgumentError, Diagnostic, Severity
from onward.graph import shapes, walk
from onward.graph.random_numbers import uniform
from onward.model.serde import serialize
from onward.runtime import SIZES, evaluate
from onward.storage.tensor_file import can_store

A142 = "A142"

_BATCH = 4
_LARGEST = 256  # of a free dimension
_RUNS = 4  # with other last digits
_LAST_DIGITS = 8  # times the precision of the element type
_FACTOR = 16.0
LEAST = 1e-4  # of the size of the change
TINY = 1e-12
_LOOSE = 4e-4  # of the size of the change: beyond, an error of a thousandth might not be seen
_DRAWS = 4
_LARGE = 5_000_000  # elements of the state, from which on one batch is enough; or of frozen weights that are varied
_SMALL = 16  # elements that may be sizes or scales of a Resize, which last digits would change

_PRECISION = {
    ir.DataType.DOUBLE: 2.0**-52,
    ir.DataType.FLOAT: 2.0**-23,
    ir.DataType.FLOAT16: 2.0**-10,
    ir.DataType.BFLOAT16: 2.0**-7,
}
_CLASS_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
_SAME_NUMBERS = {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten", "Expand", "Slice"}
Arrays = Mapping[str, np.ndarray]
Draw = Callable[[int], Arrays]  # from a seed


class NoSelfTestWarning(UserWarning):
    """A program is written without a self-test; `diagnostic` says why."""

    def __init__(self, error: ArgumentError) -> None:
        self.diagnostic = dataclasses.replace(error.diagnostics[0], severity=Severity.WARNING)
        super().__init__(self.diagnostic.render())


class _Unfit(Exception):
    """A batch from which no test can be made; the text says why."""


def make_self_test(program: Program, batch: Mapping[str, Any] | None = None) -> SelfTest:
    """Return the self-test of a program, with the given batch or one that is drawn.

    Raises:
        ArgumentError: the batch lacks an input or has one too many, or no batch gives a finite loss.
    """
    specs = _specs(program)
    odd = [s.name for s in specs if _dtype(s) is None]
    if odd:
        names = ", ".join(f"`{name}`" for name in odd)
        raise ArgumentError(_impossible(f"a tensor file cannot hold what {names} takes"))
    if batch is not None:
        try:
            return _measure(program, _given(program, specs, batch))
        except _Unfit as error:
            raise ArgumentError(_impossible(str(error))) from error
    reason = ""
    for draw in _draws(program, specs):
        try:
            return _sharpest(program, draw)
        except _Unfit as error:
            reason = reason or str(error)
    raise ArgumentError(_impossible(reason))


def _sharpest(program: Program, draw: Draw) -> SelfTest:
    """Return the test of the first batch, or of another one with fewer loose tolerances.

    Where a number is a rounding error away from the kink of a Relu or MaxPool, all gradients in front of it are loose.
    """
    found = _measure(program, draw(0))
    if sum(value.size for value in program.state.values()) > _LARGE:
        return found
    for seed in range(1, _DRAWS):
        if not _looseness(found):
            break
        try:
            found = min(found, _measure(program, draw(seed)), key=_looseness)
        except _Unfit:
            continue
    return found


def _looseness(test: SelfTest) -> int:
    sums = [c for e in test.entries.values() for c in e.state.values()]
    return sum(c.tolerance > _LOOSE * c.values[1] for c in sums)


def _impossible(reason: str) -> Diagnostic:
    return Diagnostic(
        A142,
        f"no self-test can be made: {reason}",
        needed="a batch with which one step of each training entry gives a finite loss and finite state",
        hint="give one of your data with self_test=…, or leave the test out with self_test=False",
    )


# ------------------------------------------------------------------ the batch


def _specs(program: Program) -> list[TensorSpec]:
    read = {name for entry in program.entries.values() for name in entry.step.input_names}
    return [s for s in (*program.inputs, *program.targets) if s.name in read]


def _dtype(spec: TensorSpec) -> np.dtype[Any] | None:
    """Return the element type of an input; None for one that a tensor file cannot hold, such as text."""
    try:
        found = np.dtype(spec.dtype)
    except TypeError:
        return None
    return found if can_store(np.empty(0, found)) else None


def _given(program: Program, specs: Sequence[TensorSpec], batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
    if not isinstance(batch, Mapping):
        raise ArgumentError(
            Diagnostic(
                A142, f"the batch is {shown(batch)}", place="self_test=", needed="arrays by the names of the inputs"
            )
        )
    check_names("input", batch, program.input_names, place="self_test=")
    missing = [s.name for s in specs if s.name not in batch]
    if missing:
        raise ArgumentError(
            Diagnostic(
                A142,
                f"the batch lacks {', '.join(f'`{m}`' for m in missing)}",
                place="self_test=",
                found=", ".join(batch) or "nothing",
                needed=", ".join(s.name for s in specs),
            )
        )
    return {s.name: np.asarray(batch[s.name]).astype(_dtype(s)) for s in specs}


def made_up_batches(program: Program, samples: int, given: Mapping[str, int] | None = None) -> Iterator[Arrays]:
    """Yield batches of made-up numbers for a step; where one does not run, the next may: it has other sizes.

    `given` are free sizes by name.
    """
    specs = _specs(program)
    if all(_dtype(s) is not None for s in specs):
        known = given or {}
        specs = [dataclasses.replace(s, shape=tuple(known.get(str(d), d) for d in s.shape)) for s in specs]
        for draw in _draws(program, specs, samples):
            yield draw(0)


def _draws(program: Program, specs: Sequence[TensorSpec], samples: int = _BATCH) -> Iterator[Draw]:
    """Yield functions from a seed to a batch, small sizes first; every second one gives ones for all integers."""
    limits = _limits(program)
    first = {s.shape[0] for s in specs if len(s.shape) > 1} or {s.shape[0] for s in specs if s.shape}
    free = any(not isinstance(d, int) and d not in first for s in specs for d in s.shape)
    for size in [n for n in (*SIZES[1:], *SIZES[:1]) if n <= _LARGEST] if free else [samples]:
        sizes = [tuple(d if isinstance(d, int) else samples if d in first else size for d in s.shape) for s in specs]

        def draw(seed: int, sizes: Sequence[tuple[int, ...]] = sizes, ones: bool = False) -> dict[str, np.ndarray]:
            return {
                spec.name: _made_up(spec, uniform(seed, number, shape), None if ones else limits.get(spec.name, 2))
                for number, (spec, shape) in enumerate(zip(specs, sizes, strict=True))
            }

        yield draw
        yield functools.partial(draw, ones=True)


def _made_up(spec: TensorSpec, drawn: np.ndarray, limit: int | None) -> np.ndarray:
    """Return numbers from 0 to 1, or whole numbers below `limit`; ones where there is no limit."""
    dtype = _dtype(spec)
    assert dtype is not None
    if dtype.kind == "b":
        drawn = drawn < 0.5
    elif dtype.kind in "iu":
        drawn = np.ones_like(drawn) if limit is None else np.floor(drawn * limit)
    return np.asarray(drawn, dtype)  # numpy makes a number of what has no dimension


def _limits(program: Program) -> dict[str, int]:
    """Return a bound for inputs that are indices: the number of classes, or of rows of a table."""
    found: dict[str, int] = {}
    for graph in (g for e in program.entries.values() for g in (e.evaluate, e.step) if g is not None):
        for value in graph.model.graph.inputs:
            name = value.name or ""
            sizes = _bounds(value) if name in program.input_names else []
            if sizes:
                found[name] = min([*sizes, found.get(name, sizes[0])])
    return found


def _bounds(value: ir.Value) -> list[int]:
    """Return the sizes of the axes that `value`, or what has the same numbers, is an index of."""
    found: list[int] = []
    queue = [value]
    while queue:
        for node, at in queue.pop().uses():
            indexed, axis = None, 0
            if node.op_type in _CLASS_LOSSES and at == 1:
                indexed, axis = node.inputs[0], 1
            elif node.op_type in ("Gather", "GatherElements") and at == 1:
                indexed, axis = node.inputs[0], node.attributes.get_int("axis", 0)
            elif node.op_type in _SAME_NUMBERS and at == 0:
                queue.extend(node.outputs)
            sizes = None if indexed is None else shapes.dims(indexed)
            if sizes and -len(sizes) <= axis < len(sizes) and isinstance(size := sizes[axis], int):
                found.append(size)
    return found


# ------------------------------------------------------------------ what comes out


def _measure(program: Program, batch: Arrays) -> SelfTest:
    return SelfTest(batch, {name: _expected(program, entry, batch) for name, entry in program.entries.items()})


def _expected(program: Program, entry: Entry, batch: Arrays) -> Expected:
    """Return what one step gives, with the tolerances that other last digits show."""
    step = entry.step
    fixed = {*program.settings, *(s.name for s in program.targets)}
    known = {n: v for n, v in {**program.settings, **program.state, **batch}.items() if n in step.input_names}
    try:
        feeds, runs = varied_runs(step.proto(), known, fixed, _precision(entry))
    except Exception as error:  # exceptions of ONNX Runtime have no common base
        raise _Unfit(f"the step of entry `{entry.name}` does not run: {str(error).strip()}") from error
    losses = [(float(np.asarray(r[entry.loss], np.float64).sum()),) for r in runs]
    if not np.isfinite(losses).all():
        raise _Unfit(f"the loss of entry `{entry.name}` is {losses[0][0]}")
    state = {}
    for output, name in step.replaces.items():
        sums = [checksum(f.get(name, program.state[name]), r[output]) for f, r in zip(feeds, runs, strict=True)]
        if not np.isfinite(sums).all():
            raise _Unfit(f"state `{name}` is not finite after a step of entry `{entry.name}`")
        least = max(TINY, LEAST * sums[0][1], _rounding(runs[0][output]))
        state[name] = Checksum(sums[0], _tolerance(sums, least))
    (loss,) = losses[0]
    return Expected(loss, _tolerance(losses, max(TINY, LEAST * abs(loss))), state)


def varied_runs(
    model: onnx.ModelProto, known: Arrays, fixed: Collection[str], precision: float
) -> tuple[list[Arrays], list[Arrays]]:
    """Return inputs and outputs of several runs on ONNX Runtime: first with `known`, then with other last digits.

    What is `fixed` stays. `precision` is that of the coarsest floating-point type. Whatever ONNX Runtime raises goes on
    to the caller.
    """
    frozen = _frozen(model)
    feeds: list[Arrays] = [known]
    for run in range(1, 1 + _RUNS):
        amount, given = _LAST_DIGITS * precision, {**known, **frozen}
        feeds.append({n: v if n in fixed else _varied(v, run, k, amount) for k, (n, v) in enumerate(given.items())})
    results = [
        *evaluate(serialize(model), feeds[:1], threads=1),
        *evaluate(serialize(_with_inputs(model, frozen)), feeds[1:], threads=1),
    ]
    names = [v.name for v in model.graph.output]
    return feeds, [dict(zip(names, outputs, strict=True)) for outputs in results]


def _frozen(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return weights that the graph itself holds, the first `_LARGE` numbers of them; not what may be a size."""
    found, room = {}, _LARGE
    for tensor in model.graph.initializer:
        count = math.prod(tensor.dims)
        if ir.DataType(tensor.data_type) in _PRECISION and _SMALL < count <= room:
            found[tensor.name] = ir.from_proto(tensor).numpy()
            room -= count
    return found


def _with_inputs(model: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """Return a copy that reads some of its weights as inputs."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    kept = [t for t in made.graph.initializer if t.name not in names]
    given = [t for t in made.graph.initializer if t.name in names]
    listed = {v.name for v in made.graph.input}
    made.graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in given if t.name not in listed
    )
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    return made


def tolerance_of(spread: float, least: float) -> float:
    """Return how far a value may be from that of the first run, from which the others are `spread` away."""
    return max(least, _FACTOR * spread)


def _tolerance(runs: Sequence[tuple[float, ...]], least: float) -> float:
    return tolerance_of(float(np.abs(np.subtract(runs[1:], runs[0])).max()), least)


def _precision(entry: Entry) -> float:
    graph = entry.step.model.graph
    return precision_of(v.dtype for v in (*graph.inputs, *(o for n in walk.all_nodes(graph) for o in n.outputs)))


def precision_of(kinds: Iterable[ir.DataType | None]) -> float:
    """Return the precision of the coarsest of the floating-point types."""
    return max((_PRECISION[kind] for kind in kinds if kind in _PRECISION), default=0.0)


def _varied(array: np.ndarray, run: int, number: int, amount: float) -> np.ndarray:
    """Return the numbers with other last digits; whole numbers, which may be counts, classes or switches, stay."""
    if array.dtype.kind in "iub":
        return array
    wide = array.astype(np.float64)
    other = wide * (1 + amount * (2 * uniform(run, number, array.shape) - 1))
    return np.where(wide == np.round(wide), wide, other).astype(array.dtype)


def _rounding(new: np.ndarray) -> float:
    """Return what the rounding of the new values may sum up to, if the errors are random."""
    if new.dtype.kind in "iub":
        return 0.0
    precision = _PRECISION.get(ir.DataType.from_numpy(new.dtype), 0.0)
    return precision * float(np.linalg.norm(new.astype(np.float64)))
