"""`Trainer`: train, evaluate, save and resume any training model on any backend."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onward.arguments import check_path, whole
from onward.augment.text import Augment
from onward.author.loss_scale import scaled_like
from onward.backends.base import open_session
from onward.compiler.program import Program
from onward.errors import A101, ArgumentError, Diagnostic
from onward.model.class_names import PREPARATION
from onward.model.training_model import TrainingModel
from onward.train import evaluation
from onward.train.arguments import FitSettings, Schedule, check_entry, check_preparation
from onward.train.asked import ask
from onward.train.callbacks import Callback
from onward.train.checkpoint import (
    EXTRA,
    CheckpointDirectory,
    CheckpointWarning,
    check_backend,
    json_options,
)
from onward.train.data import Data
from onward.train.data.augmenting import bind
from onward.train.data.matching import fixed_batch
from onward.train.data.preparation import Preparation
from onward.train.data.source import DataSource
from onward.train.evaluation_data import (
    match_validation,
    open_evaluation_data,
    open_prediction_data,
    open_search_data,
)
from onward.train.history import History
from onward.train.loop import Run, Steps, Validation
from onward.train.metrics import Metric
from onward.train.numeric import bad_names
from onward.train.predictions import Predictions, Wishes, make_predictions
from onward.train.profile import Profile
from onward.train.profiling import take_profile
from onward.train.progress import show_preparation
from onward.train.rate_finder import RateSearch, find_learning_rate
from onward.train.running import RunningModel
from onward.train.stored_model import (
    StoredModel,
    averages,
    inference_model,
    preparation_text,
    with_state,
)
from onward.train.training_data import open_training_data
from onward.train.weights import weighted_program

Columns = str | Sequence[str] | Mapping[str, str | Sequence[str]] | None


class Trainer(RunningModel):
    """Trains a model.

    `model` is a training model, a `Program`, a ModelProto, or the path of an ONNX file with training information. The
    directory of a run's checkpoints is a model too: a new run then starts from that state (`resume` continues the run).
    `backend` names what runs it; further arguments go to the backend (`threads=2`, `providers=[…]`). `profile` is that
    of `onward.compile`: by default what the backend needs; `recompute`, `store` and `sizes` are as there. `tune` too:
    with True, or the number of samples in a batch, the forms of gradients are chosen by measurement; a resumed run
    takes the same ones (docs/tuning.md). `loss_scale` is as in `onward.make_trainable`: the model that is trained and
    saved then has it.

    A program that was read from a directory carries a self-test. It runs first, on every backend but ONNX Runtime on
    the CPU without our kernels in C, which made it. With `self_test=True`, a model gets one too; with False none runs.

    Raises:
        BackendError: the self-test names the values that the backend computes wrong.
    """

    # ------------------------------------------------------------------ fit

    def fit(
        self,
        x: Data,
        y: Any = None,
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        validation_data: Data | float | None = None,
        metrics: Sequence[str | Metric] = (),
        callbacks: Iterable[Callback] = (),
        shuffle: bool | None = None,
        seed: int | None = None,
        learning_rate: float | Schedule | None = None,
        entry: str | None = None,
        drop_last: bool | None = None,
        steps_per_epoch: int | None = None,
        preparation: Preparation | None = None,
        target: Columns = None,
        features: Columns = None,
        class_weight: str | Mapping[Any, float] | None = None,
        sample_weight: str | np.ndarray | Sequence[float] | None = None,
        sampler: str | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: int | None = None,
        keep: int = 3,
        keep_best: bool | str | None = None,
        on_nan: str | None = None,
        prefetch: int | None = None,
        augment: Augment = None,
        workers: int | None = None,
        progress: str | bool = "auto",
    ) -> History:
        """Train on the data and return the history of the epochs.

        Data: `x` and `y` are arrays (or tuples of arrays) in the order of `input_names`; or `x` is a dict of arrays, a
        table of pandas, polars or pyarrow, a dataset of torch or Hugging Face, a list of samples, a path, a
        `DataSource`, or an iterable of batches. `validation_data` is the same, as (x, y), or a number: that share of
        the samples is held back.

        `target` and `features` name the columns of a table: one, a list, or a dict by target or input of the model.
        `class_weight` ("balanced", or a dict) and `sample_weight` (a column, or an array) multiply the loss of a
        sample; the mean still divides by the number of samples. `sampler="balanced"` draws each class equally often.

        After `Trainer.resume` the run goes on where it stopped, with its own settings. Pass the same data, metrics and
        callbacks. `epochs` is then the total number and may be raised; `on_nan` may change.

        `augment` changes the samples at random, each time anew: names ("flip", "crop=0.8"), objects of
        `onward.augment`, functions of (sample, rng). Validation data stays as it is.

        A thread prepares `prefetch` batches ahead. The default is none for small batches from memory, else two.
        `workers` processes read and augment; the default is some for many image files on a machine with many cores.
        Their number does not change the results.

        Checkpoints are written to the directory `checkpoint` after each epoch, or every `checkpoint_every` steps. The
        last `keep` of them stay. With `keep_best`, the checkpoint of the best epoch stays too, in `best` inside the
        directory: by `val_loss`, else `loss`, or by the column that it names. SIGTERM saves one and exits with code 0.

        Raises:
            DataError: the data does not fit the model; every problem is listed, before the first step.
            NumericError: NaN or Inf appeared (`on_nan="stop"`, the default), or too often in a row (`"skip"`).
            CheckpointError: a checkpoint could not be written; the earlier ones are untouched.
        """
        settings = FitSettings.of(
            self.program,
            self._resumed,
            epochs=epochs,
            batch_size=batch_size,
            validation_data=validation_data,
            metrics=metrics,
            callbacks=callbacks,
            shuffle=shuffle,
            seed=seed,
            learning_rate=learning_rate,
            entry=entry,
            drop_last=drop_last,
            steps_per_epoch=steps_per_epoch,
            preparation=preparation,
            target=target,
            features=features,
            class_weight=class_weight,
            sample_weight=sample_weight,
            sampler=sampler,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            keep=keep,
            keep_best=keep_best,
            on_nan=on_nan,
            prefetch=prefetch,
            augment=augment,
            workers=workers,
            progress=progress,
        )
        run = self._prepare(x, y, settings)
        self._run, self._resumed = run, None
        try:
            return run.fit()
        finally:
            self._run = Steps(run.session, run.guard, run.position, run.history)  # the run would keep the data alive
            self._run_program(self.program)

    def _prepare(self, x: Data, y: Any, settings: FitSettings) -> Run:
        """Return the run for these settings, with its data matched to the model."""
        program = self.program.for_entry(settings.entry)
        weighted = None
        if settings.weighted:
            weighted = weighted_program(self.program, self._stored.model, settings.entry, self._stored.split)
        base = check_preparation(settings.preparation, self.preparation)
        data = open_training_data(x, y, settings, program, self.program, base, self._sizes, weighted)
        if settings.progress not in ("none", False) and self.is_writer and data.preparation.features != base.features:
            show_preparation(data.preparation)
        if settings.checkpoint is not None and data.source.caveat:
            warnings.warn(f"a resumed run will differ: {data.source.caveat}", CheckpointWarning, stacklevel=3)
        metrics = ask(program, settings.metrics, for_steps=data.held is None)
        validation = None if data.held is None else self._validation(data.held, data.preparation, settings, program)
        self.preparation = data.preparation
        self._run_program(weighted or self.program)
        return Run(
            self,
            settings,
            data.source,
            data.matching,
            augmenting=bind(settings.augment, data.source, data.matching),
            before=self._run,
            resumed=self._resumed,
            validation=validation,
            metrics=metrics,
        )

    def _run_program(self, program: Program) -> None:
        """Let the session run `program`, which has the same state: its steps may take weights, for one `fit`."""
        if self.session.program is not program:
            state = self.session.get_state()
            self.session = open_session(program, self._backend, **self._options)
            self.session.set_state(state)
            self._run = Steps(self.session, None, self._run.position, self._run.history)

    def _validation(
        self, source: DataSource, preparation: Preparation, settings: FitSettings, program: Program
    ) -> Validation:
        matching = match_validation(source, program, preparation, self._sizes)
        return Validation(source, matching, fixed_batch(self._specs) or max(settings.batch_size, 64))

    def find_learning_rate(
        self,
        x: Data,
        y: Any = None,
        *,
        lowest: float = 1e-7,
        highest: float = 10.0,
        steps: int = 100,
        batch_size: int = 32,
        seed: int = 0,
        entry: str | None = None,
        preparation: Preparation | None = None,
    ) -> RateSearch:
        """Return how the loss reacts to growing learning rates, with a suggestion; the state stays as it is.

        The search ends early where the loss explodes. Give the suggestion to `fit(learning_rate=…)`.
        """
        check_entry(entry, self.program)
        entry = entry or self.phase
        program = self.program.for_entry(entry)
        preparation = check_preparation(preparation, self.preparation)
        source, matching = open_search_data(x, y, program, preparation, self._sizes)
        size = fixed_batch(self._specs) or whole("batch_size", batch_size, 1)
        return find_learning_rate(
            self, program, source, matching,
            lowest=lowest, highest=highest, steps=steps, batch_size=size, seed=whole("seed", seed, 0), entry=entry,
        )  # fmt: skip

    def profile(
        self,
        x: Data | None = None,
        y: Any = None,
        *,
        batch_size: int = 32,
        steps: int = 20,
        entry: str | None = None,
        preparation: Preparation | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> Profile:
        """Return where the time of a training step goes; the state stays as it is. See docs/profile.md.

        `x` and `y` are data as for `fit`; without them, a batch of made-up numbers is measured, with free sizes of the
        inputs as in `sizes` (by name; small ones by default). `entry` names the training entry; the first by default.

        Raises:
            ArgumentError: the model has no training entry, or no batch can be made up for it.
        """
        check_entry(entry, self.program)
        entry = entry or self.phase or self.first_entry
        if entry is None:
            raise ArgumentError(
                Diagnostic(A101, "the model has no training entry", hint="use onward.make_trainable(...) first")
            )
        data = None
        if x is not None:
            preparation = check_preparation(preparation, self.preparation)
            data = open_search_data(x, y, self.program.for_entry(entry), preparation, self._sizes)
        return take_profile(
            self,
            data,
            title=str(self.program.metadata.get("name") or "model"),
            backend=self._backend,
            batch_size=fixed_batch(self._specs) or whole("batch_size", batch_size, 1),
            steps=whole("steps", steps, 1),
            entry=entry,
            sizes=sizes or {},
        )

    # ------------------------------------------------------------------ evaluate, predict

    def evaluate(
        self,
        x: Data,
        y: Any = None,
        *,
        batch_size: int | None = None,
        metrics: Sequence[str | Metric] = (),
        preparation: Preparation | None = None,
        entry: str | None = None,
        target: Columns = None,
        features: Columns = None,
    ) -> dict[str, Any]:
        """Return the loss and the metrics over the data, in inference mode; the state stays as it is.

        `entry` names the training entry whose loss it is, where there are several; the first by default.
        For an inference model, which has no targets of its own, the data's column beside the inputs is the target.
        """
        preparation = check_preparation(preparation, self.preparation)
        batch_size = None if batch_size is None else whole("batch_size", batch_size, 1)
        check_entry(entry, self.program)
        program = self.program.for_entry(entry)
        source, matching, asked = open_evaluation_data(
            x, y, program, preparation, metrics, target=target, features=features, sizes=self._sizes
        )
        size = fixed_batch(self._specs) or batch_size or 256
        return evaluation.run_evaluation(self.session, source, matching, size, asked, entry=entry)

    def predict(
        self,
        x: Data,
        *,
        batch_size: int | None = None,
        preparation: Preparation | None = None,
        features: Columns = None,
    ) -> np.ndarray | dict[str, np.ndarray]:
        """Return the output of the inference graph for every sample; a dict by name when there are several."""
        preparation = check_preparation(preparation, self.preparation)
        batch_size = None if batch_size is None else whole("batch_size", batch_size, 1)
        source, matching = open_prediction_data(x, self.program, preparation, features)
        size = fixed_batch(self.program.inputs) or batch_size or 256
        outputs = evaluation.run_prediction(self.session, source, matching, size)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def predictions(
        self,
        x: Data,
        *,
        top: int = 0,
        probabilities: bool = False,
        kind: str | None = None,
        outputs: Sequence[str] | None = None,
        classes: Sequence[str] = (),
        keep: Sequence[str] = (),
        batch_size: int | None = None,
        preparation: Preparation | None = None,
    ) -> Predictions:
        """Return what the model says about each sample, with the names of classes: see docs/predict.md.

        `x` is data as for `predict`; a path may also be an image, or a folder of images at any depth. `top` adds the
        best few classes and `probabilities` all of them. `kind` says what an output means where the model does not:
        one of "classes", "labels", "tokens", "ctc", "values". `outputs` chooses outputs, `classes` names classes, and
        `keep` repeats columns of a table.
        """
        preparation = check_preparation(preparation, self.preparation)
        return make_predictions(
            self, x, preparation, Wishes(kind, top, tuple(classes), probabilities), outputs, keep, batch_size
        )

    # ------------------------------------------------------------------ checkpoints

    def save_checkpoint(self, directory: str | Path, *, keep: int = 3) -> Path:
        """Write a checkpoint into `directory` and return its file. `Trainer.resume` reads it."""
        check_path("directory", directory)
        return self.write_checkpoint(CheckpointDirectory(directory, whole("keep", keep, 1)), None)

    def write_checkpoint(self, directory: CheckpointDirectory, run: Run | None) -> Path:
        """Write a checkpoint of the state, and of the run if there is one. For the loop.

        Raises:
            CheckpointError: it could not be written.
            NumericError: the state is not finite; nothing is written.
        """
        tensors = self._run.guard.verify(self._run.position)
        bad = bad_names({n: tensors[n] for n in self.program.parameters if n in tensors})
        data: dict[str, Any] = {
            "run": self.run_id,
            "backend": {
                "name": self._backend,
                "options": json_options(self._options),
                "profile": self.program.profile,
                **({} if self.program.recompute is None else {"recompute": self.program.recompute.arguments()}),
                **({} if self.program.store is None else {"store": self.program.store.arguments()}),
                "choices": dict(self.program.choices),
                "describe": self._describe(),
            },
            "preparation": self.preparation.as_dict(),
            "metadata": {PREPARATION: preparation_text(self.preparation)},
            "steps": self.steps,
            "not_finite": bad,
        }
        if bad:  # only with on_nan="off"
            warnings.warn(f"the checkpoint holds NaN or Inf, first in `{bad[0]}`", CheckpointWarning, stacklevel=3)
        if run is not None:
            data["run_state"], extra = run.get_state()
            tensors |= {EXTRA + name: array for name, array in extra.items()}
        return directory.save(self.steps, tensors, data, self._stored)

    def _describe(self) -> dict[str, Any]:
        """Return what the exact results depend on: the backend, its versions and threads, and the compiled graphs."""
        described = {k: v if isinstance(v, (int, float, bool)) else str(v) for k, v in self.session.describe().items()}
        return {**described, "compiled program": self._stored.graph_sha256[:16]}

    @classmethod
    def resume(
        cls, directory: str | Path, *, model: Any = None, allow_changes: bool = False, **backend_options: Any
    ) -> Trainer:
        """Return a trainer with the newest complete checkpoint of `directory`. `fit` then continues the run exactly.

        The model, the backend and its options come from the checkpoint. `backend_options` replace single options.
        `model` replaces a stored model that is lost.

        Raises:
            CheckpointError: there is no usable checkpoint, or the backend is not what it was (see `allow_changes`).
        """
        check_path("directory", directory)
        store = CheckpointDirectory(directory)
        checkpoint = store.load()
        stored = checkpoint.data["backend"]
        kept = store.load_model(checkpoint) if model is None else StoredModel.of(model)
        backend = backend_options.pop("backend", stored["name"])
        before = {"profile": stored.get("profile"), **stored["options"]} if backend == stored["name"] else {}
        before |= {**stored.get("recompute", {}), **stored.get("store", {})}
        kept.choices = stored.get("choices", {})
        options = {**before, **backend_options}
        trainer = cls(kept, backend, **options)
        if not allow_changes:
            check_backend(stored, {"name": backend, "describe": trainer._describe()})
        trainer.set_state(checkpoint.state)
        trainer.run_id = checkpoint.data["run"]
        trainer._run.position.step = int(checkpoint.data["steps"])
        trainer.preparation = Preparation.from_dict(checkpoint.data["preparation"])
        if checkpoint.run_state is not None:
            trainer._run.history = History.from_dict(checkpoint.run_state["history"])
        trainer._resumed = checkpoint
        return trainer

    @property
    def entry(self) -> str | None:
        """The one training entry of the resumed run; None for all of them, and when this is not a resumed run."""
        state = None if self._resumed is None else self._resumed.run_state
        return None if state is None else state["settings"]["entry"]

    @property
    def first_entry(self) -> str | None:
        """The training entry whose loss `evaluate` gives; None for an inference model."""
        return next(iter(self.program.entries), None)

    # ------------------------------------------------------------------ results

    @property
    def has_model(self) -> bool:
        """Whether `to_model` can give a training model: not when the trainer was made from a Program."""
        return self._stored.model is not None

    @property
    def has_average(self) -> bool:
        """Whether the state holds moving averages of the parameters."""
        return bool(self.program.averages)

    def is_of(self, model: Any) -> bool:
        """Return whether `model` (as for `Trainer`) is trained by the same graphs, whatever its weights."""
        other = StoredModel.of(model)
        if other.model is not None and self._stored.model is not None:
            other.model = scaled_like(other.model, self._stored.model)  # it may have been asked for at the start
        other.profile = self._stored.profile
        other.recompute, other.store = self._stored.recompute, self._stored.store
        other.choices = self.program.choices
        return other.graph_sha256 == self._stored.graph_sha256

    def to_inference(
        self, *, average: bool = False, quantize: bool = False, embed_preparation: bool = False
    ) -> onnx.ModelProto:
        """Return the inference model with the current weights, or with their moving average (`ema=` of the optimizer).

        With `quantize`, weights that `make_trainable(dequantize=True)` made floats are stored as integers again. With
        `embed_preparation`, the preparation of the data becomes a part of the model, which then takes raw rows.

        Raises:
            ArgumentError: the model does not keep an average of its weights, or has no weights that were integers.
        """
        state = self.session.get_state()
        if average:
            state |= averages(self.program, state)
        return inference_model(self._stored, state, self.preparation, quantize=quantize, embed=embed_preparation)

    def to_model(self) -> TrainingModel:
        """Return the training model with the current state. It can be saved, and trained elsewhere."""
        if self._stored.model is None:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "this trainer was made from a Program, which cannot be turned back into a training model",
                    hint="make the Trainer from the model or its file",
                )
            )
        return with_state(self._stored.model, self.session.get_state(), self.preparation)
