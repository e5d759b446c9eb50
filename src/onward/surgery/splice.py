"""Cut a network at a value, and attach another graph to one: the surgery that `replace_head` is made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from onward.arguments import did_you_mean, nearest, shown
from onward.errors import A100, A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Names, Value
from onward.graph.edit import copy_nodes, remove_dead_nodes
from onward.graph.shapes import dims, infer_shapes
from onward.graph.walk import all_names, reads, sequence_of
from onward.model import serde
from onward.model.trainable import as_patterns
from onward.model.training_model import TrainingModel
from onward.upgrade import normalise, upgrade

A132 = "A132"
A133 = "A133"

HeadSource = (
    str
    | Path
    | bytes
    | onnx.ModelProto
    | onnx.GraphProto
    | onnx.FunctionProto
    | TrainingModel
    | Callable[..., Value]
    | Any
)


def cut(model: serde.Source, at: str | Sequence[str]) -> TrainingModel:
    """Return the network up to the values `at`, which become its outputs; all that only the rest needs is left out.

    `model` does not change.

    >>> from onward import samples
    >>> cut(samples.perceptron(), "Relu:out").outputs
    ['Relu:out']

    Raises:
        ArgumentError: there is no such value; lists all of them.
    """
    work = open_copy(model)
    values = find_values(work.graph, as_patterns(at), "at=")
    if not values:
        raise ArgumentError(
            Diagnostic(A101, "a cut needs a value", place="at=", needed="the name of a value, or several")
        )
    set_outputs(work.graph, values)
    remove_unused(work.graph)
    return work


def attach(model: serde.Source, head: HeadSource, at: str | Sequence[str] | None = None) -> TrainingModel:
    """Return the network with `head` attached to the values `at` (default: all outputs).

    The results of the head are outputs of the new network; the values that it reads no longer are. `model` does not
    change.

    Args:
        model: the network: a path, bytes, a `ModelProto` or a `TrainingModel`.
        head: an ONNX model, graph or function (also of onnxscript) whose inputs are the values `at`, in their order; or
            `lambda op, value: value`, which computes with the operators of ONNX.
        at: names of values of the network.

    >>> from onward import samples
    >>> attach(samples.perceptron(), lambda op, y: op.Softmax(y)).outputs
    ['head/Softmax:out']

    Raises:
        ArgumentError: there is no such value, or the head does not fit; lists all problems.
    """
    work = open_copy(model)
    values = list(work.graph.outputs) if at is None else find_values(work.graph, as_patterns(at), "at=")
    made, _ = splice(work, head, values)
    kept = [v for v in work.graph.outputs if v not in values]
    set_outputs(work.graph, [*kept, *made])
    check_consistent(work)
    return work


def open_copy(model: serde.Source) -> TrainingModel:
    """Return a copy of the model with types and shapes, ready for surgery.

    Raises:
        ArgumentError: it has training entries, which read its values as they are.
    """
    work = normalise(serde.load(model), copy=True)
    refuse_entries(work)
    infer_shapes(work.ir)
    return work


def refuse_entries(work: TrainingModel) -> None:
    """Raise if the model has training entries."""
    if work.entries:
        raise ArgumentError(
            Diagnostic(
                A101,
                "a model with training entries cannot get another head: they read its values as they are",
                found=f"training entries: {', '.join(e.name for e in work.entries)}",
                hint="remove them first: onward.to_inference(model) (`onward strip`)",
            )
        )


def find_values(graph: ir.Graph, names: Sequence[str], place: str) -> list[Value]:
    """Return the values of `graph` with these names; raise for those that it does not have."""
    known = ir.convenience.create_value_mapping(graph)
    outputs = sequence_of(list(graph.outputs))
    problems = [
        Diagnostic(
            A100,
            f"no such value in the model `{name}`",
            place=place,
            needed=f"an output ({outputs}) or another value of the inference graph",
            hint=did_you_mean(nearest(str(name), sorted(known))),
        )
        for name in names
        if name not in known
    ]
    problems += [
        Diagnostic(A133, f"`{name}` is a weight", place=place, needed="a value that is computed, or an input")
        for name in names
        if name in known and known[name].is_initializer() and not known[name].is_graph_input()
    ]
    if problems:
        raise ArgumentError(problems)
    return [known[name] for name in names]


def set_outputs(graph: ir.Graph, values: Sequence[Value]) -> None:
    """Make `values` the outputs of `graph`."""
    graph.outputs.clear()
    graph.outputs.extend(dict.fromkeys(values))


def remove_unused(graph: ir.Graph) -> None:
    """Remove the nodes, weights and inputs that no output depends on."""
    remove_dead_nodes(graph)
    used = {v for node in graph for v in reads(node)} | set(graph.outputs)
    for name, value in list(graph.initializers.items()):
        if value not in used:
            del graph.initializers[name]
    kept = [v for v in graph.inputs if v in used]
    if len(kept) != len(graph.inputs):
        graph.inputs.clear()
        graph.inputs.extend(kept)


def check_consistent(work: TrainingModel) -> None:
    """Infer the types and shapes of the changed network; raise if they do not fit together."""
    if not infer_shapes(work.ir):
        raise ArgumentError(
            Diagnostic(
                A133,
                "the types or shapes of the changed network do not fit together",
                place=f"graph `{work.graph.name}`",
                hint="`onward check FILE` lists what does not fit in the file; cut= and head= must fit each other",
            )
        )


def splice(work: TrainingModel, head: HeadSource, values: Sequence[Value]) -> tuple[list[Value], list[str]]:
    """Add the nodes of `head`, which read `values`; return its results and the names of its weights."""
    names = Names(all_names(work.graph))
    source: Any = head.to_function_proto() if hasattr(head, "to_function_proto") else head
    if isinstance(source, onnx.FunctionProto):
        return _call(work, source, values, names), []
    if callable(source):
        return _compute(work, source, values, names)
    if isinstance(source, onnx.GraphProto):
        source = onnx.helper.make_model(source, opset_imports=[onnx.helper.make_opsetid("", work.opset)])
    if not isinstance(source, (str, os.PathLike, bytes, onnx.ModelProto, TrainingModel)):
        raise ArgumentError(
            Diagnostic(
                A101,
                "invalid head",
                place="head=",
                found=shown(head),
                needed="an ONNX model or its path, an ONNX graph or function, or lambda op, value: value",
            )
        )
    other = normalise(serde.load(Path(source) if isinstance(source, str) else source), copy=True)
    refuse_entries(other)
    if other.opset < work.opset:
        other = upgrade(other, work.opset)
    elif work.opset < other.opset:
        raised = upgrade(work, other.opset)
        work.ir, values = raised.ir, find_values(raised.graph, [v.name or "" for v in values], "at=")
    return _copy_in(work, other, values, names)


def _call(work: TrainingModel, proto: onnx.FunctionProto, values: Sequence[Value], names: Names) -> list[Value]:
    _check_inputs([(name, None) for name in proto.input], values, f"function `{proto.name}`")
    function = ir.serde.deserialize_function(proto)
    work.ir.functions[function.identifier()] = function
    for domain, version in [(proto.domain, 1), *((o.domain, o.version) for o in proto.opset_import)]:
        work.ir.opset_imports.setdefault(domain, version)
    op = Builder(work.opset, names, prefix="head/")
    made = op.call(proto.name, list(values), domain=proto.domain, overload=proto.overload, outputs=len(proto.output))
    for value in made:
        value.type = values[0].type
    work.graph.extend(op.nodes)
    return list(made)


def _compute(
    work: TrainingModel, function: Callable[..., Any], values: Sequence[Value], names: Names
) -> tuple[list[Value], list[str]]:
    op = Builder(work.opset, names, prefix="head/")
    made = function(op, *values)
    results = list(made) if isinstance(made, (list, tuple)) else [made]
    if not results or not all(isinstance(v, ir.Value) for v in results):
        raise ArgumentError(
            Diagnostic(
                A101,
                "the function of the head does not return a value of the graph",
                place="head=",
                found=shown(made),
                needed="the result of an operator, such as op.MatMul(...)",
            )
        )
    work.graph.extend(op.nodes)
    weights = [n.outputs[0].name or "" for n in op.nodes if n.op_type == "Constant" and _is_weight(n.outputs[0])]
    return results, weights


def _is_weight(value: Value) -> bool:
    tensor = value.const_value
    return tensor is not None and tensor.dtype.is_floating_point() and tensor.size > 1


def _copy_in(
    work: TrainingModel, other: TrainingModel, values: Sequence[Value], names: Names
) -> tuple[list[Value], list[str]]:
    graph = other.graph
    formal = [v for v in graph.inputs if v.name not in graph.initializers]
    _check_inputs([(v.name or "", v) for v in formal], values, f"model `{graph.name}`")
    copies: dict[Value, Value] = dict(zip(formal, values, strict=True))
    weights = []
    for name, value in graph.initializers.items():
        new = ir.Value(name=names.unique(name), type=value.type, shape=value.shape, const_value=value.const_value)
        work.graph.register_initializer(new)
        copies[value] = new
        weights.append(new.name or "")
    nodes = copy_nodes(graph, copies, names=names)
    work.graph.extend(nodes)
    for key, function in other.ir.functions.items():
        work.ir.functions[key] = function
    for domain, version in other.ir.opset_imports.items():
        work.ir.opset_imports.setdefault(domain, version)
    results = [copies[v] for v in graph.outputs]
    return results, weights


def _check_inputs(formal: Sequence[tuple[str, Value | None]], values: Sequence[Value], what: str) -> None:
    problems = []
    if len(formal) != len(values):
        problems.append(
            Diagnostic(
                A133,
                f"the {what} does not fit as a head",
                place="head=",
                found=f"inputs {', '.join(name for name, _ in formal) or '(none)'}",
                needed=f"one input for each of {sequence_of(values)}",
            )
        )
    for (name, wanted), given in zip(formal, values, strict=False):
        if wanted is not None and not _fits(wanted, given):
            problems.append(
                Diagnostic(
                    A133,
                    f"input `{name}` of the {what} does not take `{given.name}`",
                    place="head=",
                    found=described(given),
                    needed=described(wanted),
                )
            )
    if problems:
        raise ArgumentError(problems)


def _fits(wanted: Value, given: Value) -> bool:
    if wanted.dtype is not None and given.dtype is not None and wanted.dtype != given.dtype:
        return False
    one, other = dims(wanted), dims(given)
    if one is None or other is None:
        return True
    numbers = zip(one, other, strict=False)
    return len(one) == len(other) and all(
        a == b or not isinstance(a, int) or not isinstance(b, int) for a, b in numbers
    )


def described(value: Value) -> str:
    """Return the type and shape of a value as a message writes them."""
    kind = "unknown type" if value.dtype is None else value.dtype.name.lower()
    sizes = dims(value)
    return f"{kind} {shape_text(sizes)}"


def shape_text(sizes: Sequence[int | str | None] | None) -> str:
    """Return a shape as a message writes it: [N, 3, ?]."""
    if sizes is None:
        return "of unknown shape"
    short = ("?" if d is None or len(str(d)) > LONGEST_SIZE else str(d) for d in sizes)  # no formula of other sizes
    return f"[{', '.join(short)}]"


LONGEST_SIZE = 24  # letters


__all__ = ["A132", "A133", "HeadSource", "attach", "check_consistent", "cut", "find_values", "open_copy", "splice"]
