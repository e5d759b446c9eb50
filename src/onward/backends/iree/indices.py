"""Which inputs of a graph are indices, and how far they reach: a binary reads whatever is there.

ONNX Runtime refuses an index that is out of range; IREE's binaries do not look.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onward.errors import DataError, Diagnostic
from onward.graph import shapes, walk

_INDEXING = frozenset({"Gather", "GatherElements"})
_KEEPS_VALUES = frozenset({"Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def index_sizes(graph: ir.Graph) -> dict[str, int]:
    """Return for each input that selects elements of a tensor how many there are; the smallest of several.

    Only the input itself counts, perhaps in another shape or type: numbers that the graph computes are its own.
    """
    found: dict[str, int] = {}
    inputs = {id(v): v.name or "" for v in graph.inputs}
    for node in walk.all_nodes(graph):
        if node.domain not in ("", "ai.onnx") or node.op_type not in _INDEXING:
            continue
        data, indices = node.inputs[0], node.inputs[1]
        while indices is not None and id(indices) not in inputs:
            maker = indices.producer()
            if maker is None or maker.op_type not in _KEEPS_VALUES:
                break
            indices = maker.inputs[0]
        sizes = None if data is None else shapes.dims(data)
        if indices is None or id(indices) not in inputs or not sizes:
            continue
        size = sizes[node.attributes.get_int("axis", 0)]
        if isinstance(size, int):
            name = inputs[id(indices)]
            found[name] = min(size, found.get(name, size))
    return found


def check_indices(name: str, values: np.ndarray, sizes: Mapping[str, int]) -> None:
    """Raise if an input has an index that its tensor does not have.

    Raises:
        DataError: names the index.
    """
    if name not in sizes or not values.size:
        return
    size = sizes[name]
    for found in (values.min(), values.max()):
        if not -size <= found < size:
            raise DataError(
                Diagnostic(
                    "T100",
                    f"input `{name}` has an index that is out of range",
                    found=str(found),
                    needed=f"{-size} to {size - 1}, because the tensor that it selects from has {size} entries",
                )
            )
