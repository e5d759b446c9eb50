"""Graphs with all sizes known, as an ahead-of-time compiler needs them.

The sizes of the inputs are written into a graph, and whole numbers that follow from them, such as the shape that a
Reshape reads or the axes of a Slice, become constants.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from onward.backends.iree.hazards import write_out_hazards
from onward.backends.iree.sized import rewrite_sized
from onward.backends.iree.unroll import unroll
from onward.backends.iree.writing import replace_nodes
from onward.compiler.program import PlainGraph, Program, TensorSpec
from onward.errors import A101, ArgumentError, BackendError, Diagnostic
from onward.model.serde import from_proto

B504 = "B504"

_LARGEST = 4096  # numbers in a folded constant
_MOST_FLOATS = 64  # in a value of floats from which sizes follow, such as the scales of a Resize
_SHOWN = 4  # names in a message
_ROUNDS = 8  # each makes further sizes known
_WHOLE = frozenset(
    getattr(onnx.TensorProto, name)
    for name in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "BOOL")
)
_FLOATS = frozenset({onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE})


def static_model(graph: PlainGraph, sizes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Return a graph as a model whose inputs have the given sizes, with the sizes of all values that follow from them.

    Raises:
        BackendError: the size of an output depends on data.
    """
    model = graph.proto()
    for value in model.graph.input:
        if value.name in sizes:
            _set_shape(value, sizes[value.name])
    return settle(model, graph.name)


def settle(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return a model whose inputs have known sizes with everything that follows from them.

    Raises:
        BackendError: the size of an output depends on data.
    """
    model = write_out_hazards(model)
    del model.graph.value_info[:]
    for node in model.graph.node:
        if node.op_type == "Constant":
            _as_tensor(node.attribute[0])
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    for _ in range(_ROUNDS):
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        folded = _fold(model)
        if not unroll(model) and not folded:
            break
        del model.graph.value_info[:]
    if rewrite_sized(model):
        del model.graph.value_info[:]
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    open_ones = [v.name for v in model.graph.output if _shape(v) is None]
    if open_ones:
        shown = ", ".join(f"`{n}`" for n in open_ones[:_SHOWN])
        more = f" and {len(open_ones) - _SHOWN} more outputs" if len(open_ones) > _SHOWN else ""
        raise BackendError(
            Diagnostic(
                B504,
                f"the size of {shown}{more} depends on data",
                place=f"the {name} graph",
                needed="sizes that are known before the run: IREE compiles ahead of time",
                hint="use another backend for this model: onnxruntime or torch; or, if a branch (If) depends on an "
                "input, make that input a constant of the model",
            )
        )
    return model


def static_program(program: Program, batch: int | None, sizes: Mapping[str, int]) -> Program:
    """Return a program for batches of one size; `sizes` are those of other free dimensions, by name.

    Raises:
        ArgumentError: a size is missing, unknown or below 1; the message lists all of them.
        BackendError: the size of an output depends on data.
    """
    specs = (*program.inputs, *program.targets)
    first = {s.shape[0] for s in specs if s.shape and not isinstance(s.shape[0], int)}
    free = {d for s in specs for d in s.shape if not isinstance(d, int)}
    problems = []
    if first and batch is None:
        problems.append(
            Diagnostic(
                A101,
                "the model takes batches of any size, and a native program is for one",
                hint="pass batch=…, the number of samples in a batch",
            )
        )
    named = {d: n for d, n in sizes.items() if d in free - first}
    problems += [
        Diagnostic(
            A101, f"no free size is called `{d}`", place="sizes=", found=", ".join(sorted(map(str, free - first)))
        )
        for d in sizes
        if d not in named
    ]
    for spec in specs:
        missing = [d for d in spec.shape if not isinstance(d, int) and d not in first and d not in named]
        if missing:
            names = ", ".join(f"`{d}`" for d in missing) if all(missing) else ""
            problems.append(
                Diagnostic(
                    A101,
                    f"`{spec.name}` has free sizes",
                    found=str([d or "?" for d in spec.shape]),
                    hint=f"pass sizes=… with a number for {names}"
                    if names
                    else "fix the sizes in the model: one of them has no name",
                )
            )
    if (batch is not None and batch < 1) or any(n < 1 for n in sizes.values()):
        problems.append(Diagnostic(A101, "a size is below 1"))
    if problems:
        raise ArgumentError(problems)
    known: dict[Any, int] = {**named, **(dict.fromkeys(first, batch) if batch is not None else {})}

    def fixed(spec: TensorSpec) -> TensorSpec:
        return dataclasses.replace(spec, shape=tuple(d if isinstance(d, int) else known[d] for d in spec.shape))

    inputs, targets = tuple(map(fixed, program.inputs)), tuple(map(fixed, program.targets))
    shapes = {s.name: [d for d in s.shape if isinstance(d, int)] for s in (*inputs, *targets)}
    made: dict[int, PlainGraph] = {}

    def settled(graph: PlainGraph | None) -> PlainGraph | None:
        if graph is None:
            return None
        if id(graph) not in made:
            model = from_proto(static_model(graph, shapes)).ir
            made[id(graph)] = dataclasses.replace(graph, model=model)
        return made[id(graph)]

    entries = {}
    for name, entry in program.entries.items():
        parts = {kind: settled(getattr(entry, kind)) for kind in ("step", "evaluate", "gradients", "update", "rate")}
        entries[name] = dataclasses.replace(entry, **parts)  # type: ignore[arg-type]  # a step is never None
    infer = settled(program.infer_graph)
    assert infer is not None
    return dataclasses.replace(
        program,
        entries=entries,
        infer_graph=infer,
        initialize_graph=settled(program.initialize_graph),
        inputs=inputs,
        targets=targets,
        self_test=None,
    )


def _fold(model: onnx.ModelProto) -> bool:
    """Replace nodes that give whole numbers, and read only what is known, by constants; return whether there are any.

    Arithmetic on floats stays, because its last digits belong to the runtime; but whole numbers that follow from few
    known floats, such as sizes times scales, become constants.
    """
    graph = model.graph
    types = {v.name: v for v in (*graph.input, *graph.value_info, *graph.output)}
    known = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer if _is_small(t)}
    nodes: list[onnx.NodeProto] = []
    changed = False
    for node in graph.node:
        if node.op_type == "Constant":
            value = _constant(node)
            if value is not None:
                known[node.output[0]] = value
            nodes.append(node)
            continue
        found = _values(node, known, types, model)
        known |= found
        whole = bool(found) and all(v.dtype.kind in "iub" for v in found.values())
        changed = changed or whole
        nodes += [_as_constant(name, value, node.name) for name, value in found.items()] if whole else [node]
    if changed:
        replace_nodes(graph, nodes)
    return changed


def _as_constant(name: str, value: np.ndarray, label: str) -> onnx.NodeProto:
    return onnx.helper.make_node("Constant", [], [name], name=label, value=onnx.numpy_helper.from_array(value))


def _values(
    node: onnx.NodeProto, known: Mapping[str, np.ndarray], types: Mapping[str, Any], model: onnx.ModelProto
) -> dict[str, np.ndarray]:
    """Return the whole numbers, or few floats, that a node gives, by output; nothing if they are not known."""
    if node.domain not in ("", "ai.onnx"):
        return {}
    if node.op_type in ("Shape", "Size"):
        shape = _shape(types[node.input[0]]) if node.input[0] in types else None
        if shape is None:
            return {}
        given: dict[str, int] = {a.name: a.i for a in node.attribute}
        sizes = shape[given.get("start", 0) : given.get("end", len(shape))]
        return {node.output[0]: np.array(int(np.prod(shape)) if node.op_type == "Size" else sizes, np.int64)}
    outputs = [name for name in node.output if name]
    if not all(name in known for name in node.input if name) or not all(name in types for name in outputs):
        return {}
    if not all(_is_small_kind(types[name]) for name in outputs):
        return {}
    if not node.input or any(a.HasField("g") for a in node.attribute):
        return {}
    names = [name for name in dict.fromkeys(node.input) if name]
    inputs = [
        onnx.helper.make_tensor_value_info(
            n, onnx.helper.np_dtype_to_tensor_dtype(known[n].dtype), list(known[n].shape)
        )
        for n in names
    ]
    alone = onnx.helper.make_model(
        onnx.helper.make_graph([node], "node", inputs, [onnx.ValueInfoProto(name=name) for name in outputs]),
        opset_imports=model.opset_import,
    )
    results = dict(zip(outputs, ReferenceEvaluator(alone).run(None, {n: known[n] for n in names}), strict=True))
    arrays = {name: np.asarray(value) for name, value in results.items()}
    return arrays if all(a.size <= _LARGEST for a in arrays.values()) else {}


def _constant(node: onnx.NodeProto) -> np.ndarray | None:
    attribute = node.attribute[0]
    if attribute.name == "value" and _is_small(attribute.t):
        return onnx.numpy_helper.to_array(attribute.t)
    return None


def _as_tensor(attribute: onnx.AttributeProto) -> None:
    """Write the numbers of a Constant as a tensor: IREE's importer does not know all other forms."""
    kinds = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
    if attribute.name in kinds:
        array = np.array(onnx.helper.get_attribute_value(attribute), kinds[attribute.name])
        attribute.CopyFrom(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(array)))


def _is_small(tensor: onnx.TensorProto) -> bool:
    return int(np.prod(tensor.dims)) <= _most(tensor.data_type)


def _is_small_kind(value: onnx.ValueInfoProto) -> bool:
    """Return whether a value has few enough numbers to compute them here; one of unknown size may have."""
    shape = _shape(value)
    return int(np.prod(shape or ())) <= _most(value.type.tensor_type.elem_type)


def _most(kind: int) -> int:
    """Return how many numbers of an element type a known value may have."""
    return _LARGEST if kind in _WHOLE else _MOST_FLOATS if kind in _FLOATS else -1


def _shape(value: onnx.ValueInfoProto) -> list[int] | None:
    kind = value.type.tensor_type
    if not kind.HasField("shape") or not all(d.HasField("dim_value") for d in kind.shape.dim):
        return None
    return [d.dim_value for d in kind.shape.dim]


def _set_shape(value: onnx.ValueInfoProto, sizes: Sequence[int]) -> None:
    kind = value.type.tensor_type.elem_type
    value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, list(sizes)))
