"""What a training step in the browser costs: Onward on onnxruntime-web, tensorflow.js, and native ONNX Runtime.

    python benchmarks/browser.py [--rounds 15] [--steps 10] [--batch 64] [--json browser.json] [--docs]

The same two networks, LeNet and a perceptron, begin with the same weights, get the same batch and are trained by Adam;
that the first losses are equal is checked. In each round every contender takes some steps in turn, in one Chromium or
in this process, so that what else the machine does meets all alike. Native ONNX Runtime runs the graphs of the page, in
the portable profile; "with Onward's kernels in C" is what `onward.Trainer` does in Python: the default profile and our
kernels. Prints the median of the milliseconds of a step, the quotient with native ONNX Runtime on one thread, and the
bytes that a page loads. `--docs` writes them into docs/browser.md.

Needs npm and Chromium (Debian: apt-get install chromium). tensorflow.js is installed in benchmarks/.venvs/browser.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import onward
from onward import samples
from onward.backends import open_session

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
JS, PLACE = ROOT / "js", HERE / ".venvs" / "browser"
PAGE, BEGIN, END = ROOT / "docs" / "browser.md", "<!-- times: begin -->", "<!-- times: end -->"
TFJS = "4.22.0"
CLOSE = 1e-4  # of the first loss, relative
NATIVE = {"native ONNX Runtime": False, "native, with Onward's kernels in C": True}

Layers = list[dict[str, Any]]


def dense(weight: str, bias: str, *, relu: bool, turned: bool) -> dict[str, Any]:
    return {"kind": "dense", "weight": weight, "bias": bias, "relu": relu, "turned": turned}


def networks() -> dict[str, tuple[onward.TrainingModel, Layers]]:
    """Return each network as a training model, and as the layers that tensorflow.js shall have."""
    mlp = onward.make_trainable(
        samples.perceptron(inputs=784, hidden=128, outputs=10), loss="cross_entropy", optimizer=onward.Adam(1e-3)
    )
    lenet: Layers = [
        {"kind": "conv", "weight": "conv1.weight", "bias": "conv1.bias", "pad": 2},
        {"kind": "pool"},
        {"kind": "conv", "weight": "conv2.weight", "bias": "conv2.bias", "pad": 0},
        {"kind": "pool"},
        {"kind": "flatten"},
        *(dense(f"fc{i}.weight", f"fc{i}.bias", relu=i < 3, turned=True) for i in (1, 2, 3)),
    ]
    simple = [dense("W1", "b1", relu=True, turned=False), dense("W2", "b2", relu=False, turned=False)]
    return {"LeNet": (samples.build("mnist"), lenet), "perceptron 784-128-10": (mlp, simple)}


def install() -> None:
    """Install what js/package.json names there, and tensorflow.js; build `@onward/train`."""
    npm = ["npm", "install", "--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--silent"]
    PLACE.mkdir(parents=True, exist_ok=True)
    (PLACE / "package.json").write_text("{}")
    subprocess.run(npm, cwd=JS, check=True, timeout=900)
    wanted = [f"@tensorflow/{n}@{TFJS}" for n in ("tfjs", "tfjs-backend-wasm")]
    subprocess.run([*npm, *wanted], cwd=PLACE, check=True, timeout=900)
    subprocess.run(["node", "build.mjs"], cwd=JS, check=True, timeout=120, stdout=subprocess.DEVNULL)


def loaded_bytes(folder: Path) -> dict[str, tuple[int, int]]:
    """Return what each way loads for LeNet, in bytes, and gzipped: libraries, WebAssembly, the program."""
    ort, tensorflow = JS / "node_modules/onnxruntime-web/dist", PLACE / "node_modules/@tensorflow"
    program = json.loads((folder / "LeNet" / "program" / "manifest.json").read_text())
    graphs = [g["file"] for g in program["graphs"].values()]
    ways = {
        "Onward: onnxruntime-web": [
            ort / n for n in ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
        ],
        "Onward: @onward/train": [JS / "dist" / "onward-train.min.mjs"],
        "Onward: LeNet, its program": [
            folder / "LeNet" / "program" / n for n in ("manifest.json", "state.safetensors", *graphs)
        ],
        "tensorflow.js": [tensorflow / "tfjs" / "dist" / "tf.min.js"],
        "tensorflow.js: its wasm backend": [
            tensorflow / "tfjs-backend-wasm" / "dist" / n
            for n in ("tf-backend-wasm.min.js", "tfjs-backend-wasm-simd.wasm")
        ],
    }
    files = {way: [p.read_bytes() for p in paths] for way, paths in ways.items()}
    return {way: (sum(map(len, f)), sum(len(gzip.compress(d, 9)) for d in f)) for way, f in files.items()}


class Browser:
    """Chromium with one page for each contender, driven by browser.mjs."""

    def __init__(self, folder: Path, layers: dict[str, Layers]) -> None:
        chromium = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
        if chromium is None:
            raise SystemExit("Chromium is not installed (Debian: apt-get install chromium)")
        given = {"chromium": chromium, "js": str(JS), "place": str(PLACE), "root": str(folder), "networks": layers}
        command = ["node", str(HERE / "browser.mjs"), json.dumps(given)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.first = self._answer()

    def steps(self, count: int) -> dict[str, dict[str, float]]:
        """Return the milliseconds of a step of each network, by contender."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"browser.mjs ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


def prepare(folder: Path, size: int) -> dict[str, tuple[onward.Program, dict[str, np.ndarray], Layers]]:
    """Write the programs and a batch for each, and return them."""
    rng, made = np.random.default_rng(0), {}
    for name, (model, layers) in networks().items():
        program = onward.compile(model, profile="portable")
        program.save(folder / name / "program")
        (x,), (y,) = program.inputs, program.targets
        batch = {
            x.name: rng.random((size, *(int(d) for d in x.shape[1:])), np.float32),
            y.name: rng.integers(0, 10, size),
        }
        save_file(batch, folder / name / "batch.safetensors")
        made[name] = program, batch, layers
    return made


def measure(size: int, rounds: int, steps: int) -> tuple[dict[str, dict[str, Any]], dict[str, tuple[int, int]]]:
    """Return the milliseconds of all rounds by contender and network (or why it fails), and the bytes."""
    install()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        made = prepare(folder, size)
        native = {
            (f"{way}, {threads} thread{'s' * (threads > 1)}", name): open_session(
                onward.compile(networks()[name][0]) if kernels else program,
                "onnxruntime", threads=threads, fused=False, native=kernels,
            )
            for way, kernels in NATIVE.items()
            for threads in (1, 2)
            for name, (program, _, _) in made.items()
        }  # fmt: skip
        first: dict[str, dict[str, Any]] = {}
        for (contender, name), session in native.items():
            program, batch, _ = made[name]
            first.setdefault(contender, {})[name] = float(session.step(batch)[program.loss])
        browser = Browser(folder, {name: layers for name, (_, _, layers) in made.items()})
        first |= browser.first
        check(first)
        found: dict[str, dict[str, Any]] = {
            c: {n: [] if isinstance(v, float) else v for n, v in row.items()} for c, row in first.items()
        }
        for turn in range(rounds + 1):
            times = browser.steps(steps)
            for (contender, name), session in native.items():
                began = time.perf_counter()
                for _ in range(steps):
                    session.step(made[name][1])
                times.setdefault(contender, {})[name] = (time.perf_counter() - began) / steps * 1e3
            for contender, row in times.items() if turn else ():  # the first round warms up
                for name, value in row.items():
                    found[contender][name].append(value)
        browser.close()
        return found, loaded_bytes(folder)


def check(first: dict[str, dict[str, Any]]) -> None:
    """Stop if the contenders do not compute the same function."""
    wanted = next(iter(first.values()))
    for contender, row in first.items():
        for name, loss in row.items():
            if isinstance(loss, float) and not abs(loss - wanted[name]) <= CLOSE * abs(wanted[name]):
                raise SystemExit(f"{contender}, {name}: the first loss is {loss}, not {wanted[name]}")


def table(found: dict[str, dict[str, Any]], sizes: dict[str, tuple[int, int]]) -> str:
    names = list(next(iter(found.values())))
    base = next(iter(found.values()))
    lines = [
        "| a step, ms (quotient with native on one thread) | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
    ]
    for contender, row in found.items():
        cells = []
        for name in names:
            if isinstance(row[name], str):
                cells.append(f"fails: {row[name]}")
                continue
            ms = np.array(row[name])
            cells.append(f"{np.median(ms):.1f} ({np.median(ms / np.array(base[name])):.2f})")
        lines.append(f"| {contender} | " + " | ".join(cells) + " |")
    lines += ["", "| what a page loads | bytes | gzipped |", "|---|---|---|"]
    lines += [f"| {way} | {raw:,} | {zipped:,} |" for way, (raw, zipped) in sizes.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10, help="steps in a round")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--json", type=Path, help="write the numbers")
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/browser.md")
    arguments = parser.parse_args()
    found, sizes = measure(arguments.batch, arguments.rounds, arguments.steps)
    text = table(found, sizes)
    print(text)
    if arguments.json:
        arguments.json.write_text(json.dumps({"milliseconds": found, "bytes": sizes}, indent=2) + "\n")
    if arguments.docs:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(page.split(BEGIN)[0] + f"{BEGIN}\n{text}\n{END}" + page.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
