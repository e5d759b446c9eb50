"""`onward train FILE --data D`: train a model, watch it, and save checkpoints."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from onward.cli.finetune import FineTuneOptions, fine_tune, is_plain, refuse_making
from onward.cli.learning_rate import course
from onward.cli.make_trainable import parse_settings
from onward.cli.options import (
    as_fraction,
    data_option,
    memory_options,
    note_stored,
    open_data,
    split_names,
    takes,
    with_columns,
)
from onward.errors import A101, ArgumentError, DataError, Diagnostic

if TYPE_CHECKING:
    from onward.train import Callback, Preparation, Trainer
    from onward.train.data import DataSource

_watch = functools.partial(Option, rich_help_panel="Watching")
_safe = functools.partial(Option, rich_help_panel="Checkpoints and faults")


def _use_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Let the options of a file stand where the command line says nothing."""
    if path is not None:
        from onward.cli.config import read_config

        ctx.default_map = read_config(path, TrainOptions)
    return path


def _need_nothing(ctx: typer.Context, asked: bool) -> bool:
    """Let --print-config print options without a model and data."""
    if asked:
        for parameter in ctx.command.params:
            parameter.required = False
    return asked


@dataclasses.dataclass(kw_only=True)
class TrainOptions(FineTuneOptions):
    """The options of `onward train`."""

    file: Annotated[Path, Argument(help="A model (.onnx), a compiled program or a run (directories).")]
    epochs: Annotated[int | None, Option("--epochs", "-e", help="Number of passes over the data (default: 1).")] = None
    batch_size: Annotated[int | None, Option("--batch-size", "-b", help="Samples per step (default: 32).")] = None
    backend: Annotated[str | None, Option(help="What runs the model (default: onnxruntime).")] = None
    threads: Annotated[
        int | None, Option(help="Number of threads (results are bit-identical only for equal counts).")
    ] = None
    recompute: Annotated[
        list[str] | None,
        Option(
            metavar="auto|2GB|GLOB",
            help="Compute values again for the backward pass instead of keeping them: cheap ones, as many as an amount "
            "of memory needs (see --size), or those of these names; may be repeated.",
        ),
    ] = None
    store: Annotated[
        str | None,
        Option(
            metavar="float16|bfloat16",
            help="Keep what waits for the backward pass in 16 bits: less memory, approximate gradients.",
        ),
    ] = None
    loss_scale: Annotated[
        str | None,
        Option(metavar="dynamic|NUMBER", help="Scale the loss, so that small gradients do not become 0 in float16."),
    ] = None
    size: Annotated[
        list[str] | None,
        Option(metavar="NAME=N", help="A free size of the batch, for --recompute and --store; may be repeated."),
    ] = None
    tune: Annotated[
        bool,
        Option("--tune", help="Time the forms of gradients on this machine, and take the fastest (docs/tuning.md)."),
    ] = False
    shard: Annotated[bool, Option("--shard", help="With several processes, keep a part of the state in each.")] = False
    backend_setting: Annotated[
        list[str] | None,
        Option("--set-backend", metavar="NAME=VALUE", help="A setting of the backend (compile=True); may be repeated."),
    ] = None
    learning_rate: Annotated[
        float | None, Option("--learning-rate", "--lr", help="Learning rate (default: the one in the model).")
    ] = None
    seed: Annotated[int | None, Option(help="Seed of the order of the samples (default: 0).")] = None
    entry: Annotated[str | None, Option(help="Train one entry by name (default: all of them in turn).")] = None
    initialize: Annotated[bool, Option("--initialize", help="Start from the model's initialisation.")] = False
    from_state: Annotated[
        Path | None,
        Option(metavar="FILE", help="Start from the state in this file (a checkpoint of a browser)."),
    ] = None
    validation: Annotated[
        str | None,
        data_option(metavar="FILE|SHARE", help="Data to validate on, or the share of the samples to hold back (0.1)."),
    ] = None
    metric: Annotated[
        list[str] | None,
        Option("--metric", "-m", help="accuracy, top5, precision, recall, f1, auc, mae, rmse, r2, perplexity."),
    ] = None
    augment: Annotated[
        list[str] | None,
        data_option(
            metavar="LIST",
            help="Change the samples at random: flip, crop=0.8, rotate=15, colour=0.2, erase=0.25, mixup=0.2, "
            "cutmix=1, gain=6, noise=10, shift=0.1.",
        ),
    ] = None
    workers: Annotated[
        int | None, data_option(help="Processes that read and augment (default: some for many images).")
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
    keep_best: Annotated[
        bool, _safe("--keep-best", help="Also keep the checkpoint of the best epoch, in DIR/best.")
    ] = False
    resume: Annotated[bool, _safe("--resume", help="Resume from the newest checkpoint, if there is one.")] = False
    allow_changes: Annotated[
        bool, _safe("--allow-changes", help="Resume with another backend, threads or versions.")
    ] = False
    on_nan: Annotated[
        str | None, _safe(metavar="stop|skip|off", help="About NaN: stop (default), skip the batch, or do nothing.")
    ] = None
    plot: Annotated[Path | None, _watch(help="Draw the loss (.svg or .png).")] = None
    report: Annotated[Path | None, _watch(help="Write a report (.html).")] = None
    log: Annotated[Path | None, _watch(help="Write a log as JSON lines.")] = None
    tensorboard: Annotated[Path | None, _watch(metavar="DIR", help="Write TensorBoard events.")] = None
    mlflow: Annotated[str | None, _watch(metavar="EXPERIMENT", help="Log to MLflow.")] = None
    wandb: Annotated[str | None, _watch(metavar="PROJECT", help="Log to Weights & Biases.")] = None
    as_json: Annotated[bool, _watch("--json", help="Print each step and epoch as a line of JSON.")] = False
    find_lr: Annotated[
        bool, Option("--find-lr", help="Search for a good learning rate (with --plot: draw it), and do not train.")
    ] = False
    config: Annotated[
        Path | None,
        Option(metavar="FILE.toml", is_eager=True, callback=_use_config, help="Read options from this file."),
    ] = None
    print_config: Annotated[
        bool,
        Option("--print-config", is_eager=True, callback=_need_nothing, help="Print all options as TOML and exit."),
    ] = False
    output: Annotated[Path | None, Option("-o", "--output", help="Save the trained training model (.onnx).")] = None
    inference: Annotated[Path | None, Option(help="Save the inference model (.onnx).")] = None
    average: Annotated[
        bool, Option("--average", help="Save the inference model with the moving average of the weights.")
    ] = False
    embed_preparation: Annotated[
        bool, Option("--embed-preparation", help="Let the inference model take raw data: prepare it inside.")
    ] = False
    class_weight: Annotated[
        list[str] | None, data_option(help="Weigh classes in the loss: balanced, or CLASS=WEIGHT (may be repeated).")
    ] = None
    sample_weight: Annotated[
        str | None, data_option(metavar="COLUMN", help="The column with the weight of each sample in the loss.")
    ] = None
    sampler: Annotated[str | None, data_option(help="balanced: draw each class equally often.")] = None
    quiet: Annotated[bool, _watch("--quiet", "-q", help="Print errors only.")] = False

    def check(self) -> None:
        """Raise for options that need another option; list all of them."""
        no_directory, every = self.checkpoint is None, self.checkpoint_every is not None
        rules = (
            (self.resume and no_directory, "--resume needs a checkpoint directory", "--checkpoint DIR"),
            (every and no_directory, "--checkpoint-every needs a checkpoint directory", "--checkpoint DIR"),
            (self.keep_best and no_directory, "--keep-best needs a checkpoint directory", "--checkpoint DIR"),
            (
                self.from_state is not None and self.initialize,
                "--from-state and --initialize both say where to start",
                "one of them",
            ),
            (self.average and self.inference is None, "--average is for the inference model", "--inference FILE"),
            (
                self.embed_preparation and self.inference is None,
                "--embed-preparation is for the inference model",
                "--inference FILE",
            ),
        )
        problems = [Diagnostic(A101, message, needed=needed) for is_wrong, message, needed in rules if is_wrong]
        patience = {"--early-stopping": self.early_stopping, "--reduce-on-plateau": self.reduce_on_plateau}
        for option, epochs in patience.items():  # both are `patience` to Python, so that its error cannot say which
            if epochs is not None and epochs < 1:
                problems.append(Diagnostic(A101, f"{option} is {epochs}", needed="a whole number of at least 1"))
        if problems:
            raise ArgumentError(problems)

    def class_weights(self) -> Any:
        """Return the weights of classes as `fit` takes them.

        Raises:
            ArgumentError: a weight cannot be understood; all of them at once.
        """
        given = split_names(self.class_weight)
        if not given or given == ["balanced"]:
            return given[0] if given else None
        weights, problems = {}, []
        for text in given:
            name, equals, weight = text.rpartition("=")
            try:
                weights[name] = as_fraction(weight)
            except (ValueError, ZeroDivisionError):
                equals = ""
            if not equals or not name or weights[name] < 0:
                needed = "balanced, or CLASS=WEIGHT with a weight of at least 0"
                problems.append(Diagnostic(A101, f"--class-weight is `{text}`", needed=needed))
        if problems:
            raise ArgumentError(problems)
        return weights

    def backend_options(self) -> dict[str, Any]:
        """Return the settings of the backend."""
        settings = parse_settings(self.backend_setting or [], "--set-backend")
        settings |= {} if self.threads is None else {"threads": self.threads}
        settings |= {"shard": True} if self.shard else {}
        settings |= {} if self.loss_scale is None else {"loss_scale": self.loss_scale}
        if self.size and not (self.recompute or self.store):
            raise ArgumentError(Diagnostic(A101, "--size is for --recompute and --store"))
        return settings | memory_options(self.recompute or (), self.store, self.size or ())

    def callbacks(self) -> list[Callback]:
        """Return the callbacks that the options ask for."""
        from onward.train import (
            BestSoFar,
            EarlyStopping,
            JsonLines,
            JsonLog,
            LossPlot,
            MLflow,
            ReduceOnPlateau,
            Report,
            TensorBoard,
            WandB,
        )

        found: list[Callback] = []
        if self.early_stopping is not None:
            found.append(EarlyStopping(patience=self.early_stopping))
        if self.reduce_on_plateau is not None:
            found.append(ReduceOnPlateau(patience=self.reduce_on_plateau))
        if self.best:
            found.append(BestSoFar())
        files = ((JsonLog, self.log), (TensorBoard, self.tensorboard), (LossPlot, self.plot))
        found += [make(path) for make, path in files if path is not None]
        loggers = ((MLflow, self.mlflow), (WandB, self.wandb))
        found += [make(name) for make, name in loggers if name is not None]
        found += [JsonLines()] if self.as_json else []
        return found if self.report is None else [*found, Report(self.report, self.file.name)]

    def without_files(self) -> TrainOptions:
        """Return the options for a process that neither writes nor prints: with several, only the first does."""
        files = dict.fromkeys(("plot", "report", "log", "tensorboard", "mlflow", "wandb", "output", "inference"))
        return dataclasses.replace(self, quiet=True, as_json=False, **files)  # type: ignore[arg-type]  # each may be None


@takes(TrainOptions)
def train(options: TrainOptions) -> None:
    """Train a model. A plain inference model is made trainable first; what is chosen for it is printed.

    With --checkpoint a run can be killed at any moment. --resume continues it, bit for bit.

    Examples:
        onward train net.onnx --data photos/ --classes auto --epochs 5 --inference tuned.onnx
        onward train net.train.onnx --data digits.npz --validation 0.1 --checkpoint run/ --resume --report run.html
    """
    from onward.cli.console import print_confusion
    from onward.train.signals import Interrupted

    if options.print_config:
        from onward.cli.config import render_config

        typer.echo(render_config(options), nl=False)
        return
    options.check()
    model: Any = options.file
    if is_plain(options.file):
        model, options = fine_tune(options)
    else:
        refuse_making(options, options.file)
    trainer = _open(options, model)
    _check_results(trainer, options)
    resumed = trainer.steps > 0
    if options.initialize and not resumed:
        trainer.initialize(options.seed or 0)
    if options.from_state is not None and not resumed:
        trainer.load_state(options.from_state)
    preparation = options.preparation(trainer.preparation)
    results = [path for path in (options.output, options.inference) if path is not None]
    if not trainer.is_writer:
        options = options.without_files()
    entry = options.entry or trainer.entry
    preparation = with_columns(options, trainer, preparation, entry)
    class_weight = options.class_weights()
    source = open_data(options.data, trainer, preparation, "train", entry, options.sample_weight)
    if not (options.quiet or resumed):
        note_scale(source, trainer, preparation)
        note_stored(trainer)
    if options.find_lr:
        from onward.cli.find_rate import find_rate

        find_rate(trainer, source, options, preparation, entry)
        return
    validation = _validation(options.validation, trainer, preparation, source, entry)
    asked = split_names(options.metric)
    before = trainer.steps
    try:
        history = trainer.fit(
            source,
            epochs=options.epochs,
            batch_size=options.batch_size,
            validation_data=validation,
            metrics=asked,
            callbacks=options.callbacks(),
            shuffle=False if options.no_shuffle else None,
            seed=options.seed,
            learning_rate=course(options, trainer, source, validation),
            entry=entry,
            preparation=preparation,
            class_weight=class_weight,
            sample_weight=options.sample_weight,
            sampler=options.sampler,
            checkpoint=options.checkpoint,
            checkpoint_every=options.checkpoint_every,
            keep=options.keep,
            keep_best=options.keep_best or None,
            on_nan=options.on_nan,
            augment=split_names(options.augment) or None,
            workers=options.workers,
            progress="none" if options.quiet or options.as_json else "auto",
        )
    except (KeyboardInterrupt, SystemExit) as stop:
        whole = trainer.steps > 0 and isinstance(stop, (Interrupted, SystemExit))
        typer.echo(_farewell(trainer, options.checkpoint, results if whole else []), err=True)
        if whole:
            _finish(trainer, options, results)
        raise
    except DataError:  # found in the middle of the run: the steps before it must not be lost
        if trainer.steps > before and trainer.session.processes == 1:
            typer.echo(_farewell(trainer, options.checkpoint, results), err=True)
            _finish(trainer, options, results)
        raise
    _finish(trainer, options, results)
    if history.confusion and any(name.startswith("confusion") for name in asked) and not options.quiet:
        print_confusion(history.confusion, trainer.preparation.classes)


def _finish(trainer: Trainer, options: TrainOptions, results: Sequence[Path]) -> None:
    """Write the models that were asked for, of the state reached."""
    _save(trainer, options)
    if trainer.session.sharded and not trainer.is_writer:
        for _ in results:  # the writer needs this process's part of the state
            _ = trainer.state


def _open(options: TrainOptions, model: Any) -> Trainer:
    """Return a trainer for the run in the checkpoint directory, or a new one of `model` when there is none."""
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
        if not options.tune:
            return Trainer(model, backend or "onnxruntime", **settings)
        from onward.compiler.tuning import BATCH, Tuner

        tuner = Tuner(options.batch_size or BATCH, threads=options.threads)
        trainer = Trainer(model, backend or "onnxruntime", tune=tuner, **settings)
        if not (options.quiet or options.as_json):
            typer.echo(tuner.described(), err=True)
        return trainer
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
    if options.file.exists() and not trainer.is_of(model):
        raise CheckpointError(
            Diagnostic(
                K105,
                f"`{checkpoint}` holds the run of another model than `{options.file}`",
                hint="give the model that the run was started with, or choose another directory",
            )
        )
    return trainer


def _farewell(trainer: Trainer, checkpoint: Path | None, results: Sequence[Path]) -> str:
    """Return the last message about a run that Ctrl-C or SIGTERM stopped; `results` are the files still to write."""
    from onward.train.checkpoint import CheckpointDirectory

    stopped = f"stopped at step {trainer.steps}; "
    written = f"writing {' and '.join(f'`{path}`' for path in results)} of that state" if results else ""
    if checkpoint is not None and CheckpointDirectory(checkpoint).step_files():
        return stopped + f"the same command with --resume goes on from `{checkpoint}`" + (written and f"; {written}")
    return stopped + (written or "nothing was saved" + ("" if checkpoint else " (--checkpoint DIR does)"))


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
        inference = trainer.to_inference(average=options.average, embed_preparation=options.embed_preparation)
        save(inference, options.inference)
    for path in (options.output, options.inference):
        if path is not None and options.as_json:
            from onward.train import JsonLines

            JsonLines().saved("training model" if path == options.output else "inference model", path)
        elif path is not None and not options.quiet:
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
