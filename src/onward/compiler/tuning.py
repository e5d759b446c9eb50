"""Choose the forms of gradients by measurement, on this machine and for the sizes at hand (docs/tuning.md).

For each question that a rule asks (`autodiff.forms`), the gradient of that one node is built in every form and timed on
ONNX Runtime's CPU kernels, all forms in turn, again and again; the best time of each counts. What was measured is kept
on disk, so that the next compilation on this machine takes the same forms and no time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx

from onward.arguments import shown, whole
from onward.autodiff.forms import Dims, Forms, Question, answering
from onward.compiler.derivatives import vjp
from onward.errors import A101, ArgumentError, Diagnostic
from onward.runtime import BusyWatch, Timed, cores, runtime_version, this_processor
from onward.storage.cache import Cache

Sizes = tuple[tuple[int, ...] | None, ...]
Times = tuple[float, float]  # the seconds of a run, and those that the cores worked

CACHE = Cache("tuning", 16 << 20)
BATCH = 32
"""The samples in a batch, where nobody says; it is the default of `Trainer.fit` too."""

_FORMAT = 1  # another one when a form emits other operators, or the measurement changes
_IR_VERSION = 8  # every ONNX Runtime that we support reads it
_SECONDS = 0.5  # that the forms of one gradient are timed
_PATIENCE = 4  # times as long where others disturb it
_ROUNDS, _LEAST_ROUNDS = 200, 3
_GAIN = 0.95  # another form than the usual one takes at most this share of its time
_GAIN_IF_DISTURBED = 0.8
_HOPELESS = 1.5  # a form that takes so many times the best one is not timed further
DISTURBED = 0.1
"""The share of the cores that other processes use, from which on a measurement counts as disturbed."""
TOO_BUSY = 0.5
"""The share from which on nothing is chosen."""
_SAME = {"float64": 1e-9, "float32": 1e-4, "float16": 3e-2}  # by which two forms may differ, of the largest number


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The answer to one question. `seconds` is the best time of each form that was timed."""

    question: Question
    form: str
    sizes: Sizes = ()
    """The sizes of the inputs of the node, for which it was measured."""
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    kept: bool = False
    """Whether the times were on disk."""
    disturbed: bool = False
    """Whether other processes used the cores meanwhile: a gain must then be larger to count."""
    reason: str = ""
    """Why nothing was measured, so that the form is the usual one."""

    @property
    def gain(self) -> float:
        """How many times faster the form is than the usual one."""
        usual, own = (self.seconds.get(f, 0.0) for f in (self.question.usual, self.form))
        return usual / own if own else 1.0


class Tuner:
    """Answers questions about forms by measurement; `found` holds what it found.

    Args:
        batch: the samples in a batch, where the model takes any number.
        sizes: other free dimensions, by name. A gradient whose sizes are not known keeps its usual form.
        threads: those of ONNX Runtime (default: one for each core).
        seconds: how long the forms of one gradient are timed.
    """

    def __init__(
        self,
        batch: int = BATCH,
        *,
        sizes: Mapping[str, int] | None = None,
        threads: int | None = None,
        seconds: float = _SECONDS,
    ) -> None:
        self.batch = whole("batch", batch, 1)
        self.sizes = {name: whole(f"sizes: {name}", size, 1) for name, size in (sizes or {}).items()}
        self.threads = cores() if threads is None else whole("threads", threads, 1)
        self.seconds = seconds
        self.found: list[Tuned] = []

    @classmethod
    def of(cls, tune: Any, threads: int | None = None) -> Tuner | None:
        """Return the tuner that an argument `tune=` means: True, the samples in a batch, or a tuner; None for False."""
        if isinstance(tune, Tuner):
            return tune
        if isinstance(tune, (bool, np.bool_)) or tune is None:
            return cls(threads=threads) if tune else None
        if isinstance(tune, (int, np.integer)):
            return cls(int(tune), threads=threads)
        needed = "True, or the number of samples in a batch"
        raise ArgumentError(Diagnostic(A101, f"tune is {shown(tune)}", needed=needed))

    def answer(self, questions: Iterable[Question]) -> dict[str, str]:
        """Return the form for each question, by its key."""
        tuned = [self._tune(question) for question in questions]
        self.found += tuned
        return {each.question.key: each.form for each in tuned}

    def described(self) -> str:
        """Return in one line what was found."""
        others = [t for t in self.found if t.form != t.question.usual]
        measured = sum(not (t.kept or t.reason) for t in self.found)
        told = (
            f"tuned: {len(others)} of {len(self.found)} gradients with a choice take another form than usual "
            f"({measured} measured now, {sum(t.kept for t in self.found)} before)"
        )
        if disturbed := sum(t.disturbed for t in self.found):
            told += f"; other processes disturbed {disturbed} of the measurements"
        return told

    # -- one question ----------------------------------------------------------------------------------------

    def _tune(self, question: Question) -> Tuned:
        shapes = [None if t is None else self._resolved(t[1]) for t in question.inputs]
        missing = [t for t, s in zip(question.inputs, shapes, strict=True) if t is not None and s is None]
        if missing:
            return Tuned(question, question.usual, reason=f"a size is not known: {list(missing[0][1]) or 'no shape'}")
        sizes = tuple(shapes)
        kinds = {t[0] for t in question.inputs if t is not None}
        if not kinds <= set(_SAME):
            return Tuned(question, question.usual, sizes, reason=f"ONNX Runtime does not compute in {min(kinds)}")
        if any(0 in s for s in sizes if s is not None):
            return Tuned(question, question.usual, sizes, reason="there is nothing to compute")
        key = self._key(question, sizes)
        kept = _read(key, question)
        times, others = self._measure(question, sizes) if kept is None else kept
        if len(times) < 2:
            return Tuned(question, question.usual, sizes, reason="ONNX Runtime does not run two forms of it")
        if others > TOO_BUSY:  # no time means anything: it is measured again the next time
            reason = f"other processes used {others:.0%} of the cores; compile again when the machine is quiet"
            return Tuned(question, question.usual, sizes, reason=reason, disturbed=True)
        if kept is None:
            record = {"about": key_text(question, sizes), "seconds": times, "others": others}
            CACHE.write(key, json.dumps(record).encode())
        disturbed = others > DISTURBED
        form = _fastest(times, question.usual, disturbed)
        return Tuned(question, form, sizes, {f: t[0] for f, t in times.items()}, kept is not None, disturbed)

    def _resolved(self, dims: Dims) -> tuple[int, ...] | None:
        """Return the sizes of a tensor; None where one is not known. The first axis is the batch."""
        found: list[int] = []
        for axis, size in enumerate(dims):
            if isinstance(size, int):
                found.append(size)
            elif size in self.sizes:
                found.append(self.sizes[str(size)])
            elif axis == 0:
                found.append(self.batch)
            else:
                return None
        return tuple(found) or None

    def _key(self, question: Question, sizes: Sizes) -> str:
        """Return the name of the file that keeps the times."""
        told = (
            str(_FORMAT), key_text(question, sizes), str(question.opset), *question.forms, question.usual,
            f"threads {self.threads}", f"onnxruntime {runtime_version()}", this_processor(),
        )  # fmt: skip
        return hashlib.sha256("\0".join(told).encode()).hexdigest()

    def _measure(self, question: Question, sizes: Sizes) -> tuple[dict[str, Times], float]:
        """Return the best times of each form, and the share of the cores that other processes used meanwhile.

        A form that ONNX Runtime does not run, or with other numbers than the usual one, has none.
        """
        ready = self._ready(question, sizes)
        best = dict.fromkeys(ready, (math.inf, math.inf))
        racing, watch = list(ready), BusyWatch()
        began = time.perf_counter()
        for round_ in range(_ROUNDS if len(ready) > 1 else 0):
            spent = time.perf_counter() - began
            if spent > _PATIENCE * self.seconds:
                break
            if spent > self.seconds and round_ >= _LEAST_ROUNDS and not DISTURBED < watch.others() <= TOO_BUSY:
                break
            for form in racing:
                taken, worked = ready[form].run()
                best[form] = min(best[form][0], taken), min(best[form][1], worked)
            if round_ + 1 >= _LEAST_ROUNDS:
                racing = [f for f in racing if f == question.usual or not _is_hopeless(best[f], best.values())]
        return best, watch.others()

    def _ready(self, question: Question, sizes: Sizes) -> dict[str, Timed]:
        """Return the forms that run and give the same numbers, each after its first run; none without the usual one."""
        feeds, free = _feeds(question, sizes)
        kind = next(t[0] for t in question.inputs if t is not None)
        ready: dict[str, Timed] = {}
        expected: dict[str, np.ndarray] = {}
        for form in sorted(question.forms, key=lambda form: form != question.usual):
            try:
                timed = Timed(gradient_in(question, form).SerializeToString(), feeds, threads=self.threads, sizes=free)
                timed.run()
                outputs = timed.outputs()
            except Exception:  # noqa: BLE001  # its exceptions have no common base; a form that does not run is out
                if form == question.usual:
                    return {}
                continue
            expected = expected or outputs
            if _same(outputs, expected, _SAME[kind]):
                ready[form] = timed
        return ready


def key_text(question: Question, sizes: Sizes) -> str:
    """Return a question in words, with the sizes for which it is measured."""
    inputs = tuple(None if t is None or s is None else (t[0], s) for t, s in zip(question.inputs, sizes, strict=True))
    return dataclasses.replace(question, inputs=inputs).key


def _fastest(times: Mapping[str, Times], usual: str, disturbed: bool) -> str:
    """Return the form that takes least; the usual one unless another one is clearly faster.

    Beside other processes a form may never have the cores for itself. It must then also give the cores less work.
    """
    form = min(times, key=lambda each: times[each][0])
    (taken, worked), (usually, work) = times[form], times[usual]
    if disturbed:
        pays = taken <= _GAIN_IF_DISTURBED * usually and worked <= _GAIN_IF_DISTURBED * work
    else:
        pays = taken <= _GAIN * usually
    return form if pays else usual


def _is_hopeless(times: Times, best: Iterable[Times]) -> bool:
    """Return whether a form takes so long, and so much work, that further runs will not make it the best."""
    known = list(best)
    return all(times[kind] > _HOPELESS * min(each[kind] for each in known) for kind in (0, 1))


def _read(key: str, question: Question) -> tuple[dict[str, Times], float] | None:
    """Return the times on disk, and what others used; None where there are none, or in a file that we did not write."""
    data = CACHE.read(key)
    try:
        record = json.loads(data) if data else {"seconds": {}}
        times = {str(form): (float(taken), float(worked)) for form, (taken, worked) in record["seconds"].items()}
        others = float(record.get("others", 0.0))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    fits = question.usual in times and set(times) <= set(question.forms)
    return (times, others) if fits and all(0 <= s < math.inf for t in times.values() for s in t) else None


def _same(outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], tolerance: float) -> bool:
    return all(
        np.abs(outputs[name].astype(np.float64) - wanted).max(initial=0.0)
        <= tolerance * np.abs(wanted.astype(np.float64)).max(initial=0.0)
        for name, wanted in expected.items()
    )


# -- the gradient of one node --------------------------------------------------------------------------------


class _Forced(Forms):
    """Answers one form wherever it is offered for the input of a question."""

    def __init__(self, question: Question, form: str) -> None:
        super().__init__()
        self._question, self._form = question, form

    def answer(self, question: Question) -> str:
        same = (question.op_type, question.of) == (self._question.op_type, self._question.of)
        return self._form if same and self._form in question.forms else question.usual


def gradient_in(question: Question, form: str) -> onnx.ModelProto:
    """Return the gradient of the question's node in one form, as a model: the inputs and dY to the gradient.

    Where a form changes the forward node, that is an output too, because a training step needs it in any case.
    """
    model = _one_node(question, _named_dims(question))
    with answering(_Forced(question, form)):
        made = vjp(model, of="y", wrt=f"x{question.position}")
    if not question.changes_forward:
        kept = [output for output in made.graph.output if output.name != "y"]
        del made.graph.output[:]
        made.graph.output.extend(kept)
    return made


def _one_node(question: Question, dims: list[Dims | None]) -> onnx.ModelProto:
    names = ["" if d is None else f"x{i}" for i, d in enumerate(dims)]
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(t[0])), list(d))
        for name, d, t in zip(names, dims, question.inputs, strict=True)
        if d is not None and t is not None
    ]
    attributes: dict[str, Any] = {n: list(v) if isinstance(v, tuple) else v for n, v in question.attributes}
    node = onnx.helper.make_node(question.op_type, names, ["y"], name="node", **attributes)
    graph = onnx.helper.make_graph([node], "gradient", inputs, [onnx.ValueInfoProto(name="y")])
    opsets = [onnx.helper.make_opsetid("", question.opset)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
    return onnx.shape_inference.infer_shapes(model)


def _named_dims(question: Question) -> list[Dims | None]:
    """Return the dimensions of each input, as the model has them, with a name for each free one."""
    return [
        None if t is None else tuple(f"free_{i}_{axis}" if d is None else d for axis, d in enumerate(t[1]))
        for i, t in enumerate(question.inputs)
    ]


def _feeds(question: Question, sizes: Sizes) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Return random numbers for the inputs and dY, and the sizes of the free dimensions by name."""
    generator = np.random.default_rng(0)
    free = {
        str(d): size
        for dims, shape in zip(_named_dims(question), sizes, strict=True)
        if dims is not None and shape is not None
        for d, size in zip(dims, shape, strict=True)
        if isinstance(d, str)
    }
    shapes = {f"x{i}": shape for i, shape in enumerate(sizes) if shape is not None}
    kind = next(t[0] for t in question.inputs if t is not None)
    inferred = _one_node(question, [None if s is None else tuple(s) for s in sizes])
    shapes["cotangent/y"] = tuple(d.dim_value for d in inferred.graph.output[0].type.tensor_type.shape.dim)
    return {name: generator.standard_normal(shape).astype(kind) for name, shape in shapes.items()}, free
