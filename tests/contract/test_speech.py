"""The library speaks Python, the command line options: every text of a diagnostic can be said in both."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from onward.cli.speech import COMMANDS, OPTIONS, known_options, option_of, say, spoken
from onward.errors import A101, Diagnostic

SOURCE = Path(__file__).parents[2] / "src/onward"

# Their callers are in Python: no command reaches them.
ELSEWHERE = ("cli", "frontends", "testing", "backends/torch/convert.py", "backends/torch/module.py",
             "backends/tensorflow/convert.py", "backends/tensorflow/module.py")  # fmt: skip

# Arguments without an option, and why.
PYTHON_ONLY = {
    "at": "an argument of onward.surgery.cut",
    "crop": "the text of an augmentation, which is the same in both",
    "external_data": "a command saves as one file, or beside it where that is too large",
    "mode": "an argument of a callback of the caller; those of the command line know their direction",
    "num_workers": "an argument of PyTorch's DataLoader",
    "old_classes": "an argument of onward.surgery.replace_head",
    "shuffle": "only shuffle=False occurs, which is --no-shuffle",
    "white": "an argument of an augmentation of the caller",
    "keepdims": "an argument of an ONNX operator in a function of the caller",
    "return_inverse": "an argument of numpy",
    "state": "arrays of the caller",
    "y": "arrays of the caller",
}
SPEAKERS = {"Diagnostic", "unknown_name", "check_name", "check_names", "as_whole", "whole", "check_path", "no_match"}


def texts() -> Iterator[tuple[str, str]]:
    """Yield (place, text) for each text of a diagnostic, and for those that a function of hints returns."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith(ELSEWHERE):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = isinstance(node, ast.Call) and getattr(node.func, "id", "") in SPEAKERS
            if called or (isinstance(node, ast.FunctionDef) and "hint" in node.name):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.JoinedStr):
                        parts = [v.value if isinstance(v, ast.Constant) else "…" for v in inner.values]
                        yield f"{name}:{inner.lineno}", "".join(parts)
                    elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                        yield f"{name}:{inner.lineno}", inner.value


def test_every_argument_of_a_message_has_an_option_or_a_reason() -> None:
    found = {(name, place) for place, text in texts() for name in re.findall(r"(?<![\w.-])([a-z_]+)=", text)}

    assert [f for f in sorted(found) if option_of(f[0]) is None and f[0] not in PYTHON_ONLY] == []
    assert set(PYTHON_ONLY) <= {name for name, _ in found}
    assert [name for name in PYTHON_ONLY if option_of(name)] == []


def test_no_message_of_the_library_speaks_of_options() -> None:
    wrong = [(place, text) for place, text in texts() if re.search(r"(?<![\w-])--[a-z]", text)]

    assert [w for w in wrong if "pip install" not in w[1]] == []


def test_every_option_of_the_tables_exists() -> None:
    options = {option.split()[0] for option in [*OPTIONS.values(), *COMMANDS.values()]}

    assert sorted(o for o in options if o.startswith("-") and o not in known_options()) == []


@pytest.mark.parametrize(
    ("python", "shell"),
    [
        ("output=", "--on"),
        ("batch_size=32", "--batch-size 32"),
        ('pass batch_norm="freeze"', "pass --batch-norm freeze"),
        ("try backend='torch' or backend='reference'", "try --backend torch or --backend reference"),
        ('freeze them with freeze=["a", "b c"], or', "freeze them with --freeze a --freeze 'b c', or"),
        ("columns={'x': 'a,b,c'}", "--column x=a,b,c"),
        ("columns={'x': '…'}", "--column x=…"),
        ("or train with Preparation(missing={'a b': 'median'})", "or train with --missing 'a b=median'"),
        ("correct them, or train with Preparation(unknown='ignore')", "correct them, or train with --unknown ignore"),
        ("with one_hot=True", "with --one-hot"),
        ("shuffle=False", "--no-shuffle"),
        ('reduction="mean" or "sum"', '--set-loss reduction=mean or "sum"'),
        ("make it: losses.CrossEntropy(ignore_index=-1)", "make it: --set-loss ignore_index=-1"),
        ("a model of make_trainable(..., dequantize=True)", "a model of onward make-trainable --dequantize"),
        ("choose with train=, or freeze= the others", "choose with --train, or --freeze the others"),
        # Only Python can say these.
        ('label={"labels": ("int64", ["N"])}', 'label={"labels": ("int64", ["N"])}'),
        ("np.unique(names, return_inverse=True)[1]", "np.unique(names, return_inverse=True)[1]"),
        # Names of a user are left alone.
        ("there is no file `loss=3.onnx`", "there is no file `loss=3.onnx`"),
        ("`seed=/data`", "`seed=/data`"),
        ("`f(x)` and 3 (three)", "`f(x)` and 3 (three)"),
    ],
)
def test_a_text_is_said_in_options(python: str, shell: str) -> None:
    assert say(python) == shell


def test_an_argument_at_the_beginning_is_an_option_too() -> None:
    assert spoken(Diagnostic(A101, "batch_size is 0")).message == "--batch-size is 0"
    assert spoken(Diagnostic(A101, "epsilon is 0")).message == "epsilon is 0"
