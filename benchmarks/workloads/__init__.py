"""The workloads of `make bench`, one file each; every peer gets the same network, data and start."""

from __future__ import annotations

import functools
import inspect

from workloads import embedding, lenet, mlp, mobilenet, recurrent, resnet18, transformer, unet
from workloads.base import CLASSES, LEARNING_RATE, MOMENTUM, Workload

__all__ = ["CLASSES", "FAMILIES", "LEARNING_RATE", "MOMENTUM", "WORKLOADS", "Workload", "find"]

MODULES = (mlp, lenet, embedding, transformer, recurrent, mobilenet, resnet18, unet)
WORKLOADS = {w.name: w for module in MODULES for w in module.WORKLOADS}
FAMILIES = {
    "mlp": mlp.sized,
    "lenet": lenet.sized,
    "embedding": embedding.sized,
    "transformer": transformer.sized,
    "lstm": functools.partial(recurrent.sized, kind="LSTM"),
    "gru": functools.partial(recurrent.sized, kind="GRU"),
    "mobilenet": mobilenet.sized,
    "resnet18": resnet18.sized,
    "unet": unet.sized,
}


def find(name: str) -> Workload:
    """Return the workload of that name; `FAMILY:PARAMETER=VALUE,...` is one of another size.

    >>> find("mlp:batch=128,width=1024").shape
    (128, 784)
    >>> find("mlp:height=3")
    Traceback (most recent call last):
    ValueError: mlp:height=3: the parameters of mlp are batch, width, depth, optimizer
    """
    if name in WORKLOADS:
        return WORKLOADS[name]
    family, _, text = name.partition(":")
    if family not in FAMILIES:
        raise ValueError(f"{name}: no such workload; there are {', '.join(WORKLOADS)}, and {', '.join(FAMILIES)} with "
                         "parameters, such as mlp:batch=128,width=1024")  # fmt: skip
    known = [p for p in inspect.signature(FAMILIES[family]).parameters if p not in ("name", "kind")]
    given = dict(part.partition("=")[::2] for part in text.split(",") if part)
    if set(given) - set(known):
        raise ValueError(f"{name}: the parameters of {family} are {', '.join(known)}")
    if given.get("optimizer", "adam") not in ("adam", "sgd"):
        raise ValueError(f"{name}: the optimizers are adam and sgd")
    sizes = {key: value if key == "optimizer" else _number(name, key, value) for key, value in given.items()}
    return FAMILIES[family](name, **sizes)  # type: ignore[arg-type]


def _number(name: str, key: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name}: {key} must be a whole number of 1 or more")
    return int(text)
