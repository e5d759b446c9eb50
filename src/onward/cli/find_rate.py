"""`onward train … --find-lr`: print a good learning rate for these options, and draw how it was found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from onward.cli.train import TrainOptions
    from onward.train import Preparation, Trainer
    from onward.train.data import DataSource


def find_rate(
    trainer: Trainer, source: DataSource, options: TrainOptions, preparation: Preparation, entry: str | None
) -> None:
    """Search, draw with --plot, and print the suggestion: the number alone on stdout, so that a script can use it."""
    from onward.train.charts import check_picture

    if options.plot is not None:
        check_picture(options.plot)
    found = trainer.find_learning_rate(
        source,
        batch_size=options.batch_size or 32,
        seed=options.seed or 0,
        entry=entry,
        preparation=preparation,
    )
    if options.plot is not None:
        found.plot().save(options.plot)
    if options.as_json:
        record = {"suggestion": found.suggestion, "rates": found.rates, "losses": found.losses}
        typer.echo(json.dumps({**record, "diverged": found.diverged}))
    elif found.suggestion is None:
        typer.echo("no learning rate lowered the loss; are the data and the loss right?", err=True)
    else:
        typer.echo(f"{found.suggestion:.2g}")
        if not options.quiet:
            typer.echo(
                f"the loss falls fast at this rate ({len(found.rates)} rates tried, {found.rates[0]:.0e} to "
                f"{found.rates[-1]:.0e}); train with --lr {found.suggestion:.2g}",
                err=True,
            )
