"""What is refused before anything is traced: models that Keras itself could not train, or trains in its own way."""

from __future__ import annotations

from typing import Any

from onward.errors import ArgumentError, Diagnostic
from onward.frontends.keras import versions

A240 = "A240"
A242 = "A242"
A246 = "A246"


def check_model(model: Any) -> None:
    """Raise with everything that keeps `model` from being captured."""
    place = f"model `{model.name}`"
    problems = []
    if not model.compiled or model.optimizer is None:
        problems.append(
            Diagnostic(
                A240,
                "the model is not compiled",
                place=place,
                needed="an optimizer and a loss",
                hint="model.compile(optimizer=..., loss=...)",
            )
        )
    if not model.built or versions.unbuilt(model):
        problems.append(
            Diagnostic(
                A240,
                "the model is not built, so it has no weights yet",
                place=place,
                hint="call it once on a batch, model(x), or begin it with keras.Input(shape)",
            )
        )
    for method in versions.own_step(model):
        problems.append(
            Diagnostic(
                A242,
                f"the model has its own `{method}`, which Onward does not trace",
                place=f"{type(model).__qualname__}.{method}",
                hint="write the loss as compute_loss or add_loss, which are traced; or write the step as a function of "
                "JAX and use onward.from_jax",
            )
        )
    problems += _types(model)
    if problems:
        raise ArgumentError(problems)
    _check_trained(model, place)


def _check_trained(model: Any, place: str) -> None:
    if not model.trainable_variables:
        raise ArgumentError(
            Diagnostic(A240, "the model has no trainable variable", place=place, hint="set layer.trainable = True")
        )
    if not model.optimizer.built:
        return
    ours, its = model.trainable_variables, versions.trained_by(model.optimizer)
    if [id(v) for v in ours] != [id(v) for v in its]:
        changed = {v.path for v in ours} ^ {v.path for v in its}
        raise ArgumentError(
            Diagnostic(
                A240,
                "the optimizer was built for other variables than those that are trainable now",
                place=place,
                found=", ".join(f"`{p}`" for p in sorted(changed)[:5]) or "another order",
                hint="compile the model again after you change `trainable`",
            )
        )


def _types(model: Any) -> list[Diagnostic]:
    found = []
    for layer in versions.layers(model):
        types = {str(layer.compute_dtype), str(layer.variable_dtype)}
        other = sorted(t for t in types if t not in ("float32", "float64") and "int" not in t and t != "bool")
        if other:
            found.append(
                Diagnostic(
                    A246,
                    f"layer `{layer.name}` computes in {' and '.join(other)}",
                    place=f"model `{model.name}`",
                    needed="float32 or float64",
                    hint='set layer.dtype_policy = "float32" for every layer, and compile again',
                )
            )
    return found
