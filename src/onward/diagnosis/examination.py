"""Look at one ONNX file: does it run, where are its weights, what would be trained, and what blocks the rest."""

from __future__ import annotations

import collections
import dataclasses
import os
import re
import shlex
import tempfile
import warnings
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from onward.author import make_trainable
from onward.check import Report, check
from onward.compiler.compile import compile_model
from onward.diagnosis.weights import ATTRIBUTES, QUANTISED, Store, find_weights, fixed_weights, overflowing_weights
from onward.errors import Diagnostic, OnwardError
from onward.graph.closing import closing, maker
from onward.graph.schema import schema
from onward.graph.shapes import dims, infer_shapes
from onward.graph.walk import all_nodes, unmapped
from onward.model import serde
from onward.model.trainable import influential_nodes, obstacle
from onward.model.training_model import FLOAT_TYPES, TrainingModel
from onward.runtime import Runtime, ask, integer_products_saturate
from onward.storage.checkpoints import is_run
from onward.upgrade import normalise

_LOSSES = {
    "Softmax": "cross_entropy", "Sigmoid": "bce_with_logits", "SigmoidPair": "bce_with_logits", "LogSoftmax": "nll"
}  # fmt: skip
_TRIED = 6  # outputs for which a whole training step is built


@dataclasses.dataclass
class OutputAdvice:
    """One output of the model, and whether a loss may read it."""

    name: str
    kind: str
    shape: tuple[int | str | None, ...] | None
    readable: bool
    reason: str = ""
    loss: str = ""
    on: str = ""
    """The value that this loss should read: the logits in front of a Softmax."""
    axis: int | None = None
    """The axis of the classes, if it is not the one that this loss takes by itself."""
    by_name: bool = False
    """Whether it is the best class, whose scores the loss should read."""
    trains: bool | None = None
    """Whether a training step for it was built; None if that was not tried."""
    obstacles: tuple[Diagnostic, ...] = ()


@dataclasses.dataclass
class Diagnosis:
    """What `doctor` found. `ok` says whether something can be trained."""

    source: str
    producer: str
    ir_version: int
    opsets: dict[str, int]
    runtime: Runtime
    report: Report
    operators: dict[str, int]
    unknown: list[str]
    weights: dict[str, Store]
    outputs: list[OutputAdvice] = dataclasses.field(default_factory=list)
    parameters: dict[str, int] = dataclasses.field(default_factory=dict)
    """What would be trained by default, with the number of its elements."""
    left: dict[str, str] = dataclasses.field(default_factory=dict)
    """Floating-point weights that would not be trained, with the reason."""
    overflowing: list[str] = dataclasses.field(default_factory=list)
    """Weights of 8 bits whose products overflow in ONNX Runtime on this processor."""
    obstacles: tuple[Diagnostic, ...] = ()
    commands: list[str] = dataclasses.field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether a training step can be made of the file."""
        return bool(self.parameters)

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnosis as plain data."""
        found = dataclasses.asdict(dataclasses.replace(self, report=None, obstacles=(), outputs=[]))  # type: ignore[arg-type]  # replaced below
        found["report"] = [d.as_dict() for d in self.report.findings]
        found["obstacles"] = [d.as_dict() for d in self.obstacles]
        found["outputs"] = [
            {
                **dataclasses.asdict(dataclasses.replace(o, obstacles=())),
                "obstacles": [d.as_dict() for d in o.obstacles],
            }
            for o in self.outputs
        ]
        return {"format": 1, "ok": self.ok, **found}


def doctor(source: serde.Source) -> Diagnosis:
    """Return what can be done with a model and what stands in the way.

    The file is loaded and run by ONNX Runtime in a process of its own, with made-up inputs. For each output that a loss
    may read, a training step is built, so that everything that blocks a gradient is found before the first step.

    >>> from onward import samples
    >>> found = doctor(samples.perceptron())
    >>> found.ok, list(found.parameters), found.outputs[0].loss
    (True, ['W1', 'b1', 'W2', 'b2'], 'mse')

    Raises:
        ModelError: the file cannot be read or is not a model.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = _path(source, folder)
        proto, _ = serde.parse_proto(path)
        operators = collections.Counter(_operators(path))
        found = Diagnosis(
            source=str(source) if isinstance(source, str | os.PathLike) else "",
            producer=" ".join(filter(None, (proto.producer_name, proto.producer_version))),
            ir_version=proto.ir_version,
            opsets={o.domain or "ai.onnx": o.version for o in proto.opset_import},
            runtime=ask(path),
            report=check(path),
            operators=dict(operators.most_common()),
            unknown=[name for name in operators if _is_unknown(name, proto)],
            weights=find_weights(proto),
        )
        if QUANTISED in found.weights and integer_products_saturate():
            found.overflowing = overflowing_weights(proto)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they concern a real make_trainable
                _look_at_training(found, path)
        except OnwardError as error:
            found.obstacles = tuple(error.diagnostics)
        _advise(found)
        return found


def _path(source: serde.Source, folder: str) -> str:
    """Return the path of the file, which is written if the model is in memory or the state of a run."""
    if isinstance(source, str | os.PathLike) and not is_run(source):
        return os.fspath(source)
    path = Path(folder, "model.onnx")
    serde.save(serde.load(source), path)
    return str(path)


def _operators(path: str) -> list[str]:
    model = serde.load(path).ir
    nodes = [*all_nodes(model.graph), *(n for f in model.functions.values() for n in all_nodes(f))]
    return [f"{n.domain}::{n.op_type}" if n.domain not in ("", "ai.onnx") else n.op_type for n in nodes]


def _is_unknown(name: str, proto: onnx.ModelProto) -> bool:
    """Return whether neither onnx nor the model itself defines an operator."""
    domain, _, op_type = name.rpartition("::")
    own = {(f.domain, f.name) for f in proto.functions}
    return schema(op_type, domain) is None and (domain, op_type) not in own


def _look_at_training(found: Diagnosis, path: str) -> None:
    model = normalise(path, copy=True)
    infer_shapes(model.ir)
    for value in model.graph.outputs:
        found.outputs.append(_advice(value))
    if model.entries:  # it is a training model already
        compile_model(model)
        found.parameters = _sizes(model)
        found.left = dict.fromkeys(model.frozen, "the training entries of the file do not train it")
        return
    for advice in [o for o in found.outputs if o.readable][:_TRIED]:
        trained = _try_output(advice, path)
        if trained is not None and not found.parameters:
            found.parameters = _sizes(trained)
            found.left = _reasons(trained, advice.on)
    found.left |= fixed_weights(model)
    if not found.parameters:
        blocked = [_without_ourselves(d) for o in found.outputs for d in o.obstacles]
        found.obstacles = tuple(dict.fromkeys(blocked))


def _without_ourselves(diagnostic: Diagnostic) -> Diagnostic:
    """Return the diagnostic without the hint to ask the doctor, who is speaking."""
    return dataclasses.replace(diagnostic, hint=re.sub(r"(, and |; |^)`onward doctor [^;]*", "", diagnostic.hint))


def _sizes(model: TrainingModel) -> dict[str, int]:
    """Return the number of elements of each trained weight."""
    return {n: v.const_value.size if v.const_value else 0 for n, v in model.parameters.items()}


def _advice(value: ir.Value) -> OutputAdvice:
    kind = str(value.type).lower() if value.type is not None else "unknown"
    shape = dims(value)
    if unmapped(value) is not value:
        kind, shape = "map from class to probability", dims(unmapped(value))
    advice = OutputAdvice(value.name or "", kind, shape, readable=False)
    axis, value = 1, unmapped(value)
    made_by = maker(value)
    if made_by is not None and made_by.op_type == "ZipMap" and made_by.inputs[0] is not None:  # a map of probabilities
        value = made_by.inputs[0]
        made_by = maker(value)
    if made_by is not None and made_by.op_type == "Gather" and made_by.inputs[1] is not None:  # the name of a class
        best = maker(made_by.inputs[1])
        made_by = best if best is not None and best.op_type == "ArgMax" else made_by
    if made_by is not None and made_by.op_type == "ArgMax" and made_by.inputs[0] is not None:  # its scores are readable
        advice.loss, axis, value = "cross_entropy", made_by.attributes.get_int("axis", 0), made_by.inputs[0]
        advice.by_name = True
    if not isinstance(value.type, ir.TensorType):
        advice.reason = "it is not a tensor"
        return advice
    if value.dtype not in FLOAT_TYPES:
        advice.reason = f"it holds {kind}, which have no gradient"
        return advice
    advice.readable = True
    on = value
    activation = closing(value)
    if activation is not None and activation.kind in _LOSSES:
        advice.loss = advice.loss or _LOSSES[activation.kind]
        axis = activation.axis if not activation.kind.startswith("Sigmoid") else axis
        last = maker(value)
        assert last is not None
        on = last.outputs[0] if activation.kind == "LogSoftmax" else activation.before
    advice.on = on.name or ""
    if advice.loss in ("cross_entropy", "nll") and on.shape is not None:
        rank = len(on.shape)
        if rank < 2 or axis % rank == 0:  # these losses want the samples first
            advice.loss, advice.on = "", value.name or ""
        elif axis % rank != 1:
            advice.axis = axis % rank - rank
    advice.loss = advice.loss or "mse"
    return advice


def _try_output(advice: OutputAdvice, path: str) -> TrainingModel | None:
    """Build a training step whose loss reads the output; note what stands in the way."""
    try:
        model = make_trainable(path, loss="mse", output=advice.on, optimizer="sgd")
        compile_model(model)
    except OnwardError as error:
        advice.trains, advice.obstacles = False, tuple(error.diagnostics)
        return None
    advice.trains = True
    return model


def _reasons(model: TrainingModel, output: str) -> dict[str, str]:
    """Return why each weight that is not trained is not."""
    values = ir.convenience.create_value_mapping(model.graph)
    influential = influential_nodes([values[output]])
    frozen = [model.graph.initializers[name] for name in model.frozen]
    return {v.name or "": obstacle(v, influential) or "no gradient reaches it" for v in frozen}


def _advise(found: Diagnosis) -> None:
    """Fill in the commands to run next."""
    file = found.source or "model.onnx"
    # Probabilities say which loss suits the scores before them; the name of the best class does not.
    best = min((o for o in found.outputs if o.trains), key=lambda o: o.by_name, default=None)
    if best is not None:
        on = f" --on {shlex.quote(best.on)}" if len(found.outputs) > 1 or best.on != best.name else ""
        on += f" --set-loss axis={best.axis}" if best.axis is not None else ""
        trainable = f"{Path(file).stem}_trainable.onnx"
        found.commands = [
            f"onward make-trainable {shlex.quote(file)} -o {shlex.quote(trainable)} --loss {best.loss}{on}",
            f"onward train {shlex.quote(trainable)} --data DATA",
        ]
    elif found.ok:
        found.commands = [f"onward train {shlex.quote(file)} --data DATA"]
    elif found.report.errors:
        found.commands = [f"onward check {shlex.quote(file)}"]


__all__ = ["ATTRIBUTES", "QUANTISED", "Diagnosis", "OutputAdvice", "doctor"]
