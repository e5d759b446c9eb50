"""The training objective: a weighted sum of losses over outputs and labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from onward.arguments import check_number
from onward.author.labels import LabelArgument, find_value, label_specs, wrong_outputs
from onward.author.scale import A115, check_scale
from onward.author.teacher import check_taught
from onward.author.training_mode import TrainingForward
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Names, Value
from onward.graph.shapes import infer, infer_shapes
from onward.graph.walk import reads, unmapped
from onward.losses import NAMES, Distillation, LabelSpec, Loss, by_name, custom
from onward.losses.base import ANY_NUMBER
from onward.model.roles import Role, mark
from onward.model.training_model import FLOAT_TYPES, TrainingModel
from onward.storage.writer import Writer, put_light, value_info


@dataclasses.dataclass(frozen=True)
class Term:
    """One loss with its weight, and the names of the outputs and labels it reads (None: not given)."""

    weight: float
    loss: Loss
    outputs: tuple[str, ...] | None
    label: LabelArgument


@dataclasses.dataclass
class BoundTerm:
    weight: float
    loss: Loss
    outputs: list[Value]
    labels: list[str]
    teacher: list[Value] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Terms:
    """The losses with the values that they read, and all label inputs."""

    terms: list[BoundTerm]
    labels: dict[str, LabelSpec]

    @property
    def outputs(self) -> list[Value]:
        """The values that the losses read, each once."""
        return list(dict.fromkeys(v for t in self.terms for v in t.outputs))

    def functions(self) -> list[ir.Function]:
        """Return the functions that the losses call."""
        return [function for term in self.terms for function in term.loss.functions()]

    def label_inputs(self) -> list[Value]:
        """Return the label inputs as values."""
        return [ir.Value(name=n, type=ir.TensorType(s.dtype), shape=ir.Shape(s.shape)) for n, s in self.labels.items()]


@dataclasses.dataclass(frozen=True)
class Objective:
    """A weighted sum of losses that is not bound to a model yet."""

    terms: tuple[Term, ...]

    def describe(self) -> str:
        """Return the losses as text, for the metadata of the file."""
        return " + ".join(repr(t.loss) if t.weight == 1 else f"{t.weight:g} * {t.loss!r}" for t in self.terms)

    @property
    def losses(self) -> list[Loss]:
        """The loss of each term."""
        return [term.loss for term in self.terms]

    def bind(self, graph: ir.Graph, names: Names, teacher: Mapping[str | None, Value] | None = None) -> Terms:
        """Return the losses bound to values of `graph`, and of the teacher by their names; None is its logits.

        Raises:
            ArgumentError: a name does not fit.
        """
        values = ir.convenience.create_value_mapping(graph)
        bound: list[BoundTerm] = []
        labels: dict[str, LabelSpec] = {}
        for term in self.terms:
            wanted, loss_name = term.loss.num_outputs, type(term.loss).__name__
            if term.outputs is None:
                outputs = list(graph.outputs)
            else:
                outputs = [unmapped(find_value(values, name, graph)) for name in term.outputs]
            if wanted not in (len(outputs), ANY_NUMBER):
                raise wrong_outputs(outputs, wanted, loss_name, given=term.outputs is not None)
            if wanted != ANY_NUMBER:
                _check_floating(outputs, loss_name)
            check_scale(term.loss, outputs)
            specs = label_specs(term.label, term.loss.labels(outputs), names)
            for name, spec in specs.items():
                if labels.setdefault(name, spec) != spec:
                    raise ArgumentError(
                        Diagnostic(
                            A115,
                            f"two losses read label `{name}` in different ways",
                            place="label=",
                            found=f"{labels[name]} and {spec}",
                            hint="give each loss its own label: label={'output': 'label name'}",
                        )
                    )
            given: list[Value] = []
            if isinstance(term.loss, Distillation):
                assert teacher is not None
                outputs += [find_value(values, name, graph) for name in term.loss.features]
                given = [teacher[name] for name in term.loss.teacher_values]
                check_taught(outputs, given)
            bound.append(BoundTerm(term.weight, term.loss, outputs, list(specs), given))
        return Terms(bound, labels)


def resolve_loss(loss: Any, output: str | Sequence[str] | None, label: LabelArgument) -> Objective:
    """Return the objective that the arguments of `make_trainable` describe."""
    if not isinstance(loss, Mapping):
        chosen = None if output is None else (output,) if isinstance(output, str) else tuple(output)
        return Objective((Term(1.0, as_loss(loss), chosen, label),))
    if output is not None:
        raise ArgumentError(Diagnostic(A101, "output= cannot be combined with a mapping of losses", place="output="))
    terms = []
    for name, given in loss.items():
        weight, single = 1.0, given
        if isinstance(given, tuple):
            single, weight = given
            check_number("weight", weight, f"loss of output `{name}`")
        terms.append(Term(float(weight), as_loss(single), (name,), _label_for(name, label, len(loss))))
    if not terms:
        raise ArgumentError(Diagnostic(A101, "the mapping of losses is empty", place="loss="))
    return Objective(tuple(terms))


def _label_for(output: str, label: LabelArgument, count: int) -> LabelArgument:
    if isinstance(label, Mapping):
        given = label.get(output, f"labels/{output}")
        return given if isinstance(given, str) else {f"labels/{output}": given}
    if isinstance(label, str):
        return label if count == 1 else f"{label}/{output}"
    return label


def as_loss(given: Any) -> Loss:
    """Return a `Loss` for whatever `make_trainable(loss=...)` accepts."""
    if isinstance(given, Loss):
        return given
    if isinstance(given, str):
        return by_name(given)
    if isinstance(given, type) and issubclass(given, Loss):
        return next((by_name(name) for name, kind in NAMES.items() if kind is given), None) or given()
    own = custom(given)
    if own is not None:
        return own
    raise ArgumentError(
        Diagnostic(
            A101,
            "invalid loss",
            place="loss=",
            found=repr(given)[:200],
            needed="a name or object of onward.losses, an ONNX function or model, or lambda op, outputs, labels: value",
        )
    )


def _check_floating(outputs: Sequence[Value], loss_name: str) -> None:
    problems = [
        Diagnostic(
            A115,
            f"`{loss_name}` cannot read output `{value.name}`",
            place="output=",
            found=str(value.type).lower(),
            needed="a floating-point tensor",
        )
        for value in outputs
        if value.type is not None and not (isinstance(value.type, ir.TensorType) and value.dtype in FLOAT_TYPES)
    ]
    if problems:
        raise ArgumentError(problems)


def build_loss(
    work: TrainingModel,
    terms: Terms,
    forward: TrainingForward,
    labels: Sequence[Value],
    names: Names,
    loss_name: str,
    weights: Sequence[Value] = (),
) -> tuple[list[ir.Node], Value]:
    """Emit the losses over the training-mode forward; return the nodes and the checked loss.

    `weights` are initializers of the algorithm that the forward reads: those of a teacher.
    """
    op = Builder(work.opset, names, prefix="loss/")
    by_label = {v.name or "": v for v in labels}
    kinds = {term.outputs[0].dtype for term in terms.terms}
    total: Value | None = None
    for term in terms.terms:
        outputs = [*(forward.value(v) for v in term.outputs), *term.teacher]
        value = term.loss.emit(op, outputs, [by_label[n] for n in term.labels])
        if len(kinds) > 1:  # in float16, the loss of a float output may be infinite
            value = op.cast(value, ir.DataType.DOUBLE if ir.DataType.DOUBLE in kinds else ir.DataType.FLOAT)
        if term.weight != 1.0:
            value = op.Mul(value, term.weight)
        total = value if total is None else op.Add(total, value)
    assert total is not None
    if total.producer() not in set(op.nodes):
        total = op.Identity(total)
    total.name = loss_name
    mark(total, Role.LOSS)
    _infer(work, [*forward.nodes, *op.nodes], labels, total, weights)
    _check_fit(work, op.nodes)
    _check_scalar(total)
    return op.nodes, total


def _infer(
    work: TrainingModel, nodes: Sequence[ir.Node], labels: Sequence[Value], loss: Value, weights: Sequence[Value]
) -> None:
    """Infer the types and shapes of forward pass and loss with onnx."""
    probe = ir.Graph(list(labels), [loss], nodes=nodes, initializers=weights, name="loss")
    try:
        infer_shapes(work.ir, probe)
    finally:  # the algorithm will own the nodes
        probe.outputs.clear()
        probe.inputs.clear()
        probe.initializers.clear()
        probe.remove(list(probe))


def _check_scalar(loss: Value) -> None:
    """Raise unless the loss is one floating-point number."""
    if loss.dtype is not None and loss.dtype not in FLOAT_TYPES:
        raise ArgumentError(
            Diagnostic(A115, "the loss is not a floating-point number", place="loss=", found=loss.dtype.name.lower())
        )
    sizes = [] if loss.shape is None else [d if isinstance(d, int) else (d.value or "?") for d in loss.shape]
    if sizes:
        raise ArgumentError(
            Diagnostic(
                A115,
                "the loss is not one number",
                place="loss=",
                found=f"shape {sizes}",
                needed="a scalar",
                hint='use reduction="mean" or "sum", or reduce your own loss with op.ReduceMean(value, keepdims=0)',
            )
        )
    loss.shape = ir.Shape([])


def _check_fit(work: TrainingModel, nodes: Sequence[ir.Node]) -> None:
    """Raise if the loss does not accept the types and shapes of what it reads."""
    own = set(nodes)
    read = dict.fromkeys(v for n in nodes for v in reads(n) if v.producer() not in own)
    model = onnx.ModelProto()
    light = Writer(put_light([]))
    light.model(model, work.ir)
    del model.graph.node[:], model.graph.input[:], model.graph.output[:], model.graph.value_info[:]
    for value in read:
        if value.name not in work.graph.initializers:
            value_info(model.graph.input.add(), value)
    for node in nodes:
        light.node(model.graph.node.add(), node)
    try:
        infer(model, strict=True)
    except onnx.shape_inference.InferenceError as error:
        raise ArgumentError(
            Diagnostic(A115, "the loss does not accept the outputs and labels", place="loss=", found=str(error))
        ) from error


__all__ = ["A115", "Objective", "Term", "Terms", "as_loss", "build_loss", "resolve_loss"]
