"""Training scenarios with losses, optimizers, schedules and states that a user writes out of plain operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from generate.scenario import Scenario, Step, Values, gradients, leaf, tensor
from generate.training import LINEAR, LINEAR_WEIGHTS, SQUARED, array, linear, linear_feeds

GRADIENT = 'dW, db = Gradient<xs=["W", "b"], zs=["x", "t"], y="loss">(W, b, x, t)'
COUNT = {"T": np.array(0, np.int64), "one": np.array(1, np.int64)}
NEXT = "T_new = Add(T, one)"


def descent(rate: str) -> str:
    return f"sW = Mul({rate}, dW) sb = Mul({rate}, db) W_new = Sub(W, sW) b_new = Sub(b, sb)"


def updated(function: Callable[[Values, Values, float], Values], loss: Any = linear) -> Step:
    """Return a step: `function(state, gradients, loss)` gives the new values of states."""

    def step(state: Values, feeds: Values) -> tuple[Values, Values]:
        points = {n: leaf(state[n]) for n in ("W", "b")}
        others = {n: tensor(a) for n, a in {**state, **feeds}.items() if n not in points}
        value = loss(points, others)
        return {"loss": value.detach().numpy()}, function(state, gradients(value, points), float(value.detach()))

    return step


def own(name: str, loss: str, update: str, states: Values, bound: list[str], step: Step, **options: Any) -> Scenario:
    """Return the linear model with its own loss and update, both as text."""
    target = options.pop("target", "float[4,2] t")
    algorithm = f"a ({target}) => (float loss) {{\n  {loss}\n  {GRADIENT}\n  {update}\n}}"
    feeds = options.pop("feeds", linear_feeds(5))
    updates = {n: f"{n}_new" for n in bound}
    return Scenario(name, LINEAR, algorithm, dict(LINEAR_WEIGHTS), states, updates, feeds, step, **options)


def sgd(state: Values, grads: Values, rate: float) -> Values:
    return {n: state[n] - rate * grads[n] for n in ("W", "b")}


def huber(p: Any, f: Any) -> Any:
    d = f["x"] @ p["W"] + p["b"] - f["t"]
    return torch.where(d.abs() < 0.5, 0.5 * d * d, 0.5 * (d.abs() - 0.25)).mean()


def rmsprop(state: Values, grads: Values, _: float) -> Values:
    new = {}
    for n in ("W", "b"):
        square = 0.75 * state[f"S_{n}"] + 0.25 * grads[n] ** 2
        new |= {f"S_{n}": square, n: state[n] - 0.125 * grads[n] / (np.sqrt(square) + 0.0625)}
    return new


def cosine(T: int) -> float:
    return 0.25 * (T + 1) / 2 if T < 2 else 0.25 * 0.5 * (1 + np.cos(np.float32(np.pi) * (T - 2) / 4))


def clipped(state: Values, grads: Values, _: float) -> Values:
    norm = np.sqrt(sum(np.sum(g * g) for g in grads.values()))
    scale = min(1.0, 0.5 / norm)
    new: Values = {}
    for n in ("W", "b"):
        value = state[n] * (1 - 0.25 * 0.125) - 0.25 * scale * grads[n]
        new |= {n: value, f"E_{n}": 0.75 * state[f"E_{n}"] + 0.25 * value}
    return new


def accumulated(state: Values, grads: Values, _: float) -> Values:
    last = int(state["T"]) % 2 == 1
    new: Values = {"T": state["T"] + 1}
    for n in ("W", "b"):
        total = state[f"A_{n}"] + grads[n]
        new |= {n: state[n] - 0.125 * total if last else state[n], f"A_{n}": np.zeros_like(total) if last else total}
    return new


def sign_descent(state: Values, grads: Values, _: float) -> Values:
    new: Values = {}
    for n in ("W", "b"):
        new[n] = state[n] - 0.0625 * np.sign(0.75 * state[f"M_{n}"] + 0.25 * grads[n])
        new[f"M_{n}"] = 0.5 * state[f"M_{n}"] + 0.5 * grads[n]
    return new


def masked(p: Any, f: Any) -> Any:
    """The mask is (7919 i + 104729 T) mod 97 < 73 for element i of the hidden layer: integers, so equal everywhere."""
    i = torch.arange(12).reshape(4, 3)
    mask = ((7919 * i + 104729 * f["T"]) % 97 < 73).double() / 0.75
    return ((f["x"] * mask) @ p["W"] + p["b"] - f["t"]).square().mean()


def given_mask(p: Any, f: Any) -> Any:
    return ((f["x"] * f["mask"].double() * 2) @ p["W"] + p["b"] - f["t"]).square().mean()


def penalty(p: Any, f: Any) -> Any:
    x = f["x"].clone().requires_grad_()
    y = (x @ p["W"] + p["b"]).tanh()
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    return (y - f["t"]).square().mean() + dx.square().mean()


def rms_text(n: str) -> str:
    return (f"g2_{n} = Mul(d{n}, d{n}) k_{n} = Mul(keep, S_{n}) a_{n} = Mul(rest, g2_{n}) "
            f"S_{n}_new = Add(k_{n}, a_{n}) "
            f"r_{n} = Sqrt(S_{n}_new) e_{n} = Add(r_{n}, eps) q_{n} = Div(d{n}, e_{n}) u_{n} = Mul(rate, q_{n}) "
            f"{n}_new = Sub({n}, u_{n})")  # fmt: skip


HUBER = """d = Sub(y, t) m = Abs(d) near = Less(m, half) d2 = Mul(d, d) small = Mul(half, d2) far = Sub(m, quarter)
  large = Mul(half, far) v = Where(near, small, large) loss = ReduceMean<keepdims=0>(v)"""
HUBER_CONSTANTS = {"half": np.array(0.5), "quarter": np.array(0.25)}
ZEROS = {"W": np.zeros((3, 2)), "b": np.zeros(2)}
RMS = {"keep": np.array(0.75), "rest": np.array(0.25), "eps": np.array(0.0625), "rate": np.array(0.125),
       "S_W": ZEROS["W"], "S_b": ZEROS["b"]}  # fmt: skip


def custom_scenarios() -> list[Scenario]:
    """Return every scenario of this file."""
    rate = {"rate": np.array(0.125)}
    mask_feeds = [
        {**f, "mask": np.random.default_rng(k).random((4, 3)) < 0.5} for k, f in enumerate(linear_feeds(4))
    ]  # fmt: skip
    return [
        own("user loss and optimizer", HUBER, f"{rms_text('W')}\n  {rms_text('b')}", {**HUBER_CONSTANTS, **RMS},
            ["W", "b", "S_W", "S_b"], updated(rmsprop, huber)),
        own("user loss and optimizer as functions",
            "d = Sub(y, t) v = user.Huber(d, half, quarter) loss = ReduceMean<keepdims=0>(v)",
            "W_new, S_W_new = user.RmsProp(W, dW, S_W, keep, rest, rate, eps) "
            "b_new, S_b_new = user.RmsProp(b, db, S_b, keep, rest, rate, eps)",
            {**HUBER_CONSTANTS, **RMS}, ["W", "b", "S_W", "S_b"], updated(rmsprop, huber),
            functions=[
                """<domain: "user", opset_import: ["" : 18]> Huber (d, half, quarter) => (v) {
                   m = Abs(d) near = Less(m, half) d2 = Mul(d, d) small = Mul(half, d2) far = Sub(m, quarter)
                   large = Mul(half, far) v = Where(near, small, large) }""",
                """<domain: "user", opset_import: ["" : 18]> RmsProp (X, G, S, keep, rest, rate, eps) => (Y, N) {
                   g2 = Mul(G, G) k = Mul(keep, S) a = Mul(rest, g2) N = Add(k, a) r = Sqrt(N) e = Add(r, eps)
                   q = Div(G, e) u = Mul(rate, q) Y = Sub(X, u) }""",
            ]),
        own("schedule: warm up, then cosine", SQUARED,
            "f = Cast<to=1>(T) g = Add(f, unit) w = Div(g, warm) over = Sub(f, warm) part = Div(over, length) "
            "angle = Mul(part, pi) c = Cos(angle) c1 = Add(c, unit) cc = Mul(c1, half) early = Less(f, warm) "
            "factor = Where(early, w, cc) r = Mul(base, factor) " + descent("r") + " " + NEXT,
            {**COUNT, "unit": np.array(1.0), "warm": np.array(2.0), "length": np.array(4.0), "half": np.array(0.5),
             "pi": np.array(np.pi), "base": np.array(0.25)}, ["W", "b", "T"],
            updated(lambda s, g, _: {**sgd(s, g, cosine(int(s["T"]))), "T": s["T"] + 1}), feeds=linear_feeds(6)),
        own("schedule: steps", SQUARED,
            "n = Div(T, two) f = Cast<to=1>(n) p = Pow(half, f) r = Mul(base, p) " + descent("r") + " " + NEXT,
            {**COUNT, "two": np.array(2, np.int64), "half": np.array(0.5), "base": np.array(0.25)}, ["W", "b", "T"],
            updated(lambda s, g, _: {**sgd(s, g, 0.25 * 0.5 ** (int(s["T"]) // 2)), "T": s["T"] + 1}),
            feeds=linear_feeds(6)),
        own("schedule: the learning rate is an input", SQUARED, descent("rate"), {}, ["W", "b"],
            scheduled_by_input(), target="float[4,2] t, float rate",
            feeds=[{**f, "rate": np.array(0.25 / (k + 1))} for k, f in enumerate(linear_feeds(4))]),
        own("clipping, decoupled decay, averaged weights", SQUARED,
            "sqW = ReduceSumSquare<keepdims=0>(dW) sqb = ReduceSumSquare<keepdims=0>(db) sq = Add(sqW, sqb) "
            "norm = Sqrt(sq) share = Div(limit, norm) scale = Min(unit, share) "
            + " ".join(f"c{n} = Mul(scale, d{n}) u{n} = Mul(rate, c{n}) k{n} = Mul(shrink, {n}) "
                       f"{n}_new = Sub(k{n}, u{n}) "
                       f"o{n} = Mul(keep, E_{n}) v{n} = Mul(rest, {n}_new) E_{n}_new = Add(o{n}, v{n})"
                       for n in ("W", "b")),
            {"limit": np.array(0.5), "unit": np.array(1.0), "rate": np.array(0.25), "keep": np.array(0.75),
             "rest": np.array(0.25), "shrink": np.array(1 - 0.25 * 0.125), "E_W": ZEROS["W"], "E_b": ZEROS["b"]},
            ["W", "b", "E_W", "E_b"], updated(clipped)),
        own("gradients accumulated over two steps", SQUARED,
            "rem = Mod(T, two) last = Equal(rem, one) "
            + " ".join(f"A{n} = Add(A_{n}, d{n}) u{n} = Mul(rate, A{n}) m{n} = Sub({n}, u{n}) "
                       f"{n}_new = Where(last, m{n}, {n}) z{n} = Sub(A{n}, A{n}) A_{n}_new = Where(last, z{n}, A{n})"
                       for n in ("W", "b")) + " " + NEXT,
            {**COUNT, **rate, "two": np.array(2, np.int64), "A_W": ZEROS["W"], "A_b": ZEROS["b"]},
            ["W", "b", "A_W", "A_b", "T"], updated(accumulated)),
        own("sign of the momentum", SQUARED,
            " ".join(f"a{n} = Mul(keep, M_{n}) e{n} = Mul(rest, d{n}) i{n} = Add(a{n}, e{n}) s{n} = Sign(i{n}) "
                     f"u{n} = Mul(rate, s{n}) {n}_new = Sub({n}, u{n}) hm{n} = Mul(half, M_{n}) "
                     f"hd{n} = Mul(half, d{n}) M_{n}_new = Add(hm{n}, hd{n})" for n in ("W", "b")),
            {"keep": np.array(0.75), "rest": np.array(0.25), "half": np.array(0.5), "rate": np.array(0.0625),
             "M_W": ZEROS["W"], "M_b": ZEROS["b"]}, ["W", "b", "M_W", "M_b"], updated(sign_descent)),
        own("an update that is skipped when the loss is large", SQUARED,
            "good = Less(loss, limit) W_new, b_new = If(good)<then_branch = yes () => (float[3,2] Wy, float[2] by) "
            "{ sW = Mul(rate, dW) sb = Mul(rate, db) Wy = Sub(W, sW) by = Sub(b, sb) }, "
            "else_branch = no () => (float[3,2] Wn, float[2] bn) { Wn = Identity(W) bn = Identity(b) }>",
            {**rate, "limit": np.array(4.0)}, ["W", "b"],
            updated(lambda s, g, loss: sgd(s, g, 0.125) if loss < 4.0 else {"W": s["W"], "b": s["b"]})),
        own("dropout with a mask from integers",
            "i = Range(zero, twelve, one) p = Mul(i, prime) k = Mul(T, step) s = Add(p, k) r = Mod(s, modulus) "
            "keep = Less(r, limit) flat = Cast<to=1>(keep) shape = Shape(x) m = Reshape(flat, shape) "
            "scaled = Div(m, share) xm = Mul(x, scaled) hm = MatMul(xm, W) ym = Add(hm, b) d = Sub(ym, t) "
            "q = Mul(d, d) loss = ReduceMean<keepdims=0>(q)", descent("rate") + " " + NEXT,
            {**COUNT, **rate, "zero": np.array(0), "twelve": np.array(12), "prime": np.array(7919),
             "step": np.array(104729), "modulus": np.array(97), "limit": np.array(73), "share": np.array(0.75)},
            ["W", "b", "T"], updated(lambda s, g, _: {**sgd(s, g, 0.125), "T": s["T"] + 1}, masked)),
        own("dropout with a given mask",
            "f = Cast<to=1>(mask) f2 = Add(f, f) xm = Mul(x, f2) hm = MatMul(xm, W) ym = Add(hm, b) d = Sub(ym, t) "
            "q = Mul(d, d) loss = ReduceMean<keepdims=0>(q)", descent("rate"), rate, ["W", "b"],
            updated(lambda s, g, _: sgd(s, g, 0.125), given_mask), target="float[4,2] t, bool[4,3] mask",
            feeds=mask_feeds),
        gradient_penalty(),
        swapped_states(),
        bound_to_a_graph_output(),
        mixed_precision("float16", 10),
        mixed_precision("bfloat16", 16),
    ]  # fmt: skip


def scheduled_by_input() -> Step:
    def step(state: Values, feeds: Values) -> tuple[Values, Values]:
        inner = updated(lambda s, g, _: sgd(s, g, float(feeds["rate"])))
        return inner(state, feeds)

    return step


def gradient_penalty() -> Scenario:
    """Return a scenario whose loss contains a gradient: second derivatives in a training step."""
    graph = "g (float[4,3] x) => (float[4,2] y) { h = MatMul(x, W) a = Add(h, b) y = Tanh(a) }"
    algorithm = f"""a (float[4,2] t) => (float loss) {{
  yy = Mul(y, y) s = ReduceSum<keepdims=0>(yy)
  dx = Gradient<xs=["x"], zs=["W", "b"], y="s">(x, W, b)
  g2 = Mul(dx, dx) g = ReduceMean<keepdims=0>(g2)
  d = Sub(y, t) q = Mul(d, d) fit = ReduceMean<keepdims=0>(q) loss = Add(fit, g)
  {GRADIENT} {descent("rate")} }}"""
    step = updated(lambda s, g, _: sgd(s, g, 0.125), penalty)
    return Scenario(
        "gradient penalty", graph, algorithm, dict(LINEAR_WEIGHTS), {"rate": np.array(0.125)},
        {"W": "W_new", "b": "b_new"}, linear_feeds(3), step, features=["second-order"],
    )  # fmt: skip


def swapped_states() -> Scenario:
    """Return two states that change places: all updates read the old values."""
    algorithm = """a (float[3] t) => (float loss) {
  d = Sub(y, t) q = Mul(d, d) loss = ReduceSum<keepdims=0>(q) A_new = Identity(B) B_new = Add(A, t) }"""

    def step(state: Values, feeds: Values) -> tuple[Values, Values]:
        loss = np.sum((feeds["x"] * state["A"] - feeds["t"]) ** 2)
        return {"loss": np.asarray(loss)}, {"A": state["B"], "B": state["A"] + feeds["t"]}

    feeds = [{"x": array(3, seed=k), "t": array(3, seed=7 + k)} for k in range(3)]
    return Scenario(
        "states that change places", "g (float[3] x) => (float[3] y) { y = Mul(x, A) }", algorithm,
        {"A": array(3, seed=1)}, {"B": array(3, seed=2)}, {"A": "A_new", "B": "B_new"}, feeds, step,
        features=["simultaneous"],
    )  # fmt: skip


def bound_to_a_graph_output() -> Scenario:
    """Return a state that is replaced by an output of the inference graph, which the message's comments allow."""
    graph = "g (float[3] x) => (float[3] y, float[3] h) { h = Add(S, x) y = Tanh(h) }"
    algorithm = "a (float[3] t) => (float loss) { d = Sub(y, t) q = Mul(d, d) loss = ReduceSum<keepdims=0>(q) }"

    def step(state: Values, feeds: Values) -> tuple[Values, Values]:
        h = state["S"] + feeds["x"]
        return {"loss": np.asarray(np.sum((np.tanh(h) - feeds["t"]) ** 2))}, {"S": h}

    feeds = [{"x": array(3, seed=k), "t": array(3, seed=7 + k)} for k in range(3)]
    return Scenario(
        "bound to an output of the inference graph", graph, algorithm, {"S": array(3, seed=1)}, {}, {"S": "h"}, feeds,
        step, features=["silent-point"],
    )  # fmt: skip


def mixed_precision(dtype: str, number: int) -> Scenario:
    """Return the linear model computed in half precision from float32 weights, with a scaled loss."""
    graph = f"""g (float[4,3] x) => (float[4,2] y) {{
  xl = Cast<to={number}>(x) Wl = Cast<to={number}>(W) bl = Cast<to={number}>(b)
  h = MatMul(xl, Wl) yl = Add(h, bl) y = Cast<to=1>(yl) }}"""
    algorithm = f"""a (float[4,2] t) => (float loss) {{
  d = Sub(y, t) q = Mul(d, d) loss = ReduceMean<keepdims=0>(q) scaled = Mul(loss, scale)
  gW, gb = Gradient<xs=["W", "b"], zs=["x", "t", "scale"], y="scaled">(W, b, x, t, scale)
  dW = Div(gW, scale) db = Div(gb, scale) {descent("rate")} }}"""
    states = {"rate": np.array(0.125), "scale": np.array(64.0)}
    return Scenario(
        f"mixed precision, {dtype}", graph, algorithm, dict(LINEAR_WEIGHTS), states, {"W": "W_new", "b": "b_new"},
        linear_feeds(3), updated(lambda s, g, _: sgd(s, g, 0.125)), dtypes=["float32"], precision=dtype,
        features=["mixed-precision"],
    )  # fmt: skip
