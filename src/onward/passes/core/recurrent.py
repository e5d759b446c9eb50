"""RNN, GRU and LSTM: the products with X for all steps at once, then a Scan over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from onward.autodiff.rules._recurrence import Activation, activations, scan
from onward.graph.builder import Builder, Value
from onward.passes.core.registry import Lowering, decomposition

Cell = Callable[[Builder, Value, list[Value]], list[Value]]
_FUSED = "one call instead of a loop of small products"


class Layer:
    """One recurrent node: its directions, layout and lengths."""

    def __init__(self, at: Lowering, gates: int) -> None:
        self.at, self.gates = at, gates
        self.batch_first = bool(at.attr("layout", 0))
        X = at.input("X")
        self.X = at.op.Transpose(X, perm=[1, 0, 2]) if self.batch_first else X
        self.steps, self.batch = (at.size(X, int(self.batch_first)), at.size(X, int(not self.batch_first)))
        self.hidden = at.size(at.input("R"), 2)
        direction = at.attr("direction", "forward")
        self.reversed = {"forward": [False], "reverse": [True]}.get(direction, [False, True])
        lengths = at.optional_input("sequence_lens")
        self.inside: Value | None = None
        if lengths is not None:
            time = at.reshape(at.count(self.steps), [-1, 1, 1])
            counts = at.reshape(at.op.Cast(lengths, to=ir.DataType.INT64), [1, -1, 1])
            self.inside = at.op.Less(time, counts)

    def pick(self, value: Value, direction: int, axis: int = 0) -> Value:
        return self.at.op.Gather(value, direction, axis=axis)

    def bias(self, direction: int) -> list[Value] | None:
        """Return the bias of each gate of W, then of R."""
        B = self.at.optional_input("B")
        if B is None:
            return None
        return self.parts(self.pick(B, direction), 2 * self.gates, 0)

    def parts(self, value: Value, count: int, axis: int) -> list[Value]:
        """Return equal parts along an axis; each is as long as the hidden state."""
        op, at = self.at.op, self.at
        if count == 1:
            return [value]
        found = []
        for i in range(count):
            start, end = at.mul(self.hidden, i), at.mul(self.hidden, i + 1)
            found.append(op.Slice(value, at.vector([start]), at.vector([end]), [axis]))
        return found

    def state(self, name: str, direction: int) -> Value:
        """Return an initial state [batch, hidden]: zeros if it is absent."""
        op, value = self.at.op, self.at.optional_input(name)
        if value is not None:
            found = self.pick(value, direction, int(self.batch_first))
        else:
            zero = op.constant(0.0, self.at.dtype(self.X))
            found = op.Expand(zero, self.at.vector([self.batch, self.hidden]))
        found.shape = ir.Shape([None, None])
        return found

    def run(self, names: list[str], cells: Sequence[tuple[list[Value], Cell]]) -> list[Value | None]:
        """Return Y and the final states of all directions; `names` are the initial states."""
        at, op = self.at, self.at.op
        histories, finals = [], []
        for direction, (inputs, cell) in enumerate(cells):
            initial = [self.state(name, direction) for name in names]
            given = [*inputs, *([] if self.inside is None else [self.inside])]

            def step(
                inner: Builder, states: list[Value], slices: list[Value], cell: Cell = cell
            ) -> tuple[list[Value], list[Value]]:
                new = cell(inner, slices[0], [*states, *slices[1 : len(slices) - (self.inside is not None)]])
                if self.inside is None:
                    return new, [inner.Identity(new[0])]
                mask = slices[-1]
                held = [inner.Where(mask, n, s) for n, s in zip(new, states, strict=True)]
                return held, [inner.Where(mask, new[0], inner.Mul(new[0], 0.0))]

            last, (history,) = scan(at, initial, given, step, backwards=self.reversed[direction], outputs=1)
            history.shape = ir.Shape([None, None, None])
            histories.append(op.Unsqueeze(history, [2 if self.batch_first else 1]))
            finals.append([op.Unsqueeze(v, [1 if self.batch_first else 0]) for v in last])
        axis = 2 if self.batch_first else 1
        Y = histories[0] if len(histories) == 1 else op.Concat(*histories, axis=axis)
        Y.shape = ir.Shape([None] * 4)
        if self.batch_first:
            Y = op.Transpose(Y, perm=[1, 0, 2, 3])
        ends = [list(each) for each in zip(*finals, strict=True)]
        place = int(self.batch_first)
        return [Y, *(e[0] if len(e) == 1 else op.Concat(*e, axis=place) for e in ends)]

    def product(self, direction: int, bias: Value | None) -> Value:
        """Return X W^T + bias of all steps."""
        op = self.at.op
        made = op.MatMul(self.X, op.Transpose(self.pick(self.at.input("W"), direction), perm=[1, 0]))
        return made if bias is None else op.Add(made, bias)

    def back(self, direction: int) -> Value:
        """Return R^T."""
        return self.at.op.Transpose(self.pick(self.at.input("R"), direction), perm=[1, 0])


def _activations(at: Lowering, defaults: list[str], layer: Layer) -> list[list[Activation]]:
    return activations(at, defaults, len(layer.reversed))


@decomposition("RNN", kernel=_FUSED)
def rnn(at: Lowering) -> list[Value | None]:
    """H = f(X W^T + H R^T + b), in a Scan."""
    layer, cells = Layer(at, 1), []
    for d, (f,) in enumerate(_activations(at, ["Tanh"], layer)):
        bias, R = layer.bias(d), layer.back(d)
        total = None if bias is None else at.op.Add(bias[0], bias[1])

        def cell(inner: Builder, x: Value, states: list[Value], f: Activation = f, R: Value = R) -> list[Value]:
            return [f.value(inner, inner.Add(x, inner.MatMul(states[0], R)))]

        cells.append(([layer.product(d, total)], cell))
    return layer.run(["initial_h"], cells)


@decomposition("GRU", kernel=_FUSED)
def gru(at: Lowering) -> list[Value | None]:
    """z, r and h from X W^T + H R^T + b; H = (1 - z) h + z H, in a Scan."""
    op, layer, cells = at.op, Layer(at, 3), []
    late = bool(at.attr("linear_before_reset"))
    for d, (f, g) in enumerate(_activations(at, ["Sigmoid", "Tanh"], layer)):
        bias, R = layer.bias(d), layer.pick(at.input("R"), d)
        R_zr, R_h = (op.Transpose(p, perm=[1, 0]) for p in _first_two(layer, R))
        inner_bias = None
        total = None
        if bias is not None:
            inner_bias = bias[5]
            total = op.Concat(
                op.Add(bias[0], bias[3]),
                op.Add(bias[1], bias[4]),
                bias[2] if late else op.Add(bias[2], bias[5]),
                axis=0,
            )

        def cell(
            inner: Builder,
            x: Value,
            states: list[Value],
            f: Activation = f,
            g: Activation = g,
            R_zr: Value = R_zr,
            R_h: Value = R_h,
            b: Value | None = inner_bias,
        ) -> list[Value]:
            H = states[0]
            n = at.vector([layer.hidden])
            both, rest = at.vector([at.mul(layer.hidden, 2)]), at.vector([at.mul(layer.hidden, 3)])
            zr = inner.Add(inner.Slice(x, [0], both, [1]), inner.MatMul(H, R_zr))
            z = f.value(inner, inner.Slice(zr, [0], n, [1]))
            r = f.value(inner, inner.Slice(zr, n, both, [1]))
            x_h = inner.Slice(x, both, rest, [1])
            if late:
                back = inner.MatMul(H, R_h)
                back = inner.Mul(r, back if b is None else inner.Add(back, b))
            else:
                back = inner.MatMul(inner.Mul(r, H), R_h)
            h = g.value(inner, inner.Add(x_h, back))
            return [inner.Add(inner.Mul(inner.Sub(1.0, z), h), inner.Mul(z, H))]

        cells.append(([layer.product(d, total)], cell))
    return layer.run(["initial_h"], cells)


def _first_two(layer: Layer, R: Value) -> tuple[Value, Value]:
    at, op = layer.at, layer.at.op
    both, rest = at.vector([at.mul(layer.hidden, 2)]), at.vector([at.mul(layer.hidden, 3)])
    return op.Slice(R, [0], both, [0]), op.Slice(R, both, rest, [0])


@decomposition("LSTM", kernel=_FUSED)
def lstm(at: Lowering) -> list[Value | None]:
    """i, o, f and c from X W^T + H R^T + b and peepholes; C = f C + i c, H = o h(C), in a Scan."""
    op, layer, cells = at.op, Layer(at, 4), []
    P = at.optional_input("P")
    coupled = bool(at.attr("input_forget"))
    for d, (f, g, h) in enumerate(_activations(at, ["Sigmoid", "Tanh", "Tanh"], layer)):
        bias, R = layer.bias(d), layer.back(d)
        total = None
        if bias is not None:
            total = op.Concat(*(op.Add(bias[i], bias[i + 4]) for i in range(4)), axis=0)
        peep = None if P is None else layer.parts(layer.pick(P, d), 3, 0)

        def cell(
            inner: Builder,
            x: Value,
            states: list[Value],
            f: Activation = f,
            g: Activation = g,
            h: Activation = h,
            R: Value = R,
            peep: list[Value] | None = peep,
        ) -> list[Value]:
            H, C = states
            whole = inner.Add(x, inner.MatMul(H, R))
            ends = [at.vector([at.mul(layer.hidden, i)]) for i in range(5)]
            i, o, forget, c = (inner.Slice(whole, ends[k], ends[k + 1], [1]) for k in range(4))
            if peep is not None:
                i, forget = inner.Add(i, inner.Mul(peep[0], C)), inner.Add(forget, inner.Mul(peep[2], C))
            i = f.value(inner, i)
            keep = inner.Sub(1.0, i) if coupled else f.value(inner, forget)
            new = inner.Add(inner.Mul(keep, C), inner.Mul(i, g.value(inner, c)))
            if peep is not None:
                o = inner.Add(o, inner.Mul(peep[1], new))
            return [inner.Mul(f.value(inner, o), h.value(inner, new)), new]

        cells.append(([layer.product(d, total)], cell))
    return layer.run(["initial_h", "initial_c"], cells)
