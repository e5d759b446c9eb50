"""What a Gradient node means: cut, point, skipped outputs, higher order, where it may stand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from autodiff.text_models import parse, run
from onward.compiler.derivatives import lower_gradients
from onward.model import serde

G = "ai.onnx.preview.training.Gradient"


def lowered(text: str, opset: int = 18) -> onnx.ModelProto:
    """Return the lowered model, which must be plain and pass the checker."""
    proto = lower_gradients(parse(text, opset))
    onnx.checker.check_model(proto, full_check=True)
    assert all(n.domain == "" for n in proto.graph.node)
    assert [i.domain for i in proto.opset_import] == [""]
    return proto


def test_gradient_node_gives_the_derivative_by_each_x() -> None:
    proto = lowered(
        f"""g (double[2] x, double[2] w) => (double[2] dx, double[2] dw) {{
        p = Mul(x, w)
        y = Exp(p)
        dx, dw = {G}<xs=["x", "w"], y="y">(x, w)
    }}"""
    )

    result = run(proto, x=[1.0, 2.0], w=[0.5, 0.25])

    np.testing.assert_allclose(result["dx"], np.exp([0.5, 0.5]) * [0.5, 0.25])
    np.testing.assert_allclose(result["dw"], np.exp([0.5, 0.5]) * [1.0, 2.0])


def test_an_intermediate_as_x_stops_the_derivative_there() -> None:
    proto = lowered(
        f"""g (double[2] x) => (double[2] dh) {{
        h = Exp(x)
        y = Mul(h, h)
        dh = {G}<xs=["h"], y="y">(h)
    }}"""
    )

    result = run(proto, x=[0.0, 1.0])

    np.testing.assert_allclose(result["dh"], 2 * np.exp([0.0, 1.0]))


def test_zs_are_constant() -> None:
    proto = lowered(
        f"""g (double[2] x, double[2] w) => (double[2] dx) {{
        h = Exp(w)
        p = Mul(x, h)
        y = Mul(p, x)
        dx = {G}<xs=["x"], zs=["h"], y="y">(x, h)
    }}"""
    )

    result = run(proto, x=[1.0, 3.0], w=[0.0, 0.0])

    np.testing.assert_allclose(result["dx"], [2.0, 6.0])


def test_other_inputs_evaluate_the_slice_again_at_that_point() -> None:
    proto = lowered(
        f"""g (double[2] x, double[2] w, double[2] other) => (double[2] y, double[2] dx) {{
        p = Mul(x, w)
        y = Mul(p, x)
        dx = {G}<xs=["x"], zs=["w"], y="y">(other, w)
    }}"""
    )

    result = run(proto, x=[1.0, 1.0], w=[2.0, 3.0], other=[5.0, 7.0])

    np.testing.assert_allclose(result["y"], [2.0, 3.0])
    np.testing.assert_allclose(result["dx"], [20.0, 42.0])  # 2 * other * w


def test_a_point_that_the_slice_reads_itself_counts_only_as_the_point() -> None:
    # y = x * other: at x := other the derivative by x is `other`, not 2 * other.
    proto = lowered(
        f"""g (double[2] x, double[2] other) => (double[2] dx) {{
        y = Mul(x, other)
        dx = {G}<xs=["x"], y="y">(other)
    }}"""
    )

    result = run(proto, x=[1.0, 1.0], other=[5.0, 7.0])

    np.testing.assert_allclose(result["dx"], [5.0, 7.0])


def test_one_point_may_stand_for_two_names() -> None:
    proto = lowered(
        f"""g (double[2] x, double[2] w, double[2] p) => (double[2] dx, double[2] dw) {{
        q = Mul(x, x)
        y = Mul(q, w)
        dx, dw = {G}<xs=["x", "w"], y="y">(p, p)
    }}"""
    )

    result = run(proto, x=[1.0, 1.0], w=[1.0, 1.0], p=[2.0, 3.0])

    np.testing.assert_allclose(result["dx"], [8.0, 18.0])  # 2 x w
    np.testing.assert_allclose(result["dw"], [4.0, 9.0])  # x²


def test_only_what_depends_on_the_new_point_is_computed_again() -> None:
    proto = lowered(
        f"""g (double[2] x, double[2] w, double[2] other) => (double[2] y, double[2] dx) {{
        e = Exp(w)
        f = Exp(e)
        y = Mul(x, f)
        dx = {G}<xs=["x"], zs=["w"], y="y">(other, w)
    }}"""
    )

    assert [n.op_type for n in proto.graph.node].count("Exp") == 2


def test_dropout_keeps_its_mask_when_the_slice_is_evaluated_again() -> None:
    proto = lowered(
        f"""g (float[64] x, float[64] other) => (float[64] y, float[64] dx) {{
        ratio = Constant<value_float=0.5>()
        yes = Cast<to=9>(ratio)
        d = Dropout(x, ratio, yes)
        y = Mul(d, d)
        dx = {G}<xs=["x"], y="y">(other)
    }}"""
    )

    result = run(proto, x=np.ones(64, np.float32), other=np.full(64, 3.0, np.float32))

    kept = result["y"] != 0
    assert 0 < kept.sum() < 64
    np.testing.assert_allclose(result["dx"], np.where(kept, 24.0, 0.0))  # 2 (3 / 0.5) / 0.5


def test_random_numbers_are_drawn_once() -> None:
    proto = lowered(
        f"""g (float[8] x, float[8] other) => (float[8] y, float[8] dx) {{
        r = RandomNormalLike(x)
        y = Mul(x, r)
        dx = {G}<xs=["x"], y="y">(other)
    }}"""
    )

    result = run(proto, x=np.ones(8, np.float32), other=np.full(8, 2.0, np.float32))

    np.testing.assert_array_equal(result["dx"], result["y"])  # at x = 1, y is r itself


def test_an_output_that_is_not_named_is_not_computed() -> None:
    text = f"""g (double[2] x, double[2] w) => (double[2] dw) {{
        p = Mul(x, w)
        y = Exp(p)
        "", dw = {G}<xs=["x", "w"], y="y">(x, w)
    }}"""
    proto = parse(text.replace('"", dw', "dx, dw"))
    proto.graph.node[2].output[0] = ""
    result = lower_gradients(proto)

    np.testing.assert_allclose(run(result, x=[2.0, 3.0], w=[0.0, 0.0])["dw"], [2.0, 3.0])
    assert [n.op_type for n in result.graph.node].count("Mul") == 3  # x·w, dp = dy·y and dw = dp·x, but no dp·w


def test_independent_x_gets_zeros_of_its_shape() -> None:
    proto = lowered(
        f"""g (double[2] x, double[N,M] w) => (double[2] dx, double[N,M] dw) {{
        y = Exp(x)
        dx, dw = {G}<xs=["x", "w"], y="y">(x, w)
    }}"""
    )

    result = run(proto, x=[0.0, 0.0], w=np.ones((3, 4)))

    np.testing.assert_array_equal(result["dw"], np.zeros((3, 4)))


def test_y_by_itself_is_ones() -> None:
    proto = lowered(
        f"""g (double[2] x) => (double[2] dx) {{
        h = Exp(x)
        dx = {G}<xs=["x"], y="x">(x)
    }}"""
    )

    np.testing.assert_array_equal(run(proto, x=[5.0, 6.0])["dx"], [1.0, 1.0])


def test_a_gradient_of_a_gradient_of_a_gradient() -> None:
    proto = lowered(
        f"""g (double[2] x) => (double[2] d1, double[2] d2, double[2] d3) {{
        a = Mul(x, x)
        b = Mul(a, x)
        y = Mul(b, x)
        d1 = {G}<xs=["x"], y="y">(x)
        d2 = {G}<xs=["x"], y="d1">(x)
        d3 = {G}<xs=["x"], y="d2">(x)
    }}"""
    )

    result = run(proto, x=[1.0, 2.0])

    np.testing.assert_allclose(result["d1"], [4.0, 32.0])
    np.testing.assert_allclose(result["d2"], [12.0, 48.0])
    np.testing.assert_allclose(result["d3"], [24.0, 48.0])


def test_second_order_at_another_point() -> None:
    proto = lowered(
        f"""g (double[2] x, double[2] p) => (double[2] d2) {{
        a = Mul(x, x)
        y = Mul(a, x)
        d1 = {G}<xs=["x"], y="y">(x)
        d2 = {G}<xs=["x"], y="d1">(p)
    }}"""
    )

    np.testing.assert_allclose(run(proto, x=[1.0, 1.0], p=[2.0, 3.0])["d2"], [12.0, 18.0])


def test_several_gradient_nodes_share_backward_work() -> None:
    body = """
        p = MatMul(x, w)
        q = Tanh(p)
        r = MatMul(q, v)
        y = ReduceSum<keepdims=0>(r)
    """
    head = "g (double[2,3] x, double[3,4] w, double[4,5] v) => (double[3,4] dw, double[4,5] dv) {"
    together = lowered(f'{head}{body} dw, dv = {G}<xs=["w", "v"], y="y">(w, v) }}')
    apart = lowered(
        f'{head}{body} dw = {G}<xs=["w"], zs=["v"], y="y">(w, v)  dv = {G}<xs=["v"], zs=["w"], y="y">(v, w) }}'
    )

    assert len(apart.graph.node) == len(together.graph.node)
    feeds = {"x": np.ones((2, 3)), "w": np.full((3, 4), 0.1), "v": np.full((4, 5), 0.2)}
    for name, value in run(together, **feeds).items():
        np.testing.assert_allclose(run(apart, **feeds)[name], value)


def test_equal_gradient_nodes_give_equal_outputs_under_both_names() -> None:
    proto = lowered(
        f"""g (double[2] x) => (double[2] a, double[2] b) {{
        y = Exp(x)
        a = {G}<xs=["x"], y="y">(x)
        b = {G}<xs=["x"], y="y">(x)
    }}"""
    )

    result = run(proto, x=[0.0, 1.0])

    np.testing.assert_allclose(result["a"], np.exp([0.0, 1.0]))
    np.testing.assert_array_equal(result["a"], result["b"])


def test_gradient_node_in_a_loop_body_sees_the_values_around_it() -> None:
    # Newton's iteration for the root of f(v) = v² - target, with f' taken by a Gradient node.
    proto = lower_gradients(
        parse(
            f"""g (double target, int64 n) => (double root) {{
        start = Constant<value = double {{3.0}}>()
        root = Loop(n, "", start) <body = b (int64 i, bool ci, double v) => (bool co, double vo) {{
            co = Identity(ci)
            s = Mul(v, v)
            f = Sub(s, target)
            df = {G}<xs=["v"], y="f">(v)
            step = Div(f, df)
            vo = Sub(v, step)
        }}>
    }}"""
        )
    )
    onnx.checker.check_model(proto, full_check=True)

    result = run(proto, target=np.array(2.0), n=np.array(8))

    np.testing.assert_allclose(result["root"], np.sqrt(2.0), rtol=1e-15)


def test_gradient_node_in_an_if_branch() -> None:
    proto = lower_gradients(
        parse(
            f"""g (double[2] x, bool c) => (double[2] r) {{
        y = Exp(x)
        r = If(c) <then_branch = t () => (double[2] a) {{ a = {G}<xs=["x"], y="y">(x) }},
                   else_branch = f () => (double[2] b) {{ b = Identity(x) }}>
    }}"""
        )
    )

    np.testing.assert_allclose(run(proto, x=[0.0, 1.0], c=True)["r"], np.exp([0.0, 1.0]))
    np.testing.assert_allclose(run(proto, x=[0.0, 1.0], c=False)["r"], [0.0, 1.0])


FUNCTION = f"""
<ir_version: 10, opset_import: ["" : 18, "my" : 1, "ai.onnx.preview.training" : 1]>
g (double[2] x, float[3] z) => (double[2] a, float[3] b) {{
    a = my.slope(x)
    b = my.slope(z)
}}
<domain: "my", opset_import: ["" : 18, "ai.onnx.preview.training" : 1]>
slope (v) => (d) {{
    y = Mul(v, v)
    d = {G}<xs=["v"], y="y">(v)
}}
"""


def test_gradient_node_in_a_function_gets_the_types_of_each_call() -> None:
    proto = lower_gradients(onnx.parser.parse_model(FUNCTION))
    onnx.checker.check_model(proto, full_check=True)

    result = run(proto, x=np.array([1.0, 2.0]), z=np.ones(3, np.float32))

    np.testing.assert_allclose(result["a"], [2.0, 4.0])
    np.testing.assert_allclose(result["b"], [2.0, 2.0, 2.0])
    assert result["b"].dtype == np.float32
    assert not proto.functions


def test_gradient_through_a_call_of_a_function() -> None:
    proto = onnx.parser.parse_model(
        f"""
        <ir_version: 10, opset_import: ["" : 18, "my" : 1, "ai.onnx.preview.training" : 1]>
        g (double[2] x) => (double[2] y, double[2] d) {{
            y = my.cube <power = 3.0> (x)
            d = {G}<xs=["x"], y="y">(x)
        }}
        <domain: "my", opset_import: ["" : 18]>
        cube <power> (v) => (r) {{
            p = Constant<value_float : float = @power>()
            q = CastLike(p, v)
            r = Pow(v, q)
        }}
        """
    )

    result = run(lower_gradients(proto), x=[1.0, 2.0])

    np.testing.assert_allclose(result["y"], [1.0, 8.0])
    np.testing.assert_allclose(result["d"], [3.0, 12.0])


def test_gradient_in_an_algorithm_reads_the_inference_graph() -> None:
    proto = parse("g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Mul(x, w) }")
    gradient = helper.make_node(
        "Gradient", ["w", "x"], ["dw"], domain="ai.onnx.preview.training", xs=["w"], zs=["x"], y="loss"
    )
    algorithm = helper.make_graph(
        [
            helper.make_node("Sub", ["y", "t"], ["e"]),
            helper.make_node("Mul", ["e", "e"], ["q"]),
            helper.make_node("ReduceSum", ["q"], ["loss"], keepdims=0),
            gradient,
            helper.make_node("Sub", ["w", "dw"], ["w_new"]),
        ],
        "train",
        [helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, [2])],
        [
            helper.make_tensor_value_info("w_new", onnx.TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []),
        ],
    )
    info = proto.training_info.add()
    info.algorithm.CopyFrom(algorithm)
    info.update_binding.add(key="w", value="w_new")

    result = lower_gradients(proto)

    nodes = result.training_info[0].algorithm.node
    assert all(n.domain == "" for n in nodes)
    assert [n.op_type for n in result.graph.node] == ["Mul"]
    assert serde.from_proto(result).entries[0].update_binding == {"w": "w_new"}
    combined = onnx.ModelProto()
    combined.CopyFrom(result)
    combined.graph.node.extend(nodes)
    combined.graph.input.extend(algorithm.input)
    del combined.graph.output[:]
    combined.graph.output.extend(algorithm.output)
    values = run(combined, x=np.ones(2, np.float32), t=np.zeros(2, np.float32))
    np.testing.assert_allclose(values["w_new"], [-1.0, -2.0])


@pytest.mark.parametrize("name", ["test_gradient_of_add", "test_gradient_of_add_and_mul"])
def test_onnx_own_gradient_tests_pass(name: str) -> None:
    import onnxruntime
    from onnx.backend.test.loader import load_model_tests

    case = next(c for c in load_model_tests(kind="simple") if c.name == name)
    folder = Path(case.model_dir)
    proto = lower_gradients(str(folder / "model.onnx"))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    data_sets = sorted(folder.glob("test_data_set_*"))
    assert data_sets

    for data_set in data_sets:
        feeds = {i.name: tensor(data_set / f"input_{k}.pb") for k, i in enumerate(proto.graph.input)}
        expected = {o.name: tensor(data_set / f"output_{k}.pb") for k, o in enumerate(proto.graph.output)}
        by_onnxruntime = dict(zip(expected, session.run(list(expected), feeds), strict=True))
        for results in (by_onnxruntime, run(proto, **feeds)):
            for key, value in expected.items():
                np.testing.assert_allclose(results[key], value, rtol=case.rtol, atol=case.atol)


def tensor(path: Path) -> np.ndarray:
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def test_backward_nodes_are_named_after_their_forward_node() -> None:
    proto = parse(
        f"""g (double[2] x) => (double[2] d) {{
        y = Exp(x)
        d = {G}<xs=["x"], y="y">(x)
    }}"""
    )
    proto.graph.node[0].name = "/encoder/Exp"

    backward = [n for n in lower_gradients(proto).graph.node if n.op_type == "Mul"]

    assert [n.name for n in backward] == ["grad//encoder/Exp/Mul"]


def test_no_shape_nodes_appear_where_shapes_are_known() -> None:
    proto = lowered(
        f"""g (float[2,3] x, float[3] b, float[1,3] c) => (float[3] db, float[1,3] dc) {{
        s = Add(x, b)
        m = Mul(s, c)
        y = ReduceMean<keepdims=0>(m)
        db, dc = {G}<xs=["b", "c"], zs=["x"], y="y">(b, c, x)
    }}"""
    )

    assert not {"Shape", "Gather", "Size", "NonZero"} & {n.op_type for n in proto.graph.node}


def test_lowering_leaves_its_argument_as_it_was() -> None:
    proto = parse(f'g (double[2] x) => (double[2] d) {{ y = Exp(x) d = {G}<xs=["x"], y="y">(x) }}')
    before = proto.SerializeToString()

    lower_gradients(proto)

    assert proto.SerializeToString() == before
