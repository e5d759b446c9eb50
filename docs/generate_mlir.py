"""Write the tables of docs/mlir.md from `src/onward/mlir`. `docs/generate.py` calls it."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "mlir.md"
BEGIN, END = "<!-- dialect: begin -->", "<!-- dialect: end -->"


def page() -> str:
    """Return docs/mlir.md with the mapping between its markers."""
    text = PAGE.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise SystemExit(f"docs/mlir.md lacks {BEGIN} or {END}")
    return f"{head}{begin}\n{chr(10).join(_tables())}\n{end}{tail}"


def _tables() -> list[str]:
    from onward.mlir import dialect, exporting
    from onward.mlir.numbers import ELEMENTS
    from onward.passes.core.operators import CORE
    from onward.passes.core.registry import table

    attributes = re.findall(r"^    ((?:onward\.\w+(?:, )?)+):?\s+(.+)$", exporting.__doc__ or "", re.MULTILINE)
    assert len(attributes) > 6, "the docstring of exporting.py has the table of attributes"
    elements = [f"{kind.name} `{'!' if '.' in name else ''}{name}`" for kind, name in ELEMENTS.items()]
    several = [
        f"{op} {', '.join(f'`{op}{chr(86) + str(v) if i else str()}` ({v})' for i, v in enumerate(versions))}"
        for op, versions in dialect.VERSIONS.items()
    ]
    functions = len(table().keys() - CORE.keys())
    regions = [f"{op} ({', '.join(f'`{r}`' for r in names)})" for op, names in dialect.REGIONS.items()]
    functions = len(table().keys() - CORE.keys())
    return [
        "| in ONNX | in the dialect `onnx` |",
        "|---|---|",
        "| an operator of " + ", ".join(f"`{d or 'ai.onnx'}`" for d in dialect.DOMAINS) + " | `onnx.` and its name |",
        f"| any other operator, a call of a function | `{dialect.CUSTOM}` with `domain_name` and `function_name` |",
        *(f"| {op} with one output | `onnx.{name}` |" for op, name in dialect.ONE_RESULT.items()),
        f"| an absent input | the result of `{dialect.NO_VALUE}`, up to the number of inputs in the schema |",
        "| an absent output | a result of type `none` |",
        "| an initializer, a Constant node | `onnx.Constant`; an initializer has `onward.initializer` |",
        f"| an inner graph | a region that ends in `onnx.Yield`: {', '.join(regions)} |",
        f"| the graph | `func.func @{exporting.MAIN}`, which ends in `onnx.Return`; `{dialect.ENTRY_POINT}` names it |",
        f"| a training entry | `{dialect.TRAINING}` in that function: a region for the algorithm, which reads the "
        "values of the graph, and one for the initialisation; the bindings are attributes |",
        "| a model-local function | `func.func private`, on values of type `!onward.any` |",
        '| INT, INTS, FLOAT, STRING | `1 : si64`, `[1, 2]`, `0.5 : f32`, `"text"` |',
        "| TENSOR, SPARSE_TENSOR | `dense<…>` or `dense_resource<…>`, `sparse<…>` |",
        "| `to` of Cast, TYPE_PROTO | a type: `to = f16` |",
        "| tensor, sequence, optional | `tensor<2x?xf32>`, `!onnx.Seq<…>`, `!onnx.Opt<…>` |",
        '| the name of a size | `onnx.dim_params = "0:batch"` of an argument or a result |',
        "| a type that nobody states, a map | `!onward.any` |",
        "",
        "Element types: " + ", ".join(elements) + ".",
        "",
        f"onnx-mlir has {len(dialect.VERSIONS)} operators in several versions, of which the newest has the plain name: "
        + "; ".join(several)
        + ".",
        "",
        "| attribute | of, and what it says |",
        "|---|---|",
        *(f"| {', '.join(f'`{n}`' for n in names.split(', '))} | {says} |" for names, says in attributes),
        "",
        f"Levels: {len(CORE)} operators of ai.onnx are `core`, {functions} are a `function` of core operators, and",
        "what is left is `other`: operators that cannot be decomposed, those of other domains, `Gradient` and the",
        "optimizers. A model-local function has the level of its body.",
    ]
