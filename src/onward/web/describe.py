"""What a page must know of a program: pictures or a form, the classes, how data is prepared."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from onward.compiler.program import PlainGraph, Program, TensorSpec
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph import shapes
from onward.graph.closing import closing
from onward.model.class_names import PREPARATION
from onward.model.task import Task
from onward.train.data.features import Feature
from onward.train.data.images import channels_of
from onward.train.data.preparation import Preparation
from onward.train.stored_model import preparation_text, stored_preparation

_FREE_SIZE = 224
"""The height and width of the pictures where the model takes any."""
_BYTE = 1 / 255
_MOST_COLUMNS = 4096
_TYPES = ("float32", "float64", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool")
"""The element types that JavaScript has arrays for."""


def prepared_program(
    program: Program, change: Callable[[Preparation], Preparation] | None, classes: Sequence[str]
) -> tuple[Program, list[str]]:
    """Return the program with its preparation and its class names in the inference graph, and notes on guesses.

    `change` and `classes` change what the model says. Where nothing is said about pictures, their bytes become 0 to 1.
    """
    notes: list[str] = []
    preparation = stored_preparation(program) or Preparation()
    if not _says_scale(program) and _picture(program) is not None:
        preparation = dataclasses.replace(preparation, scale=_BYTE)
    changed = preparation if change is None else change(preparation)
    if preparation.scale == changed.scale == _BYTE and not _says_scale(program):
        notes.append("the model does not say how its pictures are prepared: their bytes become 0 to 1 (--scale 1/255)")
    preparation = changed
    if classes:
        preparation = dataclasses.replace(preparation, classes=tuple(classes))
    model = program.infer_graph.copy_model()
    model.metadata_props.update(program.infer_graph.model.metadata_props)
    if text := preparation_text(preparation):
        model.metadata_props[PREPARATION] = text
    infer = PlainGraph(program.infer_graph.name, model, program.infer_graph.outputs)
    return dataclasses.replace(program, infer_graph=infer), notes


def _says_scale(program: Program) -> bool:
    try:
        return "scale" in json.loads(program.infer_graph.model.metadata_props.get(PREPARATION, "{}"))
    except (ValueError, TypeError):  # written by hand
        return False


def describe(program: Program, title: str = "") -> dict[str, Any]:
    """Return what the page must know; the program is one of `prepared_program`.

    Raises:
        ArgumentError: the program cannot be trained, or takes what a page cannot give; all problems at once.
    """
    _check(program)
    preparation = stored_preparation(program) or Preparation()
    task = _task(program)
    classes, target, ending = _classes(program, task, preparation), _target(program), _ending(program, task)
    if yes_or_no := _yes_or_no(program, task, classes):
        task, ending = dataclasses.replace(task, kind="classes"), "YesNo" if ending == "Sigmoid" else "YesNoLogit"
        given = list(preparation.classes)
        if len(given) > 2:
            text = "the model says yes or no of a picture, but there are more than two names of classes"
            raise ArgumentError(Diagnostic(A101, text, found=", ".join(given), needed="a name for no and one for yes"))
        classes = given if len(given) == 2 else [f"not {given[0]}", *given] if len(given) == 1 else ["no", "yes"]
    named = task.kind == "classes" and (yes_or_no or _names_a_class(target, classes))  # of labels, several may be right
    image = _picture(program) if len(program.targets) == 1 and named else None
    return {
        "format": "onward-site",
        "version": 1,
        "title": title or str(program.metadata.get("name") or "") or "A model",
        "kind": "image" if image is not None else "form",
        **({"image": image} if image is not None else {}),
        "task": {"kind": task.kind, "output": _output(program, task), "ending": ending},
        "classes": classes,
        "target": {"name": target.name},
        "fields": [
            *(_field(s, "input", preparation, []) for s in program.inputs if image is None),
            *(_field(s, "target", preparation, classes if s is target and named else []) for s in program.targets),
        ],
        "preparation": {name: _plain(getattr(preparation, name)) for name in ("scale", "mean", "std")},
        "rates": [{"name": n, "default": float(program.settings[n])} for n in program.learning_rates],
        "entries": list(program.phases),
        "batch": 32,
    }


def _check(program: Program) -> None:
    problems = []
    if not program.entries:
        problems.append(
            Diagnostic(A101, "the model has no training entry", hint="use onward.make_trainable(...) first")
        )
    elif not program.targets:
        problems.append(Diagnostic(A101, "the training reads no target, so there is nothing to tell the model"))
    for spec in (*program.inputs, *program.targets):
        if spec.dtype not in _TYPES:
            needed = f"one of: {', '.join(_TYPES)}"
            problems.append(Diagnostic(A101, f"a page cannot give `{spec.name}`", found=spec.dtype, needed=needed))
        elif sum(not isinstance(d, int) for d in spec.shape[1:]) > 1 and _picture(program) is None:
            problems.append(
                Diagnostic(
                    A101,
                    f"a page cannot give `{spec.name}`: more than one of its sizes is free",
                    found=str(list(spec.shape)),
                    needed="at most one free size beside that of the batch",
                )
            )
    any_batch = any(spec.shape and not isinstance(spec.shape[0], int) for spec in program.inputs)
    for spec in program.inputs:
        if not spec.shape or (any_batch and isinstance(spec.shape[0], int)):
            found = str(list(spec.shape)) if spec.shape else "a single number"
            needed = "an input whose first size is that of the batch: a person gives one sample after the other"
            problems.append(Diagnostic(A101, f"a page cannot give `{spec.name}`", found=found, needed=needed))
    if problems:
        raise ArgumentError(problems)


def _task(program: Program) -> Task:
    found = Task.of_metadata(program.infer_graph.model.metadata_props)
    said = "classes" if found is None and _target(program).name in program.class_targets else getattr(found, "kind", "")
    kind = said if said in ("classes", "labels") else "values"
    output = next(v for v in program.infer_graph.model.graph.outputs if v.name == _output(program, found))
    flat = len(shapes.dims(output) or ()) == 2
    return Task(kind if flat else "values", 1, output="" if found is None else found.output)


def _output(program: Program, task: Task | None) -> str:
    names = list(program.infer_graph.output_names)
    return task.output if task is not None and task.output in names else names[0]


def _ending(program: Program, task: Task) -> str:
    name = _output(program, task)
    found = closing(next(v for v in program.infer_graph.model.graph.outputs if v.name == name))
    return "" if found is None else found.kind


def _classes(program: Program, task: Task, preparation: Preparation) -> list[str]:
    """Return the names of the classes or labels, numbers where the model has no names; none for plain numbers."""
    if task.kind == "values":
        return []
    output = next(v for v in program.infer_graph.model.graph.outputs if v.name == _output(program, task))
    width = (shapes.dims(output) or (None, None))[1]
    count = width if isinstance(width, int) else len(preparation.classes)
    return list(preparation.classes) if len(preparation.classes) == count else [str(i) for i in range(count)]


def _yes_or_no(program: Program, task: Task, labels: Sequence[str]) -> bool:
    """Return whether the model says of a picture how likely one thing is: two classes for who shows it some."""
    single = len(program.targets) == 1 and tuple(program.targets[0].shape[1:]) in ((), (1,))
    return task.kind == "labels" and len(labels) == 1 and single and _picture(program) is not None


def _target(program: Program) -> TensorSpec:
    """Return the target that the loss of the first entry compares with the output; the first where that is unknown."""
    read = [] if program.first is None else [r.target for r in program.first.readings]
    return next((t for t in program.targets if t.name in read), program.targets[0])


def _names_a_class(target: TensorSpec, classes: Sequence[str]) -> bool:
    """Return whether a target is the number of a class, or a row with 1 for the class and 0 for the others."""
    return bool(classes) and (_is_index(target) or _is_row(target, classes))


def _is_row(target: TensorSpec, classes: Sequence[str]) -> bool:
    return len(classes) > 1 and tuple(target.shape[1:]) == (len(classes),)


def _is_index(target: TensorSpec) -> bool:
    return target.dtype.startswith(("int", "uint")) and len(target.shape) == 1


def _picture(program: Program) -> dict[str, Any] | None:
    """Return the picture that the model takes; None if it takes something else."""
    if len(program.inputs) != 1 or len(program.inputs[0].shape) != 4:
        return None
    (spec,) = program.inputs
    layout = channels_of([d if isinstance(d, int) else 0 for d in spec.shape[1:]])
    sizes = dict(zip(layout, spec.shape[1:], strict=True))
    if sizes["C"] not in (1, 3) or spec.dtype not in ("float32", "float64", "uint8"):
        return None
    height, width = (s if isinstance(s, int) else _FREE_SIZE for s in (sizes["H"], sizes["W"]))
    return {"input": spec.name, "channels": sizes["C"], "height": height, "width": width, "layout": layout}


def _field(spec: TensorSpec, role: str, preparation: Preparation, classes: Sequence[str]) -> dict[str, Any]:
    """Return one group of the form: a class, or numbers with the names that the training table gave them."""
    dims = spec.shape[1:]
    count = math.prod(d for d in dims if isinstance(d, int)) if all(isinstance(d, int) for d in dims) else None
    found: dict[str, Any] = {"name": spec.name, "role": role, "dtype": spec.dtype, "count": count}
    columns = list(preparation.table.get(spec.name, ()))
    if classes:
        return {**found, "classes": True, "one_hot": _is_row(spec, classes), "column": (columns or [spec.name])[0]}
    features: Sequence[Feature] = preparation.features.get(spec.name, ())
    if not features and count is not None and count <= _MOST_COLUMNS:
        names = columns if len(columns) == count else [spec.name] if count == 1 else _numbered(spec.name, count)
        features = [Feature(name) for name in names]
    return {**found, "classes": False, "features": [f.as_dict() for f in features]}


def _numbered(name: str, count: int) -> list[str]:
    return [f"{name}_{i}" for i in range(count)]


def _plain(value: Any) -> Any:
    return [float(v) for v in value] if isinstance(value, (list, tuple)) else float(value)
