"""The README of a compiled program: the training loop in several languages.

The loops read all names from the manifest, so they are the same for every program; `tests/e2e` runs them. The texts are
templates beside this file; those that are programs of their own are in `runners`. A program without training has no
loop, and its README says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def readme(manifest: Mapping[str, Any]) -> str:
    """Return the README text for a manifest."""
    steps = [f"`{g['file']}`" for role, g in manifest["graphs"].items() if role.partition(":")[0] == "step"]
    rows = (
        f"| `{s['name']}` | {s['dtype']} | {' × '.join(str(d) for d in s['shape']) or 'scalar'} |"
        for s in (*manifest["inputs"], *manifest["targets"])
    )
    settings = ", ".join(f"`{n}` (default {s['default']})" for n, s in manifest["settings"].items())
    words = {
        "NAME": manifest["name"] or ("A training program" if steps else "A model"),
        "OPSET": manifest["opset"],
        "IR": manifest["ir_version"],
        "STEPS": ", then to ".join(steps),
        "INPUTS": "\n".join(rows),
        "SETTINGS": settings or "none",
    }
    template = "program_readme.md" if steps else "inference_readme.md"
    folder = Path(__file__).parent
    text = (folder / template).read_text(encoding="utf-8")
    for runner in sorted((folder / "runners").iterdir()):
        text = text.replace(f"@FILE {runner.name}@", runner.read_text(encoding="utf-8").rstrip())
    for word, value in words.items():
        text = text.replace(f"@{word}@", str(value))
    return text
