"""Convert a model to a message without its large tensors and back, for work on the graphs alone.

The message refers to a stash of tensors. `from_light` puts the same tensors back, so that no data is copied.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onward.errors import ModelError
from onward.model import serde
from onward.model.training_model import TrainingModel
from onward.storage.external_data import Folder
from onward.storage.limits import check_structure
from onward.storage.reader import Reader
from onward.storage.writer import STASH, put_light

Stash = list[ir.TensorProtocol]


def to_light(model: TrainingModel) -> tuple[onnx.ModelProto, Stash]:
    """Return the message of `model`, in which large tensors are references to the stash, and the stash."""
    stash: Stash = []
    return serde._to_proto(model, put_light(stash)), stash


def from_light(proto: onnx.ModelProto, stash: Stash) -> TrainingModel:
    """Return the model of a message that `to_light` made; the message may have been changed.

    Raises:
        ModelError: the changed message exceeds a limit or its meaning is not defined.
    """
    problems = check_structure(proto)
    if problems:
        raise ModelError(problems)
    return serde._build(proto, _StashReader(stash))


class _StashReader(Reader):
    def __init__(self, stash: Stash) -> None:
        super().__init__(Folder(None), owned=True)
        self._stash = stash

    def tensor(self, proto: onnx.TensorProto, where: str) -> ir.TensorProtocol:
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            entries = {e.key: e.value for e in proto.external_data}
            if entries["location"] == STASH:
                return self._stash[int(entries["offset"])]
        return super().tensor(proto, where)
