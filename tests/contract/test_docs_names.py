"""The prose of the documentation agrees with the code: its calls, keywords, commands, options and paths exist.

`test_docs_run.py` runs the fenced examples; this file reads the inline code around them. A span is checked as

    `onward.save(model, path, external_data=True)`   a call: the name exists and its signature takes the arguments
    `average=True`                                   a keyword of a call before it in the paragraph or page
    `onward train … --resume`, `--resume`            a command and its options, in fenced blocks too
    `tests/cases/<family>.py`, `passes/opset.py`     a path in the repository or in src/onward
    `onward.train.Metric`                            a name
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import importlib
import inspect
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import typer

import onward
from onward import augment, losses, optimizers, samples, schedules, testing, train
from onward.autodiff import registry
from onward.autodiff.engine import Rule
from onward.backends import Session
from onward.backends.onnxruntime.session import OnnxRuntimeSession
from onward.backends.reference.session import ReferenceSession
from onward.check import Report
from onward.cli import build_app

pytest.importorskip("torch")  # the pages name classes of the torch backend
from onward.backends.torch.convert import convert
from onward.backends.torch.module import OnnxModule
from onward.backends.torch.optimizers import GraphOptimizer
from onward.backends.torch.session import TorchSession

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/onward"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/node/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "changelog.d").glob("*.md")),
]

# What an object is called in the prose, and what it is.
OBJECTS: dict[str, Any] = {
    "losses": losses,
    "model": onward.TrainingModel,
    "module": OnnxModule,
    "optimizers": optimizers,
    "program": onward.Program,
    "report": Report,
    "rule": Rule,
    "samples": samples,
    "schedules": schedules,
    "testing": testing,
    "trainer": onward.Trainer,
    "trainer.session": Session,
}
BACKENDS = {"onnxruntime": OnnxRuntimeSession, "reference": ReferenceSession, "torch": TorchSession}
# Other libraries' names, and names that a page explains as its reader's own.
FOREIGN_ROOTS = {"DistributedDataParallel", "nn", "onnx", "op", "optax", "tf", "torch"}
FOREIGN_CALLS = {
    "DisableMemPattern",  # ONNX Runtime's C++ API
    "case",  # tests/cases
    "detach",  # a tensor's
    "module",  # an nn.Module called
    "rule",  # the reader's own optimizer
}
FOREIGN_KEYWORDS = {
    "affine=False",  # torch.nn.BatchNorm2d
    'disabled_optimizers=["MatmulTransposeFusion"]',  # onnxruntime.InferenceSession
    "momentum=None",  # torch.nn.BatchNorm2d
    "optimize=False",  # torch.onnx.export
    "parallel=True",  # numba.njit
    "track_running_stats=False",  # torch.nn.BatchNorm2d
    "training=TrainingMode.PRESERVE",  # torch.onnx.export
    "use_reentrant=False",  # torch.utils.checkpoint
}

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_COMMAND = re.compile(r"(?:^|[\s;])onward (?P<arguments>[a-z][\w-]*(?: .*)?)$")
_KEYWORD = re.compile(r"(?P<name>[a-z_]+)=(?!=).*")
_DOTTED = re.compile(r"onward(\.\w+)+")
_REPOSITORY_PATH = re.compile(r"(?<![\w/])(?:src|tests|docs|benchmarks|examples|changelog\.d)/[\w./<>*-]*")
_SOURCE_PATH = re.compile(r"[\w<>*-]+(?:/[\w<>*-]+)+(?:\.py|/)")


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A paragraph, a list item or a row of a table: the line it begins at, and its code spans."""

    line: int
    spans: tuple[str, ...]


def paragraphs(text: str) -> Iterator[Paragraph]:
    """Yield the paragraphs of a page, without its fenced blocks and comments."""
    blank = functools.partial(re.sub, r"[^\n]")
    for pattern in (_FENCE, _COMMENT):
        text = pattern.sub(lambda match: blank(" ", match.group()), text)
    begin, lines = 0, []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if not line.strip() or re.match(r"\s*(\||[-*] |\d+\. |#)", line):
            yield Paragraph(begin, _spans(lines))
            begin, lines = number, []
        lines.append(line)
    yield Paragraph(begin, _spans(lines))


def _spans(lines: list[str]) -> tuple[str, ...]:
    return tuple(" ".join(span.split()) for span in _SPAN.findall("\n".join(lines).replace("\\|", "|")))


def problems(text: str, folder: Path = ROOT) -> list[str]:
    """Return what the prose of a page says that the code does not have."""
    named = [found for block in _FENCE.findall(text) for found in _named_in_code(block[1])]
    parts = list(paragraphs(text))
    named += [found for part in parts for span in part.spans for found in _candidates(span)]
    found = []
    for part in parts:
        called: list[Callable[..., Any]] = []
        for span in part.spans:
            context = called or named or _everything()
            found += [f"line {part.line}: `{span}`: {problem}" for problem in _problems_of(span, context, folder)]
            called += _candidates(span) if _calls(span) else []
    for language, block in _FENCE.findall(text):
        if language in ("", "sh", "console"):
            for line in block.replace("\\\n", " ").splitlines():
                found += [f"{line}: {problem}" for problem in _command_problems(line.split("#")[0].rstrip())]
    return found


def _problems_of(span: str, named: list[Callable[..., Any]], folder: Path) -> Iterator[str]:
    yield from _path_problems(span, folder)
    yield from _command_problems(span)
    if span.startswith("-"):
        yield from _option_problems(span, _all_options(), "any command")
    calls = _calls(span)
    for call in calls:
        yield from _call_problems(call)
    if calls:
        return
    if _DOTTED.fullmatch(span):
        if _dotted(span) is None and not _is_metadata_key(span):
            yield "no such name"
    elif (match := _KEYWORD.fullmatch(span)) is not None:
        keyword = match["name"]
        if span not in FOREIGN_KEYWORDS and not any(_takes(c, [], [keyword]) for c in named):
            names = ", ".join(sorted({c.__qualname__ for c in named})) or "nothing"
            yield f"no parameter `{keyword}` of what is named here: {names}"


def _calls(span: str) -> list[ast.Call]:
    """Return the calls that a span shows, `f(a).g(b)` as two. `f(a, …) → Result` counts as `f(a)`."""
    text = span.split(" → ")[0].removeprefix("@")
    text = re.sub(r",\s*(?:…|\.\.\.)\)$", ")", text).replace("…", "...")
    try:
        found = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return []
    calls = []
    while isinstance(found, ast.Call | ast.Attribute):
        if isinstance(found, ast.Call):
            calls.append(found)
        found = found.func if isinstance(found, ast.Call) else found.value
    return calls[::-1] if isinstance(found, ast.Name) else []


def _name_of(call: ast.Call) -> str:
    """Return the name that is called: `onward.save`; `fit` for `Trainer(model).fit(x)`."""
    return ast.unparse(call.func).rpartition(").")[2]


def _is_metadata_key(name: str) -> bool:
    return any(f'"{name}"' in path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))


def _call_problems(call: ast.Call) -> Iterator[str]:
    name = _name_of(call)
    root, last = name.split(".")[0], name.split(".")[-1]
    if root in FOREIGN_ROOTS or name in FOREIGN_CALLS or hasattr(builtins, name) or onnx.defs.has(last):
        return
    candidates = _by_name(name)
    if not candidates:
        yield "no such function, class or method"
        return
    if any(isinstance(a, ast.Starred) for a in call.args):
        return
    arguments = [None] * len([a for a in call.args if not (isinstance(a, ast.Constant) and a.value is ...)])
    keywords = [k.arg for k in call.keywords if k.arg is not None]
    backend = next(
        (k.value.value for k in call.keywords if k.arg == "backend" and isinstance(k.value, ast.Constant)), None
    )
    if not any(_takes(c, arguments, keywords, backend) for c in candidates):
        yield f"does not fit {name}{' or '.join(sorted({str(inspect.signature(c)) for c in candidates}))}"


def _takes(
    function: Callable[..., Any], arguments: list[None], keywords: list[str], backend: str | None = None
) -> bool:
    """Return whether a function can be called with so many arguments and these keywords."""
    try:
        signature = inspect.signature(convert if function is onward.to_torch else function)
    except ValueError:  # an exception without an __init__ of its own
        return True
    if function is onward.Trainer:  # its options are those of the backend
        options = [BACKENDS[backend]] if backend in BACKENDS else BACKENDS.values()
        known = {name for session in options for name in list(inspect.signature(session).parameters)[1:]}
        if not set(keywords) <= {*signature.parameters, *known} - {"backend_options"}:
            return False
    try:
        signature.bind_partial(*arguments, **dict.fromkeys(keywords))
    except TypeError:
        return False
    return True


def _candidates(span: str) -> list[Callable[..., Any]]:
    """Return the functions that a span calls or names."""
    names = [_name_of(call) for call in _calls(span)] or [span]
    return [found for name in names if re.fullmatch(r"\w+(\.\w+)*", name) for found in _by_name(name)]


@functools.cache
def _everything() -> list[Callable[..., Any]]:
    """Return every public function and class, for a page that names none."""
    return [f for scope in _scopes() for f in vars(scope).values() if callable(f)]


def _named_in_code(block: str) -> list[Callable[..., Any]]:
    names = re.findall(r"\b\w+(?:\.\w+)*(?=\()", block)
    return [found for name in names for found in _by_name(name)]


@functools.cache
def _by_name(name: str) -> list[Callable[..., Any]]:
    """Return every public function, class or method that a name in the prose may mean."""
    if name.startswith("onward."):
        found = _dotted(name)
        return [found] if callable(found) else []
    owner, _, last = name.rpartition(".")
    if owner in OBJECTS:
        return _members(OBJECTS[owner], last)
    if owner:
        holders = [c for scope in _scopes() for c in _members(scope, owner) if inspect.isclass(c)]
        return [m for holder in holders for m in _members(holder, last)]
    classes = [c for scope in _scopes() for c in vars(scope).values() if inspect.isclass(c)]
    methods = [m for c in [*classes, Rule, Report, Session, OnnxModule] for m in _members(c, last)]
    return [f for scope in _scopes() for f in _members(scope, last)] + (methods if not last.startswith("_") else [])


@functools.cache
def _scopes() -> list[Any]:
    public = types.SimpleNamespace(**{name: getattr(onward, name) for name in onward.__all__})
    others = types.SimpleNamespace(GraphOptimizer=GraphOptimizer, Session=Session)
    return [public, augment, losses, optimizers, samples, schedules, testing, train, registry, others]


def _members(owner: Any, name: str) -> list[Callable[..., Any]]:
    found = inspect.getattr_static(owner, name, None)
    if found is None or not callable(getattr(owner, name, None)):
        return []
    bound = getattr(owner, name)
    if inspect.isclass(owner) and inspect.isfunction(found):  # a method: without `self`
        method = functools.update_wrapper(functools.partial(bound, None), bound)
        del method.__wrapped__
        return [method]
    return [bound]


def _dotted(name: str) -> Any:
    """Return what a dotted name stands for, or None."""
    parts = name.split(".")
    found: Any = onward
    for index, part in enumerate(parts[1:], start=2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[:index]))
            except ImportError:
                return None
        found = getattr(found, part)
    return found


@functools.cache
def _options() -> dict[str, set[str]]:
    """Return the options of every command."""
    commands = typer.main.get_command(build_app()).commands  # type: ignore[attr-defined]  # it is a group
    always = {"-h", "--help"}
    return {n: {o for p in c.params for o in (*p.opts, *p.secondary_opts)} | always for n, c in commands.items()}


def _all_options() -> set[str]:
    return {"--version"}.union(*_options().values())


def _command_problems(line: str) -> Iterator[str]:
    match = _COMMAND.search(line)
    if match is None:
        return
    command, _, rest = match["arguments"].partition(" ")
    if command not in _options():
        yield f"no command `{command}`"
    else:
        yield from _option_problems(rest, _options()[command], f"`onward {command}`")


def _option_problems(text: str, options: set[str], of: str) -> Iterator[str]:
    for word in re.sub(r"[\[\]()]", " ", text).split():
        option = word.split("=")[0]
        if re.fullmatch(r"--?[a-z][\w-]*", option) and option not in options:
            yield f"{option} is not an option of {of}"


def _path_problems(span: str, folder: Path) -> Iterator[str]:
    paths = _REPOSITORY_PATH.findall(span)
    if not paths and _SOURCE_PATH.fullmatch(span) and "/" in span and (span.endswith(".py") or _is_room(span)):
        paths = [span]
    for path in paths:
        fixed = path.rstrip(".")
        if re.search(r"[<*]", fixed):
            fixed = re.split(r"[<*]", fixed)[0].rpartition("/")[0]
        if not any((base / fixed).exists() for base in (ROOT, SOURCE, folder)):
            yield f"no such file or folder: {path}"


def _is_room(path: str) -> bool:
    return (SOURCE / path.split("/")[0]).is_dir()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_prose_of_a_page_agrees_with_the_code(page: Path) -> None:
    found = problems(page.read_text(encoding="utf-8"), page.parent)

    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "`to_inference(ema=True)`",
        "`to_inference(model, state)` takes weights; `ema=True` takes the averages",
        "`trainer.fit(x, y, epoch=3)`",
        "`Trainer(model, backend='torch', fused=False)`",
        "`onward.no_such_name`",
        "`onward.no_such(model)`",
        "`Adam(1e-3, beta_one=0.9)`",
        "`Cosine(rate, 10, 0, 0)`",
        "`onward trian m.onnx`",
        "`onward train m.onnx --epoch 3`",
        "```\ntorchrun -m -- onward train m.onnx \\\n    --epoch 3\n```\n",
        "`--no-such-option`",
        "`lower/statistics.py`",
        "`tests/no_such/`",
    ],
)
def test_a_mistake_in_the_prose_is_found(text: str) -> None:
    assert problems(text)


@pytest.mark.parametrize(
    "text",
    [
        "`to_inference(model, average=True)`",
        "`Trainer(model, backend='torch', shard=True)`",
        "`onward.Adam(1e-3, ema=0.999)`; `clip_norm=1.0`",
        "`fit(x, y, …) → History`",
        "`onward train m.onnx --data D --epochs 3`",
        "`tests/cases/<family>.py`",
        "`Conv(X^T, dY^T)`",
    ],
)
def test_what_is_right_is_accepted(text: str) -> None:
    assert not problems(text)
