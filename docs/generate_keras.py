"""Write the table of Keras optimizers in docs/keras.md: each is traced, trained for 50 steps and compared with Keras.

python docs/generate_keras.py          # write the table
python docs/generate_keras.py Adam     # print the rows of some optimizers only
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- keras optimizers: begin -->", "<!-- keras optimizers: end -->"


def row(name: str) -> str:
    """Return one line of the table."""
    from frontends.keras.keras_optimizers import compare
    from onward.errors import OnwardError

    try:
        return f"| `{name}` | {max(compare(name, 'float64').values()):.0e} |"
    except OnwardError as error:
        return f"| `{name}` | refused: {error.diagnostics[0].message} |"


def main(names: list[str]) -> None:
    """Print the rows of the optimizers `names`, or write the whole table."""
    os.environ["KERAS_BACKEND"] = "jax"
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    from frontends.keras.keras_optimizers import MADE

    rows = []
    for name in MADE:
        if not names or name in names or name.split("(")[0] in names:
            rows.append(row(name))
            print(rows[-1], flush=True)
    if names:
        return
    page = ROOT / "docs" / "keras.md"
    table = "\n".join([BEGIN, "| optimizer | largest error |", "|---|---|", *rows, END])
    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: table, text, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
