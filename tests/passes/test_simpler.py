"""Passes that make a step simpler compute what they replace: sizes, parts side by side, selections, transposes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from onward.model import serde
from onward.model.serde import to_proto
from onward.model.training_model import TrainingModel
from onward.passes.base import NO_GRADIENTS, Pass, Unit
from onward.passes.cleanup import RemoveDeadNodes
from onward.passes.pads import JoinPaddedParts
from onward.passes.sizes import FoldSizes
from onward.passes.transposes import SelectBeforeTransposing, TransposeFactors

HEAD = '<ir_version: 10, opset_import: ["" : 18]>\n'


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds))


def compared(text: str, each: Pass, **feeds: np.ndarray) -> tuple[bool, list[str]]:
    """Run a pass; return whether it changed the graph, and the operators after it. The results must be the same."""
    model = onnx.parser.parse_model(HEAD + text)
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    expected = run(model, feeds)
    unit = Unit(serde.load(model), facts={NO_GRADIENTS})

    changed = each(unit)

    proto = to_proto(TrainingModel(unit.model))
    onnx.checker.check_model(proto)
    for found, wanted in zip(run(proto, feeds), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    return changed, [n.op_type for n in proto.graph.node if n.op_type != "Constant"]


class AndRemoveDeadNodes(Pass):
    """A pass that leaves dead nodes behind, and their removal."""

    requires = (NO_GRADIENTS,)

    def __init__(self, first: Pass) -> None:
        self.first = first

    def run(self, unit: Unit) -> bool:
        changed = self.first(unit)
        RemoveDeadNodes()(unit)
        return changed


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


# -- parts side by side ----------------------------------------------------------------------------------------------

PARTS = """
net (float[2, 3] a, float[2, 2] b, float[2, 4] c) => (float[2, 9] y)
<int64[4] first = {0, 0, 0, 6}, int64[4] second = {0, 3, 0, 4}, int64[4] third = {0, 5, 0, 0}> {
    p = Pad(a, first)
    q = Pad(b, second)
    r = Pad(c, third)
    y = SUM
}"""


def test_parts_that_fill_the_axis_become_one_concat() -> None:
    changed, operators = compared(
        PARTS.replace("SUM", "Sum(r, p, q)"), JoinPaddedParts(), a=array(2, 3), b=array(2, 2), c=array(2, 4)
    )

    assert changed
    assert operators == ["Concat"]


def test_parts_that_leave_a_gap_are_padded_once() -> None:
    text = PARTS.replace("SUM", "Add(q, r)").replace("float[2, 3] a, ", "").replace("    p = Pad(a, first)\n", "")
    changed, operators = compared(text, JoinPaddedParts(), b=array(2, 2), c=array(2, 4))

    assert changed
    assert sorted(operators) == ["Concat", "Pad"]


def test_what_is_not_padded_is_still_added() -> None:
    text = PARTS.replace("SUM", "Sum(p, q, r, d)").replace("float[2, 4] c", "float[2, 4] c, float[2, 9] d")
    changed, operators = compared(text, JoinPaddedParts(), a=array(2, 3), b=array(2, 2), c=array(2, 4), d=array(2, 9))

    assert changed
    assert sorted(operators) == ["Add", "Concat"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("second = {0, 3, 0, 4}", "second = {0, 2, 0, 5}"),  # overlaps the first
        ("q = Pad(b, second)", 'q = Pad <mode = "edge"> (b, second)'),
        ("q = Pad(b, second)", "q = Pad(b, second, one)"),
    ],
    ids=["overlapping", "another mode", "another number"],
)
def test_parts_that_do_not_lie_side_by_side_stay(old: str, new: str) -> None:
    text = PARTS.replace("SUM", "Add(p, q)").replace(", float[2, 4] c", "").replace("    r = Pad(c, third)\n", "")
    text = text.replace(old, new).replace("int64[4] first", "float one = {1}, int64[4] first")
    changed, operators = compared(text, JoinPaddedParts(), a=array(2, 3), b=array(2, 2))

    assert not changed
    assert sorted(operators) == ["Add", "Pad", "Pad"]


def test_parts_that_the_sum_broadcasts_stay() -> None:
    text = """
    net (float[1, 5, 1] a, float[4, 1, 1] b) => (float[4, 5, 2] y)
    <int64[6] first = {0, 0, 0, 0, 0, 1}, int64[6] second = {0, 0, 1, 0, 0, 0}> {
        p = Pad(a, first)
        q = Pad(b, second)
        y = Add(p, q)
    }"""

    assert not compared(text, JoinPaddedParts(), a=array(1, 5, 1), b=array(4, 1, 1))[0]


def test_a_padded_part_with_another_reader_stays() -> None:
    text = PARTS.replace("SUM", "Sum(p, q, r)").replace("=> (float[2, 9] y)", "=> (float[2, 9] y, float[2, 9] z)")
    text = text.replace("    y = Sum", "    z = Neg(p)\n    y = Sum")
    changed, operators = compared(text, JoinPaddedParts(), a=array(2, 3), b=array(2, 2), c=array(2, 4))

    assert changed  # the other two
    assert operators.count("Pad") == 2


# -- sizes -----------------------------------------------------------------------------------------------------------


def folded(text: str, **feeds: np.ndarray) -> list[str]:
    """Return the operators after `FoldSizes` that the results need."""
    return compared(text, AndRemoveDeadNodes(FoldSizes()), **feeds)[1]


def test_bounds_that_follow_from_a_tensor_of_zeros_are_constants() -> None:
    """PyTorch's exporter reads the size of a gate from the initial state of an LSTM layer."""
    text = """
    net (float[N, 4] x, float[8, 4] w) => (float[2, 4] y)
    <int64[1] whole = {-1}, int64[1] two = {2}, float zero = {0}, int64[1] axis = {0}, int64 twice = {2}> {
        n = Shape <start = 0, end = 1> (x)
        size = Reshape(n, whole)
        shape = Concat <axis = 0> (size, two)
        zeros = Expand(zero, shape)
        first = Shape <start = 1, end = 2> (zeros)
        second = Mul(first, twice)
        y = Slice(w, first, second, axis)
    }"""

    assert folded(text, x=array(3, 4), w=array(8, 4)) == ["Slice"]


def test_a_size_of_the_batch_stays() -> None:
    text = """
    net (float[N, 4] x) => (int64[1] y)
    <int64[1] two = {2}> {
        n = Shape <start = 0, end = 1> (x)
        y = Mul(n, two)
    }"""

    assert folded(text, x=array(3, 4)) == ["Shape", "Mul"]


def test_a_size_that_follows_from_an_input_is_a_constant() -> None:
    """PyTorch's older exporter reads each size of a Reshape from a value in the middle, in several steps."""
    text = """
    net (float[N, 6, 4] x) => (float[N, 3, 8] y)
    <int64[1] two = {2}, int64[1] axis = {0}, int64[1] last = {9223372036854775807}, int64 one = {1},
     int64[1] rows = {1}, int64[1] columns = {2}> {
        h = Relu(x)
        shape = Shape(h)
        n = Slice(shape, axis, rows, axis)
        width = Slice(shape, columns, last, axis)
        wide = Mul(width, two)
        rest = Gather(shape, one)
        r = Unsqueeze(rest, axis)
        half = Div(r, two)
        target = Concat <axis = 0> (n, half, wide)
        y = Reshape(h, target)
    }"""

    assert folded(text, x=array(2, 6, 4)) == ["Relu", "Shape", "Slice", "Concat", "Reshape"]  # the batch's way


def test_a_size_that_follows_from_one_that_became_known_is_a_constant() -> None:
    text = """
    net (float[N, 6] x) => (float[N, 3, 2] y)
    <int64[1] pairs = {2}, int64[1] copied = {0}, int64 last = {1}, int64[1] axis = {0}> {
        h = Relu(x)
        size = Shape(h)
        all = Gather(size, last)
        one = Unsqueeze(all, axis)
        half = Div(one, pairs)
        target = Concat <axis = 0> (copied, half, pairs)
        z = Reshape(h, target)
        second = Shape <start = 1, end = 2> (z)
        third = Shape <start = 2> (z)
        again = Concat <axis = 0> (copied, second, third)
        y = Reshape(z, again)
    }"""

    assert folded(text, x=array(2, 6)) == ["Relu", "Reshape", "Reshape"]


def test_the_shape_of_an_expand_is_a_constant() -> None:
    """PyTorch's older exporter compares the shape with -1, which stands for the size that is there."""
    text = """
    net (float[N, 1] x) => (float[N, 4] y)
    <int64[1] length = {2}, int64 minus = {-1}, int64[2] wanted = {-1, 4}> {
        ones = ConstantOfShape <value = int64[1] {1}> (length)
        none = Mul(ones, minus)
        same = Equal(wanted, none)
        shape = Where(same, ones, wanted)
        y = Expand(x, shape)
    }"""

    assert folded(text, x=array(3, 1)) == ["Expand"]


def test_a_stated_shape_is_not_believed() -> None:
    """What a file says of a value in the middle may be that of the example with which it was made."""
    text = """
    net (float[N, 4] x, int64[2] shape) => (int64[1] y)
    <int64[1] two = {2}, float[N, 8] h> {
        h = Reshape(x, shape)
        n = Shape <start = 1, end = 2> (h)
        y = Mul(n, two)
    }"""

    assert folded(text, x=array(3, 4), shape=np.array([2, 6])) == ["Reshape", "Shape", "Mul"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("Div(a, b)", True), ("Div(c, b)", False), ("Min(a, b)", True), ("Max(a, c)", True), ("Sub(b, a)", True)],
)
def test_arithmetic_is_that_of_onnx(expression: str, expected: bool) -> None:
    text = f"""
    net () => (int64[1] y)
    <int64[1] a = {{7}}, int64[1] b = {{2}}, int64[1] c = {{-7}}> {{
        r = {expression}
        y = Identity(r)
    }}"""

    assert (folded(text) == ["Identity"]) is expected


@pytest.mark.parametrize(
    ("expression", "expected", "rank"),
    [
        ("n = Shape<start = 1>(x) r = Unsqueeze(n, first)", False, 2),
        ("s = Shape(x) n = Gather(s, place) r = Unsqueeze(n, both)", False, 2),
        ("s = Shape(x) n = Gather(s, place) r = Unsqueeze(n, first)", True, 1),
        ("n = Shape<start = 1>(x) yes = Cast<to = 9>(n) r = Cast<to = 7>(yes)", True, 1),
    ],
)
def test_ranks_and_truths_are_those_of_onnx(expression: str, expected: bool, rank: int) -> None:
    text = f"""
    net (float[N, 4] x) => (int64{"[1, 1]" if rank == 2 else "[1]"} y)
    <int64[1] first = {{0}}, int64[2] both = {{0, 1}}, int64 place = {{1}}> {{
        {expression}
        y = Identity(r)
    }}"""

    assert (folded(text, x=array(3, 4)) == ["Identity"]) is expected


# -- transposes ------------------------------------------------------------------------------------------------------

ATTENTION = """
net (float[5, B, 3, 4] x) => (float[5, B, 4] y)
<int64[1] front = {0}, int64[1] last = {-2}, int64 which = {1}> {
    wide = Unsqueeze(x, front)
    turned = Transpose <perm = PERM> (wide)
    narrow = Squeeze(turned, last)
    copied = Identity(narrow)
    y = Gather <axis = 0> (copied, which)
}"""


def test_the_axis_of_queries_keys_and_values_is_selected_where_it_is() -> None:
    text = ATTENTION.replace("PERM", "[3, 1, 2, 0, 4]")

    found = compared(text, AndRemoveDeadNodes(SelectBeforeTransposing()), x=array(5, 2, 3, 4))

    assert found == (True, ["Gather"])


def test_a_transpose_that_also_moves_other_axes_stays() -> None:
    text = ATTENTION.replace("PERM", "[3, 2, 1, 0, 4]").replace("(float[5, B, 4] y)", "(float[B, 5, 4] y)")

    changed, operators = compared(text, SelectBeforeTransposing(), x=array(5, 2, 3, 4))

    assert not changed
    assert "Transpose" in operators


def test_a_transposed_product_has_transposed_factors() -> None:
    text = """
    net (float[6, 3] a, float[6, 4] b) => (float[4, 3] y) {
        t = Transpose <perm = [1, 0]> (a)
        p = MatMul(t, b)
        y = Transpose <perm = [1, 0]> (p)
    }"""

    assert compared(text, TransposeFactors(), a=array(6, 3), b=array(6, 4)) == (True, ["Gemm"])


def test_a_product_that_something_else_reads_stays() -> None:
    text = """
    net (float[6, 3] a, float[6, 4] b) => (float[4, 3] y, float[3, 4] z) {
        t = Transpose <perm = [1, 0]> (a)
        p = MatMul(t, b)
        z = Neg(p)
        y = Transpose <perm = [1, 0]> (p)
    }"""

    assert not compared(text, TransposeFactors(), a=array(6, 3), b=array(6, 4))[0]
