"""`make_trainable`: turn an inference model into a training model in one standard file."""

from __future__ import annotations

import importlib
import json
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onward.arguments import check_name
from onward.author.flat_weights import flat_weights
from onward.author.functions import inline_hiding_functions
from onward.author.initialize import Initialize, build_initialization
from onward.author.labels import LabelArgument
from onward.author.loss_scale import LossScale, add_loss_scale, read_loss_scale
from onward.author.merged_weights import separate_merged
from onward.author.new_head import HeadArguments
from onward.author.objective import build_loss, resolve_loss
from onward.author.phases import Phase, check_phases, make_phases
from onward.author.quantized_weights import quantized_weights, rounds
from onward.author.sequence_loss import ctc_of
from onward.author.teacher import Teacher, embed_teacher, read_teacher
from onward.author.tied_weights import tied_layers
from onward.author.tied_weights import untie as untie_weights
from onward.author.training_mode import build_training_forward, to_inference_mode
from onward.autodiff.blocks import check_ways
from onward.autodiff.reach import barriers, gradient_reach
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Names, Value
from onward.graph.integer_products import has_integer_products, to_float_products
from onward.graph.schema import TRAINING_DOMAIN
from onward.graph.shapes import infer_shapes, mark_unproven_sizes
from onward.graph.walk import all_names, all_nodes, ancestors, reads
from onward.losses import Loss
from onward.model import serde
from onward.model.inference import to_inference
from onward.model.origin import Origin
from onward.model.roles import Role, mark, mark_straight_through
from onward.model.stash import from_light, to_light
from onward.model.trainable import as_patterns, choose, influential_nodes
from onward.model.training_model import FLOAT_TYPES, TrainingEntry, TrainingModel
from onward.optimizers import Optimizer, by_name
from onward.optimizers.base import FunctionLibrary
from onward.optimizers.emit import by_depth, emit_update
from onward.passes.base import collector_paused
from onward.runtime import ask
from onward.surgery.batch_norm import Calibration, recover_batch_norm
from onward.surgery.class_list import Classes
from onward.surgery.constants import lift_constants
from onward.surgery.selection import expand_selection, layers_before
from onward.surgery.splice import HeadSource
from onward.upgrade import normalise, upgrade

A112 = "A112"
_LABELS, _LOSS = "labels", "loss"  # the default names
A113 = "A113"
A114 = "A114"
A118 = "A118"

# Gradient takes the element types of opset 9 only.
_NOT_IN_GRADIENT = frozenset(
    t for t in ir.DataType if t.name.startswith(("BFLOAT", "FLOAT8", "FLOAT4", "INT4", "UINT4"))
)

BATCH_NORM = ("train", "freeze", "always", "recover")


@collector_paused()
def make_trainable(
    model: serde.Source,
    *,
    loss: str | Loss | Any = "cross_entropy",
    optimizer: str | Optimizer = "adam",
    train: str | Sequence[str] = "*",
    freeze: str | Sequence[str] = (),
    output: str | Sequence[str] | None = None,
    label: LabelArgument = _LABELS,
    loss_name: str = _LOSS,
    batch_norm: str = "train",
    unbiased_variance: bool = False,
    keep_shared: bool = False,
    untie: str | Sequence[str] = (),
    initialize: Initialize = "keep",
    seed: int = 0,
    entry: str = "train",
    dequantize: bool = False,
    classes: Classes | None = None,
    cut: str | None = None,
    head: HeadSource | None = None,
    calibration: Calibration | None = None,
    teacher: serde.Source | None = None,
    phases: Sequence[Phase] | None = None,
    loss_scale: float | str | LossScale | None = None,
) -> TrainingModel:
    """Return a `TrainingModel`: `model` with a loss, its gradient, an optimizer and their state, in one standard file.

    The inference graph keeps its nodes, names and outputs; weights in `Constant` nodes become initializers.
    `model` itself does not change.

    Args:
        model: a path, bytes, a `ModelProto` or a `TrainingModel`; its training entries are kept.
        loss: a loss of `onward.losses` or its name; a mapping from output to loss or (loss, weight); an ONNX function
            or model whose inputs are the outputs and the labels; or `lambda op, outputs, labels: value`.
        optimizer: an optimizer of `onward.optimizers`, or its name.
        train: glob or globs of the weights to train; the others are frozen. `head` chooses the last linear layer,
            `last:3` the last three layers with weights (`onward.surgery.layers` lists them). A `FlatWeightsWarning`
            lists those that no gradient reaches.
        freeze: glob or globs of weights to freeze, although `train` matches them.
        output: name of the value that the loss reads (default: the model's only output), or several names.
        label: name of the label input (where the model has a value `labels`, the default is `target/labels`);
            {name: (dtype, shape)} for a custom loss; None if the loss reads no labels.
        loss_name: name of the loss output.
        batch_norm: "train" normalises with batch statistics, and updates the running ones, wherever scale or bias are
            trained, so that frozen layers stay frozen (as in Keras); "always" does so everywhere (as PyTorch's
            `train()`); "freeze" normalises with the running statistics, as inference does, and never updates them;
            "recover" puts a batch normalisation back after each trained convolution, where an exporter folded it into
            the convolution, and trains it: the inference numbers stay the same.
        unbiased_variance: update running variances with the unbiased variance, as PyTorch does (ONNX and Keras use
            the biased one).
        keep_shared: True keeps every shared initializer as one weight. By default, vectors of one repeated number
            (zeros, ones) that unrelated layers share become separate weights, because exporters merge them; a
            `TiedWeightsWarning` lists matrices that modules of different names share.
        untie: glob or globs of shared weights; each layer that reads one gets its own copy.
        initialize: how the initialization graph sets the weights: "keep", "he", "xavier", "normal", or a mapping from
            glob to one of those, to a number, or to ("normal" | "uniform", scale). All but "keep" also replace the
            stored weights, drawn with `seed`.
        entry: the name of the training entry. A model may have several, each with its own loss, optimizer and weights
            (the two networks of a GAN); an iteration runs all of them in turn, or the one that is chosen by name.
        seed: seed of all random numbers: of the stored weights, the initialization graph and Dropout.
        dequantize: turn weights that are stored as integers into floats, which can be trained, and the arithmetic on
            integers into that on floats. `to_inference(quantize=True)` stores them as integers again. By default they
            stay as they are, a `QuantizedWeightsWarning` counts them, and the float weights are trained.
        classes: gives the network a fresh head for other classes: their number, their names, or the path of a file with
            one name a line. The loss reads the logits although the file ends in Softmax, and the inference file still
            ends in it. `output` names the output where the file has several (`onward.surgery.replace_head`).
        cut: the value that the new head reads; all that follows it is left out.
        head: an ONNX model, graph or function, or `lambda op, value: value`, as the new head.
        calibration: inputs to measure the statistics of batch_norm="recover" with: an array, a mapping from input to
            array, or a list of such batches. Without them, random numbers take their place, and a warning says so.
        teacher: a second model that reads the same inputs, for `losses.Distillation`. It becomes frozen nodes of the
            training algorithm; the inference model does not hold it.
        phases: a list of `onward.Phase`, which `fit` trains one after the other, such as first the head and then all.
            Each is a training entry with an optimizer state of its own. `initialize` concerns the first.
        loss_scale: multiply the loss by this before it is differentiated, and divide the gradients by it, so that small
            ones do not become 0 in float16: a number, or "dynamic", which adapts the number and skips a step whose
            gradients are not finite; `onward.LossScale` has its options (docs/training.md).

    Raises:
        ArgumentError: a name, glob or value does not fit the model; lists all such problems where possible.
        ModelError: the model cannot be read.

    >>> from onward import samples
    >>> model = make_trainable(samples.perceptron(), loss="mse", optimizer="sgd", train="W*")
    >>> list(model.parameters), model.targets
    (['W1', 'W2'], ['labels'])
    """
    new_head, scale = HeadArguments(classes, cut, head), read_loss_scale(loss_scale)
    if phases is not None:
        check_phases(phases, train, freeze)
        if new_head.given:
            model, _ = _prepare(model, entry, dequantize)
            loss, output = new_head.apply(model, loss, output, seed)
            dequantize = False
        options = {
            "loss": loss, "optimizer": optimizer, "train": train, "freeze": freeze, "output": output, "label": label,
            "loss_name": loss_name, "batch_norm": batch_norm, "unbiased_variance": unbiased_variance,
            "keep_shared": keep_shared, "untie": untie, "initialize": initialize, "seed": seed, "entry": entry,
            "dequantize": dequantize, "teacher": teacher, "calibration": calibration, "loss_scale": scale,
        }  # fmt: skip
        return make_phases(make_trainable, model, phases, options)
    check_name("batch_norm=", batch_norm, BATCH_NORM)
    if isinstance(optimizer, str):
        optimizer = by_name(optimizer)
    if not isinstance(optimizer, Optimizer):
        raise ArgumentError(
            Diagnostic(
                A101,
                "invalid optimizer",
                place="optimizer=",
                found=repr(optimizer)[:200],
                needed="a name or an object of onward.optimizers",
            )
        )
    work, origin = _prepare(model, entry, dequantize)
    taken = all_names(work.graph) | _names_of_entries(work)
    label = f"target/{_LABELS}" if label == _LABELS and _LABELS in taken else label
    loss_name = f"train/{_LOSS}" if loss_name == _LOSS and _LOSS in taken else loss_name
    if loss == "ctc" and not new_head.given and (output is None or isinstance(output, str)):
        loss, output = ctc_of(work, output)  # nobody has chosen its settings
    objective = resolve_loss(loss, output, label)
    model_of_teacher = read_teacher(teacher, objective.losses, work)
    needed = max([loss.least_opset() for loss in objective.losses], default=1)
    if model_of_teacher is not None:
        needed = max(needed, model_of_teacher.opset)
    if needed > work.opset:
        older, work = work, upgrade(work, needed)
        origin = None if origin is None else origin.converted_again(older, work)
    if new_head.given:
        objective = resolve_loss(*new_head.apply(work, loss, output, seed), label)
    names = Names(all_names(work.graph) | _names_of_entries(work))
    lift_constants(work.graph, names, [*as_patterns(train), *as_patterns(freeze)])
    if untie:
        untie_weights(work.graph, names, untie)
    if not keep_shared and not work.entries:  # an existing entry trains the weights as they are
        separate_merged(work.graph, names)
    mark_unproven_sizes(work.ir)
    if not infer_shapes(work.ir):
        _ask_runtime(work)
    taught = Teacher()
    if model_of_teacher is not None:
        taught = embed_teacher(model_of_teacher, objective.losses, work, names)
    terms = objective.bind(work.graph, names, taught.values)
    for name, argument in [*((n, "label=") for n in terms.labels), (loss_name, "loss_name=")]:
        _claim(names, name, argument)

    weights = list(work.graph.initializers.values())
    flat = _without_gradient(work, terms.outputs)
    train, freeze = (
        expand_selection(work, given, terms.outputs, f"{place}=")
        for given, place in ((train, "train"), (freeze, "freeze"))
    )
    influential = influential_nodes(terms.outputs)
    parameters = choose(weights, influential, train, freeze, flat)
    if (left := flat_weights(weights, influential, train, freeze, flat)) is not None:
        warnings.warn(left, stacklevel=2)
    if batch_norm == "recover":
        parameters, made_up = recover_batch_norm(
            work, parameters, terms.outputs, names, calibration=calibration, seed=seed
        )
        if made_up is not None:
            warnings.warn(made_up, stacklevel=2)
    _check_types(parameters)
    if not has_integer_products(work.graph):  # else the gradient is that of other nodes
        check_ways(parameters, terms.outputs, work.ir.functions, work.opset)
    if optimizer.layer_decay is not None:
        layers = layers_before(work.graph, terms.outputs)
        optimizer = by_depth(optimizer, parameters, {w: layer.depth for layer in layers for w in layer.weights})
    if not keep_shared and (warning := tied_layers(parameters, influential)) is not None:
        warnings.warn(warning, stacklevel=2)
    if (stored := quantized_weights(work.graph)) is not None:
        warnings.warn(stored, stacklevel=2)
    _drop_default_inputs(work.graph, parameters)
    _mark_weights(work, parameters)

    forward = build_training_forward(
        work,
        terms.outputs,
        names,
        batch_norm="train" if batch_norm == "recover" else batch_norm,
        unbiased=unbiased_variance,
        trained=set(parameters),
        seed=seed,
    )
    forward.nodes = [*taught.nodes, *forward.nodes]
    label_inputs = terms.label_inputs()
    for value in label_inputs:
        mark(value, Role.TARGET)
    _add_functions(work, terms.functions())
    loss_nodes, loss_value = build_loss(work, terms, forward, label_inputs, names, loss_name, taught.weights)
    op = Builder(work.opset, names)
    gradients = emit_gradient(op, work, parameters, [*label_inputs, *taught.weights], loss_value)
    library = FunctionLibrary(work.opset, {(f.domain, f.name) for f in work.ir.functions.values()})
    update = emit_update(optimizer, op, gradients, library)
    _add_functions(work, update.functions)

    training_outputs = list(
        dict.fromkeys(forward.values[v] for v in [*work.graph.outputs, *terms.outputs] if v in forward.values)
    )
    statistics = {old.name or "": new for old, new in forward.statistics.items()}
    bindings = {**update.bindings, **statistics}
    algorithm = ir.Graph(
        [*label_inputs, *update.settings],
        [loss_value, *training_outputs, *bindings.values()],
        nodes=[*forward.nodes, *loss_nodes, *op.nodes],
        initializers=[*update.settings, *update.state, *taught.weights],
        name=entry,
    )
    algorithm.metadata_props["onward.loss"] = objective.describe()
    algorithm.metadata_props["onward.optimizer"] = json.dumps(optimizer.describe(), sort_keys=True)
    made = TrainingEntry(algorithm, update_binding={k: v.name or "" for k, v in bindings.items()})
    build_initialization(made, parameters, list(forward.statistics), update, initialize, work.opset, seed)
    work.entries.append(made)
    if scale is not None:
        add_loss_scale(work, made, scale)
    work.ir.opset_imports[TRAINING_DOMAIN] = 1
    work.ir.ir_version = max(work.ir.ir_version, 8)
    if origin is not None:
        origin.note(work)
    return work


def _without_gradient(work: TrainingModel, outputs: Sequence[Value]) -> dict[str, str]:
    """Return the weights that no gradient reaches, with the reason: training would leave them as they are."""
    importlib.import_module("onward.autodiff.rules")
    graph = work.graph
    if has_integer_products(graph):  # the gradient is that of the products of floats that they stand for
        graph = from_light(*to_light(work)).graph
        to_float_products(all_nodes(graph), work.opset, Names(all_names(graph)))
    values = ir.convenience.create_value_mapping(graph)
    reached = gradient_reach([values[v.name or ""] for v in outputs], work.opset)
    found = {}
    for name, value in graph.initializers.items():
        if value not in reached:
            where = ", ".join(barriers(value, reached)[:4]) or "operators without a gradient"
            found[name] = f"no gradient reaches it: every path to the loss ends at {where}"
    return found


def _ask_runtime(work: TrainingModel) -> None:
    """Raise if ONNX Runtime cannot load a model whose types and shapes onnx finds inconsistent: onnx may be wrong."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        serde.save(to_inference(work), path)
        answer = ask(str(path), run=False)
    if not answer.loads:
        raise ArgumentError(
            Diagnostic(
                A118,
                "the types or shapes of the model do not fit together",
                place=f"graph `{work.graph.name}`",
                found=f"ONNX Runtime {answer.version} cannot load it: {answer.reason}",
                hint="`onward check FILE` lists what does not fit, and `onward doctor FILE` what can be done",
            )
        )


def _names_of_entries(model: TrainingModel) -> set[str]:
    """Return the names of state and outputs of the existing entries: all entries share them."""
    found: set[str] = set()
    for entry in model.entries:
        if entry.algorithm is not None:
            found.update(entry.algorithm.initializers)
            found.update(v.name or "" for v in entry.algorithm.outputs)
    return found


def _prepare(model: serde.Source, entry: str, dequantize: bool) -> tuple[TrainingModel, Origin | None]:
    """Return a copy of the model in inference mode, whose weights no function hides, and the file that it is of."""
    source = serde.load(model)
    work = _copy(source, entry, dequantize)
    origin = None if dequantize else Origin.of(source, work)  # who asks for floats gets floats
    inline_hiding_functions(work.ir)
    to_inference_mode(work.graph)
    return work, origin


def _copy(source: TrainingModel, entry: str, dequantize: bool) -> TrainingModel:
    """Return a copy of the model, at the working opset and in standard operators."""
    if dequantize and source.entries:
        raise ArgumentError(
            Diagnostic(
                A101,
                "a model with training entries cannot be dequantized: they read its values as they are",
                place="dequantize=",
                hint="dequantize when the first entry is added, or remove the entries with onward.to_inference(model)",
            )
        )
    model = normalise(source, copy=True, dequantize=dequantize)
    known = [e.name for e in model.entries]
    if entry in known:
        raise ArgumentError(
            Diagnostic(
                A113,
                f"the model already has a training entry `{entry}`",
                place="entry=",
                found=f"training entries: {', '.join(known)}",
                hint='add another one with entry="another name", or remove them with onward.to_inference(model)',
            )
        )
    return model


def _claim(names: Names, name: str, argument: str) -> None:
    if not name:
        raise ArgumentError(Diagnostic(A101, "a value must have a name", place=argument, needed="at least one letter"))
    if name in names.taken:
        raise ArgumentError(
            Diagnostic(
                A112,
                f"the model already has a value called `{name}`",
                place=argument,
                needed="a name that the model does not use",
                hint=f'pass {argument.rstrip("=")}="target/{name}" or another free name',
            )
        )
    names.taken.add(name)


def _check_types(parameters: Sequence[Value]) -> None:
    problems = [
        Diagnostic(A114, f"`{p.name}` is bfloat16, which Gradient cannot differentiate", place="train=")
        for p in parameters
        if p.dtype == ir.DataType.BFLOAT16
    ]
    if problems:
        raise ArgumentError(problems)


def _drop_default_inputs(graph: ir.Graph, parameters: Sequence[Value]) -> None:
    """Remove parameters from the graph inputs, where models before IR version 4 had to list them.

    An input may leave a size open that its default has, such as the rank of a LoRA adapter.
    """
    trained = set(parameters)
    for value in trained & set(graph.inputs):
        assert value.const_value is not None
        value.shape = ir.Shape(value.const_value.numpy().shape)
    kept = [v for v in graph.inputs if v not in trained]
    if len(kept) != len(graph.inputs):
        graph.inputs.clear()
        graph.inputs.extend(kept)


def _mark_weights(work: TrainingModel, parameters: Sequence[Value]) -> None:
    """Mark the weights that this entry trains as parameters, and those that no entry trains as frozen."""
    for value in parameters:
        mark(value, Role.PARAMETER)
    bound = {name for entry in work.entries for name in entry.update_binding}
    for name, value in work.graph.initializers.items():
        if value not in parameters and name not in bound and value.dtype in FLOAT_TYPES:
            mark(value, Role.FROZEN)


def emit_gradient(
    op: Builder,
    work: TrainingModel,
    parameters: Sequence[Value],
    given: Sequence[Value],
    loss: Value,
) -> Mapping[Value, Value]:
    """Emit the Gradient node: d loss / d parameter for each parameter.

    `given` are the values of the algorithm that the loss depends on: labels, and the weights of a teacher.
    """
    needed = set()
    for node in ancestors([loss]):
        needed.update(reads(node))
    # By the standard, xs and zs determine y: frozen and constant values belong to zs, if Gradient accepts their type.
    others = [v for v in [*given, *work.graph.initializers.values()] if v.dtype not in _NOT_IN_GRADIENT]
    trained = set(parameters)
    zs = [v for v in dict.fromkeys([*work.graph.inputs, *others]) if v in needed and v not in trained]
    outputs = op.call(
        "Gradient",
        [*parameters, *zs],
        domain=TRAINING_DOMAIN,
        outputs=len(parameters),
        xs=[p.name or "" for p in parameters],
        zs=[z.name or "" for z in zs] or None,
        y=loss.name,
    )
    if any(rounds(node) for node in influential_nodes([loss])):
        maker = outputs[0].producer()
        assert maker is not None
        mark_straight_through(maker)
    for parameter, gradient in zip(parameters, outputs, strict=True):
        gradient.name = op.names.unique(f"grad/{parameter.name}")
        mark(gradient, Role.GRADIENT, of=parameter.name)
        gradient.type = parameter.type
        gradient.shape = None if parameter.shape is None else parameter.shape.copy()
    return dict(zip(parameters, outputs, strict=True))


def _add_functions(work: TrainingModel, functions: Sequence[ir.Function]) -> None:
    for function in functions:
        work.ir.functions[function.identifier()] = function
        if function.domain not in work.ir.opset_imports:
            work.ir.opset_imports[function.domain] = 1
