"""`onward train FILE --data D`: train a model, watch it, and save checkpoints."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from onward.cli.make_trainable import parse_settings
from onward.cli.options import DataOptions, as_fraction, data_option, open_data, split_names, takes
from onward.errors import A101, ArgumentError, Diagnostic

if TYPE_CHECKING:
    from onward.train import Callback, Preparation, Trainer
    from onward.train.data import DataSource

_watch = functools.partial(Option, rich_help_panel="Watching")
_safe = functools.partial(Option, rich_help_panel="Checkpoints and faults")


@dataclasses.dataclass(kw_only=True)
class TrainOptions(DataOptions):
    """The options of `onward train`."""

    file: Annotated[Path, Argument(help="A training model (.onnx) or a compiled program (directory).")]
    epochs: Annotated[int | None, Option("--epochs", "-e", help="Number of passes over the data (default: 1).")] = None
    batch_size: Annotated[int | None, Option("--batch-size", "-b", help="Samples per step (default: 32).")] = None
    backend: Annotated[str | None, Option(help="What runs the model (default: onnxruntime).")] = None
    threads: Annotated[
        int | None, Option(help="Number of threads (results are bit-identical only for equal counts).")
    ] = None
    shard: Annotated[bool, Option("--shard", help="With several processes, keep a part of the state in each.")] = False
    backend_setting: Annotated[
        list[str] | None,
        Option("--set-backend", help="A setting of the backend, NAME=VALUE (compile=True); may be repeated."),
    ] = None
    learning_rate: Annotated[
        float | None, Option("--learning-rate", "--lr", help="Learning rate (default: the one in the model).")
    ] = None
    seed: Annotated[int | None, Option(help="Seed of the order of the samples (default: 0).")] = None
    entry: Annotated[str | None, Option(help="Train one entry by name (default: all of them in turn).")] = None
    initialize: Annotated[bool, Option("--initialize", help="Start from the model's initialisation.")] = False
    validation: Annotated[
        str | None, data_option(help="Data to validate on, or the share of the samples to hold back (0.1).")
    ] = None
    metric: Annotated[
        list[str] | None,
        Option("--metric", "-m", help="accuracy, top5, precision, recall, f1, auc, mae, rmse, r2, perplexity."),
    ] = None
    no_shuffle: Annotated[bool, data_option("--no-shuffle", help="Keep the order of the data.")] = False
    early_stopping: Annotated[
        int | None, Option(metavar="EPOCHS", help="Stop after this many epochs without a better loss.")
    ] = None
    reduce_on_plateau: Annotated[
        int | None,
        Option(metavar="EPOCHS", help="Divide the learning rate by 10 after this many epochs without progress."),
    ] = None
    best: Annotated[bool, Option("--best", help="End with the state of the best epoch.")] = False
    checkpoint: Annotated[Path | None, _safe(metavar="DIR", help="Save checkpoints in this directory.")] = None
    checkpoint_every: Annotated[
        int | None, _safe(metavar="STEPS", help="Steps between checkpoints (default: one epoch).")
    ] = None
    keep: Annotated[int, _safe(help="How many checkpoints to keep.")] = 3
    resume: Annotated[bool, _safe("--resume", help="Resume from the newest checkpoint, if there is one.")] = False
    allow_changes: Annotated[
        bool, _safe("--allow-changes", help="Resume with another backend, threads or versions.")
    ] = False
    on_nan: Annotated[str | None, _safe(help="What to do about NaN: stop (default), skip the batch, or off.")] = None
    plot: Annotated[Path | None, _watch(help="Draw the loss (.svg).")] = None
    report: Annotated[Path | None, _watch(help="Write a report (.html).")] = None
    log: Annotated[Path | None, _watch(help="Write a log as JSON lines.")] = None
    tensorboard: Annotated[Path | None, _watch(metavar="DIR", help="Write TensorBoard events.")] = None
    output: Annotated[Path | None, Option("-o", "--output", help="Save the trained training model (.onnx).")] = None
    inference: Annotated[Path | None, Option(help="Save the inference model (.onnx).")] = None
    average: Annotated[
        bool, Option("--average", help="Save the inference model with the moving average of the weights.")
    ] = False
    quiet: Annotated[bool, _watch("--quiet", "-q", help="Print errors only.")] = False

    def check(self) -> None:
        """Raise for options that need another option; list all of them."""
        no_directory, every = self.checkpoint is None, self.checkpoint_every is not None
        rules = (
            (self.resume and no_directory, "--resume needs a checkpoint directory", "--checkpoint DIR"),
            (every and no_directory, "--checkpoint-every needs a checkpoint directory", "--checkpoint DIR"),
            (self.average and self.inference is None, "--average is for the inference model", "--inference FILE"),
        )
        problems = [Diagnostic(A101, message, needed=needed) for is_wrong, message, needed in rules if is_wrong]
        if problems:
            raise ArgumentError(problems)

    def backend_options(self) -> dict[str, Any]:
        """Return the settings of the backend."""
        settings = parse_settings(self.backend_setting or [], "--set-backend")
        settings |= {} if self.threads is None else {"threads": self.threads}
        return settings | ({"shard": True} if self.shard else {})

    def callbacks(self) -> list[Callback]:
        """Return the callbacks that the options ask for."""
        from onward.train import BestSoFar, EarlyStopping, JsonLog, LossPlot, ReduceOnPlateau, Report, TensorBoard

        found: list[Callback] = []
        if self.early_stopping is not None:
            found.append(EarlyStopping(patience=self.early_stopping))
        if self.reduce_on_plateau is not None:
            found.append(ReduceOnPlateau(patience=self.reduce_on_plateau))
        if self.best:
            found.append(BestSoFar())
        files = ((JsonLog, self.log), (TensorBoard, self.tensorboard), (LossPlot, self.plot))
        found += [make(path) for make, path in files if path is not None]
        return found if self.report is None else [*found, Report(self.report, self.file.name)]

    def without_files(self) -> TrainOptions:
        """Return the options for a process that neither writes nor prints: with several, only the first does."""
        files = dict.fromkeys(("plot", "report", "log", "tensorboard", "output", "inference"))
        return dataclasses.replace(self, quiet=True, **files)  # type: ignore[arg-type]  # each may be None


@takes(TrainOptions)
def train(options: TrainOptions) -> None:
    """Train a model.

    With --checkpoint a run can be killed at any moment. --resume continues it, bit for bit.
    """
    options.check()
    trainer = _open(options)
    _check_results(trainer, options)
    resumed = trainer.steps > 0
    if options.initialize and not resumed:
        trainer.initialize(options.seed or 0)
    preparation = options.preparation(trainer.preparation)
    results = [path for path in (options.output, options.inference) if path is not None]
    if not trainer.is_writer:
        options = options.without_files()
    entry = options.entry or trainer.entry
    source = open_data(options.data, trainer, preparation, "train", entry)
    if not (options.quiet or resumed):
        note_scale(source, trainer, preparation)
    try:
        trainer.fit(
            source,
            epochs=options.epochs,
            batch_size=options.batch_size,
            validation_data=_validation(options.validation, trainer, preparation, source, entry),
            metrics=split_names(options.metric),
            callbacks=options.callbacks(),
            shuffle=False if options.no_shuffle else None,
            seed=options.seed,
            learning_rate=options.learning_rate,
            entry=entry,
            preparation=preparation,
            checkpoint=options.checkpoint,
            checkpoint_every=options.checkpoint_every,
            keep=options.keep,
            on_nan=options.on_nan,
            progress="none" if options.quiet else "auto",
        )
    except (KeyboardInterrupt, SystemExit):
        typer.echo(_farewell(trainer, options.checkpoint), err=True)
        raise
    _save(trainer, options)
    if trainer.session.sharded and not trainer.is_writer:
        for _ in results:  # the writer needs this process's part of the state
            _ = trainer.state


def _open(options: TrainOptions) -> Trainer:
    """Return a trainer for the run in the checkpoint directory, or a new one when there is none."""
    from onward.backends.processes import world_size
    from onward.errors import CheckpointError
    from onward.train import Trainer
    from onward.train.checkpoint import K105, CheckpointDirectory

    backend, checkpoint, settings = options.backend, options.checkpoint, options.backend_options()
    if settings.get("shard") and world_size() == 1:
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
    if checkpoint is None or not CheckpointDirectory(checkpoint).step_files():
        return Trainer(options.file, backend or "onnxruntime", **settings)
    if not options.resume:
        raise CheckpointError(
            Diagnostic(
                K105,
                f"`{checkpoint}` already holds a run",
                hint="resume it with --resume, or choose another directory",
            )
        )
    if backend is not None:
        settings["backend"] = backend
    trainer = Trainer.resume(checkpoint, allow_changes=options.allow_changes, **settings)
    if options.file.exists() and not trainer.is_of(options.file):
        raise CheckpointError(
            Diagnostic(
                K105,
                f"`{checkpoint}` holds the run of another model than `{options.file}`",
                hint="give the model that the run was started with, or choose another directory",
            )
        )
    return trainer


def _farewell(trainer: Trainer, checkpoint: Path | None) -> str:
    """Return the last message about a run that Ctrl-C or SIGTERM stopped."""
    from onward.train.checkpoint import CheckpointDirectory

    if checkpoint is not None and CheckpointDirectory(checkpoint).step_files():
        return f"stopped at step {trainer.steps}; the same command with --resume goes on from `{checkpoint}`"
    return f"stopped at step {trainer.steps}; nothing was saved" + ("" if checkpoint else " (--checkpoint DIR does)")


def _check_results(trainer: Trainer, options: TrainOptions) -> None:
    """Raise before the training if a result cannot be saved after it; list all problems."""
    from onward.model.files import why_not_writable

    paths = [path for path in (options.output, options.inference) if path is not None]
    problems = [problem for path in paths if (problem := why_not_writable(path)) is not None]
    if options.output is not None and not trainer.has_model:
        problems.append(
            Diagnostic(
                A101,
                "a compiled program cannot be turned back into a training model",
                found=f"--output {options.output}",
                needed="--inference FILE or --checkpoint DIR, or the training model instead of the program",
            )
        )
    if options.average and not trainer.has_average:
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


def _save(trainer: Trainer, options: TrainOptions) -> None:
    from onward.model.serde import save

    if options.output is not None:
        save(trainer.to_model(), options.output)
    if options.inference is not None:
        save(trainer.to_inference(average=options.average), options.inference)
    for path in (options.output, options.inference):
        if path is not None and not options.quiet:
            typer.echo(f"saved {path}", err=True)


def note_scale(source: DataSource, trainer: Trainer, preparation: Preparation) -> None:
    """Print a note when bytes (usually the pixels of images) go into a float input unscaled."""
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
    """Return the validation data, the share of the samples to hold back, or None."""
    if text is None:
        return None
    try:
        return as_fraction(text)
    except (ValueError, ZeroDivisionError):
        known = dataclasses.replace(
            preparation, classes=preparation.classes or tuple(source.classes), table=source.table
        )
        return open_data([text], trainer, known, "evaluate", entry)
