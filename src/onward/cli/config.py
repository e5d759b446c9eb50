"""`--config FILE.toml` and `--print-config`: every option of a command as one TOML file.

The keys are the names of the options (`batch-size = 64`, with - or _). A relative path is relative to where the command
runs, as on the command line. An option that is given on the command line wins.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_type_hints

from onward.arguments import did_you_mean, nearest
from onward.errors import A100, A101, ArgumentError, Diagnostic

_NEVER_STORED = ("config", "print_config")


def option_name(field: dataclasses.Field[Any], hints: dict[str, Any]) -> str:
    """Return what an option is called in a configuration: its long name without the dashes."""
    for annotation in getattr(hints[field.name], "__metadata__", ()):
        # typer keeps the first name of Option("--learning-rate", "--lr") where a default would be
        declared = (getattr(annotation, "default", None), *(getattr(annotation, "param_decls", None) or ()))
        names = [n for n in declared if isinstance(n, str) and n.startswith("--")]
        if names:
            return str(names[0].removeprefix("--"))
    return field.name.replace("_", "-")


def names_of(options: type[Any]) -> dict[str, str]:
    """Return name in a configuration -> field, for every option that can be stored."""
    hints = get_type_hints(options, include_extras=True)
    return {option_name(f, hints): f.name for f in dataclasses.fields(options) if f.name not in _NEVER_STORED}


def read_config(path: Path, options: type[Any]) -> dict[str, Any]:
    """Return field -> value of a configuration file.

    Raises:
        ArgumentError: the file cannot be read, has unknown keys, or values of the wrong kind; all at once.
    """
    try:
        content = _toml().loads(path.read_text("utf-8"))
    except OSError as error:
        raise ArgumentError(
            Diagnostic(A101, f"`{path}` cannot be read: {error.strerror}", place="--config", needed="a TOML file")
        ) from error
    except ValueError as error:  # also a UnicodeDecodeError
        raise ArgumentError(
            Diagnostic(A101, f"`{path}` is not TOML: {error}", place="--config", hint="onward train --print-config")
        ) from error
    known = names_of(options)
    hints = get_type_hints(options)
    values: dict[str, Any] = {}
    problems: list[Diagnostic] = []
    for key, value in content.items():
        name = key.replace("_", "-")
        if name not in known:
            problems.append(
                Diagnostic(
                    A100,
                    f"no such option `{key}`",
                    place=f"--config {path}",
                    hint=did_you_mean(nearest(name, known)) or "onward train --print-config lists all of them",
                )
            )
            continue
        wrong = _wrong_kind(value, hints[known[name]])
        if wrong:
            problems.append(Diagnostic(A101, f"`{key}` is {value!r}", place=f"--config {path}", needed=wrong))
        values[known[name]] = _as_given(value, hints[known[name]])
    if problems:
        raise ArgumentError(problems)
    return values


def _as_given(value: Any, kind: Any) -> Any:
    """Return a value as the command line would give it: text for what takes text, a list for what may be repeated."""
    if "list[" in str(kind):
        return [str(v) for v in (value if isinstance(value, list) else [value])]
    return str(value) if _takes(kind, str) and _is_number(value) else value


def _toml() -> Any:
    """Return the module that reads TOML: part of Python since 3.11."""
    import importlib

    try:
        return importlib.import_module("tomllib")
    except ModuleNotFoundError:
        return importlib.import_module("tomli")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _takes(kind: Any, wanted: type) -> bool:
    return wanted is kind or wanted in getattr(kind, "__args__", ())


def _wrong_kind(value: object, kind: Any) -> str:
    """Return what is needed instead of `value`; empty where it is right."""
    text = str(kind)
    if "list[" in text:
        right = isinstance(value, list) and all(isinstance(v, (str, int, float)) for v in value)
        return "" if right or isinstance(value, str) else 'a list, as ["a", "b"]'
    if _takes(kind, bool):
        return "" if isinstance(value, bool) else "true or false"
    if _takes(kind, int):
        return "" if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    if _takes(kind, float):
        return "" if _is_number(value) else "a number"
    return "" if isinstance(value, str) or (_takes(kind, str) and _is_number(value)) else "text, in quotes"


def render_config(options: Any) -> str:
    """Return every option as TOML; those that are not set are comments.

    Read back with `--config`, it gives the same options.
    """
    lines = [f"# onward {type(options).__name__.removesuffix('Options').lower()} --config THIS_FILE"]
    for name, field in names_of(type(options)).items():
        value = getattr(options, field)
        lines.append(f"# {name} is not set" if value is None else f"{name} = {_toml_text(value)}")
    return "\n".join(lines) + "\n"


def _toml_text(value: Any) -> str:
    """Return a value as TOML.

    >>> _toml_text(True), _toml_text(1e-05), _toml_text(["a", 'b"']), _toml_text(Path("x/y"))
    ('true', '1e-05', '["a", "b\\\\""]', '"x/y"')
    """
    import json

    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_text(v) for v in value) + "]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
