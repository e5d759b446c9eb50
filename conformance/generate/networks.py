"""Gradient cases of small networks: what one operator alone does not ask for.

Values used twice, several Gradient nodes, x that y does not depend on, initializers as xs, constants that are in
neither list, functions of the model, a tensor-valued y, gradients of gradients of a tensor, and function operators
expanded as the standard's body of several opsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import helper, parser

from generate.features import differences_of_differences
from generate.gradient import TRAINING, TYPES, Point, cast, differentiate, evaluate, output_types
from generate.oracle import Forward, NoOracle, Runtime, finite_differences, same, weighted_sum
from generate.tolerance import tolerance
from generate.writer import Suite, slug

HEADER = '<ir_version: 10, opset_import: ["" : 21, "ai.onnx.preview.training" : 1, "user" : 1]>\n'


def array(*shape: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng([seed, *shape]).uniform(-1.5, 1.5, shape)
    return values.astype(np.float32).astype(np.float64)


X, W, B = array(2, 3), array(3, 2, seed=1), array(2, seed=2)
FEEDS = {"x": X, "w": W, "b": B}
SIGNATURE = "g (float[2,3] x, float[3,2] w, float[2] b) => (float y) "
# name, forward text, y, [(xs, zs) of each Gradient node], initializers, features
NETWORKS: list[tuple[str, str, list[tuple[str, list[str], list[str]]], list[str], list[str]]] = [
    ("two layers",
     SIGNATURE + "{ h = MatMul(x, w) a = Add(h, b) t = Tanh(a) q = Mul(t, t) y = Total(q) }",
     [("y", ["x", "w", "b"], [])], [], []),
    ("value used three times",
     SIGNATURE + "{ h = MatMul(x, w) s = Sigmoid(h) p = Mul(h, s) r = Sub(p, h) a = Add(r, b) y = Total(a) }",
     [("y", ["x", "w", "b"], [])], [], []),
    ("input used twice by one node",
     SIGNATURE + "{ q = Mul(x, x) h = MatMul(q, w) a = Add(h, b) y = ReduceMean<keepdims=0>(a) }",
     [("y", ["x"], ["w", "b"])], [], ["zs"]),
    ("two Gradient nodes",
     SIGNATURE + "{ h = MatMul(x, w) a = Add(h, b) t = Tanh(a) u = Exp(a) y = Total(t) v = Total(u) }",
     [("y", ["x", "w"], ["b"]), ("v", ["b"], ["x", "w"])], [], ["zs"]),
    ("y does not depend on one x", SIGNATURE + "{ h = MatMul(x, w) e = Exp(b) y = Total(h) }",
     [("y", ["x", "w", "b"], [])], [], ["unreached"]),
    ("weights are initializers", SIGNATURE + "{ h = MatMul(x, w) a = Add(h, b) t = Tanh(a) y = Total(t) }",
     [("y", ["w", "b"], ["x"])], ["w", "b"], ["zs"]),
    ("initializer in neither list",
     SIGNATURE + "{ h = MatMul(x, w) a = Add(h, b) t = Tanh(a) y = Total(t) }",
     [("y", ["w"], ["x"])], ["w", "b"], ["zs", "captured"]),
    ("input in neither list", SIGNATURE + "{ h = MatMul(x, w) a = Add(h, b) t = Tanh(a) y = Total(t) }",
     [("y", ["w"], [])], [], ["captured"]),
    ("y is an intermediate value",
     SIGNATURE + "{ h = MatMul(x, w) s = Total(h) e = Exp(s) y = Add(e, e) }",
     [("s", ["x", "w"], [])], [], []),
    ("tensor y", SIGNATURE + "{ h = MatMul(x, w) a = Add(h, b) t = Tanh(a) y = Total(t) }",
     [("t", ["x", "w", "b"], [])], [], ["tensor-y"]),
    ("y is x", SIGNATURE + "{ y = Total(x) }", [("x", ["x"], [])], [], ["tensor-y"]),
    ("broadcasting of rows and columns",
     "g (float[2,1] x, float[1,3] w, float b) => (float y) { "
     "m = Mul(x, w) d = Div(m, b) e = Sub(d, x) q = Mul(e, e) y = Total(q) }",
     [("y", ["x", "w", "b"], [])], [], ["broadcasting"]),
    ("integers in zs", "g (float[4,3] x, int64[2] i) => (float y) { r = Gather(x, i) e = Exp(r) y = Total(e) }",
     [("y", ["x"], ["i"])], [], ["zs"]),
    ("through a function of the model",
     SIGNATURE + "{ a = user.Layer(x, w, b) c = user.Layer(x, w, a) y = Total(c) }\n"
     '<domain: "user", opset_import: ["" : 21]> Layer (x, w, b) => (y) { h = MatMul(x, w) a = Add(h, b) y = Tanh(a) }',
     [("y", ["x", "w", "b"], [])], [], ["function"]),
    ("If in a network",
     "g (float[2,3] x, float[3,2] w, float[2] b, bool c) => (float y) { h = MatMul(x, w) "
     "a = If(c)<then_branch = t () => (float[2,2] p) { p = Add(h, b) }, "
     "else_branch = f () => (float[2,2] q) { q = Mul(h, h) }> y = Total(a) }",
     [("y", ["x", "w", "b"], ["c"])], [], ["control-flow", "zs"]),
    ("Loop in a network",
     "g (float[2,2] x, float[2,2] w, int64 n) => (float y) { k = Constant<value = bool {1}>() "
     "h = Loop(n, k, x)<body = l (int64 i, bool ki, float[2,2] s) => (bool ko, float[2,2] o) "
     "{ m = MatMul(s, w) o = Tanh(m) ko = Identity(ki) }> y = Total(h) }",
     [("y", ["x", "w"], ["n"])], [], ["control-flow", "zs"]),
    ("Scan in a network",
     "g (float[2] x, float[4,2] w) => (float y) { h, o = Scan<num_scan_inputs=1, body = s (float[2] p, float[2] e) => "
     "(float[2] r, float[2] z) { m = Mul(p, e) r = Sin(m) z = Exp(r) }>(x, w) a = Total(h) "
     "c = Total(o) y = Add(a, c) }",
     [("y", ["x", "w"], [])], [], ["control-flow"]),
]  # fmt: skip
SPECIAL_FEEDS = {
    "broadcasting of rows and columns": {"x": array(2, 1), "w": array(1, 3), "b": np.array(0.75)},
    "integers in zs": {"x": array(4, 3), "i": np.array([2, 2])},
    "If in a network": {**FEEDS, "c": np.array(True)},
    "Loop in a network": {"x": array(2, 2), "w": array(2, 2, seed=1), "n": np.array(3)},
    "Scan in a network": {"x": array(2), "w": array(4, 2)},
}


def add_all(suite: Suite) -> Iterator[str]:
    """Write every case of this file; yield a sentence for each that no oracle could compute."""
    for name, text, nodes, initializers, features in NETWORKS:
        feeds = SPECIAL_FEEDS.get(name, FEEDS)
        for dtype, shapes in (("float32", "static"), ("float64", "rank")):
            add_network(suite, name, text, nodes, initializers, features, feeds, dtype, shapes)
    add_gradient_of_tensor_gradient(suite)
    add_dropout(suite)
    yield from ()


def parse(text: str, dtype: str) -> onnx.ModelProto:
    text = text.replace("Total(", "ReduceSum<keepdims=0>(")
    return parser.parse_model(HEADER + (text.replace("float", "double") if dtype == "float64" else text))


def add_network(
    suite: Suite, name: str, text: str, nodes: Sequence[tuple[str, list[str], list[str]]], initializers: Sequence[str],
    features: Sequence[str], feeds: Mapping[str, np.ndarray], dtype: str, shapes: str,
) -> None:  # fmt: skip
    """Write a network with its Gradient nodes, in one type and shape mode."""
    forward = parse(text, "float64")
    del forward.graph.output[:]
    for y in dict.fromkeys(y for y, _, _ in nodes):
        forward.graph.output.append(helper.make_tensor_value_info(y, onnx.TensorProto.DOUBLE, None))
    evaluator, runtime = Forward(forward), Runtime(forward)
    outputs = evaluator(feeds)
    if not same(outputs, runtime(feeds), list(outputs)):
        raise NoOracle(f"ReferenceEvaluator and ONNX Runtime disagree on {name}")
    model = parse(text, dtype)
    graph = model.graph
    element = helper.np_dtype_to_tensor_dtype(TYPES[dtype])
    low = {n: cast(a, dtype) if a.dtype == np.float64 else a for n, a in feeds.items()}
    del graph.output[:]
    expected: dict[str, np.ndarray] = {}
    for number, (y, xs, zs) in enumerate(nodes):
        weights = {y: np.ones_like(outputs[y])}
        found = finite_differences(
            lambda f, weights=weights: weighted_sum(evaluator(f), weights),
            feeds,
            xs,
            1e-3,  # type: ignore[misc]
        )
        names = [f"d{y}_d{x}" for x in xs]
        attributes = {"zs": zs} if zs else {}
        graph.node.append(
            helper.make_node("Gradient", [*xs, *zs], names, name=f"gradient_{number}", domain=TRAINING, xs=xs, y=y,
                             **attributes)
        )  # fmt: skip
        for x, n in zip(xs, names, strict=True):
            expected[n] = cast(found[x], dtype)
            sizes = list(found[x].shape) if shapes == "static" else [None] * found[x].ndim
            graph.output.append(helper.make_tensor_value_info(n, element, sizes))
    kept = [i for i in graph.input if i.name not in initializers]
    del graph.input[:]
    graph.input.extend(kept)
    graph.initializer.extend(onnx.numpy_helper.from_array(low[n], n) for n in initializers)
    if shapes == "rank":
        for info in graph.input:
            for dim in info.type.tensor_type.shape.dim:
                dim.Clear()
    if not model.functions:
        imports = [i for i in model.opset_import if i.domain != "user"]
        del model.opset_import[:]
        model.opset_import.extend(imports)
    given = {n: a for n, a in low.items() if n not in initializers}
    rtol, atol = tolerance(dtype, expected.values())
    suite.add(
        f"gradient/Gradient/{slug(name)}{'' if dtype == 'float32' else f'-{shapes}-{dtype}'}",
        model, [(given, expected)], kind="gradient", operator="Gradient", domain=TRAINING, dtypes=[dtype],
        shapes=shapes, oracle=f"{Forward.name}, forward confirmed by ONNX Runtime", rtol=rtol, atol=atol,
        features=features,
    )  # fmt: skip


def add_gradient_of_tensor_gradient(suite: Suite) -> None:
    """Write the standard's own second-order example: y of the second node is the tensor that the first one returns."""
    text = "g (float[3] x, float[3] w) => (float y) { "
    text += "p = Mul(x, w) e = Exp(p) q = Mul(e, x) y = Total(q) }"
    feeds = {"x": array(3), "w": array(3, seed=1)}
    forward = Forward(parse(text, "float64"))
    ones = {"x": np.zeros(3), "w": np.ones(3)}
    point = Point(dict(feeds), {"y": np.ones(())}, {}, "")
    second = differences_of_differences(forward, point, ["x", "w"], ones)
    for dtype in ("float32", "float64"):
        model = parse(text, dtype)
        graph = model.graph
        both = ["x", "w"]
        graph.node.append(helper.make_node("Gradient", both, ["dx", "dw"], domain=TRAINING, xs=both, y="y"))
        graph.node.append(helper.make_node("Gradient", both, ["ddx", "ddw"], domain=TRAINING, xs=both, y="dw"))
        del graph.output[:]
        expected = {f"dd{n}": cast(second[n], dtype) for n in both}
        for n in expected:
            graph.output.append(helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(TYPES[dtype]), [3]))
        suite.add(
            f"gradient/Gradient/y-is-the-tensor-of-another-gradient{'' if dtype == 'float32' else '-' + dtype}", model,
            [({n: cast(a, dtype) for n, a in feeds.items()}, expected)], kind="gradient", operator="Gradient",
            domain=TRAINING, dtypes=[dtype], oracle=f"{Forward.name}, twice", rtol=1e-4, atol=1e-5,
            features=["second-order", "tensor-y"],
        )  # fmt: skip


def add_dropout(suite: Suite) -> None:
    """Write Dropout in training: whatever is drawn, the gradient has the forward's mask and scale.

    For x = 1 the output y is mask * scale, so dx - weight * y is 0, and y * (y - scale) is 0.
    """
    text = """g (float[16,16] x, float[16,16] weight, float scale) => (float[16,16] off, float[16,16] level) {
  r = Constant<value = float {0.25}>() t = Constant<value = bool {1}>() y = Dropout(x, r, t) w = Mul(y, weight)
  total = Total(w)
  dx = ai.onnx.preview.training.Gradient<xs=["x"], zs=["weight"], y="total">(x, weight)
  off = Sub(dx, w) below = Sub(y, scale) level = Mul(y, below) }"""
    zeros = np.zeros((16, 16))
    feeds = {"x": np.ones((16, 16)), "weight": array(16, 16), "scale": np.array(4 / 3)}
    for dtype in ("float32", "float64"):
        model = parse(text, dtype)
        del model.opset_import[2:]
        low = {n: cast(a, dtype) for n, a in feeds.items()}
        suite.add(
            f"gradient/Dropout/mask-and-scale-of-the-forward{'' if dtype == 'float32' else '-' + dtype}", model,
            [(low, {"off": cast(zeros, dtype), "level": cast(zeros, dtype)})], kind="gradient", operator="Dropout",
            dtypes=[dtype], oracle="closed form: an identity of every draw", rtol=0.0, atol=1e-5, features=["zs"],
        )  # fmt: skip


def add_expanded(suite: Suite, case: Any) -> Iterator[str]:
    """Write a table entry of a function operator with the standard's body in its place, at each opset that has one."""
    opsets = body_opsets(case)
    if not opsets:
        return
    try:
        point = evaluate(case, "float32")
    except NoOracle as error:
        yield f"expanded {case}: {error}"
        return
    for opset in opsets:
        built = case.model(dtype=np.float32)
        forward = built.proto
        if any(built.feeds[n].dtype != np.float32 for n, a in point.feeds.items() if a.dtype == np.float64):
            return
        imports = [i for i in forward.opset_import if i.domain not in ("", "ai.onnx")]
        del forward.opset_import[:]
        forward.opset_import.extend([helper.make_opsetid("", opset), *imports])
        types = output_types(forward, onnx.TensorProto.FLOAT)
        if types is None:
            continue  # the operator does not exist so at this opset
        fill_defaults(forward, case.op, opset)
        try:
            inlined = onnx.inliner.inline_selected_functions(
                forward, [(case.domain, case.op)], exclude=False, inline_schema_functions=True
            )
        except Exception as error:  # noqa: BLE001 (onnx raises bare RuntimeError and others)
            yield f"expanded {case} at opset {opset}: {error!r}"[:200]
            continue
        if any(n.op_type == case.op for n in inlined.graph.node):
            continue
        if output_types(inlined, onnx.TensorProto.FLOAT) is None:
            yield f"expanded {case} at opset {opset}: onnx refuses the body"
            continue
        low = {n: a.astype(np.float32) if a.dtype == np.float64 else a for n, a in point.feeds.items()}
        result = differentiate(inlined, low, point.weights, list(point.expected), "static", "float32", types)
        assert result is not None
        model, feeds = result
        expected = {f"d{n}": a.astype(np.float32) for n, a in point.expected.items()}
        rtol, atol = tolerance("float32", expected.values())
        suite.add(
            f"gradient/{case.op}/{slug(case.name)}-expanded-opset-{opset}", model, [(feeds, expected)], kind="gradient",
            operator=case.op, domain=case.domain, dtypes=["float32"], oracle=point.oracle, rtol=rtol, atol=atol,
            features=["zs", "expanded"],
        )  # fmt: skip


def fill_defaults(model: onnx.ModelProto, op_type: str, opset: int) -> None:
    """Give the nodes of an operator the default values of their attributes: a function body reads them."""
    for node in (n for n in model.graph.node if n.op_type == op_type):
        given = {a.name for a in node.attribute}
        for name, attribute in onnx.defs.get_schema(op_type, opset, "").attributes.items():
            if name not in given and attribute.default_value.type:
                node.attribute.append(attribute.default_value)


def body_opsets(case: Any) -> list[int]:
    """Return a few opsets at which the operator of `case` is a function with different bodies or versions."""
    found: set[int] = set()
    if case.domain or not hasattr(case, "arguments") or getattr(case, "text", ""):
        return []
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.name == case.op and schema.domain == "" and not schema.deprecated:
            versions = [*schema.function_opset_versions, *schema.context_dependent_function_opset_versions]
            found |= {max(v, schema.since_version) for v in versions}
    newest = onnx.defs.onnx_opset_version()
    return sorted(v for v in found | ({21} if found and min(found) <= 21 else set()) if 13 <= v <= min(newest, 24))
