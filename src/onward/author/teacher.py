"""A teacher: a second model whose nodes become frozen nodes of the training algorithm."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onward.arguments import did_you_mean, nearest
from onward.author.training_mode import to_inference_mode
from onward.errors import ArgumentError, Diagnostic
from onward.graph.builder import Names, Value
from onward.graph.closing import closing
from onward.graph.edit import copy_nodes, copy_value
from onward.graph.shapes import infer_shapes
from onward.graph.walk import ancestors, reads
from onward.losses import Distillation, Loss
from onward.model import serde
from onward.model.roles import Role, mark
from onward.model.training_model import TrainingModel
from onward.upgrade import normalise, upgrade

A140 = "A140"
PREFIX = "teacher/"


@dataclasses.dataclass
class Teacher:
    """The nodes and weights of a teacher, as the algorithm holds them, and its values by their names in its file."""

    nodes: list[ir.Node] = dataclasses.field(default_factory=list)
    weights: list[Value] = dataclasses.field(default_factory=list)
    values: dict[str | None, Value] = dataclasses.field(default_factory=dict)


def read_teacher(source: serde.Source | None, losses: Iterable[Loss], work: TrainingModel) -> TrainingModel | None:
    """Return the teacher's inference graph at the opset of `work` or above; None without a teacher.

    Raises:
        ArgumentError: a loss reads a teacher and there is none, or the reverse.
    """
    readers = [loss for loss in losses if loss.reads_teacher]
    if source is None and readers:
        raise ArgumentError(
            Diagnostic(
                A140,
                f"`{type(readers[0]).__name__}` reads a teacher, and there is none",
                place="teacher=",
                hint='pass teacher="big.onnx"',
            )
        )
    if source is None:
        return None
    if not readers:
        raise ArgumentError(
            Diagnostic(
                A140,
                "no loss reads the teacher",
                place="teacher=",
                hint='pass loss="distillation"',
            )
        )
    model = normalise(source, copy=True)
    model.entries.clear()
    if model.opset < work.opset:
        model = upgrade(model, work.opset)
    InlinePass()(model.ir)
    to_inference_mode(model.graph)
    infer_shapes(model.ir)
    return model


def embed_teacher(model: TrainingModel, losses: Iterable[Loss], work: TrainingModel, names: Names) -> Teacher:
    """Return copies of the teacher's nodes that read the inputs of `work`; the weights are marked as frozen.

    Raises:
        ArgumentError: an input or value does not exist or does not fit; lists all of them.
    """
    wanted: dict[str | None, Value] = {}
    inputs: dict[str, str] = {}
    problems: list[Diagnostic] = []
    for loss in losses:
        if isinstance(loss, Distillation):
            inputs.update(loss.inputs)
            for name in loss.teacher_values:
                found = _value(model, name, problems)
                if found is not None:
                    wanted[name] = found
    needed = ancestors(wanted.values())
    nodes = [node for node in model.graph if node in needed]
    read = {v for node in nodes for v in reads(node)} | set(wanted.values())
    joined = _join_inputs(model, read, inputs, work, problems)
    _check_domains(model, work, problems)
    if problems:
        raise ArgumentError(problems)
    teacher = Teacher()
    values: dict[Value, Value] = dict(joined)
    for name, value in model.graph.initializers.items():
        if value in read and value not in values:
            values[value] = copy_value(value, names.unique(PREFIX + name))
            mark(values[value], Role.FROZEN)
            teacher.weights.append(values[value])
    teacher.nodes = copy_nodes(nodes, values, names=names, prefix=PREFIX)
    teacher.values = {name: values[value] for name, value in wanted.items()}
    for domain, version in model.ir.opset_imports.items():
        work.ir.opset_imports.setdefault(domain, version)
    return teacher


def check_taught(ours: Sequence[Value], theirs: Sequence[Value]) -> None:
    """Raise if a value of the teacher has another shape than that of the student which it teaches; lists all."""
    problems = [
        Diagnostic(
            A140,
            f"the teacher's value `{(given.name or '').removeprefix(PREFIX)}` has another shape than `{own.name}`",
            place="loss `Distillation`",
            found=_text(given),
            needed=_text(own),
        )
        for own, given in zip(ours, theirs, strict=True)
        if _difference(own, given, types=False)
    ]
    if problems:
        raise ArgumentError(problems)


def _value(model: TrainingModel, name: str | None, problems: list[Diagnostic]) -> Value | None:
    """Return the value that a loss reads: the logits of the only output, or one by its name."""
    if name is None:
        floating = [v for v in model.graph.outputs if v.dtype is None or v.dtype.is_floating_point()]
        if len(floating) == 1:
            found = closing(floating[0])
            return floating[0] if found is None or found.kind == "HardSigmoid" else found.before
        problems.append(
            Diagnostic(
                A140,
                f"the teacher has {len(floating)} outputs of floating-point numbers",
                place="teacher=",
                found=", ".join(f"`{v.name}`" for v in model.graph.outputs),
                hint='choose one: Distillation(teacher_output="name")',
            )
        )
        return None
    values = ir.convenience.create_value_mapping(model.graph)
    if name in values:
        return values[name]
    problems.append(
        Diagnostic(
            A140,
            f"the teacher has no value `{name}`",
            place="loss `Distillation`",
            needed="an output (" + ", ".join(f"`{v.name}`" for v in model.graph.outputs) + ") or another value",
            hint=did_you_mean(nearest(name, sorted(values))),
        )
    )
    return None


def _join_inputs(
    model: TrainingModel, read: set[Value], given: Mapping[str, str], work: TrainingModel, problems: list[Diagnostic]
) -> dict[Value, Value]:
    """Return the student's input for each input of the teacher: by the given names, by equal names, or in order."""
    ours = {v.name or "": v for v in work.graph.inputs if v.name not in work.graph.initializers}
    theirs = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
    in_order = dict(zip([v.name for v in theirs], ours.values(), strict=False)) if len(theirs) == len(ours) else {}
    by_name = all(v.name in ours or v.name in given for v in theirs if v in read)
    joined = {}
    for value in theirs:
        if value not in read:
            continue
        name = value.name or ""
        chosen = given.get(name, name if by_name else None)
        other = ours.get(chosen) if chosen is not None else in_order.get(name)
        if other is None:
            problems.append(
                Diagnostic(
                    A140,
                    f"no input of the student fits the teacher's input `{name}`",
                    place="teacher=",
                    found="inputs of the student: " + ", ".join(f"`{n}`" for n in ours),
                    hint=f'name it: Distillation(inputs={{"{name}": "the student\'s input"}})',
                )
            )
        elif _difference(value, other):
            problems.append(
                Diagnostic(
                    A140,
                    f"the teacher cannot read the student's input `{other.name}`",
                    place=f"the teacher's input `{name}`",
                    found=_text(other),
                    needed=_text(value),
                )
            )
        else:
            joined[value] = other
    return joined


def _text(value: Value) -> str:
    kind = "unknown" if value.dtype is None else value.dtype.name.lower()
    return kind if value.shape is None else f"{kind}[{', '.join(str(d) for d in value.shape)}]"


def _difference(theirs: Value, ours: Value, *, types: bool = True) -> bool:
    """Return whether the two cannot have the same element type and shape."""
    if types and None not in (theirs.dtype, ours.dtype) and theirs.dtype != ours.dtype:
        return True
    if theirs.shape is None or ours.shape is None:
        return False
    sizes = zip(theirs.shape, ours.shape, strict=False)
    different = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes)
    return different or len(theirs.shape) != len(ours.shape)


def _check_domains(model: TrainingModel, work: TrainingModel, problems: list[Diagnostic]) -> None:
    used = {n.domain for n in model.graph}
    for domain, version in model.ir.opset_imports.items():
        own = work.ir.opset_imports.get(domain)
        if domain in used and own is not None and own != version and domain not in ("", "ai.onnx"):
            problems.append(
                Diagnostic(
                    A140,
                    f"teacher and student use different versions of the operators of `{domain}`",
                    place="teacher=",
                    found=f"{version} and {own}",
                )
            )
