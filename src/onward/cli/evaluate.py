"""`onward evaluate FILE|DIR --data D`: loss and metrics of a model or of the newest checkpoint of a run."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from onward.cli.console import print_confusion
from onward.cli.options import DataOptions, open_data, split_names, takes, with_columns

if TYPE_CHECKING:
    from onward.train import Trainer


@dataclasses.dataclass(kw_only=True)
class EvaluateOptions(DataOptions):
    """The options of `onward evaluate`."""

    file: Annotated[Path, Argument(metavar="FILE|DIR", help="A model (.onnx), a program, or a checkpoint directory.")]
    metric: Annotated[
        list[str] | None,
        Option(
            "--metric", "-m", help="accuracy, top5, precision, recall, f1, auc, mae, rmse, r2, perplexity, confusion."
        ),
    ] = None
    batch_size: Annotated[int | None, Option("--batch-size", "-b", help="Samples at a time (default: 256).")] = None
    backend: Annotated[str | None, Option(help="What runs the model (default: onnxruntime).")] = None
    entry: Annotated[str | None, Option(help="The training entry whose loss it is (default: the first).")] = None
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False


@takes(EvaluateOptions)
def evaluate(options: EvaluateOptions) -> None:
    """Print the loss and the metrics of a model over some data.

    A checkpoint, and a model saved by `onward train`, remember how the training data was scaled and how its classes
    were numbered. The options change that.

    Examples:
        onward evaluate net.train.onnx --data digits.npz --metric accuracy
        onward evaluate run/ --data digits.npz --json
    """
    trainer = _open(options.file, options.backend)
    preparation = options.preparation(trainer.preparation)
    entry = options.entry or trainer.first_entry
    preparation = with_columns(options, trainer, preparation, entry)
    source = open_data(options.data, trainer, preparation, "evaluate", entry)
    result = trainer.evaluate(
        source,
        batch_size=options.batch_size,
        metrics=split_names(options.metric),
        preparation=preparation,
        entry=options.entry,
    )
    if options.as_json:
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in result.items()}
        typer.echo(json.dumps({"samples": source.size, **finite}))
    else:
        _print(result, source.size, preparation.classes or tuple(source.classes))


def _open(file: Path, backend: str | None) -> Trainer:
    from onward.train import Trainer
    from onward.train.checkpoint import CheckpointDirectory

    if file.is_dir() and CheckpointDirectory(file).step_files():
        # Nothing is trained, so another thread count or version does no harm.
        options = {} if backend is None else {"backend": backend}
        return Trainer.resume(file, allow_changes=True, **options)
    return Trainer(file, backend or "onnxruntime")


def _print(result: dict[str, Any], samples: int | None, classes: tuple[str, ...]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    matrices = {name: value for name, value in result.items() if isinstance(value, list)}
    table = Table.grid(padding=(0, 3))
    table.add_column()
    table.add_column(justify="right", style="bold")
    if samples is not None:
        table.add_row("samples", f"{samples:,}")
    for name, value in result.items():
        if name not in matrices:
            table.add_row(name, f"{value:.6g}")
    console.print(table)
    for name, matrix in matrices.items():
        _, _, output = name.partition(":")
        print_confusion(matrix, classes, output)
