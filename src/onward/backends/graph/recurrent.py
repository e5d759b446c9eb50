"""RNN, GRU and LSTM: the arithmetic of a step, and what all frameworks do around it.

A backend supplies the activations and a few functions on its tensors, and may run the steps in its own way.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from onward.backends.graph.framework import Framework
from onward.backends.graph.registry import Attributes

Activation = Callable[[Any], Any]
Step = Callable[..., tuple[Any, ...]]  # step(x, *state) returns the new state; its first part is the output

# Defaults of alpha and beta for the activations that have them; absent ones use nothing of the node's lists.
_ALPHA = {"leakyrelu": 0.01, "thresholdedrelu": 1.0, "elu": 1.0, "hardsigmoid": 0.2, "scaledtanh": 1.0, "affine": 1.0}
_BETA = {"hardsigmoid": 0.5, "scaledtanh": 0.0, "affine": 0.0}
_USUAL = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def activations_of(
    attributes: Attributes, direction: int, functions: Mapping[str, Callable[..., Any]], clamp: Callable[..., Any]
) -> list[Activation]:
    """Return the activations of one direction, clipped if the node says so.

    `functions` maps a lower-case name to `f(x)`, `f(x, alpha)` or `f(x, alpha, beta)`.
    """
    usual = _USUAL[attributes.op_type]
    names = [n.decode() if isinstance(n, bytes) else n for n in attributes.get("activations") or []] or usual * 2
    alphas, betas = list(attributes.get("activation_alpha") or []), list(attributes.get("activation_beta") or [])
    found: list[Activation] = []
    for name in (n.lower() for n in names):
        if name not in functions:
            raise ValueError(f"unknown activation {name}")
        given = [
            values.pop(0) if values else table[name]
            for table, values in ((_ALPHA, alphas), (_BETA, betas))
            if name in table
        ]
        found.append(lambda x, f=functions[name], given=tuple(given): f(x, *given))  # type: ignore[misc]  # bound early
    clip = attributes.get("clip")
    chosen = found[direction * len(usual) : (direction + 1) * len(usual)]
    return [lambda x, f=f: f(clamp(x, -clip, clip)) for f in chosen] if clip else chosen  # type: ignore[misc]


def rnn_step(activations: Sequence[Activation], W: Any, R: Any, B: Any, hidden: int) -> Step:
    """Return the step of an RNN for weights [input, hidden] and [hidden, hidden]; B is None or [2 * hidden]."""
    (f,) = activations
    bias = 0 if B is None else B[:hidden] + B[hidden:]
    return lambda x, h: (f(x @ W + h @ R + bias),)


def gru_step(
    activations: Sequence[Activation], W: Any, R: Any, B: Any, hidden: int, *, linear_before_reset: bool
) -> Step:
    """Return the step of a GRU for weights [input, 3 * hidden] and [hidden, 3 * hidden], in the order z, r, h."""
    f, g = activations
    size, two = hidden, 2 * hidden
    wb, rb = (0, None) if B is None else (B[: 3 * size], B[3 * size :])
    own = 0 if rb is None else rb[two:]

    def step(x: Any, h: Any) -> tuple[Any, ...]:
        inputs = x @ W + wb
        gates = inputs[:, :two] + (h @ R[:, :two] + (0 if rb is None else rb[:two]))
        z, r = f(gates[:, :size]), f(gates[:, size:])
        if linear_before_reset:
            n = g(inputs[:, two:] + r * (h @ R[:, two:] + own))
        else:
            n = g(inputs[:, two:] + (r * h) @ R[:, two:] + own)
        return ((1 - z) * n + z * h,)

    return step


def lstm_step(
    activations: Sequence[Activation], W: Any, R: Any, B: Any, P: Any, hidden: int, *, input_forget: bool
) -> Step:
    """Return the step of an LSTM for weights [input, 4 * hidden] and [hidden, 4 * hidden], in the order i, o, f, c."""
    f, g, last = activations
    bias = 0 if B is None else B[: 4 * hidden] + B[4 * hidden :]
    peeps = [0, 0, 0] if P is None else [P[k * hidden : (k + 1) * hidden] for k in range(3)]

    def step(x: Any, h: Any, c: Any) -> tuple[Any, ...]:
        gates = x @ W + h @ R + bias
        i, o, forget, new = (gates[:, k * hidden : (k + 1) * hidden] for k in range(4))
        i = f(i + peeps[0] * c)
        forget = 1 - i if input_forget else f(forget + peeps[2] * c)
        c = forget * c + i * g(new)
        return f(o + peeps[1] * c) * last(c), c

    return step


@dataclasses.dataclass(frozen=True)
class Layer:
    """The inputs of a node, steps before batch; `first` is the initial state, [directions, batch, hidden] each."""

    attributes: Attributes
    X: Any
    W: Any
    R: Any
    B: Any
    P: Any
    lengths: Any
    first: tuple[Any, ...]

    def cell(self, direction: int, activations: Sequence[Activation], W: Any, R: Any) -> Step:
        """Return the step of one direction, for its transposed weights."""
        attributes, hidden = self.attributes, self.attributes["hidden_size"]
        B, P = (None if v is None else v[direction] for v in (self.B, self.P))
        if attributes.op_type == "RNN":
            return rnn_step(activations, W, R, B, hidden)
        if attributes.op_type == "GRU":
            linear = bool(attributes.get("linear_before_reset", 0))
            return gru_step(activations, W, R, B, hidden, linear_before_reset=linear)
        return lstm_step(activations, W, R, B, P, hidden, input_forget=bool(attributes.get("input_forget", 0)))


class Recurrent(abc.ABC):
    """RNN, GRU and LSTM on a framework; `run` is the handler of all three."""

    activations: ClassVar[Mapping[str, Callable[..., Any]]]  # as `activations_of` takes them

    def __init__(self, framework: Framework) -> None:
        self.framework = framework

    @abc.abstractmethod
    def clamp(self, x: Any, low: float, high: float) -> Any:
        """Return `x`, limited; the gradient outside of the limits is zero."""

    @abc.abstractmethod
    def transpose(self, x: Any, order: tuple[int, ...]) -> Any:
        """Return `x` with its axes in another order."""

    @abc.abstractmethod
    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """Return `x` where the condition holds, else `y`."""

    @abc.abstractmethod
    def zeros(self, sizes: Sequence[Any], like: Any) -> Any:
        """Return zeros of the type of `like`."""

    def run(
        self, attributes: Attributes, X: Any, W: Any, R: Any, B: Any = None, sequence_lens: Any = None,
        initial_h: Any = None, initial_c: Any = None, P: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Return Y and the final states."""
        batchwise = bool(attributes.get("layout", 0))

        def turned(value: Any) -> Any:
            return self.transpose(value, (1, 0, 2)) if batchwise else value

        X = turned(X)
        sizes = [W.shape[0], self.framework.shape(X)[1], attributes["hidden_size"]]
        given = (initial_h, initial_c) if attributes.op_type == "LSTM" else (initial_h,)
        first = tuple(self.zeros(sizes, X) if v is None else turned(v) for v in given)
        Y, *finals = self.directions(Layer(attributes, X, W, R, B, P, sequence_lens, first))
        return (self.transpose(Y, (2, 0, 1, 3)) if batchwise else Y, *map(turned, finals))

    def directions(self, layer: Layer) -> tuple[Any, ...]:
        """Return the outputs [steps, directions, batch, hidden] and the final states [directions, batch, hidden]."""
        reverse, done = layer.attributes.get("direction", "forward") == "reverse", []
        for d in range(layer.W.shape[0]):
            activations = activations_of(layer.attributes, d, self.activations, self.clamp)
            weights = (self.transpose(v[d], (1, 0)) for v in (layer.W, layer.R))
            step = self._until_the_end(layer.cell(d, activations, *weights), layer.lengths)
            done.append(self.loop(step, layer.X, tuple(v[d] for v in layer.first), reverse or d == 1))
        finals = (self.framework.stack([state[i] for _, state in done], 0) for i in range(len(layer.first)))
        return (self.framework.stack([Y for Y, _ in done], 1), *finals)

    def _until_the_end(self, cell: Step, lengths: Any) -> Step:
        """Return `step(t, x, *state)` -> (output, *new state); past the end of a sequence its state stays."""

        def step(t: Any, x: Any, *state: Any) -> tuple[Any, ...]:
            new = cell(x, *state)
            if lengths is None:
                return (new[0], *new)
            active = (t < lengths)[:, None]
            nothing = self.zeros(self.framework.shape(new[0]), new[0])
            return (self.where(active, new[0], nothing), *map(self.where, [active] * len(new), new, state))

        return step

    def loop(self, step: Step, X: Any, state: tuple[Any, ...], backwards: bool) -> tuple[Any, Sequence[Any]]:
        """Run the steps; return the outputs [steps, batch, hidden] and the final state."""
        order = range(self.framework.shape(X)[0])
        outputs: list[Any] = [None] * len(order)
        for t in reversed(order) if backwards else order:
            outputs[t], *new = step(t, X[t], *state)
            state = tuple(new)
        if not outputs:
            return self.zeros([0, *self.framework.shape(state[0])], X), state
        return self.framework.stack(outputs, 0), state
