"""Make nodes: `Builder` is the only place that does.

>>> import onnx_ir as ir
>>> x = ir.val("x", dtype=ir.DataType.FLOAT, shape=(3,))
>>> op = Builder(opset=18)
>>> y = op.Mul(x, 2.0)                     # the literal becomes a constant of x's type
>>> [n.op_type for n in op.nodes], y.dtype.name
(['Constant', 'Mul'], 'FLOAT')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.schema import Schema, concrete_type, schema

Value = ir.Value
Operand = ir.Value | np.ndarray | float | int | bool | Sequence[int] | Sequence[float] | None

# Outputs whose element type is an attribute of the node.
_TYPE_ATTRIBUTE = {
    "Cast": "to", "RandomNormal": "dtype", "RandomUniform": "dtype", "RandomNormalLike": "dtype",
    "RandomUniformLike": "dtype", "EyeLike": "dtype", "Multinomial": "dtype", "BitCast": "to",
    "Bernoulli": "dtype",
}  # fmt: skip


class Names:
    """Gives names that are not taken yet."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = set(taken)
        self._next: dict[str, int] = {}

    def unique(self, wanted: str) -> str:
        """Return `wanted`, or `wanted_2`, `wanted_3` … if it is taken, and take it."""
        name = wanted
        if name in self.taken:
            count = self._next.get(wanted, 2)
            while f"{wanted}_{count}" in self.taken:
                count += 1
            self._next[wanted] = count + 1
            name = f"{wanted}_{count}"
        self.taken.add(name)
        return name


class Builder:
    """Makes nodes with unique names and keeps them in `nodes`, in order.

    `op.Add(a, b)` returns the output value; `op.multi("Split", x, axis=0, outputs=3)` returns a tuple of them.
    An operand is a value, None (an absent optional input), a numpy array, or a Python number or list. Numbers and lists
    become constants of the type of the other operands. Attributes are keyword arguments.
    """

    def __init__(self, opset: int, names: Names | None = None, prefix: str = "") -> None:
        self.opset = opset
        self.names = names if names is not None else Names()
        self.prefix = prefix
        self.nodes: list[ir.Node] = []
        self._constants: dict[tuple[Any, ...], Value] = {}

    def __getattr__(self, op_type: str) -> Callable[..., Value]:
        if op_type.startswith("_") or not op_type[0].isupper():
            raise AttributeError(op_type)

        def make(*operands: Operand, name: str | None = None, **attributes: Any) -> Value:
            return self.call(op_type, operands, name=name, **attributes)[0]

        return make

    def multi(self, op_type: str, *operands: Operand, outputs: int, **attributes: Any) -> tuple[Value, ...]:
        """Make one node of ai.onnx with several outputs and return them all."""
        return self.call(op_type, operands, outputs=outputs, **attributes)

    def call(
        self,
        op_type: str,
        operands: Sequence[Operand],
        *,
        domain: str = "",
        outputs: int = 1,
        name: str | None = None,
        overload: str = "",
        **attributes: Any,
    ) -> tuple[Value, ...]:
        """Make one node of any domain and return its outputs."""
        found = schema(op_type, domain, self.opset) if domain == "" else schema(op_type, domain)
        values = self._operands(op_type, found, operands)
        while values and values[-1] is None:
            values.pop()
        attributes = {k: v for k, v in attributes.items() if v is not None}
        node = ir.Node(
            domain,
            op_type,
            values,
            [_attribute(k, v) for k, v in attributes.items()],
            num_outputs=outputs,
            overload=overload,
            name=self.names.unique(f"{self.prefix}{name or op_type}"),
        )
        for index, output in enumerate(node.outputs):
            output.name = self.names.unique(f"{node.name}:{index}" if outputs > 1 else f"{node.name}:out")
            output.type = output_type(op_type, found, index, values, attributes)
        self.nodes.append(node)
        return tuple(node.outputs)

    def constant(self, value: Any, dtype: ir.DataType | None = None) -> Value:
        """Return a constant; equal constants are one value.

        Python numbers become float32 and int64 by default, as in ONNX's own helpers.
        """
        array = np.asarray(value)
        if dtype is None:
            if not isinstance(value, np.ndarray | np.generic):
                array = array.astype({"f": np.float32, "i": np.int64}.get(array.dtype.kind, array.dtype))
        else:
            array = array.astype(dtype.numpy())
        key = (array.dtype.str, array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            tensor = ir.tensor(array)
            node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], num_outputs=1)
            node.name = self.names.unique(f"{self.prefix}Constant")
            output = node.outputs[0]
            output.name = self.names.unique(f"{node.name}:out")
            output.type = ir.TensorType(tensor.dtype)
            output.shape = ir.Shape(array.shape)
            output.const_value = tensor
            self.nodes.append(node)
            self._constants[key] = output
        return self._constants[key]

    def cast(self, value: Value, dtype: ir.DataType) -> Value:
        """Return `value` cast to `dtype`; `value` itself if it has that type."""
        return value if value.dtype == dtype else self.Cast(value, to=dtype)

    def _operands(self, op_type: str, found: Schema | None, operands: Sequence[Operand]) -> list[Value | None]:
        values: list[Value | None] = []
        for index, operand in enumerate(operands):
            if operand is None or isinstance(operand, ir.Value):
                values.append(operand)
            elif isinstance(operand, np.ndarray | np.generic):
                values.append(self.constant(operand))
            else:
                values.append(self.constant(operand, self._literal_type(found, index, operand, operands)))
        return values

    def _literal_type(
        self, found: Schema | None, index: int, operand: Any, operands: Sequence[Operand]
    ) -> ir.DataType | None:
        if found is None:
            return None
        formal = found.input_at(index)
        fixed = concrete_type(formal)
        if fixed is not None:
            return fixed
        for other_index, other in enumerate(operands):
            if not isinstance(other, ir.Value) or other.dtype is None:
                continue
            if found.input_at(other_index).type_variable == formal.type_variable:
                return other.dtype
            if isinstance(operand, float) and other.dtype == ir.DataType.DOUBLE:
                return other.dtype  # Pow accepts an exponent of any type; 32 bits would not be exact
        return None


def _attribute(name: str, value: Any) -> ir.Attr:
    if isinstance(value, ir.DataType):
        return ir.AttrInt64(name, value.value)
    if isinstance(value, np.ndarray):
        return ir.AttrTensor(name, ir.tensor(value))
    if isinstance(value, bool | np.integer):
        return ir.AttrInt64(name, int(value))
    if isinstance(value, tuple):
        value = list(value)
    return ir.convenience.convert_attribute(name, value)


def output_type(
    op_type: str, found: Schema | None, index: int, values: Sequence[Value | None], attributes: dict[str, Any]
) -> ir.TypeProtocol | None:
    """Return the type of an output according to the schema's type variables; None if it is not known."""
    if found is None or not found.outputs:
        return None
    if op_type in _TYPE_ATTRIBUTE and _TYPE_ATTRIBUTE[op_type] in attributes:
        return ir.TensorType(ir.DataType(attributes[_TYPE_ATTRIBUTE[op_type]]))
    if op_type == "ConstantOfShape":
        value = attributes.get("value")
        return ir.TensorType(ir.DataType.FLOAT if value is None else ir.tensor(value).dtype)
    if op_type in _SEQUENCE_TYPE:
        return _SEQUENCE_TYPE[op_type](values, attributes)
    formal = found.output_at(index)
    fixed = concrete_type(formal)
    if fixed is not None:
        return ir.TensorType(fixed)
    if all(parameter.type_variable != formal.type_variable for parameter in found.inputs):
        return None  # as for Gradient, which may have thousands of outputs: do not search thousands of inputs for each
    for position, value in enumerate(values):
        if value is not None and found.input_at(position).type_variable == formal.type_variable:
            return value.type
    return None


def _elements(values: Sequence[Value | None], attributes: dict[str, Any]) -> ir.TypeProtocol | None:
    """Return the element type of the first value if that is a sequence or an optional, else its own type."""
    given = values[0].type if values and values[0] is not None else None
    return given.elem_type if isinstance(given, ir.SequenceType | ir.OptionalType) else given


def _sequence(values: Sequence[Value | None], attributes: dict[str, Any]) -> ir.TypeProtocol | None:
    given = values[0].type if values and values[0] is not None else None
    return None if given is None else ir.SequenceType(given)


# Operators between tensors and sequences: the schema's type variables do not relate the two types.
_SEQUENCE_TYPE: dict[str, Callable[[Sequence[Value | None], dict[str, Any]], ir.TypeProtocol | None]] = {
    "SequenceAt": _elements,
    "ConcatFromSequence": _elements,
    "OptionalGetElement": _elements,
    "SequenceConstruct": _sequence,
    "SplitToSequence": _sequence,
    "SequenceEmpty": lambda _, attributes: ir.SequenceType(ir.TensorType(ir.DataType(attributes.get("dtype", 1)))),
}
