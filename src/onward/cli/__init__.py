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

# command -> (module and function, its help in one paragraph: the list of commands is printed without loading them).
COMMANDS = {
    "sample": ("onward.cli.sample:sample", "Write a ready-made training model: the same bytes on every machine."),
    "check": ("onward.cli.check:check", "Check a model, its training graphs included, against the ONNX standard."),
    "doctor": (
        "onward.cli.doctor:doctor",
        "Say what can be done with a file: whether it runs, where its weights are, what would be trained, "
        "what blocks it.",
    ),
    "show": ("onward.cli.show:show", "Show what a model is: inputs, weights, loss, optimizer, bindings, operators."),
    "make-trainable": (
        "onward.cli.make_trainable:make_trainable",
        "Add a loss, its gradient and an optimizer to a model: the result is one standard ONNX training file.",
    ),
    "convert": (
        "onward.cli.convert:convert",
        "Convert a Keras model or a SavedModel, with its loss, optimizer and state, to a training model; or "
        "the other way.",
    ),
    "strip": (
        "onward.cli.strip:strip",
        "Write the inference model alone: the same names and outputs, the current weights, no training information.",
    ),
    "grad": (
        "onward.cli.grad:grad",
        "Write the model with outputs grad/NAME: the derivative of OF with respect to each WRT, in plain "
        "ONNX operators.",
    ),
    "compile": (
        "onward.cli.compile:compile_command",
        "Compile a training model to plain ONNX graphs that any runtime can train with.",
    ),
    "export": (
        "onward.cli.export:export",
        "Write a model as MLIR text, for onnx-mlir, IREE and other compilers; `onward import` reads it back.",
    ),
    "import": (
        "onward.cli.import_:import_command",
        "Read an MLIR text of `onward export`, onnx-mlir or IREE's importer, and write it as an ONNX model.",
    ),
    "train": (
        "onward.cli.train:train",
        "Train a model. A plain inference model is made trainable first; what is chosen for it is printed.",
    ),
    "profile": (
        "onward.cli.profile:profile",
        "Say where the time of a training step goes: by phase, and by layer with its backward.",
    ),
    "evaluate": ("onward.cli.evaluate:evaluate", "Print the loss and the metrics of a model over some data."),
    "predict": (
        "onward.cli.predict:predict",
        "Write the class of each sample with its probability, or the numbers that the model gives.",
    ),
    "web": (
        "onward.cli.web:web",
        "Write a website on which the model trains: draw, use the camera, or fill in a form. Nothing leaves the page.",
    ),
    "upgrade": (
        "onward.cli.upgrade:upgrade",
        "Convert ONNX 1.7 training files (GraphCall) and old operator sets: all graphs together, nothing dropped.",
    ),
    "ops": (
        "onward.cli.ops:ops",
        "List every operator of the standard with the condition of each input and what its tests cover.",
    ),
    "scoreboard": (
        "onward.cli.scoreboard:scoreboard",
        "Run tests against backends, print a table, and write a page with every result.",
    ),
}


def build_app(asked: str | None = None) -> typer.Typer:
    """Return the command-line application.

    `asked` is the first word of a command line. The other commands are then not loaded: that takes half as long as
    everything else that `onward --help` does.
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
    for name, (target, summary) in COMMANDS.items():
        if asked not in (None, name):
            app.command(name, help=summary)(_nothing)
            continue
        module, _, function = target.partition(":")
        command = getattr(importlib.import_module(module), function)
        app.command(name, cls=Command, help=description(command))(command)

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
