"""`onward convert saved_model/ -o OUT`: a SavedModel of TensorFlow becomes a training model."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def convert_saved_model(
    folder: Path, output: Path, loss: str, optimizer: str, inputs: Any, targets: Any, dynamic: bool
) -> str:
    """Write the training model of a SavedModel that is not Keras, and return what to say about it."""
    from onward.errors import counted
    from onward.frontends.tensorflow import from_tensorflow
    from onward.model import serde

    model = from_tensorflow(
        folder, loss=loss, optimizer=optimizer, example_inputs=inputs, example_targets=targets, dynamic=dynamic
    )
    serde.save(model, output)
    (entry,) = model.entries
    return (
        f"wrote `{output}`: {counted(len(model.parameters), 'parameter')}, "
        f"{counted(len(entry.update_binding) - len(model.parameters), 'state')} of optimizer and statistics; inputs "
        f"{', '.join(model.inputs)}; targets {', '.join(model.targets) or 'none'}; loss {loss} (--loss), optimizer "
        f"{optimizer} (--optimizer)"
    )
