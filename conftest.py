"""Which sources are searched for examples: those of a framework only where it is installed. Keras runs on JAX."""

from __future__ import annotations

import importlib.util
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # before the first import of Keras, which fixes it for the process
_HOMES = {
    "jax": ["backends/jax", "frontends/jax", "frontends/jaxpr", "frontends/keras"],
    "keras": ["backends/keras", "frontends/keras"],
    "tensorflow": ["backends/tensorflow", "frontends/tensorflow"],
    "tf2onnx": ["frontends/tensorflow"],
}

collect_ignore_glob = [
    f"src/onward/{home}/*" for name, homes in _HOMES.items() if not importlib.util.find_spec(name) for home in homes
]
