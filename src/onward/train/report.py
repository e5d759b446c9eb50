"""A report of a run as one HTML file: no script, no network, light and dark, printable."""

from __future__ import annotations

import datetime
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

import onward
from onward.train.data.preparation import Preparation
from onward.train.plot import COLOURS, column_chart, loss_chart
from onward.train.progress import show_seconds

if TYPE_CHECKING:
    from onward.train.history import History
    from onward.train.loop import Run

CSS = """
:root{--paper:#f4f6fa;--card:#ffffff;--ink:#1f2733;--soft:#667085;--line:#e3e7ee;--accent:#2563c9;--good:#1b8a5a}
@media (prefers-color-scheme:dark){:root{--paper:#0d1117;--card:#161b22;--ink:#e6edf3;--soft:#9aa4b2;--line:#2a313c;
--accent:#6ea8fe;--good:#4cc38a}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1080px;margin:0 auto;padding:32px 24px 56px}
header{display:flex;justify-content:space-between;align-items:flex-end;gap:24px;flex-wrap:wrap;margin-bottom:20px}
h1{font-size:26px;line-height:1.2;margin:0 0 4px}
h2{font-size:16px;margin:0 0 12px}
p{margin:0}.soft{color:var(--soft)}
.badge{border-radius:999px;padding:4px 12px;font-size:13px;font-weight:600;color:var(--card);background:var(--good)}
.badge.early{background:#b86e00}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:14px;margin-bottom:14px}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:18px 20px}
.tile b{display:block;font-size:24px;line-height:1.25;font-weight:650;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:14px;margin-bottom:14px}
.wide{margin-bottom:14px}
.chart{display:block;width:100%;height:auto}.phone{display:none}
.plain{padding:8px}.row{grid-column:1/-1}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th{color:var(--soft);font-weight:500;text-align:left}
td,th{padding:5px 10px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
tr:last-child td,tr:last-child th{border-bottom:0}
.numbers td,.numbers th{text-align:right;padding:5px 10px}
.numbers td:first-child,.numbers th:first-child{text-align:left;padding-left:0}
.pairs :is(td,th):nth-child(2){text-align:left}.pairs :is(td,th):nth-child(-n+2){width:35%;overflow-wrap:anywhere}
.numbers .best td{font-weight:650;color:var(--accent)}
.scroll{overflow:auto;max-height:420px}.sideways{overflow-x:auto}
h2 .soft{font-weight:400;font-size:13px}
.numbers thead th{position:sticky;top:0;background:var(--card)}
.matrix{border-collapse:separate;border-spacing:2px;width:auto;margin:0 auto}
.matrix td{min-width:34px;height:34px;text-align:center;border:0;border-radius:5px;padding:2px 6px;
font-size:13px;vertical-align:middle}
.matrix th{vertical-align:middle;border:0;text-align:center;padding:2px 6px;font-size:13px;
max-width:110px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.matrix th.row{text-align:right;position:sticky;left:0;background:var(--card)}
.dense{border-spacing:1px}.dense td{min-width:21px;height:21px;padding:1px;font-size:11px;border-radius:3px}
.dense th{font-size:11px;padding:1px 2px;max-width:74px}.dense .none{font-size:0}
.below{text-align:center;color:var(--soft);font-size:13px;margin:8px 0 0}
footer{color:var(--soft);font-size:13px;margin-top:20px}
@media (max-width:640px){.screen{display:none}.phone{display:block}main{padding:20px 12px 40px}.card{padding:14px}
.plain{padding:4px}.tiles{grid-template-columns:1fr 1fr;gap:10px}.tile b{font-size:21px}.numbers th{white-space:nowrap}
.matrix{border-spacing:1px}.matrix td{min-width:24px;height:26px;padding:1px 2px;font-size:11px}
.matrix th{padding:1px 3px;font-size:11px;max-width:74px}}
@media print{body{background:#fff}.card{break-inside:avoid}.scroll{max-height:none}}
"""


def environment(run: Run) -> dict[str, str]:
    """Return what the results depend on: versions, machine and backend."""
    described = {
        str(k): ", ".join(map(str, v)) if isinstance(v, (list, tuple)) else str(v)
        for k, v in run.trainer.session.describe().items()
    }
    return {
        **described,
        "onward": onward.__version__,
        "onnx": onnx.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
    }


def settings_of(run: Run) -> dict[str, str]:
    """Return the settings of the run as text."""
    s, program = run.settings, run.trainer.program
    state = sum(int(np.asarray(program.state[p]).size) for p in program.parameters)
    rate = run.learning_rate
    changes = run.schedule is not None or run.rate_factor != 1.0
    entries = {
        "epochs": s.epochs,
        "batch size": s.batch_size,
        "samples": run.source.size if run.source.size is not None else "unknown",
        "seed": s.seed,
        "shuffled": "yes" if s.shuffle else "no",
        "learning rate": (f"{rate:g}" + " at the end" * changes) if math.isfinite(rate) else "in the model",
        "inputs": ", ".join(f"{i.name} {_dims(i.shape)}" for i in program.inputs),
        "targets": ", ".join(f"{t.name} {_dims(t.shape)}" for t in program.targets),
        "parameters": f"{state:,} numbers in {len(program.parameters)} tensors",
        "training entries": ", ".join(program.entries),
        **({} if program.store is None else {"stored in": f"{program.store.dtype}: gradients are approximate"}),
    }
    preparation = run.trainer.preparation
    if preparation.normalises:
        entries["normalisation"] = normalisation(preparation)
    return {key: str(value) for key, value in entries.items()}


def normalisation(preparation: Preparation) -> str:
    """Return what is done to the inputs as a formula, without the parts that do nothing.

    >>> normalisation(Preparation(scale=0.5)), normalisation(Preparation(scale=2, mean=0.25, std=[0.5, 1.0]))
    ('x × 0.5', '(x × 2 − 0.25) / [0.5, 1.0]')
    """
    text = "x" if preparation.scale == 1.0 else f"x × {preparation.scale:g}"
    if np.any(np.asarray(preparation.mean) != 0.0):
        text += f" − {preparation.mean}"
    if np.any(np.asarray(preparation.std) != 1.0):
        text = (f"({text})" if text != "x" else text) + f" / {preparation.std}"
    return text


def _dims(shape: Sequence[Any]) -> str:
    return "(" + ", ".join("?" if d is None else str(d) for d in shape) + ")"


def build_report(
    history: History,
    *,
    title: str,
    settings: Mapping[str, str],
    environment: Mapping[str, str],
    classes: Sequence[str] = (),
    finished: bool = True,
) -> str:
    """Return the report as one HTML document."""
    epochs = history.epochs
    seconds = sum(float(r.get("seconds", 0.0)) for r in epochs)
    state = "stopped early" if history.stopped else "finished" if finished else "running"
    note = f"{len(epochs)} epochs, {epochs[-1]['step'] if epochs else 0:,} steps in {show_seconds(seconds)}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{escape(title)}: training report</title><style>{CSS}</style></head><body><main>",
        f'<header><div><h1>{escape(title)}</h1><p class="soft">{escape(note)}</p></div>',
        f'<span class="badge{" early" if history.stopped else ""}">{state}</span></header>',
        _tiles(history),
        _card(for_both_widths(partial(loss_chart, epochs, history.step_losses))),
        _metric_charts(epochs),
    ]
    if history.stopped:
        parts.append(f'<section class="card wide"><h2>Why it stopped</h2><p>{escape(history.stopped)}</p></section>')
    if history.confusion:
        validated = any(column.startswith("val_") for column in history.columns)
        parts.append(_confusion(history.confusion, classes, validated=validated))
    parts += [
        _epoch_table(epochs),
        '<div class="grid">',
        facts_table("Settings", settings),
        facts_table("Environment", environment),
        "</div>",
        f"<footer>Written by Onward {escape(onward.__version__)} on "
        f"{datetime.datetime.now().astimezone().strftime('%Y-%m-%d %H:%M %Z')}</footer>",
        "</main></body></html>",
    ]
    return "\n".join(p for p in parts if p)


def _card(chart: str) -> str:
    return f'<section class="card plain wide">{chart}</section>'


def _number(value: Any) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else escape(str(value))
    if not math.isfinite(value):
        return "–"
    return (
        f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4f}" if abs(value) >= 1e-3 or not value else f"{value:.3g}"
    )


_PHONE = 400  # the width of a chart
_DENSE = 16  # a matrix of more classes has small cells
_FEW_CLASSES = 12  # that are shown whether they occur or not
_PERCENT = {"accuracy", "precision", "recall", "f1", "auc"}


def _share(name: str, value: float) -> str:
    base = name.removeprefix("val_").partition(":")[0]
    return f"{value * 100:.2f} %" if base in _PERCENT or base.startswith("top") else _number(value)


def _tiles(history: History) -> str:
    last = history.last
    hidden = {"epoch", "step", "seconds", "samples_per_second", "learning_rate"}
    names = [n for n in last if n not in hidden and isinstance(last[n], (int, float))]
    validation = [n for n in names if n.startswith("val_")]
    shown: list[str] = [n for n in ("loss", "val_loss") if n in names]
    shown += [n for n in (validation or names) if n not in shown][:3]
    tiles = [(n.replace("val_", "validation ").replace("_", " "), _share(n, float(last[n]))) for n in shown]
    tiles = [("training loss" if n == "loss" else n, v) for n, v in tiles]
    if "samples_per_second" in last:
        tiles.append(("samples/s", f"{last['samples_per_second']:,.0f}"))
    cells = "".join(f'<div class="card tile"><span>{escape(n)}</span><b>{v}</b></div>' for n, v in tiles)
    return f'<section class="tiles">{cells}</section>'


def for_both_widths(chart: Callable[..., str], width: int = 1020) -> str:
    """Return a chart for a screen and one that is drawn for the width of a phone, where a scaled one is unreadable."""
    return f'<div class="screen">{chart(width=width)}</div><div class="phone">{chart(width=_PHONE)}</div>'


def _metric_charts(epochs: Sequence[dict[str, Any]]) -> str:
    hidden = {"epoch", "step", "seconds", "samples_per_second", "loss", "val_loss", "learning_rate"}
    columns = list(dict.fromkeys(k for r in epochs for k, v in r.items() if isinstance(v, (int, float))))
    bases = dict.fromkeys(c.removeprefix("val_") for c in columns if c not in hidden)
    wanted = []
    for base in bases:
        both = (("training", base), ("validation", f"val_{base}"))
        wanted.append((base.replace("_", " "), [(legend, c) for legend, c in both if c in columns]))
    if len({r.get("learning_rate") for r in epochs}) > 1:
        wanted.append(("learning rate", [("learning rate", "learning_rate")]))
    if not wanted or len(epochs) < 2:
        return ""
    cards = []
    for i, (title, pairs) in enumerate(wanted):
        alone = i == len(wanted) - 1 and len(wanted) % 2 == 1  # the last of an odd number takes the whole row
        heading, wide = title[:1].upper() + title[1:], 1020 if alone else 500
        chart = for_both_widths(partial(column_chart, epochs, pairs, heading), wide)
        cards.append(f'<section class="card plain{" row" if alone else ""}">{chart}</section>')
    return f'<div class="grid">{"".join(cards)}</div>'


def _confusion(matrix: Sequence[Sequence[int]], classes: Sequence[str], *, validated: bool) -> str:
    every = len(matrix)
    matrix, names = occurring(matrix, classes)
    data = "validation" if validated else "training"
    if len(matrix) > 40:
        return _worst(matrix, names, data)
    head = "".join(f'<th title="{escape(n, quote=True)}">{escape(n)}</th>' for n in names)
    body = []
    for i, row in enumerate(matrix):
        total = sum(row) or 1
        cells = "".join(_cell(count, count / total, i == j, names[i], names[j]) for j, count in enumerate(row))
        body.append(f'<tr><th class="row" title="{escape(names[i], quote=True)}">{escape(names[i])}</th>{cells}</tr>')
    right = sum(matrix[i][i] for i in range(len(matrix)))
    total = sum(sum(row) for row in matrix)
    caption = f"rows: true class, columns: predicted class; {right:,} of {total:,} right"
    caption += f"; {len(matrix)} of {every:,} classes occur" if len(matrix) < every else ""
    table = f"<tr><th></th>{head}</tr>{''.join(body)}"
    return (
        f'<section class="card wide"><h2>Confusion matrix on the {data} data</h2><div class="sideways">'
        f'<table class="matrix{" dense" * (len(matrix) > _DENSE)}">{table}</table></div>'
        f'<p class="below">{caption}</p></section>'
    )


def occurring(matrix: Sequence[Sequence[int]], classes: Sequence[str]) -> tuple[list[list[int]], list[str]]:
    """Return the matrix with the names of its classes; of more than twelve, only those that are true or predicted.

    >>> matrix = [[0] * 20 for _ in range(20)]
    >>> matrix[3][17] = 5
    >>> occurring(matrix, ["a", "b", "c", "dog"])
    ([[0, 5], [0, 0]], ['dog', '17'])
    """
    kept = list(range(len(matrix)))
    if len(matrix) > _FEW_CLASSES:
        kept = [i for i in kept if any(matrix[i]) or any(row[i] for row in matrix)]
    return [[matrix[i][j] for j in kept] for i in kept], [classes[i] if i < len(classes) else str(i) for i in kept]


def _worst(matrix: Sequence[Sequence[int]], names: Sequence[str], data: str) -> str:
    """Return the most frequent mistakes, for more classes than a matrix can show."""
    pairs = [(i, j) for i in range(len(matrix)) for j in range(len(matrix)) if i != j and matrix[i][j]]
    worst = sorted(pairs, key=lambda p: -matrix[p[0]][p[1]])[:20]
    rows = "".join(
        f"<tr><td>{escape(names[i])}</td><td>{escape(names[j])}</td><td>{matrix[i][j]:,}</td>"
        f"<td>{100 * matrix[i][j] / sum(matrix[i]):.0f} %</td></tr>"
        for i, j in worst
    )
    right, total = sum(matrix[i][i] for i in range(len(matrix))), sum(sum(row) for row in matrix)
    note = f"({right:,} of {total:,} samples of {len(matrix)} classes right; {len(worst)} of {len(pairs):,} confusions)"
    head = "<thead><tr><th>true class</th><th>taken for</th><th>samples</th><th>of its class</th></tr></thead>"
    return (
        f'<section class="card wide"><h2>Most frequent confusions on the {data} data '
        f'<span class="soft">{note}</span></h2>'
        f'<table class="numbers pairs">{head}<tbody>{rows}</tbody></table></section>'
    )


def _cell(count: int, share: float, right: bool, true: str, predicted: str) -> str:
    colour = COLOURS[0] if right else COLOURS[1]
    strength = 0.0 if not count else 0.10 + 0.80 * (share if right else min(1.0, share * 4))
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    ink = "#fff" if strength > 0.55 else "inherit"
    soft, none = ("", "") if count else (";opacity:.35", 'class="none" ')
    tip = f"{count:,} of class {true} taken for {predicted} ({share * 100:.1f} %)"
    return (
        f'<td {none}style="background:rgba({red},{green},{blue},{strength:.2f});color:{ink}{soft}" '
        f'title="{escape(tip, quote=True)}">{count:,}</td>'
    )


_HEADINGS = {"samples_per_second": "samples/s", "learning_rate": "rate"}


def _entry(column: str, value: Any) -> str:
    if column in ("seconds", "samples_per_second"):
        return f"{value:,.{1 if column == 'seconds' else 0}f}"
    return f"{value:.3g}" if column == "learning_rate" else _number(value)


def _epoch_table(epochs: Sequence[dict[str, Any]]) -> str:
    if not epochs:
        return ""
    columns = list(dict.fromkeys(k for r in epochs for k, v in r.items() if isinstance(v, (int, float))))
    target = "val_loss" if "val_loss" in columns else "loss"
    finite = [float(r[target]) for r in epochs if math.isfinite(float(r.get(target, math.nan)))]
    best = min(finite) if finite else None
    head = "".join(f"<th>{escape(_HEADINGS.get(c, c).replace('_', ' '))}</th>" for c in columns)
    rows = []
    for record in epochs:
        cells = "".join(f"<td>{_entry(c, record[c]) if c in record else ''}</td>" for c in columns)
        mark = ' class="best"' if record.get(target) == best else ""
        rows.append(f"<tr{mark}>{cells}</tr>")
    note = f"(best {escape(target.replace('_', ' '))} marked)"
    table = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return (
        f'<section class="card wide"><h2>Epochs <span class="soft">{note}</span></h2>'
        f'<div class="scroll"><table class="numbers">{table}</table></div></section>'
    )


def facts_table(title: str, facts: Mapping[str, str]) -> str:
    rows = "".join(f"<tr><th>{escape(str(k))}</th><td>{escape(str(v))}</td></tr>" for k, v in facts.items())
    return f'<section class="card"><h2>{escape(title)}</h2><table>{rows}</table></section>'
