"""Training in phases: each phase is a training entry of its own, which trains other weights for some epochs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onward.arguments import check_count, check_number, shown
from onward.errors import A101, ArgumentError, Diagnostic
from onward.model.training_model import PHASE, TrainingModel
from onward.optimizers import Optimizer, by_name
from onward.schedules.base import Schedule


@dataclasses.dataclass(frozen=True)
class Phase:
    """One phase of a training: which weights it trains, for how many epochs, and how fast.

    Args:
        train: what `make_trainable(train=)` takes: "head", "last:3", or a glob or globs of weights.
        epochs: how many epochs the phase lasts.
        learning_rate: a number or a schedule of `onward.schedules`; None for that of the optimizer.
        optimizer: an optimizer of its own, or its name; None for that of the whole training.
        freeze: glob or globs of weights to freeze, although `train` matches them.
        batch_norm: how this phase treats batch normalisation; None for what the whole training says.

    >>> Phase(train="head", epochs=1, learning_rate=1e-2)
    Phase(train='head', epochs=1, learning_rate=0.01, optimizer=None, freeze=(), batch_norm=None)
    """

    train: str | Sequence[str] = "*"
    epochs: int = 1
    learning_rate: float | Schedule | None = None
    optimizer: str | Optimizer | None = None
    freeze: str | Sequence[str] = ()
    batch_norm: str | None = None

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs, "Phase")
        if self.learning_rate is not None and not isinstance(self.learning_rate, Schedule):
            check_number("learning_rate", self.learning_rate, "Phase", low=0.0)

    def optimizer_of(self, default: Optimizer) -> Optimizer:
        """Return the optimizer of this phase."""
        chosen = by_name(self.optimizer) if isinstance(self.optimizer, str) else self.optimizer or default
        if self.learning_rate is None:
            return chosen
        return dataclasses.replace(chosen, learning_rate=self.learning_rate)

    @classmethod
    def parse(cls, text: str) -> Phase:
        """Return the phase that `WEIGHTS=EPOCHS` or `WEIGHTS=EPOCHS@RATE` describes, as at the command line.

        >>> Phase.parse("last:3=2@1e-4").learning_rate
        0.0001

        Raises:
            ArgumentError: the text has another form.
        """
        train, _, rest = text.rpartition("=")
        epochs, at, rate = rest.partition("@")
        try:
            if not train:
                raise ValueError
            return cls(train.split(",") if "," in train else train, int(epochs), float(rate) if at else None)
        except ValueError:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"`{text}` is not a phase",
                    place="phases=",
                    needed="WEIGHTS=EPOCHS or WEIGHTS=EPOCHS@RATE, such as head=1, last:3=2@1e-4 or '*=5'",
                )
            ) from None


def make_phases(
    make: Callable[..., TrainingModel], model: Any, phases: Sequence[Phase], options: Mapping[str, Any]
) -> TrainingModel:
    """Return `make(model, **options)` once per phase: one training entry each, on the same weights."""
    entry, loss_name, optimizer = options["entry"], options["loss_name"], options["optimizer"]
    if isinstance(optimizer, str):
        optimizer = by_name(optimizer)
    made = model
    for index, phase in enumerate(phases):
        name = f"{entry}-{index + 1}"
        later = {"loss_name": f"{name}/{loss_name}", **_ONCE} if index else {}
        made = make(
            made,
            **{
                **options,
                **later,
                "train": phase.train,
                "freeze": phase.freeze,
                "batch_norm": phase.batch_norm or options["batch_norm"],
                "optimizer": phase.optimizer_of(optimizer) if isinstance(optimizer, Optimizer) else optimizer,
                "entry": name,
            },
        )
        algorithm = made.entries[-1].algorithm
        assert algorithm is not None
        described = phase.train if isinstance(phase.train, str) else list(phase.train)
        algorithm.metadata_props[PHASE] = json.dumps({"train": described, "epochs": int(phase.epochs)})
    assert isinstance(made, TrainingModel)
    return made


# What the first phase has done to the model; the others must not do it again.
_ONCE: dict[str, Any] = {"untie": (), "dequantize": False, "initialize": "keep"}


def check_phases(phases: Any, train: str | Sequence[str], freeze: str | Sequence[str]) -> None:
    """Raise if `phases` is not a list of phases, or if there are `train` or `freeze` beside it; list all problems."""
    problems = []
    is_list = isinstance(phases, Sequence) and not isinstance(phases, str)
    if not is_list or not phases:
        problems.append(Diagnostic(A101, f"phases is {shown(phases)}", place="phases=", needed="a list of Phase"))
    for index, phase in enumerate(phases if is_list else ()):
        if not isinstance(phase, Phase):
            problems.append(
                Diagnostic(
                    A101,
                    f"phases[{index}] is {shown(phase)}",
                    place="phases=",
                    needed='an onward.Phase, such as Phase(train="head", epochs=1)',
                )
            )
    if train != "*" or freeze:
        given = "train=" if train != "*" else "freeze="
        problems.append(
            Diagnostic(
                A101,
                f"each phase says what it trains, so {given} has no meaning beside phases=",
                place=given,
                hint=f"give it to the phases: Phase({given}…)",
            )
        )
    if problems:
        raise ArgumentError(problems)
