"""`Rule`: a gradient rule's view of the node it differentiates, and its tools."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onward.autodiff import sequences
from onward.autodiff.forms import Question, answer
from onward.autodiff.profile import PORTABLE, current
from onward.autodiff.sizes import Sizes
from onward.graph import shapes, walk
from onward.graph.builder import Builder, Value, output_type
from onward.graph.schema import Schema, attribute_default

if TYPE_CHECKING:
    from onward.autodiff.engine import Backward

Dims = tuple[int | str | None, ...]


class Rule(Sizes):
    """The forward node seen through its schema: inputs and outputs by name, attributes with defaults, shapes.

    `op` makes backward nodes (see `onward.graph.builder.Builder`).
    """

    def __init__(
        self,
        node: ir.Node,
        schema: Schema | None,
        op: Builder,
        needed: frozenset[int],
        sweep: Backward | None = None,
    ) -> None:
        self.node = node
        self.sweep = sweep  # for rules of nodes with subgraphs
        self.op = op
        self.schema = schema
        self._needed = needed  # positions of the inputs whose gradient is wanted

    @property
    def portable(self) -> bool:
        """Whether the rule may emit only what the deny-list (docs/portable.md) does not name."""
        return current() == PORTABLE

    def choose(
        self, of: str, forms: Mapping[str, Callable[[], Value]], usual: str, *, changes_forward: bool = False
    ) -> Value:
        """Return the gradient of the input called `of` in one of several forms with the same result.

        It is the form `usual`, unless a table in force names another one (docs/tuning.md). The portable profile has the
        usual form only. `changes_forward` says that a form asks more of the forward node, such as a further output.
        """
        if len(forms) == 1 or self.portable:
            return forms[usual]()
        inputs = tuple(
            None if v is None else ("" if v.dtype is None else str(v.dtype.numpy()), shapes.dims(v) or ())
            for v in self.node.inputs
        )
        attributes = tuple(sorted((name, a.value) for name, a in self.node.attributes.items()))
        question = Question(
            self.node.op_type, of, self._index(of), self.op.opset, attributes, inputs, tuple(forms), usual,
            changes_forward,
        )  # fmt: skip
        return forms[answer(question)]()

    # -- the forward node ------------------------------------------------------------------------------------

    def input(self, name: str) -> Value:
        """Return the input called `name` in the schema; it must be present."""
        value = self.optional_input(name)
        assert value is not None, f"{self.node.op_type} node without its input {name}"
        return value

    def optional_input(self, name: str) -> Value | None:
        """Return the input called `name`, or None where the node does not have it."""
        index = self._index(name)
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def variadic(self, name: str) -> list[Value]:
        """Return the inputs of the variadic parameter `name`."""
        return [v for v in self.node.inputs[self._index(name) :] if v is not None]

    def output(self, name: str) -> Value:
        """Return the output called `name` in the schema; it must be present."""
        value = self.optional_output(name)
        assert value is not None, f"{self.node.op_type} node without its output {name}"
        return value

    def optional_output(self, name: str) -> Value | None:
        """Return the output called `name`, or None where the node does not have it."""
        assert self.schema is not None
        index = self.schema.output_names.index(name)
        if index >= len(self.node.outputs) or not self.node.outputs[index].name:
            return None
        return self.node.outputs[index]

    def request_output(self, name: str) -> Value:
        """Return the output called `name`; add it to the forward node if it is missing."""
        found = self.optional_output(name)
        if found is not None:
            return found
        assert self.schema is not None
        index = self.schema.output_names.index(name)
        if index >= len(self.node.outputs):
            before = len(self.node.outputs)
            self.node.resize_outputs(index + 1)
            for skipped in self.node.outputs[before:index]:
                skipped.name = ""
        output = self.node.outputs[index]
        output.type = output_type(self.node.op_type, self.schema, index, self.node.inputs, {})
        output.name = self.op.names.unique(f"{self.node.name or self.node.op_type}/{name}")
        return output

    def needs(self, name: str, offset: int = 0) -> bool:
        """Return whether the gradient with respect to input `name` is wanted; a rule may skip the others.

        For a variadic input, `offset` selects one of its values.
        """
        return self._index(name) + offset in self._needed

    def needed_names(self) -> set[str]:
        """Return the names of the inputs whose gradient is wanted."""
        return set() if self.schema is None else {self.schema.input_at(i).name for i in self._needed}

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute as a plain Python value, else the schema's default, else `default`."""
        attribute = self.node.attributes.get(name)
        if attribute is not None:
            value = attribute.value
            return list(value) if isinstance(value, tuple) else value
        found = attribute_default(self.node.op_type, self.node.domain, self.op.opset, name)
        return default if found is None else found

    def _index(self, name: str) -> int:
        if self.schema is None:
            raise TypeError(f"{self.node.op_type} has no schema; use rule.node.inputs")
        return self.schema.input_names.index(name)

    # -- types and shapes ------------------------------------------------------------------------------------

    def constant_input(self, name: str) -> np.ndarray | None:
        """Return the array of a constant input; None if it is absent or computed at run time."""
        return walk.constant_of(self.optional_input(name))

    def dims(self, value: Value) -> Dims | None:
        """Return per dimension an int, a symbol or None; None if the rank is unknown."""
        return shapes.dims(value)

    def static_shape(self, value: Value) -> tuple[int, ...] | None:
        """Return the shape if all of it is known, else None."""
        return shapes.static_shape(value)

    def rank(self, value: Value) -> int | None:
        """Return the number of dimensions, or None if it is unknown."""
        return None if value.shape is None else len(value.shape)

    def known_dim(self, value: Value, axis: int) -> int | None:
        """Return one dimension, or None if it is not known before the run."""
        known = shapes.dims(value)
        size = None if known is None else known[axis]
        return size if isinstance(size, int) else None

    def known_size(self, value: Value, axes: Iterable[int]) -> int | None:
        """Return the product of some dimensions, or None if one of them is not known before the run."""
        sizes = [self.known_dim(value, axis) for axis in axes]
        known = [size for size in sizes if size is not None]
        return math.prod(known) if len(known) == len(sizes) else None

    def shape_of(self, value: Value) -> Value:
        """Return the shape as a 1-D int64 value: a constant if it is known, else a `Shape` node."""
        static = shapes.static_shape(value)
        if static is not None:
            return self.op.constant(np.array(static, dtype=np.int64))
        out = self.op.Shape(value)
        if value.shape is not None:
            out.shape = ir.Shape([len(value.shape)])
        return out

    def dim_of(self, value: Value, axis: int) -> Value:
        """Return one dimension as a 1-D int64 value of one element: a constant if it is known."""
        known = self.known_dim(value, axis)
        if known is not None:
            return self.op.constant(np.array([known], dtype=np.int64))
        if axis < 0 and value.shape is not None:
            axis += len(value.shape)
        end = axis + 1 if axis != -1 else None
        out = self.op.Shape(value, start=axis, end=end)
        out.shape = ir.Shape([1])
        return out

    # -- tools -----------------------------------------------------------------------------------------------

    def zeros_like(self, value: Value) -> Value:
        """Return zeros of the shape and type of `value`."""
        return self.full_like(value, 0.0)

    def full_like(self, value: Value, fill: float) -> Value:
        """Return a tensor of the shape and type of `value`, filled with `fill`."""
        if isinstance(value.type, ir.SequenceType):
            return sequences.full_like(self.op, value, fill)
        if isinstance(value.type, ir.OptionalType):
            value = self.op.OptionalGetElement(value)
        dtype = value.dtype or ir.DataType.FLOAT
        array = np.array([fill]).astype(dtype.numpy())
        static = shapes.static_shape(value)
        if static == ():
            return self.op.constant(array.reshape(()))
        if dtype == ir.DataType.BFLOAT16 and self.op.opset < 20:  # ConstantOfShape has no bfloat16 before opset 20
            out = self.op.Expand(self.op.constant(array), self.shape_of(value))
        else:
            out = self.op.ConstantOfShape(self.shape_of(value), value=array)
        out.shape = value.shape
        return out

    def reshape_like(self, value: Value, like: Value) -> Value:
        """Return `value` with the shape of `like`."""
        template = _reshape_template(shapes.dims(value), shapes.dims(like))
        if template is not None:
            out = self.op.Reshape(value, np.array(template, dtype=np.int64))
        else:
            out = self.op.Reshape(value, self.shape_of(like), allowzero=1 if _may_be_empty(like) else None)
        out.shape = like.shape
        return out

    def sum_over(self, value: Value, axes: Sequence[int], *, keepdims: bool = False) -> Value:
        """Return the sum of `value` over `axes`; `value` itself if there are none."""
        if not axes:
            return value
        return self.op.ReduceSum(value, np.array(list(axes), dtype=np.int64), keepdims=int(keepdims))

    def unbroadcast(self, grad: Value, source: Value, target: Value) -> Value:
        """Return `grad`, which has the shape of `source`, summed down to the shape of `target`.

        `target` broadcasts to `source`. If the dimensions are known, this is one ReduceSum. If not, the axes are
        computed at run time.
        """
        return unbroadcast(self, grad, self.dims(source), source, target)


def _reshape_template(own: Dims | None, wanted: Dims | None) -> list[int] | None:
    """Return a constant shape for a Reshape to dimensions that are not all known; None if there is none.

    It uses either 0, which keeps a dimension, or one -1 for the only unknown dimension. Not both: the -1 of a tensor
    without elements would be undetermined.
    """
    if wanted is None or any(d == 0 for d in wanted) or all(isinstance(d, int) for d in wanted):
        return None
    kept = [
        d if isinstance(d, int) else 0 if d is not None and own is not None and own[i : i + 1] == (d,) else -1
        for i, d in enumerate(wanted)
    ]
    if -1 not in kept:
        return kept
    lone = [d if isinstance(d, int) else -1 for d in wanted]
    return lone if lone.count(-1) == 1 and _divides(-math.prod(lone), own) else None


def _divides(part: int, own: Dims | None) -> bool:
    """Return whether `part` may divide the number of elements; not in a branch that the forward never takes.

    A runtime refuses a -1 that cannot be determined, in such a branch too.
    """
    sizes = [d for d in own or () if isinstance(d, int)]
    return own is None or len(sizes) < len(own) or math.prod(sizes) % part == 0


def _may_be_empty(value: Value) -> bool:
    known = shapes.dims(value)
    return known is None or any(not isinstance(d, int) or d == 0 for d in known)


def unbroadcast(rule: Rule, grad: Value, from_dims: Dims | None, source: Value, target: Value) -> Value:
    """Return `grad`, which has the dimensions `from_dims`, summed down to the shape of `target`."""
    to_dims = rule.dims(target)
    if from_dims is not None and to_dims is not None:
        lead = len(from_dims) - len(to_dims)
        pairs = [(axis + lead, a, b) for axis, (a, b) in enumerate(zip(from_dims[lead:], to_dims, strict=True))]
        # If the source has size 1 on an axis, the target has size 1 too.
        certain = all(a == 1 or isinstance(b, int) or (b is not None and b == a) for _, a, b in pairs)
        if certain:
            inner = [axis for axis, a, b in pairs if b == 1 and a != 1]
            if lead and inner:
                summed = rule.sum_over(grad, [*range(lead), *inner])
                return rule.reshape_like(summed, target)
            if lead:
                return rule.sum_over(grad, list(range(lead)))
            return rule.sum_over(grad, inner, keepdims=True)
    # A dimension may turn out to be 1 at run time. Pad the target's shape with leading ones and sum over all axes of
    # size 1. The sum changes nothing on axes where the source has size 1 too.
    op = rule.op
    target_shape = rule.shape_of(target)
    missing = op.Sub(op.Size(rule.shape_of(source)), op.Size(target_shape))
    ones = op.Expand(1, op.Reshape(missing, [1]))
    padded = op.Concat(ones, target_shape, axis=0)
    axes = op.Reshape(op.NonZero(op.Equal(padded, 1)), [-1])
    summed = op.ReduceSum(grad, axes, keepdims=1, noop_with_empty_axes=1)
    return rule.reshape_like(summed, target)
