"""RNN, GRU and LSTM, with every input, direction, layout and activation.

In each formula, dH is the gradient of the hidden state of a step: dY of that step plus what the later steps contribute.
The factors of dH and dC within a step are computed for all steps at once before the loop.
"""

from __future__ import annotations

from onward.autodiff.registry import NON_DIFFERENTIABLE, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.rules._recurrence import Activation, GradsByName, Layer, activations, scan
from onward.autodiff.types import Grads
from onward.graph.builder import Builder, Value


@gradient("RNN", opset=14, sequence_lens=NON_DIFFERENTIABLE)
def rnn(rule: Rule, dY: Value | None, dY_h: Value | None) -> Grads:
    """H_t = f(a_t), a_t = X_t W^T + H_(t-1) R^T + b, so da_t = dH_t f'(a_t) and dH_(t-1) = dY_(t-1) + da_t R."""
    op = rule.op
    layer = Layer(rule, dY, gates=1)
    found: list[GradsByName] = []
    for d, (f,) in enumerate(activations(rule, ["Tanh"], layer.directions)):
        W, R = layer.pick(rule.input("W"), d), layer.pick(rule.input("R"), d)
        initial = layer.state("initial_h", d)
        before = layer.before(layer.pick(layer.Y, d, axis=1), initial, d, padded=True)
        gates = _preactivation(layer, d, W, R, before)
        slope = layer.masked(f(op, gates)[1])
        passing = [] if layer.mask is None else [op.Sub(1.0, layer.mask)]
        inputs, given = _with_output_gradient(layer, d, [slope, *passing])

        def step(
            inner: Builder, states: list[Value], slices: list[Value], given: bool = given, R: Value = R
        ) -> tuple[list[Value], list[Value]]:
            dH = inner.Add(states[0], slices[-1]) if given else states[0]
            da = inner.Mul(dH, slices[0])
            back = inner.MatMul(da, R)
            if layer.mask is not None:
                back = inner.Add(back, inner.Mul(states[0], slices[1]))
            return [back], [da]

        (dH,), (da,) = scan(rule, [layer.seed(dY_h, d)], inputs, step, backwards=not layer.reversed[d], outputs=1)
        found.append(_weights(layer, d, da, W, before, dH))
    return layer.finish(found)


@gradient("GRU", opset=14, sequence_lens=NON_DIFFERENTIABLE)
def gru(rule: Rule, dY: Value | None, dY_h: Value | None) -> Grads:
    """H_t = (1 - z) h + z H_(t-1), z, r = f(.), h = g(X_t W_h^T + (r H_(t-1)) R_h^T) or g(.. + r (H_(t-1) R_h^T)).

    dz = dH (H_(t-1) - h) f', da_h = dH (1 - z) g', dr = da_h dh/dr f'; dH_(t-1) = dY + dH z + the gates' part.
    """
    layer = Layer(rule, dY, gates=3)
    pairs = activations(rule, ["Sigmoid", "Tanh"], layer.directions)
    linear = bool(rule.attr("linear_before_reset", 0))
    found = [
        (_gru_linear if linear else _gru_reset_first)(rule, layer, d, f, g, layer.seed(dY_h, d))
        for d, (f, g) in enumerate(pairs)
    ]
    return layer.finish(found)


def _gru_gates(
    rule: Rule, layer: Layer, d: int, f: Activation
) -> tuple[Value, Value, Value, tuple[Value, Value], tuple[Value, Value], list[Value], list[Value]]:
    """Return W, R, the states before, (z, its slope), (r, its slope), and X W^T + Wb and Rb of the gates."""
    op = rule.op
    W, R = layer.pick(rule.input("W"), d), layer.pick(rule.input("R"), d)
    before = layer.before(layer.pick(layer.Y, d, axis=1), layer.state("initial_h", d), d, padded=True)
    bias = layer.bias(d)
    from_X = layer.product(layer.X, W)
    if bias is not None:
        from_X = op.Add(from_X, bias[0])
    x_parts = list(op.multi("Split", from_X, outputs=3, axis=-1, num_outputs=3))
    r_parts = list(op.multi("Split", R, outputs=3, axis=0, num_outputs=3))
    b_parts = [] if bias is None else list(op.multi("Split", bias[1], outputs=3, axis=0, num_outputs=3))
    made = []
    for gate in range(2):
        total = op.Add(x_parts[gate], layer.product(before, r_parts[gate]))
        made.append(f(op, op.Add(total, b_parts[gate]) if b_parts else total))
    return W, R, before, made[0], made[1], [x_parts[2], r_parts[2]], b_parts


def _gru_linear(rule: Rule, layer: Layer, d: int, f: Activation, g: Activation, seed: Value) -> GradsByName:
    op = rule.op
    W, R, before, (z, z_slope), (r, r_slope), (x_h, R_h), biases = _gru_gates(rule, layer, d, f)
    inner_sum = layer.product(before, R_h)
    if biases:
        inner_sum = op.Add(inner_sum, biases[2])
    h, h_slope = g(op, op.Add(x_h, op.Mul(r, inner_sum)))
    by_h = op.Mul(op.Sub(1.0, z), h_slope)
    factors = layer.masked(
        op.Concat(
            op.Mul(op.Sub(before, h), z_slope),
            op.Mul(by_h, op.Mul(inner_sum, r_slope)),
            op.Mul(by_h, r),
            axis=-1,
        )
    )
    inputs, given = _with_output_gradient(layer, d, [factors, layer.held(z)])

    def step(inner: Builder, states: list[Value], slices: list[Value]) -> tuple[list[Value], list[Value]]:
        dH = inner.Add(states[0], slices[2]) if given else states[0]
        da = inner.Mul(inner.Concat(dH, dH, dH, axis=-1), slices[0])
        back = inner.Add(inner.MatMul(da, R), inner.Mul(dH, slices[1]))
        return [back], [da, dH if given else inner.Identity(dH)]

    (dH,), (da, every) = scan(rule, [seed], inputs, step, backwards=not layer.reversed[d], outputs=2)
    dz, dr, _ = op.multi("Split", da, outputs=3, axis=-1, num_outputs=3)
    by_W = op.Concat(dz, dr, op.Mul(every, layer.masked(by_h)), axis=-1)
    return _weights(layer, d, by_W, W, before, dH, by_R=da)


def _gru_reset_first(rule: Rule, layer: Layer, d: int, f: Activation, g: Activation, seed: Value) -> GradsByName:
    op = rule.op
    W, R, before, (z, z_slope), (r, r_slope), (x_h, R_h), biases = _gru_gates(rule, layer, d, f)
    reset = op.Mul(r, before)
    total = op.Add(x_h, layer.product(reset, R_h))
    h, h_slope = g(op, op.Add(total, biases[2]) if biases else total)
    by_h = layer.masked(op.Mul(op.Sub(1.0, z), h_slope))
    by_z = layer.masked(op.Mul(op.Sub(before, h), z_slope))
    R_zr = op.Slice(R, [0], op.Mul(rule.dim_of(rule.input("R"), 2), 2), [0])
    inputs, given = _with_output_gradient(layer, d, [by_h, by_z, op.Mul(before, r_slope), layer.held(z), r])

    def step(inner: Builder, states: list[Value], slices: list[Value]) -> tuple[list[Value], list[Value]]:
        by_h, by_z, by_r, z, r = slices[:5]
        dH = inner.Add(states[0], slices[5]) if given else states[0]
        dh = inner.Mul(dH, by_h)
        dreset = inner.MatMul(dh, R_h)
        dzr = inner.Concat(inner.Mul(dH, by_z), inner.Mul(dreset, by_r), axis=-1)
        back = inner.Add(inner.MatMul(dzr, R_zr), inner.Add(inner.Mul(dH, z), inner.Mul(dreset, r)))
        return [back], [dzr, dh]

    (dH,), (dzr, dh) = scan(rule, [seed], inputs, step, backwards=not layer.reversed[d], outputs=2)
    da = op.Concat(dzr, dh, axis=-1)
    grads = _weights(layer, d, da, W, before, dH)
    if rule.needs("R"):
        grads["R"] = op.Concat(layer.outer(dzr, before), layer.outer(dh, reset), axis=0)
    return grads


@gradient("LSTM", opset=14, sequence_lens=NON_DIFFERENTIABLE)
def lstm(rule: Rule, dY: Value | None, dY_h: Value | None, dY_c: Value | None) -> Grads:
    """C_t = f C_(t-1) + i c and H_t = o h(C_t), with i, f = f(. + P C_(t-1)), o = f(. + P C_t) and c = g(.).

    dC_t = dC + dH (o h' + P_o h o'); da_i = dC c i', da_o = dH h o', da_f = dC C_(t-1) f', da_c = dC i g';
    dC_(t-1) = dC_t (f + P_i c i' + P_f C_(t-1) f') and dH_(t-1) = dY + da R.
    """
    op = rule.op
    layer = Layer(rule, dY, gates=4)
    found: list[GradsByName] = []
    for d, (f, g, h) in enumerate(activations(rule, ["Sigmoid", "Tanh", "Tanh"], layer.directions)):
        W, R = layer.pick(rule.input("W"), d), layer.pick(rule.input("R"), d)
        before = layer.before(layer.pick(layer.Y, d, axis=1), layer.state("initial_h", d), d, padded=True)
        gates = list(op.multi("Split", _preactivation(layer, d, W, R, before), outputs=4, axis=-1, num_outputs=4))
        cells = _Cells(rule, layer, d, gates, f, g)
        hidden, h_slope = h(op, cells.after)
        o, o_slope = f(op, cells.with_peephole(gates[1], 1, cells.after))
        by_o = op.Mul(hidden, o_slope)
        by_H = cells.plus_peephole(op.Mul(o, h_slope), by_o, 1)
        keep = cells.plus_peephole(cells.plus_peephole(cells.f, cells.by_i, 0), cells.by_f, 2)
        factors = layer.masked(op.Concat(cells.by_i, by_o, cells.by_f, cells.by_c, axis=-1))
        passing = [] if layer.mask is None else [op.Sub(1.0, layer.mask)]
        inputs, given = _with_output_gradient(layer, d, [layer.masked(by_H), factors, layer.held(keep), *passing])

        def step(
            inner: Builder,
            states: list[Value],
            slices: list[Value],
            given: bool = given,
            R: Value = R,
        ) -> tuple[list[Value], list[Value]]:
            dH = inner.Add(states[0], slices[-1]) if given else states[0]
            dC = inner.Add(states[1], inner.Mul(dH, slices[0]))
            da = inner.Mul(inner.Concat(dC, dH, dC, dC, axis=-1), slices[1])
            back = inner.MatMul(da, R)
            if layer.mask is not None:
                back = inner.Add(back, inner.Mul(states[0], slices[3]))
            return [back, inner.Mul(dC, slices[2])], [da]

        seeds = [layer.seed(dY_h, d), layer.seed(dY_c, d)]
        (dH, dC), (da,) = scan(rule, seeds, inputs, step, backwards=not layer.reversed[d], outputs=1)
        grads = _weights(layer, d, da, W, before, dH)
        if rule.optional_input("initial_c") is not None:
            grads["initial_c"] = dC
        if rule.optional_input("P") is not None and rule.needs("P"):
            da_i, da_o, da_f, _ = op.multi("Split", da, outputs=4, axis=-1, num_outputs=4)
            products = [op.Mul(da_i, cells.before), op.Mul(da_o, cells.after), op.Mul(da_f, cells.before)]
            grads["P"] = op.Concat(*(op.ReduceSum(p, [0, 1], keepdims=0) for p in products), axis=0)
        found.append(grads)
    return layer.finish(found)


class _Cells:
    """The cell states of one direction, which LSTM does not output, and the factors of dC."""

    def __init__(self, rule: Rule, layer: Layer, d: int, gates: list[Value], f: Activation, g: Activation) -> None:
        self.op = op = rule.op
        P = rule.optional_input("P")
        self.peepholes = None if P is None else op.multi("Split", layer.pick(P, d), outputs=3, axis=0, num_outputs=3)
        initial = layer.state("initial_c", d)
        start = layer.zeros() if initial is None else initial
        c, c_slope = g(op, gates[3])
        coupled = bool(rule.attr("input_forget", 0))
        if self.peepholes is None:
            self.i, i_slope = f(op, gates[0])
            self.f, f_slope = (op.Sub(1.0, self.i), None) if coupled else f(op, gates[2])
            inputs = [layer.held(self.f), layer.masked(op.Mul(self.i, c))]

            def step(inner: Builder, states: list[Value], slices: list[Value]) -> tuple[list[Value], list[Value]]:
                new = inner.Add(inner.Mul(states[0], slices[0]), slices[1])
                return [new], [inner.Identity(new)]

            _, (self.after,) = scan(rule, [start], inputs, step, backwards=layer.reversed[d], outputs=1)
            self.before = layer.before(self.after, initial, d, padded=False)
        else:
            p_i, _, p_f = self.peepholes
            inputs = [gates[0], gates[2], c] + ([layer.mask] if layer.mask is not None else [])

            def peeping(inner: Builder, states: list[Value], slices: list[Value]) -> tuple[list[Value], list[Value]]:
                old = states[0]
                i = f.value(inner, inner.Add(slices[0], inner.Mul(p_i, old)))
                keep = inner.Sub(1.0, i) if coupled else f.value(inner, inner.Add(slices[1], inner.Mul(p_f, old)))
                new = inner.Add(inner.Mul(keep, old), inner.Mul(i, slices[2]))
                if layer.mask is not None:
                    new = inner.Add(old, inner.Mul(inner.Sub(new, old), slices[3]))
                return [new], [inner.Identity(new)]

            _, (self.after,) = scan(rule, [start], inputs, peeping, backwards=layer.reversed[d], outputs=1)
            self.before = layer.before(self.after, initial, d, padded=False)
            self.i, i_slope = f(op, self.with_peephole(gates[0], 0, self.before))
            self.f, f_slope = (
                (op.Sub(1.0, self.i), None) if coupled else f(op, self.with_peephole(gates[2], 2, self.before))
            )
        if f_slope is None:
            self.by_i = op.Mul(op.Sub(c, self.before), i_slope)
            self.by_f = op.Mul(self.by_i, 0.0)
        else:
            self.by_i = op.Mul(c, i_slope)
            self.by_f = op.Mul(self.before, f_slope)
        self.by_c = op.Mul(self.i, c_slope)

    def with_peephole(self, gate: Value, index: int, cells: Value) -> Value:
        """Return the gate's preactivation with its peephole, if there is one."""
        if self.peepholes is None:
            return gate
        return self.op.Add(gate, self.op.Mul(self.peepholes[index], cells))

    def plus_peephole(self, value: Value, factor: Value, index: int) -> Value:
        """Return `value` + `factor` times a peephole, if there are any."""
        return value if self.peepholes is None else self.op.Add(value, self.op.Mul(factor, self.peepholes[index]))


def _preactivation(layer: Layer, d: int, W: Value, R: Value, before: Value) -> Value:
    """Return X W^T + H R^T + b of all steps."""
    op = layer.op
    total = op.Add(layer.product(layer.X, W), layer.product(before, R))
    bias = layer.bias(d)
    return total if bias is None else op.Add(total, op.Add(*bias))


def _with_output_gradient(layer: Layer, d: int, inputs: list[Value]) -> tuple[list[Value], bool]:
    """Return the loop's inputs with dY of this direction appended, if there is one, and whether there is."""
    dY = layer.output_gradient(d)
    return (inputs, False) if dY is None else ([*inputs, dY], True)


def _weights(
    layer: Layer, d: int, da: Value, W: Value, before: Value, dH: Value, by_R: Value | None = None
) -> GradsByName:
    """Return the gradients of X, W, R, B and initial_h, given those of the gates (`by_R`: of the products with R)."""
    op, rule = layer.op, layer.rule
    grads: GradsByName = {}
    by_R = da if by_R is None else by_R
    if rule.needs("X"):
        grads["X"] = op.MatMul(da, W)
    if rule.needs("W"):
        grads["W"] = layer.outer(da, layer.X)
    if rule.needs("R"):
        grads["R"] = layer.outer(by_R, before)
    if rule.optional_input("B") is not None and rule.needs("B"):
        sums = [op.ReduceSum(grad, [0, 1], keepdims=0) for grad in (da, by_R)]
        grads["B"] = op.Concat(*sums, axis=0)
    if rule.optional_input("initial_h") is not None:
        grads["initial_h"] = dH
    return grads
