"""Train on stock ONNX Runtime. State stays in ONNX Runtime's memory: two sets of buffers, swapped after each step."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from onward import versions
from onward.arguments import check_name, whole
from onward.backends import state as states
from onward.backends.base import Session
from onward.backends.interrupts import InterruptsKept
from onward.backends.measurement import Measurement
from onward.backends.onnxruntime import fused_update
from onward.backends.onnxruntime.native import library
from onward.backends.onnxruntime.order import put_ends_first, sort_for_memory
from onward.backends.onnxruntime.rewrites import rewrites
from onward.backends.onnxruntime.step import Bound, Sizes, Step
from onward.compiler.program import PlainGraph, Program
from onward.errors import BackendError, Diagnostic, require_extra
from onward.graph.walk import all_nodes
from onward.model.serde import to_proto
from onward.model.training_model import TrainingModel
from onward.passes.base import Unit, collector_paused, run_passes
from onward.passes.recompute.settings import PREFIX as AGAIN
from onward.runtime import cores
from onward.storage.sparing import release

B200 = "B200"
B201 = "B201"

_RUNTIME_ERRORS = (
    onnxruntime.capi.onnxruntime_pybind11_state.Fail,
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument,
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph,
    onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented,
    onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException,
    RuntimeError,
)


# Fusions of the forward pass that need its inner values to have no other reader, as those that are computed again.
_ROUND_ANEW = ["SkipLayerNormFusion", "BiasGeluFusion", "FastGeluFusion", "GeluFusion", "GeluFusionL1", "GeluFusionL2"]
_ROUND_ANEW += ["QuickGeluFusion"]

_INSTALLED = {"onnxruntime": onnxruntime.__version__}
versions.check(_INSTALLED)

FUSE_FROM = 4096  # parameters; below, compiling the loop costs more than it saves
FUSE_AT_ONCE = 8_000_000  # parameters; from here on, two sets of buffers cost more memory than compiling costs time


class OnnxRuntimeSession(Session):
    """A program running on ONNX Runtime.

    Args:
        program: what to run.
        threads: number of threads inside an operator (results are bit-identical only for equal counts).
        providers: execution providers by name, best first (default: the CPU).
        fused: run the optimizer's element-wise update as one compiled loop (needs the extra `fast`; the same bits).
            None: when numba is installed and the model has more than a few thousand parameters. The loop is then
            compiled beside the first seconds of the run, which the plain graph trains.
        native: compute the gradients of convolutions, normalisations, Softmax, Relu and cross entropy by kernels in C,
            which the C compiler of this machine makes once (other last digits than the plain graph). None: where there
            is a C compiler.
    """

    def __init__(
        self,
        program: Program,
        *,
        threads: int | None = None,
        providers: Sequence[str] | None = None,
        fused: bool | None = None,
        native: bool | None = None,
    ) -> None:
        super().__init__(program)
        self.threads = cores() if threads is None else whole("threads", threads, 1)
        self.providers = list(providers or ["CPUExecutionProvider"])
        available = onnxruntime.get_available_providers()
        for provider in self.providers:
            check_name("execution provider", provider, available, place="this build of onnxruntime")
        if fused and not fused_update.available():
            raise require_extra("numba", "fast", "the fused update")
        steps = [entry.step.model.graph for entry in program.entries.values()]
        self._parts = library.parts_for(steps)
        self.native = library.pays(steps, asked=native, on_cpu=self.providers == ["CPUExecutionProvider"])
        size = sum(program.state[p].size for p in program.parameters)
        pays = fused is None and size >= FUSE_FROM and fused_update.available()
        self._asked = fused
        self._fused = (pays and size >= FUSE_AT_ONCE) if fused is None else fused
        self._later = fused_update.Later() if pays and not self._fused else None
        self._sessions: dict[tuple[PlainGraph, Sizes], onnxruntime.InferenceSession] = {}
        self._steps: dict[str, Step] = {}
        self._arrays: list[dict[str, np.ndarray]] = [{}, {}]
        self._values: list[dict[str, onnxruntime.OrtValue]] = [{}, {}]
        self._current: dict[str, int] = {}
        self._lent: set[str] = set()
        # Until something writes it, a state is the program's own array: a large frozen model is not copied.
        for name, value in program.state.items():
            self._place(name, 0, np.require(value, requirements=["C", "A"]))
            self._current[name] = 0
        self._lent = set(program.state)

    # -- the base class's methods ------------------------------------------------------------------------------

    def step(self, feeds: Mapping[str, np.ndarray], *, entry: str | None = None) -> dict[str, np.ndarray]:
        outputs: dict[str, np.ndarray] = {}
        began = time.perf_counter()
        for chosen in states.chosen_entries(self.program, entry):
            if chosen.name not in self._steps:
                self._steps[chosen.name] = self._prepare_step(chosen.name, chosen.step)
            with InterruptsKept():  # the update changes the state in place: half of it would be neither old nor new
                outputs.update(self._run_step(self._steps[chosen.name], feeds))
        if self._later is not None and self._later.is_ready(time.perf_counter() - began, self._compile_ahead):
            self._fuse(self._later)
        return outputs

    def get_state(self) -> dict[str, np.ndarray]:
        return {name: self._arrays[side][name].copy() for name, side in self._current.items()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        for name, array in states.checked(self.program, state).items():
            if name in self._lent:
                self._place(name, 0, np.array(array, order="C"))
            else:
                np.copyto(self._arrays[self._current[name]][name], array)

    @property
    def makes_self_tests(self) -> bool:
        return self.providers == ["CPUExecutionProvider"] and not self.native

    def describe(self) -> dict[str, Any]:
        return {
            "backend": "onnxruntime",
            "onnxruntime": onnxruntime.__version__,
            "threads": self.threads,
            "providers": self.providers,
            "kernels": library.version(self._parts) if self.native else "plain",
        }

    def measure(self, feeds: Mapping[str, np.ndarray], *, entry: str, steps: int) -> Measurement:
        from onward.backends.onnxruntime.measure import measure_step

        if _has_text(list(feeds), feeds):  # such a step runs without bindings, in one piece
            return super().measure(feeds, entry=entry, steps=steps)
        options = {"threads": self.threads, "providers": self.providers, "fused": self._asked, "native": self.native}
        return measure_step(self.program, self.get_state(), feeds, entry, steps, **options)

    # -- inside ----------------------------------------------------------------------------------------------

    def _place(self, name: str, side: int, array: np.ndarray) -> None:
        self._arrays[side][name] = array
        self._values[side][name] = _ort_value(array)
        self._lent.discard(name)
        for step in self._steps.values():
            step.bound.clear()  # they hold the array that was there before

    def _make_writable(self, name: str) -> None:
        """Give a state that a graph replaces its two buffers."""
        if name in self._lent or name not in self._arrays[1]:
            for side in (0, 1):
                self._place(name, side, np.array(self._arrays[0][name], order="C"))

    def _compile_ahead(self) -> None:
        """Compile the fused update of every entry in use. It only reads the program, so a thread may call it."""
        for name in list(self._steps):
            graph = self.program.entries[name].step
            plan = self._plan(name, graph, self._rewritten(graph))
            if plan is not None:
                fused_update.compile_ahead(plan)

    def _fuse(self, later: fused_update.Later) -> None:
        """Go over from the plain graph to the fused update."""
        self._later = None
        if later.failure is not None:
            text = f"numba could not compile the optimizer's update ({later.failure}); the plain graph goes on training"
            warnings.warn(text, RuntimeWarning, stacklevel=4)
            return
        self._fused = True
        usual = {name: step.usual for name, step in self._steps.items()}
        graphs = {step.graph for step in self._steps.values()}
        self._steps.clear()  # first, so that the old buffers go as the new ones come
        self._sessions = {key: session for key, session in self._sessions.items() if key[0] not in graphs}
        for name, sizes in usual.items():
            self._steps[name] = self._prepare_step(name, self.program.entries[name].step)
            self._steps[name].usual = sizes

    def _plan(self, name: str, graph: PlainGraph, model: ir.Model) -> fused_update.Plan | None:
        """Take the fused update out of a step's graph, in place, and return it, if there is one."""
        claimed = {s for step in list(self._steps.values()) for s in step.in_place}
        others = {s for n, e in self.program.entries.items() if n != name for s in e.step.replaces.values()}
        return fused_update.plan_update(model, graph.replaces, claimed | others)  # two entries share the rest

    def _rewritten(self, graph: PlainGraph) -> ir.Model:
        return _rewritten(graph, self.threads, native=self.native, parts=self._parts)

    @collector_paused()
    def _prepare_step(self, name: str, graph: PlainGraph) -> Step:
        model = self._rewritten(graph)
        plan = self._plan(name, graph, model) if self._fused else None
        in_place = frozenset() if plan is None else plan.states
        replaces = {o: s for o, s in graph.replaces.items() if s not in in_place}
        for state in replaces.values():
            self._make_writable(state)
        sort_for_memory((model if plan is None else plan.model).graph)
        if plan is None:
            return Step(graph, model, replaces)
        step = Step(graph, plan.model, replaces, in_place=in_place, scalars=plan.scalars)
        rows = {found.gradient: found for found in plan.rows}
        for group in plan.groups:
            buffers = fused_update.FlatBuffers(group, rows, self.threads)
            step.buffers.append(buffers)
            step.rows += buffers.rows
            for tensor, view in buffers.views():
                if tensor in plan.states:
                    np.copyto(view, self._arrays[self._current[tensor]][tensor])
                    release(self._arrays[self._current[tensor]][tensor])
                    self._place(tensor, 0, view)
                    self._place(tensor, 1, view)
                elif tensor in plan.gradients:
                    assert tensor not in step.gradients  # ONNX Runtime writes it to one place
                    step.gradients[tensor] = _ort_value(view)
                else:  # an array that is neither replaced nor computed: an input of a parameter's shape
                    assert tensor not in step.copied
                    step.copied[tensor] = view
        return step

    def _run_step(self, step: Step, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        graph = step.graph
        sizes = step.sizes(feeds)
        if step.usual is None:
            step.usual = sizes
        # Batches of the usual size get a session in which their dimensions are constants, so that ONNX Runtime
        # computes shapes once; others, such as a last partial batch, one in which they are free.
        fixed = sizes if sizes == step.usual else ()
        session = self._session(graph, step.model, fixed, spin=step.threads == 1)
        held = [n for n in step.inputs if n in self._current]
        if _has_text(step.inputs, feeds):
            return self._run_step_on_text(step, session, held, feeds)
        key = (fixed, *map(self._current.__getitem__, [*held, *step.replaces.values()]))
        if (bound := step.bound.get(key)) is None:
            read = {state: self._values[self._current[state]][state] for state in held}
            new = {output: self._values[self._current[state] ^ 1][state] for output, state in step.replaces.items()}
            whole = bool(fixed) or not step.free  # of no other sizes
            bound = step.bound[key] = Bound(session, read, {**new, **step.gradients}, step.fetched, keep=whole)
        self._feed(bound, [n for n in step.inputs if n not in self._current], feeds)
        refused = fixed if session is self._sessions.get((graph, ())) else ()
        self._run_bound(session, bound, graph, refused)
        results, outputs = self._read(bound, graph)
        self._update(step, results, feeds)
        for state in step.replaces.values():
            self._current[state] ^= 1
        return outputs

    def _run_step_on_text(
        self, step: Step, session: onnxruntime.InferenceSession, held: Sequence[str], feeds: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Run a step without bindings, which hold no text (ONNX Runtime 1.31), and copy the new state."""
        bound = [*step.replaces, *step.gradients, *step.fetched]
        arrays = dict(zip(bound, self._run_on_text(session, bound, held, step.inputs, feeds, step.graph), strict=True))
        for output, state in step.replaces.items():
            np.copyto(self._arrays[self._current[state] ^ 1][state], arrays[output])
        for gradient, value in step.gradients.items():
            value.update_inplace(arrays[gradient])
        self._update(step, arrays, feeds)
        for state in step.replaces.values():
            self._current[state] ^= 1
        return {o: arrays[o] for o in step.graph.outputs}

    def _run_on_text(
        self,
        session: onnxruntime.InferenceSession,
        outputs: Sequence[str],
        held: Sequence[str],
        inputs: Sequence[str],
        feeds: Mapping[str, np.ndarray],
        graph: PlainGraph,
    ) -> list[np.ndarray]:
        given = {**self.program.settings, **feeds}
        wanted = [n for n in inputs if n not in held]
        states.require_feeds(wanted, given, self.program)
        arrays = {n: np.asarray(given[n]) for n in wanted} | {n: self._arrays[self._current[n]][n] for n in held}
        try:
            return list(session.run(list(outputs), arrays))
        except _RUNTIME_ERRORS as error:
            raise _failure(error, graph.name) from error

    def _update(self, step: Step, results: Mapping[str, np.ndarray], feeds: Mapping[str, np.ndarray]) -> None:
        """Run the fused update, if there is one."""
        if not step.buffers:
            return
        scalars = {**self.program.settings, **feeds, **{n: results[n] for n in step.scalars}}
        for buffers in step.buffers:
            for name in buffers.group.scalars:
                if name not in scalars:
                    scalars[name] = self._arrays[self._current[name]][name]
        for name, view in step.copied.items():
            np.copyto(view, feeds[name] if name in feeds else self._arrays[self._current[name]][name])
        try:
            for row in step.rows:
                row.add(results[row.source.indices], results[row.source.rows])
            for buffers in step.buffers:
                buffers.run(scalars)
        except IndexError as error:  # as ScatterElements in the plain graph would
            raise _failure(error, step.graph.name) from error
        finally:
            for row in step.rows:
                row.clear()

    def _feed(self, bound: Bound, names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> None:
        given = {**self.program.settings, **feeds}
        states.require_feeds(names, given, self.program)
        bound.feed(names, given)

    def run_graph(self, graph: PlainGraph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        session = self._session(graph, graph.model)
        inputs = [i.name for i in session.get_inputs()]
        held = [n for n in inputs if n in self._current and n not in feeds]
        outputs = [o.name for o in session.get_outputs()]
        if _has_text(inputs, feeds):
            arrays = self._run_on_text(session, outputs, held, inputs, feeds, graph)
            return dict(zip(outputs, arrays, strict=True))
        bound = Bound(session, {s: self._values[self._current[s]][s] for s in held}, {}, outputs)
        self._feed(bound, [n for n in inputs if n not in held], feeds)
        self._run_bound(session, bound, graph)
        return bound.results()

    def _run_bound(
        self, session: onnxruntime.InferenceSession, bound: Bound, graph: PlainGraph, refused: Sizes = ()
    ) -> None:
        """Run a session; `refused` are the sizes for which it could not be specialised, as an error should say."""
        try:
            try:
                session.run_with_iobinding(bound.binding)
            except _RUNTIME_ERRORS:
                if not bound.let_go():  # a result may have another shape now, because that depends on the data
                    raise
                session.run_with_iobinding(bound.binding)
        except _RUNTIME_ERRORS as error:
            raise _failure(error, graph.name, refused) from error

    def _read(self, bound: Bound, graph: PlainGraph) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return all results of a step, and copies of those for the caller."""
        results = bound.results()
        return results, {name: results[name].copy() for name in graph.outputs}

    def _options(self, fixed: Sizes, *, spin: bool) -> onnxruntime.SessionOptions:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what goes wrong is raised, and said once
        # A pattern is one block for all values, made at the second run and beside the memory of the first: a
        # quarter more for ResNet-18, and no time was gained by it.
        options.enable_mem_pattern = False
        if self.native and (path := library.load(self._parts)) is not None:
            options.register_custom_ops_library(path)
        # With reuse, ONNX Runtime plans which value takes whose memory before it runs, and keeps what it could free.
        # Without, at the same time for a step, ResNet-18 takes 15 MiB less, and a transformer stored in 16 bits 71.
        options.enable_mem_reuse = False
        for name, size in fixed:
            options.add_free_dimension_override_by_name(name, size)
        if not spin:  # the threads of the compiled loop need the cores on which ONNX Runtime's would go on spinning
            options.add_session_config_entry("session.force_spinning_stop", "1")
        return options

    def _session(
        self, graph: PlainGraph, model: ir.Model, fixed: Sizes = (), *, spin: bool = True
    ) -> onnxruntime.InferenceSession:
        if (graph, fixed) not in self._sessions:
            try:
                self._sessions[graph, fixed] = _load(model, self._options(fixed, spin=spin), self.providers)
            except _RUNTIME_ERRORS as error:
                if fixed:  # a branch of If that is for other sizes only, such as a batch of one, refuses these
                    self._sessions[graph, fixed] = self._session(graph, model, spin=spin)
                    return self._sessions[graph, fixed]
                raise BackendError(
                    Diagnostic(
                        B200,
                        f"ONNX Runtime {onnxruntime.__version__} cannot load the {graph.name} graph: {error}",
                        needed=versions.runtime_needed(
                            onnxruntime.__version__, model.opset_imports[""], model.ir_version or 0
                        ),
                        hint="try backend='torch' or backend='reference'"
                        + ("; " + newer if (newer := versions.beyond_tested(_INSTALLED)) else ""),
                    )
                ) from error
        return self._sessions[graph, fixed]


def _has_text(inputs: Sequence[str], feeds: Mapping[str, np.ndarray]) -> bool:
    return any(np.asarray(feeds[n]).dtype.kind in "OUS" for n in inputs if n in feeds)


Runnable = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def loaded(graph: PlainGraph) -> Runnable:
    """Return a function from all inputs of a graph to all of its outputs, for a few runs.

    Raises:
        BackendError: ONNX Runtime cannot load the graph; the function raises it where it cannot run it.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised, and said once
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # between a few runs there is other work
    try:
        session = _load(graph.model, options, ["CPUExecutionProvider"])
    except _RUNTIME_ERRORS as error:
        raise _failure(error, graph.name) from error

    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        values = {n: _ort_value(np.ascontiguousarray(v).reshape(np.shape(v))) for n, v in feeds.items()}
        try:
            results = session.run_with_ort_values(list(graph.output_names), values)
        except _RUNTIME_ERRORS as error:
            raise _failure(error, graph.name) from error
        return {n: v.numpy() for n, v in zip(graph.output_names, results, strict=True)}

    return run


def run_once(graph: PlainGraph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return all outputs of a graph that is run once, for all of its inputs.

    Raises:
        BackendError: ONNX Runtime cannot load or run the graph.
    """
    return loaded(graph)(feeds)


def _rewritten(
    graph: PlainGraph, threads: int, *, native: bool = False, parts: frozenset[str] = frozenset()
) -> ir.Model:
    """Return a copy of a step's graph, as ONNX Runtime runs it best."""
    unit = Unit(TrainingModel(graph.copy_model()), name=graph.name, trains=True)
    run_passes(rewrites(threads, native=native, parts=parts), unit)
    return unit.model


def _bytes(model: ir.Model) -> bytes:
    proto = to_proto(TrainingModel(model))
    put_ends_first(proto.graph, model.graph)
    return bytes(proto.SerializeToString())


@collector_paused()
def _load(model: ir.Model, options: Any, providers: Sequence[str]) -> onnxruntime.InferenceSession:
    """Return a session; without the fusions that ONNX Runtime makes and has no kernel for, if it made some.

    Up to 1.24 at least it fuses a Transpose into a float64 MatMul and then finds no kernel for the result. It also
    fuses a constant factor into a MatMul, as an attribute of 32 bits: too few for float64. Where a part of the forward
    pass is computed again, no fusion that rounds in another way may take one of the two: the gradient would not be that
    of the loss at a Relu's input of 1e-8, say, which is below zero for one of them.
    """
    data = _bytes(model)
    disabled = ["MatMulScaleFusion"] if _computes_in_double(model.graph) else []
    if any((node.name or "").startswith(AGAIN) for node in model.graph):
        disabled += _ROUND_ANEW
    try:
        return onnxruntime.InferenceSession(data, options, providers=providers, disabled_optimizers=disabled)
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
        if "com.microsoft.FusedMatMul" not in str(error):
            raise
        disabled.append("MatmulTransposeFusion")
        return onnxruntime.InferenceSession(data, options, providers=providers, disabled_optimizers=disabled)


def _computes_in_double(graph: ir.Graph) -> bool:
    """Return whether a matrix product of the graph, or of a body in it, is one of float64."""
    return any(v.dtype == ir.DataType.DOUBLE for n in all_nodes(graph) if n.op_type == "MatMul" for v in n.outputs)


def _ort_value(array: np.ndarray) -> onnxruntime.OrtValue:
    """Return an OrtValue that shares the memory of `array`."""
    if array.dtype.kind == "V" or array.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            array.view(np.uint16 if array.itemsize == 2 else np.uint8), ir.DataType.from_numpy(array.dtype).value
        )
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _sizes_hint(fixed: Sizes) -> str:
    """Return for which sizes of the batch the graph could not be loaded: a model may take multiples of 32 only."""
    shown = ", ".join(f"{name}={size}" for name, size in fixed if name.isidentifier())
    return f"the model may not take a batch of these sizes: {shown}" if shown else ""


def _failure(error: Exception, key: str, refused: Sizes = ()) -> BackendError:
    hint = _sizes_hint(refused)
    if "Name:'loss/" in str(error):
        hint = (
            "the loss compares the output with the labels there: for this batch the model may give another number of "
            "frames, boxes or time steps than the labels have"
        )
    return BackendError(Diagnostic(B201, f"ONNX Runtime failed in the {key} graph: {error}", hint=hint))
