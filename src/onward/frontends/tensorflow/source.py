"""What `from_tensorflow` is given: a module, a function or a SavedModel, as one function in two modes."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from onward.errors import ArgumentError, Diagnostic, OnwardError
from onward.frontends.tensorflow import versions

A260 = "A260"
A261 = "A261"

_MODES = ("training", "is_training")
_KERAS_HINT = "onward.from_keras(model): it captures loss, optimizer and layers in training mode too"


@dataclasses.dataclass
class Source:
    """A function of tensors in both modes, its name, and the object that owns its variables.

    `parameters` are the names of its positional arguments; `signature` is what it declares to take, if it does.
    """

    infer: Callable[..., Any]
    train: Callable[..., Any]
    name: str
    root: Any
    parameters: list[str]
    signature: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    by_name: bool = False

    def prepare(self, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        """Call a module once that has no variables yet: some make them in their first call."""
        if isinstance(self.root, tf.Module) and not self.root.variables:
            args, kwargs = inputs
            with user_errors(self.name):
                self.infer(*args, **kwargs)


def read_source(given: Any, training: Any) -> Source:
    """Return what is to be captured.

    Raises:
        ArgumentError: it is a Keras model, or nothing that can be called.
    """
    root, name = given, "module"
    if isinstance(given, str | os.PathLike):
        root, name = _load(Path(given)), f"SavedModel `{Path(given).name}`"
        given = _entry_point(root, name)
    _refuse_keras(given)
    if not callable(given) or isinstance(given, type):
        raise ArgumentError(
            Diagnostic(
                A260,
                "from_tensorflow takes something that can be called",
                place="module",
                found=f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__qualname__}",
                needed="a tf.Module with __call__, a tf.function, a concrete function, or the path of a SavedModel",
                hint="call the class first" if isinstance(given, type) else "pass the method that computes the outputs",
            )
        )
    if name == "module":
        name = f"function `{_name(given)}`" if not isinstance(given, tf.Module) else f"module `{type(given).__name__}`"
    source = _bound(given, root, name)
    if training is not None:
        if not callable(training):
            raise ArgumentError(
                Diagnostic(A260, "training= is not a function", place="training=", found=repr(training)[:100])
            )
        source.train = _bound(training, root, name).train
    return source


def _refuse_keras(given: Any) -> None:
    owner = getattr(given, "__self__", None)
    for thing in (given, owner):
        if thing is not None and versions.is_keras(thing):
            raise ArgumentError(
                Diagnostic(
                    A260,
                    "this is a Keras model",
                    place="module",
                    found=f"a {type(thing).__module__.split('.')[0]} {type(thing).__name__}",
                    needed="a tf.Module, a tf.function or a SavedModel that is not Keras",
                    hint=_KERAS_HINT,
                )
            )


def _load(path: Path) -> Any:
    if not (path / "saved_model.pb").is_file():
        raise ArgumentError(
            Diagnostic(
                A260,
                f"`{path}` is not a SavedModel" if path.exists() else f"there is no folder `{path}`",
                place="module",
                needed="a folder with saved_model.pb, as tf.saved_model.save writes it",
            )
        )
    try:
        loaded = tf.saved_model.load(str(path))
    except Exception as error:  # TensorFlow raises many types for a damaged file
        raise ArgumentError(
            Diagnostic(
                A260,
                f"TensorFlow cannot load the SavedModel: {type(error).__name__}: {_first_line(error)}",
                place=f"`{path}`",
            )
        ) from error
    if (path / "keras_metadata.pb").exists() or versions.is_keras_export(loaded):
        raise ArgumentError(
            Diagnostic(
                A260,
                "this SavedModel was written by Keras: its training mode, loss and optimizer are not in it",
                place=f"`{path}`",
                needed="the Keras model itself, or its .keras file",
                hint=_KERAS_HINT.replace("model", "'model.keras'", 1),
            )
        )
    return loaded


def _entry_point(loaded: Any, name: str) -> Any:
    """Return what a SavedModel computes: its __call__, or its signature."""
    if callable(loaded):
        return loaded
    signatures = dict(getattr(loaded, "signatures", {}))
    chosen = signatures.get("serving_default") or (next(iter(signatures.values())) if len(signatures) == 1 else None)
    if chosen is None:
        raise ArgumentError(
            Diagnostic(
                A260,
                "the SavedModel has no function to capture",
                place=name,
                found=f"signatures: {', '.join(signatures)}" if signatures else "no signature",
                needed="a __call__, or the signature `serving_default`",
                hint="load it with tf.saved_model.load, and pass one of its functions",
            )
        )
    return chosen


def _name(function: Any) -> str:
    inner = versions.python_function(function) or function
    return str(getattr(inner, "__name__", None) or type(function).__name__)


def _bound(given: Any, root: Any, name: str) -> Source:
    """Return both modes of a function: the argument `training` or `is_training`, where it has one."""
    function = given.__call__ if not _is_function(given) else given
    owner = getattr(given, "__self__", None)
    root = root if not _is_function(root) or owner is None else owner
    if versions.is_concrete(given):
        args, kwargs = given.structured_input_signature
        names = [str(getattr(s, "name", None) or f"x.{i}") for i, s in enumerate(tf.nest.flatten(args))]
        by_name = not tf.nest.flatten(args)
        return Source(given, given, name, root, names, (args, kwargs), by_name)
    parameters = versions.parameter_names(function)
    if not versions.is_tf_function(function):
        given = tf.function(function)  # so that `if` and `for` over tensors work, as in a tf.function of the user
    mode = next((m for m in _MODES if m in parameters), None)
    signature = versions.declared_signature(function)
    plain = [p for p in parameters if p != mode and p != "self"]
    if mode is None:
        return Source(given, given, name, root, plain, signature)

    def infer(*args: Any, **kwargs: Any) -> Any:
        return given(*args, **{**kwargs, mode: False})

    def train(*args: Any, **kwargs: Any) -> Any:
        return given(*args, **{**kwargs, mode: True})

    return Source(infer, train, name, root, plain, signature)


def _is_function(given: Any) -> bool:
    return versions.is_concrete(given) or versions.is_tf_function(given) or inspect.isroutine(given)


FIXED = "if it needs a fixed batch size, pass dynamic=False"


@contextlib.contextmanager
def user_errors(what: str, hint: str = "") -> Iterator[None]:
    """Turn any exception of the user's code into an ArgumentError with its place."""
    try:
        yield
    except OnwardError:
        raise
    except Exception as error:  # a function of the user may raise any type
        raise ArgumentError(
            Diagnostic(
                A261,
                f"{what} fails on the example: {type(error).__name__}: {_first_line(error)}",
                place=_place_of(error) or what,
                hint=hint,
            )
        ) from error


def _first_line(error: BaseException) -> str:
    """Return the line of a message that says what is wrong: TensorFlow puts lists of files around it."""
    noise = ("File ", "^", "~", "[[", "Graph execution error", "Detected at node", "in user code", "<stack traces")
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [line for line in lines if line and not line.startswith(noise)]
    last = telling[-1] if telling else ""
    chosen = last if "Error" in last or "Graph execution error:" in lines else telling[0] if telling else ""
    return chosen.removeprefix(f"{type(error).__name__}: ")[:300]


def _place_of(error: BaseException) -> str:
    """Return the last line of the user's code in a traceback."""
    found = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if _is_users(frame.filename) and frame.line:
            found = f"{os.path.basename(frame.filename)} line {frame.lineno}: {frame.line}"
    for file, line, code in re.findall(r'File "(.+?)", line (\d+), in .+\n\s*(.*)', str(error)):
        if _is_users(file) and not code.startswith("File "):  # code that was converted for graphs is only here
            found = f"{os.path.basename(file)} line {line}: {code}"
    return found


def _is_users(file: str) -> bool:
    library = (f"{os.sep}onward{os.sep}frontends", "site-packages", "__autograph_generated_file", "contextlib.py", "<")
    return not any(part in file for part in library)


# -- structures --------------------------------------------------------------------------------------------------------


def leaf_paths(structure: Any, prefix: str) -> list[str]:
    """Return a name for each tensor of a structure, in TensorFlow's order.

    >>> leaf_paths({"b": 1, "a": (2, 3)}, "x")
    ['x.a.0', 'x.a.1', 'x.b']
    """
    if isinstance(structure, Mapping):
        return [name for key in sorted(structure) for name in leaf_paths(structure[key], f"{prefix}.{key}")]
    if isinstance(structure, Sequence) and not isinstance(structure, str | bytes):
        return [name for i, part in enumerate(structure) for name in leaf_paths(part, f"{prefix}.{i}")]
    return [prefix] if structure is not None else []


def input_names(source: Source, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Return the names of the inputs: those of the function's arguments."""
    names = []
    for index, argument in enumerate(args):
        names += leaf_paths(argument, source.parameters[index] if index < len(source.parameters) else f"x.{index}")
    for key in sorted(kwargs):
        names += leaf_paths(kwargs[key], key)
    return names


def output_names(structure: Any) -> list[str]:
    """Return the names of the outputs: `output`, or keys and places of a structure."""
    if not isinstance(structure, Mapping | list | tuple):
        return ["output"]
    names = leaf_paths(structure, "output")
    keyed = isinstance(structure, Mapping)
    return [n.removeprefix("output.") if keyed else n for n in names]
