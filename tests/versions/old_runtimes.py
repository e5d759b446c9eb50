"""Compile programs here, train them on other versions of ONNX Runtime without Onward, print how far the losses are.

    python tests/versions/old_runtimes.py FOLDER VERSION ...

Makes one environment per version in FOLDER with onnxruntime and the numpy it was built for, and nothing else. Ends
with status 1 if a loss of any program differs by more than 1e-5 from the installed runtime's, or if a runtime reads
other operator sets and IR versions than `onward.versions.RUNTIMES` says.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import onnx
from safetensors.numpy import save_file

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
RUNNER = Path(__file__).with_name("run_program.py")
READER = Path(__file__).with_name("read_labels.py")
STEPS = 20
TOLERANCE = 1e-5


def write_programs(folder: Path) -> list[Path]:
    """Compile one model of each kind and write it with its batches; linear and digits come from the samples."""
    import onward
    from frontends.runs import batches, start
    from frontends.zoo import CROSS_ENTROPY, ZOO, ConvNet, Subject, adam, images

    zoo = {s.name: s for s in ZOO}
    dropout = Subject("dropout", lambda: ConvNet(0.3), CROSS_ENTROPY, adam, images(2, 6, 3))
    chosen = {
        "cnn": dropout,
        "lstm": zoo["lstm"],
        "encoder": zoo["transformer encoder"],
        "decoder": zoo["decoder with tied embedding"],
    }
    made = []
    for name in ("linear", "digits"):
        made.append(_write(folder / name, onward.compile(onward.samples.build(name)), []))
    for name, subject in chosen.items():
        given = [[t.numpy() for t in (*inputs, targets)] for inputs, targets in batches(subject, STEPS)]
        made.append(_write(folder / name, onward.compile(start(subject)[2]), given))
    return made


def _write(folder: Path, program, given: list[list[np.ndarray]]) -> Path:
    program.save(folder)
    specs = [*program.inputs, *program.targets]
    random = np.random.default_rng(0)
    for _ in range(STEPS - len(given)):
        given.append([_random(s, random) for s in specs])
    arrays = {
        f"{i}/{s.name}": np.ascontiguousarray(a) for i, b in enumerate(given) for s, a in zip(specs, b, strict=True)
    }
    save_file(arrays, folder.with_suffix(".batches"))
    return folder


def _random(spec, random: np.random.Generator) -> np.ndarray:
    shape = [d if isinstance(d, int) else 8 for d in spec.shape]
    if np.dtype(spec.dtype).kind == "f":
        return random.normal(size=shape).astype(spec.dtype)
    return random.integers(0, 3, size=shape).astype(spec.dtype)


def write_labels(folder: Path) -> Path:
    """Write a graph of each operator set and one of each IR version that the installed onnx knows."""
    folder.mkdir(exist_ok=True)
    labels = [("opset", o, 8, o) for o in range(17, onnx.defs.onnx_opset_version() + 1)]
    labels += [("ir", i, i, 17) for i in range(8, onnx.IR_VERSION + 1)]
    for kind, number, ir_version, opset in labels:
        head = f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>'
        model = onnx.parser.parse_model(head + "g (float[2] x) => (float[2] y) { y = Add(x, x) }")
        onnx.save(model, folder / f"{kind}-{number}.onnx")
    return folder


def labels_read(python: str, folder: Path) -> tuple[int, int]:
    """Return the newest operator set and the newest IR version that `python`'s onnxruntime loads."""
    result = subprocess.run([python, str(READER), str(folder)], capture_output=True, text=True, check=True)
    read = [line.split("-") for line in result.stdout.split()]
    return max(int(n) for kind, n in read if kind == "opset"), max(int(n) for kind, n in read if kind == "ir")


def losses(python: str, program: Path) -> list[float]:
    """Return the losses that `python`'s onnxruntime gives; an error of the runtime is raised with its text."""
    command = [python, str(RUNNER), str(program), str(program.with_suffix(".batches"))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(result.stderr[-800:])
    return [float(line) for line in result.stdout.split()]


def environment(folder: Path, version: str) -> str:
    """Return the Python of an environment with that onnxruntime; numpy as old as the runtime needs it."""
    numpy = "numpy<2" if tuple(map(int, version.split(".")[:2])) < (1, 19) else "numpy"
    python = folder / f"onnxruntime-{version}" / "bin" / "python"
    if not python.exists():
        venv.create(python.parents[1], with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", f"onnxruntime=={version}", numpy], check=True)
    return str(python)


def main(folder: Path, runtimes: list[str]) -> int:
    from onward.versions import RUNTIMES

    programs, labels = write_programs(folder / "programs"), write_labels(folder / "labels")
    expected = {p: losses(sys.executable, p) for p in programs}
    print("| onnxruntime | operator set | IR version | " + " | ".join(p.name for p in programs) + " |")
    print("|---|---|---|" + "---|" * len(programs))
    failed = False
    for version in runtimes:
        python = environment(folder, version)
        reads = labels_read(python, labels)
        stated = RUNTIMES[version.rpartition(".")[0]]
        failed |= reads != (stated.opset, stated.ir_version)
        cells = [str(n) for n in reads]
        for program in programs:
            found, wanted = np.array(losses(python, program)), np.array(expected[program])
            error = float(np.max(np.abs(found - wanted) / np.abs(wanted)))
            failed |= not error <= TOLERANCE
            cells.append("0" if error == 0 else f"{error:.0e}")
        print(f"| {version} | " + " | ".join(cells) + " |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
