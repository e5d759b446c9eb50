"""How a command looks: kinds of values as words, examples at the end of its help, one word at Ctrl-C."""

from __future__ import annotations

import contextlib
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_WORDS = {int: "NUMBER", float: "NUMBER", str: "NAME", Path: "FILE", bool: ""}
_HEADING = "\nExamples:\n"


def _plain(kind: Any) -> Any:
    """Return the kind without `| None` and `list`.

    >>> _plain(list[str] | None), _plain(int)
    (<class 'str'>, <class 'int'>)
    """
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        kind = next(k for k in typing.get_args(kind) if k is not types.NoneType)
    return typing.get_args(kind)[0] if typing.get_origin(kind) is list else kind


def description(command: Callable[..., None]) -> str:
    """Return the docstring of a command without its examples."""
    return (inspect.getdoc(command) or "").partition(_HEADING)[0].strip()


def examples(command: Callable[..., None]) -> list[str]:
    """Return the examples at the end of a command's docstring, one command line each."""
    lines = (inspect.getdoc(command) or "").partition(_HEADING)[2].splitlines()
    return [line.strip() for line in lines if line.strip()]


class _Manners:
    """What the program and its commands share: --help names no kind of value, and Ctrl-C is told in one word."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]  # the command's, which this is mixed into
        if option is not None:
            option.metavar = ""
        return option

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        """Read the arguments."""
        with _interruptible():
            return super().make_context(*arguments, **settings)  # type: ignore[misc]  # as above

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _interruptible():
            return super().invoke(ctx)  # type: ignore[misc]  # as above


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """End the program with one word at Ctrl-C, where typer would say nothing."""
    try:
        yield
    except KeyboardInterrupt:
        typer.secho("interrupted", err=True, fg="red", bold=True)
        raise typer.Exit(130) from None


class Group(_Manners, TyperGroup):
    """The program: a group of commands."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help as typer does, whose own printer loads readers of Markdown and of Python code first."""
        from rich.console import Console
        from rich.padding import Padding
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        console = Console(highlight=False)
        console.print(Padding(Text(self.get_usage(ctx).strip(), style="yellow"), 1))
        console.print(Padding(Text(self.help or ""), (0, 1, 1, 1)))
        options = [(", ".join(p.opts), getattr(p, "help", "") or "") for p in self.get_params(ctx)]
        commands = [(name, self.commands[name].help or "") for name in self.list_commands(ctx)]
        for title, rows in (("Options", options), ("Commands", commands)):
            table = Table(box=None, show_header=False, expand=True, pad_edge=False)
            table.add_column(style="bold cyan", no_wrap=True)
            table.add_column(ratio=1)
            for name, text in rows:
                table.add_row(name, " ".join(text.split("\n\n")[0].split()))
            console.print(Panel(table, title=title, title_align="left", border_style="dim"))


class Command(_Manners, TyperCommand):
    """A command whose help names each kind of value by a word and ends with the examples of its docstring."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        assert self.callback is not None
        known = inspect.signature(self.callback, eval_str=True).parameters
        for parameter in self.params:
            kind, *_ = typing.get_args(known[parameter.name or ""].annotation)
            if parameter.metavar is None:
                parameter.metavar = _WORDS[_plain(kind)]
            if parameter.param_type_name == "argument":  # its word is its name; typer would add <path>
                parameter.display_type_rich = lambda ctx: ""  # type: ignore[attr-defined]  # typer 0.29 has it

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; the examples go to the formatter, which is printed after the panels."""
        super().format_help(ctx, formatter)
        shown = examples(self.callback) if self.callback is not None else []
        if shown:
            formatter.write(" Examples:\n" + "".join(f"   {line}\n" for line in shown))
