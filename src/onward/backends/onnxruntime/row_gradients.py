"""Row-sparse gradients, such as those of embeddings: only the nonzero rows are outputs of the graph.

The plain graph adds the rows to zeros of the size of the table with ScatterElements. ONNX Runtime runs it on one
thread with one index per element, and writes the complete gradient at each step. Here there is no gradient of the size
of the table: equal rows are summed in the order of ScatterElements, which gives bit-identical results, and the loop of
the fused update takes zeros for all other rows. A table that is read in several places has several such gradients,
which the loop adds where one of them has a row.
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


COLUMNS = 32  # that a thread adds at once


class RowBuffer:
    """The rows of one gradient of a table in one step: each once, in the order in which the batch has them."""

    def __init__(self, source: RowGradient, shape: tuple[int, int], dtype: str, team: Team) -> None:
        self.source = source
        self.places = np.full(shape[0], -1, np.int32)  # for each row of the table, where its sum is; -1: it is zeros
        self.sums = np.zeros((0, shape[1]), dtype)
        self._team = team
        self._read = np.zeros(0, np.int64)

    def add(self, indices: np.ndarray, rows: np.ndarray) -> None:
        """Sum the rows of this step."""
        place, add = row_loops()
        count = len(self.places)
        indices = indices.reshape(-1)
        if indices.size and not -count <= indices.min() <= indices.max() < count:
            raise IndexError(f"row {indices.min()} to {indices.max()} of a table with {count} rows")
        if len(indices) > len(self.sums):
            self.sums = np.empty((len(indices), self.sums.shape[1]), self.sums.dtype)
        self._read = np.where(indices < 0, indices + count, indices)
        places = np.empty(len(indices), np.int32)
        place(self._read, self.places, places)
        parts = -(-self.sums.shape[1] // COLUMNS)
        self._team.run(add, parts, (self.sums, places, rows, self.sums.dtype.type(0)))

    def clear(self) -> None:
        """Forget the rows of this step."""
        self.places[self._read] = -1


@functools.cache
def row_loops() -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the compiled loops that give each row of a batch its place, and that sum the rows there."""
    import numba

    from onward.backends.onnxruntime.team import count, read

    def place(indices: np.ndarray, of_row: np.ndarray, places: np.ndarray) -> None:
        used = 0
        for k in range(indices.shape[0]):
            at = of_row[indices[k]]
            if at < 0:
                of_row[indices[k]] = used
                at = ~used  # the first at this place: nothing is there to add to
                used += 1
            places[k] = at

    def add(
        progress: np.ndarray, awaited: int, sums: np.ndarray, places: np.ndarray, rows: np.ndarray, zero: float
    ) -> None:
        """Each thread takes some columns of all rows, so that equal indices are added in their order."""
        while True:
            first = count(progress, 0) * COLUMNS
            if first >= sums.shape[1]:
                break
            for k in range(places.shape[0]):
                at = places[k]
                given = rows[k, first : first + COLUMNS]
                total = sums[at if at >= 0 else ~at, first : first + COLUMNS]
                if at >= 0:
                    for j in range(total.shape[0]):
                        total[j] += given[j]
                else:
                    for j in range(total.shape[0]):
                        total[j] = zero + given[j]  # as in the plain graph, which makes 0 of -0
            count(progress, 1)
        while read(progress, 1) < awaited:
            pass

    return numba.njit(nogil=True)(place), numba.njit(nogil=True)(add)
