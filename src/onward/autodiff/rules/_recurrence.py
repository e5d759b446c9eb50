"""What RNN, GRU and LSTM have in common: directions, layout, lengths, activations and a loop over time.

The output Y holds every hidden state, so the backward computes the gates of all steps again in one matrix product. Only
the recursion runs in a Scan, whose body has few nodes. The gradients with respect to the weights are again single
products over all steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import onnx_ir as ir

from onward.autodiff.emit import Emitter, subgraph_input
from onward.autodiff.problems import Unsupported
from onward.autodiff.rule import Rule
from onward.autodiff.rules._windows import extent, reshape_target
from onward.graph.builder import Builder, Value

GradsByName = dict[str, Value | list[Value | None] | None]
_LAST = (1 << 63) - 1

# Which of alpha and beta an activation takes, and their defaults (those of the ONNX operators).
_ALPHA = {"affine": 1.0, "leakyrelu": 0.01, "thresholdedrelu": 1.0, "scaledtanh": 1.0, "hardsigmoid": 0.2, "elu": 1.0}
_KNOWN = {*_ALPHA, "sigmoid", "tanh", "relu", "softsign", "softplus"}
_BETA = {"affine": 0.0, "scaledtanh": 1.0, "hardsigmoid": 0.5}


@dataclasses.dataclass(frozen=True)
class Activation:
    """One activation function with its constants."""

    name: str
    alpha: float
    beta: float
    clip: float | None

    def __call__(self, op: Builder, x: Value) -> tuple[Value, Value]:
        """Return the value and the slope at `x`, which is clipped first if there is a clip."""
        if self.clip is None:
            y = self._value(op, x)
            return y, self._slope(op, x, y)
        clipped = op.Clip(x, -self.clip, self.clip)
        y = self._value(op, clipped)
        inside = op.LessOrEqual(op.Abs(x), self.clip)
        return y, op.Mul(self._slope(op, clipped, y), op.CastLike(inside, x))

    def value(self, op: Builder, x: Value) -> Value:
        """Return the value alone."""
        return self._value(op, x if self.clip is None else op.Clip(x, -self.clip, self.clip))

    def _value(self, op: Builder, x: Value) -> Value:
        match self.name:
            case "sigmoid" | "tanh" | "relu" | "softsign" | "softplus":
                made: Value = getattr(op, self.name.capitalize())(x)
                return made
            case "affine":
                return op.Add(op.Mul(x, self.alpha), self.beta)
            case "leakyrelu":
                return op.LeakyRelu(x, alpha=self.alpha)
            case "thresholdedrelu":
                return op.ThresholdedRelu(x, alpha=self.alpha)
            case "scaledtanh":
                return op.Mul(op.Tanh(op.Mul(x, self.beta)), self.alpha)
            case "hardsigmoid":
                return op.HardSigmoid(x, alpha=self.alpha, beta=self.beta)
            case _:
                return op.Elu(x, alpha=self.alpha)

    def _slope(self, op: Builder, x: Value, y: Value) -> Value:
        match self.name:
            case "sigmoid":
                return op.Mul(y, op.Sub(1.0, y))
            case "tanh":
                return op.Sub(1.0, op.Mul(y, y))
            case "relu":
                return op.CastLike(op.Greater(y, 0.0), x)  # at 0: slope 0, as PyTorch does
            case "softsign":
                rest = op.Sub(1.0, op.Abs(y))
                return op.Mul(rest, rest)
            case "softplus":
                return op.Sigmoid(x)
            case "affine":
                return op.Expand(op.constant(self.alpha, x.dtype), op.Shape(x))
            case "leakyrelu":
                return op.Where(op.Greater(x, 0.0), 1.0, op.constant(self.alpha, x.dtype))
            case "thresholdedrelu":
                return op.CastLike(op.Greater(x, self.alpha), x)
            case "scaledtanh":
                # y = a tanh(b x), so y' = a b (1 - tanh^2) = b (a - y^2 / a).
                return op.Mul(op.Sub(self.alpha, op.Div(op.Mul(y, y), self.alpha)), self.beta)
            case "hardsigmoid":
                inside = op.And(op.Greater(y, 0.0), op.Less(y, 1.0))
                return op.Mul(op.CastLike(inside, x), self.alpha)
            case _:
                return op.Where(op.Greater(x, 0.0), 1.0, op.Add(y, self.alpha))


def activations(rule: Rule, defaults: Sequence[str], directions: int) -> list[list[Activation]]:
    """Return the activations of each direction; those with an alpha or beta take the given ones in order."""
    given = rule.node.attributes.get("activations")
    names = [n.lower() for n in (list(defaults) * directions if given is None else given.as_strings())]
    for name in names:
        if name not in _KNOWN:
            raise Unsupported(f"the activation `{name}` is not one of the standard's: {', '.join(sorted(_KNOWN))}")
    alphas, betas = iter(rule.attr("activation_alpha") or []), iter(rule.attr("activation_beta") or [])
    clip = rule.attr("clip")
    made = []
    for name in names:
        alpha = next(alphas, _ALPHA[name]) if name in _ALPHA else 0.0
        beta = next(betas, _BETA[name]) if name in _BETA else 0.0
        made.append(Activation(name, alpha, beta, clip))
    count = len(defaults)
    return [made[i * count : (i + 1) * count] for i in range(directions)]


class Layer:
    """One recurrent node, with time as the first axis of its tensors in every layout."""

    def __init__(self, rule: Rule, dY: Value | None, gates: int) -> None:
        op = rule.op
        self.rule, self.op, self.gates = rule, op, gates
        self.batch_first = bool(rule.attr("layout", 0))
        direction = rule.attr("direction", "forward")
        self.reversed = {"forward": [False], "reverse": [True]}.get(direction, [False, True])
        self.X = self._time_first(rule.input("X"), [1, 0, 2])
        self.Y = self._time_first(rule.request_output("Y"), [1, 2, 0, 3])
        self.dY = None if dY is None else self._time_first(dY, [1, 2, 0, 3])
        self.mask: Value | None = None
        self.last: Value | None = None
        lengths = rule.optional_input("sequence_lens")
        if lengths is not None:
            steps = op.Range(0, op.Squeeze(rule.dim_of(rule.input("X"), int(self.batch_first)), [0]), 1)
            time = op.Unsqueeze(steps, [1, 2])
            lengths = op.Unsqueeze(op.cast(lengths, ir.DataType.INT64), [0, 2])
            self.mask = op.CastLike(op.Less(time, lengths), self.X)
            self.last = op.Equal(time, op.Sub(lengths, 1))

    @property
    def directions(self) -> int:
        return len(self.reversed)

    def _time_first(self, value: Value, perm: list[int]) -> Value:
        return self.op.Transpose(value, perm=perm) if self.batch_first else value

    def pick(self, value: Value, direction: int, axis: int = 0) -> Value:
        """Return the part of one direction, without that axis."""
        if self.directions == 1:
            return self.op.Squeeze(value, [axis])
        return self.op.Gather(value, direction, axis=axis)

    def state(self, name: str, direction: int) -> Value | None:
        """Return an initial state [batch, hidden], or None."""
        value = self.rule.optional_input(name)
        return None if value is None else self.pick(value, direction, axis=int(self.batch_first))

    def seed(self, grad: Value | None, direction: int) -> Value:
        """Return the gradient of a final state [batch, hidden]; zeros if there is none."""
        if grad is not None:
            return self.pick(grad, direction, axis=int(self.batch_first))
        return self.zeros()

    def zeros(self) -> Value:
        """Return zeros [batch, hidden]."""
        op, rule = self.op, self.rule
        batch = extent(rule, rule.input("X"), 0 if self.batch_first else 1)
        shape = reshape_target(rule, [batch, extent(rule, rule.input("R"), 2)])
        return op.Expand(op.constant(0.0, self.X.dtype), shape)

    def before(self, states: Value, initial: Value | None, direction: int, *, padded: bool) -> Value:
        """Return the state before each step; with `padded`, the states behind a sequence's end are zeros."""
        op, reverse = self.op, self.reversed[direction]
        kept = op.Slice(states, [1], [_LAST], [0]) if reverse else op.Slice(states, [0], [-1], [0])
        if initial is None:
            return op.Pad(kept, [0, 0, 0, 1, 0, 0] if reverse else [1, 0, 0, 0, 0, 0])
        first = op.Unsqueeze(initial, [0])
        shifted = op.Concat(kept, first, axis=0) if reverse else op.Concat(first, kept, axis=0)
        if reverse and padded and self.last is not None:
            return op.Where(self.last, first, shifted)
        return shifted

    def masked(self, value: Value) -> Value:
        """Return `value` with zeros behind the end of each sequence."""
        return value if self.mask is None else self.op.Mul(value, self.mask)

    def held(self, value: Value) -> Value:
        """Return `value` with ones behind the end of each sequence, where a state passes through unchanged."""
        if self.mask is None:
            return value
        return self.op.Add(self.op.Mul(value, self.mask), self.op.Sub(1.0, self.mask))

    def output_gradient(self, direction: int) -> Value | None:
        """Return dY of one direction [time, batch, hidden]; behind the end of a sequence Y is constant."""
        return None if self.dY is None else self.masked(self.pick(self.dY, direction, axis=1))

    def bias(self, direction: int) -> tuple[Value, Value] | None:
        """Return the biases of W and R, or None."""
        B = self.rule.optional_input("B")
        if B is None:
            return None
        first, second = self.op.multi("Split", self.pick(B, direction), outputs=2, axis=0, num_outputs=2)
        return first, second

    def product(self, value: Value, weight: Value) -> Value:
        """Return value @ weight^T for all steps."""
        return self.op.MatMul(value, self.op.Transpose(weight, perm=[1, 0]))

    def outer(self, grad: Value, value: Value) -> Value:
        """Return grad^T @ value, summed over time and batch."""
        op = self.op
        return op.MatMul(op.Transpose(self._rows(grad), perm=[1, 0]), self._rows(value))

    def _rows(self, value: Value) -> Value:
        return self.op.Flatten(value, axis=2)

    def stack(self, parts: Sequence[Value], axis: int = 0) -> Value:
        """Return the directions' parts with their axis."""
        op = self.op
        lifted = [op.Unsqueeze(p, [axis]) for p in parts]
        return lifted[0] if len(lifted) == 1 else op.Concat(*lifted, axis=axis)

    def finish(self, found: list[GradsByName]) -> GradsByName:
        """Return the gradients of the node from those of its directions."""
        grads: GradsByName = {}
        for name in found[0]:
            parts = [f[name] for f in found]
            values = [p for p in parts if isinstance(p, ir.Value)]
            if name == "X":
                total = values[0] if len(values) == 1 else self.op.Add(values[0], values[1])
                grads["X"] = self._time_first(total, [1, 0, 2])
            else:
                axis = int(self.batch_first) if name.startswith("initial") else 0
                grads[name] = self.stack(values, axis)
        return grads


Body = Callable[[Builder, list[Value], list[Value]], tuple[list[Value], list[Value]]]


def scan(
    rule: Rule, states: Sequence[Value], inputs: Sequence[Value], body: Body, *, backwards: bool, outputs: int
) -> tuple[list[Value], list[Value]]:
    """Return the final states and the stacked outputs of `body` over the first axis of `inputs`.

    `body(op, states, slices)` returns the new states and the step's outputs; it may read any value from outside. All of
    these are matrices [batch, ...], which ONNX Runtime wants to know even where the inputs of the node have no shape.
    """
    op = rule.op
    assert isinstance(op, Emitter)
    inner = op.inner(f"{op.prefix}step/")
    matrix = ir.Shape([None, None])
    formal_states = [subgraph_input(inner, f"state_{i}", v.type, v.shape or matrix) for i, v in enumerate(states)]
    slices = [subgraph_input(inner, f"slice_{i}", v.type, matrix) for i, v in enumerate(inputs)]
    new_states, made = body(inner, formal_states, slices)
    for value in [*new_states, *made]:
        value.shape = value.shape or matrix
    assert len(made) == outputs
    graph = ir.Graph([*formal_states, *slices], [*new_states, *made], nodes=inner.nodes, name=f"{op.prefix}step")
    direction = int(backwards)
    results = op.call(
        "Scan",
        [*states, *inputs],
        outputs=len(states) + outputs,
        body=graph,
        num_scan_inputs=len(inputs),
        scan_input_directions=[direction] * len(inputs),
        scan_output_directions=[direction] * outputs,
    )
    for result, value in zip(results, [*new_states, *made], strict=True):
        result.type = value.type
    return list(results[: len(states)]), list(results[len(states) :])
