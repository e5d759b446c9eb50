"""RNN, GRU and LSTM in numpy with every attribute.

Upstream ignores activations, clip, sequence_lens and input_forget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Function = Callable[[np.ndarray], np.ndarray]

_ALPHA = {"affine": 1.0, "leakyrelu": 0.01, "thresholdedrelu": 1.0, "scaledtanh": 1.0, "hardsigmoid": 0.2, "elu": 1.0}
_BETA = {"affine": 0.0, "scaledtanh": 1.0, "hardsigmoid": 0.5}
_PLAIN: dict[str, Function] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "softplus": lambda x: np.logaddexp(x, 0),
}
_WITH_CONSTANTS: dict[str, Callable[[np.ndarray, float, float], np.ndarray]] = {
    "affine": lambda x, a, b: a * x + b,
    "leakyrelu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "thresholdedrelu": lambda x, a, b: np.where(x > a, x, 0),
    "scaledtanh": lambda x, a, b: a * np.tanh(b * x),
    "hardsigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "elu": lambda x, a, b: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0))),
}


def _functions(names: Sequence[str], alphas: Any, betas: Any, clip: float | None) -> list[Function]:
    alphas, betas = iter(alphas or []), iter(betas or [])
    made: list[Function] = []
    for name in (n.lower() for n in names):
        alpha = next(alphas, _ALPHA[name]) if name in _ALPHA else 0.0
        beta = next(betas, _BETA[name]) if name in _BETA else 0.0

        def function(x: np.ndarray, name: str = name, alpha: float = alpha, beta: float = beta) -> np.ndarray:
            x = x if clip is None else np.clip(x, -clip, clip)
            return _PLAIN[name](x) if name in _PLAIN else _WITH_CONSTANTS[name](x, alpha, beta)

        made.append(function)
    return made


class _Recurrent(OpRun):
    """The loop over directions and time; `_step` makes one step of one direction."""

    defaults: tuple[str, ...] = ()
    states = 1

    def _step(
        self, f: list[Function], x: np.ndarray, old: list[np.ndarray], w: dict[str, np.ndarray], options: dict[str, Any]
    ) -> list[np.ndarray]:
        raise NotImplementedError

    def _all(
        self, X: np.ndarray, weights: dict[str, np.ndarray | None], lengths: np.ndarray | None,
        initial: list[np.ndarray | None], layout: Any, direction: Any, activations: Any, alphas: Any, betas: Any,
        clip: Any, **options: Any,
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        if layout:
            X, initial = X.swapaxes(0, 1), [None if s is None else s.swapaxes(0, 1) for s in initial]
        R = weights["R"]
        assert R is not None
        steps, batch, hidden = X.shape[0], X.shape[1], R.shape[2]
        backwards = {"forward": [False], "reverse": [True]}.get(direction or "forward", [False, True])
        names = activations or list(self.defaults) * len(backwards)
        functions = _functions(names, alphas, betas, clip)
        lengths = np.full(batch, steps) if lengths is None else lengths
        Y = np.zeros((steps, len(backwards), batch, hidden), X.dtype)
        last = [np.zeros((len(backwards), batch, hidden), X.dtype) for _ in range(self.states)]
        for d, reverse in enumerate(backwards):
            own = functions[d * len(self.defaults) : (d + 1) * len(self.defaults)]
            w = {name: value[d] for name, value in weights.items() if value is not None}
            state = [np.zeros((batch, hidden), X.dtype) if s is None else s[d] for s in initial]
            for t in range(steps - 1, -1, -1) if reverse else range(steps):
                valid = (t < lengths)[:, None]
                new = self._step(own, X[t], state, w, options)
                state = [np.where(valid, n, o) for n, o in zip(new, state, strict=True)]
                Y[t, d] = np.where(valid, state[0], 0)
            for index, value in enumerate(state):
                last[index][d] = value
        if layout:
            Y, last = Y.transpose(2, 0, 1, 3), [s.swapaxes(0, 1) for s in last]
        return tuple(v.astype(X.dtype) for v in (Y, *last)[: len(self.onnx_node.output)])


class RNN(_Recurrent):
    """Upstream ignores most attributes (see above)."""

    defaults = ("Tanh",)

    def _step(
        self, f: list[Function], x: np.ndarray, old: list[np.ndarray], w: dict[str, np.ndarray], options: dict[str, Any]
    ) -> list[np.ndarray]:
        total = x @ w["W"].T + old[0] @ w["R"].T
        return [f[0](total + sum(np.split(w["B"], 2)) if "B" in w else total)]

    def _run(
        self, X: np.ndarray, W: Any, R: Any, B: Any = None, sequence_lens: Any = None, initial_h: Any = None,
        activation_alpha: Any = None, activation_beta: Any = None, activations: Any = None, clip: Any = None,
        direction: Any = None, hidden_size: Any = None, layout: Any = None,
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        return self._all(X, {"W": W, "R": R, "B": B}, sequence_lens, [initial_h], layout, direction, activations,
                         activation_alpha, activation_beta, clip)  # fmt: skip


class GRU(_Recurrent):
    """Upstream ignores most attributes (see above)."""

    defaults = ("Sigmoid", "Tanh")

    def _step(
        self, f: list[Function], x: np.ndarray, old: list[np.ndarray], w: dict[str, np.ndarray], options: dict[str, Any]
    ) -> list[np.ndarray]:
        H = old[0]
        R_z, R_r, R_h = np.split(w["R"], 3)
        x_z, x_r, x_h = np.split(x @ w["W"].T, 3, axis=-1)
        b = np.split(w["B"], 6) if "B" in w else [0] * 6
        z = f[0](x_z + H @ R_z.T + b[0] + b[3])
        r = f[0](x_r + H @ R_r.T + b[1] + b[4])
        if options["linear"]:
            h = f[1](x_h + b[2] + r * (H @ R_h.T + b[5]))
        else:
            h = f[1](x_h + (r * H) @ R_h.T + b[2] + b[5])
        return [(1 - z) * h + z * H]

    def _run(
        self, X: np.ndarray, W: Any, R: Any, B: Any = None, sequence_lens: Any = None, initial_h: Any = None,
        activation_alpha: Any = None, activation_beta: Any = None, activations: Any = None, clip: Any = None,
        direction: Any = None, hidden_size: Any = None, layout: Any = None, linear_before_reset: Any = None,
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        return self._all(X, {"W": W, "R": R, "B": B}, sequence_lens, [initial_h], layout, direction, activations,
                         activation_alpha, activation_beta, clip, linear=linear_before_reset)  # fmt: skip


class LSTM(_Recurrent):
    """Upstream ignores most attributes (see above)."""

    defaults = ("Sigmoid", "Tanh", "Tanh")
    states = 2

    def _step(
        self, f: list[Function], x: np.ndarray, old: list[np.ndarray], w: dict[str, np.ndarray], options: dict[str, Any]
    ) -> list[np.ndarray]:
        H, C = old
        gates = x @ w["W"].T + H @ w["R"].T
        if "B" in w:
            gates = gates + sum(np.split(w["B"], 2))
        a_i, a_o, a_f, a_c = np.split(gates, 4, axis=-1)
        p_i, p_o, p_f = np.split(w["P"], 3) if "P" in w else [0, 0, 0]
        i = f[0](a_i + p_i * C)
        forget = 1 - i if options["coupled"] else f[0](a_f + p_f * C)
        new = forget * C + i * f[1](a_c)
        return [f[0](a_o + p_o * new) * f[2](new), new]

    def _run(
        self, X: np.ndarray, W: Any, R: Any, B: Any = None, sequence_lens: Any = None, initial_h: Any = None,
        initial_c: Any = None, P: Any = None, activation_alpha: Any = None, activation_beta: Any = None,
        activations: Any = None, clip: Any = None, direction: Any = None, hidden_size: Any = None,
        input_forget: Any = None, layout: Any = None,
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        weights = {"W": W, "R": R, "B": B, "P": P}
        return self._all(X, weights, sequence_lens, [initial_h, initial_c], layout, direction, activations,
                         activation_alpha, activation_beta, clip, coupled=input_forget)  # fmt: skip


OPERATORS = [RNN, GRU, LSTM]
