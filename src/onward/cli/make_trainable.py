"""`onward make-trainable FILE -o OUT`."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option


def make_trainable(
    file: Annotated[Path, Argument(help="An ONNX model.", show_default=False)],
    output: Annotated[Path, Option("-o", "--output", help="Where to write the training model.", show_default=False)],
    loss: Annotated[str, Option(help="cross_entropy, mse, bce_with_logits, … or the path of an ONNX model.")],
    optimizer: Annotated[str, Option(help="adam, adamw, sgd, momentum, torch_adam, …")] = "adam",
    learning_rate: Annotated[float | None, Option(help="Learning rate (default: the optimizer's own).")] = None,
    train: Annotated[list[str] | None, Option(help="Glob of weights to train; may be repeated.")] = None,
    freeze: Annotated[list[str] | None, Option(help="Glob of weights to freeze; may be repeated.")] = None,
    label: Annotated[str, Option(help="Name of the label input.")] = "labels",
    on: Annotated[
        list[str] | None,
        Option(metavar="VALUE", help="A value that the loss reads (default: the only output); may be repeated."),
    ] = None,
    loss_name: Annotated[str, Option(help="Name of the loss output.")] = "loss",
    initialize: Annotated[str, Option(help="keep, he, xavier or normal.")] = "keep",
    batch_norm: Annotated[str, Option(help="train, freeze or always.")] = "train",
    untie: Annotated[
        list[str] | None, Option(help="Glob of shared weights: each layer gets its own; may be repeated.")
    ] = None,
    keep_shared: Annotated[
        bool, Option("--keep-shared", help="Keep a weight that several layers share as one weight.")
    ] = False,
    dequantize: Annotated[
        bool, Option("--dequantize", help="Make floats of weights that are stored as integers, and train them.")
    ] = False,
    seed: Annotated[int, Option(help="Seed of all random numbers.")] = 0,
    entry: Annotated[str, Option(help="Name of the training entry; a file may have several.")] = "train",
    setting: Annotated[
        list[str] | None, Option("--set", help="A setting of the optimizer, NAME=VALUE; may be repeated.")
    ] = None,
    loss_setting: Annotated[
        list[str] | None, Option("--set-loss", help="A setting of the loss, NAME=VALUE; may be repeated.")
    ] = None,
) -> None:
    """Add a loss, its gradient and an optimizer to a model: the result is one standard ONNX training file."""
    from onward import losses, optimizers
    from onward.author import make_trainable as run
    from onward.cli.console import stdout_console
    from onward.errors import counted
    from onward.model import serde

    settings = parse_settings(setting or [], "--set")
    if learning_rate is not None:
        settings["learning_rate"] = learning_rate
    options = parse_settings(loss_setting or [], "--set-loss")
    chosen: Any = Path(loss) if loss.endswith(".onnx") else losses.by_name(loss, **options)
    model = run(
        file,
        loss=chosen,
        optimizer=optimizers.by_name(optimizer, **settings),
        train=train or "*",
        freeze=freeze or (),
        output=on or None,
        label=label,
        loss_name=loss_name,
        initialize=initialize,
        batch_norm=batch_norm,
        untie=untie or (),
        keep_shared=keep_shared,
        seed=seed,
        entry=entry,
        dequantize=dequantize,
    )
    serde.save(model, output)
    count = sum(v.const_value.size for v in model.parameters.values() if v.const_value is not None)
    stdout_console(soft_wrap=True).print(
        f"wrote `{output}`: {counted(len(model.parameters), 'parameter')} ({counted(count, 'number')}) to train, "
        f"{len(model.frozen)} frozen; feed {', '.join(f'`{n}`' for n in [*model.inputs, *model.targets])}"
    )


def parse_settings(given: list[str], option: str) -> dict[str, Any]:
    """Return NAME=VALUE pairs as a dictionary; values are read as Python literals where possible.

    >>> parse_settings(["weight_decay=0.1", "nesterov=True", "reduction=sum"], "--set")
    {'weight_decay': 0.1, 'nesterov': True, 'reduction': 'sum'}
    """
    from onward.errors import A101, ArgumentError, Diagnostic

    settings: dict[str, Any] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise ArgumentError(Diagnostic(A101, f"`{item}` is not a setting", place=option, needed="NAME=VALUE"))
        try:
            settings[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[name] = value  # a plain word
    return settings
