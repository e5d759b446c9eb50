"""Models with one node, for tests of a single operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.graph.schema import attribute_default as _default
from onward.graph.schema import newest_opset, schema

DEFAULT_OPSET = 23


@dataclasses.dataclass(frozen=True)
class OneNodeModel:
    """A model with one node to test, values for its inputs, and the names of its outputs."""

    proto: onnx.ModelProto
    feeds: Mapping[str, np.ndarray]
    outputs: tuple[str, ...]
    node: onnx.NodeProto


def one_node_model(
    op_type: str,
    *,
    opset: int | None = None,
    domain: str = "",
    outputs: Sequence[str] | None = None,
    constants: Sequence[str] = (),
    dynamic: bool = False,
    **inputs_and_attributes: Any,
) -> OneNodeModel:
    """Return a model whose only node is `op_type`, with the given inputs and attributes.

    Keywords named like the schema's inputs are inputs (arrays; a list of arrays for a variadic one); all others are
    attributes. `constants` names the inputs that become constants; all others, integers too, are graph inputs. With
    `dynamic`, every dimension of every graph input is a distinct symbol.
    `outputs` names the schema outputs to produce (default: the required ones, or the first if none is required).
    """
    opset = opset if opset is not None else min(DEFAULT_OPSET, newest_opset())
    found = schema(op_type, domain, opset if domain == "" else None)
    if found is None:
        raise ValueError(f"no operator {domain}::{op_type} at opset {opset}")
    names: list[str] = []
    feeds: dict[str, np.ndarray] = {}
    initializers: list[onnx.TensorProto] = []
    for parameter in found.inputs:
        given = inputs_and_attributes.pop(parameter.name, None)
        if parameter.variadic:
            arrays = {f"{parameter.name}_{i}": a for i, a in enumerate(given or [])}
        else:
            arrays = {parameter.name: given}
        for name, array in arrays.items():
            if array is None:
                names.append("")
                continue
            names.append(name)
            if parameter.name in constants:
                initializers.append(onnx.numpy_helper.from_array(np.asarray(array), name))
            else:
                feeds[name] = np.asarray(array)
    while names and names[-1] == "":
        names.pop()
    required = [p.name for p in found.outputs if not p.optional]
    chosen = list(outputs) if outputs is not None else required or [p.name for p in found.outputs[:1]]
    last = max(found.output_names.index(n.split("#")[0]) for n in chosen) if chosen else -1
    if found.outputs and found.outputs[-1].variadic and outputs is not None:
        output_names = list(outputs)
    else:
        output_names = [n if n in chosen else "" for n in found.output_names[: last + 1]]
    node = onnx.helper.make_node(op_type, names, output_names, domain=domain, **inputs_and_attributes)
    node.name = op_type
    graph_inputs = [_info(name, array, dynamic) for name, array in feeds.items()]
    graph = onnx.helper.make_graph(
        [node], op_type, graph_inputs, [onnx.ValueInfoProto(name=n) for n in output_names if n], initializers
    )
    imports = [onnx.helper.make_opsetid("", opset)] + ([onnx.helper.make_opsetid(domain, 1)] if domain else [])
    proto = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    return OneNodeModel(proto, feeds, tuple(n for n in output_names if n), node)


def _info(name: str, array: np.ndarray, dynamic: bool) -> onnx.ValueInfoProto:
    dtype = ir.DataType.from_numpy(array.dtype).value
    shape = [f"{name}_{i}" for i in range(array.ndim)] if dynamic else list(array.shape)
    return onnx.helper.make_tensor_value_info(name, dtype, shape)


def attribute_default(op_type: str, name: str) -> Any:
    """Return the default value of an attribute at the newest opset."""
    return _default(op_type, "", newest_opset(), name)
