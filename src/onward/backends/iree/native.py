"""`write_native`: a program as a directory with one native binary for each graph (docs/native.md)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shlex
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.backends.iree.compiler import FUNCTION, Binary, Limits, compile_cached, version
from onward.backends.iree.session import refused
from onward.backends.iree.static import static_program
from onward.backends.iree.targets import NARROW_INTEGERS, Target
from onward.backends.iree.verify import check_graph
from onward.compiler.make_self_test import make_self_test
from onward.compiler.package import graph_files, write_program
from onward.compiler.program import PlainGraph, Program
from onward.errors import A101, ArgumentError, BackendError, Diagnostic
from onward.graph import shapes
from onward.model.roles import RANDOM_KEY, RANDOM_STEP
from onward.runtime import this_processor
from onward.storage.tensor_file import tensor_file_chunks

B501 = "B501"

ARGUMENTS = "arguments.txt"

_KINDS = ("step", "evaluate", "infer", "initialize", "rate")
_ALLOCATED = 2  # the flag of a section of an ELF file that takes memory when the program runs
Arrays = Mapping[str, np.ndarray]
Execute = Callable[[bytes, str, Sequence[np.ndarray], int], list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Compiled:
    """One graph of a native program."""

    role: str
    file: str
    binary: Binary
    code: int
    """The bytes of machine code and constants; of a module, also its bytecode."""
    peak: int
    """The bytes of inputs, outputs and intermediate values while it runs."""


@dataclasses.dataclass(frozen=True)
class Native:
    """What `write_native` wrote."""

    graphs: tuple[Compiled, ...]
    compared: int
    """The number of outputs that were compared with ONNX Runtime; 0 for what was compiled and not run."""


def write_native(
    program: Program,
    directory: str | os.PathLike[str],
    target: Target,
    *,
    batch: int | None = None,
    sizes: Mapping[str, int] | None = None,
    self_test: Mapping[str, Any] | None = None,
    runner: str = "",
    limits: Limits | None = None,
) -> Native:
    """Write a program for one machine and one size of batches: all files, or none.

    Beside its binaries it has the graphs, the state and the self-test of an ordinary program. Binaries for this machine
    run the self-test first, and so do others if `runner` is a command that does what `iree-run-module` does; each
    output must be what ONNX Runtime computes.

    Raises:
        ArgumentError: sizes are missing, or no batch for the self-test can be made.
        BackendError: a graph cannot be compiled, or computes something else.
        ModelError: the directory cannot be written.
    """
    if NARROW_INTEGERS in target.flags and RANDOM_KEY in program.state:
        raise ArgumentError(
            Diagnostic(
                A101,
                "the model draws random numbers, which need integers of 64 bits",
                hint="keep int64, or remove Dropout and other random operators",
            )
        )
    static = static_program(program, batch, sizes or {})
    problems = [p for graph in static.graphs() for p in refused(graph)]
    if problems:
        raise BackendError(problems)
    test = make_self_test(static, self_test) if static.entries else None
    chosen = {f: (r, g) for f, (r, g) in graph_files(static).items() if r.partition(":")[0] in _KINDS}
    limits = limits or Limits()
    made = [_compiled(file, role, graph, target, limits) for file, (role, graph) in chosen.items()]
    execute: Execute | None = _on_command(runner) if runner else _on_host if target.here else None
    compared = 0
    if execute is not None and test is not None:
        pairs = [(graph, each) for (_, graph), each in zip(chosen.values(), made, strict=True)]
        compared = _verify_all(static, pairs, test.batch, target, limits, execute)
    write_program(
        static,
        directory,
        self_test=False if test is None else test.batch,
        native=_parts(static, made, chosen, target, compared),
    )
    return Native(tuple(made), compared)


def _compiled(file: str, role: str, graph: PlainGraph, target: Target, limits: Limits) -> Compiled:
    name = file.removesuffix(".onnx").replace("-", "_")
    binary = compile_cached(graph.proto(), name, f"the {graph.name} graph", target, limits)
    values = (*graph.model.graph.inputs, *graph.model.graph.outputs)
    size = sum(math.prod(shapes.static_shape(v) or ()) * (v.dtype.itemsize if v.dtype else 0) for v in values)
    code = len(binary.code) if not target.library else allocated_bytes(binary.parts[".o"]) if binary.parts else 0
    ending = ".c" if target.library else ".vmfb"
    return Compiled(role, file.replace(".onnx", ending), binary, code, math.ceil(size) + binary.scratch)


def _files(made: Sequence[Compiled]) -> Iterator[tuple[str, bytes]]:
    for each in made:
        yield each.file, each.binary.code
        for ending, content in each.binary.parts.items():
            yield Path(each.file).with_suffix(ending).name, content


def _parts(
    program: Program,
    made: Sequence[Compiled],
    chosen: Mapping[str, tuple[str, PlainGraph]],
    target: Target,
    compared: int,
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return the files of the binaries, and what the manifest says of them."""
    files, manifest = dict(_files(made)), _described(made, chosen, target, compared)
    text = "".join(f"{line}\n" for line in _arguments(program, made, chosen)).encode()
    files[ARGUMENTS] = text
    manifest["arguments"] = {"file": ARGUMENTS, "sha256": hashlib.sha256(text).hexdigest()}
    return files, manifest


def _arguments(
    program: Program, made: Sequence[Compiled], chosen: Mapping[str, tuple[str, PlainGraph]]
) -> Iterator[str]:
    """Yield the arguments of the functions, one a line, for programs that read no JSON.

    function, `input` or `output`, role, element type, shape, where, name. Where: of a state that goes in, its first
    byte in state.safetensors; of a state that comes out, the number of the input that it replaces, or - if it is none;
    of a setting, its default.
    """
    content = b"".join(bytes(c) for c in tensor_file_chunks(program.state, {}))
    length = 8 + int.from_bytes(content[:8], "little")
    starts = {n: length + t["data_offsets"][0] for n, t in json.loads(content[8:length]).items() if n != "__metadata__"}
    targets = {s.name for s in program.targets}
    losses = {e.loss for e in program.entries.values()}
    for each, (_, graph) in zip(made, chosen.values(), strict=True):
        function, numbers = _function(each), {n: k for k, n in enumerate(graph.input_names)}
        for value in graph.model.graph.inputs:
            name, where = value.name or "", "-"
            role = "target" if name in targets else "data"
            if name in program.settings:
                role, where = "setting", ",".join(map(str, np.ravel(program.settings[name]).tolist()))
            elif name in program.state:
                role, where = "state", str(starts[name])
            yield f"{function} input {role} {_shaped(value)} {where} {name}"
        for value in graph.model.graph.outputs:
            name, where = value.name or "", "-"
            role = "loss" if name in losses else "output"
            if name in graph.replaces:
                role, where = "state", str(numbers.get(graph.replaces[name], "-"))
            yield f"{function} output {role} {_shaped(value)} {where} {name}"


def _shaped(value: ir.Value) -> str:
    assert value.dtype is not None
    return f"{value.dtype.numpy()} {','.join(map(str, shapes.static_shape(value) or ())) or 'scalar'}"


def _function(compiled: Compiled) -> str:
    return f"{Path(compiled.file).stem.replace('-', '_')}.{FUNCTION}"


def _described(
    made: Sequence[Compiled], chosen: Mapping[str, tuple[str, PlainGraph]], target: Target, compared: int
) -> dict[str, Any]:
    """Return what the manifest says of the binaries."""
    graphs = {}
    for each, (_, graph) in zip(made, chosen.values(), strict=True):
        files = dict(_files([each]))
        graphs[each.role] = {
            "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
            "function": _function(each),
            "inputs": list(graph.input_names),
            "outputs": list(graph.output_names),
            "code_bytes": each.code,
            "peak_bytes": each.peak,
        }
    return {
        "target": f"iree:{target.name}",
        "compiler": f"iree {version()}",
        **({"processor": this_processor()} if target.here else {}),
        "flags": list(target.flags),
        "compared_outputs": compared,
        "graphs": graphs,
    }


# ------------------------------------------------------------------ the self-test


def _verify_all(
    program: Program,
    pairs: Sequence[tuple[PlainGraph, Compiled]],
    batch: Arrays,
    target: Target,
    limits: Limits,
    execute: Execute,
) -> int:
    """Run each graph whose inputs the self-test has, and return how many outputs were compared.

    Those that read a state of zeros run once more, with the state after one step: a momentum that is wrong shows only
    when it is multiplied with something.
    """
    random = {RANDOM_KEY: np.array(0, np.int64), RANDOM_STEP: np.array(0, np.int64)}
    known = {**random, **program.settings, **program.state, **batch}
    fixed = {*program.settings, *(s.name for s in program.targets)}
    later, compared = dict(known), 0
    fed = [(graph, each) for graph, each in pairs if all(name in known for name in graph.input_names)]
    for graph, each in fed:
        found = _verify(graph, each, known, fixed, target, limits, execute)
        if each.role.partition(":")[0] == "step":
            later.update({state: found[output] for output, state in graph.replaces.items()})
        compared += len(found)
    for graph, each in fed:
        if any(not known[name].any() and later[name].any() for name in graph.input_names):
            _verify(graph, each, later, fixed, target, limits, execute)
    return compared


def _verify(
    graph: PlainGraph,
    compiled: Compiled,
    known: Arrays,
    fixed: set[str],
    target: Target,
    limits: Limits,
    execute: Execute,
) -> dict[str, np.ndarray]:
    """Run one graph, and return its outputs if they are those of ONNX Runtime."""
    feeds = {name: known[name] for name in graph.input_names}
    name = Path(compiled.file).stem.replace("-", "_")

    def run(code: bytes, module: str, values: Arrays, outputs: Sequence[str]) -> dict[str, np.ndarray]:
        return dict(zip(outputs, execute(code, module, list(values.values()), len(outputs)), strict=True))

    def again(model: onnx.ModelProto, values: Arrays) -> dict[str, np.ndarray]:
        binary = compile_cached(model, "again", f"the {graph.name} graph with all results", target, limits)
        return run(binary.code, "again", values, [v.name for v in model.graph.output])

    found = run(compiled.binary.code, name, feeds, graph.output_names)
    check_graph(graph, graph.proto(), feeds, fixed, found, again)
    return found


def _on_host(code: bytes, name: str, values: Sequence[np.ndarray], count: int) -> list[np.ndarray]:
    from onward.backends.iree.module import Device, Module, to_numpy

    return [to_numpy(v) for v in Module(code, Device(1), f"`{name}`")(values)]


def _on_command(runner: str) -> Execute:
    """Return a function that runs a module with a command such as `iree-run-module`, in a process of its own."""

    def execute(code: bytes, name: str, values: Sequence[np.ndarray], count: int) -> list[np.ndarray]:
        with tempfile.TemporaryDirectory(prefix="onward-iree-") as folder:
            module = Path(folder) / f"{name}.vmfb"
            module.write_bytes(code)
            for number, value in enumerate(values):
                np.save(Path(folder) / f"{number}.npy", value)
            command = [
                *shlex.split(runner),
                "--device=local-sync",
                f"--module={module}",
                f"--function={FUNCTION}",
                *(f"--input=@{folder}/{number}.npy" for number in range(len(values))),
                *(f"--output=@{folder}/out{number}.npy" for number in range(count)),
            ]
            try:
                done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=600)
                said = done.stderr.strip() or done.stdout.strip()
                if done.returncode == 0:
                    return [np.load(Path(folder) / f"out{number}.npy") for number in range(count)]
            except (OSError, subprocess.TimeoutExpired, ValueError) as error:
                said = str(error)
            raise BackendError(
                Diagnostic(
                    B501,
                    f"the runner could not run `{name}`",
                    place=runner,
                    found=said[-300:] or "no message",
                    needed="a command that takes the arguments of iree-run-module",
                )
            )

    return execute


def allocated_bytes(elf: bytes) -> int:
    """Return the bytes of an ELF object that take memory on the machine: code, constants, data."""
    wide, order = elf[4] == 2, "<" if elf[5] == 1 else ">"
    word = f"{order}Q" if wide else f"{order}I"

    def number(at: int) -> int:
        return int(struct.unpack_from(word, elf, at)[0])

    first = number(0x28 if wide else 0x20)
    length, count = struct.unpack_from(f"{order}HH", elf, 0x3A if wide else 0x2E)
    sections = [first + index * length for index in range(count)]
    return sum(number(at + (32 if wide else 20)) for at in sections if number(at + 8) & _ALLOCATED)
