"""`from_jax`: convert a loss function, its parameters and its optimizer, with their state, to a training model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onward.errors import A101, ArgumentError, Diagnostic
from onward.frontends.jax.batch import batch_size, struct_of
from onward.frontends.jax.build import Parts, build
from onward.frontends.jax.functions import check_callable, takes_key
from onward.frontends.jax.optimizers import Optax, is_optax
from onward.frontends.jax.trees import A223, Tree, read_tree
from onward.frontends.jax.verify import verify
from onward.frontends.jaxpr.versions import check_versions
from onward.model.training_model import TrainingModel
from onward.optimizers import Optimizer, by_name


def from_jax(
    loss_fn: Callable[..., Any],
    params: Any,
    state: Any = None,
    *,
    optimizer: Any,
    optimizer_state: Any = None,
    example_batch: Any,
    predict: Callable[..., Any],
    evaluate: Callable[..., Any] | None = None,
    dynamic: bool = True,
    loss_name: str = "loss",
    entry: str = "train",
) -> TrainingModel:
    """Return a JAX loss function, its parameters and its optimizer, as they are now, as a `TrainingModel`.

    Parameters, state and batch are any trees of arrays. Weights are named by their path, such as `Dense_0.kernel`. The
    functions are traced, so Python code in them runs once. Before the model is returned, inference, loss, gradients and
    the optimizer's update are compared with JAX, on the example and on a batch of another size.

    Args:
        loss_fn: `loss_fn(params, batch)` returns the loss; with a state, `loss_fn(params, state, batch)` returns
            (loss, new state). A further argument, if it takes one, is a random key.
        params: the tree of trained arrays, all of floating point.
        state: a tree of what the loss function changes besides: running statistics, counters, random keys.
        optimizer: an optax optimizer, which is traced with its current state; or one of `onward.optimizers`, or its
            name.
        optimizer_state: the optax optimizer's state; a fresh one by default.
        example_batch: a batch, as the loss function takes it.
        predict: `predict(params, batch)`, or `predict(params, state, batch)`, returns the outputs of inference. The
            arrays of the batch that it reads are the inputs of the model; the others are targets.
        evaluate: `evaluate(params, batch)`, or `evaluate(params, state, batch)`, returns the loss that evaluation and
            validation report: that of `predict`, with running statistics. Without it, they report the loss of
            `loss_fn` without dropout, in which a batch normalisation uses the statistics of the batch.
        dynamic: True makes the first dimension of the arrays of the batch a free batch size, False fixes all shapes.
        loss_name: the name of the loss output.
        entry: the name of the training entry.

    Raises:
        ArgumentError: a function cannot be captured, or gives other numbers in the file; lists every primitive of JAX
            that has no equivalent, with the line that uses it.

    >>> import jax.numpy as jnp, optax
    >>> params = {"w": jnp.ones((3, 1)), "b": jnp.zeros(1)}
    >>> def predict(params, batch):
    ...     return batch["x"] @ params["w"] + params["b"]
    >>> def loss(params, batch):
    ...     return jnp.mean((predict(params, batch) - batch["y"]) ** 2)
    >>> batch = {"x": jnp.ones((4, 3)), "y": jnp.zeros((4, 1))}
    >>> model = from_jax(loss, params, optimizer=optax.adam(1e-3), example_batch=batch, predict=predict)
    >>> model.inputs, model.targets, list(model.parameters)
    (['x'], ['y'], ['b', 'w'])
    """
    check_versions()
    check_callable(loss_fn, "loss_fn", "a function of parameters and batch that returns the loss")
    check_callable(predict, "predict=", "a function of parameters and batch that returns the outputs of inference")
    if evaluate is not None:
        check_callable(evaluate, "evaluate=", "a function of parameters and batch that returns the loss")
    weights = _parameters(params)
    taken = {leaf.name for leaf in weights.leaves}
    kept = read_tree({} if state is None else state, "state", "state=", taken)
    taken |= {leaf.name for leaf in kept.leaves}
    size = batch_size(example_batch)
    if size is None:
        raise ArgumentError(
            Diagnostic(
                A101,
                "the example batch has no array with a batch dimension",
                place="example_batch=",
                found=repr(example_batch)[:100],
                needed="a tree of arrays, such as {'x': inputs, 'y': labels}",
            )
        )
    batch = read_tree(example_batch, "batch", "example_batch=", taken, struct_of(size, dynamic))
    parts = Parts(
        loss_fn=loss_fn,
        predict=predict,
        params=weights,
        state=kept,
        has_state=state is not None,
        batch=batch,
        takes_key=takes_key(loss_fn, 2 if state is None else 3),
        optimizer=_optimizer(optimizer, optimizer_state, weights, taken),
        loss_name=loss_name,
        entry=entry,
        evaluate=evaluate,
    )
    model, draws = build(parts)
    verify(parts, model, draws, size, dynamic)
    return model


def _parameters(params: Any) -> Tree:
    tree = read_tree(params, "params", "params")
    problems = [
        Diagnostic(
            A223,
            f"parameter `{leaf.name}` cannot be trained",
            place="params",
            found="a random key" if leaf.is_key else str(leaf.struct.dtype),
            needed="float32, float64 or float16",
            hint="keep integers, random keys and whatever is not trained in the state",
        )
        for leaf in tree.leaves
        if str(leaf.struct.dtype) not in ("float32", "float64", "float16")
    ]
    if not tree.leaves:
        problems = [Diagnostic(A223, "there are no parameters to train", place="params", found=repr(params)[:100])]
    if problems:
        raise ArgumentError(problems)
    return tree


def _optimizer(optimizer: Any, state: Any, params: Tree, taken: set[str]) -> Optimizer | Optax:
    if is_optax(optimizer):
        return Optax(optimizer, state, params, taken)
    if isinstance(optimizer, str):
        optimizer = by_name(optimizer)
    if not isinstance(optimizer, Optimizer):
        hint = "call it: optax.adam(1e-3)" if callable(optimizer) else ""
        raise ArgumentError(
            Diagnostic(
                A101,
                "invalid optimizer",
                place="optimizer=",
                found=repr(optimizer)[:200],
                needed="an optax optimizer, or a name or an object of onward.optimizers",
                hint=hint,
            )
        )
    if state is not None:
        raise ArgumentError(
            Diagnostic(
                A101,
                "a state of optax needs its optax optimizer",
                place="optimizer_state=",
                found=f"optimizer={type(optimizer).__name__}",
                hint="leave it out, or pass the optax optimizer",
            )
        )
    return optimizer
