"""Store weights as integers again, at the places where `make_trainable(dequantize=True)` found them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.errors import ArgumentError, Diagnostic
from onward.graph import edit, walk
from onward.graph.builder import Builder, Names, Value
from onward.model.quantized import Integers, Storage, forget, storage_of, to_integers
from onward.model.training_model import TrainingModel

A119 = "A119"

_PRODUCTS = {"Conv": "ConvInteger", "MatMul": "MatMulInteger"}
_LSTM_INPUTS = 8


def quantize_weights(model: TrainingModel) -> None:
    """Replace each float weight that was stored as integers by integers, in place.

    Raises:
        ArgumentError: no weight of the model was stored as integers.
    """
    found = {v: s for v in model.graph.initializers.values() if (s := storage_of(v)) is not None}
    if not found:
        raise ArgumentError(
            Diagnostic(
                A119,
                "no weight of the model was stored as integers before it was made trainable",
                place="quantize=",
                needed="a model that was made with make_trainable(..., dequantize=True)",
                hint="leave out quantize=True; ONNX Runtime's own quantizer can quantize a float model",
            )
        )
    _Quantizer(model, found).run()


class _Quantizer:
    def __init__(self, model: TrainingModel, weights: dict[Value, Storage]) -> None:
        self.model, self.graph, self.weights = model, model.graph, weights
        self.names = Names(walk.all_names(self.graph) - {v.name or "" for v in weights})
        self.integers: dict[Value, Integers] = {}
        self.stored: dict[Value, tuple[Value, Value, Value | None]] = {}
        self.data: dict[Value, tuple[Value, ...]] = {}

    def run(self) -> None:
        # A bias counts steps of the scale of its weight, which comes first.
        for weight, storage in sorted(self.weights.items(), key=lambda item: item[1].type == "INT32"):
            tensor = weight.const_value
            assert tensor is not None
            self.integers[weight] = to_integers(tensor.numpy(), storage, self._bias_scale(weight, storage))
        for weight in self.weights:
            del self.graph.initializers[weight.name]  # type: ignore[arg-type]  # an initializer has a name
        lstms = [n for n in walk.all_nodes(self.graph) if self._is_stored_lstm(n)]
        products = [n for n in walk.all_nodes(self.graph) if self._is_stored_product(n)]
        for node in lstms:
            self._lstm(node)
        for node in products:
            self._product(node)
        for node in [n for n in walk.all_nodes(self.graph) if n.op_type == "Gather" and n.domain == ""]:
            if self._form(node.inputs[0]) == "gather":
                self._gather(node)
        for weight, storage in self.weights.items():
            if weight.uses() or weight.is_graph_output():
                self._dequantize(weight, storage)

    # -- the forms ---------------------------------------------------------------------------------------------

    def _dequantize(self, weight: Value, storage: Storage) -> None:
        """Put a DequantizeLinear between the integers and all that reads the weight."""
        if storage.form not in ("qdq", "gather"):  # something else than the product or the LSTM reads it
            weight.name = self.names.unique(weight.name or "")
            forget(weight)
            self.graph.register_initializer(weight)
            return
        values, scale, zero = self._store(weight)
        block = None if storage.block is None else storage.block[0]
        op = Builder(self.model.opset, self.names)
        made = op.DequantizeLinear(values, scale, zero, axis=storage.axis, block_size=block)
        self.names.taken.discard(made.name or "")
        made.name = self.names.unique(storage.names[3] or weight.name or "")
        made.type, made.shape = weight.type, weight.shape
        weight.replace_all_uses_with(made, replace_graph_outputs=True)
        first = next(iter(self.graph), None)
        if first is None:
            self.graph.extend(op.nodes)
        else:
            self.graph.insert_before(first, op.nodes)

    def _product(self, node: ir.Node) -> None:
        """Replace Conv or MatMul by the product of integers, with the data quantized at run time."""
        data, weight = node.inputs[0], node.inputs[1]
        assert data is not None
        assert weight is not None
        values, scale, zero = self._store(weight, vector=node.op_type == "Conv")
        op = Builder(self.model.opset, self.names, prefix=f"{node.name or node.op_type}/")
        quantized, data_scale, data_zero = self._quantized_data(data)
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        operands = [quantized, values, data_zero, zero]
        (made,) = op.call(_PRODUCTS[node.op_type], operands, **attributes)
        made = op.Mul(op.Cast(made, to=ir.DataType.FLOAT), op.Mul(data_scale, scale))
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None:
            rank = len(self.integers[weight].values.shape)
            made = op.Add(made, op.Reshape(bias, np.array([1, -1, *[1] * (rank - 2)])))
        edit.replace_node(node, op, [made])

    def _gather(self, node: ir.Node) -> None:
        """Let an embedding look up integers and dequantize only those."""
        table, indices = node.inputs[0], node.inputs[1]
        assert table is not None
        values, scale, zero = self._store(table)
        op = Builder(self.model.opset, self.names, prefix=f"{node.name or node.op_type}/")
        found = op.Gather(values, indices, axis=node.attributes.get_int("axis", 0))
        edit.replace_node(node, op, [op.DequantizeLinear(found, scale, zero)])

    def _lstm(self, node: ir.Node) -> None:
        """Replace LSTM by ONNX Runtime's DynamicQuantizeLSTM."""
        w, r = node.inputs[1], node.inputs[2]
        assert w is not None
        assert r is not None
        (w_values, *w_rest), (r_values, *r_rest) = self._store(w), self._store(r)
        given = [node.inputs[i] if i < len(node.inputs) else None for i in range(_LSTM_INPUTS)]
        attributes = {name: a.value for name, a in node.attributes.items() if name != "layout"}
        op = Builder(self.model.opset, self.names)
        made = op.call(
            "DynamicQuantizeLSTM",
            [given[0], w_values, r_values, *given[3:], *w_rest, *r_rest],
            domain="com.microsoft",
            outputs=len(node.outputs),
            name=node.name,
            **attributes,
        )
        edit.replace_node(node, op, made)
        self.model.ir.opset_imports["com.microsoft"] = 1

    # -- parts -------------------------------------------------------------------------------------------------------

    def _store(self, weight: Value, *, vector: bool = False) -> tuple[Value, Value, Value | None]:
        """Return initializers for the integers of a weight, the scale and the zero point.

        With `vector`, a scale per channel multiplies the output of a Conv.
        """
        if weight not in self.stored:
            storage, integers = self.weights[weight], self.integers[weight]
            scale, zero = integers.scale, integers.zero
            if storage.form == "dynamic":
                scale = scale.reshape(-1) if scale.size > 1 else scale.reshape(())
                same = zero.size and bool((zero == zero.reshape(-1)[0]).all())
                zero = zero.reshape(-1)[0].reshape(()) if same else zero.reshape(-1)
                if vector and scale.size > 1:
                    scale = scale.reshape(-1, *[1] * (integers.values.ndim - 2))
            arrays = [integers.values, scale, zero]
            made = [
                self._initializer(name, array) if name else None
                for name, array in zip(storage.names[:3], arrays, strict=True)
            ]
            values, scales, zeros = made
            assert values is not None
            assert scales is not None
            self.stored[weight] = values, scales, zeros
        return self.stored[weight]

    def _initializer(self, name: str, array: np.ndarray) -> Value:
        name = self.names.unique(name)
        tensor = ir.tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def _quantized_data(self, data: Value) -> tuple[Value, ...]:
        """Return the integers, the scale and the zero point of a product's data; products of one value share them."""
        if data not in self.data:
            op = Builder(self.model.opset, self.names)
            made = op.multi("DynamicQuantizeLinear", data, outputs=3)
            for value, suffix in zip(made, ("quantized", "scale", "zero_point"), strict=True):
                value.name = self.names.unique(f"{data.name}_{suffix}")
            producer, graph = data.producer(), data.graph
            assert graph is not None
            if producer is None:
                graph.insert_before(graph[0], op.nodes)
            else:
                graph.insert_after(producer, op.nodes)
            self.data[data] = made
        return self.data[data]

    def _bias_scale(self, bias: Value, storage: Storage) -> np.ndarray | None:
        """Return the scale that a bias of integers has: the product of those of the data and the weight."""
        if storage.type != "INT32":
            return None
        for node, index in bias.uses():
            if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or index != 2:
                continue
            weight = self.integers.get(node.inputs[1]) if node.inputs[1] is not None else None
            source = node.inputs[0].producer() if node.inputs[0] is not None else None
            if weight is None or source is None or source.op_type != "DequantizeLinear":
                continue
            data = walk.constant_of(source.inputs[1])
            count = int(np.prod(storage.spread, dtype=np.int64))
            if data is not None and data.size == 1 and weight.scale.size in (1, count):
                product = (data.reshape(-1)[0] * weight.scale.reshape(-1)).astype(weight.scale.dtype)
                return np.broadcast_to(product, (count,))
        return None

    def _form(self, value: Value | None) -> str:
        return self.weights[value].form if value in self.weights else ""

    def _is_stored_lstm(self, node: ir.Node) -> bool:
        return (
            node.op_type == "LSTM" and node.domain == "" and [self._form(v) for v in node.inputs[1:3]] == ["lstm"] * 2
        )

    def _is_stored_product(self, node: ir.Node) -> bool:
        if node.domain != "" or node.op_type not in _PRODUCTS or self._form(node.inputs[1]) != "dynamic":
            return False
        data = node.inputs[0]
        return data is not None and data.dtype in (None, ir.DataType.FLOAT)
