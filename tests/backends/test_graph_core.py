"""The interpreter core, with a framework of a few lines over numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.backends.graph.common import register_sequences, register_shapes
from onward.backends.graph.control_flow import Unrolled
from onward.backends.graph.framework import Framework
from onward.backends.graph.host import Host
from onward.backends.graph.interpreter import Interpreter, failure
from onward.backends.graph.registry import Registry
from onward.errors import BackendError


class Numpy(Framework):
    title = "Numpy"

    def to_tensor(self, array: np.ndarray) -> Any:
        return np.array(array)

    def from_host(self, value: Host, like: Sequence[Any] = ()) -> Any:
        return np.array(value.values, value.dtype).reshape(value.shape)

    def read(self, tensor: Any) -> list[Any]:
        flat: list[Any] = np.asarray(tensor).reshape(-1).tolist()
        return flat

    def select(self, tensor: Any, axis: int, index: int) -> Any:
        return np.take(tensor, index, axis)

    def stack(self, tensors: list[Any], axis: int) -> Any:
        return np.stack(tensors, axis)


NUMPY = Numpy(Registry("numpy", "onward.backends.graph"))  # a package whose modules register nothing
op = NUMPY.registry.op
register_shapes(NUMPY)
register_sequences(NUMPY)
op("If")(Unrolled(NUMPY).if_)
op("Loop")(Unrolled(NUMPY).loop)
op("Scan", since=9)(Unrolled(NUMPY).scan)
op("Add")(lambda attributes, a, b: a + b)
op("Mul")(lambda attributes, a, b: a * b)
op("CastLike")(lambda attributes, x, like: x.astype(like.dtype))
op("Abs")(lambda attributes, x: abs(x))
op("Div")(lambda attributes, a, b: a / b)
op("Cast")(lambda attributes, x: x)
op("Reshape")(lambda attributes, x, shape: x.reshape(NUMPY.ints(shape)))
op("Relu", since=6)(lambda attributes, x: np.full_like(x, 6))
op("Relu", since=13)(lambda attributes, x: np.full_like(x, 13))


class NumpyInterpreter(Interpreter):
    framework = NUMPY


def made(text: str, opset: int = 21) -> NumpyInterpreter:
    return NumpyInterpreter(ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{text}').graph, opset)


X = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)


@pytest.mark.parametrize(("opset", "version"), [(6, 6), (12, 6), (13, 13), (21, 13)])
def test_the_highest_version_not_above_the_opset_is_called(opset: int, version: int) -> None:
    (y,) = made("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }", opset).run({"x": X}).values()

    assert (y == version).all()


def test_operators_without_a_handler_are_all_named() -> None:
    with pytest.raises(BackendError, match="the numpy backend has no operator `Cos`") as caught:
        made("g (float[N] x) => (float[N] y) { a = Sin(x) y = Cos(a) }")

    assert "`Sin`" in str(caught.value)


def test_a_function_of_the_standard_is_replaced_by_its_body() -> None:
    interpreter = made("g (float[2,3] x) => (float[2,3] y) { y = Softsign(x) }")

    (y,) = interpreter.run({"x": X}).values()

    np.testing.assert_allclose(y, X / (1 + abs(X)), rtol=1e-6)


def test_a_value_is_freed_after_its_last_reader() -> None:
    interpreter = made("g (float[N] x) => (float[N] y) { a = Relu(x) b = Add(a, a) c = Add(b, a) y = Add(c, x) }")

    freed = [len(i.dead) for i in interpreter.instructions]

    assert freed == [0, 0, 2, 1]  # a and b after c, c after y; x and y stay


def test_arithmetic_on_shapes_stays_on_the_host_and_reaches_a_handler_as_numbers() -> None:
    seen: list[Any] = []

    class Watching(NumpyInterpreter):
        def call(self, instruction: Any, arguments: list[Any]) -> Any:
            seen.extend(arguments)
            return super().call(instruction, arguments)

    text = "g (float[2,3] x) => (float[6] y) { n = Size(x) one = Constant <value_ints = [-1]> () y = Reshape(x, one) }"
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')

    results = Watching(model.graph, 21).run({"x": X})

    assert results["y"].shape == (6,)
    assert [v.values for v in seen if isinstance(v, Host)] == [[-1]]


def test_bodies_see_the_values_around_them() -> None:
    interpreter = made(
        """g (float[2,3] x, float k) => (float[2,3] y, float[n,2,3] all) {
            n = Constant <value_int = 3> ()
            y, all = Loop (n, , x) <body = step (int64 i, bool going, float[2,3] v)
                => (bool on, float[2,3] w, float[2,3] u) { on = Identity(going) w = Mul(v, k) u = Identity(w) }>
        }"""
    )

    results = interpreter.run({"x": X, "k": np.float32(2)})

    np.testing.assert_array_equal(results["y"], 8 * X)
    np.testing.assert_array_equal(results["all"], np.stack([2 * X, 4 * X, 8 * X]))


def test_a_failure_names_the_node() -> None:
    interpreter = made("g (float[2,3] x, int64[1] n) => (float[M] y) { [here] y = Reshape(x, n) }")

    with pytest.raises(ValueError, match="cannot reshape") as caught:
        interpreter.run({"x": X, "n": np.array([5])})

    error = failure(NUMPY, "the model", caught.value)
    assert "Numpy failed in the model: ValueError: cannot reshape array of size 6 into shape (5,)" in str(error)
    assert "`here`" in str(error)
