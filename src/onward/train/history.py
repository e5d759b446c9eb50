"""The history of a training run: one record per epoch, and the loss of at most a few thousand single steps."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from onward import notebook
from onward.arguments import check_names
from onward.errors import require_extra
from onward.train.charts import Chart
from onward.train.plot import column_chart, loss_chart

MAX_POINTS = 4096


@dataclasses.dataclass
class History:
    """The records of a run; `history["val_loss"]` is that column over the epochs.

    >>> history = History()
    >>> history.add_epoch({"epoch": 1, "loss": 0.5})
    >>> history.add_epoch({"epoch": 2, "loss": 0.25, "val_loss": 0.3})
    >>> history["loss"], history["val_loss"]
    ([0.5, 0.25], [None, 0.3])
    """

    epochs: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    step_losses: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    stride: int = 1
    confusion: list[list[int]] | None = None
    stopped: str = ""

    def __getitem__(self, column: str) -> list[Any]:
        if not any(column in record for record in self.epochs):
            raise KeyError(f"no column {column!r}; the columns are: {', '.join(self.columns)}")
        return [record.get(column) for record in self.epochs]

    def __len__(self) -> int:
        return len(self.epochs)

    @property
    def columns(self) -> list[str]:
        """Every column that some epoch has, in order of appearance."""
        return list(dict.fromkeys(key for record in self.epochs for key in record))

    @property
    def last(self) -> dict[str, Any]:
        """The record of the last epoch; empty when there was none."""
        return self.epochs[-1] if self.epochs else {}

    def add_epoch(self, record: Mapping[str, Any]) -> None:
        """Append the record of one epoch."""
        self.epochs.append(dict(record))

    def add_step(self, step: int, loss: float) -> None:
        """Note the loss of one step; when there are too many points every second one is dropped."""
        if step % self.stride:
            return
        self.step_losses.append((step, loss))
        if len(self.step_losses) > MAX_POINTS:
            self.stride *= 2
            self.step_losses = [p for p in self.step_losses if p[0] % self.stride == 0]

    def to_frame(self) -> Any:
        """Return a pandas frame with one row per epoch and one column per number."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise require_extra("pandas", "data", "a frame of the history") from error
        return pandas.DataFrame(self.epochs, columns=self.columns)

    def plot(self, *columns: str) -> Chart:
        """Return a chart of the loss, or of the columns: `history.plot("accuracy", "val_accuracy").save("a.svg")`.

        Raises:
            ArgumentError: there is no such column.
        """
        check_names("column", columns, self.columns, place="columns=")
        if columns:
            return Chart(column_chart(self.epochs, [(c, c) for c in columns], ", ".join(columns), 720))
        return Chart(loss_chart(self.epochs, self.step_losses))

    def _repr_html_(self) -> str:
        if not self.epochs:
            return notebook.panel("History", '<div class="soft">no epoch has ended</div>')
        hidden = ("step", "seconds", "samples_per_second")
        columns = [c for c in self.columns if c not in hidden]
        best = "val_loss" if "val_loss" in columns else "loss"
        finite = [r for r in self.epochs if isinstance(r.get(best), (int, float)) and r[best] == r[best]]
        lowest = min(finite, key=lambda r: r[best], default=None)
        note = f"best {best} {lowest[best]:.4g} in epoch {lowest['epoch']}" if lowest else ""
        note += f"; stopped: {self.stopped}" if self.stopped else ""
        return notebook.panel("History", self.plot().svg, notebook.grid(self.epochs[-20:], columns, note))

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON data; `from_dict` reads it back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> History:
        """Return the history that `as_dict` described."""
        return cls(
            epochs=[dict(r) for r in data["epochs"]],
            step_losses=[(int(s), float(v)) for s, v in data["step_losses"]],
            stride=int(data["stride"]),
            confusion=data["confusion"],
            stopped=str(data["stopped"]),
        )
