"""The cells of RNN, GRU and LSTM: one step as arithmetic on the tensors of any framework.

A backend supplies the activations, transposes the weights, and runs the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
