"""Which columns of a table feed which input or target of a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from onward.arguments import did_you_mean, nearest, shown
from onward.compiler.program import TensorSpec
from onward.errors import A101, ArgumentError, DataError, Diagnostic
from onward.train.data.frame import list_columns
from onward.train.data.preparation import Preparation

T141 = "T141"


def columns_for(
    target: Any, features: Any, inputs: Sequence[TensorSpec], targets: Sequence[TensorSpec]
) -> dict[str, list[str]]:
    """Return name of the model -> columns, from the arguments `target=` and `features=`.

    Raises:
        ArgumentError: they are no names of columns, or do not say which input or target they are for; all at once.
    """
    problems: list[Diagnostic] = []
    found: dict[str, list[str]] = {}
    for argument, given, specs in (("target", target, targets), ("features", features, inputs)):
        if given is None:
            continue
        if isinstance(given, Mapping) and _are_columns(list(given.values())):
            known = [s.name for s in specs]
            unknown = [str(n) for n in given if n not in known]
            problems += [
                Diagnostic(
                    A101,
                    f"{argument} names `{n}`, which the model does not have",
                    needed="one of: " + ", ".join(known),
                    hint=did_you_mean(nearest(n, known, 1)),
                )
                for n in unknown
            ]
            found |= {str(n): [c] if isinstance(c, str) else list(c) for n, c in given.items()}
            continue
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, (list, tuple)) or not names or not all(isinstance(n, str) for n in names):
            problems.append(
                Diagnostic(
                    A101, f"{argument} is {shown(given)}", needed="a column, a list of columns, or a dict of them"
                )
            )
        elif len(specs) == 1:
            found[specs[0].name] = list(names)
        elif len(specs) == len(names):
            by_name = {s.name for s in specs} == set(names)
            found |= {s.name: [s.name if by_name else n] for s, n in zip(specs, names, strict=True)}
        else:
            problems.append(
                Diagnostic(
                    A101,
                    f"{argument} does not say which columns are for which of the {len(specs)} "
                    f"{'targets' if argument == 'target' else 'inputs'}",
                    found=", ".join(names),
                    needed=f"a dict with {', '.join(f'`{s.name}`' for s in specs) or 'nothing'}",
                )
            )
    if problems:
        raise ArgumentError(problems)
    return found


def _are_columns(values: Sequence[Any]) -> bool:
    return all(
        isinstance(v, str) or (isinstance(v, (list, tuple)) and all(isinstance(n, str) for n in v)) for v in values
    )


def named(asked: str | Sequence[str], columns: Sequence[str]) -> list[str]:
    """Return the columns of `columns=`: a list, one name, or names with commas between.

    >>> named("a,b", ["a", "b"]), named("a,b", ["a,b"])
    (['a', 'b'], ['a,b'])
    """
    if not isinstance(asked, str):
        return list(asked)
    return [asked] if asked in columns else [n.strip() for n in asked.split(",")]


def choose_columns(
    columns: list[str],
    inputs: Sequence[TensorSpec],
    targets: Sequence[TensorSpec],
    preparation: Preparation,
    place: str,
) -> dict[str, list[str]]:
    """Return model name -> columns of the table."""
    wanted = [*inputs, *targets]
    chosen: dict[str, list[str]] = {}
    problems: list[Diagnostic] = []
    for spec in wanted:
        asked = preparation.columns.get(spec.name)
        if asked is not None:
            names = named(asked, columns)
            problems += _missing(spec, names, columns, place)
            chosen[spec.name] = names
        elif spec.column_in(columns) in columns:
            chosen[spec.name] = [spec.column_in(columns)]
        elif numbered := _numbered(columns, spec.name):
            chosen[spec.name] = numbered
    left = [spec for spec in wanted if spec.name not in chosen]
    for spec in [s for s in left if s.name in preparation.table]:
        chosen[spec.name] = list(preparation.table[spec.name])
        problems += _missing(
            spec,
            chosen[spec.name],
            columns,
            place,
            needed=f"the columns that the model was trained with: {list_columns(chosen[spec.name])}",
            hint=f"if others mean the same, name them: --column {spec.name}=a,b,c",
        )
        left.remove(spec)
    if len(left) == 1:
        taken = {name for names in chosen.values() for name in names}
        rest = [c for c in columns if c not in taken]
        if rest:
            chosen[left[0].name] = rest
            left = []
    problems += [
        Diagnostic(
            T141,
            f"the table has no column for `{spec.name}`",
            place=place,
            found=list_columns(columns),
            needed=f"`{spec.name}` {spec.dtype} {sizes_of(spec)}",
            hint=f"name it: columns={{'{spec.name}': '{_example(spec, columns)}'}}"
            + ("; the last one left takes all columns that remain" if len(left) > 1 else ""),
        )
        for spec in left
    ]
    if problems:
        raise DataError(problems)
    return chosen


def _missing(
    spec: TensorSpec, names: Sequence[str], columns: Sequence[str], place: str, needed: str = "", hint: str = ""
) -> list[Diagnostic]:
    missing = [n for n in names if n not in columns]
    if not missing:
        return []
    message = f"no column {', '.join(f'`{n}`' for n in missing)} for `{spec.name}`"
    near = did_you_mean(dict.fromkeys(c for n in missing for c in nearest(n, columns, 1)))
    hint = "; ".join(text for text in (near, hint) if text)
    return [Diagnostic(T141, message, place=place, found=list_columns(columns), needed=needed, hint=hint)]


def _example(spec: TensorSpec, columns: Sequence[str]) -> str:
    """Return an example of column names: for a single number the last column, which is often the label."""
    single = len(spec.shape) == 1 or (len(spec.shape) == 2 and spec.shape[1] == 1)
    return columns[-1] if single and columns else "a,b,c"


def _numbered(columns: Sequence[str], name: str) -> list[str]:
    found = []
    for column in columns:
        match = re.fullmatch(re.escape(name) + r"[_.\[](\d+)\]?", column)
        if match:
            found.append((int(match[1]), column))
    return [column for _, column in sorted(found)]


def sizes_of(spec: TensorSpec) -> str:
    return "(" + ", ".join("N" if i == 0 else str(d) for i, d in enumerate(spec.shape)) + ")"
