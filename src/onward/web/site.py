"""The files of a site: the page, the program, onnxruntime-web, and `site.json` with the checksum of each of them."""

from __future__ import annotations

import dataclasses
import hashlib
import html
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.compiler.compile import compile_model
from onward.compiler.package import manifest_text
from onward.compiler.program import Program
from onward.errors import Diagnostic, ModelError
from onward.storage.atomic import remove, write_directory
from onward.storage.checkpoints import is_run
from onward.storage.foreign import refuse_files
from onward.storage.tensor_file import read_tensor_file, tensor_file_chunks
from onward.train.data import Data
from onward.train.data.preparation import Preparation
from onward.train.stored_model import StoredModel
from onward.train.trainer import Trainer
from onward.web.describe import describe, prepared_program
from onward.web.examples import take_examples
from onward.web.runtime import MODULE, WASM, Runtime

M410 = "M410"
FORMAT = "onward-site"
MODULE_FILE = "onward-train.mjs"
# Nothing may be loaded from, or sent to, another place. A worker that a blob starts is bound by this too.
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; worker-src 'self' blob:; manifest-src 'self'; base-uri 'none'; form-action 'none'"
)
_STATIC = Path(__file__).parent / "static"
_FILLED = ("index.html", "sw.js")  # they hold the checksum of site.json, so site.json cannot hold theirs
_NAMES_OF_EXPORTERS = {
    *("", "torch_jit_export", "torch_jit", "main_graph", "maingraph", "graph", "model", "tf2onnx", "sub_graph"),
    *("model from paddlepaddle.", "paddlepaddle graph in pir mode", "spox_graph", "lgbm"),
}


@dataclasses.dataclass(frozen=True)
class Site:
    """The content of a site: `files` by name, what the page knows (`about`), and notes for who builds it."""

    files: dict[str, bytes]
    about: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of bytes of all files."""
        return sum(map(len, self.files.values()))


def build_site(
    source: Path | Program,
    runtime: Runtime,
    *,
    title: str = "",
    data: Data | None = None,
    examples: int = 1000,
    change: Callable[[Preparation], Preparation] | None = None,
    classes: Sequence[str] = (),
) -> Site:
    """Return the site for a training model, the directory of a run, or a program.

    Args:
        source: what `onward compile` takes, or what it wrote.
        runtime: onnxruntime-web.
        title: the heading of the page; the name of the model by default.
        data: training data, of which at most `examples` samples come with the page.
        change: changes how pixels and numbers are prepared.
        classes: the names of the classes, instead of those of the model.

    Raises:
        ArgumentError: a page cannot train the program.
        DataError: the data does not fit it.
    """
    program, notes = prepared_program(_program(source), change, classes)
    about = describe(program, title or _title(source, program))
    files = {path.name: path.read_bytes() for path in sorted(_STATIC.iterdir()) if path.name not in _FILLED}
    files[MODULE_FILE] = module_file().read_bytes()
    files |= {f"program/{name}": content for name, content in _program_files(program).items()} | runtime.files()
    if data is not None:
        content, about["examples"] = take_examples(program, data, examples)
        files[about["examples"]["file"]] = content
    about["program"] = _digest(files["program/manifest.json"])
    about["runtime"] = {"version": runtime.version, "module": f"ort/{MODULE}", "wasm": f"ort/{WASM}"}
    about["files"] = {name: {"sha256": _digest(c), "bytes": len(c)} for name, c in sorted(files.items())}
    about["bytes"] = sum(map(len, files.values()))
    files["site.json"] = (json.dumps(about, indent=1, allow_nan=False) + "\n").encode()
    words = {"@SITE@": _digest(files["site.json"]), "@POLICY@": POLICY, "@TITLE@": html.escape(about["title"])}
    for name in reversed(_FILLED):  # the page comes last
        text = (_STATIC / name).read_text(encoding="utf-8")
        for mark, word in words.items():
            text = text.replace(mark, word)
        files[name] = text.encode()
    return Site(files, about, tuple(notes))


def write_site(site: Site, directory: Path) -> None:
    """Write the site to `directory`, all files or none. An earlier site there is replaced, anything else is refused.

    Raises:
        ModelError: the directory holds other files, or cannot be written.
    """
    try:
        old = _refuse_foreign(directory) if directory.is_dir() else set()
        write_directory(directory, site.files)
        for name in sorted(old - set(site.files)):
            remove(directory / name)
    except FileExistsError as error:
        raise ModelError(Diagnostic(M410, f"`{directory}` is a file", needed="a directory for the site")) from error
    except OSError as error:
        raise ModelError(
            Diagnostic(M410, f"cannot write the site to `{directory}`: {error.strerror or error}")
        ) from error


def is_site(directory: Path) -> bool:
    """Return whether a directory holds a site that `write_site` wrote."""
    return _read_about(directory) is not None


def module_file() -> Path:
    """Return the trainer in JavaScript: in an installed package beside the page, in a checkout in js/src."""
    installed = _STATIC / MODULE_FILE
    return installed if installed.is_file() else Path(__file__).parents[3] / "js/src" / MODULE_FILE


def _title(source: Path | Program, program: Program) -> str:
    """Return the name of the model; if an exporter chose it, that of the file."""
    name = str(program.metadata.get("name") or "")
    if name.replace("-", "_").lower() not in _NAMES_OF_EXPORTERS or not isinstance(source, Path) or source.is_dir():
        return name
    return source.name.removesuffix(".onnx").removesuffix(".train")


def _program(source: Path | Program) -> Program:
    if isinstance(source, Program):
        return source
    if source.is_dir() and not is_run(source):
        return Program.load(source)
    if source.is_dir() and (stored := StoredModel.of(source)).model is None:
        return stored.program  # the run trains a program
    return compile_model(source, profile="portable")


def _program_files(program: Program) -> dict[str, bytes]:
    """Return the files that the manifest names, and the manifest. Zeros that initialize.onnx makes are left out."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "program"
        program.save(folder)
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        named = [g["file"] for g in manifest["graphs"].values()]
        named += [manifest[part]["file"] for part in ("state", "self_test") if part in manifest]
        files = {name: (folder / name).read_bytes() for name in named}
        state, data = read_tensor_file(folder / manifest["state"]["file"])
    made = _made_by_initialization(program, state)
    if made:
        kept = {name: array for name, array in state.items() if name not in made}
        files[manifest["state"]["file"]] = b"".join(tensor_file_chunks(kept, data))
        manifest["state"]["sha256"] = _digest(files[manifest["state"]["file"]])
    return {**files, "manifest.json": manifest_text(manifest).encode()}


def _made_by_initialization(program: Program, state: dict[str, np.ndarray]) -> set[str]:
    """Return the states of zeros, such as the moments of Adam, that the initialisation makes exactly so."""
    zeros = {name for name, array in state.items() if array.size > 1 and not array.tobytes().strip(b"\0")}
    if program.initialize_graph is None or not zeros & set(program.initialize_graph.replaces.values()):
        return set()
    trainer = Trainer(program)
    trainer.initialize()
    initial = trainer.state
    made = zeros & set(program.initialize_graph.replaces.values())
    return {name for name in made if np.asarray(initial[name]).tobytes() == state[name].tobytes()}


def _refuse_foreign(directory: Path) -> set[str]:
    """Return the files of the site in a directory; raise if it holds something else."""
    about = _read_about(directory)
    if about is None:
        refuse_files(directory, M410, "site")
        return set()
    own = {str(name) for name in about["files"]}
    return {name for name in own if (directory / name).resolve().is_relative_to(directory.resolve())}


def _read_about(directory: Path) -> dict[str, Any] | None:
    try:
        about = json.loads((directory / "site.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no file, or another kind of file
        return None
    right = isinstance(about, dict) and about.get("format") == FORMAT and isinstance(about.get("files"), dict)
    return about if right else None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
