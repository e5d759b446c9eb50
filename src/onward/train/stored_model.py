"""The model or program that a run trains, in the form that a checkpoint directory keeps.

A training model is stored as a standard ONNX file. A `Program` is stored as one safetensors file: every graph as bytes,
the state and the settings as tensors, the rest as JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from onward.arguments import a_or_an
from onward.author.loss_scale import LossScale, loss_scale_of, scale_losses
from onward.autodiff.profile import DEFAULT
from onward.compiler.package import pack_program, unpack_program
from onward.compiler.program import Program
from onward.errors import A101, ArgumentError, Diagnostic
from onward.model.class_names import PREPARATION as PREPARATION
from onward.passes.recompute.settings import Recompute, Store
from onward.storage.checkpoints import CheckpointReader, is_run
from onward.train.data.embed import embed_preparation
from onward.train.data.preparation import Preparation

if TYPE_CHECKING:
    from onward.compiler.tuning import Tuner
    from onward.model.training_model import TrainingModel

MODEL_FILE = "model.onnx"
PROGRAM_FILE = "program.safetensors"


@dataclasses.dataclass
class StoredModel:
    """A training model and its program, or a program alone. Made by `StoredModel.of`."""

    model: TrainingModel | None
    _program: Program | None = None
    _content: bytes | None = None
    split: bool = False
    """Whether a program that is compiled here has gradients and updates as graphs of their own."""
    profile: str = DEFAULT
    """The profile of a program that is compiled here."""
    recompute: Recompute | None = None
    store: Store | None = None
    """What the backward passes of a program that is compiled here compute again."""
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The forms of gradients in a program that is compiled here, where they are not the usual ones."""
    tuner: Tuner | None = None
    """What chooses the forms that `choices` does not name; None: the usual ones."""

    @classmethod
    def of(cls, source: Any) -> StoredModel:
        """Return the stored form of a model, a Program, a ModelProto, or the file of a model or of a saved Program.

        A directory of checkpoints is the model of the run with the state of its newest complete checkpoint.
        """
        if isinstance(source, Program):
            return cls(None, source)
        from onward.model.serde import from_proto, load, to_proto
        from onward.model.training_model import TrainingModel

        if isinstance(source, (str, Path)):
            path = Path(source)
            if path.is_dir() and (program := _trained_program(path)) is not None:
                return cls(None, program)
            if path.is_dir() and not is_run(path):
                return cls(None, Program.load(path))
            if path.name == PROGRAM_FILE:
                return cls.from_bytes(path.name, path.read_bytes())
            model = load(path)
        elif isinstance(source, (bytes, onnx.ModelProto)):
            model = load(source)
        elif isinstance(source, TrainingModel):
            # A float attribute has 64 bits in memory and 32 in the file. What is trained is what the file says, so
            # that a run resumed from the stored file has the same graph.
            model = from_proto(to_proto(source))
        else:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"{a_or_an(source)} cannot be trained",
                    needed="a training model, a Program, a ModelProto or the path of an ONNX file",
                )
            )
        return cls(model)

    @classmethod
    def from_bytes(cls, file_name: str, content: bytes) -> StoredModel:
        """Return the model or program whose file is called `file_name`."""
        if file_name == PROGRAM_FILE:
            return cls(None, unpack_program(content), content)
        from onward.model.serde import from_proto

        proto = onnx.ModelProto()
        proto.ParseFromString(content)
        model = from_proto(proto)
        return cls(model, None, content)

    @functools.cached_property
    def program(self) -> Program:
        """The program that runs: the given one, or the model compiled."""
        if self._program is not None:
            return self._program
        from onward.compiler.compile import compile_model

        assert self.model is not None
        again, narrow = self.recompute, self.store  # their sizes are the same
        program: Program = compile_model(
            self.model,
            split=self.split,
            profile=self.profile,
            choices=self.choices,
            tune=self.tuner or False,
            **{**({} if again is None else again.arguments()), **({} if narrow is None else narrow.arguments())},
        )
        return program

    def scale_loss(self, scale: LossScale | None) -> None:
        """Let the training entries scale their losses, in the model that is stored; None changes nothing.

        Raises:
            ArgumentError: they do so in another way, or what is stored is a program, whose loss is compiled.
        """
        if scale is None:
            return
        if self.model is None:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "a Program cannot scale its loss otherwise: it is compiled",
                    place="loss_scale=",
                    hint="use onward.compile(model, loss_scale=…), or make the Trainer from the model",
                )
            )
        if any(loss_scale_of(entry) != scale for entry in self.model.entries):
            self.model, self._content = scale_losses(self.model, scale), None

    @property
    def file_name(self) -> str:
        """Its file name in a checkpoint directory."""
        return PROGRAM_FILE if self.model is None else MODEL_FILE

    @property
    def content(self) -> bytes:
        """The bytes to store."""
        if self._content is None:
            if self.model is None:
                self._content = pack_program(self.program)
            else:
                from onward.model.serde import to_proto

                self._content = to_proto(self.model).SerializeToString(deterministic=True)
        return self._content

    @functools.cached_property
    def graph_sha256(self) -> str:
        """The digest of the step graphs. It does not depend on the state."""
        return _graph_digest(self.program)

    @functools.cached_property
    def sha256(self) -> str:
        """The digest of `content`."""
        return hashlib.sha256(self.content).hexdigest()


def _trained_program(directory: Path) -> Program | None:
    """Return the program that a run trains, with the state of its newest checkpoint; None where it trains a model."""
    if not is_run(directory) or not (directory / PROGRAM_FILE).exists():
        return None
    reader = CheckpointReader(directory)
    checkpoint = reader.load()
    _, content = reader.model_content(checkpoint)
    program = unpack_program(content)
    return dataclasses.replace(program, state={**program.state, **checkpoint.state})


def _graph_digest(program: Program) -> str:
    digest = hashlib.sha256()
    for name, entry in program.entries.items():
        digest.update(name.encode("utf-8"))
        digest.update(entry.step.proto().SerializeToString(deterministic=True))
    return digest.hexdigest()


def stored_preparation(source: Program | TrainingModel) -> Preparation | None:
    """Return how the training data of the model was prepared; None when the model does not say."""
    model = source.infer_graph.model if isinstance(source, Program) else source.ir
    text = model.metadata_props.get(PREPARATION)
    if text is None:
        return None
    try:
        return Preparation.from_dict(json.loads(text))
    except (ValueError, TypeError, KeyError):
        return None  # written by hand or by another version


def store_preparation(proto: onnx.ModelProto, preparation: Preparation) -> None:
    """Write into the metadata of `proto` how its data must be prepared; write nothing when it needs no preparation."""
    kept = [p for p in proto.metadata_props if p.key != PREPARATION]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    if text := preparation_text(preparation):
        proto.metadata_props.add(key=PREPARATION, value=text)


def preparation_text(preparation: Preparation) -> str:
    """Return what the metadata of a model says about its data; nothing when the data needs no preparation."""
    portable = dataclasses.replace(preparation, columns={})  # columns are names of one file
    return "" if portable == Preparation() else json.dumps(portable.as_dict())


def with_state(model: TrainingModel, state: Mapping[str, np.ndarray], preparation: Preparation) -> TrainingModel:
    """Return a copy of the training model that holds `state`; names that the model does not have are ignored."""
    import onnx_ir as ir

    from onward.model.roles import keep_random_step
    from onward.model.serde import from_proto, to_proto

    proto = to_proto(model)
    store_preparation(proto, preparation)
    copy = from_proto(proto)
    for name, value in copy.initializers().items():
        if name in state:
            value.const_value = ir.tensor(np.asarray(state[name]), name=name)
    keep_random_step(copy, state)
    return copy


def averages(program: Program, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the moving averages of the parameters under the names of the parameters.

    Raises:
        ArgumentError: the model keeps none.
    """
    found = {p: state[average] for p, average in program.averages.items()}
    if not found:
        raise ArgumentError(
            Diagnostic(
                A101,
                "the model keeps no moving average of its weights",
                hint="make it with one: onward.Adam(1e-3, ema=0.999)",
            )
        )
    return found


def inference_model(
    stored: StoredModel,
    state: Mapping[str, np.ndarray],
    preparation: Preparation,
    *,
    quantize: bool = False,
    embed: bool = False,
) -> onnx.ModelProto:
    """Return the inference model with the weights of `state`; with `quantize`, stored as integers as they were.

    With `embed`, the preparation is a part of the model.

    Raises:
        ArgumentError: `quantize`, and the model has no weights that were integers, or was made from a Program.
    """
    if stored.model is None:
        if quantize:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "a Program does not say which weights were stored as integers",
                    place="quantize=",
                    hint="make the Trainer from the model or its file",
                )
            )
        baked = bake(stored.program.infer, state)
        return embed_preparation(baked, preparation)[0] if embed else baked
    from onward.model.inference import converted_inference, to_inference
    from onward.model.serde import to_proto

    known = stored.model.initializers()
    state = {n: a for n, a in state.items() if n in known}
    if embed:
        proto = to_proto(converted_inference(stored.model, state, quantize=quantize))
        proto, preparation = embed_preparation(proto, preparation)
    else:
        proto = to_inference(stored.model, state, quantize=quantize)
    store_preparation(proto, preparation)
    return proto


def bake(infer: onnx.ModelProto, state: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Return the inference graph with its state inputs as initializers."""
    model = onnx.ModelProto()
    model.CopyFrom(infer)
    baked = [i.name for i in infer.graph.input if i.name in state]
    kept = [i for i in infer.graph.input if i.name not in state]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    known = {i.name for i in model.graph.initializer}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(state[n]), n) for n in baked if n not in known
    )
    return model
