"""Fine-tune a plain inference file in one command: choose a loss, a head and a schedule, and say what was chosen.

`onward train net.onnx --data photos/ --classes auto --inference tuned.onnx` makes the file trainable and trains it.
What it chooses is printed with the option that changes it, and so are the two commands that do the same.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import shlex
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from onward.cli.options import DataOptions
from onward.cli.targets import LABELS, meaning_of, open_targets, require_numbers, targets_of
from onward.errors import A101, ArgumentError, Diagnostic

if TYPE_CHECKING:
    import numpy as np

    from onward.cli.train import TrainOptions
    from onward.losses import Loss
    from onward.model.training_model import TrainingModel
    from onward.train import Trainer
    from onward.train.data import DataSource

_tune = functools.partial(Option, rich_help_panel="Fine-tuning a plain model")
_YES_OR_NO = ("bce", "bce_with_logits")
_SETTLED = ("blank", "time_axis", "logits")  # settings of CTC
_FEW = 20  # samples: with fewer, none are held back for validation
_MOST_NAMES = 200  # characters of class names in a printed command


@dataclasses.dataclass(kw_only=True)
class FineTuneOptions(DataOptions):
    """The options of `onward train` for a file without training information, and for the learning rate."""

    classes: Annotated[
        str | None,
        _tune(metavar="auto|N|FILE|NAMES", help="A new head: auto takes the classes of the data."),
    ] = None
    loss: Annotated[str | None, _tune(help="cross_entropy, mse, … (default: by the targets and the output).")] = None
    set_loss: Annotated[
        list[str] | None, _tune("--set-loss", metavar="NAME=VALUE", help="A setting of the loss; may be repeated.")
    ] = None
    train: Annotated[
        list[str] | None,
        _tune(
            metavar="GLOB", help="The weights to train: head, last:3, '*', … (default: head for a new head, else '*')."
        ),
    ] = None
    optimizer: Annotated[str | None, _tune(help="adamw (default), adam, sgd, …")] = None
    on: Annotated[str | None, _tune(metavar="VALUE", help="The value that the loss reads.")] = None
    cut: Annotated[str | None, _tune(metavar="VALUE", help="The value that the new head reads.")] = None
    head: Annotated[Path | None, _tune(help="An ONNX model to attach as the new head.")] = None
    dequantize: Annotated[bool, _tune("--dequantize", help="Train weights that are stored as integers.")] = False
    schedule: Annotated[
        str | None, Option(metavar="cosine|linear|constant", help="How the learning rate falls to 0 over the run.")
    ] = None
    warmup: Annotated[int | None, Option(metavar="STEPS", help="Steps over which the learning rate rises from 0.")] = (
        None
    )

    def asks_to_make(self) -> list[str]:
        """Return the options that only a file without training information takes."""
        given = {"--classes": self.classes, "--loss": self.loss, "--train": self.train, "--optimizer": self.optimizer,
                 "--on": self.on, "--cut": self.cut, "--head": self.head, "--dequantize": self.dequantize,
                 "--set-loss": self.set_loss}  # fmt: skip
        return [option for option, value in given.items() if value]


def is_plain(path: Path) -> bool:
    """Return whether the file is an ONNX model without training information."""
    if not path.is_file() or path.suffix == ".safetensors":
        return False
    from onward.model import serde

    return not serde.load(path).entries


def refuse_making(options: FineTuneOptions, file: Path) -> None:
    """Raise if options for a plain file are given for one that can already be trained."""
    given = options.asks_to_make()
    if given:
        raise ArgumentError(
            Diagnostic(
                A101,
                f"`{file}` already says how it is trained",
                found=", ".join(given),
                needed="a plain inference model for these options",
                hint=f"onward strip {shlex.quote(str(file))} -o plain.onnx gives the plain model",
            )
        )


def fine_tune(options: TrainOptions) -> tuple[TrainingModel, TrainOptions]:
    """Return the training model for a plain file, and the options with every choice filled in; print both.

    Raises:
        ArgumentError: the targets of the data and the output of the model do not go together.
        DataError: the data cannot be read.
    """
    from onward.author import make_trainable
    from onward.errors import counted
    from onward.model.origin import ORIGIN
    from onward.model.serde import load
    from onward.optimizers import by_name
    from onward.surgery.notes import read_note
    from onward.train import Trainer

    trainer = Trainer(options.file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the training reads the data again, and says it then
        columns, source = open_targets(options, trainer)
    choices = _Choices(options, trainer, source, columns)
    settings = {"learning_rate": choices.rate}
    model = make_trainable(
        options.file,
        loss=choices.made_loss,
        optimizer=by_name(choices.optimizer, **settings),
        train=choices.train,
        output=choices.on,
        classes=choices.classes,
        cut=options.cut,
        head=options.head,
        dequantize=options.dequantize,
    )
    filled = choices.fill(options)
    if not (options.quiet or options.as_json):
        count = sum(v.const_value.size for v in model.parameters.values() if v.const_value is not None)
        head = read_note(model) if choices.classes is not None else {}  # not that of an earlier fine-tuning
        typer.echo(choices.text(head, counted(count, "number"), len(model.frozen)), err=True)
        typer.echo(choices.commands(filled), err=True)
        before = load(options.file).opset
        if before != model.opset and ORIGIN not in model.ir.metadata_props:
            typer.echo(
                f"note: the graph changes, so that the tuned file has operator set {model.opset}; "
                f"`{options.file}` has {before}",
                err=True,
            )
    return model, filled


class _Choices:
    """What fine-tuning chooses where the options say nothing."""

    def __init__(self, options: TrainOptions, trainer: Trainer, source: DataSource, columns: dict[str, str]) -> None:
        self.options, self.columns, self.source = options, columns, source
        self.output, self.width, self.ending, self.logits = _scored_output(trainer, options)
        targets = targets_of(source, trainer, columns)
        if options.loss is None:
            require_numbers(targets, columns.get(LABELS, LABELS), source)
        self.names, self.values, self.kind = meaning_of(targets, source)
        self.count = len(self.names) or len(self.values)
        self.classes = self._new_head()
        self.loss = options.loss or self._loss(targets)
        self.set_loss = [*(options.set_loss or ()), *self._for_mixed_targets()]
        self.made_loss = self._with_settings()
        reads_logits = self.loss in ("cross_entropy", "bce_with_logits") and self.classes is None
        self.on = options.on or (self.logits if reads_logits else self.output)
        if self.loss == "ctc":
            self._settle_ctc()
        self.metric = self._metric()
        self.train: str | list[str] = options.train or ("head" if self.classes is not None else "*")
        self.optimizer = options.optimizer or "adamw"
        chosen = 5e-3 if self.train in ("head", ["head"]) else 1e-4
        self.rate = chosen if options.learning_rate is None else options.learning_rate
        self.scale = self._scale(trainer)
        self.validation = self._validation()

    def _new_head(self) -> str | None:
        given = self.options.classes
        if given is None:
            if self.names:
                wrong = self.width not in (0, self.count) and (self.width > 1 or self.count > 2)
            else:  # numbers may be fewer than the outputs; of one Sigmoid they are 0 and 1
                decides = self.width == 1 and self.ending == "Sigmoid" and self.options.loss in (None, *_YES_OR_NO)
                wrong = decides and not {"0", "1"}.issuperset(self.values)
            if self.kind == "classes" and wrong:
                raise ArgumentError(
                    Diagnostic(
                        A101,
                        f"the data has {self.count} classes and output `{self.output}` has {self.width}",
                        place="classes=",
                        found=_listed(self.names or self.values),
                        hint="--classes auto gives the model a new head for the classes of the data",
                    )
                )
            return None
        if given != "auto":
            return given
        if self.kind != "classes":
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "the targets of the data are numbers, not classes",
                    place="classes=",
                    found="--classes auto",
                    hint="leave it out to keep the head of the model; --classes N makes one of N outputs",
                )
            )
        self._check_classes()
        if not self.names:
            return str(self.count) if self._counted else ",".join(self.values)
        text = ",".join(self.names)
        plain = not any("," in n or n != n.strip() for n in self.names) and len(text) <= _MOST_NAMES
        return text if plain and self.count > 1 else str(self.count)

    @property
    def _counted(self) -> bool:
        """Whether the classes of the data are the numbers from 0 up, without a gap."""
        return self.values == [str(i) for i in range(self.count)]

    def _check_classes(self) -> None:
        """Raise if the targets are no classes of which a new head could have one output each."""
        from onward.train.data.table import TableSource

        size, table = self.source.size or 0, isinstance(self.source, TableSource)
        if size >= _FEW and 2 * self.count > size and not self.source.positional:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"the targets have {self.count:,} different values in {size:,} samples",
                    place="classes=",
                    found=_listed(self.names or self.values),
                    needed="classes, each of several samples",
                    hint="--target COLUMN names another column; for numbers to predict, leave --classes out",
                )
            )
        if not self.names and not table and not self._counted:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"the {self.count} classes of the data are not the numbers from 0 to {self.count - 1}",
                    place="classes=",
                    found=_listed(self.values),
                    hint="number them anew: numpy.unique(labels, return_inverse=True)[1]"
                    + (f"; or --classes {int(self.values[-1]) + 1}" if int(self.values[0]) >= 0 else ""),
                )
            )

    def _metric(self) -> list[str]:
        """Return the metric that goes with the loss, if one does."""
        from onward.losses import by_name

        if self.loss in ("mse", "l1", "huber", "smooth_l1"):
            return ["mae"]
        if self.loss == "ctc":
            return ["cer"]
        scored = by_name(self.loss).expects() is not None and self.loss != "kl_div"
        return ["accuracy"] if scored else []

    def _with_settings(self) -> str | Loss:
        """Return the loss with the settings that were given for it."""
        if not self.set_loss:
            return self.loss
        from onward.cli.make_trainable import parse_settings
        from onward.losses import by_name

        return by_name(self.loss, **parse_settings(self.set_loss, "--set-loss"))

    def _for_mixed_targets(self) -> list[str]:
        """Return the setting with which cross entropy takes the targets that mixup and cutmix mix."""
        from onward.augment.mixing import Mixing
        from onward.augment.text import from_text

        chosen = [a for text in self.options.augment or () for a in from_text(text)]
        said = any(text.partition("=")[0].strip() == "targets" for text in self.options.set_loss or ())
        mixed = self.loss == "cross_entropy" and any(isinstance(a, Mixing) for a in chosen) and not said
        return ["targets=probability"] if mixed else []

    def _settle_ctc(self) -> None:
        """Complete the settings of CTC: the graph says which axis is time, and what the Softmax at the end reads."""
        from onward.cli.make_trainable import complete_ctc, parse_settings

        given = parse_settings(self.options.set_loss or [], "--set-loss")
        self.made_loss, reads = complete_ctc(self.options.file, given, self.on)
        self.set_loss = [f"{name}={getattr(self.made_loss, name)}" for name in ("blank", "time_axis", "logits")]
        self.set_loss += [text for text in self.options.set_loss or [] if text.partition("=")[0] not in _SETTLED]
        if self.classes is None and reads is not None:
            self.on = reads

    def _loss(self, targets: np.ndarray) -> str:
        width = self.width if self.classes is None else 2  # a new head has a score per class
        if self.kind == "classes":
            if width == 1 and (self.ending == "Sigmoid" or self.names):
                return "bce_with_logits"
            return "cross_entropy" if width != 1 else "mse"
        if self.ending in ("Sigmoid", "Softmax") and targets.size and targets.min() >= 0 and targets.max() <= 1:
            return "bce_with_logits" if self.ending == "Sigmoid" else "mse"
        return "mse"

    def _scale(self, trainer: Trainer) -> str | None:
        """Return 1/255 for pixels that go into a float input, where nothing else is said.

        A mean and a deviation of at most 1 are those of pixels from 0 to 1, as torchvision and timm write them.
        """
        spec, column = trainer.program.inputs[0], self.source.specs()[0]
        if self.options.scale is not None or trainer.preparation.normalises:
            return self.options.scale
        said = self.options.preparation(trainer.preparation)
        numbers = itertools.chain.from_iterable(
            [n] if isinstance(n, (int, float)) else n for n in (said.mean, said.std)
        )
        pixels = column.dtype == "uint8" and "float" in spec.dtype
        return "1/255" if pixels and all(abs(n) <= 1 for n in numbers) else None

    def _about_pixels(self) -> str:
        """Return what is done to pixels."""
        given = (("times", self.scale), ("minus", self.options.mean), ("divided by", self.options.std))
        return ", ".join(f"{word} {number}" for word, number in given if number)

    def _validation(self) -> str | None:
        given, size = self.options.validation, self.source.size
        if given is not None:
            return None if given.strip() in ("0", "0.0") else given
        folder = Path(self.options.data[0])
        parts = ("test", "val", "valid", "validation", "eval")
        if folder.is_dir() and (folder / "train").is_dir() and any((folder / p).is_dir() for p in parts):
            return self.options.data[0]
        return "0.2" if size is not None and size >= _FEW else None

    def fill(self, options: TrainOptions) -> TrainOptions:
        """Return the options with the choices."""
        columns = [f"{name}={column}" for name, column in self.columns.items()]
        return dataclasses.replace(
            options,
            epochs=options.epochs or 5,
            scale=self.scale,
            column=columns or None,
            validation=self.validation,
            metric=options.metric if options.metric is not None else self.metric or None,
            learning_rate=self.rate,
            schedule=options.schedule or "cosine",
            warmup=options.warmup,
            best=options.best or self.validation is not None,
            classes=None, loss=None, set_loss=None, train=None, optimizer=None, on=None, cut=None, head=None,
            dequantize=False, target=None, features=None,
        )  # fmt: skip

    def text(self, head: Mapping[str, Any], numbers: str, frozen: int) -> str:
        """Return what was chosen, each with the option that changes it."""
        read = self.on if self.metric == ["mae"] else head.get("logits", self.on)
        size = "" if self.source.size is None else f"{self.source.size:,} samples"
        told = f"{self.count} classes" if self.kind == "classes" and self.metric != ["mae"] else "numbers"
        why = (
            "the new head; the body keeps what it has learned"
            if self.train == "head" and not self.options.train
            else "as asked" if self.options.train else "everything, slowly: the head fits already"
        )  # fmt: skip
        shown = self.train if isinstance(self.train, str) else ", ".join(self.train)
        rows = [
            ("data", f"{size}, targets: {told}".lstrip(", "), "--data, --target"),
            ("head", head.get("text", f"kept: `{self.output}`"), "--classes"),
            ("loss", f"{self.loss} of `{read}`", "--loss, --on"),
            ("labels", self._about_labels(), "--set-loss blank") if self.loss == "ctc" else ("", "", ""),
            ("targets", "a probability for each class, for they are mixed", "--augment, --set-loss")
             if "targets=probability" in self.set_loss and not self.options.set_loss else ("", "", ""),
            ("trained", f"{shown} ({why}): {numbers}, {frozen} weights frozen", "--train"),
            ("optimizer", f"{self.optimizer}, rate {self.rate:g}, {self._course()}",
             "--optimizer, --lr, --schedule, --warmup"),
            ("pixels", pixels, "--scale, --mean, --std") if (pixels := self._about_pixels()) else ("", "", ""),
            ("validation", f"on {self.validation} of the samples; the best epoch is kept"
             if self.validation and "/" not in self.validation and "." in self.validation
             else f"on {self.validation}; the best epoch is kept" if self.validation else "none", "--validation"),
        ]  # fmt: skip
        lines = [f"  {name:<11}{value}   ({option})" for name, value, option in rows if name]
        return f"fine-tuning `{self.options.file}`:\n" + "\n".join(lines)

    def _course(self) -> str:
        """Return how the learning rate rises and falls, as `onward.cli.learning_rate` does it."""
        warm, name = self.options.warmup, self.options.schedule or "cosine"
        rise = "" if warm == 0 else "warm-up, then " if warm is None else f"{warm} steps of warm-up, then "
        return rise + {"cosine": "a cosine to 0", "linear": "a line to 0"}.get(name, name)

    def _about_labels(self) -> str:
        """Return what CTC takes the labels for."""
        blank = getattr(self.made_loss, "blank", 0)
        names = [c.name for c in self.source.specs()]
        known = {name for name in (LABELS + "/output_lengths", LABELS + "/label_lengths") if name in names}
        steps = "" if LABELS + "/output_lengths" in known else "; every step of the output counts"
        ends = "" if LABELS + "/label_lengths" in known else f"; a row ends at its first -1 or {blank}"
        return f"class {blank} is the blank{ends}{steps}"

    def commands(self, filled: TrainOptions) -> str:
        """Return the two commands that do the same."""
        made = self.options.file.with_suffix(".train.onnx")
        patterns = [self.train] if isinstance(self.train, str) else self.train
        make = ["onward", "make-trainable", str(self.options.file), "--loss", self.loss]
        make += ["--optimizer", self.optimizer, "--learning-rate", f"{self.rate:g}"]
        make += [part for pattern in patterns for part in ("--train", pattern)]
        make += [part for given in self.set_loss for part in ("--set-loss", given)]
        make += ["--classes", self.classes] if self.classes is not None else []
        make += ["--on", self.on] if self.on else []
        make += ["--cut", self.options.cut] if self.options.cut else []
        make += ["--head", str(self.options.head)] if self.options.head else []
        make += ["--dequantize"] if self.options.dequantize else []
        make += ["-o", str(made)]
        return "the same in two commands:\n  " + shlex.join(make) + "\n  " + shlex.join(_train_command(filled, made))


def _train_command(options: TrainOptions, file: Path) -> list[str]:
    """Return the command line of the options: those that are not at their defaults."""
    from onward.cli.config import names_of

    words = ["onward", "train", str(file)]
    defaults = {f.name: f.default for f in dataclasses.fields(options)}
    for name, field in names_of(type(options)).items():
        value = getattr(options, field)
        if field == "file" or value is None or value == defaults[field]:
            continue
        if value is True:
            words.append(f"--{name}")
        else:
            values = value if isinstance(value, list) else [value]
            words += [w for v in values for w in (f"--{name}", f"{v:g}" if isinstance(v, float) else str(v))]
    return words


def _scored_output(trainer: Trainer, options: TrainOptions) -> tuple[str, int, str, str]:
    """Return (name, width, activation, value in front of it) of the output that a loss can read.

    Raises:
        ArgumentError: there are several and nothing says which one.
    """
    from onward.graph import shapes
    from onward.graph.closing import closing
    from onward.model.training_model import FLOAT_TYPES

    outputs = [v for v in trainer.program.infer_graph.model.graph.outputs if v.dtype in FLOAT_TYPES]
    chosen = [v for v in outputs if v.name == options.on] or (outputs if len(outputs) == 1 or options.on else [])
    if not chosen:
        raise ArgumentError(
            Diagnostic(
                A101,
                f"the model has {len(outputs)} outputs of numbers",
                found=", ".join(f"`{v.name}`" for v in outputs) or "none",
                needed="--on VALUE, what the loss reads" if outputs else "a model with an output that can be trained",
                hint=f"onward doctor {shlex.quote(str(options.file))} says what can be trained",
            )
        )
    dims = shapes.dims(chosen[0]) or ()
    width = next((d for d in dims[1:2] if isinstance(d, int)), 0) if len(dims) > 1 else 1
    found = closing(chosen[0])
    before = (found.before.name if found is not None else None) or chosen[0].name or ""
    kind = "" if found is None else found.kind
    if kind == "SigmoidPair":  # two columns of one number
        width, kind = 1, "Sigmoid"
    return chosen[0].name or "", width, kind, before


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
