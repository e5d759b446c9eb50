"""Options of a command as a dataclass, and the options about data that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
from typer import Option

from onward.errors import A101, ArgumentError, Diagnostic

if TYPE_CHECKING:
    from onward.train import Preparation, Trainer
    from onward.train.data import DataSource

data_option = functools.partial(Option, rich_help_panel="Data")
_Options = TypeVar("_Options")
LossScaleOption = Annotated[
    str | None,
    Option(
        metavar="dynamic|NUMBER",
        help="Multiply the loss before it is differentiated, so that small gradients do not become 0 in float16.",
        show_default=False,
    ),
]
"""`--loss-scale` of the commands that make or compile a model."""


def takes(options: type[_Options]) -> Callable[[Callable[[_Options], None]], Callable[..., None]]:
    """Decorate a function of one dataclass: typer then sees the fields of the dataclass as its parameters."""

    def decorate(run: Callable[[_Options], None]) -> Callable[..., None]:
        @functools.wraps(run)
        def command(**given: Any) -> None:
            run(options(**given))

        hints = get_type_hints(options, include_extras=True)
        made = {f.name: f.default_factory() for f in dataclasses.fields(options) if callable(f.default_factory)}  # type: ignore[arg-type]  # every class of options is a dataclass
        fields = inspect.signature(options).parameters.values()
        signature = inspect.Signature(
            [f.replace(annotation=hints[f.name], default=made.get(f.name, f.default)) for f in fields]
        )
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
            metavar="FILE",
            help="A file or folder (.npy, .npz, .safetensors, .csv, .parquet, IDX, images), or NAME=FILE per input.",
            show_default=False,
        ),
    ]
    scale: Annotated[str | None, data_option(metavar="NUMBER", help="Multiply inputs by this number, e.g. 1/255.")] = (
        None
    )
    mean: Annotated[
        str | None, data_option(metavar="NUMBERS", help="Subtract this: one number, or one per channel.")
    ] = None
    std: Annotated[
        str | None, data_option(metavar="NUMBERS", help="Divide by this: one number, or one per channel.")
    ] = None
    one_hot: Annotated[bool, data_option("--one-hot", help="Encode integer targets as rows of 0 and 1.")] = False
    column: Annotated[
        list[str] | None,
        data_option(metavar="INPUT=COLUMN", help="The column that an input or target reads (a,b,c for several)."),
    ] = None

    target: Annotated[
        list[str] | None, data_option(help="The column of a table that is predicted (TARGET=COLUMN for several).")
    ] = None
    features: Annotated[
        list[str] | None,
        data_option(help="The columns of a table that are read: a,b,c (INPUT=a,b for several)."),
    ] = None
    missing: Annotated[
        list[str] | None,
        data_option(help="What stands for empty cells: mean, median, most_frequent, error, a number; COLUMN=…"),
    ] = None
    missing_indicator: Annotated[
        bool, data_option("--missing-indicator", help="Add a number that is 1 where a cell was empty.")
    ] = False
    categories: Annotated[str | None, data_option(help="Text becomes: auto (default), one_hot or codes.")] = None
    categorical: Annotated[list[str] | None, data_option(help="Columns of numbers that are categories: a,b.")] = None
    unknown: Annotated[str | None, data_option(help="A category that training did not have: error or ignore.")] = None
    rescale: Annotated[str | None, data_option(help="Rescale columns of numbers: standard or min_max.")] = None

    damaged: Annotated[str | None, data_option(help="An image that cannot be decoded: error or skip.")] = None

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
        changes |= self._table_changes(problems)
        if problems:
            raise ArgumentError(problems)
        return dataclasses.replace(base, **changes)

    def _table_changes(self, problems: list[Diagnostic]) -> dict[str, Any]:
        """Return the changes for the columns of a table; each word is checked here, where its option is known."""
        from onward.train.data.features import ENCODINGS, FILLS, RESCALES, UNKNOWN
        from onward.train.data.preparation import DAMAGED

        changes: dict[str, Any] = {"missing_indicator": True} if self.missing_indicator else {}
        words = (
            ("categories", self.categories, ENCODINGS),
            ("unknown", self.unknown, UNKNOWN),
            ("rescale", self.rescale, RESCALES),
            ("damaged", self.damaged, DAMAGED),
        )
        for name, word, known in words:
            if word is not None and word not in known:
                problems.append(Diagnostic(A101, f"--{name} is `{word}`", needed=f"one of: {', '.join(known)}"))
            elif word is not None:
                changes[name] = word
        if self.categorical:
            changes["categorical"] = tuple(split_names(self.categorical))
        by_column: dict[str, Any] = {}
        for text in self.missing or ():
            column, equals, word = text.rpartition("=")
            fill = _number_or_word(word)
            if equals:
                by_column[column] = fill
            elif isinstance(fill, str) and fill not in FILLS:
                needed = f"one of: {', '.join(FILLS)}; a number, or COLUMN=…"
                problems.append(Diagnostic(A101, f"--missing is `{text}`", needed=needed))
            else:
                changes["missing"] = fill
        if by_column and "missing" in changes:
            problems.append(Diagnostic(A101, "--missing is given for all columns and for some", needed="one"))
        return changes | ({"missing": by_column} if by_column else {})

    def named_columns(self, option: str) -> Any:
        """Return what `--target` or `--features` names: columns, or a dict of them; None if it is not given."""
        given: list[str] = getattr(self, option) or []
        if not given:
            return None
        pairs = [text.partition("=") for text in given]
        if all(equals for _, equals, _ in pairs):
            return {name: split_names([columns]) for name, _, columns in pairs}
        return split_names(given)


def _number_or_word(text: str) -> float | str:
    try:
        return as_fraction(text)
    except (ValueError, ZeroDivisionError):
        return text


def open_data(
    data: Sequence[str],
    trainer: Trainer,
    preparation: Preparation,
    part: str,
    entry: str | None,
    sample_weight: str | None = None,
) -> DataSource:
    """Return the data of one path, or of several NAME=FILE."""
    from onward.author.sample_weights import SAMPLE_WEIGHT
    from onward.compiler.program import TensorSpec
    from onward.train.arguments import check_entry
    from onward.train.data import files
    from onward.train.evaluation import evaluated_targets

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
    targets = list(program.targets if program.entries else evaluated_targets(program, preparation))
    if sample_weight is not None:
        targets.append(TensorSpec(SAMPLE_WEIGHT, "float32", ("N",)))
        preparation = dataclasses.replace(preparation, columns={**preparation.columns, SAMPLE_WEIGHT: [sample_weight]})
    return files.open_data(data[0], program.inputs, targets, part=part, preparation=preparation)


def with_columns(options: DataOptions, trainer: Trainer, preparation: Preparation, entry: str | None) -> Preparation:
    """Return the preparation with the columns that `--target` and `--features` name."""
    from onward.train import training_data
    from onward.train.arguments import check_entry
    from onward.train.evaluation import evaluated_targets

    check_entry(entry, trainer.program)
    program = trainer.program.for_entry(entry)
    target, features = options.named_columns("target"), options.named_columns("features")
    targets = program.targets if program.entries else evaluated_targets(program, preparation, target)
    return training_data.with_columns(preparation, target, features, program.inputs, targets)


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


def read_size(text: str) -> tuple[str, int]:
    """Return the name and the number of a `--size`."""
    name, _, number = text.partition("=")
    if not name or not number.isdecimal():
        raise ArgumentError(Diagnostic(A101, f"`{text}` is no size", place="--size", needed="NAME=N"))
    return name, int(number)


def note_stored(trainer: Trainer) -> None:
    """Print what waits for the backward pass in 16 bits."""
    for name, stored in trainer.program.stored.items():
        assert trainer.program.store is not None
        if name in [entry.step.name for entry in trainer.program.entries.values()]:
            typer.echo(f"note: {name} {stored.told(trainer.program.store.dtype)}", err=True)


def memory_options(recompute: Sequence[str], store: str | None, sizes: Sequence[str]) -> dict[str, Any]:
    """Return the arguments `recompute`, `store` and `sizes` of the options; none if neither of the first is there."""
    asked: dict[str, Any] = {}
    if recompute:
        asked["recompute"] = recompute[0] if len(recompute) == 1 else list(recompute)
    if store is not None:
        asked["store"] = store
    return {**asked, "sizes": dict(map(read_size, sizes))} if asked else {}
