"""Measure the phases and the operators of a training step on ONNX Runtime.

The phases are timed while the step runs as it always does. The operators are timed in further steps, by ONNX Runtime's
own profiler; what it costs is measured beside them (`profiler_cost`) and taken off.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnxruntime

from onward.backends.measurement import (
    FEEDING,
    GRAPH,
    READING,
    SESSION,
    UPDATE,
    WARM_UP,
    Measurement,
    OperatorTime,
    Profiler,
    middle,
)
from onward.backends.onnxruntime.layers import Part, Parts
from onward.backends.onnxruntime.profiler_cost import INSIDE, ProfilerCost, measure_cost
from onward.backends.onnxruntime.session import OnnxRuntimeSession
from onward.backends.onnxruntime.step import Bound, Sizes, Step
from onward.compiler.program import PlainGraph, Program

_PEAK_SIZE = 1024  # rows and columns of the matrices whose product is timed
_PEAK_ELEMENTS = 16 << 20
_PEAK_RUNS = 5
_SAME_MEMORY = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size")
_ITEM = {"float": 4, "double": 8, "float16": 2, "bfloat16": 2, "int64": 8, "uint64": 8, "int32": 4, "uint32": 4}
_ITEM |= {"int16": 2, "uint16": 2, "complex64": 8, "complex128": 16}
Shape = tuple[int, ...]


class MeasuredSession(OnnxRuntimeSession):
    """A session that notes how long the phases of each step take; with `folder`, it also profiles the operators.

    It runs what a long run would: where the fused update pays, it is compiled before the first step.
    """

    def __init__(self, program: Program, *, folder: Path | None = None, **options: Any) -> None:
        super().__init__(program, **options)
        self._fused, self._later = self._fused or self._later is not None, None
        self.folder = folder
        self.phases: dict[str, list[float]] = {phase: [] for phase in (FEEDING, GRAPH, READING, UPDATE, SESSION)}

    def prepared(self, entry: str) -> Step:
        """Return what the session runs for an entry of which it has run a step."""
        return self._steps[entry]

    def profiled(self, entry: str) -> onnxruntime.InferenceSession:
        """Return ONNX Runtime's session of an entry of which it has run a step."""
        graph = self._steps[entry].graph
        return next(session for (of, _), session in self._sessions.items() if of is graph)

    def _options(self, fixed: Sizes, *, spin: bool) -> onnxruntime.SessionOptions:
        options = super()._options(fixed, spin=spin)
        if self.folder is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(self.folder / "profile")
            options.optimized_model_filepath = str(self.folder / "optimized.onnx")
        return options

    def _feed(self, bound: Bound, names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> None:
        began = time.perf_counter()
        super()._feed(bound, names, feeds)
        self.phases[FEEDING].append(time.perf_counter() - began)

    def _run_bound(
        self, session: onnxruntime.InferenceSession, bound: Bound, graph: PlainGraph, refused: Sizes = ()
    ) -> None:
        began = time.perf_counter()
        super()._run_bound(session, bound, graph, refused)
        self.phases[GRAPH].append(time.perf_counter() - began)

    def _read(self, bound: Bound, graph: PlainGraph) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        began = time.perf_counter()
        found = super()._read(bound, graph)
        self.phases[READING].append(time.perf_counter() - began)
        return found

    def _update(self, step: Step, results: Mapping[str, np.ndarray], feeds: Mapping[str, np.ndarray]) -> None:
        began = time.perf_counter()
        super()._update(step, results, feeds)
        self.phases[UPDATE].append(time.perf_counter() - began)


def measure_step(
    program: Program,
    state: Mapping[str, np.ndarray],
    feeds: Mapping[str, np.ndarray],
    entry: str,
    steps: int,
    **options: Any,
) -> Measurement:
    """Return the times of `steps` steps of one entry, on sessions of their own that begin with `state`."""
    session = MeasuredSession(program, **options)
    session.set_state(state)
    _run(session, feeds, entry, steps)
    with tempfile.TemporaryDirectory() as folder:
        profiled = MeasuredSession(program, folder=Path(folder), **options)
        profiled.set_state(state)
        _run(profiled, feeds, entry, steps)
        optimized = onnx.load(Path(folder) / "optimized.onnx", load_external_data=False)
        events = json.loads(Path(profiled.profiled(entry).end_profiling()).read_text("utf-8"))
    step = profiled.prepared(entry)
    parts = Parts(step.model.graph, step.graph.outputs)
    runs = _runs(events)[-steps:]
    cost = measure_cost(session.threads)
    operators = _operators(runs, optimized, parts, cost)
    gemm, copy = _peaks(session.threads)
    held = [_number(e, "mem_bytes_requested_in_use") for run in runs for e in run]
    return Measurement(
        {phase: seconds[-steps:] for phase, seconds in session.phases.items()},
        operators,
        parts.layers(),
        session.threads,
        gemm,
        copy,
        memory=max(held, default=0) or None,
        allocated=sum(_number(e, "output_size") for e in runs[-1]) if runs else None,
        profiler=Profiler(statistics.median(profiled.phases[GRAPH][-steps:]), cost.counted) if operators else None,
    )


def _run(session: MeasuredSession, feeds: Mapping[str, np.ndarray], entry: str, steps: int) -> None:
    phases = session.phases
    for _ in range(WARM_UP + steps):
        began = time.perf_counter()
        session.step(feeds, entry=entry)
        whole = time.perf_counter() - began
        phases[SESSION].append(whole - sum(times[-1] for name, times in phases.items() if name != SESSION))


def _runs(events: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the events of the operators of each run, in order; those inside of other operators are counted there."""
    runs: list[list[dict[str, Any]]] = []
    ends = sorted(e["ts"] + e["dur"] for e in events if e.get("name") == "model_run")
    nodes = iter(sorted((e for e in events if e.get("cat") == "Node" and "op_name" in e["args"]), key=_by_start))
    event = next(nodes, None)
    for end in ends:
        run: list[dict[str, Any]] = []
        inside_until = -1
        while event is not None and event["ts"] < end:
            if event["ts"] >= inside_until:
                run.append({**event, INSIDE: 0})
                inside_until = event["ts"] + event["dur"]
            else:
                run[-1][INSIDE] += 1
            event = next(nodes, None)
        runs.append(run)
    return runs


def _by_start(event: Mapping[str, Any]) -> tuple[int, int]:
    return event["ts"], -event["dur"]  # a node comes before the nodes inside of it


def _operators(
    runs: Sequence[Sequence[Mapping[str, Any]]], optimized: onnx.ModelProto, parts: Parts, cost: ProfilerCost
) -> tuple[OperatorTime, ...]:
    if not runs:
        return ()
    found: dict[str, list[tuple[float, float, Mapping[str, Any]]]] = {}
    for run in runs:
        for event in run:
            start = (event["ts"] - run[0]["ts"]) * 1e-6
            found.setdefault(event["name"], []).append((start, cost.without(event), event))
    places = _places(runs[-1], optimized, parts.of_optimized(optimized))
    operators = []
    for name, times in found.items():
        args = times[-1][2]["args"]
        inputs, outputs = _shapes(args.get("input_type_shape")), _shapes(args.get("output_type_shape"))
        part = places.get(name, Part(UPDATE))
        operators.append(
            OperatorTime(
                args["op_name"],
                name.removesuffix("_kernel_time"),
                part.phase,
                part.layer,
                middle([start for start, _, _ in times]),
                middle([seconds for _, seconds, _ in times]),
                operations(args["op_name"], [s for _, s in inputs], [s for _, s in outputs]),
                0 if args["op_name"] in _SAME_MEMORY else sum(_bytes(*each) for each in (*inputs, *outputs)),
                " ".join("×".join(map(str, shape)) or "scalar" for _, shape in outputs),
            )
        )
    return tuple(sorted(operators, key=lambda o: o.start))


def _places(run: Sequence[Mapping[str, Any]], optimized: onnx.ModelProto, parts: Sequence[Part]) -> dict[str, Part]:
    """Return the part of each event: ONNX Runtime runs the nodes in the order in which it writes them.

    Where it did not, a node is found by its name; one without a name has none.
    """
    nodes = optimized.graph.node
    if [e["args"]["op_name"] for e in run] == [n.op_type for n in nodes]:
        return {e["name"]: part for e, part in zip(run, parts, strict=True)}
    return {f"{n.name}_kernel_time": part for n, part in zip(nodes, parts, strict=True) if n.name}


def _shapes(described: Sequence[Mapping[str, Sequence[int]]] | None) -> list[tuple[str, Shape]]:
    return [(kind, tuple(shape)) for each in described or () for kind, shape in each.items()]


def _bytes(kind: str, shape: Shape) -> int:
    return _ITEM.get(kind, 1) * math.prod(shape)


def _number(event: Mapping[str, Any], key: str) -> int:
    text = str(event["args"].get(key, ""))
    return int(text) if text.isdigit() else 0


def operations(operator: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Return the floating-point operations of a matrix product, a convolution or a recurrent layer; else 0.

    >>> operations("FusedConv", [(1, 3, 8, 8), (16, 3, 3, 3)], [(1, 16, 6, 6)]) == 2 * 16 * 6 * 6 * 3 * 3 * 3
    True
    >>> operations("FusedMatMul", [(5, 2), (5, 7)], [(2, 7)]) == 2 * 2 * 5 * 7
    True
    >>> operations("Multiply", [(5, 2), (5, 7)], [(2, 7)]) == 2 * 2 * 5 * 7
    True
    >>> operations("KernelGradient", [(1, 3, 8, 8), (1, 16, 6, 6)], [(16, 3, 3, 3)]) == 2 * 16 * 6 * 6 * 3 * 3 * 3
    True
    """
    if not outputs or len(inputs) < 2:
        return 0
    first, second, made = inputs[0], inputs[1], math.prod(outputs[0])
    if operator.endswith("ConvTranspose") or operator == "ConvolveBack":
        return 2 * math.prod(first) * math.prod(second[1:])
    if operator.endswith("Conv") or operator in ("Convolve", "ConvolveBiased"):
        return 2 * made * math.prod(second[1:])
    if operator == "KernelGradient":
        return 2 * made * second[0] * math.prod(second[2:])
    if operator.startswith(("Lstm", "Gru")):
        return 2 * math.prod(first[:2]) * math.prod(second)
    if operator in ("MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Multiply", "MultiplyBiased"):
        rows = outputs[0][-2] if len(first) > 1 and len(outputs[0]) > 1 else 1
        return 2 * made * (math.prod(first[-2:]) // rows if rows else 0)
    if operator in ("LSTM", "GRU", "RNN") and len(inputs) > 2:
        return 2 * math.prod(first[:2]) * (math.prod(second) + math.prod(inputs[2]))
    return 0


def _peaks(threads: int) -> tuple[float, float]:
    """Return the best rate of a matrix product, in operations per second, and of a pass over memory, in bytes."""
    generator = np.random.default_rng(0)
    square = generator.random((_PEAK_SIZE, _PEAK_SIZE), np.float32)
    product = _best("MatMul", [square, square], threads)
    long = np.ones(_PEAK_ELEMENTS, np.float32)
    return 2 * _PEAK_SIZE**3 / product, 2 * long.nbytes / _best("Neg", [long], threads)


def _best(operator: str, arrays: Sequence[np.ndarray], threads: int) -> float:
    """Return the shortest time of an operator, in seconds."""
    names = [f"x{i}" for i in range(len(arrays))]
    inputs = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, a.shape)
        for n, a in zip(names, arrays, strict=True)
    ]
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph([onnx.helper.make_node(operator, names, ["y"])], "peak", inputs, [output])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {n: onnxruntime.OrtValue.ortvalue_from_numpy(a) for n, a in zip(names, arrays, strict=True)}
    result = np.empty(arrays[0].shape, np.float32)
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(result))
    times = []
    for _ in range(1 + _PEAK_RUNS):
        began = time.perf_counter()
        session.run_with_iobinding(binding)
        times.append(time.perf_counter() - began)
    return min(times[1:])
