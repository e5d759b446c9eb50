"""Which graph of a model to write, at which level, and what its arguments and results are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx

from onward.arguments import check_name
from onward.compiler.compile import compile_model
from onward.compiler.core import lower_to_core
from onward.compiler.program import Entry, PlainGraph, Program
from onward.errors import A101, ArgumentError, Diagnostic
from onward.model import serde
from onward.model.inference import to_inference

MODEL, INFERENCE, STEP, EVALUATE, INITIALIZE = "model", "inference", "step", "evaluate", "initialize"
GRAPHS = (MODEL, INFERENCE, STEP, EVALUATE, INITIALIZE)
CORE, ANY_LEVEL = "core", "any"
LEVELS = (ANY_LEVEL, CORE)


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A graph to write: the model, and for a step what its arguments are and what its results replace."""

    proto: onnx.ModelProto
    roles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    replaces: Mapping[str, str] = dataclasses.field(default_factory=dict)


def default_graph(dialect: str) -> str:
    """Return the graph that is written where none is named: the whole file, if the dialect has training entries."""
    return MODEL if dialect == "onnx" else INFERENCE


def choose(source: serde.Source, graph: str, level: str, entry: str | None) -> Chosen:
    """Return the graph of a model that is asked for.

    The graphs of training are compiled with the portable profile, because other compilers read them.

    Raises:
        ArgumentError: the model has no such graph.
        ModelError, NotDifferentiable: it cannot be read or compiled.
    """
    check_name("graph", graph, GRAPHS)
    check_name("level", level, LEVELS)
    if entry is not None and graph not in (STEP, EVALUATE):
        raise ArgumentError(
            Diagnostic(
                A101,
                f"the graph `{graph}` belongs to no entry",
                found="entry=…",
                needed='graph="step" or graph="evaluate"',
            )
        )
    if graph in (MODEL, INFERENCE):
        proto = serde.read_proto(source)
        if proto.training_info and graph == INFERENCE:
            proto = to_inference(proto)
        elif proto.training_info and level == CORE:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "a file with training entries is not lowered to core operators as a whole",
                    found='graph="model", level="core"',
                    needed='graph="inference" or graph="step"',
                )
            )
        return Chosen(lower_to_core(proto) if level == CORE else proto)
    program = compile_model(source, core=level == CORE, profile="portable")
    found = program.initialize_graph if graph == INITIALIZE else _of_entry(program, graph, entry)
    if found is None:
        raise ArgumentError(
            Diagnostic(
                A101,
                f"the model has no graph `{graph}`",
                needed="a model with a training entry" if graph != INITIALIZE else "a model with an initialisation",
                hint="`onward make-trainable` adds them",
            )
        )
    return Chosen(found.proto(), _roles(program), found.replaces)


def _of_entry(program: Program, graph: str, name: str | None) -> PlainGraph | None:
    entry: Entry | None = program.first
    if name is not None:
        check_name("training entry", name, program.entries)
        entry = program.entries[name]
    return None if entry is None else entry.step if graph == STEP else entry.evaluate


def _roles(program: Program) -> dict[str, str]:
    """Return what the arguments of the program's graphs are."""
    roles = {spec.name: "input" for spec in program.inputs} | {spec.name: "target" for spec in program.targets}
    roles |= dict.fromkeys(program.settings, "setting") | dict.fromkeys(program.state, "state")
    return roles | dict.fromkeys(program.parameters, "parameter")
