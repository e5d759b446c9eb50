"""Options of a command as a dataclass, and the options about data that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

from typer import Option

from onward.errors import A101, ArgumentError, Diagnostic

if TYPE_CHECKING:
    from onward.train import Preparation, Trainer
    from onward.train.data import DataSource

data_option = functools.partial(Option, rich_help_panel="Data")
_Options = TypeVar("_Options")


def takes(options: type[_Options]) -> Callable[[Callable[[_Options], None]], Callable[..., None]]:
    """Decorate a function of one dataclass: typer then sees the fields of the dataclass as its parameters."""

    def decorate(run: Callable[[_Options], None]) -> Callable[..., None]:
        @functools.wraps(run)
        def command(**given: Any) -> None:
            run(options(**given))

        hints = get_type_hints(options, include_extras=True)
        fields = inspect.signature(options).parameters.values()
        signature = inspect.Signature([field.replace(annotation=hints[field.name]) for field in fields])
        command.__signature__ = signature  # type: ignore[attr-defined]  # PEP 362
        return command

    return decorate


@dataclasses.dataclass(kw_only=True)
class DataOptions:
    """The options that say where the data is and how it is prepared."""

    data: Annotated[
        list[str],
        data_option(
            "--data",
            "-d",
            help="A file or folder (.npy, .npz, .safetensors, .csv, .parquet, IDX, images), or NAME=FILE per input.",
            show_default=False,
        ),
    ]
    scale: Annotated[str | None, data_option(help="Multiply inputs by this number, e.g. 1/255.")] = None
    mean: Annotated[str | None, data_option(help="Subtract this: one number, or one per channel.")] = None
    std: Annotated[str | None, data_option(help="Divide by this: one number, or one per channel.")] = None
    one_hot: Annotated[bool, data_option("--one-hot", help="Encode integer targets as rows of 0 and 1.")] = False
    column: Annotated[
        list[str] | None,
        data_option(help="INPUT=COLUMN: the column that an input or target reads (a,b,c for several)."),
    ] = None

    def preparation(self, base: Preparation) -> Preparation:
        """Return `base` with the changes that the options ask for.

        Raises:
            ArgumentError: a number or a column cannot be understood; all at once.
        """
        problems: list[Diagnostic] = []
        changes: dict[str, Any] = {"one_hot": True} if self.one_hot else {}
        for name, text in (("scale", self.scale), ("mean", self.mean), ("std", self.std)):
            if text is None:
                continue
            try:
                values = [as_fraction(part) for part in text.split(",")]
            except (ValueError, ZeroDivisionError):
                problems.append(Diagnostic(A101, f"--{name} is `{text}`", needed="a number such as 0.5 or 1/255"))
                continue
            changes[name] = values[0] if len(values) == 1 else values
        if isinstance(changes.get("scale"), list):
            problems.append(Diagnostic(A101, f"--scale is `{self.scale}`", needed="one number"))
        for text in self.column or ():
            name, _, source = text.partition("=")
            if not name or not source:
                problems.append(Diagnostic(A101, f"--column is `{text}`", needed="INPUT=COLUMN, such as x=a,b,c"))
            changes.setdefault("columns", {})[name] = source
        if problems:
            raise ArgumentError(problems)
        return dataclasses.replace(base, **changes)


def open_data(
    data: Sequence[str], trainer: Trainer, preparation: Preparation, part: str, entry: str | None
) -> DataSource:
    """Return the data of one path, or of several NAME=FILE."""
    from onward.train.arguments import check_entry
    from onward.train.data import files

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
        return files.open_named(named)
    check_entry(entry, trainer.program)
    program = trainer.program.for_entry(entry)
    return files.open_data(data[0], program.inputs, program.targets, part=part, preparation=preparation)


def as_fraction(text: str) -> float:
    """Return a number that is written as 0.5 or as 1/255.

    >>> as_fraction("1/4"), as_fraction(" 0.5")
    (0.25, 0.5)
    """
    return float(Fraction(text.strip()))


def split_names(names: Sequence[str] | None) -> list[str]:
    """Return the names of repeated and comma-separated options, in order.

    >>> split_names(["accuracy,f1", "auc"])
    ['accuracy', 'f1', 'auc']
    """
    return [part.strip() for text in names or () for part in text.split(",") if part.strip()]
