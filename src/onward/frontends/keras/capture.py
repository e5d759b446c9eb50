"""Capture a Keras model that runs on JAX: its functions become parts of `from_jax`, which builds and compares."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np

from onward.errors import A101, ArgumentError, Diagnostic, OnwardError
from onward.frontends.jax.batch import batch_size, struct_of
from onward.frontends.jax.build import Parts, build
from onward.frontends.jax.functions import place_of
from onward.frontends.jax.trees import Leaf, Tree
from onward.frontends.jax.verify import verify
from onward.frontends.jaxpr.versions import check_versions as check_jax
from onward.frontends.keras import versions
from onward.frontends.keras.checks import check_model
from onward.frontends.keras.embeddings import repeated_rows
from onward.frontends.keras.examples import example_of, fixed_size
from onward.frontends.keras.optimizers import KerasOptimizer
from onward.model.training_model import TrainingModel

A241 = "A241"

_AUTOMATIC = ("keras_tensor", "input_layer")
"""How the names begin that Keras gives to inputs without one: in the process that made the model, and in a file."""


def capture(
    model: Any,
    example: tuple[Any, Any],
    *,
    origin: str,
    sample_weight: Any,
    class_weight: Mapping[int, float] | None,
    dynamic: bool,
    loss_name: str,
    entry: str,
    names: Mapping[str, Sequence[str]] | None = None,
) -> tuple[TrainingModel, list[str]]:
    """Return the training model of a Keras model on JAX, and warnings.

    `origin` is the backend on which the model lived, "" if unknown. `names` are the paths of its variables there.
    """
    check_jax()
    versions.check_versions()
    check_model(model)
    functions = _Functions(model, class_weight)
    begun = model.optimizer.built
    with keras_errors(model):
        batch = example_of(model, example, sample_weight, functions.outputs)
        _check_weights(batch, sample_weight, class_weight)
        versions.build_all(model, *batch)
    check_model(model)
    known = variable_names(model) if names is None else names
    params = _variables(model.trainable_variables, known["trainable"])
    state = _variables(functions.kept, known["state"])
    free = dynamic and not fixed_size(model)
    size = batch_size(batch)
    if size is None:
        raise ArgumentError(Diagnostic(A101, "the example has no batch dimension", place="example_inputs="))
    taken = {*known["trainable"], *known["state"], *known["optimizer"]}
    parts = Parts(
        loss_fn=functions.loss,
        predict=functions.predict,
        params=params,
        state=state,
        has_state=True,
        batch=_batch(model, batch, taken, struct_of(size, free)),
        takes_key=True,
        optimizer=KerasOptimizer(model.optimizer, model.trainable_variables, params, known["optimizer"], begun=begun),
        loss_name=loss_name,
        entry=entry,
        evaluate=functions.evaluate if model.non_trainable_variables else None,  # what an evaluation does otherwise
    )
    try:
        made, draws = build(parts)
        verify(parts, made, draws, size, free)
    except OnwardError:
        with keras_errors(model):  # where a layer fails by itself, that is what to say
            jax.eval_shape(parts.infer, *parts.arguments()[0])
            jax.eval_shape(parts.loss, *parts.arguments(parts.key_struct())[0])
        raise
    return made, repeated_rows(model, origin)


class _Functions:
    """The model as functions of its variables: lists in the order of Keras, without the seeds of random numbers."""

    def __init__(self, model: Any, class_weight: Mapping[int, float] | None) -> None:
        self.model = model
        self.class_weight = class_weight
        self.kept = [v for v in model.non_trainable_variables if not versions.is_seed(v)]
        self._training = {"training": False} if versions.takes_training(model) else {}
        self.predict = _named(self._predict, model.name)
        self.loss = _named(self._loss, model.name)
        self.evaluate = _named(self._evaluate, model.name)

    def outputs(self, inputs: Any) -> Any:
        """Return the shapes of the outputs for some inputs."""
        params = [v.value for v in self.model.trainable_variables]
        return jax.eval_shape(self._predict, params, [v.value for v in self.kept], (inputs, None, None))

    def _all(self, state: Sequence[Any]) -> list[Any]:
        kept = iter(state)
        return [v.value if versions.is_seed(v) else next(kept) for v in self.model.non_trainable_variables]

    def _predict(self, params: Any, state: Any, batch: Any) -> Any:
        with versions.doubles():
            outputs, _ = self.model.stateless_call(list(params), self._all(state), batch[0], **self._training)
        return outputs

    def _evaluate(self, params: Any, state: Any, batch: Any) -> Any:
        """Return the loss of `model.evaluate`: in inference mode, without class weights."""
        x, y, weights = batch
        with versions.doubles():
            every = self._all(state)
            return versions.loss_and_state(self.model, list(params), every, x, y, weights, training=False)[0]

    def _loss(self, params: Any, state: Any, batch: Any, key: Any) -> tuple[Any, Any]:
        x, y, weights = batch
        if self.class_weight is not None:
            weights = _class_weights(y, self.class_weight)
        with versions.doubles(), versions.keyed_draws(key):
            loss, new = versions.loss_and_state(self.model, list(params), self._all(state), x, y, weights)
        pairs = zip(self.model.non_trainable_variables, new, strict=True)
        return loss, [value for v, value in pairs if not versions.is_seed(v)]


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that has the name of the model in messages."""

    def named(*arguments: Any) -> Any:
        return function(*arguments)

    named.__qualname__ = name
    return named


# -- names -----------------------------------------------------------------------------------------------------------


def variable_names(model: Any) -> dict[str, list[str]]:
    """Return the paths of all variables that a file holds: trainable, state and the optimizer's."""
    state = [v for v in model.non_trainable_variables if not versions.is_seed(v)]
    every = {"trainable": model.trainable_variables, "state": state, "optimizer": model.optimizer.variables}
    return unique({kind: [v.path for v in variables] for kind, variables in every.items()})


def unique(paths: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the paths with a number where Keras gives two variables the same one.

    >>> unique({"trainable": ["a/kernel", "a/kernel"], "state": ["a/mean"]})
    {'trainable': ['a/kernel', 'a/kernel_2'], 'state': ['a/mean']}
    """
    used: set[str] = set()
    found: dict[str, list[str]] = {}
    for kind, listed in paths.items():
        for path in listed:
            name, count = path, 2
            while name in used:
                name, count = f"{path}_{count}", count + 1
            used.add(name)
            found.setdefault(kind, []).append(name)
    return {kind: found.get(kind, []) for kind in paths}


def _variables(variables: Sequence[Any], names: Sequence[str]) -> Tree:
    values = [jax.numpy.asarray(v.value) for v in variables]
    leaves = [
        Leaf(name, name, value, jax.ShapeDtypeStruct(value.shape, value.dtype))
        for name, value in zip(names, values, strict=True)
    ]
    return Tree(leaves, jax.tree.structure(values))


def _batch(model: Any, batch: tuple[Any, Any, Any], taken: set[str], struct: Callable[[Any], Any]) -> Tree:
    """Return the leaves of inputs, targets and weights, named as the user knows them."""
    leaves: list[Leaf] = []
    used = set(taken)
    declared = [t.name for t in getattr(model, "inputs", None) or []]
    for what, tree in zip(("x", "target", "sample_weight"), batch, strict=True):
        found = jax.tree_util.tree_flatten_with_path(tree)[0]
        for index, (path, value) in enumerate(found):
            text = jax.tree_util.keystr(path, simple=True, separator=".")
            name = f"{what}.{text}" if text else what
            if what == "x" and text and not text[0].isdigit():
                name = text
            elif what == "x" and len(declared) == len(found) and not declared[index].startswith(_AUTOMATIC):
                name = declared[index]
            base, count = name, 2
            while name in used:
                name, count = f"{base}_{count}", count + 1
            used.add(name)
            leaves.append(Leaf(name, name, value, struct(value)))
    return Tree(leaves, jax.tree.structure(batch))


# -- weights ---------------------------------------------------------------------------------------------------------


def _check_weights(batch: tuple[Any, Any, Any], sample_weight: Any, class_weight: Mapping[int, float] | None) -> None:
    if class_weight is None:
        return
    several = len(jax.tree.leaves(batch[1])) != 1
    if batch[2] is not None or several:
        raise ArgumentError(
            Diagnostic(
                A101,
                "class_weight cannot be used here",
                place="class_weight=",
                found="several targets" if several else "sample_weight= as well",
                needed="one target, and no sample_weight",
                hint="use sample_weight=, and compute the weights of the samples yourself",
            )
        )


def _class_weights(y: Any, class_weight: Mapping[int, float]) -> Any:
    """Return the weight of each sample, as Keras's `fit` computes it from the classes."""
    (classes,) = jax.tree.leaves(y)
    if classes.ndim > 1:
        classes = jax.numpy.argmax(classes, -1) if classes.shape[-1] != 1 else jax.numpy.squeeze(classes, -1)
    classes = jax.numpy.round(classes).astype("int32")
    weights = jax.numpy.ones(classes.shape, keras.config.floatx())
    for number, weight in class_weight.items():
        weights = jax.numpy.where(classes == int(number), jax.numpy.asarray(weight, weights.dtype), weights)
    return weights


# -- errors ----------------------------------------------------------------------------------------------------------

_OUTSIDE = "a layer, loss or metric computes outside of JAX: with TensorFlow, NumPy or plain Python"
_SHAPES = "a shape or a decision depends on the data"


@contextlib.contextmanager
def keras_errors(model: Any) -> Iterator[None]:
    """Turn an exception that the model raises while it is traced into an ArgumentError with its layer."""
    try:
        yield
    except OnwardError:
        raise
    except Exception as error:  # a layer may raise any type
        raise trace_error(error, f"model `{model.name}`") from error


def trace_error(error: Exception, model: str) -> ArgumentError:
    """Return what to raise where the code of a layer, loss or metric fails under JAX."""
    chain = list(_chain(error))
    text = re.sub(r"\x1b\[\d*m", "", "\n".join(str(e) for e in chain))
    called = re.search(r"Exception encountered when calling (.+?)\.\n\n", text)
    kinds = [type(e).__name__ for e in chain] + [text]
    outside = any("TracerArrayConversion" in k or "tensorflow" in k or "tf.Tensor" in k for k in kinds)
    shapes = any(w in k for k in kinds for w in ("NonConcrete", "Concretization", "TracerBoolConversion"))
    first = chain[-1] if outside or shapes else error  # Keras may fail itself when it explains errors of JAX
    line = next((one for one in _message(first).splitlines() if one.strip()), "")
    place = next(filter(None, map(place_of, chain)), "")
    what = f"{_OUTSIDE}: " if outside else f"{_SHAPES}: " if shapes else ""
    hint = (
        "write it with keras.ops, so that it runs on every backend of Keras"
        if outside
        else "use keras.ops.where instead of a selection, keras.ops.cond instead of if, or a fixed size"
        if shapes
        else "model.train_on_batch(inputs, targets), with Keras on JAX, gives the same error; pass example_inputs= "
        "and example_targets= if the made-up ones do not fit"
    )
    return ArgumentError(
        Diagnostic(
            A241,
            f"{model} cannot be traced: {what}{type(first).__name__}: {line[:300]}",
            place="; ".join(filter(None, [called[1] if called else "", place])) or model,
            hint=hint,
        )
    )


def _message(error: BaseException) -> str:
    """Return the message of an exception without what Keras writes around it."""
    text = re.sub(r"\x1b\[\d*m", "", str(error))
    return re.sub(r"^Exception encountered when calling .+?\.\n\n", "", text)


def _chain(error: BaseException) -> Iterator[BaseException]:
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__ or at.__context__


def same_values(ours: Sequence[Any], theirs: Sequence[np.ndarray]) -> list[int]:
    """Return the places at which variables differ from arrays."""
    return [
        i
        for i, (v, array) in enumerate(zip(ours, theirs, strict=True))
        if tuple(v.shape) != array.shape or not np.array_equal(np.asarray(v.value), array, equal_nan=True)
    ]
