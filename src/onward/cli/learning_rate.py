"""`--schedule` and `--warmup`: the course of the learning rate over a whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onward.errors import A101, ArgumentError, Diagnostic

if TYPE_CHECKING:
    from onward.cli.train import TrainOptions
    from onward.train import Trainer
    from onward.train.data import DataSource

SCHEDULES = ("cosine", "linear", "constant")
_WARM = 10  # by default a warm-up takes this part of the run


def course(options: TrainOptions, trainer: Trainer, source: DataSource, validation: Any) -> Any:
    """Return the learning rate for `fit`: the number that was given, or a schedule over all steps of the run.

    Without --warmup, a schedule rises over a tenth of the run.

    Raises:
        ArgumentError: no such schedule, or the number of steps or the rate is not known.
    """
    if options.schedule is None and options.warmup is None:
        return options.learning_rate
    from onward import schedules
    from onward.arguments import check_name, whole
    from onward.train.data.matching import fixed_batch

    name = options.schedule or "constant"
    check_name("schedule", name, SCHEDULES, place="--schedule")
    program = trainer.program
    rate = options.learning_rate
    if rate is None and program.learning_rates:
        rate = float(program.settings[program.learning_rates[0]])
    size = source.size
    if size is None or rate is None:
        what = "the number of samples" if size is None else "a learning rate"
        raise ArgumentError(Diagnostic(A101, f"--schedule needs {what}", needed="--lr" if rate is None else "files"))
    held = round(size * validation) if isinstance(validation, float) else 0
    specs = (*program.inputs, *program.targets)
    fixed = fixed_batch(specs)
    batch = fixed or options.batch_size or 32
    per_epoch = (size - held) // batch if fixed else -(-(size - held) // batch)
    total = max(1, per_epoch * (options.epochs or 1))
    warm = total // _WARM if options.warmup is None else whole("--warmup", options.warmup, 0)
    if warm >= total:
        raise ArgumentError(
            Diagnostic(A101, f"--warmup is {warm} and the run has {total} steps", needed=f"fewer than {total} steps")
        )
    after: Any = rate
    if name == "cosine":
        after = schedules.Cosine(rate, steps=total - warm)
    elif name == "linear":
        after = schedules.Linear(rate, end=0.0, steps=total - warm)
    if not warm:
        return after
    return schedules.Warmup(after, steps=warm)
