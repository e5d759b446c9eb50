"""Write and read a `Program` as a directory: graphs, state, manifest and a README with the training loop.

step.onnx …          one per training entry (`step.onnx`, or `step-<entry>.onnx` if there are several)
evaluate.onnx        loss and outputs, no update
infer.onnx           the inference graph, parameters as inputs
initialize.onnx      the initial state from a random key
state.safetensors    the state to start from
self_test.safetensors  one batch; the manifest says what a step makes of it
manifest.json        what to feed, what comes out, which output replaces which state (docs/program_format.md)
README.md            the loop in Python, JavaScript, C#, Swift, C, C++, Rust and Java
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.autodiff.profile import DEFAULT
from onward.compiler.make_self_test import NoSelfTestWarning, make_self_test
from onward.compiler.package_readme import readme
from onward.compiler.program import Entry, PlainGraph, Program, TensorSpec, total_names
from onward.compiler.self_test import FILE, SelfTest
from onward.errors import ArgumentError, Diagnostic, ModelError
from onward.graph import shapes
from onward.model.readings import Reading
from onward.model.roles import PROGRAM_STATE, RANDOM_KEY, RANDOM_STEP, averages_by_name, learning_rates_by_name
from onward.model.serde import from_proto, read_proto, serialize
from onward.passes.recompute.settings import Estimate, Recompute, Store, Stored, read_recompute, read_store
from onward.runtime import evaluate
from onward.storage.atomic import write_directory
from onward.storage.foreign import refuse_files
from onward.storage.tensor_file import Damaged, read_tensor_bytes, read_tensor_file, tensor_file_chunks

FORMAT = "onward-program"
VERSION = 1

M400 = "M400"

_ZEROS = "0" * 64


def write_program(
    program: Program,
    directory: str | os.PathLike[str],
    *,
    self_test: Mapping[str, Any] | bool = True,
    native: tuple[Mapping[str, bytes], Mapping[str, Any]] | None = None,
) -> None:
    """Write `program` to `directory`, which is created if absent: all files, or none. The manifest comes last.

    `native` are binaries of the graphs, and what the manifest says of them.
    """
    folder = Path(directory)
    files, manifest = _files(program)
    if native is not None:
        files.update(native[0])
        manifest["native"] = native[1]
    if (test := _make_self_test(program, self_test)) is not None:
        files[FILE] = b"".join(bytes(c) for c in tensor_file_chunks(test.batch, {}))
        digest = hashlib.sha256(files[FILE]).hexdigest()
        manifest["self_test"] = {"file": FILE, "sha256": digest, "entries": test.described()}
    try:
        if folder.is_dir():
            _refuse_foreign(folder)
        files["README.md"] = readme(manifest).encode()
        files["manifest.json"] = manifest_text(manifest).encode()
        write_directory(folder, files)
    except FileExistsError as error:
        raise ModelError(
            Diagnostic(M400, f"`{folder}` is a file", needed="a directory to write the program to")
        ) from error
    except OSError as error:
        raise ModelError(
            Diagnostic(M400, f"cannot write the program to `{folder}`: {error.strerror or error}")
        ) from error


def _files(program: Program) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return the content of every file but the manifest and the README, and the manifest."""
    files = {file: serialize(graph.proto()) for file, (_, graph) in graph_files(program).items()}
    files["state.safetensors"] = b"".join(bytes(c) for c in tensor_file_chunks(program.state, {}))
    return files, build_manifest(program, {name: hashlib.sha256(data).hexdigest() for name, data in files.items()})


def _make_self_test(program: Program, wanted: Mapping[str, Any] | bool) -> SelfTest | None:
    """Return the self-test to write. It is always made anew, because the state may be another than the one read."""
    if wanted is False or not program.entries:
        return None
    if wanted is not True:
        return make_self_test(program, wanted)
    try:
        return make_self_test(program, None if program.self_test is None else program.self_test.batch)
    except ArgumentError as error:
        warnings.warn(NoSelfTestWarning(error), stacklevel=4)
        return None


def _refuse_foreign(folder: Path) -> None:
    """Raise if the folder contains files but no program, so that other files are not overwritten."""
    if not is_program(folder):
        refuse_files(folder, M400, "program")


def is_program(path: str | os.PathLike[str]) -> bool:
    """Return whether `path` is a directory with a program, damaged or not."""
    manifest = Path(path) / "manifest.json"
    try:
        return f'"{FORMAT}"' in manifest.read_text(errors="replace")
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return False


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """Return the text of manifest.json. Its first field is the sha256 of the text with this field set to zeros."""
    body = {"sha256": _ZEROS, **{key: value for key, value in manifest.items() if key != "sha256"}}
    text = json.dumps(body, indent=2) + "\n"
    return text.replace(_ZEROS, hashlib.sha256(text.encode()).hexdigest(), 1)


def _read_manifest(folder: Path) -> dict[str, Any]:
    text = (folder / "manifest.json").read_text(encoding="utf-8")
    manifest: dict[str, Any] = json.loads(text)
    stated = manifest.get("sha256")  # a program of an earlier version has none
    if stated is not None and hashlib.sha256(text.replace(stated, _ZEROS, 1).encode()).hexdigest() != stated:
        raise _damaged(folder, "`manifest.json` was changed after compiling")
    return manifest


def read_program(directory: str | os.PathLike[str]) -> Program:
    """Return the program that `write_program` wrote, after verifying every file.

    Raises:
        ModelError: a file is missing or was changed.
    """
    folder = Path(directory)
    try:
        manifest = _read_manifest(folder)
        if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
            raise _damaged(folder, f"the manifest is not of format {FORMAT} {VERSION}")
        graphs = {}
        for role, graph in manifest["graphs"].items():
            data = (folder / _plain_name(folder, graph["file"])).read_bytes()
            if hashlib.sha256(data).hexdigest() != graph["sha256"]:
                raise _damaged(folder, f"`{graph['file']}` was changed after compiling")
            graphs[role] = data
        for file, digest in _native_files(manifest).items():
            if hashlib.sha256((folder / _plain_name(folder, file)).read_bytes()).hexdigest() != digest:
                raise _damaged(folder, f"`{file}` was changed after compiling")
        state, _ = read_tensor_file(folder / "state.safetensors")
        return dataclasses.replace(_program(manifest, graphs, state), self_test=_read_self_test(folder, manifest))
    except OSError as error:
        raise _damaged(folder, f"{error.strerror}: {Path(error.filename or '').name}") from error
    except (ValueError, KeyError, TypeError, AttributeError, Damaged) as error:
        if isinstance(error, ModelError):
            raise
        raise _damaged(folder, str(error)) from error


def _native_files(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the files that belong to the binaries of a native program, each with its sha256."""
    native = manifest.get("native")
    if native is None:
        return {}
    files = {file: digest for graph in native["graphs"].values() for file, digest in graph["files"].items()}
    return {**files, native["arguments"]["file"]: native["arguments"]["sha256"]}


def _read_self_test(folder: Path, manifest: Mapping[str, Any]) -> SelfTest | None:
    """Return the self-test; None for a program that has none, as those of earlier versions."""
    stored = manifest.get("self_test")
    if stored is None:
        return None
    data = (folder / _plain_name(folder, stored["file"])).read_bytes()
    if hashlib.sha256(data).hexdigest() != stored["sha256"]:
        raise _damaged(folder, f"`{stored['file']}` was changed after compiling")
    test = SelfTest.read(read_tensor_bytes(data)[0], stored["entries"])
    known = {t["name"] for t in manifest["state"]["tensors"]}
    if not set(test.entries) <= set(manifest["entries"]) or any(set(e.state) - known for e in test.entries.values()):
        raise _damaged(folder, "the self-test is of another program")
    return test


def pack_program(program: Program) -> bytes:
    """Return the files of a program as one tensor file, for a checkpoint directory.

    It has no self-test, which belongs to the state at the start of a run.
    """
    files, manifest = _files(program)
    tensors = {f"file/{name}": np.frombuffer(data, dtype=np.uint8) for name, data in files.items()}
    return b"".join(tensor_file_chunks(tensors, {"manifest": manifest}))


def unpack_program(content: bytes) -> Program:
    """Return the program that `pack_program`, of this or an earlier version, packed."""
    tensors, data = read_tensor_bytes(content)
    if "manifest" not in data:
        return _unpack_first_version(tensors, data)
    manifest = data["manifest"]
    graphs = {role: tensors[f"file/{graph['file']}"].tobytes() for role, graph in manifest["graphs"].items()}
    state, _ = read_tensor_bytes(tensors["file/state.safetensors"].tobytes())
    return _program(manifest, graphs, state)


def _unpack_first_version(tensors: Mapping[str, np.ndarray], data: Mapping[str, Any]) -> Program:
    """Return a program that was packed by the first version, without a manifest."""

    def group(prefix: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}

    state, settings = group("state/"), group("settings/")
    entries = [part["name"] for part in data["parts"]["step"]]
    graphs = {
        name.replace("/", ":", 1) if "/" in name else name: array.tobytes() for name, array in group("graph/").items()
    }
    described: dict[str, Any] = {role: {"outputs": []} for role in graphs}
    for kind, parts in data["parts"].items():
        for part in parts:
            outputs = [{"name": n, "role": "output"} for n in part["outputs"]]
            for output in outputs:
                if output["name"] in part["gradient_of"]:
                    output["gradient_of"] = dict(zip("yx", part["gradient_of"][output["name"]], strict=True))
            outputs += [{"name": n, "role": "state", "replaces": s} for n, s in part["replaces"].items()]
            described[f"{kind}:{part['name']}"]["outputs"] = outputs
    manifest = {
        **{key: data[key] for key in ("inputs", "targets", "totals")},
        "name": data["metadata"].get("name", ""),
        "entries": entries,
        "graphs": described,
        "settings": {n: {"default": v, "dtype": v.dtype, "shape": v.shape} for n, v in settings.items()},
        "state": {"tensors": [{"name": n, "trained": n in data["parameters"]} for n in state]},
    }
    return _program(manifest, graphs, state)


def build_manifest(program: Program, hashes: Mapping[str, str]) -> dict[str, Any]:
    """Return the manifest: everything a loop in another language needs to know."""
    kinds = _input_roles(program)
    graphs: dict[str, Any] = {}
    for file, (role, graph) in graph_files(program).items():
        graphs[role] = {
            "file": file,
            "sha256": hashes[file],
            "inputs": [{**_info(v), "role": kinds.get(v.name or "", "data")} for v in graph.model.graph.inputs],
            "outputs": [{**_info(v), **_output_role(v, role, graph, program)} for v in graph.model.graph.outputs],
        }
    every = [graph for _, graph in graph_files(program).values()]
    average_of = {state: parameter for parameter, state in program.averages.items()}
    scale_of = {entry.loss_scale: name for name, entry in program.entries.items()}
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": str(program.metadata.get("name", "")),
        "opset": max(graph.opset for graph in every),
        "ir_version": max(graph.model.ir_version or 0 for graph in every),
        **({"core": True} if program.core else {}),
        "profile": program.profile,
        **_memory("recompute", program.recompute, "estimates", program.estimates),
        **_memory("store", program.store, "stored", program.stored),
        **({"choices": dict(program.choices)} if program.choices else {}),
        "entries": list(program.entries),
        "loss": program.loss,
        "readings": {name: [dataclasses.asdict(r) for r in e.readings] for name, e in program.entries.items()},
        "inputs": [_spec(s) for s in program.inputs],
        "targets": [_spec(s) for s in program.targets],
        "settings": {
            name: {
                "dtype": str(v.dtype),
                "shape": list(v.shape),
                "default": v.tolist(),
                **({"role": "learning_rate"} if name in program.learning_rates else {}),
            }
            for name, v in program.settings.items()
        },
        "state": {
            "file": "state.safetensors",
            "sha256": hashes["state.safetensors"],
            "tensors": [
                {
                    "name": n,
                    "dtype": str(v.dtype),
                    "shape": list(v.shape),
                    "trained": n in program.parameters,
                    **({"average_of": average_of[n]} if n in average_of else {}),
                    **({"loss_scale_of": scale_of[n]} if n in scale_of else {}),
                }
                for n, v in program.state.items()
            ],
        },
        "graphs": graphs,
        **({"phases": program.phases} if program.phases else {}),
        "totals": {name: entry.totals for name, entry in program.entries.items() if entry.totals is not None},
    }


def graph_files(program: Program) -> dict[str, tuple[str, PlainGraph]]:
    """Return file name -> (role, graph). The evaluation of the first entry has no suffix."""
    found: dict[str, tuple[str, PlainGraph]] = {}
    single = len(program.entries) == 1
    for kind in ("step", "gradients", "update", "evaluate", "rate"):
        for index, entry in enumerate(program.entries.values()):
            graph: PlainGraph | None = getattr(entry, kind)
            if graph is not None:
                plain = single or (kind == "evaluate" and index == 0)
                found[f"{kind}.onnx" if plain else f"{kind}-{index}.onnx"] = (
                    kind if plain else f"{kind}:{entry.name}",
                    graph,
                )
    found["infer.onnx"] = ("infer", program.infer_graph)
    if program.initialize_graph is not None:
        found["initialize.onnx"] = ("initialize", program.initialize_graph)
    return found


def _input_roles(program: Program) -> dict[str, str]:
    roles = {s.name: "target" for s in program.targets}
    roles.update(dict.fromkeys(program.settings, "setting"))
    roles.update(dict.fromkeys([*program.state, *PROGRAM_STATE], "state"))
    return roles


def _output_role(value: ir.Value, role: str, graph: PlainGraph, program: Program) -> dict[str, Any]:
    name = value.name or ""
    if name in graph.replaces:
        return {"role": "state", "replaces": graph.replaces[name]}
    if name in total_names(graph.totals):
        return {"role": "total"}
    is_loss = role != "infer" and name in {entry.loss for entry in program.entries.values()}
    found: dict[str, Any] = {"role": "loss" if is_loss else "output"}
    if name in graph.stands_for:
        found["stands_for"] = graph.stands_for[name]
    if name in graph.gradient_of:
        y, x = graph.gradient_of[name]
        found["gradient_of"] = {"y": y, "x": x}
    return found


def _info(value: ir.Value) -> dict[str, Any]:
    assert value.dtype is not None
    return {"name": value.name, "dtype": str(value.dtype.numpy()), "shape": list(shapes.dims(value) or ())}


def _spec(spec: TensorSpec) -> dict[str, Any]:
    found = {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}
    return {**found, "also": list(spec.also)} if spec.also else found


def _with_initial(
    state: Mapping[str, np.ndarray], needed: list[str], initialize: PlainGraph | None
) -> Mapping[str, np.ndarray]:
    """Return the state with what the file lacks as `initialize.onnx` makes it: a site leaves moments of zeros out."""
    lost = [name for name in needed if name not in state]
    made: dict[str, np.ndarray] = {}
    if lost and initialize is not None:
        random = {RANDOM_KEY: np.array(0, np.int64), RANDOM_STEP: np.array(0, np.int64)}
        feeds = {name: {**state, **random}[name] for name in initialize.input_names}
        (outputs,) = evaluate(initialize.proto().SerializeToString(), [feeds])
        found = dict(zip(initialize.output_names, outputs, strict=True))
        made = {name: found[output] for output, name in initialize.replaces.items()}
    for name in lost:
        if name not in made or np.any(made[name]):  # a lost weight would be a random one, in silence
            raise ValueError(f"its state lacks `{name}`")
    return {**made, **state}


def _program(manifest: Mapping[str, Any], graphs: Mapping[str, bytes], state: Mapping[str, np.ndarray]) -> Program:
    settings, tensors = manifest["settings"], manifest["state"]["tensors"]
    read = {role: _plain_graph(role, manifest, data) for role, data in graphs.items()}
    state = _with_initial(state, [t["name"] for t in tensors], read.get("initialize"))
    rates = [n for n, s in settings.items() if s.get("role") == "learning_rate"] or learning_rates_by_name(settings)
    parameters = tuple(t["name"] for t in tensors if t["trained"])
    again, narrow = manifest.get("recompute", {}), manifest.get("store", {})
    entries = {}
    for name in manifest["entries"]:
        of = {kind: read.get(f"{kind}:{name}") for kind in ("step", "gradients", "update", "evaluate", "rate")}
        if name == manifest["entries"][0]:
            of = {kind: graph or read.get(kind) for kind, graph in of.items()}
        step, single = of.pop("step"), len(manifest["entries"]) == 1
        if step is None:
            raise ValueError(f"the manifest has no step of entry `{name}`")
        entries[name] = Entry(
            name,
            step,
            learning_rates=tuple(r for r in rates if single or r in step.input_names),
            epochs=manifest.get("phases", {}).get(name),
            readings=tuple(Reading(**r) for r in manifest.get("readings", {}).get(name, [])),
            loss_scale=next((t["name"] for t in tensors if t.get("loss_scale_of") == name), ""),
            **of,
        )
    return Program(
        entries=entries,
        infer_graph=read["infer"],
        initialize_graph=read.get("initialize"),
        inputs=tuple(_read_spec(s) for s in manifest["inputs"]),
        targets=tuple(_read_spec(s) for s in manifest["targets"]),
        settings={n: np.array(s["default"], dtype=s["dtype"]).reshape(s["shape"]) for n, s in settings.items()},
        state={t["name"]: state[t["name"]] for t in tensors},
        parameters=parameters,
        averages={t["average_of"]: t["name"] for t in tensors if "average_of" in t}
        or averages_by_name(state, parameters),
        metadata={"name": manifest["name"], "producer": "onward"},
        core=bool(manifest.get("core", False)),
        profile=str(manifest.get("profile", DEFAULT)),
        recompute=read_recompute(again.get("recompute"), again.get("sizes")),
        estimates={name: Estimate(**found) for name, found in again.get("estimates", {}).items()},
        store=read_store(narrow.get("store"), narrow.get("sizes")),
        stored={name: Stored(**found) for name, found in narrow.get("stored", {}).items()},
        choices={str(key): str(form) for key, form in manifest.get("choices", {}).items()},
    )


def _memory(
    key: str, wanted: Recompute | Store | None, result: str, found: Mapping[str, Estimate] | Mapping[str, Stored]
) -> dict[str, Any]:
    """Return the part of the manifest about `recompute` or `store`: its arguments, and what it did to each graph."""
    if wanted is None:
        return {}
    return {key: {**wanted.arguments(), result: {name: each.as_dict() for name, each in found.items()}}}


def _plain_graph(role: str, manifest: Mapping[str, Any], data: bytes) -> PlainGraph:
    kind, _, entry = role.partition(":")
    model = from_proto(read_proto(data)).ir
    outputs = manifest["graphs"][role]["outputs"]
    replaces = {o["name"]: o["replaces"] for o in outputs if o["role"] == "state"}
    if kind == "initialize" and not replaces:  # a checkpoint of an earlier version
        replaces = {v.name or "": (v.name or "").removeprefix("next/") for v in model.graph.outputs}
    pairs = {o["name"]: o["gradient_of"] for o in outputs if "gradient_of" in o}
    entry = entry or next(iter(manifest["entries"]), "")
    return PlainGraph(
        role.replace(":", " "),
        model,
        outputs=tuple(o["name"] for o in outputs if o["role"] in ("loss", "output")),
        replaces=replaces,
        stands_for={o["name"]: o["stands_for"] for o in outputs if "stands_for" in o},
        gradient_of={gradient: (pair["y"], pair["x"]) for gradient, pair in pairs.items()},
        totals=manifest["totals"].get(entry) if kind == "evaluate" else None,
    )


def _read_spec(spec: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(spec["name"], spec["dtype"], tuple(spec["shape"]), also=tuple(spec.get("also", ())))


def _plain_name(folder: Path, name: str) -> str:
    """Return `name` if it is a plain file name; raise if it leads outside of the directory."""
    if not name or Path(name).name != name:
        raise _damaged(folder, f"the manifest names a file outside the directory: `{name}`")
    return name


def _damaged(folder: Path, why: str) -> ModelError:
    return ModelError(
        Diagnostic(
            M400,
            f"`{folder}` is not a complete program: {why}",
            hint="compile the model again: onward compile FILE -o DIR",
        )
    )
