"""The command line: one file per command. This module registers the commands and prints errors.

Nothing heavy is imported here: Ctrl-C while Python loads its packages must find `main` already there.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import TYPE_CHECKING

from onward.errors import ModelError, OnwardError

if TYPE_CHECKING:
    import typer

# command -> (module, function). Imported when the program starts: each is thin and imports its work lazily.
COMMANDS = {
    "sample": "onward.cli.sample:sample",
    "check": "onward.cli.check:check",
    "doctor": "onward.cli.doctor:doctor",
    "show": "onward.cli.show:show",
    "make-trainable": "onward.cli.make_trainable:make_trainable",
    "convert": "onward.cli.convert:convert",
    "strip": "onward.cli.strip:strip",
    "grad": "onward.cli.grad:grad",
    "compile": "onward.cli.compile:compile_command",
    "export": "onward.cli.export:export",
    "import": "onward.cli.import_:import_command",
    "train": "onward.cli.train:train",
    "evaluate": "onward.cli.evaluate:evaluate",
    "predict": "onward.cli.predict:predict",
    "web": "onward.cli.web:web",
    "upgrade": "onward.cli.upgrade:upgrade",
    "ops": "onward.cli.ops:ops",
    "scoreboard": "onward.cli.scoreboard:scoreboard",
}


def build_app(asked: str | None = None) -> typer.Typer:
    """Return the command-line application.

    `asked` is the first word of a command line. The other commands then have no options: to read and describe those
    of all commands takes longer than everything else that `onward --help` does.
    """
    import typer

    from onward.cli.help import Command, Group, description

    app = typer.Typer(
        name="onward",
        cls=Group,
        help="Forward, backward, onward: any ONNX model, trainable anywhere ONNX runs.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, target in COMMANDS.items():
        if asked in COMMANDS and asked != name:
            app.command(name)(_nothing)
            continue
        module, _, function = target.partition(":")
        command = getattr(importlib.import_module(module), function)
        app.command(name, cls=Command, help=description(command))(_nothing if asked not in (None, name) else command)

    @app.callback(invoke_without_command=True)
    def root(version: bool = typer.Option(False, "--version", metavar="", help="Print the version and exit.")) -> None:
        if version:
            from onward import __version__

            typer.echo(f"onward {__version__}")
            raise typer.Exit()

    return app


def _nothing() -> None:
    """Stand for a command that was not asked for."""


def main() -> None:
    """Run the command line; a user's mistake ends with a message and exit code 1 or 2, never with a traceback."""
    try:
        from onward.cli.console import LostOutput, forgive_stdout

        warnings.showwarning = show_warning
        forgive_stdout()
        try:
            build_app(next((word for word in sys.argv[1:] if not word.startswith("-")), ""))()
        except OnwardError as error:
            render(error)
            sys.exit(2 if isinstance(error, ModelError) else 1)
        except LostOutput as error:
            _stop(f"error: cannot print the result: {error.strerror}", 1)
    except KeyboardInterrupt:
        _stop("interrupted", 130)


def _stop(message: str, code: int) -> None:
    from onward.cli.console import stderr_console

    stderr_console().print(message, style="bold red")
    sys.exit(code)


def render(error: OnwardError) -> None:
    """Print every problem to stderr, in colour where the terminal has it."""
    from onward.cli.console import print_diagnostics, stderr_console

    print_diagnostics(error.diagnostics, stderr_console())


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning to stderr without the line of code that issued it."""
    from rich.text import Text

    from onward.cli.console import print_diagnostics, stderr_console

    diagnostic = getattr(message, "diagnostic", None)
    if diagnostic is not None:
        print_diagnostics([diagnostic], stderr_console())
    else:
        stderr_console().print(Text.assemble(("warning", "bold yellow"), f": {message}"))
