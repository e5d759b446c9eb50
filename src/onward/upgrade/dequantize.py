"""Turn weights that are stored as integers into floats, and the arithmetic on integers into that on floats.

    DequantizeLinear of stored integers         a float initializer with the same numbers
    DynamicQuantizeLinear, MatMulInteger, ...   MatMul, Conv
    DynamicQuantizeLSTM                         LSTM
    Gather of stored integers, DequantizeLinear Gather of floats
    QLinearConv, QLinearMatMul, ...             Conv, MatMul between DequantizeLinear and QuantizeLinear

The QuantizeLinear and DequantizeLinear of activations stay. Their limits are part of the network: ONNX Runtime's
quantizer leaves out a Relu where the zero point does its work. And weights that train with the rounding of the
activations still fit it when they are quantized again.

Each float weight records how it was stored (`onward.model.quantized`), for `to_inference(quantize=True)`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onward.autodiff.function_bodies import body_of, inline_call
from onward.errors import ArgumentError, Diagnostic, named_node
from onward.graph import edit, shapes, walk
from onward.graph.builder import Builder, Names, Value
from onward.graph.integer_products import to_float_products
from onward.model.quantized import Integers, Storage, describe, record, to_floats
from onward.model.stash import from_light, to_light
from onward.passes.base import Pass, Unit
from onward.upgrade.microsoft import DOMAIN, decompose_microsoft
from onward.upgrade.microsoft.quantized import LSTM_ATTRIBUTES

A120 = "A120"

_INTEGERS = frozenset(t for t in ir.DataType if t.name.startswith(("INT", "UINT")) and t.bitwidth <= 32)
_STANDARD = ("", "ai.onnx")


class DequantizeWeights(Pass):
    """Make float weights of stored integers; the unit gets a new model.

    Raises:
        ArgumentError: an operator on integers has no float form; lists all of them.
    """

    def run(self, unit: Unit) -> bool:
        unit.training = from_light(*to_light(unit.training))
        work = _Dequantizer(unit.model, unit.opset)
        work.run()
        problems = [d for node in walk.all_nodes(unit.graph) if (d := _obstacle(node)) is not None]
        if problems:
            raise ArgumentError(problems)
        return work.changed


class _Dequantizer:
    def __init__(self, model: ir.Model, opset: int) -> None:
        self.model, self.graph, self.opset = model, model.graph, opset
        self.names = Names(walk.all_names(model.graph))
        self.floats: dict[tuple[Value | None, ...], Value] = {}
        self.changed = False

    def run(self) -> None:
        shapes.infer_shapes(self.model)
        for node in list(walk.all_nodes(self.graph)):
            if node.op_type == "DynamicQuantizeLSTM" and node.domain == DOMAIN:
                self._lstm(node)
        self.changed |= decompose_microsoft(self.model)
        self.names = Names(walk.all_names(self.graph))
        for node in list(walk.all_nodes(self.graph)):
            if node.op_type in ("QLinearConv", "QLinearMatMul") and node.domain in _STANDARD:
                body = body_of(node, self.model.functions, self.opset)
                if body is not None:
                    inline_call(node, body, self.names)
                    self.changed = True
        shapes.infer_shapes(self.model)
        self.changed |= to_float_products(walk.all_nodes(self.graph), self.opset, self.names)
        dynamic = self._remove_dynamic_pairs()
        for node in list(walk.all_nodes(self.graph)):
            if node.op_type == "DequantizeLinear" and node.domain in _STANDARD:
                self._weight(node, dynamic)
        edit.remove_dead_nodes(self.graph)
        used = {v for node in walk.all_nodes(self.graph) for v in node.inputs}
        for name, value in list(self.graph.initializers.items()):
            if value not in used and not value.is_graph_output() and not value.is_graph_input():
                del self.graph.initializers[name]

    def _remove_dynamic_pairs(self) -> set[ir.Node]:
        """Let DequantizeLinear of DynamicQuantizeLinear be its input; return the products that read such data."""
        readers: set[ir.Node] = set()
        for node in list(walk.all_nodes(self.graph)):
            if node.op_type != "DequantizeLinear" or node.domain not in _STANDARD:
                continue
            maker = node.inputs[0].producer() if node.inputs[0] is not None else None
            if maker is None or maker.op_type != "DynamicQuantizeLinear":
                continue
            if list(node.inputs) == list(maker.outputs) and not node.outputs[0].is_graph_output():
                readers.update(user for user, index in node.outputs[0].uses() if index == 0)
                assert maker.inputs[0] is not None
                node.outputs[0].replace_all_uses_with(maker.inputs[0])
                assert node.graph is not None
                node.graph.remove(node, safe=True)
                self.changed = True
        return readers

    def _weight(self, node: ir.Node, dynamic: set[ir.Node]) -> None:
        """Replace a DequantizeLinear of stored integers by a float initializer."""
        values, scale = node.inputs[0], node.inputs[1]
        zero = node.inputs[2] if len(node.inputs) > 2 else None
        gather = _lookup(node)
        if gather is not None:
            values = gather.inputs[0]
        arrays = [_constant(v) for v in (values, scale, zero)]
        if values is None or scale is None or values.dtype not in _INTEGERS or arrays[0] is None or arrays[1] is None:
            return
        if zero is not None and arrays[2] is None:
            return
        output = node.outputs[0]
        key = (values, scale, zero)
        if key not in self.floats:
            stored = _integers(arrays[0], arrays[1], arrays[2])
            axis, block = _axis(node, stored)
            spread = _spread(stored, axis, block)
            users = {user for user, index in output.uses() if index == 1 and user.op_type in ("Conv", "MatMul")}
            form = "dynamic" if users and users <= dynamic and not block else "qdq" if gather is None else "gather"
            names = [values.name or "", scale.name or "", "" if zero is None else zero.name or "", output.name or ""]
            low_to_high = describe(stored, spread, block)
            self.floats[key] = self._initializer(
                self._name(values, None if gather is not None else output),
                to_floats(stored, spread, block),
                Storage(
                    form=form,
                    type=values.dtype.name,
                    spread=list(spread),
                    shape=list(stored.scale.shape),
                    zero=low_to_high[0],
                    low=low_to_high[1],
                    high=low_to_high[2],
                    names=names,
                    block=None if block is None else list(block),
                    axis=axis,
                ),
            )
        if gather is not None:
            op = Builder(self.opset, self.names, prefix=f"{gather.name or gather.op_type}/")
            made = op.Gather(self.floats[key], gather.inputs[1], axis=gather.attributes.get_int("axis", 0))
            edit.replace_node(node, op, [made])
            self.changed = True
            return
        output.replace_all_uses_with(self.floats[key], replace_graph_outputs=True)
        assert node.graph is not None
        node.graph.remove(node, safe=True)
        self.changed = True

    def _lstm(self, node: ir.Node) -> None:
        """Replace a DynamicQuantizeLSTM with stored weights by an LSTM."""
        given = [*node.inputs, *[None] * (12 - len(node.inputs))]
        weights = []
        for index, scale_index, gate in ((1, 8, "W"), (2, 10, "R")):
            value, scale, zero = given[index], given[scale_index], given[scale_index + 1]
            arrays = [_constant(v) for v in (value, scale, zero)]
            if value is None or scale is None or value.dtype is None or arrays[0] is None or arrays[1] is None:
                return
            stored = _integers(arrays[0], arrays[1], arrays[2])
            directions, _, rows = stored.values.shape
            spread = (directions, 1, rows if stored.scale.ndim == 2 else 1)
            zero_point, low, high = describe(stored, spread)
            zero_name = f"{value.name}_zero_point" if zero is None else zero.name or ""
            storage = Storage(
                form="lstm",
                type=value.dtype.name,
                spread=list(spread),
                shape=list(stored.scale.shape),
                zero=zero_point,
                low=low,
                high=high,
                order=[0, 2, 1],
                names=[value.name or "", scale.name or "", zero_name, ""],
            )
            key = (value, scale, zero)
            if key not in self.floats:
                floats = np.ascontiguousarray(to_floats(stored, spread).transpose(0, 2, 1))
                self.floats[key] = self._initializer(self._name(value, None, f"{node.name}/{gate}"), floats, storage)
            weights.append(self.floats[key])
        op = Builder(self.opset, self.names, prefix=f"{node.name or node.op_type}/")
        attributes = {n: node.attributes[n].value for n in LSTM_ATTRIBUTES if n in node.attributes}
        made = op.multi("LSTM", given[0], *weights, *given[3:8], outputs=len(node.outputs), **attributes)
        edit.replace_node(node, op, made)
        self.changed = True

    def _name(self, values: Value, output: Value | None, otherwise: str = "weight") -> str:
        """Return a name for the floats: that of the integers without the suffix that ONNX Runtime's quantizer adds."""
        wanted = (values.name or "").removesuffix("_quantized") or otherwise
        own = "" if output is None else output.name or ""
        if wanted != (values.name or "") and (wanted == own or wanted not in self.names.taken):
            self.names.taken.add(wanted)
            return wanted
        return own or self.names.unique(otherwise if wanted == values.name else wanted)

    def _initializer(self, name: str, array: np.ndarray, storage: Storage) -> Value:
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        record(value, storage)
        self.graph.register_initializer(value)
        return value


def _lookup(node: ir.Node) -> ir.Node | None:
    """Return the Gather of stored integers that a DequantizeLinear with one scale reads: an embedding."""
    maker = node.inputs[0].producer() if node.inputs[0] is not None else None
    if maker is None or maker.op_type != "Gather" or maker.domain not in _STANDARD:
        return None
    scale = walk.constant_of(node.inputs[1])
    return maker if scale is not None and scale.size == 1 else None


def _integers(values: np.ndarray, scale: np.ndarray, zero: np.ndarray | None) -> Integers:
    zeros = np.zeros(scale.shape, values.dtype) if zero is None else np.broadcast_to(zero, scale.shape)
    return Integers(values, scale, zeros)


def _constant(value: Value | None) -> np.ndarray | None:
    """Return the array of a constant, of an initializer, or of a product of two of them (the scale of a bias)."""
    found = walk.constant_of(value)
    node = None if value is None else value.producer()
    if found is None and node is not None and node.op_type == "Mul":
        factors = [walk.constant_of(v) for v in node.inputs]
        if factors[0] is not None and factors[1] is not None:
            return np.asarray(factors[0] * factors[1])
    return found


def _axis(node: ir.Node, stored: Integers) -> tuple[int | None, tuple[int, int] | None]:
    """Return the axis that the scales belong to, and the size of a block with its axis; None: one scale for all."""
    if stored.scale.ndim == 0 or (stored.scale.size == 1 and stored.values.ndim != 1):
        return None, None
    axis = int(node.attributes.get_int("axis", 1)) % max(stored.values.ndim, 1)
    size = int(node.attributes.get_int("block_size", 0))
    return axis, (size, axis) if size else None


def _spread(stored: Integers, axis: int | None, block: tuple[int, int] | None) -> tuple[int, ...]:
    if block is not None:
        return stored.scale.shape
    count = stored.scale.size
    return tuple(count if a == axis else 1 for a in range(stored.values.ndim))


def _obstacle(node: ir.Node) -> Diagnostic | None:
    """Return why the weights of a node stay integers, or None if it has none."""
    reasons = {
        "ConvInteger": "its result is not scaled back to floats by Cast and Mul with both scales",
        "MatMulInteger": "its result is not scaled back to floats by Cast and Mul with both scales",
        "QLinearConv": "its scales are not one-dimensional",
        "QLinearMatMul": "it has one scale per matrix of a batch",
    }
    quantizes = "uant" in node.op_type or "NBits" in node.op_type or node.op_type.startswith(("Q", "DynamicQ"))
    if node.domain in _STANDARD and node.op_type in reasons:
        if all(walk.constant_of(v) is None for v in node.inputs):
            return None
        reason = reasons[node.op_type]
    elif node.domain not in _STANDARD and quantizes and node.op_type != "QuickGelu":
        reason = "Onward knows no float form of it"
    else:
        return None
    return Diagnostic(
        A120,
        f"cannot dequantize `{node.op_type}` ({node.domain or 'ai.onnx'}): {reason}",
        place=named_node(node),
        hint="without dequantize=True the float weights of the model can still be trained"
        if node.domain in (*_STANDARD, DOMAIN)
        else "export the model with QuantizeLinear and DequantizeLinear, which every runtime knows",
    )


def stored_integers(graph: ir.Graph) -> Iterator[Value]:
    """Yield the stored integers that quantized operators read as weights."""
    seen: set[Value] = set()
    for node in walk.all_nodes(graph):
        for index in _WEIGHTS.get(node.op_type, ()) if node.domain in _STANDARD else ():
            value = node.inputs[index]
            if node.op_type == "DequantizeLinear" and (gather := _lookup(node)) is not None:
                value = gather.inputs[0]
            if value is not None and value not in seen and walk.constant_of(value) is not None:
                seen.add(value)
                yield value


_WEIGHTS = {
    "DequantizeLinear": (0,),
    "ConvInteger": (1,),
    "MatMulInteger": (0, 1),
    "QLinearConv": (3,),
    "QLinearMatMul": (0, 3),
}
