"""A profile as one HTML file: the phases, the layers as a flame chart, a table. No script, no network."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator
from functools import partial
from html import escape

import onward
from onward.backends.measurement import BACKWARD, FORWARD
from onward.train.profile import DATA, LayerTime, Profile
from onward.train.profile_table import table_head, table_row
from onward.train.profile_units import amount, memory, time_unit
from onward.train.report import CSS, facts_table, for_both_widths

_CSS = """
.flame rect{stroke:var(--card);stroke-width:1}.flame text{font-size:11px;fill:#10151d;pointer-events:none}
.flame{display:block;width:100%;height:auto;font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.bar{background:var(--line);border-radius:4px;height:10px;min-width:60px}
.bar i{display:block;height:10px;border-radius:4px}
.phases td{white-space:nowrap}.phases td:nth-child(4){width:50%}
.layers td:first-child,.kinds td:first-child,.layers td:nth-child(2),.layers th:nth-child(2){text-align:left}
.layers td:first-child,.kinds td:first-child{overflow-wrap:anywhere;min-width:12em}
"""
_COLOURS = {
    DATA: "#b0b7c3", "feeding": "#c9cfd8", FORWARD: "#7fb2f0", BACKWARD: "#f2a66e", "graph": "#7fb2f0",
    "between operators": "#aeb7c4", "update": "#8fd0a8", "reading back": "#c9cfd8", "session": "#b9a9d0",
}  # fmt: skip
_ROW = 22  # pixels
_NARROWEST = 0.5  # pixels of a box that is drawn
_TEXT = 6.4  # pixels of a letter


@dataclasses.dataclass
class Box:
    """A part of the step in the flame chart, with the parts inside of it."""

    title: str
    seconds: float
    colour: str
    note: str = ""
    inside: list[Box] = dataclasses.field(default_factory=list)

    @property
    def depth(self) -> int:
        """The rows that it takes."""
        return 1 + max((box.depth for box in self.inside), default=0)


def build_page(profile: Profile) -> str:
    """Return the page as one HTML document."""
    low, median, high = profile.step_seconds
    rate, unit = profile.samples / median if median else 0.0, profile.unit
    note = f"{profile.steps} steps on {profile.backend}, {profile.samples} samples per batch"
    note += f". Careful: {profile.warning}" if profile.warning else ""
    tiles = [
        ("per step", unit.text(median)),
        (f"half of the steps, in {unit.name}", f"{low / unit.seconds:.3g} – {high / unit.seconds:.3g}"),
        ("samples/s", f"{rate:,.0f}"),
    ]
    if profile.of_gemm_peak is not None:
        tiles.append(("of GEMM peak", f"{profile.of_gemm_peak:.0%}"))
    if profile.measured.memory:
        tiles.append(("values at once", memory(profile.measured.memory)))
    cells = "".join(f'<div class="card tile"><span>{escape(n)}</span><b>{escape(v)}</b></div>' for n, v in tiles)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{escape(profile.title)}: profile</title><style>{CSS}{_CSS}</style></head><body><main>",
        f'<header><div><h1>{escape(profile.title)}</h1><p class="soft">{escape(note)}</p></div></header>',
        f'<section class="tiles">{cells}</section>',
        _flame_card(profile),
        _phases(profile),
        _operators(profile, kinds=False),
        _operators(profile, kinds=True),
        facts_table("Measured", _facts(profile)),
        f"<footer>Written by Onward {escape(onward.__version__)} on "
        f"{datetime.datetime.now().astimezone().strftime('%Y-%m-%d %H:%M %Z')}</footer>",
        "</main></body></html>",
    ]
    return "\n".join(p for p in parts if p)


def step_box(profile: Profile) -> Box:
    """Return the whole step: its phases, in forward and backward the parts of the model, in these the layers."""
    whole = Box("step", sum(p.seconds for p in profile.phases if p.name != DATA), "#aab4c3")
    for phase in profile.phases:
        if phase.name == DATA:
            continue
        box = Box(phase.name, phase.seconds, _COLOURS[phase.name])
        if phase.name in (FORWARD, BACKWARD):
            for layer in profile.layers:
                if seconds := getattr(layer, phase.name):
                    _insert(box, layer, seconds)
        whole.inside.append(box)
    return whole


def _insert(box: Box, layer: LayerTime, seconds: float) -> None:
    """Add a layer to the parts that it is in. A part goes on where the last box has its title."""
    for title in layer.path:
        if not box.inside or box.inside[-1].title != title or not box.inside[-1].inside:
            box.inside.append(Box(title, 0.0, box.colour, inside=[]))
        box = box.inside[-1]
        box.seconds += seconds
    note = f"{layer.operator} {amount(layer.operations, 'FLOP')}" if layer.operations else layer.operator
    box.inside.append(Box(layer.name, seconds, box.colour, note))


def flame(box: Box, *, width: int) -> str:
    """Return the chart as SVG: each row is inside of the one above it, and widths are times."""
    scale = width / box.seconds if box.seconds else 0.0
    shapes = "".join(_shapes(box, 0.0, 0, scale, box))
    height = box.depth * _ROW
    return (
        f'<svg class="flame" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="Flame chart of a training step; the table below has the same numbers">{shapes}</svg>'
    )


def _shapes(box: Box, start: float, row: int, scale: float, whole: Box) -> Iterator[str]:
    wide = box.seconds * scale
    if wide < _NARROWEST:
        return
    x, y = start * scale, row * _ROW
    time = time_unit(whole.seconds).text(box.seconds)
    tip = f"{box.title}: {time}, {box.seconds / whole.seconds:.1%} of the step" + (f"; {box.note}" if box.note else "")
    yield f'<g><title>{escape(tip)}</title><rect x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{_ROW}" '
    yield f'rx="2" fill="{box.colour}" fill-opacity="{1 - 0.12 * min(row, 5):.2f}"/>'
    letters = int((wide - 8) / _TEXT)
    if letters >= 3:
        text = box.title if len(box.title) <= letters else box.title[: letters - 1] + "…"
        yield f'<text x="{x + 4:.2f}" y="{y + 15}">{escape(text)}</text>'
    yield "</g>"
    for inner in box.inside:
        yield from _shapes(inner, start, row + 1, scale, whole)
        start += inner.seconds


def _flame_card(profile: Profile) -> str:
    box = step_box(profile)
    soft = '<span class="soft">(point at a box for its time)</span>'
    chart = for_both_widths(partial(flame, box))
    return f'<section class="card wide"><h2>One step {soft}</h2>{chart}</section>'


def _phases(profile: Profile) -> str:
    bar = "<div class='bar'><i style='width:{:.1%};background:{}'></i></div>"
    rows = "".join(
        f"<tr><td>{escape(p.name)}</td><td>{profile.unit.text(p.seconds)}</td><td>{p.share:.0%}</td><td>"
        + (bar.format(min(1.0, p.share), _COLOURS[p.name]) if p.name != DATA else "in another thread, for a later step")
        + "</td></tr>"
        for p in profile.phases
    )
    head = "<thead><tr><th>phase</th><th>per step</th><th>share</th><th></th></tr></thead>"
    table = f'<table class="numbers phases">{head}<tbody>{rows}</tbody></table>'
    return f'<section class="card wide"><h2>Phases</h2>{table}</section>'


def _operators(profile: Profile, *, kinds: bool) -> str:
    """Return the table of the layers, or that of the kinds of operators."""
    listed = profile.kinds if kinds else sorted(profile.layers, key=lambda e: -e.seconds)
    if not listed:
        return ""
    head = "".join(f"<th>{n}</th>" for n in table_head(profile, kinds=kinds))
    cells = (table_row(each, profile.unit) for each in listed)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
    name, note = ("kinds", "all layers and phases") if kinds else ("layers", "each with its backward, slowest first")
    title = "Kinds of operators" if kinds else "Layers"
    return (
        f'<section class="card wide"><h2>{title} <span class="soft">({note})</span></h2><div class="scroll sideways">'
        f'<table class="numbers {name}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


def _facts(profile: Profile) -> dict[str, str]:
    measured = profile.measured
    facts = {"batch": ", ".join(f"{n} {'×'.join(map(str, s)) or 'scalar'}" for n, s in profile.batch.items())}
    if measured.threads is not None:
        facts["threads"] = str(measured.threads)
    if measured.peak_operations:
        facts["matrix products"] = f"{measured.peak_operations / 1e9:,.0f} GFLOP/s (float32, 1024 × 1024)"
    if measured.peak_bytes:
        facts["memory"] = f"{measured.peak_bytes / 1e9:,.1f} GB/s (an element-wise operator on large arrays)"
    if profile.operations:
        facts["products of a step"] = amount(profile.operations, "FLOP")
    if measured.allocated:
        facts["made in a step"] = memory(measured.allocated)
    if profile.about_profiler:
        facts["operators"] = profile.about_profiler
    return facts
