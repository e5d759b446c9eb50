"""`replace_head`: a fresh last layer for other classes, by the graph, or at a place of one's own choice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onward.arguments import check_name
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Names, Value
from onward.graph.edit import replace_node
from onward.graph.shapes import dims, infer_shapes
from onward.graph.walk import all_names, constant_of
from onward.model import serde
from onward.model.class_names import set_class_names
from onward.model.stash import from_light, to_light
from onward.model.training_model import TrainingModel
from onward.runtime import evaluate
from onward.surgery.class_list import Classes, ClassList, read_classes
from onward.surgery.classifier import find_classifier, replace_classifier
from onward.surgery.head import Head, name_of
from onward.surgery.notes import NewHead, write_note
from onward.surgery.own_head import attach_head, fresh_weight
from onward.surgery.splice import (
    A133,
    HeadSource,
    check_consistent,
    open_copy,
    refuse_entries,
    remove_unused,
    set_outputs,
    shape_text,
)
from onward.surgery.which_head import find_head

ACTIVATIONS = ("keep", "softmax", "sigmoid", "none")


def replace_head(
    model: serde.Source,
    classes: Classes | None = None,
    *,
    output: str | None = None,
    cut: str | None = None,
    head: HeadSource | None = None,
    activation: str = "keep",
    blank: int | None = None,
    old_classes: Sequence[str] = (),
    seed: int = 0,
) -> TrainingModel:
    """Return the network with a fresh head for `classes`: the rest keeps its nodes, names and weights.

    Without `cut` and `head`, the last linear layer in front of the output is found by the graph (Gemm, MatMul, Conv or
    ConvTranspose, behind Softmax, Sigmoid, pooling, Flatten, Reshape and the like). It gets weights for the new number
    of classes, and all that depends on this number follows: biases, the shapes of Reshape nodes, the declared shapes.
    `model` does not change. A note in the metadata of the file (`onward.head`) says what was replaced.

    Args:
        model: a path, bytes, a `ModelProto` or a `TrainingModel` without training entries.
        classes: their number, their names, or the path of a file with one name a line.
        output: the output whose head is replaced, where the file has several.
        cut: the value that a new head reads. All that follows it is left out. Without `head`, the new head is a linear
            layer: over the channels of an image, averaged; over the last axis of a sequence; over a vector.
        head: an ONNX model, graph or function, or `lambda op, value: value`, to attach at `cut` (default: at what the
            last linear layer reads).
        activation: what closes the network: "keep" leaves it as it is, "softmax", "sigmoid" or "none" changes it.
        blank: the index of CTC's blank, a class beside `classes`.
        old_classes: what the classes of the file are called: a class of that name keeps its weights.
        seed: seed of the fresh weights.

    >>> from onward import samples
    >>> replace_head(samples.perceptron(), ["cat", "dog", "cow"]).graph.outputs[0].shape
    Shape([SymbolicDim('N'), 3])

    Raises:
        ArgumentError: no linear layer was found (the message lists values for `cut`), or an argument does not fit.
    """
    work = open_copy(model)
    change_head(
        work,
        classes,
        output=output,
        cut=cut,
        head=head,
        activation=activation,
        blank=blank,
        old_classes=old_classes,
        seed=seed,
    )
    return work


def change_head(
    work: TrainingModel,
    classes: Classes | None = None,
    *,
    output: str | None = None,
    cut: str | None = None,
    head: HeadSource | None = None,
    activation: str = "keep",
    blank: int | None = None,
    old_classes: Sequence[str] = (),
    seed: int = 0,
) -> NewHead:
    """Replace the head of `work` itself, as `replace_head` does of a copy, and return what it became."""
    refuse_entries(work)
    check_name("activation=", activation, ACTIVATIONS)
    wanted = None if classes is None else read_classes(classes)
    if wanted is not None and blank is not None:
        if not 0 <= blank <= wanted.count:
            raise ArgumentError(
                Diagnostic(A101, "the blank is not one of the classes", place="blank=", found=str(blank))
            )
        wanted = wanted.with_blank(blank)
    if wanted is None and head is None:
        raise ArgumentError(
            Diagnostic(A101, "nothing says which classes the new head has", needed="classes=, or head=")
        )
    if work.ir.functions:  # a layer may be a call
        InlinePass()(work.ir)
    infer_shapes(work.ir)
    if cut is None and head is None:
        assert wanted is not None
        classifier = find_classifier(work.graph, output)
        if classifier is not None:
            made = replace_classifier(work, classifier, wanted, activation, old_classes, seed)
        else:
            made = _resize(work, find_head(work, output), wanted, activation, old_classes, seed)
    else:
        made = attach_head(work, wanted, output, cut, head, activation, seed)
    set_class_names(work, () if wanted is None else wanted.names)
    write_note(work, made)
    return made


def _resize(
    work: TrainingModel, head: Head, classes: ClassList, activation: str, old_classes: Sequence[str], seed: int
) -> NewHead:
    """Give the found layer fresh weights, and let all that depends on the number of classes follow."""
    graph, linear, count = work.graph, head.linear, classes.count
    _check_choices(head, count)
    names = Names(all_names(graph))
    kept = _kept_classes(classes, old_classes, linear.classes)
    fresh: list[tuple[Value, str]] = []

    def put(node: ir.Node, index: int, axis: int, array: np.ndarray) -> None:
        """Make `array` the input of `node`; classes that are kept come from the old one."""
        old = node.inputs[index]
        assert old is not None
        stored = _numbers(work, old) if kept else None
        for to, source in kept.items() if stored is not None else ():
            np.moveaxis(array, axis, 0)[to] = np.moveaxis(np.asarray(stored), axis, 0)[source]
        kind = old.dtype or linear.features.dtype or ir.DataType.FLOAT
        name = names.unique("head/fresh")
        tensor = ir.tensor(array.astype(kind.numpy()), name=name)
        value = ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape(array.shape), const_value=tensor)
        graph.register_initializer(value)
        node.replace_input_with(index, value)
        fresh.append((value, _stored_name(old)))

    old_weight = linear.node.inputs[linear.weight]
    assert old_weight is not None
    shape = [d for d in dims(old_weight) or () if isinstance(d, int)]
    before = shape_text(shape)
    shape[linear.weight_axis] = count
    put(linear.node, linear.weight, linear.weight_axis, fresh_weight(tuple(shape), linear.weight_axis, seed))
    if linear.node.op_type != "MatMul" and len(linear.node.inputs) > 2 and linear.node.inputs[2] is not None:
        column = linear.node.op_type == "Gemm" and linear.axis == 0
        rank = len(dims(linear.node.inputs[2]) or ())
        bias = (count, 1) if column else (*[1] * (rank - 1), count)
        put(linear.node, 2, 0 if column else len(bias) - 1, np.zeros(bias))
    for node, index, axis, neutral in head.trace.constants:
        value = node.inputs[index]
        assert value is not None
        sizes = [d for d in dims(value) or () if isinstance(d, int)]
        sizes[axis] = count
        put(node, index, axis, np.full(sizes, neutral))
    for node, index, place in head.trace.shapes:
        _set_size(graph, node, index, place, count, names)
    for value, axis in head.trace.axes.items():
        if value.shape is not None:
            value.shape = ir.Shape([count if i == axis else d for i, d in enumerate(value.shape)])
    output = head.output.name or ""
    closed = _set_activation(work, head, activation, names)
    result = work.values()[output]
    remove_unused(graph)
    for value, name in fresh:  # the name of the old weight, where nothing reads that any more
        if name and name not in graph.initializers:
            del graph.initializers[value.name or ""]
            value.name = name
            assert value.const_value is not None
            value.const_value = ir.tensor(value.const_value.numpy(), name=name)
            graph.register_initializer(value)
    check_consistent(work)
    text = (
        f"{head.describe()} with {linear.classes} {'class' if linear.classes == 1 else 'classes'} (weight {before}) "
        f"became one with {count}; output `{output}` is {shape_text(dims(result))}{closed}"
    )
    logits = head.logits if head.logits is not head.output else result
    return NewHead(
        output=output,
        logits=logits.name or "",
        axis=head.trace.axes.get(logits),
        weights=tuple(value.name or "" for value, _ in fresh),
        classes=count,
        text=text,
    )


def _check_choices(head: Head, count: int) -> None:
    problems = [
        Diagnostic(
            A133,
            f"TopK {name_of(node)} chooses {chosen} classes, and the new head has {count}",
            place="classes=",
            needed=f"at least {chosen} classes, or cut= in front of it",
        )
        for node, chosen in head.trace.choices
        if chosen > count
    ]
    if problems:
        raise ArgumentError(problems)


def _kept_classes(classes: ClassList, old: Sequence[str], count: int) -> dict[int, int]:
    """Return the new index and the old index of each class that keeps its weights."""
    if not old:
        return {}
    if len(old) != count or not classes.names:
        raise ArgumentError(
            Diagnostic(
                A101,
                "the names of the old classes do not fit" if classes.names else "the new classes have no names",
                place="old_classes=",
                found=f"{len(old)} names",
                needed=f"{count} names, one for each class of the file, and names in classes=",
            )
        )
    index = {name: i for i, name in enumerate(old)}
    return {to: index[name] for to, name in enumerate(classes.names) if name in index}


def _numbers(work: TrainingModel, value: Value) -> np.ndarray:
    """Return the numbers of a weight, which the file stores or computes from what it stores."""
    if value.const_value is not None:
        return value.const_value.numpy()
    probe = from_light(*to_light(work))
    set_outputs(probe.graph, [probe.values()[value.name or ""]])
    remove_unused(probe.graph)
    ((found,),) = evaluate(serde.to_proto(probe).SerializeToString(), [{}])
    return found


def _stored_name(value: Value) -> str:
    """Return the name of the initializer behind a weight."""
    while not value.is_initializer() and (maker := value.producer()) is not None:
        if maker.op_type == "Constant" or not maker.inputs or maker.inputs[0] is None:
            break
        value = maker.inputs[0]
    return value.name or ""


def _set_size(graph: ir.Graph, node: ir.Node, index: int, place: int, count: int, names: Names) -> None:
    """Write the number of classes into a shape that `node` reads."""
    value = node.inputs[index]
    assert value is not None
    known = constant_of(value)
    op = Builder(18, names, prefix="head/")
    if known is not None:
        sizes = known.copy()
        sizes[place] = count
        new = op.constant(sizes)
    else:
        parts = [op.Slice(value, [0], [place], [0]), np.array([count]), op.Slice(value, [place + 1], [2**31], [0])]
        new = op.Concat(*parts, axis=0)
    graph.insert_before(node, op.nodes)
    node.replace_input_with(index, new)


def _set_activation(work: TrainingModel, head: Head, activation: str, names: Names) -> str:
    """Close the network with another activation; return what was changed, for the note."""
    now = "none" if head.activation is None else head.activation.kind
    wanted = {"softmax": "Softmax", "sigmoid": "Sigmoid", "none": "none", "keep": now}[activation]
    if wanted == now:
        return ""
    if head.activation is None:
        raise ArgumentError(
            Diagnostic(
                A133,
                f"the network does not end in an activation that {wanted} could replace",
                place="activation=",
                found=f"output `{head.output.name}` holds the logits",
                hint=f"attach one: onward.surgery.attach(model, lambda op, logits: op.{wanted}(logits))",
            )
        )
    op = Builder(work.opset, names, prefix="head/")
    logits = head.logits
    if wanted == "Softmax":
        made = op.Softmax(logits, axis=head.trace.axes[logits])
    elif wanted == "Sigmoid":
        made = op.Sigmoid(logits)
    else:
        made = op.Identity(logits)
    replace_node(head.activation.node, op, [made])
    return f"; {now} became {wanted}" if wanted != "none" else f"; {now} is left out"


__all__ = ["ACTIVATIONS", "change_head", "replace_head"]
