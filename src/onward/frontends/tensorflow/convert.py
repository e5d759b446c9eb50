"""`from_tensorflow`: convert a module, a function or a SavedModel of TensorFlow to a training model.

TensorFlow and tf2onnx are imported on first use.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onward.author.objective import Objective, resolve_loss
from onward.errors import ArgumentError, Diagnostic, require_extra
from onward.losses import Loss
from onward.model.training_model import TrainingModel
from onward.optimizers import by_name

if TYPE_CHECKING:
    from onward.frontends.tensorflow.build import Parts, Step
    from onward.frontends.tensorflow.source import Source
    from onward.frontends.tensorflow.trace import Traced

A265 = "A265"


def from_tensorflow(
    module: Any,
    *,
    loss: Any,
    optimizer: Any,
    variables: Mapping[str, Any] | Sequence[Any] | None = None,
    example_inputs: Any = None,
    example_targets: Any = None,
    training: Any = None,
    dynamic: bool = True,
    label: str = "target",
    loss_name: str = "loss",
    entry: str = "train",
) -> TrainingModel:
    """Return a TensorFlow module, its loss and its optimizer, as they are now, as a `TrainingModel`.

    The function is traced with its variables as arguments, and tf2onnx writes the operators. A variable that is
    `trainable` becomes a parameter, another one a frozen weight, and one that the function assigns a state that each
    step replaces. Before the model is returned, every node is checked to be ONNX, and inference, loss, gradients, state
    and a Keras optimizer's update are compared with TensorFlow, on the example and on a batch of another size. The
    variables do not change.

    Args:
        module: a `tf.Module` with `__call__`, a function, a `tf.function`, a concrete function, or the path of a
            SavedModel. An argument `training` or `is_training` is False for inference and True for training. For a
            Keras model use `from_keras`.
        loss: a name or object of `onward.losses`; or a function of TensorFlow, `loss(outputs, targets)`, that returns a
            scalar; or a loss of `keras.losses`.
        optimizer: an optimizer of `onward.optimizers` or its name; or one of `keras.optimizers` on TensorFlow, which is
            traced with its current state.
        variables: the variables to train; by default those that are `trainable`. A mapping also gives them names. By
            default they keep their own, or are named by the attributes that hold them.
        example_inputs: a tensor, a tuple of positional inputs, or a dict of named ones; by default it is made up from
            the function's `input_signature`.
        example_targets: a tensor, or a structure of tensors, that the loss takes.
        training: the function in training mode, where it is another one.
        dynamic: True makes the first dimension of every input and target a free batch size, False fixes all shapes.
        label: the name of the target input.
        loss_name: the name of the loss output.
        entry: the name of the training entry.

    Raises:
        ArgumentError: something cannot be captured, or gives other numbers in the file; lists every operator without an
            ONNX equivalent.
        MissingExtra: tensorflow or tf2onnx is not installed.
    """
    for package in ("tensorflow", "tf2onnx"):
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            if error.name != package:
                raise
            raise require_extra(package, "tensorflow", "onward.from_tensorflow") from error
    from onward.frontends.tensorflow import examples
    from onward.frontends.tensorflow.build import build
    from onward.frontends.tensorflow.source import read_source
    from onward.frontends.tensorflow.verify import verify
    from onward.frontends.tensorflow.versions import check_versions

    check_versions()
    source = read_source(module, training)
    inputs = examples.read_inputs(source, example_inputs)
    targets = None if example_targets is None else examples.tensors(example_targets, "example_targets=")
    source.prepare(inputs)
    size = examples.batch_size(inputs)
    free = examples.is_free(source, dynamic) and size is not None
    capture = _Capture(source, inputs, targets, size, free, label)
    parts, trial_parts, oracle = capture.parts(loss, optimizer, variables, loss_name, entry)
    model = build(parts)
    drawn = oracle.step is not None
    trial = model if trial_parts is parts and not drawn else build(trial_parts, pattern=True)
    first = (inputs, targets if capture.takes_targets else None)
    second = first
    if free and size is not None:
        second = (examples.another_batch(inputs, size), examples.another_batch(first[1], size))
    verify(oracle, model, trial, [first, second])
    return model


@dataclasses.dataclass
class _Capture:
    """The example, and what is traced with it."""

    source: Source
    inputs: tuple[tuple[Any, ...], dict[str, Any]]
    targets: Any
    size: int | None
    free: bool
    label: str
    takes_targets: bool = True

    def parts(self, loss: Any, optimizer: Any, variables: Any, loss_name: str, entry: str) -> tuple[Parts, Parts, Any]:
        """Return the parts of the model, those of the model that is compared, and what computes them in TensorFlow."""
        import tensorflow as tf

        from onward.frontends.tensorflow import examples
        from onward.frontends.tensorflow.build import Parts
        from onward.frontends.tensorflow.optimizers import in_order, read_optimizer
        from onward.frontends.tensorflow.source import FIXED, input_names, leaf_paths, output_names
        from onward.frontends.tensorflow.trace import trace, weights_of
        from onward.frontends.tensorflow.verify import Oracle

        source = self.source
        specs = examples.specs(self.inputs, self.size, self.free)
        named = dict(zip(input_names(source, *self.inputs), tf.nest.flatten(specs), strict=True))
        hint = FIXED if self.free else ""
        inference = trace(source.infer, specs, source.name, hint, differentiable=source.train is source.infer)
        self._check_inference(inference)
        train = (
            inference
            if source.train is source.infer
            else trace(source.train, specs, f"{source.name} in training", hint)
        )
        objective = _objective(loss, self.label)
        function = _probe if objective is not None else _loss_function(loss)
        self.takes_targets = objective is None
        wanted = None if objective is not None else self.targets
        traced_loss = self._loss(function, train, wanted, loss)
        labels: dict[str, Any] = {}
        if wanted is not None:
            flat = tf.nest.flatten(examples.specs(wanted, self.size, self.free))
            labels = dict(zip(leaf_paths(wanted, self.label), flat, strict=True))
        outputs = _distinct(output_names(inference.results), [*named, *labels])
        weights = weights_of(
            [inference, train, traced_loss], source.root, variables, [*named, *labels, *outputs, loss_name]
        )
        weights = in_order(optimizer, weights)
        same = train is inference and not train.pure.changed and not train.pure.draws
        step = _step(inference, differentiable=same)
        trial = Parts(
            inputs=named,
            targets=labels,
            outputs=outputs,
            weights=weights,
            inference=step,
            training=None if same else _step(train, differentiable=True),
            loss=_step(traced_loss, differentiable=True),
            optimizer=by_name("sgd"),
            loss_name=loss_name,
            entry=entry,
            described=f"tensorflow: {getattr(loss, '__name__', type(loss).__name__)}",
        )
        chosen = read_optimizer(optimizer, weights)
        parts = dataclasses.replace(trial, optimizer=chosen)
        if objective is not None:
            parts = dataclasses.replace(parts, loss=objective, targets={}, described=objective.describe())
        else:
            trial = parts
        whole, order = None, []
        if train.pure.draws or traced_loss.pure.draws:
            combined = self._combined(function, specs, wanted)
            whole, order = combined.pure, combined.variables
        return parts, trial, Oracle(source, function, parts, whole, order)

    def _check_inference(self, inference: Traced) -> None:
        if inference.pure.draws:
            raise ArgumentError(
                Diagnostic(
                    A265,
                    "inference draws random numbers",
                    place=self.source.name,
                    found=f"{len(inference.pure.draws)} draws, such as those of a dropout",
                    needed="random numbers in training only",
                    hint="give the function an argument `training`, or pass the function in training mode as training=",
                )
            )

    def _loss(self, function: Callable[..., Any], train: Traced, targets: Any, loss: Any) -> Traced:
        """Trace the loss over the outputs of the training forward."""
        import tensorflow as tf

        from onward.frontends.tensorflow import examples
        from onward.frontends.tensorflow.trace import trace

        outputs = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), train.results)
        given = (outputs,) if targets is None else (outputs, examples.specs(targets, self.size, self.free))
        name = getattr(loss, "__name__", type(loss).__name__)
        hint = "" if targets is not None else "example_targets= was not given, so the loss gets the outputs only"
        traced = trace(function, (given, {}), f"the loss `{name}`", hint)
        values = tf.nest.flatten(traced.results)
        if len(values) != 1 or values[0].shape.rank != 0 or not values[0].dtype.is_floating:
            raise ArgumentError(
                Diagnostic(
                    "A201",
                    "the loss is not one number",
                    place=f"loss={name}",
                    found=", ".join(f"{v.dtype.name}{v.shape}" for v in values) or "nothing",
                    needed="a floating-point scalar",
                    hint="reduce it with tf.reduce_mean or tf.reduce_sum",
                )
            )
        return traced

    def _combined(self, function: Callable[..., Any], specs: Any, targets: Any) -> Traced:
        """Trace forward pass and loss in one graph, to compare a step whose random numbers are given."""
        from onward.frontends.tensorflow import examples
        from onward.frontends.tensorflow.trace import trace

        def step(inputs: Any, *wanted: Any) -> Any:
            args, kwargs = inputs
            return function(self.source.train(*args, **kwargs), *wanted)

        given = (specs,) if targets is None else (specs, examples.specs(targets, self.size, self.free))
        return trace(step, (given, {}), self.source.name)


def _step(traced: Traced, *, differentiable: bool) -> Step:
    from onward.frontends.tensorflow.build import Step

    return Step(traced, traced.translate(differentiable=differentiable))


def _objective(loss: Any, label: str) -> Objective | None:
    """Return the objective of one of onward's losses; None for a function of TensorFlow."""
    own = isinstance(loss, str | Loss | Mapping) or (isinstance(loss, type) and issubclass(loss, Loss))
    if own or not callable(loss):
        return resolve_loss(loss, None, label)
    return None


def _loss_function(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return the loss as a function of outputs and targets; a loss of Keras takes the targets first."""
    if any(k.__module__.split(".")[0] == "keras" and k.__name__ == "Loss" for k in type(loss).__mro__):
        return lambda outputs, targets: loss(targets, outputs)
    return lambda outputs, targets=None: loss(outputs) if targets is None else loss(outputs, targets)


def _probe(outputs: Any, targets: Any = None) -> Any:
    """Return a scalar of any outputs, to compare gradients where the loss is one of `onward.losses`."""
    import tensorflow as tf

    found = [t for t in tf.nest.flatten(outputs) if t.dtype.is_floating]
    return tf.add_n([tf.reduce_mean(0.5 * t * t + t) for t in found])


def _distinct(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    used, found = set(taken), []
    for name in names:
        base, count = name, 2
        while name in used:
            name, count = f"{base}_{count}", count + 1
        used.add(name)
        found.append(name)
    return found
