"""The command line: one file per command, each thin. This one puts them together and renders errors for a human."""

from __future__ import annotations

import importlib
import sys
import warnings

import typer
from rich.text import Text

from onward.cli.console import print_diagnostics, stderr_console
from onward.errors import ModelError, OnwardError

# command -> (module, function). Imported when the program starts: each is thin and imports its work lazily.
COMMANDS = {
    "sample": "onward.cli.sample:sample",
    "check": "onward.cli.check:check",
    "show": "onward.cli.show:show",
    "make-trainable": "onward.cli.make_trainable:make_trainable",
    "strip": "onward.cli.strip:strip",
    "grad": "onward.cli.grad:grad",
    "compile": "onward.cli.compile:compile_command",
    "train": "onward.cli.train:train",
    "evaluate": "onward.cli.evaluate:evaluate",
    "upgrade": "onward.cli.upgrade:upgrade",
    "ops": "onward.cli.ops:ops",
}


def build_app() -> typer.Typer:
    """Return the command-line application."""
    app = typer.Typer(
        name="onward",
        help="Forward, backward, onward: any ONNX model, trainable anywhere ONNX runs.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, target in COMMANDS.items():
        module, _, function = target.partition(":")
        app.command(name)(getattr(importlib.import_module(module), function))

    @app.callback(invoke_without_command=True)
    def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
        if version:
            from onward import __version__

            typer.echo(f"onward {__version__}")
            raise typer.Exit()

    return app


def main() -> None:
    """Run the command line; a user's mistake ends with a message and exit code 1 or 2, never with a traceback."""
    warnings.showwarning = show_warning
    try:
        build_app()()
    except OnwardError as error:
        render(error)
        sys.exit(2 if isinstance(error, ModelError) else 1)
    except KeyboardInterrupt:
        stderr_console().print("interrupted", style="bold red")
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has gone (`onward show m.onnx | head`): nothing is wrong.
        sys.stderr.close()
        sys.exit(0)


def render(error: OnwardError) -> None:
    """Print every problem to stderr, in colour where the terminal has it."""
    print_diagnostics(error.diagnostics, stderr_console())


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning to stderr as a person reads it: without the line of our code that gave it."""
    diagnostic = getattr(message, "diagnostic", None)
    if diagnostic is not None:
        print_diagnostics([diagnostic], stderr_console())
    else:
        stderr_console().print(Text.assemble(("warning", "bold yellow"), f": {message}"))
