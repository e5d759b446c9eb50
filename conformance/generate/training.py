"""Training scenarios with the standard's own optimizers: from a linear model to recurrence and two entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from generate.scenario import (
    Scenario,
    Values,
    add,
    gradients,
    leaf,
    optimizer_states,
    optimizer_text,
    optimizer_updates,
    tensor,
    trained,
)
from generate.writer import Suite

F = torch.nn.functional


def array(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Return normal numbers, the same for the same arguments."""
    return np.random.default_rng([seed, *shape]).normal(0.0, scale, shape)


def labels(classes: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, classes, *shape]).integers(0, classes, shape)


def simple(
    name: str,
    graph: str,
    loss: str,
    weights: Values,
    feeds: list[Values],
    function: Any,
    optimizer: str,
    *,
    target: str,
    parameters: list[str] | None = None,
    R: float = 0.1,
    zs: tuple[str, ...] = ("x", "t"),
    more_states: Values | None = None,
    more_updates: dict[str, str] | None = None,
    options: dict[str, Any] | None = None,
    **attributes: Any,
) -> Scenario:
    """Return a scenario: a graph, the text of its loss, and a standard optimizer."""
    chosen = parameters or list(weights)
    algorithm = (
        f"a ({target}) => (float loss) {{\n  {loss}\n  {optimizer_text(optimizer, chosen, zs, **attributes)}\n}}"
    )
    return Scenario(
        name, graph, algorithm, weights, {**optimizer_states(optimizer, weights, chosen, R), **(more_states or {})},
        {**optimizer_updates(optimizer, chosen), **(more_updates or {})}, feeds,
        trained(function, chosen, optimizer, **attributes), **(options or {}),
    )  # fmt: skip


def linear(p: Any, f: Any) -> Any:
    return ((f["x"] @ p["W"] + p["b"] - f["t"]) ** 2).mean()


LINEAR = "g (float[4,3] x) => (float[4,2] y) { h = MatMul(x, W) y = Add(h, b) }"
SQUARED = "d = Sub(y, t) q = Mul(d, d) loss = ReduceMean<keepdims=0>(q)"
LINEAR_WEIGHTS = {"W": array(3, 2), "b": array(2, seed=1)}


def linear_feeds(steps: int) -> list[Values]:
    return [{"x": array(4, 3, seed=10 + k), "t": array(4, 2, seed=20 + k)} for k in range(steps)]


def linear_scenario(name: str, optimizer: str, **options: Any) -> Scenario:
    return simple(
        name, LINEAR, SQUARED, LINEAR_WEIGHTS, linear_feeds(5), linear, optimizer, target="float[4,2] t", **options
    )


MLP = """g (float[5,4] x) => (float[5,3] y) {
  a1 = Gemm(x, W1, b1) h1 = Relu(a1) a2 = Gemm(h1, W2, b2) h2 = Tanh(a2) y = Gemm<transB=1>(h2, W3, b3) }"""
MLP_WEIGHTS = {
    "W1": array(4, 6, scale=0.5), "b1": array(6, seed=1, scale=0.1), "W2": array(6, 5, seed=2, scale=0.5),
    "b2": array(5, seed=3, scale=0.1), "W3": array(3, 5, seed=4, scale=0.5), "b3": array(3, seed=5, scale=0.1),
}  # fmt: skip


def mlp(p: Any, f: Any) -> Any:
    h = (f["x"] @ p["W1"] + p["b1"]).relu()
    h = (h @ p["W2"] + p["b2"]).tanh()
    return F.cross_entropy(h @ p["W3"].T + p["b3"], f["t"])


CROSS_ENTROPY = "loss = SoftmaxCrossEntropyLoss(y, t)"
MLP_FEEDS = [{"x": array(5, 4, seed=30 + k), "t": labels(3, 5, seed=k)} for k in range(5)]

CNN = """g (float[2,1,6,6] x) => (float[2,3] y) {
  c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, K, kb) r = Relu(c)
  m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r) f = Flatten(m) y = Gemm<transB=1>(f, W, b) }"""
CNN_WEIGHTS = {"K": array(4, 1, 3, 3, scale=0.5), "kb": array(4, seed=1, scale=0.1),
               "W": array(3, 36, seed=2, scale=0.3), "b": array(3, seed=3, scale=0.1)}  # fmt: skip
CNN_FEEDS = [{"x": array(2, 1, 6, 6, seed=40 + k), "t": labels(3, 2, seed=k)} for k in range(4)]


def cnn(p: Any, f: Any) -> Any:
    h = F.max_pool2d(F.conv2d(f["x"], p["K"], p["kb"], padding=1).relu(), 2)
    return F.cross_entropy(h.flatten(1) @ p["W"].T + p["b"], f["t"])


NORM = """g (float[6,3] x) => (float[6,2] y) {
  n = BatchNormalization(x, scale, bias, mean, var) y = MatMul(n, W) }"""
NORM_LOSS = """tn, mean_new, var_new =
  BatchNormalization<training_mode=1, momentum=0.75, epsilon=0.001>(x, scale, bias, mean, var)
  p = MatMul(tn, W) d = Sub(p, t) q = Mul(d, d) loss = ReduceMean<keepdims=0>(q)"""
NORM_WEIGHTS = {"scale": array(3, seed=1) + 1.5, "bias": array(3, seed=2), "W": array(3, 2), "mean": array(3, seed=3),
                "var": array(3, seed=4) ** 2 + 0.5}  # fmt: skip


def norm(p: Any, f: Any) -> Any:
    x = f["x"]
    mean, var = x.mean(0), x.var(0, correction=0)
    n = (x - mean) / (var + float(np.float32(0.001))).sqrt() * p["scale"] + p["bias"]
    new = {"mean": 0.75 * f["mean"] + 0.25 * mean, "var": 0.75 * f["var"] + 0.25 * var}
    return ((n @ p["W"] - f["t"]) ** 2).mean(), new


NORM_FEEDS = [{"x": array(6, 3, seed=50 + k) * 2 + 1, "t": array(6, 2, seed=60 + k)} for k in range(4)]

LSTM = """g (int64[4,2] x) => (float[2,3] y) {
  e = Gather(E, x) h, last, c = LSTM<hidden_size=3>(e, W, R_, B)
  s = Squeeze(last, zero) y = Gemm(s, V, b) }"""


def lstm(p: Any, f: Any) -> Any:
    e = p["E"][f["x"]]
    h, c = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)
    bias = p["B"][0, :12] + p["B"][0, 12:]
    for x in e:
        i, o, forget, g = (x @ p["W"][0].T + h @ p["R_"][0].T + bias).chunk(4, dim=1)
        c = forget.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return F.cross_entropy(h @ p["V"] + p["b"], f["t"])


LSTM_WEIGHTS = {
    "E": array(7, 2), "W": array(1, 12, 2, seed=1, scale=0.5), "R_": array(1, 12, 3, seed=2, scale=0.5),
    "B": array(1, 24, seed=3, scale=0.2), "V": array(3, 3, seed=4), "b": array(3, seed=5, scale=0.1),
    "zero": np.array([0]),
}  # fmt: skip

ATTENTION = """g (float[2,3,4] x) => (float[2,3,4] y) {
  n = LayerNormalization<axis=-1, epsilon=0.001>(x, gain, shift)
  nq = MatMul(n, Q) nk = MatMul(n, K) nv = MatMul(n, V) kt = Transpose<perm=[0,2,1]>(nk)
  l = MatMul(nq, kt) l2 = Mul(l, half) w = Softmax<axis=-1>(l2) o = MatMul(w, nv) y = Add(x, o) }"""


def attention(p: Any, f: Any) -> Any:
    n = F.layer_norm(f["x"], (4,), p["gain"], p["shift"], eps=float(np.float32(0.001)))
    q, k, v = n @ p["Q"], n @ p["K"], n @ p["V"]
    y = f["x"] + (q @ k.mT * 0.5).softmax(-1) @ v
    return ((y - f["t"]) ** 2).mean()


SCAN = """g (float[2] h0, float[3,2] x) => (float[2] y) {
  y, all = Scan<num_scan_inputs=1, body = b (float[2] h, float[2] e) => (float[2] hn, float[2] out) {
    u = MatMul(h, W) v = Add(u, e) hn = Tanh(v) out = Identity(hn) }>(h0, x) }"""


def scan(p: Any, f: Any) -> Any:
    h = f["h0"]
    for e in f["x"]:
        h = (h @ p["W"] + e).tanh()
    return ((h - f["t"]) ** 2).mean()


def two_entries() -> Scenario:
    """Return a scenario of two entries that train in turn: the second sees what the first has updated."""
    graph = "g (float[4,2] z) => (float[4,1] y) { fake = MatMul(z, G) y = MatMul(fake, D) }"
    critic = """a (float[4,3] real) => (float loss_d) {
  s = MatMul(real, D) e = Sub(y, s) ee = Mul(e, D2) q = Mul(ee, ee) loss_d = ReduceMean<keepdims=0>(q)
  dD = Gradient<xs=["D"], zs=["z", "G", "real", "D2"], y="loss_d">(D, z, G, real, D2)
  step = Mul(rate_d, dD) D_new = Sub(D, step) }"""
    generator = """a2 (float[4,1] aim) => (float loss_g) {
  e2 = Sub(y, aim) q2 = Mul(e2, e2) loss_g = ReduceMean<keepdims=0>(q2)
  dG = Gradient<xs=["G"], zs=["z", "D", "aim"], y="loss_g">(G, z, D, aim)
  step2 = Mul(rate_g, dG) G_new = Sub(G, step2) }"""

    def step(state: Values, feeds: Values) -> tuple[Values, Values]:
        z, real, aim = (tensor(feeds[n]) for n in ("z", "real", "aim"))
        D, G = leaf(state["D"]), leaf(state["G"])
        loss_d = (((z @ G) @ D - real @ D) * tensor(state["D2"])).square().mean()
        new_d = state["D"] - state["rate_d"] * gradients(loss_d, {"D": D})["D"]
        loss_g = ((z @ G) @ tensor(new_d) - aim).square().mean()
        new_g = state["G"] - state["rate_g"] * gradients(loss_g, {"G": G})["G"]
        return {"loss_d": loss_d.detach().numpy(), "loss_g": loss_g.detach().numpy()}, {"D": new_d, "G": new_g}

    feeds = [
        {"z": array(4, 2, seed=k), "real": array(4, 3, seed=70 + k), "aim": array(4, 1, seed=80 + k)} for k in range(4)
    ]
    return Scenario(
        "two entries", graph, critic, {"G": array(2, 3), "D": array(3, 1, seed=1)},
        {"rate_d": np.array(0.1), "D2": np.array(0.5)}, {"D": "D_new"}, feeds, step,
        more=[(generator, {"rate_g": np.array(0.2)}, {"G": "G_new"})], features=["all-entries"],
    )  # fmt: skip


def first_entry_only() -> Scenario:
    """Return the scenario of two entries, of which only the first is run: the other's weights stay."""
    base = two_entries()

    def step(state: Values, feeds: Values) -> tuple[Values, Values]:
        outputs, new = base.step(state, {**feeds, "aim": np.zeros((4, 1))})
        return {"loss_d": outputs["loss_d"]}, {"D": new["D"]}

    feeds = [{n: a for n, a in f.items() if n != "aim"} for f in base.feeds]
    return Scenario(
        "first of two entries", base.graph, base.algorithm, base.weights, base.states, base.updates, feeds, step,
        more=base.more, features=["one-entry"],
    )  # fmt: skip


def initialization() -> Scenario:
    """Return the linear scenario whose weights come from an initialization graph, not from the file."""
    base = linear_scenario("initialization", "Adagrad", norm_coefficient=0.01)
    base.initialization = """i () => (float[3,2] W_init, float[2] b_init, int64 T_init) {
  zero = Constant<value = int64 {0}>() six = Constant<value = int64 {6}>() one_i = Constant<value = int64 {1}>()
  shape = Constant<value = int64[2] {3, 2}>() size = Constant<value = int64[1] {2}>()
  r = Range(zero, six, one_i) c = Cast<to=1>(r) f = Sin(c) W_init = Reshape(f, shape)
  b_init = ConstantOfShape<value = float[1] {0.25}>(size) T_init = Identity(one_i) }"""
    base.initial = {"W": "W_init", "b": "b_init", "T": "T_init"}
    base.initialized = {
        "W": np.sin(np.arange(6.0)).reshape(3, 2), "b": np.full(2, 0.25), "T": np.array(1, np.int64),
    }  # fmt: skip
    return base


def legacy_graph_call(name: str, x: str) -> Scenario:
    """Return the linear scenario as ONNX 1.7 wrote it: the algorithm calls the graph, which is not part of it.

    `x` is what the algorithm calls its own input, which it hands to the input `x` of the graph.
    """
    algorithm = f"""a (float[4,3] {x}, float[4,2] t) => (float loss) {{
  called = GraphCall<graph_name="g">({x})
  {SQUARED.replace("Sub(y, t)", "Sub(called, t)")}
  {optimizer_text("Adagrad", ["W", "b"], [x, "t"], decay_factor=0.1)} }}"""
    base = linear_scenario(name, "Adagrad", decay_factor=0.1)
    base.algorithm, base.opset, base.ir_version, base.features = algorithm, 12, 7, ["legacy"]
    inner = base.step
    base.step = lambda state, feeds: inner(state, {"x": feeds[x], "t": feeds["t"]})
    base.feeds = [{x: f["x"], "t": f["t"]} for f in base.feeds]
    return base


def scenarios() -> list[Scenario]:
    momentum = {"alpha": 0.9, "beta": 0.5, "norm_coefficient": 0.01}
    image = {"target": "int64[2] t", "R": 0.05}
    return [
        linear_scenario("linear, Adagrad", "Adagrad", norm_coefficient=0.01, decay_factor=0.1, epsilon=1e-3),
        linear_scenario("linear, Adam", "Adam", epsilon=1e-3),
        linear_scenario("linear, Adam with weight decay after the update", "Adam", epsilon=1e-3,
                        norm_coefficient_post=0.05),
        linear_scenario("linear, only the bias is trained", "Momentum", parameters=["b"], zs=("x", "t", "W"),
                        mode="standard", **momentum),
        simple("MLP, Adam", MLP, CROSS_ENTROPY, MLP_WEIGHTS, MLP_FEEDS, mlp, "Adam", target="int64[5] t", R=0.02,
               epsilon=1e-2, norm_coefficient=0.01),
        simple("MLP, Adagrad", MLP, CROSS_ENTROPY, MLP_WEIGHTS, MLP_FEEDS, mlp, "Adagrad", target="int64[5] t",
               epsilon=1e-2),
        simple("CNN, Momentum", CNN, CROSS_ENTROPY, CNN_WEIGHTS, CNN_FEEDS, cnn, "Momentum", mode="standard",
               **image, **momentum),
        simple("CNN, Nesterov", CNN, CROSS_ENTROPY, CNN_WEIGHTS, CNN_FEEDS, cnn, "Momentum", mode="nesterov",
               **image, **momentum),
        simple("batch normalization", NORM, NORM_LOSS, NORM_WEIGHTS, NORM_FEEDS, norm, "Momentum",
               target="float[6,2] t", parameters=["scale", "bias", "W"], zs=("x", "t", "mean", "var"), mode="standard",
               more_updates={"mean": "mean_new", "var": "var_new"}, **momentum),
        simple("embedding and LSTM", LSTM, CROSS_ENTROPY, LSTM_WEIGHTS,
               [{"x": labels(7, 4, 2, seed=k), "t": labels(3, 2, seed=k)} for k in range(4)], lstm, "Adam",
               target="int64[2] t", parameters=["E", "W", "R_", "B", "V", "b"], R=0.02, epsilon=1e-2),
        simple("attention", ATTENTION, SQUARED,
               {"gain": array(4, seed=1, scale=0.2) + 1, "shift": array(4, seed=2, scale=0.2), "Q": array(4, 4, seed=3),
                "K": array(4, 4, seed=4), "V": array(4, 4, seed=5), "half": np.array(0.5)},
               [{"x": array(2, 3, 4, seed=k), "t": array(2, 3, 4, seed=90 + k)} for k in range(4)], attention, "Adam",
               target="float[2,3,4] t", parameters=["gain", "shift", "Q", "K", "V"], R=0.02, epsilon=1e-2),
        simple("Scan", SCAN, SQUARED, {"W": array(2, 2)},
               [{"h0": array(2, seed=k), "x": array(3, 2, seed=k), "t": array(2, seed=9 + k)} for k in range(4)], scan,
               "Momentum", target="float[2] t", zs=("h0", "x", "t"), mode="nesterov", **momentum),
        two_entries(),
        first_entry_only(),
        initialization(),
        legacy_graph_call("legacy graph call", "x"),
        legacy_graph_call("legacy graph call, an input of another name", "features"),
    ]  # fmt: skip


def add_all(suite: Suite) -> Iterator[str]:
    """Write every training case."""
    from generate.training_custom import custom_scenarios

    for scenario in [*scenarios(), *custom_scenarios()]:
        add(suite, scenario)
    yield from ()
