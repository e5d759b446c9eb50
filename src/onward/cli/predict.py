"""`onward predict FILE|DIR --data D -o predictions.csv`: what a model says about each sample."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from onward.cli.evaluate import _open as open_trainer
from onward.cli.options import DataOptions, split_names, takes


@dataclasses.dataclass(kw_only=True)
class PredictOptions(DataOptions):
    """The options of `onward predict`."""

    file: Annotated[
        Path,
        Argument(metavar="FILE|DIR", help="A model (.onnx), a program, or a checkpoint directory."),
    ]
    output: Annotated[
        Path | None,
        Option(
            "-o", "--output", help="The file to write: .csv, .tsv, .json, .jsonl, .parquet (default: CSV on stdout)."
        ),
    ] = None
    format: Annotated[str | None, Option(metavar="NAME", help="csv, tsv, json, jsonl or parquet.")] = None
    top: Annotated[int, Option(metavar="K", help="Add the K best classes.")] = 0
    probabilities: Annotated[bool, Option("--probabilities", help="Add the probability of every class.")] = False
    classes: Annotated[
        str | None, Option(metavar="NAMES", help="Names of the classes: a,b,c or a text file with one per line.")
    ] = None
    kind: Annotated[
        str | None,
        Option("--as", metavar="KIND", help="What the output holds: classes, labels, tokens, ctc or values."),
    ] = None
    on: Annotated[
        list[str] | None, Option(metavar="OUTPUT", help="An output to write (default: all); may be repeated.")
    ] = None
    keep: Annotated[
        list[str] | None, Option(metavar="COLUMN", help="A column of the table to repeat; may be repeated.")
    ] = None
    batch_size: Annotated[int | None, Option("--batch-size", "-b", help="Samples at a time (default: 256).")] = None
    backend: Annotated[str | None, Option(help="What runs the model (default: onnxruntime).")] = None
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print no notes.")] = False


@takes(PredictOptions)
def predict(options: PredictOptions) -> None:
    """Write the class of each sample with its probability, or the numbers that the model gives.

    The data needs no labels. A model that `onward train` saved knows the names of its classes and how to prepare data.

    Examples:
        onward predict net.train.onnx --data digits.npz -o predictions.csv
        onward predict net.onnx --data digits.npz --as classes --top 3 --format jsonl
    """
    from onward.surgery.class_list import read_classes
    from onward.train.data.unlabelled import Named
    from onward.train.prediction_files import format_of, print_text
    from onward.train.predictions import Wishes, make_predictions

    chosen = format_of(options.output, options.format)
    if options.output is None and chosen == "parquet":
        from onward.errors import A101, ArgumentError, Diagnostic

        raise ArgumentError(Diagnostic(A101, "Parquet cannot be printed", place="--format", needed="-o FILE"))
    trainer = open_trainer(options.file, options.backend)
    preparation = options.preparation(trainer.preparation)
    wishes = Wishes(
        options.kind, options.top, read_classes(options.classes).names if options.classes else (), options.probabilities
    )
    data: Named | str = options.data[0]
    if len(options.data) > 1 or ("=" in options.data[0] and not Path(options.data[0]).exists()):
        from onward.cli.options import open_data

        data = Named(open_data(options.data, trainer, preparation, "evaluate", trainer.first_entry))
    predictions = make_predictions(
        trainer, data, preparation, wishes, options.on, split_names(options.keep), options.batch_size
    )
    if options.output is None:
        print_text(predictions, sys.stdout, chosen)
    else:
        count = predictions.save(options.output, chosen)
        if not options.quiet:
            typer.echo(f"wrote {count:,} predictions to {options.output}", err=True)
    if not options.quiet:
        for note in predictions.notes:
            typer.echo(f"note: {note}", err=True)
