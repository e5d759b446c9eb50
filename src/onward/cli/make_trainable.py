"""`onward make-trainable FILE -o OUT`."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from onward.cli.options import LossScaleOption

if TYPE_CHECKING:
    from onward.losses import Loss


def make_trainable(
    file: Annotated[Path, Argument(help="An ONNX model.", show_default=False)],
    output: Annotated[Path, Option("-o", "--output", help="Where to write the training model.", show_default=False)],
    loss: Annotated[
        str, Option(metavar="NAME|FILE", help="cross_entropy, mse, bce_with_logits, … or the path of an ONNX model.")
    ],
    optimizer: Annotated[str, Option(help="adam, adamw, sgd, momentum, torch_adam, …")] = "adam",
    learning_rate: Annotated[float | None, Option(help="Learning rate (default: the optimizer's own).")] = None,
    train: Annotated[
        list[str] | None,
        Option(
            metavar="GLOB", help="The weights to train, or head, or last:3 for the last three layers; may be repeated."
        ),
    ] = None,
    freeze: Annotated[list[str] | None, Option(metavar="GLOB", help="The weights to freeze; may be repeated.")] = None,
    label: Annotated[str, Option(help="Name of the label input.")] = "labels",
    on: Annotated[
        list[str] | None,
        Option(metavar="VALUE", help="A value that the loss reads (default: the only output); may be repeated."),
    ] = None,
    loss_name: Annotated[str, Option(help="Name of the loss output.")] = "loss",
    initialize: Annotated[str, Option(help="keep, he, xavier or normal.")] = "keep",
    batch_norm: Annotated[str, Option(help="train, freeze, always or recover.")] = "train",
    untie: Annotated[
        list[str] | None, Option(metavar="GLOB", help="Shared weights: each layer gets its own; may be repeated.")
    ] = None,
    keep_shared: Annotated[
        bool, Option("--keep-shared", help="Keep a weight that several layers share as one weight.")
    ] = False,
    dequantize: Annotated[
        bool, Option("--dequantize", help="Make floats of weights that are stored as integers, and train them.")
    ] = False,
    phase: Annotated[
        list[str] | None,
        Option(
            metavar="WEIGHTS=EPOCHS[@RATE]",
            help="Train in phases, such as --phase head=1 --phase '*=4@1e-4'; may be repeated.",
        ),
    ] = None,
    seed: Annotated[int, Option(help="Seed of all random numbers.")] = 0,
    entry: Annotated[str, Option(help="Name of the training entry; a file may have several.")] = "train",
    classes: Annotated[
        str | None,
        Option(
            metavar="N|FILE|NAMES",
            help="A new head: the number of classes, a file with one name a line, or names with commas.",
            show_default=False,
        ),
    ] = None,
    cut: Annotated[str | None, Option(metavar="VALUE", help="The value that the new head reads.")] = None,
    head: Annotated[Path | None, Option(help="An ONNX model to attach as the new head.")] = None,
    calibration: Annotated[
        Path | None,
        Option(help="Inputs to measure the statistics of --batch-norm recover with: .npy, .npz or .safetensors."),
    ] = None,
    teacher: Annotated[
        Path | None,
        Option(metavar="FILE", help="A larger ONNX model, for --loss distillation.", show_default=False),
    ] = None,
    loss_scale: LossScaleOption = None,
    setting: Annotated[
        list[str] | None, Option("--set", metavar="NAME=VALUE", help="A setting of the optimizer; may be repeated.")
    ] = None,
    loss_setting: Annotated[
        list[str] | None, Option("--set-loss", metavar="NAME=VALUE", help="A setting of the loss; may be repeated.")
    ] = None,
) -> None:
    """Add a loss, its gradient and an optimizer to a model: the result is one standard ONNX training file.

    Examples:
        onward make-trainable net.onnx --loss cross_entropy -o net.train.onnx
        onward make-trainable net.onnx --loss cross_entropy --optimizer adamw --train 'fc.*' -o net.train.onnx
    """
    from onward import losses, optimizers
    from onward.author import Phase
    from onward.author import make_trainable as run
    from onward.cli.console import stdout_console
    from onward.errors import counted
    from onward.model import serde
    from onward.surgery.notes import read_note

    settings = parse_settings(setting or [], "--set")
    if learning_rate is not None:
        settings["learning_rate"] = learning_rate
    options = parse_settings(loss_setting or [], "--set-loss")
    _check_loss_file(loss, options)
    chosen: Any = Path(loss) if loss.endswith(".onnx") else losses.by_name(loss, **options) if options else loss
    if loss == "ctc" and options and not (on and len(on) > 1):
        chosen, reads = complete_ctc(file, options, on[0] if on else None)
        on = [reads] if reads is not None and classes is None and cut is None and head is None else on
    model = run(
        file,
        loss=chosen,
        optimizer=optimizers.by_name(optimizer, **settings),
        train=train or "*",
        freeze=freeze or (),
        output=on[0] if on and len(on) == 1 else on or None,
        label=label,
        loss_name=loss_name,
        initialize=initialize,
        batch_norm=batch_norm,
        untie=untie or (),
        keep_shared=keep_shared,
        seed=seed,
        entry=entry,
        dequantize=dequantize,
        classes=classes,
        cut=cut,
        head=head,
        calibration=None if calibration is None else _read_inputs(calibration, file),
        phases=[Phase.parse(text) for text in phase] if phase else None,
        teacher=teacher,
        loss_scale=loss_scale,
    )
    serde.save(model, output)
    console = stdout_console(soft_wrap=True)
    if note := read_note(model).get("text"):
        console.print(f"new head: {note}")
    count = sum(v.const_value.size for v in model.parameters.values() if v.const_value is not None)
    console.print(
        f"wrote `{output}`: {counted(len(model.parameters), 'parameter')} ({counted(count, 'number')}) to train, "
        f"{len(model.frozen)} frozen; feed {', '.join(f'`{n}`' for n in [*model.inputs, *model.targets])}"
    )


def complete_ctc(file: Path, options: dict[str, Any], on: str | None) -> tuple[Loss, str | None]:
    """Return CTC with the settings that were given, the others as the graph says, and the value that it reads."""
    from onward.author.sequence_loss import ctc_of
    from onward.model import serde

    return ctc_of(serde.load(file), on, **options)


def _check_loss_file(loss: str, options: dict[str, Any]) -> None:
    """Raise if --set-loss is given for a loss that is a file: a file has no settings."""
    from onward.errors import A101, ArgumentError, Diagnostic

    if loss.endswith(".onnx") and options:
        raise ArgumentError(
            Diagnostic(
                A101,
                "a loss that is a file has no settings",
                place="--set-loss",
                found=", ".join(options),
                hint="leave --set-loss out, or choose a loss by its name: --loss focal",
            )
        )


def _read_inputs(path: Path, file: Path) -> dict[str, Any]:
    """Return the inputs of the model in `file` that the data at `path` holds, by name or by position."""
    from onward.model import serde
    from onward.train.data.files import open_data
    from onward.train.data.source import ColumnSource

    source = open_data(path)
    names = serde.load(file).inputs
    columns = source.columns if isinstance(source, ColumnSource) else {}
    arrays = {name: column.take(slice(0, 512)) for name, column in columns.items()}
    if len(names) == 1 and len(arrays) == 1:
        return {names[0]: next(iter(arrays.values()))}
    return {name: array for name, array in arrays.items() if name in names}


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
