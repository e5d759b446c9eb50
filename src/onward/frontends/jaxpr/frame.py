"""`Frame`: where the nodes of one graph or body go, and what a rule uses to make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onward.frontends.jaxpr import sizes
from onward.graph.builder import Builder, Value

if TYPE_CHECKING:
    from onward.frontends.jaxpr.random import Key
    from onward.frontends.jaxpr.translator import Translator

Operand = Any  # a Value, or a Key


def element_type(dtype: Any) -> ir.DataType:
    """Return the ONNX type of a JAX dtype."""
    return ir.DataType.from_numpy(np.dtype(dtype))


def constant_of(value: Value) -> np.ndarray | None:
    """Return the array of a constant. A parameter or a state is none, although it has a value now."""
    node = value.producer()
    if node is None or node.op_type != "Constant" or value.const_value is None:
        return None
    array: np.ndarray = value.const_value.numpy()
    return array


class Frame:
    """The nodes of one graph or of one body of control flow.

    `op` makes nodes. A body reads values of the outer frames directly. `loop` is the loop whose body it is.
    """

    def __init__(self, translator: Translator, op: Builder, parent: Frame | None = None, loop: Any = None) -> None:
        self.translator = translator
        self.op = op
        self.parent = parent
        self.loop = loop
        self.sizes: dict[str, Value] = {}
        self.draws: dict[tuple[Any, ...], Value] = {}

    def body(self, loop: Any = None) -> Frame:
        """Return a frame for a body inside this one."""
        op = Builder(self.op.opset, self.op.names, prefix=self.op.prefix)
        return Frame(self.translator, op, self, loop)

    def run(self, closed: Any, arguments: Sequence[Operand]) -> list[Operand]:
        """Translate a closed jaxpr with these arguments and return its results."""
        return self.translator.run(self, closed.jaxpr, closed.consts, arguments)

    # -- constants and types ---------------------------------------------------------------------------------------

    def constant(self, array: Any, dtype: Any = None) -> Value:
        """Return a constant of the given JAX dtype."""
        return self.op.constant(np.asarray(array, None if dtype is None else np.dtype(dtype)))

    def cast(self, value: Value, dtype: Any) -> Value:
        """Return `value` in another JAX dtype."""
        return self.op.cast(value, element_type(dtype))

    def typed(self, value: Value, aval: Any) -> Value:
        """Set type and shape of `value` to those that JAX found."""
        value.type = ir.TensorType(element_type(aval.dtype))
        value.shape = sizes.shape_of(aval.shape)
        return value

    # -- shapes ----------------------------------------------------------------------------------------------------

    def known_size(self, text: str) -> Value | None:
        """Return a size that this frame or an outer one has computed."""
        if text in self.sizes:
            return self.sizes[text]
        if self.parent is not None:
            return self.parent.known_size(text)
        return self.translator.sizes.get(text)

    def size(self, given: Any) -> int | Value:
        """Return a size as a number or as an int64 scalar of the graph."""
        return sizes.size(self, given)

    def shape(self, given: Sequence[Any]) -> Value | np.ndarray:
        """Return a shape as a constant or as a vector of the graph."""
        return sizes.shape(self, given)

    def reshape(self, x: Value, given: Sequence[Any]) -> Value:
        """Return `x` in another shape."""
        return sizes.reshape(self, x, given)

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """Return `x` with its axes in another order."""
        order = [int(i) for i in order]
        if order == sorted(order):
            return x
        made: Value = self.op.Transpose(x, perm=order)
        if x.shape is not None:
            made.shape = ir.Shape([x.shape[i] for i in order])
        return made

    def zeros(self, given: Sequence[Any], dtype: Any) -> Value:
        """Return zeros of a shape."""
        made: Value = self.op.ConstantOfShape(self.shape(given), value=np.zeros(1, np.dtype(dtype)))
        made.shape = sizes.shape_of(given)
        return made

    # -- random numbers --------------------------------------------------------------------------------------------

    def draw(self, kind: str, key: Key, given: Sequence[Any], dtype: Any) -> Value:
        """Return random numbers of the standard distribution `kind`, "uniform" or "normal"."""
        from onward.frontends.jaxpr.random import draw

        return draw(self, kind, key, given, dtype)
