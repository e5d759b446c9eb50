"""Train on stock ONNX Runtime. State stays in ONNX Runtime's memory: two sets of buffers, swapped after each step."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime

from onward.backends import state as states
from onward.backends.onnxruntime.graphs import prepare
from onward.errors import ArgumentError, BackendError, Diagnostic, define, unknown_name
from onward.program import Program, StepGraph

B200 = define(
    "B200",
    "ONNX Runtime cannot load the graph",
    why="The graph uses an operator, element type or version that this build of ONNX Runtime has no kernel for.",
    fix="Try backend='torch' or 'reference', another element type, or a newer onnxruntime.",
)
B201 = define(
    "B201",
    "ONNX Runtime failed while running",
    why="A kernel refused its inputs: usually a shape or a label out of range.",
    fix="Look at the message of ONNX Runtime; check the shapes and the labels of the batch.",
)

_RUNTIME_ERRORS = (
    onnxruntime.capi.onnxruntime_pybind11_state.Fail,
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument,
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph,
    onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented,
    onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException,
    RuntimeError,
)


class OnnxRuntimeSession:
    """A program running on ONNX Runtime.

    Args:
        program: what to run.
        threads: threads inside an operator; the numbers depend on it, so it is part of `describe()`.
        providers: execution providers by name, best first (default: the CPU).
    """

    def __init__(self, program: Program, *, threads: int | None = None, providers: Sequence[str] | None = None) -> None:
        self.program = program
        self.threads = _default_threads() if threads is None else threads
        if not isinstance(self.threads, int) or self.threads < 1:
            raise ArgumentError(Diagnostic("A101", "`threads` must be a positive whole number", found=repr(threads)))
        self.providers = list(providers or ["CPUExecutionProvider"])
        available = onnxruntime.get_available_providers()
        for provider in self.providers:
            if provider not in available:
                raise unknown_name("execution provider", provider, available, place="this build of onnxruntime")
        self._sessions: dict[str, onnxruntime.InferenceSession] = {}
        self._bindings: dict[tuple[str, tuple[int, ...]], onnxruntime.IOBinding] = {}
        self._arrays: list[dict[str, np.ndarray]] = [{}, {}]
        self._values: list[dict[str, onnxruntime.OrtValue]] = [{}, {}]
        self._current: dict[str, int] = {}
        self._swapped: list[str] = []
        for name, value in program.state.items():
            for side in (0, 1):
                array = np.array(value, order="C")
                self._arrays[side][name] = array
                self._values[side][name] = _ort_value(array)
            self._current[name] = 0

    # -- the protocol ----------------------------------------------------------------------------------------

    def step(self, feeds: Mapping[str, np.ndarray], *, entry: str | None = None) -> dict[str, np.ndarray]:
        outputs: dict[str, np.ndarray] = {}
        self._swapped = []
        for name, graph in states.chosen_entries(self.program, entry):
            outputs.update(self._step(name, graph, feeds))
        return outputs

    def rollback(self) -> None:
        """Undo the last step, as long as it replaced each state once (with several entries: at most one each)."""
        for name in self._swapped:
            self._current[name] ^= 1
        self._swapped = []

    def evaluate(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self._run("evaluate", states.evaluation_graph(self.program), feeds)

    def infer(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self._run("infer", self.program.infer, feeds)

    def initialize(self, seed: int = 0) -> None:
        def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            names = [o.name for o in model.graph.output]
            return dict(zip(names, self._session("initialize", model).run(names, feeds), strict=True))

        self.set_state(states.initial_state(self.program, seed, run))

    def get_state(self) -> dict[str, np.ndarray]:
        return {name: self._arrays[side][name].copy() for name, side in self._current.items()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        for name, array in states.checked(self.program, state).items():
            np.copyto(self._arrays[self._current[name]][name], array)
        self._swapped = []

    def describe(self) -> dict[str, Any]:
        return {
            "backend": "onnxruntime",
            "onnxruntime": onnxruntime.__version__,
            "threads": self.threads,
            "providers": self.providers,
        }

    # -- inside ----------------------------------------------------------------------------------------------

    def _step(self, name: str, graph: StepGraph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        session = self._session(f"step {name}", graph.model)
        names = [i.name for i in session.get_inputs()]
        held = [n for n in names if n in self._current]
        key = (name, tuple(self._current[n] for n in held))
        binding = self._bindings.get(key)
        if binding is None:
            binding = session.io_binding()
            for state in held:
                binding.bind_ortvalue_input(state, self._values[self._current[state]][state])
            for output, state in graph.replaces.items():
                binding.bind_ortvalue_output(output, self._values[self._current[state] ^ 1][state])
            for output in graph.outputs:
                binding.bind_output(output)
            self._bindings[key] = binding
        self._bind_feeds(binding, session, [n for n in names if n not in self._current], feeds)
        try:
            session.run_with_iobinding(binding)
        except _RUNTIME_ERRORS as error:
            raise _failure(error, f"step {name}") from error
        order = [o.name for o in session.get_outputs()]
        results = dict(zip(order, binding.get_outputs(), strict=True))
        for state in graph.replaces.values():
            self._current[state] ^= 1
            self._swapped.append(state)
        return {o: results[o].numpy() for o in graph.outputs}

    def _bind_feeds(
        self,
        binding: onnxruntime.IOBinding,
        session: onnxruntime.InferenceSession,
        names: Sequence[str],
        feeds: Mapping[str, np.ndarray],
    ) -> None:
        given = {**self.program.settings, **feeds}
        states.require_feeds(names, given, self.program)
        for name in names:
            binding.bind_cpu_input(name, np.ascontiguousarray(given[name]).reshape(np.shape(given[name])))

    def _run(self, key: str, model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        session = self._session(key, model)
        binding = session.io_binding()
        names = [i.name for i in session.get_inputs()]
        for name in names:
            if name in self._current:
                binding.bind_ortvalue_input(name, self._values[self._current[name]][name])
        self._bind_feeds(binding, session, [n for n in names if n not in self._current], feeds)
        outputs = [o.name for o in session.get_outputs()]
        for output in outputs:
            binding.bind_output(output)
        try:
            session.run_with_iobinding(binding)
        except _RUNTIME_ERRORS as error:
            raise _failure(error, key) from error
        return {n: v.numpy() for n, v in zip(outputs, binding.get_outputs(), strict=True)}

    def _session(self, key: str, model: onnx.ModelProto) -> onnxruntime.InferenceSession:
        if key not in self._sessions:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self.threads
            options.inter_op_num_threads = 1
            options.log_severity_level = 3
            try:
                self._sessions[key] = onnxruntime.InferenceSession(
                    prepare(model).SerializeToString(), options, providers=self.providers
                )
            except _RUNTIME_ERRORS as error:
                raise BackendError(
                    Diagnostic(
                        B200,
                        f"ONNX Runtime {onnxruntime.__version__} cannot load the {key} graph: {error}",
                        hint="try backend='torch' or backend='reference'",
                    )
                ) from error
        return self._sessions[key]


def _ort_value(array: np.ndarray) -> onnxruntime.OrtValue:
    """Return an OrtValue that shares the memory of `array`."""
    if array.dtype.kind == "V" or array.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        import onnx_ir as ir

        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            array.view(np.uint16 if array.itemsize == 2 else np.uint8), ir.DataType.from_numpy(array.dtype).value
        )
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _failure(error: Exception, key: str) -> BackendError:
    return BackendError(Diagnostic(B201, f"ONNX Runtime failed in the {key} graph: {error}"))


def _default_threads() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
