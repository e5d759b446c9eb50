"""Limit what a model may need before anything is built from it: nesting, nodes after expansion, tensor sizes.

A hostile file is small and claims to be very large. Thirty functions that each call the next one twice are 2^30 nodes;
four dimensions can describe 2^62 elements. Everything here is counted on the protobuf message. Nothing is expanded or
allocated, and no function is recursive.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import onnx
import onnx_ir as ir

from onward.errors import Diagnostic

M102 = "M102"
M103 = "M103"
M104 = "M104"
M105 = "M105"
M106 = "M106"

GB = 2**30
FunctionId = tuple[str, str, str]


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits that loading enforces. Every real model that we know is within the defaults."""

    file_bytes: int = 2**31 - 1  # what protobuf can hold in one message
    nesting: int = 32
    nodes: int = 1_000_000  # after function expansion
    tensor_bytes: int = 256 * GB  # the sum over all tensors, external ones included


DEFAULT = Limits()


def check_structure(proto: onnx.ModelProto, limits: Limits = DEFAULT) -> list[Diagnostic]:
    """Return a diagnostic for each limit that `proto` exceeds and for functions that are recursive."""
    problems: list[Diagnostic] = []
    known = {(f.domain, f.name, f.overload) for f in proto.functions}
    calls: dict[FunctionId, Counter[FunctionId]] = {}
    sizes: dict[FunctionId, int] = {}
    for function in proto.functions:
        key = (function.domain, function.name, function.overload)
        sizes[key], calls[key] = _measure(function, f"function `{key[1]}`", known, limits, problems)
    roots = [("graph", proto.graph)]
    for index, info in enumerate(proto.training_info):
        roots.append((f"training_info[{index}].algorithm", info.algorithm))
        roots.append((f"training_info[{index}].initialization", info.initialization))
    total, all_calls = 0, Counter[FunctionId]()
    for place, graph in roots:
        size, root_calls = _measure(graph, place, known, limits, problems)
        total += size
        all_calls.update(root_calls)
    expanded, cycle = _expanded_sizes(sizes, calls, limits.nodes)
    if cycle is not None:
        names = " → ".join(f"`{name}`" for _, name, _ in cycle)
        problems.append(Diagnostic(M105, f"function `{cycle[0][1]}` calls itself", found=names))
        return problems
    total += sum(count * expanded[key] for key, count in all_calls.items())
    total = max(total, max(expanded.values(), default=0))
    if total > limits.nodes:
        found = f"{total:,} nodes" if total < 10 * limits.nodes else f"more than {limits.nodes:,} nodes"
        problems.append(
            Diagnostic(
                M104,
                "the model has too many nodes",
                found=found + (" after its functions are expanded" if known else ""),
                needed=f"at most {limits.nodes:,}",
            )
        )
    return problems


def _measure(
    root: Any, place: str, known: set[FunctionId], limits: Limits, problems: list[Diagnostic]
) -> tuple[int, Counter[FunctionId]]:
    """Return the number of nodes in a graph or function and its subgraphs, and how often each function is called."""
    nodes, calls = 0, Counter[FunctionId]()
    stack: list[tuple[Any, int]] = [(root, 1)]
    while stack:
        graph, depth = stack.pop()
        if depth > limits.nesting:
            problems.append(
                Diagnostic(
                    M103,
                    "graphs are nested too deeply",
                    place=place,
                    found=f"more than {limits.nesting} levels",
                    needed=f"at most {limits.nesting}",
                )
            )
            break
        nodes += len(graph.node)
        for node in graph.node:
            if known:
                key = ("" if node.domain == "ai.onnx" else node.domain, node.op_type, node.overload)
                if key in known:
                    calls[key] += 1
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    stack.append((attribute.g, depth + 1))
                if attribute.graphs:
                    stack.extend((g, depth + 1) for g in attribute.graphs)
    return nodes, calls


def _expanded_sizes(
    sizes: dict[FunctionId, int], calls: dict[FunctionId, Counter[FunctionId]], cap: int
) -> tuple[dict[FunctionId, int], list[FunctionId] | None]:
    """Return the number of nodes of each function with all calls expanded, at most 100 × `cap`, or else a cycle."""
    done: dict[FunctionId, int] = {}
    for start in sizes:
        path: list[FunctionId] = []
        on_path: set[FunctionId] = set()
        stack: list[tuple[FunctionId, bool]] = [(start, False)]
        while stack:
            key, finished = stack.pop()
            if finished:
                total = sizes[key] + sum(n * done[callee] for callee, n in calls[key].items())
                done[key] = min(total, 100 * cap)
                path.pop()
                on_path.discard(key)
                continue
            if key in done:
                continue
            if key in on_path:
                return done, [*path[path.index(key) :], key]
            path.append(key)
            on_path.add(key)
            stack.append((key, True))
            stack.extend((callee, False) for callee in calls[key] if callee not in done)
    return done, None


# The field that holds the values of each type if raw_data does not, and its entries per element.
_DATA_FIELD = {
    "FLOAT": ("float_data", 1),
    "COMPLEX64": ("float_data", 2),
    "DOUBLE": ("double_data", 1),
    "COMPLEX128": ("double_data", 2),
    "INT64": ("int64_data", 1),
    "UINT64": ("uint64_data", 1),
    "UINT32": ("uint64_data", 1),
    "STRING": ("string_data", 1),
}

_PACKED = {"INT4", "UINT4", "INT2", "UINT2", "FLOAT4E2M1"}


def tensor_nbytes(proto: onnx.TensorProto) -> int:
    """Return how many bytes a tensor of this shape and type has; the tensor must have passed `check_tensor`."""
    size: int = math.prod(proto.dims)
    return (size * ir.DataType(proto.data_type).bitwidth + 7) // 8


def check_tensor(proto: onnx.TensorProto, place: str, limits: Limits = DEFAULT) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each error in a tensor's type, dimensions and, if it is not external, data."""
    try:
        dtype = ir.DataType(proto.data_type)
    except ValueError:
        yield Diagnostic(M106, f"tensor `{proto.name}` has an unknown element type", place, str(proto.data_type))
        return
    if dtype == ir.DataType.UNDEFINED:
        yield Diagnostic(M106, f"tensor `{proto.name}` has no element type", place)
        return
    if any(d < 0 for d in proto.dims):
        yield Diagnostic(
            M106,
            f"tensor `{proto.name}` has a negative dimension",
            place,
            str(list(proto.dims)),
            "dimensions from 0 up",
        )
        return
    bits = 8 if dtype == ir.DataType.STRING else dtype.bitwidth
    if math.prod(max(d, 1) for d in proto.dims) * bits // 8 > limits.tensor_bytes or len(proto.dims) > 64:
        yield Diagnostic(
            M106,
            f"tensor `{proto.name}` claims more than any memory holds",
            place,
            found=f"shape {list(proto.dims)[:70]}",
            needed=f"at most {limits.tensor_bytes:,} bytes and 64 dimensions",
        )
        return
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        if dtype == ir.DataType.STRING:
            yield Diagnostic(M106, f"tensor `{proto.name}` holds strings in external data", place)
        return
    yield from _check_data(proto, dtype, place)


def _check_data(proto: onnx.TensorProto, dtype: ir.DataType, place: str) -> Iterator[Diagnostic]:
    size = math.prod(proto.dims)
    field, per_element = _DATA_FIELD.get(dtype.name, ("int32_data", 1))
    if proto.HasField("raw_data"):
        if dtype == ir.DataType.STRING:
            yield Diagnostic(M106, f"tensor `{proto.name}` holds strings in `raw_data`", place, needed="`string_data`")
            return
        found, needed, unit = len(proto.raw_data), (size * dtype.bitwidth + 7) // 8, "bytes"
        field = "raw_data"
    else:
        found, needed, unit = len(getattr(proto, field)), size * per_element, "elements"
        if dtype.name in _PACKED:  # several elements share an int32
            needed = (size * dtype.bitwidth + 7) // 8
        others = [f for f in ("float_data", "double_data", "int32_data", "int64_data", "uint64_data", "string_data")
                  if f != field and len(getattr(proto, f))]  # fmt: skip
        if others:
            yield Diagnostic(
                M106,
                f"tensor `{proto.name}` has its data in the wrong field",
                place,
                found=", ".join(f"`{f}`" for f in others),
                needed=f"`{field}` for {dtype.name}",
            )
            return
    if found != needed:
        yield Diagnostic(
            M106,
            f"the data of tensor `{proto.name}` does not fit its shape",
            place,
            found=f"{found:,} {unit} in `{field}`",
            needed=f"{needed:,} for {dtype.name} {list(proto.dims)}",
        )
