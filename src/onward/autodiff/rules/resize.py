"""Resize and Upsample: a linear map along each axis by itself, so the gradient is that map transposed.

Resizing the identity matrix along its first axis gives the matrix of the map. This holds in every mode, with every
coordinate transformation, and for sizes known only at run time. The runtime chooses the same neighbours as in the
forward pass.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from onward.autodiff.problems import Unsupported
from onward.autodiff.registry import NON_DIFFERENTIABLE, UNSUPPORTED, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph.builder import Value

_ATTRIBUTES = (
    "antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "mode", "nearest_mode",
)  # fmt: skip
_WHOLE_BLOCKS = {
    ("asymmetric", "floor"),
    *(
        (transform, rounding)
        for transform in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
        for rounding in ("round_prefer_floor", "round_prefer_ceil")
    ),
}


@dataclasses.dataclass
class _Axis:
    """One resized axis: its place, its entry in scales and sizes, and its integer factor if that is known."""

    axis: int
    position: int
    factor: int | None


@gradient(
    "Resize",
    opset=18,
    roi=UNSUPPORTED("to learn boxes, use GridSample, whose grid has a gradient"),
    scales=NON_DIFFERENTIABLE,
    sizes=NON_DIFFERENTIABLE,
)
def resize(rule: Rule, dY: Value) -> Grads:
    """Y = X times one interpolation matrix per axis, so dX = dY times their transposes.

    Nearest neighbours at a whole factor are blocks: dX is the sum over each block.
    """
    attributes = {name: rule.attr(name) for name in _ATTRIBUTES}
    return {"X": _resize(rule, dY, attributes)}


@gradient("Upsample", opset=9, scales=NON_DIFFERENTIABLE)
def upsample(rule: Rule, dY: Value) -> Grads:
    """Y = Resize of X with asymmetric coordinates and floor, so dX is that of Resize."""
    mode = rule.attr("mode")
    attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return {"X": _resize(rule, dY, attributes)}


def _resize(rule: Rule, dY: Value, attributes: dict[str, Any]) -> Value:
    X = rule.input("X")
    rank = rule.rank(X)
    if rank is None:
        raise Unsupported("the rank of X is not known; give its shape")
    axes = _resized_axes(rule, X, rank)
    whole = (attributes["coordinate_transformation_mode"], attributes.get("nearest_mode")) in _WHOLE_BLOCKS
    if attributes["mode"] == "nearest" and whole and all(a.factor is not None for a in axes):
        return _sum_blocks(rule, dY, X, axes)
    grad = dY
    for axis in axes:
        grad = _contract(rule, grad, _matrix(rule, X, axis, len(axes), attributes), axis.axis, rank)
    return grad


def _resized_axes(rule: Rule, X: Value, rank: int) -> list[_Axis]:
    """Return the axes that may change, each with its place in scales and sizes."""
    resize = rule.node.op_type == "Resize"
    crops = resize and rule.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
    by_sizes = resize and rule.optional_input("sizes") is not None
    found = []
    for position, axis in enumerate(_named_axes(rule, rank)):
        factor = _size_factor(rule, X, axis, position) if by_sizes else _scale_factor(rule, position)
        if factor != 1 or crops:
            found.append(_Axis(axis, position, factor))
    return found


def _named_axes(rule: Rule, rank: int) -> list[int]:
    """Return the axes to which scales and sizes refer."""
    given = rule.attr("axes") if rule.node.op_type == "Resize" else None
    return list(range(rank)) if given is None else [a % rank for a in given]


def _scale_factor(rule: Rule, position: int) -> int | None:
    """Return the integer factor that `scales` gives, or None."""
    scales = rule.constant_input("scales")
    return int(scales[position]) if scales is not None and float(scales[position]).is_integer() else None


def _size_factor(rule: Rule, X: Value, axis: int, position: int) -> int | None:
    """Return the integer factor that `sizes` gives, or None."""
    if rule.attr("keep_aspect_ratio_policy") != "stretch":
        return None
    sizes, before, after = rule.constant_input("sizes"), rule.dims(X), rule.dims(rule.output("Y"))
    wanted = int(sizes[position]) if sizes is not None else None if after is None else after[axis]
    size = None if before is None else before[axis]
    if wanted is not None and wanted == size:
        return 1
    return wanted // size if isinstance(wanted, int) and isinstance(size, int) and size and wanted % size == 0 else None


def _sum_blocks(rule: Rule, dY: Value, X: Value, axes: list[_Axis]) -> Value:
    """Return the sum of dY over the block of copies of each element of X."""
    op = rule.op
    factors = {a.axis: a.factor for a in axes}
    dims = rule.dims(X)
    assert dims is not None
    parts: list[Value] = []
    summed: list[int] = []
    shape: list[Any] = []
    for axis, size in enumerate(dims):
        parts.append(rule.dim_of(X, axis))
        shape.append(size)
        if axis in factors:
            parts.append(op.constant(np.array([factors[axis]], np.int64)))
            summed.append(len(shape))
            shape.append(factors[axis])
    if not summed:
        return dY
    if all(isinstance(s, int) for s in shape):
        blocks = op.Reshape(dY, np.array(shape, np.int64), allowzero=1 if 0 in shape else None)
    else:
        blocks = op.Reshape(dY, op.Concat(*parts, axis=0), allowzero=1)
    return rule.sum_over(blocks, summed)


def _matrix(rule: Rule, X: Value, axis: _Axis, count: int, attributes: dict[str, Any]) -> Value:
    """Return the matrix [new size, old size] of the map along one axis: the identity, resized."""
    op = rule.op
    size = rule.dim_of(X, axis.axis)
    identity = op.EyeLike(op.ConstantOfShape(op.Concat(size, size, axis=0)), dtype=X.dtype)
    if rule.node.op_type == "Upsample":
        return _matrix_by_scale(rule, X, axis, identity, None, attributes)
    if rule.attr("keep_aspect_ratio_policy") != "stretch" and rule.optional_input("sizes") is not None:
        return _matrix_by_policy(rule, X, axis, identity, attributes)
    roi = None
    if attributes["coordinate_transformation_mode"] == "tf_crop_and_resize":
        roi = _roi(rule, axis)
    if rule.optional_input("sizes") is not None:
        return op.Resize(identity, roi, None, _entry(rule, "sizes", axis.position), axes=[0], **attributes)
    return _matrix_by_scale(rule, X, axis, identity, roi, attributes)


def _matrix_by_scale(
    rule: Rule, X: Value, axis: _Axis, identity: Value, roi: Value | None, attributes: dict[str, Any]
) -> Value:
    """Return the matrix of the map along one axis, whose size is known only after the scale is applied.

    ONNX Runtime copies its input if no size changes, whatever the scales are. If this axis keeps its size and others do
    not, the identity must not be copied, so here an axis of one pixel becomes two.
    """
    op, scale = rule.op, _entry(rule, "scales", axis.position)
    if not _may_keep_its_size(rule, X, axis):
        return op.Resize(identity, roi, scale, None, axes=[0], **attributes)
    column = op.Unsqueeze(identity, [0, 3])  # [1, n, n, 1]: cubic interpolation needs four axes
    both = op.Concat(scale, np.array([2], np.float32), axis=0)
    box = None if roi is None else op.Reshape(op.Transpose(op.Pad(op.Unsqueeze(roi, [0]), [0, 0, 1, 0])), [-1])
    resized = op.Resize(column, box, both, None, axes=[2, 3], **attributes)
    return op.Transpose(op.Squeeze(op.Slice(resized, [0], [1], [3]), [0, 3]), perm=[1, 0])


def _may_keep_its_size(rule: Rule, X: Value, axis: _Axis) -> bool:
    """Return whether the scale, which is not 1, may leave this axis as long as it is, and not all of the others."""
    before, after, scales = rule.dims(X), rule.dims(rule.output("Y")), rule.constant_input("scales")
    if before is not None and before == after and all(isinstance(d, int) for d in before):
        return False
    size = None if before is None else before[axis.axis]
    scale = None if scales is None else np.float32(scales[axis.position])
    if scale is None or not 1 < scale < 2:
        return scale is None
    return int(np.floor(scale * np.float32(size))) == size if isinstance(size, int) else True


def _matrix_by_policy(rule: Rule, X: Value, axis: _Axis, identity: Value, attributes: dict[str, Any]) -> Value:
    """Return the matrix of the map when one scale for all axes follows from all sizes together.

    The operator runs on a tensor that varies only along this axis: row k is 1 at k. It is constant along the other
    axes, so any position on them shows the row of the map.
    """
    op = rule.op
    rank = rule.rank(X)
    assert rank is not None
    axes = _named_axes(rule, rank)
    shape = op.Concat(rule.dim_of(X, axis.axis), *(rule.dim_of(X, a) for a in axes), axis=0)
    place = [1] * (len(axes) + 1)
    rows = op.Reshape(identity, op.Concat(
        *(rule.dim_of(X, axis.axis) if i in (0, 1 + axes.index(axis.axis)) else op.constant(np.array([1], np.int64))
          for i in range(len(place))), axis=0))  # fmt: skip
    resized = op.Resize(
        op.Expand(rows, shape),
        rule.optional_input("roi") if attributes["coordinate_transformation_mode"] == "tf_crop_and_resize" else None,
        None,
        rule.input("sizes"),
        axes=[1 + i for i in range(len(axes))],
        keep_aspect_ratio_policy=rule.attr("keep_aspect_ratio_policy"),
        **attributes,
    )
    others = [1 + i for i, a in enumerate(axes) if a != axis.axis]
    if others:
        zeros = np.zeros(len(others), np.int64)
        resized = op.Squeeze(op.Slice(resized, zeros, zeros + 1, np.array(others, np.int64)), others)
    return op.Transpose(resized, perm=[1, 0])


def _entry(rule: Rule, name: str, position: int) -> Value:
    """Return one entry of an input as a vector of one element: a constant if the input is constant."""
    known = rule.constant_input(name)
    if known is not None:
        return rule.op.constant(known[position : position + 1])
    return rule.op.Gather(rule.input(name), [position], axis=0)


def _roi(rule: Rule, axis: _Axis) -> Value:
    """Return the start and end of the region along one axis."""
    known = rule.constant_input("roi")
    if known is not None:
        return rule.op.constant(known.reshape(2, -1)[:, axis.position])
    return rule.op.Gather(rule.op.Reshape(rule.input("roi"), [2, -1]), axis.position, axis=1)


def _contract(rule: Rule, grad: Value, matrix: Value, axis: int, rank: int) -> Value:
    """Return `grad` times `matrix` [n, d] along `axis`, which goes from n to d."""
    op = rule.op
    if axis == rank - 1:
        return op.MatMul(grad, matrix)
    if axis == rank - 2:
        return op.MatMul(op.Transpose(matrix, perm=[1, 0]), grad)
    perm = [*(a for a in range(rank) if a != axis), axis]
    product = op.MatMul(op.Transpose(grad, perm=perm), matrix)
    return op.Transpose(product, perm=[perm.index(a) for a in range(rank)])
