"""Train our samples on other stock runtimes and write the table of docs/anywhere.md: `make anywhere`.

Each runtime has an environment of its own (`conformance/adapters`) and runs 20 steps of each program; the losses are
compared with those of the installed ONNX Runtime. `python docs/generate_anywhere.py NAME …` runs some of them and keeps
the other rows of the page; the last column says when a row was run.

The time is bounded: INSTALL for an environment, BUDGETS for all programs of a runtime. An environment stays, and pip
and npm keep what they downloaded, so that a second run needs no network.
"""

from __future__ import annotations

import datetime
import json
import re
import runpy
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import save_file

ROOT = Path(__file__).parents[1]
ADAPTERS = ROOT / "conformance" / "adapters"
sys.path.insert(0, str(ROOT / "src"))

import onward  # noqa: E402
from onward.autodiff.profile import PROFILES  # noqa: E402
from onward.backends import open_session  # noqa: E402

install = runpy.run_path(str(ADAPTERS / "install.py"))  # beside it are modules named like the packages that they import
packages, ENVIRONMENTS = install["packages"], install["ENVIRONMENTS"]

PAGE = Path(__file__).with_name("anywhere.md")
BEGIN, END = "<!-- runtimes: begin -->", "<!-- runtimes: end -->"
BUILD = ROOT / "build" / "anywhere"
STEPS, ROWS = 20, 8
INSTALL, BUDGET = 900, 600  # seconds
BUDGETS = {"iree": 3600, "tinygrad": 3600}  # they compile each program, for the steps and for the self-test
TIME = "time: "  # how the message of a program begins that was stopped or not begun
CLOSE = 1e-5  # largest relative difference of a loss over all steps

OLD = "onnx==1.17.0"
NEW = "onnx==1.23.2"
RUNTIMES: dict[str, tuple[str, list[str]]] = {
    **{
        f"onnxruntime {v}": ("onnxruntime", [f"onnxruntime=={v}", OLD if v < "1.21" else NEW, *extra])
        for v, extra in {
            "1.17.3": ["numpy<2"],
            "1.18.1": ["numpy<2"],
            "1.19.2": [],
            "1.20.1": [],
            "1.22.1": [],
            "1.23.2": [],
            "1.25.1": [],
            "1.28.0": [],
            "1.31.1": [],
        }.items()
    },
    **{name: (name, packages(ADAPTERS / f"{name}.py")) for name in ("openvino", "tract", "tinygrad", "jaxonnxruntime")},
    "onnx's reference": ("onnx-reference", packages(ADAPTERS / "onnx-reference.py")),
    "iree": ("iree-base", packages(ADAPTERS / "iree-base.py")),
    "onnxruntime-node": ("npm", ["onnxruntime-node@1.30.0"]),
    "onnxruntime-web (wasm)": ("npm", ["onnxruntime-web@1.30.0"]),
}

TEXT = """
<ir_version: 8, opset_import: ["": 18]>
net (int64[N, 12] ids) => (float[N, 4] logits)
{
    axis = Constant<value_ints = [1]>()
    e = Gather(table, ids)
    n = LayerNormalization<axis = -1>(e, scale, shift)
    q = MatMul(n, Q)
    k = MatMul(n, K)
    v = MatMul(n, V)
    t = Transpose<perm = [0, 2, 1]>(k)
    s = MatMul(q, t)
    a = Softmax<axis = -1>(s)
    c = MatMul(a, v)
    r = Add(e, c)
    h = MatMul(r, W1)
    g = Tanh(h)
    m = ReduceMean<keepdims = 0>(g, axis)
    logits = MatMul(m, W2)
}"""
CONV = """
<ir_version: 8, opset_import: ["": 18]>
net (float[N, 3, 12, 12] x) => (float[N, 4] logits)
{
    c = Conv<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x, C)
    b = BatchNormalization(c, scale, shift, mean, var)
    r = Relu(b)
    d = Conv<kernel_shape = [3, 3], group = 2>(r, D)
    p = GlobalAveragePool(d)
    f = Flatten(p)
    logits = MatMul(f, W)
}"""
DROPOUT = """
<ir_version: 8, opset_import: ["": 18]>
net (float[N, 10] x) => (float[N, 4] logits)
<float ratio = {0.3}>
{ h = MatMul(x, W1) r = Relu(h) d = Dropout(r, ratio) logits = MatMul(d, W2) }"""


def network(text: str, shapes: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        fixed = {"scale": np.ones, "var": np.ones, "shift": np.zeros, "mean": np.zeros}.get(name)
        array = fixed(shape) if fixed else rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]) or 1)
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return model


def trainable(text: str, shapes: dict[str, tuple[int, ...]], optimizer: Any) -> onward.TrainingModel:
    return onward.make_trainable(network(text, shapes), loss="cross_entropy", optimizer=optimizer)


_WIDE = (8, 8)
PROGRAMS: dict[str, Callable[[], onward.TrainingModel]] = {
    "linear": lambda: onward.samples.build("linear"),
    "dropout": lambda: trainable(DROPOUT, {"W1": (10, 16), "W2": (16, 4)}, onward.Adam(1e-2)),
    "attention": lambda: trainable(
        TEXT,
        {
            "table": (30, 8),
            "scale": (8,),
            "shift": (8,),
            "Q": _WIDE,
            "K": _WIDE,
            "V": _WIDE,
            "W1": (8, 16),
            "W2": (16, 4),
        },
        onward.AdamW(1e-2),
    ),
    "batch norm": lambda: trainable(
        CONV,
        {"C": (6, 3, 3, 3), "scale": (6,), "shift": (6,), "mean": (6,), "var": (6,), "D": (8, 3, 3, 3), "W": (8, 4)},
        onward.SGD(1e-1, momentum=0.9),
    ),
    "digits": lambda: onward.samples.build("digits"),
    "mnist": lambda: onward.samples.build("mnist"),
}


def batches(program: onward.Program) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(STEPS):
        made = {}
        for spec in (*program.inputs, *program.targets):
            shape = [d if isinstance(d, int) else ROWS for d in spec.shape]
            whole = np.dtype(spec.dtype).kind in "iu"
            made[spec.name] = (rng.integers(0, 4, shape) if whole else rng.normal(size=shape)).astype(spec.dtype)
        found.append(made)
    return found


def key(program: str, profile: str) -> str:
    """Return the name under which a program of a profile is kept."""
    return f"{program}, {profile}"


def prepare() -> dict[str, list[float]]:
    """Write the programs and their batches; return the losses that they should have."""
    expected = {}
    for name, make in PROGRAMS.items():
        model = make()
        for profile in PROFILES:
            program = onward.compile(model, profile=profile)
            folder = BUILD / key(name, profile)
            program.save(folder / "program")
            data = batches(program)
            save_file({f"{i}/{n}": v for i, b in enumerate(data) for n, v in b.items()}, folder / "batches.safetensors")
            session = open_session(program, "onnxruntime", threads=1, native=False)
            expected[key(name, profile)] = [float(session.step(feeds)[program.loss]) for feeds in data]
    return expected


def environment(name: str, wanted: list[str]) -> Path:
    """Return the environment with these packages, made if it is not there."""
    place = ENVIRONMENTS / name.replace(" ", "-").replace("'", "")
    done = place / "packages.txt"
    if not done.exists() or done.read_text() != "\n".join(wanted):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        subprocess.run([*pip, *wanted], check=True, timeout=INSTALL)
        done.write_text("\n".join(wanted))
    return place / "bin" / "python"


def command(name: str, adapter: str, wanted: list[str]) -> tuple[list[str], Path]:
    """Return what runs a program on this runtime, and where."""
    if adapter != "npm":
        return [str(environment(name, wanted)), str(ADAPTERS / "_train.py"), str(ADAPTERS / f"{adapter}.py")], ROOT
    place = ENVIRONMENTS / "npm" / wanted[0].partition("@")[0]
    if not (place / "node_modules").exists():
        place.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent", *wanted]
        subprocess.run(npm, cwd=place, check=True, timeout=INSTALL)
    return ["node", str(ADAPTERS / "_train.mjs"), wanted[0].partition("@")[0]], place


def run(name: str, programs: list[str]) -> dict[str, Any]:
    """Return what each program gave on one runtime."""
    adapter, wanted = RUNTIMES[name]
    try:
        words, place = command(name, adapter, wanted)
    except (subprocess.SubprocessError, FileNotFoundError) as error:  # npm may be missing
        print(f"{name} cannot be installed: {error}", flush=True)
        return {p: {"error": f"not installed: {' '.join(wanted)}"} for p in programs}
    found, end = {}, time.monotonic() + BUDGETS.get(name, BUDGET)
    for program in programs:
        folder = BUILD / program
        began = time.monotonic()
        said = train([*words, str(folder / "program"), str(folder / "batches.safetensors")], place, end - began)
        found[program] = said
        spent = time.monotonic() - began
        print(f"{name}, {program}: {said.get('error', 'ran')[:200]} ({spent:.0f} s)", flush=True)
    return found


def train(words: list[str], place: Path, seconds: float) -> dict[str, Any]:
    """Return what one program gave, within some seconds."""
    try:
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=max(seconds, 0), check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"{TIME}the seconds of the runtime were over"}
    last = done.stdout.strip().splitlines()[-1:]
    if not last:
        return {"error": f"code {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}"}
    said: dict[str, Any] = json.loads(last[0])
    return said


def cell(said: dict[str, Any], expected: list[float]) -> str:
    """Return the largest relative difference of a loss, or what failed."""
    if said.get("error", "").startswith(TIME):
        return "not run: no time left"
    if "losses" not in said:
        return f"fails: {_reason(said['error'])}"
    ours, theirs = np.array(expected), np.array(said["losses"])
    if theirs.shape != ours.shape or not np.isfinite(theirs).all():
        return "**wrong**: not finite"
    far = float(np.max(np.abs(theirs - ours) / np.maximum(np.abs(ours), 1e-6)))
    found = said.get("self_test")
    if far <= CLOSE:
        return f"{far:.0e}" + (f" (self-test: {', '.join(found[:2])})" if found else "")
    seen = "" if found is None else ", self-test finds it" if found else ", **not seen by the self-test**"
    return f"**wrong** by {far:.0e}{seen}"


def _reason(error: str) -> str:
    """Return the operator that a message names, or its beginning."""
    known = {s.name for s in onnx.defs.get_all_schemas()} - {"If", "And", "Not", "Or", "Shape"}  # words of a sentence
    words = (re.sub("(Hir|Inference)$", "", w) for w in re.findall(r"[A-Z][A-Za-z0-9]+", error))
    operator = next((word for word in words if word in known), None)
    return f"`{operator}`" if operator else error.partition(": ")[2][:60].replace("|", "/") or error[:60]


def row(name: str, profile: str, found: dict[str, Any], expected: dict[str, list[float]], day: str) -> str:
    """Return the line of a runtime in the table of a profile."""
    versions = {k: v for said in found.values() for k, v in said.get("versions", {}).items()}
    label = name if any(c.isdigit() for c in name) else f"{name} {', '.join(versions.values())}".strip()
    cells = [cell(found[k], expected[k]) for k in (key(p, profile) for p in PROGRAMS)]
    return f"| {' | '.join([label, *cells, day])} |"


def today() -> str:
    """Return the day, and the commit whose programs are run."""
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    return f"{datetime.date.today().isoformat()}, {commit}"


def head(profile: str) -> str:
    """Return the first line of the table of a profile."""
    return f"| {profile} profile | {' | '.join(PROGRAMS)} | run on |"


def read_rows(tables: str) -> dict[tuple[str, str], str]:
    """Return the lines that the page has, by profile and runtime."""
    found, profile = {}, ""
    for line in tables.splitlines():
        profile = next((p for p in PROFILES if line == head(p)), profile)
        label = line.removeprefix("| ").partition(" |")[0]
        name = next((n for n in RUNTIMES if label == n or label.startswith(f"{n} ")), None)
        if profile and name:
            found[profile, name] = line
    return found


def write_rows(rows: dict[tuple[str, str], str]) -> None:
    """Write a table for each profile into the page."""
    parts = []
    for profile in PROFILES:
        lines = [rows[profile, name] for name in RUNTIMES if (profile, name) in rows]
        parts.append("\n".join([head(profile), "|---" * (len(PROGRAMS) + 2) + "|", *lines]))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n" + "\n\n".join(parts) + "\n" + END + after, encoding="utf-8")


def main(names: list[str]) -> None:
    unknown = [n for n in names if n not in RUNTIMES]
    if unknown:
        raise SystemExit(f"no such runtime: {', '.join(unknown)}; there are {', '.join(RUNTIMES)}")
    expected, day = prepare(), today()
    for name in names or RUNTIMES:
        found = run(name, list(expected))
        rows = read_rows(PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0])
        rows |= {(profile, name): row(name, profile, found, expected, day) for profile in PROFILES}
        write_rows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
