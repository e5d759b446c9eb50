"""Take one file that strangers made through everything that a user would do with it, and print the result as JSON.

Run in a child process (`run.py` does), because a stranger's file may take the process down:

    python examine.py FILE '{"inputs": {"x": {"dtype": "float32", "shape": [1, 3, 32, 32]}}}'

The oracle is ONNX Runtime on the file itself: its outputs, and finite differences of its outputs. Each stage has an
entry `{"ok": …, "reason": …}`; a stage that was not reached has none.
"""

from __future__ import annotations

import collections.abc
import contextlib
import io
import json
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

import onward
from onward.backends.base import open_session

STAGES = ("runs", "check", "trainable", "same", "gradient", "steps", "fit", "inference", "torch", "saved")
FLOATS = (np.float32, np.float64, np.float16)
_QUANTISED = {
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul",
    "MatMulInteger", "ConvInteger", "QLinearConv", "QLinearMatMul", "MatMulIntegerToFloat",
}  # fmt: skip
_LITERALS = (["value_float"], ["value_floats"])
_LAST = ("ArgMax", "Cast", "Squeeze", "Unsqueeze", "Identity", "Transpose", "Reshape")
Arrays = dict[str, np.ndarray]


class Miss(Exception):
    """A stage whose result is not what it should be."""


class Examination:
    """The stages of one file. `found` collects their results."""

    def __init__(self, path: Path, recipe: dict[str, Any]) -> None:
        self.path = path
        self.recipe = recipe
        self.blurred = ""
        self.random = np.random.default_rng(recipe.get("seed", 0))
        self.found: dict[str, Any] = {}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[dict[str, Any]]:
        """Record whether the block succeeded and how long it took."""
        entry: dict[str, Any] = {"ok": False}
        self.found[name] = entry
        start = time.perf_counter()
        try:
            yield entry
            entry["ok"] = True
        except Miss as miss:
            entry["reason"] = str(miss)
        except onward.OnwardError as error:
            entry["reason"] = str(error)[:1500]
            entry["refused"] = True
        except Exception as error:  # noqa: BLE001  # a foreign exception is a fault of ours, and is reported as one
            entry["reason"] = f"{type(error).__name__}: {str(error)[:1200]}"
            entry["foreign"] = traceback.format_exc()[-3000:]
        entry["seconds"] = round(time.perf_counter() - start, 3)

    def ok(self, *names: str) -> bool:
        """Return whether the stages succeeded."""
        return all(self.found.get(n, {}).get("ok") for n in names)

    def run(self) -> dict[str, Any]:
        """Run all stages that can be reached."""
        with self.stage("runs"):
            self.session = _session(str(self.path))
            self._draw(None)
        if not self.ok("runs"):
            return self.found
        with self.stage("check") as entry:
            report = onward.check(str(self.path))
            entry["warnings"] = len(report.warnings)
            if not report.ok:
                raise Miss(str(report.errors[0]))
        with self.stage("trainable") as entry:
            self._make(entry)
        if not self.ok("trainable"):
            return self.found
        for name in ("same", "gradient", "steps", "fit", "inference", "torch", "saved"):
            with self.stage(name) as entry:
                getattr(self, "_" + name)(entry)
        self.found["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        return self.found

    def _draw(self, values: str | None) -> None:
        """Draw the inputs and compute the outputs; `values` replaces how floating-point inputs are drawn."""
        self.batch = {i.name: self._input(i.name, values) for i in self.session.get_inputs()}
        if getattr(self, "inner", None):
            self.outputs = _run(self.inner, self.batch)
        else:
            self.outputs = _run(self.session, self.batch)

    def _input(self, name: str, other: str | None) -> np.ndarray:
        given = self.recipe["inputs"][name]
        shape, dtype, values = given["shape"], given["dtype"], given.get("values", "normal")
        if dtype in ("object", "string", "str"):
            return np.full(shape, "a", dtype=object)
        if isinstance(values, int | float):
            return np.full(shape, values, dtype=dtype)
        if isinstance(values, list):
            return np.asarray(values, dtype=dtype).reshape(shape)
        if values in ("zeros", "ones"):
            return np.full(shape, values == "ones", dtype=dtype)
        kind = np.dtype(dtype).kind
        if kind in "iu":
            limit = int(values.removeprefix("int")) if values.startswith("int") else 2
            return self.random.integers(0, max(1, limit), shape).astype(dtype)
        if kind == "b":
            return self.random.random(shape) < 0.5
        values = other or values
        drawn = self.random.random(shape) if values == "uniform" else self.random.normal(size=shape)
        return np.asarray(drawn * {"small": 0.1, "large": 10.0}.get(values, 1.0), dtype=dtype)

    def _make(self, entry: dict[str, Any]) -> None:
        """Make the file trainable as a user would: mean squared error on the outputs that are numbers."""
        self.read = self._readable()
        loss: Any = "mse" if len(self.read) == 1 else dict.fromkeys(self.read, "mse")
        options = {"output": self.read[0]} if len(self.read) == 1 else {}
        self.quantised = any(n.op_type in _QUANTISED for n in _all_nodes(self.proto.graph))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            options |= {"loss": loss, "optimizer": onward.SGD(1e-3), **self.recipe.get("arguments", {})}
            begin = time.perf_counter()
            try:
                self.usual = onward.make_trainable(str(self.path), **options)
            except onward.OnwardError as error:
                if not self.quantised or "dequantize=True" not in str(error):  # all weights are integers
                    raise
                options["dequantize"] = True
                self.usual = onward.make_trainable(str(self.path), **options)
            entry["make_seconds"] = round(time.perf_counter() - begin, 3)
            if self.quantised:
                options["dequantize"] = True
            self.options = options
            self.model = onward.make_trainable(self._without_dropout(), batch_norm="freeze", **options)
        entry["warnings"] = [str(w.message)[:200] for w in caught]
        entry["parameters"] = len(self.usual.parameters)
        entry["numbers"] = int(sum(p.const_value.size for p in self.usual.parameters.values()))
        if len(self.model.targets) != len(self.read):
            raise Miss(f"{len(self.read)} outputs, but the targets are {self.model.targets}")
        self._aim()

    def _without_dropout(self) -> Any:
        """Return the file, or a copy without Dropout, which is active in training and which a difference cannot see."""
        if not any(n.op_type == "Dropout" for n in _all_nodes(self.proto.graph)):
            return str(self.path)
        model = onnx.load(str(self.path))
        for node in _all_nodes(model.graph):
            if node.op_type == "Dropout":
                node.op_type = "Identity"
                del node.input[1:], node.output[1:], node.attribute[:]
        return model

    def _readable(self) -> list[str]:
        """Return the outputs that a loss may read; of a file that returns classes, what the last ArgMax reads."""
        self.proto = onnx.load(str(self.path), load_external_data=False)
        if "outputs" in self.recipe:
            found = self.recipe["outputs"]
        else:
            found = [n for n, v in self.outputs.items() if getattr(v, "dtype", None) in FLOATS and v.size]
            found = [n for n in found if np.isfinite(self.outputs[n]).all()]
        if not found:
            makers = {o: n for n in self.proto.graph.node for o in n.output}
            name = self.proto.graph.output[0].name
            while (node := makers.get(name)) is not None and node.op_type in _LAST:
                name = node.input[0]
                if node.op_type == "ArgMax":
                    found = [name]
                    break
        if not found:
            raise Miss("no output is a tensor of finite floating-point numbers")
        hidden = [n for n in found if n not in self.outputs]
        if hidden:
            model = onnx.load(str(self.path))
            model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in hidden)
            self.inner = _session(model.SerializeToString())
            self.outputs = _run(self.inner, self.batch)
        return found

    def _aim(self) -> None:
        """Make targets near the outputs: what the file computes, with noise of the same size."""
        self.precision = max(float(np.finfo(self.outputs[o].dtype).eps) for o in self.read)
        for target, output in zip(self.model.targets, self.read, strict=True):
            value = self.outputs[output]
            scale = float(np.std(value.astype(np.float64))) or 1.0
            noise = self.random.normal(size=value.shape) * scale
            self.batch[target] = np.asarray(value + noise, dtype=value.dtype)

    def _same(self, entry: dict[str, Any]) -> None:
        """Making a file trainable changes none of its outputs."""
        # ONNX Runtime's fused 8-bit kernels differ by 10 % from its own operators on processors without VNNI
        # (products saturate in 16 bits): quantised files are compared operator by operator.
        before = _session(str(self.path), fused=False) if self.quantised else self.session
        after = _session(onward.to_inference(self.usual).SerializeToString(), fused=not self.quantised)
        now, plain = _run(after, self._inputs()), None
        for name, value in _run(before, self._inputs()).items():
            try:
                _compare(name, now[name], value, 0.1 if self.quantised else 1e-4)
            except (
                Miss
            ):  # some networks amplify rounding: as much as between ONNX Runtime's own two ways is none of ours
                plain = plain or _run(_session(str(self.path), fused=False), self._inputs())
                _compare(name, now[name], value, float(np.abs(plain[name] - value).max() / np.abs(value).max()))
                entry["note"] = "differs by less than ONNX Runtime does from itself without fusions"

    def _steps(self, entry: dict[str, Any]) -> None:
        """Three steps on ONNX Runtime lower the loss at some rate."""
        losses: dict[str, Any] = {}
        # Rounding to 8 bits hides the effect of three steps on the few weights that are float: then all are trained. A
        # decoder may stop elsewhere in training mode, with the statistics of one sample: then they are frozen.
        for model in (self.usual, self.model):
            program = onward.compile(model)
            session = open_session(program, "onnxruntime")
            start = session.get_state()
            setting = program.first.learning_rates[0]
            for rate in self._rates():
                session.set_state(start)
                feeds = {**self.batch, setting: np.asarray(rate, program.settings[setting].dtype)}
                begin = time.process_time()  # of all threads: it does not depend on what else the machine does
                try:
                    seen = [float(session.step(feeds)[program.loss]) for _ in range(3)]
                except onward.OnwardError as error:  # a decoder that a large step let stop elsewhere than the target
                    if model is self.model and rate == self._rates()[-1]:
                        raise
                    losses[f"{rate}, {len(model.parameters)} weights"] = str(error)[:200]
                    continue
                entry["step_seconds"] = round((time.process_time() - begin) / 3, 3)
                shown = [float(f"{v:.6g}") for v in seen]
                losses[f"{rate}, {len(model.parameters)} weights"] = shown
                if np.isfinite(seen).all() and seen[2] < seen[0]:
                    entry["rate"], entry["losses"], self.learning = rate, shown, model
                    entry["dequantized"] = self.quantised and model is self.model
                    if model is self.model and not self.quantised:
                        entry["note"] = "with batch_norm='freeze': in training mode the output has another length"
                    return
            if not self.quantised and not all(isinstance(seen, str) for seen in losses.values()):
                break
        raise Miss(f"the loss does not fall at any rate: {losses}")

    def _rates(self) -> list[float]:
        """Return learning rates to try: those at which the gradient predicts that a part of the loss goes."""
        slope = sum(float((g.astype(np.float64) ** 2).sum()) for g in getattr(self, "ours", {}).values())
        if not np.isfinite(slope) or slope == 0:
            return [1e-2, 1e-4, 1e-6]
        return [float(f"{part * self.loss / slope:.3g}") for part in (0.3, 0.03, 3e-3, 3e-4, 3e-5, 3e-6, 1e-7)]

    def _fit(self, entry: dict[str, Any]) -> None:
        """The loop takes the batch as the file's inputs and outputs have it."""
        trainer = onward.Trainer(getattr(self, "learning", self.usual))
        rate = self.found["steps"].get("rate", 0.0)
        history = trainer.fit([self.batch, self.batch], epochs=1, progress=False, learning_rate=rate)
        entry["loss"] = history["loss"][-1]

    def _gradient(self, entry: dict[str, Any]) -> None:
        """Our gradient agrees with finite differences of ONNX Runtime's own run of the file, tensor by tensor."""
        self.program = onward.compile(self.model, split=True)
        for values in (None, "uniform", "small", "large"):  # a network may be dead for one kind of noise: see `_blind`
            if values is not None:
                self._draw(values)
                self._aim()
            self.ours, self.loss = _gradients(self.program, "onnxruntime", self.batch)
            if any(g.any() for g in self.ours.values()) and not self._blind():
                break
        weights = {n: np.asarray(self.program.state[n]) for n in self.ours}
        wrong = [n for n, g in self.ours.items() if not np.isfinite(g).all()]
        if wrong:
            raise Miss(f"gradients that are not finite: {wrong[:5]}")
        entry["zero"] = sorted(n for n, g in self.ours.items() if not g.any())[:20]
        moving = [n for n in self.ours if self.ours[n].any()]
        if not moving:
            raise Miss("every gradient is zero")
        inference = onward.to_inference(self.model)
        known = {o.name for o in inference.graph.output}
        inference.graph.output.extend(onnx.ValueInfoProto(name=n) for n in self.read if n not in known)
        forward = _forward(inference, weights, self._inputs())
        begin = time.perf_counter()
        forward({})
        slow = time.perf_counter() - begin
        chosen = [moving] + [[n] for n in _spread(moving, 8 if slow < 0.05 else 4 if slow < 0.3 else 1)]
        checks = [self._difference(names, weights, forward) for names in chosen]
        entry["checked"] = sum(c["verdict"] == "agrees" for c in checks)
        entry["unclear"] = sum(c["verdict"] == "unclear" for c in checks)
        entry["worst"] = max((c["error"] for c in checks if c["verdict"] == "agrees"), default=None)
        bad = [c for c in checks if c["verdict"] == "differs"]
        # Steps over kinks and the rounding of float32 blur differences: there, PyTorch's autograd decides (_torch).
        self.blurred = (
            f"finite differences of ONNX Runtime: {bad[:3] or checks[:2]}" if bad or not entry["checked"] else ""
        )
        # A tensor whose gradient is a rounding error of the loss may differ by any factor: there, too, PyTorch decides.
        far = [c for c in bad if c["error"] > 0.15]
        if not self.quantised and (len(far) > 1 or any(c["tensors"] == "all" for c in far)):
            raise Miss(f"differs from finite differences of ONNX Runtime: {bad[:3]}")

    def _blind(self) -> bool:
        """Return whether the file sees nothing in the inputs: all its numbers are within rounding of 0 or of 1.

        A text detector gives noise the logit -50. In float32, the Sigmoid of that and its slope are multiples of 2^-24
        on ONNX Runtime and 1e-22 on PyTorch: what differs between them is rounding, not a gradient.
        """
        values = np.concatenate([self.outputs[o].astype(np.float64).ravel() for o in self.read])
        return bool((np.minimum(np.abs(values), np.abs(1 - values)) < 1e-5).all())

    def _difference(self, names: list[str], weights: Arrays, forward: Callable[[Arrays], Arrays]) -> dict[str, Any]:
        """Compare the change of the loss along our gradient of some tensors with the change that it predicts.

        The ratio of both is 1 for a right gradient and a small step. Steps from large to small are tried; the ratio
        counts where it agrees best with that of its neighbours, because large steps meet curvature and small ones meet
        rounding.
        """
        length = np.sqrt(sum(float((self.ours[n].astype(np.float64) ** 2).sum()) for n in names))
        size = np.sqrt(sum(float((weights[n].astype(np.float64) ** 2).sum()) for n in names)) or 1.0
        ratios, doubts = [], []
        for step in size * np.geomspace(0.1, 1e-6, 11):
            sides = []
            for sign in (1, -1):
                moved = {
                    n: np.asarray(weights[n] + sign * step / length * self.ours[n].astype(np.float64), weights[n].dtype)
                    for n in names
                }
                sides.append((moved, self._loss(forward(moved))))
            (ahead, above), (behind, below) = sides
            predicted = sum(
                float((self.ours[n].astype(np.float64) * (ahead[n].astype(np.float64) - behind[n])).sum())
                for n in names
            )
            ratios.append((above - below) / (predicted or np.inf))
            doubts.append(2 * self.precision * abs(above) / (predicted or 1e-300))
        change = np.abs(np.diff(ratios))
        doubt = np.maximum(change[:-1], change[1:]) + np.array(doubts[1:-1])
        # Relative to the ratio: along a function that saturates, all ratios are 0.
        doubt = np.where(np.isfinite(doubt), doubt / np.maximum(np.abs(ratios[1:-1]), 1e-30), np.inf)
        at = int(np.argmin(doubt))
        ratio = float(ratios[at + 1])
        near = doubt[at] <= 0.1 and abs(ratio - 1) <= 0.02 + 2 * doubt[at]
        verdict = "agrees" if near else "unclear" if doubt[at] > 0.03 else "differs"
        return {
            "tensors": names[0] if len(names) == 1 else "all",
            "ratio": float(f"{ratio:.6g}"),
            "error": float(f"{abs(ratio - 1):.3g}"),
            "doubt": float(f"{doubt[at]:.3g}"),
            "verdict": verdict,
        }

    def _loss(self, outputs: Arrays) -> float:
        """Return the sum of the mean squared errors, in float64."""
        total = 0.0
        for target, output in zip(self.model.targets, self.read, strict=True):
            if outputs[output].shape != self.batch[target].shape:
                return np.nan  # a decoder that moved weights let stop elsewhere: no difference of this step counts
            difference = outputs[output].astype(np.float64) - self.batch[target].astype(np.float64)
            total += float((difference**2).mean())
        return total

    def _inputs(self) -> Arrays:
        return {i.name: self.batch[i.name] for i in self.session.get_inputs()}

    def _inference(self, entry: dict[str, Any]) -> None:
        """The tuned file has the inputs and outputs of the file, and runs."""
        tuned = _session(onward.to_inference(self.usual).SerializeToString())
        initializers = {i.name for i in onnx.load(str(self.path), load_external_data=False).graph.initializer}
        for kind in ("get_inputs", "get_outputs"):
            before = [(v.name, v.type, v.shape) for v in getattr(self.session, kind)() if v.name not in initializers]
            after = [(v.name, v.type, v.shape) for v in getattr(tuned, kind)()]
            if [b[:2] for b in before] != [a[:2] for a in after]:
                raise Miss(f"{kind}: {before} became {after}")
        _run(tuned, self._inputs())

    def _torch(self, entry: dict[str, Any]) -> None:
        """PyTorch computes the same loss and the same gradients."""
        if not hasattr(self, "ours"):
            raise Miss("no gradients to compare with")
        if self.quantised:  # autograd has no straight-through gradient: our graph, with PyTorch's kernels
            theirs, _ = _gradients(self.program, "torch", self.batch)
        else:
            theirs = _autograd(self.model, self.batch)
            if not all(np.isfinite(g).all() for g in theirs.values()):  # `Where(x == 0, 1, sin(x) / x)`
                entry["note"] = "PyTorch's autograd gives NaN; compared with our graph on PyTorch's kernels"
                theirs, _ = _gradients(self.program, "torch", self.batch)
        worst, cosine = _distance(self.ours, theirs)
        entry["worst"], entry["cosine"] = float(f"{worst:.3g}"), float(f"{cosine:.6f}")
        coarse = self.quantised or any(g.dtype == np.float16 for g in self.ours.values())
        agrees = cosine > 0.9 if coarse else worst < 5e-2 and cosine > 0.999
        if not (agrees or coarse):  # two roundings of float32 may differ by that: float64 decides
            exact = _autograd(self._in_float64(), {k: _wide(v) for k, v in self.batch.items()})
            (ours, ours_cosine), (other, other_cosine) = _distance(self.ours, exact), _distance(theirs, exact)
            agrees = ours < max(5e-2, 2 * other) and ours_cosine > min(0.999, 2 * other_cosine - 1)
            entry["note"] = (
                f"float32 rounds: from float64, ONNX Runtime is {ours:.3g} away (cosine {ours_cosine:.6f}), "
                f"PyTorch's float32 {other:.3g} (cosine {other_cosine:.6f})"
            )
        if self.blurred and not (agrees or self.quantised):
            self.found["gradient"] |= {"ok": False, "reason": self.blurred}
        if self.blurred:
            self.found["gradient"]["note"] = f"by PyTorch's autograd; {self.blurred}"
        if not agrees:
            why = f"gradients differ by {worst:.3g} of their largest element, cosine {cosine:.6f}"
            raise Miss(f"{why}; {entry['note']}" if "note" in entry else why)

    def _in_float64(self) -> onward.TrainingModel:
        """Return the model with float64 wherever the file has float32."""
        model = onnx.load(str(self.path))
        nodes = [n for n in _all_nodes(model.graph) if n.op_type in ("Resize", "Upsample")]
        _widen(model, {name for n in nodes for name in n.input[1:]})  # their scales are float32 whatever they resize
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return onward.make_trainable(model, batch_norm="freeze", **self.options)

    def _saved(self, entry: dict[str, Any]) -> None:
        """Saving and loading loses nothing."""
        with tempfile.TemporaryDirectory() as folder:
            first, second = Path(folder, "a.onnx"), Path(folder, "b.onnx")
            onward.save(self.usual, first)
            again = onward.load(first)
            onward.save(again, second)
            if first.read_bytes() != second.read_bytes():
                raise Miss("saving what was loaded writes other bytes")
            for name, value in self.usual.parameters.items():
                if again.parameters[name].const_value.numpy().tobytes() != value.const_value.numpy().tobytes():
                    raise Miss(f"`{name}` has other numbers")


def _session(model: Any, fused: bool = True) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not fused:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _run(session: ort.InferenceSession, feeds: Arrays) -> Arrays:
    names = [o.name for o in session.get_outputs()]
    wanted = {i.name for i in session.get_inputs()}
    return dict(zip(names, session.run(names, {k: v for k, v in feeds.items() if k in wanted}), strict=True))


def _gradients(program: onward.Program, backend: str, batch: Arrays) -> tuple[Arrays, float]:
    """Return the gradient of each parameter by its name, and the loss."""
    graph = program.first.gradients
    assert graph is not None
    out = open_session(program, backend).run_graph(graph, batch)
    gradients = {x: np.asarray(out[name]) for name, (_, x) in graph.gradient_of.items()}
    return gradients, float(out[program.loss])


def _autograd(model: onward.TrainingModel, batch: Arrays) -> Arrays:
    """Return the gradients that PyTorch's autograd finds for the forward pass."""
    import torch

    module, _ = onward.to_torch(model)
    names = [*module.input_names, *module.target_names]
    module.loss(**{n: torch.from_numpy(np.array(batch[n])) for n in names}).backward()
    found = {}
    for name in model.parameters:
        owner, attribute = module._paths[name]
        parameter = getattr(owner, attribute)
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        found[name] = grad.detach().numpy()
    return found


def _distance(ours: Arrays, theirs: Arrays) -> tuple[float, float]:
    """Return the largest difference, relative to the largest element of its tensor, and the cosine of the whole."""
    total = max(float(np.abs(g).max()) for g in ours.values())
    worst, dot, one, other = 0.0, 0.0, 0.0, 0.0
    for name, value in ours.items():
        a, b = value.astype(np.float64), theirs[name].astype(np.float64)
        worst = max(worst, float(np.abs(a - b).max()) / max(float(np.abs(a).max()), 1e-3 * total, 1e-30))
        dot, one, other = dot + float((a * b).sum()), one + float((a**2).sum()), other + float((b**2).sum())
    return worst, dot / max(np.sqrt(one * other), 1e-30)


def _wide(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float64) if value.dtype == np.float32 else value


def _widen(message: Any, keep: set[str]) -> None:
    """Turn float32 into float64 in a model or in a part of it: tensors except those to keep, types, names of types."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for part in value if isinstance(value, collections.abc.Iterable) else [value]:
            if isinstance(part, onnx.NodeProto) and part.op_type == "Constant" and part.output[0] in keep:
                continue
            if isinstance(part, onnx.TensorProto):
                if part.data_type == onnx.TensorProto.FLOAT and part.name not in keep:
                    part.CopyFrom(numpy_helper.from_array(_wide(numpy_helper.to_array(part)), part.name))
            elif isinstance(part, onnx.TypeProto.Tensor):
                if part.elem_type == onnx.TensorProto.FLOAT:
                    part.elem_type = onnx.TensorProto.DOUBLE
            elif (
                isinstance(part, onnx.NodeProto) and part.op_type == "Constant" and part.attribute[0].name in _LITERALS
            ):
                attribute = part.attribute[0]
                array = np.array(attribute.floats if attribute.name == "value_floats" else attribute.f, np.float64)
                attribute.CopyFrom(onnx.helper.make_attribute("value", numpy_helper.from_array(array)))
            elif isinstance(part, onnx.AttributeProto) and part.name in ("to", "dtype", "output_dtype"):
                part.i = onnx.TensorProto.DOUBLE if part.i == onnx.TensorProto.FLOAT else part.i
            elif isinstance(part, onnx.NodeProto) and part.op_type == "ConstantOfShape" and not part.attribute:
                zero = numpy_helper.from_array(np.zeros(1, np.float64))
                part.attribute.append(onnx.helper.make_attribute("value", zero))
            else:
                _widen(part, keep)


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all_nodes(attribute.g)


def _forward(model: onnx.ModelProto, weights: Arrays, batch: Arrays) -> Callable[[Arrays], Arrays]:
    """Return a function of changed weights that runs the file itself in ONNX Runtime."""
    kept = [i for i in model.graph.initializer if i.name not in weights]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    listed = {v.name for v in model.graph.input}  # a file of IR version 3 lists its weights among them
    for name, value in weights.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        if name not in listed:
            model.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, value.shape))
    session = _session(model.SerializeToString())
    return lambda moved: _run(session, {**batch, **weights, **moved})


def _spread(names: list[str], count: int) -> list[str]:
    """Return some of the names, from the first to the last."""
    return [names[i] for i in sorted({round(k) for k in np.linspace(0, len(names) - 1, min(count, len(names)))})]


def _compare(name: str, ours: Any, theirs: Any, tolerance: float) -> None:
    if not isinstance(theirs, np.ndarray) or theirs.dtype.kind not in "fiub":
        return
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        raise Miss(f"`{name}` was {theirs.dtype}{theirs.shape} and is {ours.dtype}{ours.shape}")
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        raise Miss(f"`{name}` is finite elsewhere than before")
    both = np.isfinite(b)
    gap = np.abs(a - b)[both].max(initial=0) / max(np.abs(b[both]).max(initial=0), 1e-6)
    if gap > (2e-2 if theirs.dtype == np.float16 else tolerance):
        raise Miss(f"`{name}` changed by {gap:.3g} of its largest element")


def main() -> None:
    """Examine the file named on the command line."""
    path, recipe = Path(sys.argv[1]), json.loads(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (12 << 30, 12 << 30))
    with contextlib.redirect_stdout(io.StringIO()):
        found = Examination(path, recipe).run()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
