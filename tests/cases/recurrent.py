"""Cases of autodiff/rules/recurrent.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases import array, case

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
OUTPUTS = {"RNN": ["Y", "Y_h"], "GRU": ["Y", "Y_h"], "LSTM": ["Y", "Y_h", "Y_c"]}
BATCH_FIRST = "Batchwise recurrent operations (layout == 1) are not supported"


def recurrent(
    op: str, name: str, *, steps: int = 3, batch: int = 2, width: int = 2, hidden: int = 2, B: bool = False,
    initial: bool = False, P: bool = False, lengths: list[int] | None = None, **rest: Any,
) -> Any:  # fmt: skip
    """Return a case with random weights; flags say which optional inputs there are."""
    gates, both = GATES[op], 2 if rest.get("direction") == "bidirectional" else 1
    X = array(steps, batch, width)
    state = (both, batch, hidden)
    if rest.get("layout"):
        X, state = array(batch, steps, width), (batch, both, hidden)
    given = {
        "X": X,
        "W": array(both, gates * hidden, width, seed=1, low=-1, high=1),
        "R": array(both, gates * hidden, hidden, seed=2, low=-1, high=1),
        "hidden_size": hidden,
        "outputs": OUTPUTS[op],
    }
    if B:
        given["B"] = array(both, 2 * gates * hidden, seed=3, low=-1, high=1)
    if initial:
        given["initial_h"] = array(*state, seed=4, low=-1, high=1)
        if op == "LSTM":
            given["initial_c"] = array(*state, seed=5, low=-1, high=1)
    if P:
        given["P"] = array(both, 3 * hidden, seed=6, low=-1, high=1)
    if lengths is not None:
        given["sequence_lens"] = np.array(lengths, np.int32)
    return case(op, name, **{**given, **rest})


def torch_layer(kind: str, order: list[int], **options: Any) -> Any:
    """Return PyTorch's layer with ONNX's weights, whose gates stand in another order."""

    def run(X: Any, W: Any, R: Any, B: Any) -> Any:
        import torch

        hidden, gates = R.shape[2], len(order)

        def sort(value: Any) -> Any:
            return torch.cat([value.reshape(gates, hidden, -1)[g] for g in order]).reshape(value.shape)

        layer = getattr(torch.nn, kind)(X.shape[2], hidden, dtype=X.dtype, **options)
        weights = {
            "weight_ih_l0": sort(W[0]),
            "weight_hh_l0": sort(R[0]),
            "bias_ih_l0": sort(B[0, : gates * hidden]),
            "bias_hh_l0": sort(B[0, gates * hidden :]),
        }
        Y, last = torch.func.functional_call(layer, weights, (X,))
        return (Y[:, None], *(last if kind == "LSTM" else (last,)))

    return run


TORCH = {
    "RNN": torch_layer("RNN", [0]),
    "GRU": torch_layer("GRU", [1, 0, 2]),
    "LSTM": torch_layer("LSTM", [0, 2, 3, 1]),
}
LINEAR = {"RNN": {}, "GRU": {"linear_before_reset": 1}, "LSTM": {}}
ALL = {"B": True, "initial": True}

CASES = [
    case_
    for op in GATES
    for case_ in (
        recurrent(op, "as PyTorch", B=True, torch=TORCH[op], **LINEAR[op]),
        recurrent(op, "no bias", outputs=["Y"]),
        recurrent(op, "everything", **ALL),
        recurrent(op, "reverse", direction="reverse", **ALL),
        recurrent(op, "bidirectional", direction="bidirectional", **ALL),
        recurrent(op, "Y absent", outputs=["Y_h"], **ALL),
        recurrent(op, "layout", layout=1, onnxruntime=BATCH_FIRST, **ALL),
        recurrent(op, "layout bidirectional", layout=1, direction="bidirectional", onnxruntime=BATCH_FIRST, **ALL),
        recurrent(op, "lengths", lengths=[3, 1], **ALL),
        recurrent(op, "lengths reverse", lengths=[2, 3], direction="reverse", **ALL),
        recurrent(op, "lengths bidirectional", lengths=[2, 3], direction="bidirectional", **ALL),
        recurrent(op, "lengths reverse without states", lengths=[2, 3], direction="reverse"),
        recurrent(op, "one step, one sample", kind="edge", steps=1, batch=1, width=1, hidden=1, **ALL),
        recurrent(op, "clip", clip=0.75, smooth=False, step=1e-5, rtol=1e-5, **ALL),
        recurrent(op, "zeros", kind="special", X=np.zeros((2, 1, 2)), R=np.zeros((1, 2 * GATES[op], 2)), steps=2,
                  batch=1),
    )
] + [
    recurrent("LSTM", "peepholes", P=True, **ALL),
    recurrent("LSTM", "peepholes bidirectional lengths", P=True, lengths=[1, 3], direction="bidirectional", **ALL),
    recurrent("LSTM", "only the cell", P=True, outputs=["Y_c"], **ALL),
    recurrent("LSTM", "input_forget", input_forget=1, onnxruntime="", **ALL),
    recurrent("LSTM", "input_forget peepholes", input_forget=1, P=True, **ALL),
    recurrent("LSTM", "peepholes clip", P=True, clip=0.75, smooth=False, step=1e-5, rtol=1e-5, **ALL),
    recurrent("LSTM", "activations", activations=["HardSigmoid", "Softsign", "ScaledTanh"],
              activation_alpha=[0.25, 1.5],
              activation_beta=[0.5, 0.5], **ALL),
    recurrent("LSTM", "activations of both directions", direction="bidirectional",
              activations=["Sigmoid", "Elu", "Softplus", "HardSigmoid", "Affine", "Tanh"],
              activation_alpha=[0.5, 0.25, 0.75], activation_beta=[0.5, 0.25], **ALL),
    recurrent("GRU", "linear_before_reset", linear_before_reset=1, **ALL),
    recurrent("GRU", "linear_before_reset without bias", linear_before_reset=1, initial=True, outputs=["Y_h"]),
    recurrent("GRU", "linear_before_reset lengths", linear_before_reset=1, lengths=[1, 3],
              direction="bidirectional", **ALL),
    recurrent("GRU", "linear_before_reset clip", linear_before_reset=1, clip=0.75, smooth=False, step=1e-5, rtol=1e-5,
              **ALL),
    recurrent("GRU", "activations", activations=["HardSigmoid", "Elu"], activation_alpha=[0.25, 0.5], **ALL),
    *(
        recurrent("RNN", name, activations=[name], **constants, **ALL)
        for name, constants in {
            "Relu": {},
            "Sigmoid": {},
            "Affine": {"activation_alpha": [0.5], "activation_beta": [0.25]},
            "LeakyRelu": {"activation_alpha": [0.25]},
            "ThresholdedRelu": {"activation_alpha": [0.125], "smooth": False},
            "ScaledTanh": {"activation_alpha": [0.5], "activation_beta": [1.5]},
            "HardSigmoid": {},
            "Elu": {"activation_alpha": [0.5], "step": 1e-5, "rtol": 1e-5, "smooth": False},
            "Softsign": {},
            "Softplus": {},
        }.items()
    ),
]  # fmt: skip
