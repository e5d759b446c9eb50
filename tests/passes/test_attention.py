"""Long attention in blocks: the gradients of PyTorch and of the plain form, and when attention stays as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

import onward
from onward.autodiff.rules import blockwise
from onward.compiler.program import PlainGraph
from onward.graph import walk
from onward.passes import attention

N, HEADS, QUERIES, KEYS, WIDTH = 2, 3, 10, 14, 4
draw = np.random.default_rng(0)
WEIGHTS = {n: draw.normal(size=(WIDTH, HEADS * size)) for n, size in (("Wq", 4), ("Wk", 4), ("Wv", 5))}
BATCH = {"x": draw.normal(size=(N, QUERIES, WIDTH)), "z": draw.normal(size=(N, KEYS, WIDTH))}
TARGET = draw.normal(size=(N, HEADS, QUERIES, 5))
HIDDEN = draw.random((N, 1, QUERIES, KEYS)) < 0.3
ALL_HIDDEN = HIDDEN.copy()
ALL_HIDDEN[0, 0, 5] = True  # a query that sees no key
FLOAT_MASK = draw.normal(size=(1, HEADS, QUERIES, KEYS))
PLAIN_CORE = "s = MatMul(q, kt) {scaled} {masked} p = Softmax<axis = -1>(m) y = MatMul(p, v)"
SCALED = "c = Constant<value_float = 2.0>() cc = CastLike(c, x) sc = Div(s, cc)"


@pytest.fixture(autouse=True)
def short_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sizes of these tests count as long, in several blocks."""
    monkeypatch.setattr(attention, "SCORES", 100)
    monkeypatch.setattr(attention, "SHORTEST", 8)
    monkeypatch.setattr(blockwise, "ROWS", 4)  # of 10 queries: 4, 4 and 2


def network(
    core: str,
    dtype: str = "double",
    opset: int = 18,
    masks: dict[str, np.ndarray] | None = None,
    keys: Any = KEYS,
    queries: Any = QUERIES,
) -> onnx.ModelProto:
    """Return a network that attends from x to z; `core` computes y of q, kt (or k) and v [N, HEADS, ...]."""
    body = f"""
        axes = Constant<value_ints = [0, 0, {HEADS}, -1]>()
        xq = MatMul(x, Wq) zk = MatMul(z, Wk) zv = MatMul(z, Wv)
        rq = Reshape(xq, axes) rk = Reshape(zk, axes) rv = Reshape(zv, axes)
        q = Transpose<perm = [0, 2, 1, 3]>(rq) k = Transpose<perm = [0, 2, 1, 3]>(rk)
        kt = Transpose<perm = [0, 2, 3, 1]>(rk) v = Transpose<perm = [0, 2, 1, 3]>(rv)
        {core.replace("DTYPE", dtype)}"""
    head = f'<ir_version: 10, opset_import: ["" : {opset}]>'
    inputs = f"{dtype}[N, {queries}, {WIDTH}] x, {dtype}[N, {keys}, {WIDTH}] z"
    proto = onnx.parser.parse_model(f"{head} net ({inputs}) => ({dtype}[N, {HEADS}, {queries}, 5] y) {{ {body} }}")
    number = np.float64 if dtype == "double" else np.float32
    for name, value in {**WEIGHTS, **(masks or {})}.items():
        kept = value if value.dtype == bool else value.astype(number)
        proto.graph.initializer.append(numpy_helper.from_array(kept, name))
    return proto


def gradients(proto: onnx.ModelProto, train: tuple[str, ...] = tuple(WEIGHTS), **options: Any) -> PlainGraph:
    """Return the graph of the gradients of the squared error."""
    model = onward.make_trainable(proto, loss="mse", optimizer=onward.SGD(0.1), train=list(train))
    (entry,) = onward.compile(model, split=True, **{"recompute": "auto", **options}).entries.values()
    assert entry.gradients is not None
    return entry.gradients


def run(graph: PlainGraph, masks: dict[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """Return what the graph computes on ONNX Runtime, by name."""
    session = onnxruntime.InferenceSession(graph.proto().SerializeToString())
    known = {**WEIGHTS, **BATCH, **(masks or {})}
    feeds = {}
    for formal in session.get_inputs():
        value = np.asarray(known.get(formal.name, TARGET))
        feeds[formal.name] = value if value.dtype == bool else value.astype("d" if "double" in formal.type else "f")
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def blocked(graph: PlainGraph) -> bool:
    """Return whether the graph computes attention in blocks: none of its values holds all scores of a head."""
    inner = list(walk.all_nodes(graph.model.graph))
    scores = [n for n in inner if n.op_type in ("Softmax", "Attention")]
    scans = [n for n in graph.model.graph if n.op_type == "Scan"]
    return len(scans) == 2 and not any(n in scores for n in graph.model.graph)


def by_torch(
    mask: np.ndarray | None = None, scale: float = 1.0, causal: bool = False, fill: float | None = None
) -> dict[str, np.ndarray]:
    """Return the gradients of PyTorch's autograd, through its own attention unless a `fill` is what hides."""
    weights = {n: torch.tensor(w, requires_grad=True) for n, w in WEIGHTS.items()}
    x, z = (torch.tensor(BATCH[n]) for n in ("x", "z"))
    q, k, v = (
        (data @ weights[n]).reshape(N, data.shape[1], HEADS, -1).transpose(1, 2)
        for n, data in (("Wq", x), ("Wk", z), ("Wv", z))
    )
    given = None if mask is None else torch.tensor(mask)
    if fill is not None and given is not None:
        y = torch.softmax((q @ k.mT * scale).masked_fill(~given, fill), -1) @ v
    else:
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, given, is_causal=causal, scale=scale)
    torch.nn.functional.mse_loss(y, torch.tensor(TARGET)).backward()
    return {f"grad/{n}": w.grad.numpy() for n, w in weights.items() if w.grad is not None}


def assert_close(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], rtol: float = 1e-10) -> None:
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=rtol * np.abs(value).max(), err_msg=name)


WRITTEN: dict[str, tuple[str, str, dict[str, np.ndarray], dict[str, Any]]] = {
    "no mask": ("", "", {}, {}),
    "scale": ("", SCALED, {}, {"scale": 0.5}),
    "float mask by head": ("m = Add(sc, bias)", SCALED, {"bias": FLOAT_MASK}, {"scale": 0.5, "mask": FLOAT_MASK}),
    "float mask in front": ("m = Add(bias, s)", "", {"bias": FLOAT_MASK[0, 0]}, {"mask": FLOAT_MASK[0, 0]}),
    "mask of keys": ("m = Add(s, bias)", "", {"bias": FLOAT_MASK[:, :1, :1]}, {"mask": FLOAT_MASK[:, :1, :1]}),
    "mask of one row": ("m = Add(s, bias)", "", {"bias": FLOAT_MASK[0, 0, 0]}, {"mask": FLOAT_MASK[0, 0, 0][None]}),
    "hidden by sample": (
        "low = Constant<value = DTYPE {-inf}>() m = Where(hidden, low, s)",
        "", {"hidden": HIDDEN}, {"mask": ~HIDDEN},
    ),
    "shown": ("low = Constant<value = DTYPE {-inf}>() m = Where(shown, s, low)", "", {"shown": ~HIDDEN},
              {"mask": ~HIDDEN}),
    "causal": (
        f"""one = Constant<value_int = 1>() size = Constant<value_ints = [{QUERIES}, {KEYS}]>()
            ones = Expand(one, size) low = Trilu<upper = 0>(ones) zero = Constant<value_int = 0>()
            off = Equal(low, zero) inf = Constant<value = DTYPE {{-inf}}>() nil = Constant<value = DTYPE {{0}}>()
            bias = Where(off, inf, nil) m = Add(s, bias)""",
        "", {}, {"causal": True},
    ),
    # As torch.onnx writes is_causal: the size from what the queries are computed of, and the lowest number.
    "causal by sizes": (
        """rows = Shape<start = 2, end = 3>(q) columns = Shape<start = 3, end = 4>(kt)
            size = Concat<axis = 0>(rows, columns)
            one = Constant<value_float = 1.0>() ones = Expand(one, size) low = Trilu<upper = 0>(ones)
            zero = Constant<value_float = 0.0>() off = Equal(low, zero)
            least = Constant<value = DTYPE {-3.4028234663852886e38}>() nil = Constant<value = DTYPE {0}>()
            bias = Where(off, least, nil) m = Add(s, bias)""",
        "", {}, {"causal": True},
    ),
    "a Softmax that is asked for in its own type": ("m = Cast<to = 11>(s)", "", {}, {}),
    "a finite fill": (
        "low = Constant<value = DTYPE {-10000}>() m = Where(hidden, low, s)",
        "", {"hidden": ALL_HIDDEN}, {"mask": ~ALL_HIDDEN, "fill": -10000.0},
    ),
}  # fmt: skip


def written(case: str, **options: Any) -> onnx.ModelProto:
    masked, scaled, masks, _ = WRITTEN[case]
    core = PLAIN_CORE.format(scaled=scaled, masked=masked)
    if not masked:  # Softmax reads the scores
        core = core.replace("(m)", "(sc)" if scaled else "(s)")
    return network(core, masks=masks, **options)


@pytest.mark.parametrize("case", WRITTEN)
def test_attention_that_is_written_out_has_the_gradients_of_torch(case: str):
    graph = gradients(written(case))

    found = run(graph, WRITTEN[case][2])

    assert blocked(graph)
    assert_close(found, by_torch(**{"scale": 1.0, **WRITTEN[case][3]}))


OPERATOR: dict[str, tuple[str, dict[str, np.ndarray], dict[str, Any]]] = {
    "plain": ("Attention(q, k, v)", {}, {"scale": 0.5}),
    "scale": ("Attention<scale = 0.25>(q, k, v)", {}, {"scale": 0.25}),
    "causal": ("Attention<is_causal = 1>(q, k, v)", {}, {"scale": 0.5, "causal": True}),
    "bool mask": ("Attention(q, k, v, shown)", {"shown": ~HIDDEN}, {"scale": 0.5, "mask": ~HIDDEN}),
    "float mask": ("Attention(q, k, v, bias)", {"bias": FLOAT_MASK}, {"scale": 0.5, "mask": FLOAT_MASK}),
}


@pytest.mark.parametrize("case", OPERATOR)
def test_the_operator_has_the_gradients_of_torch(case: str):
    call, masks, options = OPERATOR[case]
    graph = gradients(network(f"y = {call}", opset=23, masks=masks))

    found = run(graph, masks)

    assert blocked(graph)
    assert_close(found, by_torch(**options))


LOW = float(np.finfo(np.float32).min)
UNSEEN: dict[str, np.ndarray] = {
    "truths": ~ALL_HIDDEN,
    "infinity": np.where(ALL_HIDDEN, -np.inf, 0.0),
    "the lowest number": np.where(ALL_HIDDEN, LOW, 0.0),
}


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("case", UNSEEN)
def test_a_query_that_sees_no_key_is_that_of_the_operator(case: str, causal: int, monkeypatch: pytest.MonkeyPatch):
    """ONNX Runtime's operator gives it zeros, as PyTorch does, in float32."""
    masks = {"mask": UNSEEN[case]}
    proto = network(f"y = Attention<is_causal = {causal}>(q, k, v, mask)", "float", opset=23, masks=masks)
    graph = gradients(proto)

    in_blocks = run(graph, masks)

    monkeypatch.setattr(attention, "SCORES", 1000)
    plain = gradients(proto)
    assert blocked(graph)
    assert not blocked(plain)
    assert_close(in_blocks, run(plain, masks), rtol=1e-5)
    shown = ~ALL_HIDDEN & (np.tri(QUERIES, KEYS) > 0 if causal else True)
    assert_close(in_blocks, by_torch(mask=shown, scale=0.5), rtol=1e-5)


def test_the_operator_with_packed_heads_has_the_gradients_of_torch():
    core = f"""a = Attention<q_num_heads = {HEADS}, kv_num_heads = {HEADS}>(xq, zk, zv)
               b = Reshape(a, axes) y = Transpose<perm = [0, 2, 1, 3]>(b)"""
    graph = gradients(network(core, opset=23))

    found = run(graph)

    assert blocked(graph)
    assert_close(found, by_torch(scale=0.5))


@pytest.mark.parametrize(
    "ways",
    [
        ('"nhqd,nhkd->nhqk">(q, k)', 'y = Einsum<equation = "nhqk,nhkd->nhqd">(p, v)'),
        ('"nqhd, nkhd -> nhqk">(rq, rk)', 'b = Einsum<equation = "nhqk, nkhd -> nqhd">(p, rv)'),
    ],
)
def test_products_that_are_written_as_einsum_have_the_gradients_of_torch(ways: tuple[str, str]):
    last = ways[1] + (" y = Transpose<perm = [0, 2, 1, 3]>(b)" if ways[1].startswith("b") else "")
    graph = gradients(network(f"s = Einsum<equation = {ways[0]} p = Softmax<axis = -1>(s) {last}"))

    found = run(graph)

    assert blocked(graph)
    assert_close(found, by_torch())


@pytest.mark.parametrize("long", [True, False])
def test_a_query_that_sees_no_key_has_the_gradient_zero_of_torch(long: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention, "SCORES", 100 if long else 1000)
    core = """s = MatMul(q, kt) nil = Constant<value = double {0}>() low = Constant<value = double {-inf}>()
              bias = Where(shown, nil, low) m = Add(s, bias) raw = Softmax<axis = -1>(m)
              none = IsNaN(raw) p = Where(none, nil, raw) y = MatMul(p, v)"""
    masks = {"shown": ~ALL_HIDDEN}
    graph = gradients(network(core, masks=masks))

    found = run(graph, masks)

    assert blocked(graph) is long
    assert_close(found, by_torch(mask=~ALL_HIDDEN))


@pytest.mark.parametrize("packed", [False, True])
def test_keys_that_several_heads_share_have_the_gradients_of_torch(packed: bool):
    """ONNX and PyTorch give each head of the keys to neighbouring heads of the queries."""
    heads = 6
    wide = {"Wq": draw.normal(size=(WIDTH, heads * 4))}
    split = f"""all = Constant<value_ints = [0, 0, {heads}, -1]>() qq = Reshape(xw, all)
        q6 = Transpose<perm = [0, 2, 1, 3]>(qq) y6 = Attention(q6, k, v)"""
    together = f"""out = Attention<q_num_heads = {heads}, kv_num_heads = {HEADS}>(xw, zk, zv)
        all = Constant<value_ints = [0, 0, {heads}, -1]>() oo = Reshape(out, all)
        y6 = Transpose<perm = [0, 2, 1, 3]>(oo)"""
    last = "axis = Constant<value_ints = [1]>() y = Slice(y6, lo, hi, axis)"
    core = f"xw = MatMul(x, Wide) {together if packed else split} {last}"
    ends = {"lo": np.array([0]), "hi": np.array([HEADS])}
    proto = network(core, opset=23, masks={"Wide": wide["Wq"]})
    for name, value in ends.items():
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    graph = gradients(proto, train=("Wide", "Wk", "Wv"))

    found = run(graph, {"Wide": wide["Wq"]})

    weights = {n: torch.tensor(w, requires_grad=True) for n, w in {**WEIGHTS, **wide}.items()}
    x, z = (torch.tensor(BATCH[n]) for n in ("x", "z"))
    q = (x @ weights["Wq"]).reshape(N, QUERIES, heads, -1).transpose(1, 2)
    k, v = ((z @ weights[n]).reshape(N, KEYS, HEADS, -1).transpose(1, 2) for n in ("Wk", "Wv"))
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)[:, :HEADS]
    torch.nn.functional.mse_loss(y, torch.tensor(TARGET)).backward()
    wanted = {f"grad/{'Wide' if n == 'Wq' else n}": w.grad.numpy() for n, w in weights.items() if w.grad is not None}
    assert blocked(graph)
    assert_close(found, wanted)


def test_float32_agrees_with_the_plain_form(monkeypatch: pytest.MonkeyPatch):
    model = written("float mask by head", dtype="float")
    in_blocks = run(gradients(model), WRITTEN["float mask by head"][2])
    monkeypatch.setattr(attention, "SCORES", 1000)
    graph = gradients(model)

    plain = run(graph, WRITTEN["float mask by head"][2])

    assert not blocked(graph)
    assert_close(in_blocks, plain, rtol=2e-6)


def test_finite_differences_agree_in_double(monkeypatch: pytest.MonkeyPatch):
    graph = gradients(written("hidden by sample"))
    found = run(graph, WRITTEN["hidden by sample"][2])
    direction = {n: draw.normal(size=w.shape) for n, w in WEIGHTS.items()}
    losses = []

    for step in (1e-5, -1e-5):
        with monkeypatch.context() as moved:
            for name, along in direction.items():
                moved.setitem(WEIGHTS, name, WEIGHTS[name] + step * along)
            losses.append(run(graph, WRITTEN["hidden by sample"][2])["loss"])

    slope = sum(float((found[f"grad/{n}"] * along).sum()) for n, along in direction.items())
    assert (losses[0] - losses[1]) / 2e-5 == pytest.approx(slope, rel=1e-7)


FREE: dict[str, tuple[str, dict[str, Any]]] = {
    "no mask": ("s = MatMul(q, kt) p = Softmax<axis = -1>(s) y = MatMul(p, v)", {}),
    "causal": (
        """rows = Shape<start = 2, end = 3>(q) columns = Shape<start = 3, end = 4>(kt)
           size = Concat<axis = 0>(rows, columns) one = Constant<value_float = 1.0>() ones = Expand(one, size)
           low = Trilu<upper = 0>(ones) zero = Constant<value_float = 0.0>() off = Equal(low, zero)
           least = Constant<value = double {-inf}>() nil = Constant<value = double {0}>()
           bias = Where(off, least, nil) s = MatMul(q, kt) m = Add(s, bias) p = Softmax<axis = -1>(m)
           y = MatMul(p, v)""",
        {"causal": True},
    ),
    "keys hidden by what is read": (
        """zero = Constant<value = double {0}>() middle = Constant<value_ints = [1, 2]>()
           place = Constant<value_int = 0>() first = Gather<axis = 2>(z, place) after = Greater(first, zero)
           hidden = Unsqueeze(after, middle)
           least = Constant<value = double {-1000}>() s = MatMul(q, kt) m = Where(hidden, least, s)
           p = Softmax<axis = -1>(m) y = MatMul(p, v)""",
        {"fill": -1000.0},
    ),
    "the operator": ("y = Attention(q, k, v)", {"scale": 0.5}),
    "the operator, causal": ("y = Attention<is_causal = 1>(q, k, v)", {"scale": 0.5, "causal": True}),
}


@pytest.mark.parametrize("lengths", [(10, 14), (12, 9), (2, 3), (3, 14), (9, 2)], ids=str)
@pytest.mark.parametrize("case", FREE)
def test_free_lengths_have_the_gradients_of_torch(case: str, lengths: tuple[int, int], monkeypatch: pytest.MonkeyPatch):
    core, options = FREE[case]
    proto = network(core, opset=23, queries="S", keys="T")
    graph = gradients(proto, sizes={"N": N, "S": QUERIES, "T": KEYS})
    rng = np.random.default_rng(1)
    monkeypatch.setitem(BATCH, "x", rng.normal(size=(N, lengths[0], WIDTH)))
    monkeypatch.setitem(BATCH, "z", rng.normal(size=(N, lengths[1], WIDTH)))
    monkeypatch.setitem(globals(), "TARGET", rng.normal(size=(N, HEADS, lengths[0], 5)))
    mask = (BATCH["z"][:, :, 0] <= 0)[:, None, None, :] if "fill" in options else None

    found = run(graph)

    assert blocked(graph)
    assert_close(found, by_torch(mask=mask, **options))


def test_free_lengths_of_no_usual_size_stay():
    graph = gradients(network(FREE["no mask"][0], queries="S", keys="T"), sizes={"N": N, "S": QUERIES})

    assert not any(n.op_type == "Scan" for n in graph.model.graph)


def test_a_gradient_that_is_wrong_by_a_thousandth_fails():
    found = run(gradients(written("no mask")))
    found["grad/Wk"] = found["grad/Wk"] * 1.001

    with pytest.raises(AssertionError, match="grad/Wk"):
        assert_close(found, by_torch())


def test_every_matrix_of_scores_is_that_of_a_block():
    graph = gradients(written("no mask"))
    proto = onnx.shape_inference.infer_shapes(graph.proto(), data_prop=True)
    whole = {QUERIES * KEYS, HEADS * QUERIES * KEYS, N * HEADS * QUERIES * KEYS}

    sizes = [[d.dim_value for d in v.type.tensor_type.shape.dim][-2:] for v in proto.graph.value_info]

    assert sizes
    assert not [s for s in sizes if len(s) == 2 and s[0] * s[1] in whole]


STAYS = {
    "the probabilities are an output": {"core": "s = MatMul(q, kt) p = Softmax<axis = -1>(s) y = MatMul(p, v)"},
    "something else reads them": {
        "core": "s = MatMul(q, kt) p = Softmax<axis = -1>(s) a = MatMul(p, v) b = ReduceMax(p) y = Add(a, b)"
    },
    "the keys are free": {"core": PLAIN_CORE.format(scaled="", masked="").replace("(m)", "(s)"), "keys": "T"},
    "softcap": {"core": "y = Attention<softcap = 2.0>(q, k, v)", "opset": 23},
    "another axis": {"core": "s = MatMul(q, kt) p = Softmax<axis = 1>(s) y = MatMul(p, v)"},
    "a fill that is not negative": {
        "core": """s = MatMul(q, kt) one = Constant<value = double {1}>() m = Where(hidden, one, s)
                p = Softmax<axis = -1>(m) y = MatMul(p, v)""",
        "masks": {"hidden": HIDDEN},
    },
    "a fill that float32 does not hold": {  # it would be -inf, and a query that sees no key NaN
        "core": """low = Constant<value = double {-1.7976931348623157e308}>()
                s = MatMul(q, kt) m = Where(hidden, low, s) p = Softmax<axis = -1>(m) y = MatMul(p, v)""",
        "masks": {"hidden": ALL_HIDDEN},
    },
    "a fill between two numbers of float32": {
        "core": """s = MatMul(q, kt) low = Constant<value = double {-1.1}>() m = Where(hidden, low, s)
                p = Softmax<axis = -1>(m) y = MatMul(p, v)""",
        "masks": {"hidden": HIDDEN},
    },
    "the mask has more axes": {
        "core": """s = MatMul(q, kt) m = Add(s, bias) p = Softmax<axis = -1>(m) u = MatMul(p, v)
                first = Constant<value_ints = [0]>() y = Squeeze(u, first)""",
        "masks": {"bias": FLOAT_MASK[None]},
    },
    "the mask has more samples": {
        "core": """first = Constant<value_ints = [0]>() q1 = Gather<axis = 0>(q, first) k1 = Gather<axis = 0>(kt, first)
                v1 = Gather<axis = 0>(v, first) s = MatMul(q1, k1) m = Where(hidden, low, s)
                p = Softmax<axis = -1>(m) y = MatMul(p, v1)""",
        "masks": {"hidden": HIDDEN, "low": np.array(-10000.0)},
    },
    "an Einsum that sums two axes": {
        "core": """s = Einsum<equation = "nhqd,nhkd->nqk">(q, k) p = Softmax<axis = -1>(s)
                axis = Constant<value_ints = [1]>() u = Unsqueeze(p, axis) y = MatMul(u, v)"""
    },
}


@pytest.mark.parametrize("case", STAYS)
def test_attention_stays_as_it_is_where(case: str):
    proto = network(**STAYS[case])
    if case == "the probabilities are an output":
        proto.graph.output.append(onnx.helper.make_tensor_value_info("p", onnx.TensorProto.DOUBLE, None))

    graph = gradients(proto) if case != "the probabilities are an output" else gradients_of_first(proto)

    assert not any(n.op_type == "Scan" for n in graph.model.graph)


@pytest.mark.parametrize("case", [c for c in STAYS if "masks" in STAYS[c]])
def test_attention_that_stays_has_finite_gradients(case: str):
    found = run(gradients(network(**STAYS[case])), STAYS[case]["masks"])

    assert all(np.isfinite(value).all() for value in found.values())


def test_a_guard_that_adds_an_axis_is_none():
    core = """s = MatMul(q, kt) raw = Softmax<axis = -1>(s) none = IsNaN(raw) p = Where(none, nil, raw)
              u = MatMul(p, v) first = Constant<value_ints = [0]>() y = Squeeze(u, first)"""
    masks = {"nil": np.zeros((1, 1, 1, 1, 1))}

    found = run(gradients(network(core, masks=masks)), masks)

    assert_close(found, by_torch())


@pytest.mark.parametrize("recompute", ["auto", None])
def test_a_guard_inside_of_a_branch_is_none(recompute: str | None):
    branch = "(double[N, H, S, T] p_{0}) {{ none_{0} = IsNaN(raw) p_{0} = Where(none_{0}, nil, raw) }}"
    core = f"""s = MatMul(q, kt) raw = Softmax<axis = -1>(s) nil = Constant<value = double {{0}}>()
               sum = ReduceSum<keepdims = 0>(x) yes = Greater(sum, nil)
               p = If(yes)<then_branch = one() => {branch.format(1)}, else_branch = two() => {branch.format(2)}>
               y = MatMul(p, v)"""

    found = run(gradients(network(core), recompute=recompute))

    assert_close(found, by_torch())


def gradients_of_first(proto: onnx.ModelProto) -> PlainGraph:
    model = onward.make_trainable(proto, loss="mse", optimizer=onward.SGD(0.1), train=list(WEIGHTS), output="y")
    (entry,) = onward.compile(model, split=True, recompute="auto").entries.values()
    assert entry.gradients is not None
    return entry.gradients


def test_a_mask_that_is_trained_keeps_its_gradient():
    proto = written("float mask by head")

    graph = gradients(proto, train=("Wq", "bias"))

    assert not any(n.op_type == "Scan" for n in graph.model.graph)
    assert run(graph, {"bias": FLOAT_MASK})["grad/bias"].shape == FLOAT_MASK.shape


def test_attention_stays_in_the_portable_profile_and_in_evaluation():
    model = onward.make_trainable(written("no mask"), loss="mse", optimizer=onward.SGD(0.1))

    portable = onward.compile(model, profile="portable", recompute="auto")
    (entry,) = onward.compile(model, recompute="auto").entries.values()

    assert all(n.op_type != "Scan" for g in portable.graphs() for n in g.model.graph)
    assert any(n.op_type == "Scan" for n in entry.step.model.graph)
    assert all(n.op_type != "Scan" for n in entry.evaluate.model.graph)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_other_backends_take_the_same_steps(backend: str):
    model = onward.make_trainable(written("hidden by sample", dtype="float"), loss="mse", optimizer=onward.SGD(0.1))
    trainers = [onward.Trainer(model, backend=b, recompute="auto") for b in ("onnxruntime", backend)]
    batch = dict(zip(trainers[0].input_names, [*BATCH.values(), TARGET], strict=True))

    losses = [[float(t.step({n: v.astype("f") for n, v in batch.items()})["loss"]) for _ in range(3)] for t in trainers]

    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_a_budget_of_memory_gives_the_same_gradients():
    graph = gradients(written("causal"), recompute="1GB", sizes={"N": N})

    found = run(graph)

    assert blocked(graph)
    assert_close(found, by_torch(causal=True))


@pytest.mark.parametrize("recompute", [None, ["y"]])
def test_blocks_are_only_used_to_save_memory(recompute: list[str] | None):
    graph = gradients(written("no mask"), recompute=recompute)

    assert not any(n.op_type == "Scan" for n in graph.model.graph)


def test_core_operators_compute_the_same():
    graph = gradients(written("hidden by sample"), core=True)

    found = run(graph, WRITTEN["hidden by sample"][2])

    assert_close(found, by_torch(mask=~HIDDEN))


def test_a_short_sequence_compiles_as_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()

    graph = gradients(written("no mask"))

    assert not any(n.op_type == "Scan" for n in graph.model.graph)
    assert sum(isinstance(n, ir.Node) and n.op_type == "Softmax" for n in graph.model.graph) == 1
