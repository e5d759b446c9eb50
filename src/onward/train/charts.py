"""A chart that a notebook shows and that can be saved."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from onward.arguments import check_path
from onward.errors import A101, ArgumentError, Diagnostic
from onward.storage import atomic
from onward.train.plot import as_png, loss_chart


def check_picture(path: str | Path) -> Path:
    """Return the path of a picture.

    Raises:
        ArgumentError: the name ends neither in .svg nor in .png.
        MissingExtra: what writes PNG is not installed.
    """
    check_path("path", path)
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in (".svg", ".png"):
        raise ArgumentError(
            Diagnostic(A101, f"a plot cannot be written as `{target.name}`", needed="a name in .svg or .png")
        )
    if kind == ".png":
        as_png(loss_chart([], []))  # what is missing is told before the work
    return target


@dataclasses.dataclass(frozen=True)
class Chart:
    """An SVG picture: a notebook shows it, `save` writes it."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def encoded(self, path: Path) -> bytes:
        """Return the picture in the format that the name of the file asks for."""
        return as_png(self.svg) if path.suffix.lower() == ".png" else self.svg.encode("utf-8")

    def save(self, path: str | Path) -> Path:
        """Write the picture as an .svg or .png file and return its path."""
        target = check_picture(path)
        atomic.write_atomic(target, [self.encoded(target)])
        return target
