"""Row-sparse gradients, such as those of embeddings: only the nonzero rows are outputs of the graph.

The plain graph adds the rows to zeros of the size of the table with ScatterElements. ONNX Runtime runs it on one thread
with one index per element, and writes the complete gradient at each step. Here the gradient of the table is a view into
the flat buffer of the fused update. The rows are added to it in the order of ScatterElements, which gives bit-identical
results, and zeroed after the update.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onward.backends.onnxruntime.team import Team
from onward.graph import shapes


@dataclasses.dataclass(frozen=True)
class RowGradient:
    """A gradient of zeros with `rows` added at `indices` (one per row, as a column)."""

    gradient: str
    indices: str
    rows: str


def row_gradient(value: ir.Value) -> RowGradient | None:
    """Return the rows and indices of a gradient that adds rows to a matrix of zeros; None for any other."""
    node = value.producer()
    if node is None or node.op_type != "ScatterElements" or node.domain or len(shapes.static_shape(value) or ()) != 2:
        return None
    if node.attributes.get_int("axis", 0) != 0 or node.attributes.get_string("reduction", "none") != "add":
        return None
    table, spread, rows = node.inputs
    expand = spread.producer() if spread is not None else None
    if not _is_zeros(table) or rows is None or rows.producer() is None or expand is None or expand.op_type != "Expand":
        return None
    column = expand.inputs[0]
    if column is None or column.producer() is None or column.shape is None or len(column.shape) != 2:
        return None
    if column.shape[1] != 1 or column.dtype != ir.DataType.INT64:
        return None
    return RowGradient(value.name or "", column.name or "", rows.name or "")


def _is_zeros(value: ir.Value | None) -> bool:
    node = value.producer() if value is not None else None
    if node is None or node.op_type != "ConstantOfShape":
        return False
    fill = node.attributes.get("value")
    return fill is None or not np.any(fill.as_tensor().numpy())


COLUMNS = 16  # that a thread takes at once: a cache line of float32


@dataclasses.dataclass
class RowBuffer:
    """The view of the flat buffer that holds one table's gradient: zeros between steps."""

    source: RowGradient
    table: np.ndarray
    team: Team
    _touched: np.ndarray | None = None

    def add(self, indices: np.ndarray, rows: np.ndarray) -> None:
        """Add the rows of this step."""
        count = self.table.shape[0]
        indices = indices.reshape(-1)
        if indices.size and not -count <= indices.min() <= indices.max() < count:
            raise IndexError(f"row {indices.min()} to {indices.max()} of a table with {count} rows")
        self._touched = np.where(indices < 0, indices + count, indices)
        self._run(rows, 1)

    def clear(self) -> None:
        """Set the rows of this step back to zero."""
        if self._touched is not None:
            self._run(self.table[:0], 0)
        self._touched = None

    def _run(self, rows: np.ndarray, keeps: int) -> None:
        parts = -(-self.table.shape[1] // COLUMNS)
        self.team.run(add_rows(), parts, (self.table, self._touched, rows, self.table.dtype.type(keeps)))


@functools.cache
def add_rows() -> Callable[..., None]:
    """Return the compiled loop that adds rows to a table, or sets them to zero if `keeps` is 0.

    Each thread takes some columns of all rows, so that equal indices are added in their order.
    """
    import numba

    from onward.backends.onnxruntime.team import count, read

    def add(
        progress: np.ndarray, awaited: int, table: np.ndarray, indices: np.ndarray, rows: np.ndarray, keeps: float
    ) -> None:
        while True:
            first = count(progress, 0) * COLUMNS
            if first >= table.shape[1]:
                break
            columns = table[:, first : first + COLUMNS]
            for k in range(indices.shape[0]):
                row = columns[indices[k]]
                if keeps:
                    given = rows[k, first : first + COLUMNS]
                    for j in range(row.shape[0]):
                        row[j] += given[j]
                else:
                    row[:] = 0
            count(progress, 1)
        while read(progress, 1) < awaited:
            pass

    function: Callable[..., None] = numba.njit(nogil=True)(add)
    return function
