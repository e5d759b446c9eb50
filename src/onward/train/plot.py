"""Line charts as plain SVG: axes with round ticks, a legend, the last value at the end of each line. No dependency."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from html import escape

from onward.errors import require_extra

COLOURS = ("#2563c9", "#d9622b", "#1b8a5a", "#9a4fc0", "#b8860b", "#c2386b")
"""Colours that people with red-green colour blindness can distinguish, in order of use."""

_ON_DARK = ("#6ea8fe", "#f59f6c", "#5cc79a", "#c692e8", "#e0b64c", "#ee86ab")

_STYLE = """
.chart{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-size:12px}
.chart .paper{fill:#ffffff}.chart .ink{fill:#1f2733}.chart .soft{fill:#667085}
.chart .grid{stroke:#e6e9ef;stroke-width:1}.chart .axis{stroke:#98a2b3;stroke-width:1}
.chart .title{font-size:15px;font-weight:600}
.chart .halo{stroke:#ffffff}
@media (prefers-color-scheme:dark){
.chart .paper{fill:#161b22}.chart .ink{fill:#e6edf3}.chart .soft{fill:#9aa4b2}
.chart .grid{stroke:#2a313c}.chart .axis{stroke:#5b6675}.chart .halo{stroke:#161b22}}
"""


def _classes(colours: Sequence[str]) -> str:
    return "".join(f".chart .s{i}{{stroke:{c}}}.chart .f{i}{{fill:{c}}}" for i, c in enumerate(colours))


_STYLE += _classes(COLOURS) + "\n@media (prefers-color-scheme:dark){" + _classes(_ON_DARK) + "}\n"


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a chart, `colour` a place in `COLOURS`; a `faint` one is background (single steps behind means)."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    faint: bool = False


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str = "",
    width: int = 720,
    height: int = 380,
    log: bool | None = None,
) -> str:
    """Return an SVG document with the lines.

    The y axis is logarithmic when asked for, or, for `log=None`, when the values are positive and span more than a
    factor of 100. Points that are not finite leave a gap.
    """
    values = [y for line in lines for _, y in line.points if math.isfinite(y)]
    use_log = bool(values) and min(values) > 0 and (log if log is not None else max(values) / min(values) > 100)
    xs = [x for line in lines for x, _ in line.points]
    y_axis = _Axis(_span([math.log10(v) for v in values] if use_log else values, pad=0.06), use_log, height - 48, 70)
    left = 30 + 7 * max((len(tick_text(v)) for v in y_axis.ticks(5)), default=1)
    x_axis = _Axis(_span(xs, pad=0.0), False, left, width - 74)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title, quote=True)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}" rx="10"/>',
        f'<text class="ink title" x="{x_axis.first}" y="26">{escape(title)}</text>',
        *_legend(lines, x_axis.first),
        *_frame(x_axis, y_axis, x_label, y_label, width, height),
    ]
    for line in sorted(lines, key=lambda one: not one.faint):
        parts += _draw(line, x_axis, y_axis)
    parts += _ends([one for one in lines if not one.faint], x_axis, y_axis)
    parts.append("</svg>")
    return "\n".join(parts)


class _Axis:
    """Maps values to pixels; `first` and `last` are the pixels of the two ends."""

    def __init__(self, span: tuple[float, float], log: bool, first: float, last: float) -> None:
        self.low, self.high = span
        self.log, self.first, self.last = log, first, last

    def at(self, value: float) -> float:
        value = math.log10(value) if self.log else value
        return self.first + (value - self.low) / (self.high - self.low) * (self.last - self.first)

    def ticks(self, count: int) -> list[float]:
        if not self.log:
            return nice_ticks(self.low, self.high, count)
        first, last = math.floor(self.low), math.ceil(self.high)
        steps: tuple[int, ...] = (1, 2, 5) if last - first <= 3 else (1,)
        stride = max(1, (last - first) // 6)
        found = [s * 10.0**e for e in range(first, last + 1, stride) for s in steps]
        return [v for v in found if self.low <= math.log10(v) <= self.high]


def _span(values: Sequence[float], pad: float) -> tuple[float, float]:
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low == high:
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    room = (high - low) * pad
    return low - room, high + room


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers between `low` and `high`.

    >>> nice_ticks(0.0, 1.0, 5)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> nice_ticks(3, 47, 4)
    [10.0, 20.0, 30.0, 40.0]
    """
    raw = (high - low) / max(count, 1)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw * 0.8)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def tick_text(value: float) -> str:
    """Return a tick label without needless digits.

    >>> tick_text(0.2), tick_text(1500000.0), tick_text(20000.0), tick_text(1e-7)
    ('0.2', '1.5M', '20k', '1e-07')
    """
    if value and abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:.6g}" if abs(value) >= 1e-3 or not value else f"{value:.2g}"


def _legend(lines: Sequence[Line], left: float) -> list[str]:
    parts = []
    x = left
    for line in lines:
        thickness, opacity = (2, 0.35) if line.faint else (3, 1)
        parts.append(
            f'<line x1="{x}" x2="{x + 20}" y1="44" y2="44" class="s{line.colour}" stroke-width="{thickness}" '
            f'stroke-linecap="round" opacity="{opacity}"/>'
            f'<text class="soft" x="{x + 27}" y="48">{escape(line.name)}</text>'
        )
        x += 27 + 7 * len(line.name) + 22
    return parts


def _frame(x_axis: _Axis, y_axis: _Axis, x_label: str, y_label: str, width: int, height: int) -> list[str]:
    bottom, top = y_axis.first, y_axis.last
    parts = []
    for value in y_axis.ticks(5):
        y = y_axis.at(value)
        parts.append(f'<line class="grid" x1="{x_axis.first}" x2="{x_axis.last}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="soft" x="{x_axis.first - 8}" y="{y + 4:.1f}" text-anchor="end">{tick_text(value)}</text>'
        )
    parts.append(f'<line class="axis" x1="{x_axis.first}" x2="{x_axis.last}" y1="{bottom}" y2="{bottom}"/>')
    for value in x_axis.ticks(8):
        x = x_axis.at(value)
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}"/>')
        parts.append(f'<text class="soft" x="{x:.1f}" y="{bottom + 19}" text-anchor="middle">{tick_text(value)}</text>')
    middle = (x_axis.first + x_axis.last) / 2
    parts.append(f'<text class="soft" x="{middle}" y="{height - 10}" text-anchor="middle">{escape(x_label)}</text>')
    if y_label:
        note = y_label + (" (log)" if y_axis.log else "")
        parts.append(f'<text class="soft" x="{x_axis.first}" y="{top - 8}" text-anchor="start">{escape(note)}</text>')
    return parts


def _draw(line: Line, x_axis: _Axis, y_axis: _Axis) -> list[str]:
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in line.points:
        if math.isfinite(y) and (y > 0 or not y_axis.log):
            runs[-1].append((x_axis.at(x), y_axis.at(y)))
        elif runs[-1]:
            runs.append([])
    thickness, opacity = (1, 0.35) if line.faint else (2.2, 1)
    parts = [
        f'<polyline fill="none" class="s{line.colour}" stroke-width="{thickness}" opacity="{opacity}" '
        f'stroke-linejoin="round" stroke-linecap="round" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in run)}"/>'
        for run in runs
        if len(run) > 1
    ]
    if not line.faint and len(line.points) <= 60:
        parts += [
            f'<circle cx="{x_axis.at(x):.1f}" cy="{y_axis.at(y):.1f}" r="3" class="f{line.colour}">'
            f"<title>{escape(line.name)} at {tick_text(x)}: {y:.5g}</title></circle>"
            for x, y in line.points
            if math.isfinite(y) and (y > 0 or not y_axis.log)
        ]
    return parts


def _ends(lines: Sequence[Line], x_axis: _Axis, y_axis: _Axis) -> list[str]:
    """Write the last value beside each line, moved apart where they would overlap."""
    ends: list[tuple[float, float, float, int]] = []
    for line in lines:
        good = [(x, y) for x, y in line.points if math.isfinite(y) and (y > 0 or not y_axis.log)]
        if good:
            ends.append((y_axis.at(good[-1][1]), x_axis.at(good[-1][0]), good[-1][1], line.colour))
    place = -math.inf
    parts = []
    for y, x, value, colour in sorted(ends):
        place = max(y, place + 15)
        parts.append(
            f'<text x="{x + 9:.1f}" y="{place + 4:.1f}" class="f{colour}" font-weight="600">{value:.4g}</text>'
        )
    return parts


def loss_chart(
    epochs: Sequence[dict[str, object]], step_losses: Sequence[tuple[int, float]], title: str = "Loss", width: int = 720
) -> str:
    """Return the chart of the loss: single steps in the background, the means of the epochs, the validation loss."""
    lines = []
    if step_losses:
        lines.append(Line("each step", [(float(s), v) for s, v in step_losses], 0, faint=True))
    for name, column, colour in (("training", "loss", 0), ("validation", "val_loss", 1)):
        points = _column(epochs, column)
        if points:
            lines.append(Line(name, points, colour))
    return line_chart(lines, title=title, x_label="step", width=width)


def _column(epochs: Sequence[dict[str, object]], column: str) -> list[tuple[float, float]]:
    return [
        (float(str(r["step"])), float(str(r[column])))
        for r in epochs
        if isinstance(r.get(column), (int, float)) and not isinstance(r[column], bool)
    ]


def column_chart(
    epochs: Sequence[dict[str, object]], columns: Sequence[tuple[str, str]], title: str, width: int
) -> str:
    """Return a chart of other columns of the history, given as (legend, column)."""
    lines = [
        Line(legend, points, i % len(COLOURS))
        for i, (legend, column) in enumerate(columns)
        if (points := _column(epochs, column))
    ]
    return line_chart(lines, title=title, x_label="step", width=width, height=300)


def as_png(chart: str) -> bytes:
    """Return a chart as PNG, twice as large as the SVG, in light colours: the same drawing in both formats.

    Raises:
        MissingExtra: resvg is not installed.
    """
    try:
        import resvg_py
    except ImportError as error:
        raise require_extra("resvg_py", "plots", "a plot as .png") from error
    return bytes(resvg_py.svg_to_bytes(svg_string=chart, zoom=2))
