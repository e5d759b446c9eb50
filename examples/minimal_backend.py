"""A backend in numpy with only the core operators: it runs and trains whatever `onward compile --core` writes.

Read it from top to bottom: the operators, the loop over the nodes of a graph, ONNX's backend interface, training.
It needs numpy and onnx. Onward is imported in one place, `lowered`, to rewrite models that have other operators;
programs that were compiled with `--core` run without it. docs/writing_a_backend.md explains the choices.

    onward sample digits -o digits.onnx
    onward compile digits.onnx --core -o program/
    python examples/minimal_backend.py program/ digits.npz
"""

from __future__ import annotations

import functools
import json
import math
import pathlib
import struct
import sys
import tempfile
import unittest
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Values = dict[str, Any]  # the values of a graph by name: arrays, lists (sequences) or None (an empty optional)
OPERATORS: dict[str, Callable[..., Any]] = {}
"""Core operator -> function of its inputs and attributes, which gives one output, or a tuple of them."""


def operator(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function under its own name."""
    OPERATORS[function.__name__] = function
    return function


# -- element-wise ----------------------------------------------------------------------------------------------------

OPERATORS |= {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Abs": np.abs, "Exp": np.exp, "Log": np.log,
    "Sqrt": np.sqrt, "Sin": np.sin, "Cos": np.cos, "Atan": np.arctan, "Tanh": np.tanh, "Floor": np.floor,
    "Round": np.rint, "Equal": np.equal, "Less": np.less, "And": np.logical_and, "Or": np.logical_or,
    "Not": np.logical_not, "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor,
    "Where": np.where,
}  # fmt: skip


@operator
def Div(a: Any, b: Any) -> Any:
    if a.dtype.kind in "iu":  # towards zero, where numpy rounds down
        quotient = np.floor_divide(a, b)
        return quotient + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0))).astype(a.dtype)
    return np.divide(a, b)


@operator
def Pow(x: Any, y: Any) -> Any:
    if x.dtype.kind in "iu" and y.dtype.kind == "i":
        return np.power(x.astype(np.float64), y).astype(x.dtype) if (y < 0).any() else np.power(x, y.astype(x.dtype))
    return np.power(x, y).astype(x.dtype)


@operator
def Erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64)).astype(x.dtype)


OPERATORS["Max"] = lambda *values: functools.reduce(np.maximum, values)
OPERATORS["Min"] = lambda *values: functools.reduce(np.minimum, values)
OPERATORS["BitShift"] = lambda x, y, direction: (np.left_shift if direction == "LEFT" else np.right_shift)(x, y)
OPERATORS["Mod"] = lambda a, b, fmod=0: (np.fmod if fmod else np.mod)(a, b)


@operator
def Cast(x: Any, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    if to == onnx.TensorProto.STRING or x.dtype.kind in "OUS":
        return x.astype(str).astype(object) if to == onnx.TensorProto.STRING else x.astype(float).astype(dtype_of(to))
    if to >= onnx.TensorProto.FLOAT8E4M3FN:
        return _narrow(x, to, saturate, round_mode)
    return x.astype(dtype_of(to))


def _narrow(x: Any, to: int, saturate: int, round_mode: str) -> Any:
    """Convert to a type of 8 bits or less, which has rules of its own for what does not fit: onnx knows them."""
    dtype = dtype_of(to)
    if "int" in dtype.name:  # the lowest bits, as all integers
        bits = int(dtype.name[-1])
        kept = np.bitwise_and(x.astype(np.int64), (1 << bits) - 1)
        return np.where(dtype.name.startswith("int") & (kept >> (bits - 1) == 1), kept - (1 << bits), kept).astype(
            dtype
        )
    if to == onnx.TensorProto.FLOAT8E8M0:
        return numpy_helper.to_float8e8m0(x.astype(np.float32), bool(saturate), round_mode)
    return numpy_helper.saturate_cast(x, dtype) if saturate else x.astype(dtype)


OPERATORS["BitCast"] = lambda x, to: np.ascontiguousarray(x).view(dtype_of(to)).reshape(x.shape)


def dtype_of(element_type: int) -> np.dtype:
    """Return numpy's name of one of ONNX's element types (bfloat16 and smaller ones are those of ml_dtypes)."""
    return helper.tensor_dtype_to_np_dtype(element_type)


# -- contraction and reduction ---------------------------------------------------------------------------------------


# Products of 16-bit floats come as float32.
OPERATORS["MatMul"] = lambda a, b: np.matmul(a, b).astype(a.dtype)


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        if axes is None or axes.size == 0:
            if noop_with_empty_axes:
                return x
            axes = np.arange(x.ndim)
        return function(x, tuple(int(a) for a in axes), bool(keepdims))

    return run


def _largest(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    if x.dtype.kind == "b":
        return np.any(x, axis=axes, keepdims=keepdims)
    lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    return np.max(x, axis=axes, keepdims=keepdims, initial=x.dtype.type(lowest))


OPERATORS["ReduceSum"] = _reduction(lambda x, axes, keep: np.sum(x, axis=axes, keepdims=keep, dtype=x.dtype))
OPERATORS["ReduceProd"] = _reduction(lambda x, axes, keep: np.prod(x, axis=axes, keepdims=keep, dtype=x.dtype))
OPERATORS["ReduceMax"] = _reduction(_largest)


def _cumulative(function: Any) -> Callable[..., Any]:
    def run(x: Any, axis: Any, exclusive: int = 0, reverse: int = 0) -> Any:
        axis = int(np.asarray(axis).reshape(()))
        x = np.flip(x, axis) if reverse else x
        made = function(x, axis=axis, dtype=x.dtype)
        if exclusive:
            first = np.full_like(np.take(x, [0], axis), 0 if function is np.cumsum else 1)
            made = np.concatenate([first, np.take(made, np.arange(x.shape[axis] - 1), axis)], axis)
        return np.flip(made, axis) if reverse else made

    return run


OPERATORS["CumSum"], OPERATORS["CumProd"] = _cumulative(np.cumsum), _cumulative(np.cumprod)

# -- layout ----------------------------------------------------------------------------------------------------------


@operator
def Constant(**given: Any) -> Any:
    ((name, value),) = given.items()
    kinds = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
    return numpy_helper.to_array(value) if name == "value" else np.array(value, kinds.get(name, object))


OPERATORS |= {
    "Identity": lambda x: x,
    "Shape": lambda x, start=0, end=None: np.array(x.shape[start:end], np.int64),
    "Transpose": lambda x, perm=None: np.transpose(x, perm),
    "Expand": lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist()))),
    "Concat": lambda *values, axis: np.concatenate(values, axis),
}


@operator
def Reshape(x: Any, shape: Any, allowzero: int = 0) -> Any:
    sizes = [x.shape[i] if s == 0 and not allowzero else int(s) for i, s in enumerate(shape)]
    return x.reshape(sizes)


@operator
def Slice(x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    axes = np.arange(len(starts)) if axes is None else axes
    steps = np.ones(len(starts), np.int64) if steps is None else steps
    index: list[Any] = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts.tolist(), ends.tolist(), axes.tolist(), steps.tolist(), strict=True):
        size = x.shape[axis]
        start, end = (v + size if v < 0 else v for v in (start, end))
        if step > 0:
            index[axis] = slice(min(max(start, 0), size), min(max(end, 0), size), step)
        else:
            last = min(max(end, -1), size - 1)
            index[axis] = slice(min(max(start, 0), size - 1), None if last < 0 else last, step) if size else slice(0, 0)
    return x[tuple(index)]


@operator
def Pad(x: Any, pads: Any, value: Any = None, axes: Any = None, mode: str = "constant") -> Any:
    places = range(x.ndim) if axes is None else [int(a) % x.ndim for a in axes]
    width = np.zeros((x.ndim, 2), np.int64)
    width[list(places)] = np.asarray(pads).reshape(2, -1).T
    cut = tuple(slice(max(-b, 0), size - max(-e, 0)) for (b, e), size in zip(width.tolist(), x.shape, strict=True))
    fill = x.dtype.type(0 if value is None else value.reshape(()))
    x, width = x[cut], np.maximum(width, 0)
    made = np.full([s + int(b) + int(e) for s, (b, e) in zip(x.shape, width, strict=True)], fill, x.dtype)
    made[tuple(slice(int(b), int(b) + s) for s, (b, _) in zip(x.shape, width, strict=True))] = x
    return made


# -- indexing --------------------------------------------------------------------------------------------------------


@operator
def Range(start: Any, limit: Any, delta: Any) -> Any:
    count = max(0, math.ceil((limit.item() - start.item()) / delta.item()))
    return (start.reshape(()) + np.arange(count) * delta.reshape(())).astype(start.dtype)


OPERATORS["Gather"] = lambda x, indices, axis=0: np.take(x, indices, axis)
OPERATORS["NonZero"] = lambda x: np.array(np.nonzero(np.atleast_1d(x)), np.int64)


@operator
def ScatterND(data: Any, indices: Any, updates: Any, reduction: str = "none") -> Any:
    made, index = data.copy(), tuple(np.moveaxis(indices, -1, 0))
    if reduction == "none":
        made[index] = updates
    else:
        {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[reduction].at(made, index, updates)
    return made


@operator
def TopK(x: Any, k: Any, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    moved = np.moveaxis(x, axis, -1)
    # A stable sort of the reversed axis, reversed: of equal elements, the first comes first.
    n = moved.shape[-1]
    order = np.argsort(moved, -1, kind="stable")
    if largest:
        order = n - 1 - np.argsort(moved[..., ::-1], -1, kind="stable")[..., ::-1]
    chosen = order[..., : int(np.asarray(k).reshape(()))].astype(np.int64)
    values = np.take_along_axis(moved, chosen, -1)
    return np.moveaxis(values, -1, axis), np.moveaxis(chosen, -1, axis)


@operator
def Unique(x: Any, axis: int | None = None, sorted: int = 1) -> Any:
    _, index, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:  # in the order of the first occurrences
        order = np.argsort(index, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        index, inverse, counts = index[order], place[inverse], counts[order]
    values = np.take(x, index, axis) if axis is not None else x.reshape(-1)[index]
    return values, *(a.astype(np.int64) for a in (index, inverse, counts))


# -- containers and random numbers -----------------------------------------------------------------------------------


@operator
def SequenceInsert(sequence: Any, tensor: Any, position: Any = None) -> Any:
    place = len(sequence) if position is None else int(position.reshape(()))
    place += len(sequence) if place < 0 else 0
    return [*sequence[:place], tensor, *sequence[place:]]


@operator
def SequenceErase(sequence: Any, position: Any = None) -> Any:
    made = list(sequence)
    del made[-1 if position is None else int(position.reshape(()))]
    return made


OPERATORS |= {
    "SequenceEmpty": lambda dtype=1: [],
    "SequenceAt": lambda sequence, position: sequence[int(position.reshape(()))],
    "SequenceLength": lambda sequence: np.array(len(sequence), np.int64),
    "ConcatFromSequence": lambda parts, axis, new_axis=0: (np.stack if new_axis else np.concatenate)(parts, axis),
    "Optional": lambda value=None, type=None: value,
    "OptionalHasElement": lambda value=None: np.array(value is not None),
    "OptionalGetElement": lambda value: value,
}


@operator
def RandomUniformLike(
    x: Any, dtype: int | None = None, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> Any:
    generator = np.random.default_rng(None if seed is None else abs(hash(float(seed))))
    return generator.uniform(low, high, x.shape).astype(x.dtype if dtype is None else dtype_of(dtype))


# -- graphs ----------------------------------------------------------------------------------------------------------


class Graph:
    """A graph that is ready to run: attributes are parsed, weights are arrays, dead values are known."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.weights = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self.inputs = [v.name for v in graph.input]
        self.outputs = [v.name for v in graph.output]
        self.steps = [_Step(node) for node in graph.node]

    def run(self, feeds: Mapping[str, Any], outer: Mapping[str, Any] | None = None) -> list[Any]:
        """Return the outputs; `outer` holds the values around a branch or a body."""
        values: Values = {**(outer or {}), **self.weights, **feeds}
        for step in self.steps:
            step.run(values)
        return [values[name] for name in self.outputs]


class _Step:
    """One node."""

    def __init__(self, node: onnx.NodeProto) -> None:
        if node.domain not in ("", "ai.onnx") or node.op_type not in (*OPERATORS, "If", "Loop"):
            raise NotImplementedError(f"{node.domain or 'ai.onnx'}::{node.op_type} is not a core operator")
        if node.op_type == "Pad" and any(a.name == "mode" and a.s != b"constant" for a in node.attribute):
            raise NotImplementedError("Pad is a core operator with constants only")
        self.kind, self.name = node.op_type, node.name
        self.inputs, self.outputs = list(node.input), list(node.output)
        self.attributes = {a.name: _attribute(a) for a in node.attribute}

    def run(self, values: Values) -> None:
        given = [values[name] if name else None for name in self.inputs]
        if self.kind == "If":
            branch = "then_branch" if bool(np.asarray(given[0]).reshape(())) else "else_branch"
            results = self.attributes[branch].run({}, values)
        elif self.kind == "Loop":
            results = _loop(self.attributes["body"], values, *given)
        else:
            made = OPERATORS[self.kind](*given, **self.attributes)
            results = made if isinstance(made, tuple) else (made,)
        for name, result in zip(self.outputs, results, strict=False):
            values[name] = np.asarray(result) if isinstance(result, np.generic) else result


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, onnx.GraphProto):
        return Graph(value)
    return value.decode() if isinstance(value, bytes) else value


def _loop(body: Graph, outer: Values, count: Any = None, go: Any = None, *states: Any) -> list[Any]:
    """Run the body while it says so, at most `count` times; what it gives beyond the states is stacked."""
    current, stacks = list(states), [[] for _ in body.outputs[1 + len(states) :]]
    step, limit = 0, math.inf if count is None else int(count.reshape(()))
    going = True if go is None else bool(go.reshape(()))
    while going and step < limit:
        feeds = dict(zip(body.inputs, [np.array(step, np.int64), np.array(going), *current], strict=True))
        on, *results = body.run(feeds, outer)
        going, current = bool(on.reshape(())), results[: len(states)]
        for stack, result in zip(stacks, results[len(states) :], strict=True):
            stack.append(result)
        step += 1
    return [*current, *(np.stack(stack) if stack else np.zeros((0, 0), np.float32) for stack in stacks)]


# -- ONNX's backend interface ----------------------------------------------------------------------------------------


class Prepared:
    """A model that is ready to run, as `onnx.backend.base.BackendRep`."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = Graph(model.graph)
        self.inputs = [name for name in self.graph.inputs if name not in self.graph.weights]

    def run(self, inputs: Any, **options: Any) -> tuple[Any, ...]:
        """Return the outputs for inputs in order, or by name."""
        feeds = inputs if isinstance(inputs, Mapping) else dict(zip(self.graph.inputs, inputs, strict=False))
        with np.errstate(all="ignore"):
            return tuple(np.array(v) if isinstance(v, np.ndarray) else v for v in self.graph.run(feeds))


def lowered(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with only core operators: itself if it has no others, else as Onward rewrites it."""
    try:
        Graph(model.graph)
        if not model.functions and all(o.version >= 18 for o in model.opset_import if o.domain in ("", "ai.onnx")):
            return model
    except NotImplementedError:
        pass
    from onward.compiler.core import lower_to_core
    from onward.errors import OnwardError

    try:
        return lower_to_core(model)
    except OnwardError as error:
        raise unittest.SkipTest(str(error)) if error.code in ("M304", "D201", "D202", "D203") else error from error


def prepare(model: onnx.ModelProto, device: str = "CPU", **options: Any) -> Prepared:
    """Return `model`, ready to run."""
    return Prepared(lowered(model))


def run_model(model: onnx.ModelProto, inputs: Any, device: str = "CPU", **options: Any) -> tuple[Any, ...]:
    """Return the outputs of a model."""
    return prepare(model, device).run(inputs)


def run_node(node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **options: Any) -> Any:
    """Return the outputs of one node, for arrays in the order of its inputs."""
    names = [name for name in node.input if name]
    types = [helper.np_dtype_to_tensor_dtype(np.asarray(x).dtype) for x in inputs]
    pairs = zip(names, types, inputs, strict=True)
    formal = [helper.make_tensor_value_info(n, t, np.asarray(x).shape) for n, t, x in pairs]
    outputs = [onnx.ValueInfoProto(name=n) for n in node.output if n]
    version = options.get("opset_version") or onnx.defs.onnx_opset_version()
    imports = [helper.make_opsetid("", version)]
    model = helper.make_model(helper.make_graph([node], "node", formal, outputs), opset_imports=imports)
    return run_model(model, list(inputs))


def supports_device(device: str) -> bool:
    """Return whether the backend runs on a device: on the processor only."""
    return device.split(":")[0].upper() == "CPU"


# -- training --------------------------------------------------------------------------------------------------------


class Training:
    """A program that `onward compile --core` wrote, and its state."""

    def __init__(self, folder: str | pathlib.Path, entry: int | None = None) -> None:
        self.folder = pathlib.Path(folder)
        self.manifest = json.loads((self.folder / "manifest.json").read_text())
        self.settings = {n: np.array(s["default"], s["dtype"]) for n, s in self.manifest["settings"].items()}
        self._state = read_safetensors(self.folder / self.manifest["state"]["file"])
        roles = [role for role in self.manifest["graphs"] if role.partition(":")[0] == "step"]
        roles = roles if entry is None else roles[entry : entry + 1]
        self._steps = [(self._load(role), self.manifest["graphs"][role]["outputs"]) for role in roles]
        self._names = {also: i["name"] for i in self.manifest["inputs"] for also in i.get("also", ())}
        self._initialize = self._load("initialize") if "initialize" in self.manifest["graphs"] else None

    def _load(self, role: str) -> Prepared:
        return Prepared(onnx.load(self.folder / self.manifest["graphs"][role]["file"]))

    def step(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Make one update with a batch of inputs and targets; return the loss and the other outputs."""
        seen: dict[str, Any] = {}
        for graph, described in self._steps:
            known = {**self._state, **self.settings, **{self._names.get(n, n): v for n, v in inputs.items()}}
            results = graph.run({name: known[name] for name in graph.inputs})
            for output, value in zip(described, results, strict=True):
                if output["role"] == "state":
                    self._state[output["replaces"]] = value
                else:
                    seen[output["name"]] = value
        return seen

    def initialize(self) -> None:
        """Draw new initial values, if the program says how."""
        if self._initialize is not None:
            described = self.manifest["graphs"]["initialize"]["outputs"]
            key = np.array(0, np.int64)  # where the program draws no other numbers
            results = self._initialize.run({name: self._state.get(name, key) for name in self._initialize.inputs})
            self._state |= {o["replaces"]: v for o, v in zip(described, results, strict=True)}

    def state(self) -> dict[str, Any]:
        """Return the state: weights, moments, counters."""
        return dict(self._state)


def prepare_training(model: Any, device: str = "CPU", entry: int | None = None, **options: Any) -> Training:
    """Return a program in a folder, or a model with training_info, ready to train one entry, or all of them."""
    if isinstance(model, str | pathlib.Path):
        return Training(model, entry)
    import onward

    with tempfile.TemporaryDirectory() as folder:
        onward.compile(model, core=True).save(folder, self_test=False)
        return Training(folder, entry)


def read_safetensors(path: pathlib.Path) -> dict[str, Any]:
    """Return the tensors of a safetensors file: the length of a header, the header in JSON, then the bytes."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    found = {}
    for name, about in header.items():
        if name != "__metadata__":
            begin, end = about["data_offsets"]
            kind = about["dtype"]  # F32, I64, U8, BOOL …
            dtype = "?" if kind == "BOOL" else f"<{kind[0].lower()}{int(kind[1:]) // 8}"
            found[name] = np.frombuffer(body[begin:end], dtype).reshape(about["shape"])
    return found


if __name__ == "__main__":  # train a program on the arrays of an .npz file, 64 samples at a time
    training, data = prepare_training(sys.argv[1]), np.load(sys.argv[2])
    names = [s["name"] for s in (*training.manifest["inputs"], *training.manifest["targets"])]
    for start in range(0, len(data[names[0]]) - 63, 64):
        batch = {name: data[name][start : start + 64] for name in names}
        print(f"step {start // 64}: loss {float(training.step(batch)[training.manifest['loss']]):.6f}")
