"""`OnnxModel`: an ONNX training model as a real `keras.Model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from onward.backends.keras.engine import check_types, engine
from onward.backends.keras.layer import OnnxLayer
from onward.backends.keras.optimizer import OnnxOptimizer
from onward.backends.keras.parts import Parts, build_parts
from onward.backends.keras.stored import pack, unpack, with_values
from onward.compiler.compile import named_entries
from onward.compiler.program import TensorSpec
from onward.errors import A101, ArgumentError, Diagnostic
from onward.model.training_model import TrainingModel
from onward.registration import PACKAGE

WEIGHTS = "sample_weight"
"""The target that takes `sample_weight` of `fit`, if the file has it."""


@keras.saving.register_keras_serializable(PACKAGE)
class OnnxModel(keras.Model):  # type: ignore[misc]  # Keras is not typed here
    """An ONNX model. Its loss is that of the file, unless it is compiled with another one."""

    def __init__(self, source: TrainingModel, entry: str = "", seed: int = 0, name: str | None = None) -> None:
        """Create the model of a normalised training model; `entry` names its training entry."""
        parts = build_parts(source, named_entries(source)[entry] if entry else None, seed)
        arrays = {**parts.trainable, **parts.kept}
        check_types({n: value.dtype for n, value in arrays.items()})
        check_types({s.name: np.dtype(s.dtype) for s in (*parts.inputs, *parts.outputs) if s.dtype == "float64"})
        layer = OnnxLayer(parts)
        inputs = [_input(spec) for spec in parts.inputs]
        one = len(inputs) == 1
        super().__init__(inputs=inputs[0] if one else inputs, outputs=layer(inputs[0] if one else inputs), name=name)
        self._onnx = _Source(source, entry, seed, parts, layer)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Return the loss of the file, or that with which the model was compiled."""
        known = self._onnx
        if self.loss is not None or known.parts.training is None:
            known.layer.forget()
            return super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
        feeds = _by_name(x, known.parts.inputs, "inputs")
        targets = known.targets(y, sample_weight)
        if training:
            return known.layer.training_loss(feeds, targets, y_pred)
        return known.layer.evaluation_loss(feeds, targets)

    @property
    def onnx_variables(self) -> dict[str, Any]:
        """The variables of the model by their ONNX names."""
        return dict(self._onnx.layer.onnx_variables)

    @property
    def trains_as_in_the_file(self) -> bool:
        """Whether loss and optimizer are those of the file."""
        return isinstance(self.optimizer, OnnxOptimizer) and self.loss is None

    def training_model(self) -> TrainingModel:
        """Return the training model of the file with the current values of all variables."""
        values = {n: _numbers(v) for n, v in self.onnx_variables.items()}
        optimizer = self.optimizer
        if isinstance(optimizer, OnnxOptimizer):
            values.update({n: optimizer.numbers(n) for n in optimizer.state if not n.startswith("random/")})
        return with_values(self._onnx.model, values)

    def get_config(self) -> dict[str, Any]:
        """Return the file as text; the values of variables are not in it."""
        known = self._onnx
        held = set(self.onnx_variables)
        if known.parts.update is not None and isinstance(self.optimizer, OnnxOptimizer):
            held.update(known.parts.update.held)
        packed = pack(known.model, held)
        return {"name": self.name, "onnx": packed, "entry": known.entry, "seed": known.seed}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile the model as it was saved; whether to use XLA is for the backend that loads it to decide."""
        super().compile_from_config({**config, "jit_compile": "auto"} if config else config)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> OnnxModel:
        """Return the model of a config; Keras loads the values of its variables."""
        model = unpack(config.get("onnx", {}))
        return cls(model, config.get("entry", ""), config.get("seed", 0), config.get("name"))


class _Source:
    """What a model knows of its file, in an object of its own: Keras would wrap and track plain lists and dicts."""

    def __init__(self, model: TrainingModel, entry: str, seed: int, parts: Parts, layer: OnnxLayer) -> None:
        self.model, self.entry, self.seed, self.parts, self.layer = model, entry, seed, parts, layer

    def targets(self, y: Any, sample_weight: Any) -> dict[str, Any]:
        """Return the targets by name."""
        weighted = any(s.name == WEIGHTS for s in self.parts.targets)
        if sample_weight is not None and not weighted:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "the loss of the file takes no weights of samples",
                    place="sample_weight=",
                    needed=f"targets: {', '.join(s.name for s in self.parts.targets)}",
                    hint="compile the model with a loss of Keras, or make the file with a target `sample_weight`",
                )
            )
        apart = sample_weight is not None
        specs = [s for s in self.parts.targets if not (apart and s.name == WEIGHTS)]
        found = _by_name(y, specs, "targets")
        if apart:
            (spec,) = (s for s in self.parts.targets if s.name == WEIGHTS)
            found[WEIGHTS] = _fitting(spec, sample_weight)
        return found


def _input(spec: TensorSpec) -> Any:
    shape = tuple(d if isinstance(d, int) else None for d in spec.shape)
    return keras.Input(batch_shape=shape, dtype=engine().held_type(spec.dtype), name=spec.name.replace("/", "_"))


def _by_name(given: Any, specs: Sequence[TensorSpec], what: str) -> dict[str, Any]:
    """Return arrays by name; they are given by name, in order, or alone."""
    names = [s.name for s in specs]
    if isinstance(given, Mapping):
        found = {n: given[k] for n in names for k in (n, n.replace("/", "_")) if k in given}
    else:
        values = list(given) if isinstance(given, list | tuple) else [] if given is None else [given]
        found = dict(zip(names, values, strict=False)) if len(values) == len(names) else {}
    if len(found) != len(names):
        told = ", ".join(given) if isinstance(given, Mapping) else "none" if given is None else "another number"
        raise ArgumentError(
            Diagnostic(A101, f"the {what} do not fit the model", found=told, needed=", ".join(names) or "none")
        )
    return {s.name: _fitting(s, found[s.name]) for s in specs}


def _fitting(spec: TensorSpec, value: Any) -> Any:
    dtype = keras.backend.standardize_dtype(value.dtype) if hasattr(value, "dtype") else np.asarray(value).dtype.name
    if "float" in dtype and "int" in spec.dtype:
        raise ArgumentError(
            Diagnostic(A101, f"`{spec.name}` has the wrong type", found=dtype, needed=f"whole numbers ({spec.dtype})")
        )
    if not spec.shape or not hasattr(value, "shape") or len(value.shape) == len(spec.shape):
        return value
    if len(value.shape) == len(spec.shape) + 1 and value.shape[-1] == 1:
        return keras.ops.squeeze(value, -1)  # as Keras does it with targets of its own losses
    if len(value.shape) == len(spec.shape) - 1 and spec.shape[-1] == 1:
        return keras.ops.expand_dims(value, -1)
    raise ArgumentError(
        Diagnostic(
            A101,
            f"`{spec.name}` has another number of axes",
            found=str(tuple(value.shape)),
            needed=f"[{', '.join('?' if d is None else str(d) for d in spec.shape)}]",
        )
    )


def _numbers(variable: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(variable.value))
