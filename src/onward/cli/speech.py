"""Say a diagnostic in the words of the command line: options instead of arguments, commands instead of functions.

The library speaks Python (`freeze=["fc.*"]`). Where an argument has an option of its own name, nothing is needed here;
the tables name the others. tests/contract/test_speech.py walks every text of the library and every option.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import shlex

from onward.errors import Diagnostic

OPTIONS = {
    "output": "--on",
    "outputs": "--on",
    "dialect": "--mlir",
    "kind": "--as",
    "level": "--mlir-level",
    "path": "--output",
    "phases": "--phase",
    "columns": "--column",
    "validation_data": "--validation",
    "metrics": "--metric",
    "model": "FILE",
    "accumulate": "--set accumulate",
    "clip_global_norm": "--set clip_global_norm",
    "clip_norm": "--set clip_norm",
    "dampening": "--set dampening",
    "ema": "--set ema",
    "groups": "--set groups",
    "layer_decay": "--set layer_decay",
    "momentum": "--set momentum",
    "nesterov": "--set nesterov",
    "activation": "--set-loss activation",
    "alpha": "--set-loss alpha",
    "anchors": "--set-loss anchors",
    "axis": "--set-loss axis",
    "blank": "--set-loss blank",
    "features": "--set-loss features",
    "inputs": "--set-loss inputs",
    "size": "--set-loss size",
    "strides": "--set-loss strides",
    "targets": "--set-loss targets",
    "time_axis": "--set-loss time_axis",
    "teacher_output": "--set-loss teacher_output",
    "ignore_index": "--set-loss ignore_index",
    "logits": "--set-loss logits",
    "reduction": "--set-loss reduction",
    "weight": "--set-loss weight",
    "zero_infinity": "--set-loss zero_infinity",
    "gradients": "--set-backend gradients",
    "native": "--set-backend native",
    "sizes": "--size",
    "verify": "--set-backend verify",
}
"""The arguments whose option has another name, or that are settings."""

COMMANDS = {
    "check": "onward check",
    "compile": "onward compile",
    "doctor": "onward doctor",
    "gradient": "onward grad",
    "make_trainable": "onward make-trainable",
    "to_inference": "onward strip",
    "Trainer.resume": "--resume",
}
"""The functions that are a command, or an option of one."""

_VALUE = r"""(?P<value>
    (?: True | False | None | "[^"]*" | '[^']*' | \[[^\]]*\] | \{[^}]*\} | -?\d+(?:\.\d+)?(?:e-?\d+)? | … )
    (?![\w/]|\.\w)
)"""
_ARGUMENT = re.compile(rf"(?<![\w.\-])(?P<name>[a-z][a-z_]*)=(?:{_VALUE}|(?![\w./=\"'\[{{(-]))", re.X)
_CALL = re.compile(r"(?<![\w.])(?:onward\.)?(?P<name>[\w.]*\w)\((?:\.\.\.|model|1e-3)?(?:, )?(?P<rest>[^()]*)\)")


def spoken(diagnostic: Diagnostic) -> Diagnostic:
    """Return the diagnostic as the command line says it.

    >>> spoken(Diagnostic("A101", "two outputs", place="output=", hint='pass output="logits", or train="fc.*"')).hint
    "pass --on logits, or --train 'fc.*'"
    """
    fields = ("message", "place", "found", "needed", "hint")
    said = {name: say(getattr(diagnostic, name)) for name in fields}
    first = re.match(r"(`?)([a-z_]+)\1(?= (is|names) )", diagnostic.message)  # "batch_size is 0"
    if first is not None and (option := option_of(first[2])) is not None:
        said["message"] = option + said["message"].removeprefix(first[0])
    return dataclasses.replace(diagnostic, **said)  # type: ignore[arg-type]  # the severity is not among them


def say(text: str) -> str:
    """Return a text with options instead of arguments, and commands instead of functions.

    >>> say("make it with one: onward.Adam(1e-3, ema=0.999)")
    'make it with one: --set ema=0.999'
    >>> say("remove them with onward.to_inference(model), or store them with to_inference(quantize=True)")
    'remove them with onward strip, or store them with onward strip --quantize'
    """
    return _ARGUMENT.sub(_option, _CALL.sub(_command, text)) if "=" in text or "(" in text else text


def _command(call: re.Match[str]) -> str:
    """Return the command for a function, its arguments still to be said; the settings alone for an object."""
    name, rest = call["name"], call["rest"]
    if name in COMMANDS:
        return f"{COMMANDS[name]} {rest}".strip()
    settings = [_ARGUMENT.fullmatch(part) for part in rest.split(", ")]
    made = name.rpartition(".")[2]
    if made == "Preparation" and all(s is not None and option_of(s["name"]) is not None for s in settings):
        return rest
    if made[:1].isupper() and all(s is not None and OPTIONS.get(s["name"], "").startswith("--set") for s in settings):
        return " ".join(rest.split(", "))
    return call[0]


def _option(argument: re.Match[str]) -> str:
    name, value = argument["name"], argument["value"]
    option = option_of(name)
    if value == "False" and (opposite := f"--no-{name.replace('_', '-')}") in known_options():
        return opposite
    if option is None or value in ("False", "None"):
        return argument[0]
    setting = " " in option
    if value is None or value == "…":
        return option + ("" if value is None else "=…" if setting else " …")
    if value == "True" and not setting:
        return option
    try:
        meant = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return argument[0]
    if isinstance(meant, dict) and option in ("--column", "--missing"):
        return " ".join(f"{option} {_quoted(f'{k}={v}')}" for k, v in meant.items())
    if isinstance(meant, dict) or (isinstance(meant, list) and not all(isinstance(m, str) for m in meant)):
        return argument[0]  # only Python can say it
    if isinstance(meant, list):
        return " ".join(f"{option} {_quoted(m)}" for m in meant)
    return f"{option}{'=' if setting else ' '}{_quoted(str(meant))}"


def _quoted(text: str) -> str:
    return text if "…" in text or "..." in text else shlex.quote(text)


def option_of(argument: str) -> str | None:
    """Return the option that means what the argument means; None if only Python has it.

    >>> option_of("batch_size"), option_of("output"), option_of("nonsense")
    ('--batch-size', '--on', None)
    """
    same = f"--{argument.replace('_', '-')}"
    return OPTIONS.get(argument) or (same if same in known_options() else None)


@functools.cache
def known_options() -> frozenset[str]:
    """Return the options of all commands."""
    from typer.main import get_command

    from onward.cli import build_app

    commands = getattr(get_command(build_app()), "commands", {}).values()
    return frozenset(o for command in commands for p in command.params for o in (*p.opts, *p.secondary_opts))
