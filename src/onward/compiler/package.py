"""A `Program` as a directory that needs no Python: graphs, state, manifest and a README with the loop.

step.onnx …          one per training entry (`step.onnx`, or `step-<entry>.onnx` if there are several)
evaluate.onnx        loss and outputs, no update
infer.onnx           the inference graph, parameters as inputs
initialize.onnx      the initial state from a random key
state.safetensors    the state to start from
manifest.json        what to feed, what comes out, which output replaces which state (docs/program_format.md)
README.md            the loop in Python, JavaScript, C# and C++
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.compiler.package_readme import readme
from onward.compiler.program import Program, StepGraph, TensorSpec, total_names
from onward.errors import Diagnostic, ModelError, define
from onward.model.serde import read_proto
from onward.storage.atomic import write_atomic
from onward.storage.tensor_file import Damaged, read_tensor_file, tensor_file_chunks

FORMAT = "onward-program"
VERSION = 1

M400 = define(
    "M400",
    "not a program directory, or a damaged one",
    why="A compiled program is a directory with a manifest; each file's sha256 is in it.",
    fix="Compile the model again: onward compile FILE -o DIR.",
)


def write_program(program: Program, directory: str | os.PathLike[str]) -> None:
    """Write `program` to `directory` (made if absent). The manifest comes last: a directory with one is whole."""
    folder = Path(directory)
    files = _graph_files(program)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_foreign(folder)
        hashes = {}
        for name, model in files.items():
            data = model.SerializeToString(deterministic=True)
            hashes[name] = hashlib.sha256(data).hexdigest()
            write_atomic(folder / name, [data])
        state = b"".join(bytes(c) for c in tensor_file_chunks(program.state, {}))
        hashes["state.safetensors"] = hashlib.sha256(state).hexdigest()
        write_atomic(folder / "state.safetensors", [state])
        manifest = build_manifest(program, hashes)
        write_atomic(folder / "README.md", [readme(manifest).encode()])
        write_atomic(folder / "manifest.json", [(json.dumps(manifest, indent=2) + "\n").encode()])
    except FileExistsError as error:
        raise ModelError(
            Diagnostic(M400, f"`{folder}` is a file", needed="a directory to write the program to")
        ) from error
    except OSError as error:
        raise ModelError(
            Diagnostic(M400, f"cannot write the program to `{folder}`: {error.strerror or error}")
        ) from error


def _refuse_foreign(folder: Path) -> None:
    """Raise if the folder holds files and no program: its README.md, or whatever it has, is not ours to overwrite."""
    found = sorted(entry.name for entry in folder.iterdir())
    manifest = folder / "manifest.json"
    if not found or (manifest.is_file() and f'"{FORMAT}"' in manifest.read_text(errors="replace")):
        return
    raise ModelError(
        Diagnostic(
            M400,
            f"`{folder}` holds files that are no program",
            found=", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else ""),
            needed="a new or empty directory, or one with a program to replace",
        )
    )


def read_program(directory: str | os.PathLike[str]) -> Program:
    """Return the program that `write_program` wrote, every file verified.

    Raises:
        ModelError: a file is missing or differs from what was written.
    """
    folder = Path(directory)
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
            raise _damaged(folder, f"the manifest is not of format {FORMAT} {VERSION}")
        models = {}
        for role, graph in manifest["graphs"].items():
            data = (folder / _plain_name(folder, graph["file"])).read_bytes()
            if hashlib.sha256(data).hexdigest() != graph["sha256"]:
                raise _damaged(folder, f"`{graph['file']}` is not the file that was compiled")
            models[role] = read_proto(data)
        state, _ = read_tensor_file(folder / "state.safetensors")
    except OSError as error:
        raise _damaged(folder, f"{error.strerror}: {Path(error.filename or '').name}") from error
    except (ValueError, KeyError, TypeError, Damaged) as error:
        if isinstance(error, ModelError):
            raise
        raise _damaged(folder, str(error)) from error
    return _program(manifest, models, state)


def build_manifest(program: Program, hashes: Mapping[str, str]) -> dict[str, Any]:
    """Return the manifest: everything a loop in another language needs to know."""
    roles = _roles(program)
    graphs: dict[str, Any] = {}
    for file, (role, model, replaces) in _graph_roles(program).items():
        kind, _, entry = role.partition(":")
        gradients = program.gradients[entry or next(iter(program.gradients))] if kind == "gradients" else None
        outputs: list[dict[str, Any]] = []
        for info in model.graph.output:
            outputs.append({**_info(info), **_output_role(info.name, program, replaces, role)})
            if gradients is not None and info.name in gradients.gradient_of:
                y, x = gradients.gradient_of[info.name]
                outputs[-1]["gradient_of"] = {"y": y, "x": x}
        graphs[role] = {
            "file": file,
            "sha256": hashes[file],
            "inputs": [{**_info(i), "role": roles.get(i.name, "data")} for i in model.graph.input],
            "outputs": outputs,
        }
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": str(program.metadata.get("name", "")),
        "opset": max(m.opset_import[0].version for m in _graph_files(program).values()),
        "ir_version": max(m.ir_version for m in _graph_files(program).values()),
        "entries": list(program.steps),
        "loss": program.loss,
        "inputs": [_spec(s) for s in program.inputs],
        "targets": [_spec(s) for s in program.targets],
        "settings": {
            name: {"dtype": str(v.dtype), "shape": list(v.shape), "default": v.tolist()}
            for name, v in program.settings.items()
        },
        "state": {
            "file": "state.safetensors",
            "sha256": hashes["state.safetensors"],
            "tensors": [
                {"name": n, "dtype": str(v.dtype), "shape": list(v.shape), "trained": n in program.parameters}
                for n, v in program.state.items()
            ],
        },
        "graphs": graphs,
        "totals": dict(program.totals),
    }


def _graph_roles(program: Program) -> dict[str, tuple[str, onnx.ModelProto, Mapping[str, str]]]:
    """Return file name -> (role, graph, which output replaces which state)."""
    found: dict[str, tuple[str, onnx.ModelProto, Mapping[str, str]]] = {}
    for index, (name, step) in enumerate(program.steps.items()):
        single = len(program.steps) == 1
        file = "step.onnx" if single else f"step-{index}.onnx"
        found[file] = ("step" if single else f"step:{name}", step.model, step.replaces)
    for role, parts in (("gradients", program.gradients), ("update", program.updates)):
        for index, (name, part) in enumerate(parts.items()):
            single = len(parts) == 1
            file = f"{role}.onnx" if single else f"{role}-{index}.onnx"
            found[file] = (role if single else f"{role}:{name}", part.model, part.replaces)
    if program.evaluate is not None:
        found["evaluate.onnx"] = ("evaluate", program.evaluate, {})
    for index, name in enumerate(program.steps):
        if name in program.evaluations:
            found[f"evaluate-{index}.onnx"] = (f"evaluate:{name}", program.evaluations[name], {})
    found["infer.onnx"] = ("infer", program.infer, {})
    if program.initialize is not None:
        outputs = {o.name: o.name.removeprefix("next/") for o in program.initialize.graph.output}
        found["initialize.onnx"] = ("initialize", program.initialize, outputs)
    return found


def _graph_files(program: Program) -> dict[str, onnx.ModelProto]:
    return {file: model for file, (_, model, _) in _graph_roles(program).items()}


def _roles(program: Program) -> dict[str, str]:
    roles = {s.name: "target" for s in program.targets}
    roles.update(dict.fromkeys(program.settings, "setting"))
    roles.update(dict.fromkeys(program.state, "state"))
    roles.update({"random/key": "state", "random/step": "state"})
    return roles


def _output_role(name: str, program: Program, replaces: Mapping[str, str], graph: str) -> dict[str, str]:
    if name in replaces:
        return {"role": "state", "replaces": replaces[name]}
    losses = {program.loss, *(s.outputs[0] for s in program.steps.values() if s.outputs)}
    if name in total_names(program):
        return {"role": "total"}
    return {"role": "loss" if name in losses and graph != "infer" else "output"}


def _info(info: onnx.ValueInfoProto) -> dict[str, Any]:
    tensor = info.type.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim]
    return {"name": info.name, "dtype": str(ir.DataType(tensor.elem_type).numpy()), "shape": shape}


def _spec(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}


def _program(
    manifest: Mapping[str, Any], models: Mapping[str, onnx.ModelProto], state: Mapping[str, np.ndarray]
) -> Program:
    parts: dict[str, dict[str, StepGraph]] = {"step": {}, "gradients": {}, "update": {}}
    for role, graph in manifest["graphs"].items():
        kind, _, name = role.partition(":")
        if kind in parts:
            name = name or manifest["entries"][0]
            replaces = {o["name"]: o["replaces"] for o in graph["outputs"] if o["role"] == "state"}
            outputs = tuple(o["name"] for o in graph["outputs"] if o["role"] != "state")
            pairs = {o["name"]: o["gradient_of"] for o in graph["outputs"] if "gradient_of" in o}
            gradient_of = {gradient: (pair["y"], pair["x"]) for gradient, pair in pairs.items()}
            parts[kind][name] = StepGraph(name, models[role], replaces, outputs, gradient_of)
    return Program(
        steps=parts["step"],
        gradients=parts["gradients"],
        updates=parts["update"],
        initialize=models.get("initialize"),
        infer=models["infer"],
        evaluate=models.get("evaluate"),
        evaluations={r.removeprefix("evaluate:"): m for r, m in models.items() if r.startswith("evaluate:")},
        inputs=tuple(_read_spec(s) for s in manifest["inputs"]),
        targets=tuple(_read_spec(s) for s in manifest["targets"]),
        settings={
            name: np.array(s["default"], dtype=s["dtype"]).reshape(s["shape"])
            for name, s in manifest["settings"].items()
        },
        state={t["name"]: state[t["name"]] for t in manifest["state"]["tensors"]},
        parameters=tuple(t["name"] for t in manifest["state"]["tensors"] if t["trained"]),
        loss=manifest["loss"],
        totals=manifest["totals"],
        metadata={"name": manifest["name"], "producer": "onward"},
    )


def _default(setting: Mapping[str, Any]) -> np.ndarray:
    return np.array(setting["default"], dtype=setting["dtype"]).reshape(setting["shape"])


def _read_spec(spec: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(spec["name"], spec["dtype"], tuple(spec["shape"]))


def _plain_name(folder: Path, name: str) -> str:
    """Return `name` if it is a plain file name; a manifest must not reach outside its directory."""
    if not name or Path(name).name != name:
        raise _damaged(folder, f"the manifest names a file outside the directory: `{name}`")
    return name


def _damaged(folder: Path, why: str) -> ModelError:
    return ModelError(
        Diagnostic(
            M400,
            f"`{folder}` is not a whole program: {why}",
            hint="compile the model again: onward compile FILE -o DIR",
        )
    )
