"""The optimizer's update as one compiled loop: the bits of the plain graph."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import onward
from autodiff.text_models import parse
from models import batch, perceptron
from onward.backends import open_session
from onward.backends.base import Feeds
from onward.backends.onnxruntime import fused_update
from onward.backends.onnxruntime import session as session_module
from onward.backends.onnxruntime.fused_update import plan_update
from onward.errors import BackendError

OPTIMIZERS = [
    onward.SGD(0.1),
    onward.Momentum(0.1, momentum=0.9),
    onward.Adagrad(0.1),
    onward.Adam(1e-2),
    onward.AdamW(1e-2),
    onward.optimizers.by_name("lion", learning_rate=1e-2),
    onward.optimizers.by_name("torch_adam", learning_rate=1e-2, clip_value=0.01, weight_decay=0.1),
]


def assert_same_bits(program: onward.Program, batches: Iterable[Feeds], *, alternate: bool = False) -> None:
    """Train with and without the fused update, all entries in turn if they alternate; compare losses and states."""
    plain, fused = (open_session(program, "onnxruntime", fused=f, threads=2) for f in (False, True))
    entries = list(program.entries) if alternate else [None]
    start = plain.get_state()
    for feeds, entry in zip(batches, itertools.cycle(entries), strict=False):
        expected, found = (session.step(feeds, entry=entry) for session in (plain, fused))
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
    expected, found = plain.get_state(), fused.get_state()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert any(step.buffers for step in fused._steps.values())
    assert all((expected[name] != start[name]).any() for name in program.parameters)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_the_fused_update_gives_the_bits_of_the_plain_graph(optimizer: object) -> None:
    model = onward.make_trainable(perceptron((4, 33, 3)), loss="cross_entropy", optimizer=optimizer)
    assert_same_bits(onward.compile(model), [batch(seed=i) for i in range(5)])


def test_the_fused_update_leaves_the_program_alone() -> None:
    program = onward.compile(onward.samples.build("digits"))
    before = program.step.SerializeToString(deterministic=True)
    session = open_session(program, "onnxruntime", fused=True)

    session.step({"images": np.zeros((3, 1, 8, 8), np.float32), "labels": np.zeros(3, np.int64)})

    # Checkpoints hold a digest of the graphs, and a run is resumed only with the same ones.
    assert program.step.SerializeToString(deterministic=True) == before


def test_the_fused_update_takes_the_whole_update_out_of_the_graph() -> None:
    program = onward.compile(onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(1e-2)))
    step = program.entries["train"].step

    plan = plan_update(step.copy_model(), step.replaces)

    assert plan is not None
    assert set(program.parameters) <= plan.states
    assert "Sqrt" not in {n.op_type for n in plan.model.graph if (n.outputs[0].name or "").startswith("next/")}


def test_a_mask_of_the_weights_shape_stays_in_the_graph() -> None:
    """g2p-id's tiny-pron: a table goes through a Where, so its gradient does, and the loop knows no booleans."""
    model = parse("""net (float[2, 3] x) => (float[2, 3] y) {
        zero = Constant<value_float = 0.0>()
        some = Less(x, zero)
        kept = Where(some, table, x)
        y = Mul(kept, kept)
    }""")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((2, 3), np.float32), "table"))
    program = onward.compile(onward.make_trainable(model, loss="mse", optimizer=onward.Momentum(0.1)))
    plain, fused = (open_session(program, "onnxruntime", fused=f) for f in (False, True))
    feeds = {"x": np.array([[1, -1, 2], [-3, 0, 1]], np.float32), "labels": np.zeros((2, 3), np.float32)}

    losses = [(plain.step(feeds)["loss"], fused.step(feeds)["loss"]) for _ in range(3)]

    assert all(a == b for a, b in losses)
    assert losses[2][0] < losses[0][0]
    for name, value in fused.get_state().items():
        np.testing.assert_array_equal(value, plain.get_state()[name], err_msg=name)


def bag(rows: int = 50, width: int = 8, *, twice: bool = False) -> onnx.ModelProto:
    """Return `ids` -> the mean of their rows in a table -> `logits`; if `twice`, of these less those of `others`."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((rows, width)).astype(np.float32), "table"),
        numpy_helper.from_array(rng.standard_normal((width, 3)).astype(np.float32), "W"),
        numpy_helper.from_array(np.array([1], np.int64), "axes"),
    ]
    second = [
        helper.make_node("Gather", ["table", "others"], ["more"], name="embed_others"),
        helper.make_node("Sub", ["rows", "more"], ["less"], name="compare"),
    ]
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"], name="embed"),
            *(second if twice else []),
            helper.make_node("ReduceMean", ["less" if twice else "rows", "axes"], ["mean"], name="pool", keepdims=0),
            helper.make_node("MatMul", ["mean", "W"], ["logits"], name="fc"),
        ],
        "bag",
        [
            helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["N", "L"])
            for name in (["ids", "others"] if twice else ["ids"])
        ],
        [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["N", 3])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def bag_batch(seed: int, rows: int = 12) -> Feeds:
    rng = np.random.default_rng(seed)
    return {"ids": rng.integers(-50, 50, (rows, 5)) // 2, "labels": rng.integers(0, 3, rows)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_rows_of_an_embedding_are_added_with_the_bits_of_the_plain_graph(optimizer: object) -> None:
    model = onward.make_trainable(bag(), loss="cross_entropy", optimizer=optimizer)
    assert_same_bits(onward.compile(model), [bag_batch(i, size) for i, size in enumerate([12, 12, 5, 12, 1, 12])])


def test_a_table_that_is_read_several_times_has_rows_for_each_read_and_no_gradient_of_its_size() -> None:
    model = onward.make_trainable(
        shared_model(SHARED["a table read three times"]), loss="cross_entropy", optimizer=onward.Adam(1e-2)
    )
    step = onward.compile(model).entries["train"].step

    plan = plan_update(step.copy_model(), step.replaces)

    assert plan is not None
    assert len(plan.rows) == 3
    assert (50, 4) not in plan.gradients.values()


@pytest.mark.parametrize("twice", [False, True], ids=["read once", "read twice"])
@pytest.mark.parametrize("size", [(20_000, 8), (300, 1), (70, 5000)], ids=str)
def test_rows_of_a_table_of_many_chunks_get_the_bits_of_the_plain_graph(size: tuple[int, int], twice: bool) -> None:
    model = onward.make_trainable(bag(*size, twice=twice), loss="cross_entropy", optimizer=onward.Adam(1e-2))
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(4):
        ids = rng.integers(-size[0], size[0], (12, 5))
        ids[0] = np.array([0, 1, 2, size[0] - 1, 0])  # neighbours, both ends, and one of them twice
        feeds = {"ids": ids, "labels": rng.integers(0, 3, 12)}
        if twice:
            feeds["others"] = rng.permuted(ids, axis=1) // 2  # rows of both reads, and of one of them
        batches.append(feeds)

    assert_same_bits(onward.compile(model), batches)


def test_there_is_no_gradient_of_the_size_of_a_table() -> None:
    program = onward.compile(onward.make_trainable(bag(), loss="cross_entropy", optimizer=onward.Adam(1e-2)))
    session = open_session(program, "onnxruntime", fused=True)
    feeds = bag_batch(0)

    session.step(feeds)

    (buffers,) = [b for b in session._steps["train"].buffers if b.rows]
    assert len(buffers.arrays) == 3  # the table and its moments
    (rows,) = buffers.rows
    assert len(rows.sums) == feeds["ids"].size
    assert (rows.places == -1).all()  # nothing of this step is left for the next one


def test_only_the_rows_of_an_embedding_s_gradient_leave_the_graph() -> None:
    program = onward.compile(onward.make_trainable(bag(), loss="cross_entropy", optimizer=onward.Adam(1e-2)))
    step = program.entries["train"].step

    plan = plan_update(step.copy_model(), step.replaces)

    assert plan is not None
    assert [found.gradient for found in plan.rows] == ["grad/table"]
    assert "ScatterElements" not in {n.op_type for n in plan.model.graph if (n.name or "").startswith("grad/embed")}


def test_a_gradient_that_is_also_clipped_by_its_norm_stays_whole() -> None:
    model = onward.make_trainable(bag(), loss="cross_entropy", optimizer=onward.Adam(1e-2, clip_global_norm=1.0))
    assert_same_bits(onward.compile(model), [bag_batch(i) for i in range(3)])


def test_an_id_outside_the_table_changes_nothing() -> None:
    program = onward.compile(onward.make_trainable(bag(), loss="cross_entropy", optimizer=onward.Adam(1e-2)))
    session = open_session(program, "onnxruntime", fused=True)
    before = session.get_state()

    with pytest.raises(BackendError, match="out of data bounds"):
        session.step({"ids": np.array([[50]]), "labels": np.array([0])})

    for name, value in session.get_state().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_an_entry_reads_what_another_entry_s_update_has_written() -> None:
    first = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(0.1), train=["W1", "b1"])
    model = onward.make_trainable(
        first, loss="cross_entropy", optimizer=onward.Adam(0.1), train=["W0", "b0"], entry="second", loss_name="loss2"
    )
    program = onward.compile(model)
    plain, fused = (open_session(program, "onnxruntime", fused=f) for f in (False, True))
    fused.step(batch(seed=0), entry="train")  # reads W0 before the second entry's update has taken it over
    plain.step(batch(seed=0), entry="train")

    for i in range(3):
        a, b = plain.step(batch(seed=i)), fused.step(batch(seed=i))
        np.testing.assert_array_equal([a["loss"], a["loss2"]], [b["loss"], b["loss2"]])


def test_training_and_setting_the_state_leave_the_program_s_arrays_alone() -> None:
    program = onward.compile(onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(0.1)))
    before = {name: value.copy() for name, value in program.state.items()}

    for fused in (False, True):
        session = open_session(program, "onnxruntime", fused=fused)
        session.set_state({"W0": np.ones_like(before["W0"])})
        session.step(batch())
        session.step(batch())

    for name, value in program.state.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_a_parameter_whose_moment_stays_in_the_graph_stays_there_too() -> None:
    """Silero VAD: a gradient without a shape comes out of an If. The moment was an output twice, and a step failed."""
    text = """step (float[3] b, float[3] moment, float[K] gradient) => (float[3] new_b, float[3] new_moment) {
        new_moment = Add(moment, gradient)
        new_b = Sub(b, new_moment)
    }"""
    whole = ir.from_proto(parse(text.replace("K", "3")))
    unknown = ir.from_proto(parse(text))
    replaces = {"new_b": "b", "new_moment": "moment"}

    plan = plan_update(whole, replaces)
    none = plan_update(unknown, replaces)

    assert plan is not None
    assert plan.states == {"b", "moment"}
    assert none is None


def test_zero_and_minus_zero_are_two_constants() -> None:
    """They were one in a loop, and parameters that differ by the sign of a zero had one loop."""
    text = """step (float[1] a, float[1] b, float[1] c) => (float[1] new_a, float[1] new_b, float[1] new_c) {
        zero = Constant<value_float = 0.0>()
        minus = Constant<value_float = -0.0>()
        up = Div(a, zero)
        down = Div(a, minus)
        new_a = Sub(up, down)
        new_b = Div(b, zero)
        new_c = Div(c, minus)
    }"""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(parse(text)))
    plan = plan_update(model, {f"new_{name}": name for name in "abc"})
    assert plan is not None

    found = {}
    for group in plan.groups:
        buffers = fused_update.FlatBuffers(group, {}, 1)
        views = dict(buffers.views())
        for view in views.values():
            view.fill(1)
        buffers.run({})
        found.update({name: float(view[0]) for name, view in views.items()})

    assert found == {"a": np.inf, "b": np.inf, "c": -np.inf}


@pytest.fixture
def wide() -> onward.Program:
    """A program with more parameters than `FUSE_FROM`."""
    model = perceptron((4, 90, 60, 3))
    return onward.compile(onward.make_trainable(model, loss="cross_entropy", optimizer=onward.Adam(1e-2)))


def test_a_short_run_never_asks_numba(wide: onward.Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(fused_update, "compiled", refuse)
    session = open_session(wide, "onnxruntime")

    for i in range(20):
        session.step(batch(seed=i))

    assert not any(t.name == "onward-compile" for t in threading.enumerate())


def test_a_longer_run_goes_over_to_the_compiled_loop_without_a_changed_bit(
    wide: onward.Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_update, "FUSE_AFTER", 0.0)
    plain, later = open_session(wide, "onnxruntime", fused=False), open_session(wide, "onnxruntime")
    fused_at = None

    for i in range(100_000):
        a, b = plain.step(batch(seed=i)), later.step(batch(seed=i))
        np.testing.assert_array_equal(a["loss"], b["loss"])
        fused_at = i if fused_at is None and later._fused else fused_at
        if fused_at is not None and i > fused_at + 5:
            break

    assert fused_at is not None
    assert all(step.buffers for step in later._steps.values())
    expected = plain.get_state()
    for name, value in later.get_state().items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_the_plain_graph_goes_on_where_numba_fails(wide: onward.Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: str) -> None:
        raise OSError("no LLVM here")

    monkeypatch.setattr(fused_update, "FUSE_AFTER", 0.0)
    monkeypatch.setattr(fused_update, "compiled", fail)
    session = open_session(wide, "onnxruntime")
    session.step(batch())
    assert session._later is not None
    session._later._thread.join()

    with pytest.warns(RuntimeWarning, match="no LLVM here"):
        session.step(batch())

    assert np.isfinite(session.step(batch())["loss"])


def test_the_loops_are_compiled_for_the_types_of_the_first_update(wide: onward.Program) -> None:
    session = open_session(wide, "onnxruntime", fused=True)
    graph = next(iter(wide.entries.values())).step
    plan = plan_update(session_module._rewritten(graph, 1), graph.replaces)
    assert plan is not None
    fused_update.compile_ahead(plan)
    loops = [fused_update.compiled(group.source) for group in plan.groups]
    before = [len(loop.signatures) for loop in loops]

    session.step(batch())

    assert [len(loop.signatures) for loop in loops] == before


SHARED = {  # what the loops of several parameters read, or parameters that belong together
    "one gradient of two biases": "c = MatMul(x, K) h = Add(c, b) y = Add(h, d)",
    "one gradient of two matrices": "S = Add(A, B) c = MatMul(x, S) y = MatMul(c, K2)",
    "a batch input of the shape": "P = Mul(A, e) Q = Mul(B, e) S = Max(P, Q) c = MatMul(x, S) y = MatMul(c, K2)",
    "masked tables": "P = Mul(A, M) Q = Mul(B, L) T = Add(P, Q) c = Gather(T, i) y = MatMul(c, K2)",
    "a table in a sum and alone": "T = Add(A, B) a = Gather(T, i) g = Gather(A, j) c = Mul(a, g) y = MatMul(c, K2)",
    "a table read twice": "a = Gather(A, i) g = Gather(A, j) t = Tanh(g) c = Add(a, t) y = MatMul(c, K2)",
    "a table read three times": "a = Gather(A, i) g = Gather(A, j) k = Mul(a, g) s = Add(i, j) h = Div(s, two) "
    "f = Gather(A, h) c = Add(k, f) y = MatMul(c, K2)",
    "a table read by rows and whole": "a = Gather(A, i) c = Tanh(a) W = Transpose(A) p = MatMul(c, W) y = MatMul(p, K)",
}


def shared_model(body: str) -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    inputs = "float[N,50] x, float[50,4] e, int64[N] i, int64[N] j"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> net ({inputs}) => (float[N,3] y) {{{body}}}'
    )
    sizes = {"K": (50, 3), "b": 3, "d": 3, "K2": (4, 3), **dict.fromkeys("ABML", (50, 4))}
    names = {name for node in model.graph.node for name in node.input}
    weights = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items() if name in names}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    model.graph.initializer.extend([numpy_helper.from_array(np.array(2), "two")] * ("two" in names))
    return model


def shared_batch(seed: int) -> Feeds:
    rng = np.random.default_rng(seed)
    numbers = {"x": rng.normal(size=(12, 50)).astype(np.float32), "e": rng.normal(size=(50, 4)).astype(np.float32)}
    return {**numbers, "i": rng.integers(0, 50, 12), "j": rng.integers(0, 50, 12), "labels": rng.integers(0, 3, 12)}


SHARED_BATCHES = [shared_batch(seed) for seed in range(6)]


@pytest.mark.parametrize("optimizer", [onward.Momentum(0.1, momentum=0.9), onward.Adam(1e-2)], ids=["Momentum", "Adam"])
@pytest.mark.parametrize("name", SHARED)
def test_parameters_that_share_an_array_get_the_bits_of_the_plain_graph(name: str, optimizer: object) -> None:
    """One of two biases that are added stood still: the gradient of both went to the buffer of the other."""
    model = onward.make_trainable(shared_model(SHARED[name]), loss="cross_entropy", optimizer=optimizer)
    assert_same_bits(onward.compile(model), SHARED_BATCHES)


def test_a_frozen_mask_is_read_by_the_loop_or_left_in_the_graph() -> None:
    model = shared_model("P = Mul(A, M) c = MatMul(x, P) y = MatMul(c, K2)")
    made = onward.make_trainable(model, loss="cross_entropy", optimizer=onward.Adam(1e-2), train=["A", "K2"])
    assert_same_bits(onward.compile(made), SHARED_BATCHES)


def test_a_mask_that_another_phase_trains_is_read_as_it_is_now() -> None:
    model = shared_model("P = Mul(A, M) c = MatMul(x, P) y = MatMul(c, K2)")
    phases = [onward.Phase(train=["A"], epochs=1), onward.Phase(train=["M"], epochs=1)]
    made = onward.make_trainable(model, loss="cross_entropy", optimizer=onward.SGD(0.1), phases=phases)
    assert_same_bits(onward.compile(made), SHARED_BATCHES, alternate=True)
