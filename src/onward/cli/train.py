"""`onward train FILE --data D`: train a model, watch it, and never lose what was done."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward.cli.make_trainable import parse_settings
from onward.errors import A101, ArgumentError, Diagnostic

if TYPE_CHECKING:
    from onward.train import Callback, Preparation, Trainer
    from onward.train.data import DataSource

_DATA = "Data"
_WATCH = "Watching"
_SAFE = "Checkpoints and faults"


def train(
    file: Annotated[Path, typer.Argument(help="A training model (.onnx) or a compiled program (directory).")],
    data: Annotated[
        list[str],
        typer.Option(
            "--data",
            "-d",
            help="A file or folder (.npy, .npz, .safetensors, .csv, .parquet, IDX, images), or NAME=FILE per input.",
            rich_help_panel=_DATA,
            show_default=False,
        ),
    ],
    epochs: Annotated[
        int | None, typer.Option("--epochs", "-e", help="How often to go through the data (default: 1).")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", "-b", help="Samples per step (default: 32).")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="What runs the model (default: onnxruntime).")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of the backend; the bits depend on them.")] = None,
    shard: Annotated[
        bool, typer.Option("--shard", help="With several processes, keep a part of the state in each.")
    ] = False,
    backend_setting: Annotated[
        list[str] | None,
        typer.Option("--set-backend", help="A setting of the backend, NAME=VALUE (compile=True); may be repeated."),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", "--lr", help="Instead of the one in the model.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Chooses the order of the samples (default: 0).")] = None,
    entry: Annotated[str | None, typer.Option(help="One training entry by name; all in turn by default.")] = None,
    initialize: Annotated[bool, typer.Option("--initialize", help="Start from the model's initialisation.")] = False,
    validation: Annotated[
        str | None,
        typer.Option(
            help="Data to validate on, or the share of the samples to hold back (0.1).", rich_help_panel=_DATA
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", "-m", help="accuracy, top5, precision, recall, f1, auc, mae, rmse, r2, perplexity."),
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="Multiply inputs by this, e.g. 1/255.", rich_help_panel=_DATA)
    ] = None,
    mean: Annotated[
        str | None, typer.Option(help="Subtract this: one number, or one per channel.", rich_help_panel=_DATA)
    ] = None,
    std: Annotated[
        str | None, typer.Option(help="Divide by this: one number, or one per channel.", rich_help_panel=_DATA)
    ] = None,
    one_hot: Annotated[
        bool, typer.Option("--one-hot", help="Code integer targets as rows of 0 and 1.", rich_help_panel=_DATA)
    ] = False,
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="INPUT=COLUMN: where an input or target comes from (a,b,c for several).", rich_help_panel=_DATA
        ),
    ] = None,
    no_shuffle: Annotated[
        bool, typer.Option("--no-shuffle", help="Keep the order of the data.", rich_help_panel=_DATA)
    ] = False,
    early_stopping: Annotated[
        int | None, typer.Option(metavar="EPOCHS", help="Stop when the loss has not improved for so many epochs.")
    ] = None,
    reduce_on_plateau: Annotated[
        int | None, typer.Option(metavar="EPOCHS", help="Divide the rate by 10 after so many epochs without progress.")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="End with the state of the best epoch.")] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save checkpoints here.", rich_help_panel=_SAFE)
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(metavar="STEPS", help="How often; after each epoch by default.", rich_help_panel=_SAFE)
    ] = None,
    keep: Annotated[int, typer.Option(help="How many checkpoints stay.", rich_help_panel=_SAFE)] = 3,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint, if there is one.", rich_help_panel=_SAFE)
    ] = False,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes", help="Resume with another backend, threads or versions.", rich_help_panel=_SAFE
        ),
    ] = False,
    on_nan: Annotated[
        str | None, typer.Option(help="stop (default), skip the batch, or off.", rich_help_panel=_SAFE)
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the loss (.svg).", rich_help_panel=_WATCH)] = None,
    report: Annotated[Path | None, typer.Option(help="Write a report (.html).", rich_help_panel=_WATCH)] = None,
    log: Annotated[Path | None, typer.Option(help="Write JSON lines.", rich_help_panel=_WATCH)] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write TensorBoard events.", rich_help_panel=_WATCH)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Save the trained training model (.onnx).")
    ] = None,
    inference: Annotated[Path | None, typer.Option(help="Save the inference model (.onnx).")] = None,
    average: Annotated[
        bool, typer.Option("--average", help="Save the inference model with the moving average of the weights.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.", rich_help_panel=_WATCH)] = False,
) -> None:
    """Train a model.

    With --checkpoint a run can be killed at any moment; --resume takes it up again, bit for bit.
    """
    from onward.train import BestSoFar, EarlyStopping, JsonLog, LossPlot, ReduceOnPlateau, Report, TensorBoard

    if resume and checkpoint is None:
        raise ArgumentError(Diagnostic(A101, "--resume needs to know from where", needed="--checkpoint DIR"))
    if checkpoint_every is not None and checkpoint is None:
        raise ArgumentError(Diagnostic(A101, "--checkpoint-every needs to know where", needed="--checkpoint DIR"))
    if average and inference is None:
        raise ArgumentError(Diagnostic(A101, "--average is for the inference model", needed="--inference FILE"))
    options = parse_settings(backend_setting or [], "--set-backend")
    options |= ({} if threads is None else {"threads": threads}) | ({"shard": True} if shard else {})
    trainer = _open(file, checkpoint, resume, backend, options, allow_changes)
    _check_results(trainer, output, inference, average)
    resumed = trainer.steps > 0
    if initialize and not resumed:
        trainer.initialize(seed or 0)
    preparation = make_preparation(trainer.preparation, scale, mean, std, one_hot, column)
    callbacks: list[Callback] = []
    if early_stopping is not None:
        callbacks.append(EarlyStopping(patience=early_stopping))
    if reduce_on_plateau is not None:
        callbacks.append(ReduceOnPlateau(patience=reduce_on_plateau))
    if best:
        callbacks.append(BestSoFar())
    written = [p for p in (output, inference) if p is not None]
    if not trainer.is_writer:  # one of several processes: the first alone writes and prints
        plot = report = log = tensorboard = output = inference = None
        quiet = True
    callbacks += [make(path) for make, path in ((JsonLog, log), (TensorBoard, tensorboard), (LossPlot, plot)) if path]
    if report is not None:
        callbacks.append(Report(report, file.name))
    entry = entry or trainer.entry
    source = open_source(data, trainer, preparation, "train", entry)
    if not (quiet or resumed):
        note_scale(source, trainer, preparation)
    try:
        trainer.fit(
            source,
            epochs=epochs,
            batch_size=batch_size,
            validation_data=_validation(validation, trainer, preparation, source, entry),
            metrics=split_names(metric),
            callbacks=callbacks,
            shuffle=False if no_shuffle else None,
            seed=seed,
            learning_rate=learning_rate,
            entry=entry,
            preparation=preparation,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            keep=keep,
            on_nan=on_nan,
            progress="none" if quiet else "auto",
        )
    except (KeyboardInterrupt, SystemExit):
        typer.echo(_farewell(trainer, checkpoint), err=True)
        raise
    _save(trainer, output, inference, average, quiet)
    if trainer.session.sharded and not trainer.is_writer:
        for _ in written:  # the writer needs this process's part of the state
            _ = trainer.state


def _open(
    file: Path,
    checkpoint: Path | None,
    resume: bool,
    backend: str | None,
    options: dict[str, Any],
    allow_changes: bool,
) -> Trainer:
    """Return a trainer that goes on with the run in `checkpoint`, or a new one when there is none."""
    from onward.backends.processes import world_size
    from onward.errors import CheckpointError
    from onward.train import Trainer
    from onward.train.checkpoint import K105, CheckpointDirectory

    if options.get("shard") and world_size() == 1:
        raise ArgumentError(
            Diagnostic(A101, "--shard is for several processes", found="one", hint="start them with torchrun")
        )
    if world_size() > 1 and backend != "torch":
        raise ArgumentError(
            Diagnostic(
                A101,
                "several processes train together on the torch backend only",
                found=f"{world_size()} processes, backend {backend or 'onnxruntime'}",
                needed="--backend torch",
            )
        )
    if checkpoint is not None and CheckpointDirectory(checkpoint).step_files():
        if not resume:
            raise CheckpointError(
                Diagnostic(
                    K105,
                    f"`{checkpoint}` already holds a run",
                    hint="go on with it by --resume, or choose another directory",
                )
            )
        if backend is not None:
            options["backend"] = backend
        trainer = Trainer.resume(checkpoint, allow_changes=allow_changes, **options)
        if file.exists() and not trainer.is_of(file):
            raise CheckpointError(
                Diagnostic(
                    K105,
                    f"`{checkpoint}` holds the run of another model than `{file}`",
                    hint="give the model that the run was started with, or choose another directory",
                )
            )
        return trainer
    return Trainer(file, backend or "onnxruntime", **options)


def _farewell(trainer: Trainer, checkpoint: Path | None) -> str:
    """Return what becomes of a run that was stopped by Ctrl-C or SIGTERM."""
    from onward.train.checkpoint import CheckpointDirectory

    if checkpoint is not None and CheckpointDirectory(checkpoint).step_files():
        return f"stopped at step {trainer.steps}; the same command with --resume goes on from `{checkpoint}`"
    return f"stopped at step {trainer.steps}; nothing was saved" + ("" if checkpoint else " (--checkpoint DIR does)")


def _check_results(trainer: Trainer, output: Path | None, inference: Path | None, average: bool) -> None:
    """Raise before the training for what could not be saved after it; all at once."""
    from onward.model.files import why_not_writable

    problems = []
    for path in (output, inference):
        problem = None if path is None else why_not_writable(path)
        if problem is not None:
            problems.append(problem)
    if output is not None and not trainer.has_model:
        problems.append(
            Diagnostic(
                A101,
                "a compiled program cannot be turned back into a training model",
                found=f"--output {output}",
                needed="--inference FILE or --checkpoint DIR, or the training model instead of the program",
            )
        )
    if average and not trainer.has_average:
        problems.append(
            Diagnostic(
                A101,
                "the model keeps no moving average of its weights",
                found="--average",
                hint="make it with one: onward make-trainable … --set ema=0.999",
            )
        )
    if problems:
        raise ArgumentError(problems)


def _save(trainer: Trainer, output: Path | None, inference: Path | None, average: bool, quiet: bool) -> None:
    from onward.model.serde import save

    if output is not None:
        save(trainer.to_model(), output)
    if inference is not None:
        save(trainer.to_inference(average=average), inference)
    for path in (output, inference):
        if path is not None and not quiet:
            typer.echo(f"saved {path}", err=True)


def make_preparation(
    base: Preparation,
    scale: str | None,
    mean: str | None,
    std: str | None,
    one_hot: bool,
    column: Sequence[str] | None,
) -> Preparation:
    """Return `base` with what the options change.

    Raises:
        ArgumentError: a number or a column cannot be understood; all at once.
    """
    problems: list[Diagnostic] = []

    def numbers(option: str, text: str) -> Any:
        try:
            values = [float(Fraction(part.strip())) for part in text.split(",")]
        except (ValueError, ZeroDivisionError):
            problems.append(Diagnostic(A101, f"{option} is `{text}`", needed="a number such as 0.5 or 1/255"))
            return 1.0
        return values[0] if len(values) == 1 else values

    changes: dict[str, Any] = {"one_hot": True} if one_hot else {}
    for name, text in (("scale", scale), ("mean", mean), ("std", std)):
        if text is not None:
            changes[name] = numbers(f"--{name}", text)
    if isinstance(changes.get("scale"), list):
        problems.append(Diagnostic(A101, f"--scale is `{scale}`", needed="one number"))
    columns = {}
    for text in column or ():
        name, _, source = text.partition("=")
        if not name or not source:
            problems.append(Diagnostic(A101, f"--column is `{text}`", needed="INPUT=COLUMN, such as x=a,b,c"))
        columns[name] = source
    if problems:
        raise ArgumentError(problems)
    if columns:
        changes["columns"] = columns
    return dataclasses.replace(base, **changes)


def open_source(
    data: Sequence[str], trainer: Trainer, preparation: Preparation, part: str, entry: str | None = None
) -> DataSource:
    """Return the data of one `--data PATH`, or of several `--data NAME=FILE`."""
    from onward.train.arguments import check_entry
    from onward.train.data.files import open_data, open_named

    named = {}
    for text in data:
        name, equals, path = text.partition("=")
        if equals and not Path(text).exists():
            named[name] = Path(path)
    if (named and len(named) < len(data)) or (len(data) > 1 and not named):
        raise ArgumentError(
            Diagnostic(A101, "several --data without names", found=", ".join(data), needed="NAME=FILE for each of them")
        )
    if named:
        return open_named(named)
    check_entry(entry, trainer.program)
    program = trainer.program.for_entry(entry)
    return open_data(data[0], program.inputs, program.targets, part=part, preparation=preparation)


def note_scale(source: DataSource, trainer: Trainer, preparation: Preparation) -> None:
    """Say so when bytes (the pixels of images, as a rule) go into a float input as they are."""
    columns = source.specs()
    by_name = {c.name: c for c in columns}
    for i, spec in enumerate(trainer.program.inputs):
        column = by_name.get(spec.name, columns[i] if source.positional and i < len(columns) else None)
        if column is not None and column.dtype == "uint8" and "float" in spec.dtype and not preparation.normalises:
            typer.echo(
                f"note: `{spec.name}` gets bytes, 0 to 255, as they are; most models learn better with --scale 1/255",
                err=True,
            )


def _validation(
    text: str | None, trainer: Trainer, preparation: Preparation, source: DataSource, entry: str | None
) -> Any:
    if text is None:
        return None
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        known = dataclasses.replace(
            preparation, classes=preparation.classes or tuple(source.classes), table=source.table
        )
        return open_source([text], trainer, known, "evaluate", entry)


def split_names(names: Sequence[str] | None) -> list[str]:
    """Return the names of repeated and comma-separated options, in order.

    >>> split_names(["accuracy,f1", "auc"])
    ['accuracy', 'f1', 'auc']
    """
    return [part.strip() for text in names or () for part in text.split(",") if part.strip()]
