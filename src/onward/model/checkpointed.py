"""A directory of checkpoints as a model: the model of the run with the state of its newest complete checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import onnx

from onward.errors import CheckpointError, Diagnostic, ModelError
from onward.model.class_names import PREPARATION
from onward.model.roles import RANDOM_STEP, RANDOM_STEP_ENTRY
from onward.storage.checkpoints import K102, Checkpoint, CheckpointReader

M101 = "M101"

_TYPED_DATA = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def read_run(directory: str | os.PathLike[str]) -> bytes:
    """Return the bytes of the training model that holds the state of the newest complete checkpoint.

    Raises:
        ModelError: there is no usable checkpoint, or the run trains a compiled program, which is not a model.
    """
    reader = CheckpointReader(directory)
    try:
        checkpoint = reader.load()
        file, content = reader.model_content(checkpoint)
    except CheckpointError as error:
        raise ModelError(error.diagnostics) from error
    if not file.endswith(".onnx"):
        raise ModelError(
            Diagnostic(
                M101,
                f"`{reader.path}` holds the checkpoints of a compiled program, which is not a model",
                found=f"`{file}`",
                needed="the checkpoints of a run that was started from a training model",
                hint="`onward evaluate` reads it; resume the run and save Trainer.to_inference()",
            )
        )
    proto = onnx.ModelProto()
    proto.ParseFromString(content)
    problems = list(_put_state(proto, checkpoint))
    if problems:
        raise ModelError(problems)
    _put_metadata(proto, checkpoint)
    return bytes(proto.SerializeToString(deterministic=True))


def _put_state(proto: onnx.ModelProto, checkpoint: Checkpoint) -> Iterator[Diagnostic]:
    """Write the state into the initializers of its names; yield what does not fit."""
    state = checkpoint.state
    graphs = [proto.graph, *(info.algorithm for info in proto.training_info)]
    for tensor in (t for graph in graphs for t in graph.initializer if t.name in state):
        array = state[tensor.name]
        stored = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        if tuple(tensor.dims) != array.shape or stored.name != array.dtype.name:
            yield Diagnostic(
                K102,
                f"`{tensor.name}` of checkpoint `{checkpoint.path.name}` does not fit the model",
                place=str(checkpoint.path.parent),
                found=f"{array.dtype} {list(array.shape)}",
                needed=f"{stored} {list(tensor.dims)}",
            )
            continue
        for field in _TYPED_DATA:
            tensor.ClearField(field)
        tensor.raw_data = array.tobytes()  # a checkpoint is little-endian, as ONNX is


def _put_metadata(proto: onnx.ModelProto, checkpoint: Checkpoint) -> None:
    """Write how the data of the run was prepared and how often it drew, as a model that the trainer saves says it."""
    data = checkpoint.data
    if "metadata" in data:
        entries = {str(key): str(value) for key, value in data["metadata"].items()}
    else:  # written before checkpoints held the entry itself
        entries = {PREPARATION: json.dumps({**data["preparation"], "columns": {}})} if "preparation" in data else {}
    if RANDOM_STEP in checkpoint.state:
        entries[RANDOM_STEP_ENTRY] = str(int(checkpoint.state[RANDOM_STEP]))
    kept = [p for p in proto.metadata_props if p.key not in entries]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    for key, value in entries.items():
        if value:
            proto.metadata_props.add(key=key, value=value)
