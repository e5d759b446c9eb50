"""Embeddings whose rows occur more than once in a batch: Keras on TensorFlow updates them in another way.

See docs/decisions/repeated-rows.md.
"""

from __future__ import annotations

from typing import Any

import keras

from onward.frontends.keras import versions


def repeated_rows(model: Any, origin: str) -> list[str]:
    """Return a warning if Keras on TensorFlow would update the rows of an embedding in another way than this file.

    `origin` is the backend on which the model lived, or "" where a file does not say.
    """
    if origin not in ("", "tensorflow") or _is_linear(model.optimizer):
        return []
    layers = [
        layer.name
        for layer in versions.layers(model)
        if isinstance(layer, keras.layers.Embedding) and layer.trainable_variables
    ]
    if not layers:
        return []
    who = "Keras on TensorFlow" if origin else "Keras on TensorFlow, if this model was trained with it,"
    names = ", ".join(f"`{n}`" for n in layers)
    return [
        f"layer {names}: {who} updates a row of an embedding that occurs several times in a batch once for each "
        f"occurrence (the optimizer `{model.optimizer.name}` squares each part of its gradient); this file, as Keras "
        "on JAX and on torch, uses the sum of the gradients. Losses may differ from TensorFlow's after a step or two "
        "(docs/keras.md)"
    ]


def _is_linear(optimizer: Any) -> bool:
    """Return whether an update by parts equals the update by their sum: plain SGD, without clipping."""
    if type(optimizer) is not keras.optimizers.SGD:
        return False
    return optimizer.clipnorm is None and optimizer.clipvalue is None and optimizer.global_clipnorm is None
