"""A model as a message without its large tensors, for work on the graphs alone.

The stand-ins refer to a stash; `from_light` puts the very tensors back, so that nothing is copied, however large.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onward.errors import ModelError
from onward.model import serde
from onward.model.training_model import TrainingModel
from onward.storage import writer
from onward.storage.external_data import Folder
from onward.storage.limits import check_structure
from onward.storage.reader import Reader

_LOCATION = "onward.stash"

Stash = list[ir.TensorProtocol]


def to_light(model: TrainingModel, threshold: int = 1024) -> tuple[onnx.ModelProto, Stash]:
    """Return the model's message, in which tensors of more than `threshold` elements are references to the stash."""
    stash: Stash = []

    def put(proto: onnx.TensorProto, tensor: ir.TensorProtocol) -> None:
        if tensor.dtype == ir.DataType.STRING or tensor.size <= threshold:
            writer.put_inline(proto, tensor)
            return
        writer.put_header(proto, tensor)
        writer.external(proto, _LOCATION, len(stash), None)
        stash.append(tensor)

    return serde._to_proto(model, put), stash


def from_light(proto: onnx.ModelProto, stash: Stash) -> TrainingModel:
    """Return the model of a message that `to_light` made, changed or not.

    Raises:
        ModelError: the changed message breaks a limit or has no one meaning.
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
            if entries["location"] == _LOCATION:
                return self._stash[int(entries["offset"])]
        return super().tensor(proto, where)
