"""A model that runs on a backend: its names, its state, one step at a time. `Trainer` adds whole runs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onward.arguments import check_path, shown, whole
from onward.author.loss_scale import LossScale, read_loss_scale
from onward.backends.base import Outputs, Session, open_session, profile_of, wants_split
from onward.backends.self_test import open_tested
from onward.compiler.program import Program, TensorSpec
from onward.compiler.tuning import Tuner
from onward.errors import A101, ArgumentError, Diagnostic
from onward.passes.recompute.settings import Asked, read_recompute, read_store
from onward.train import evaluation
from onward.train.arguments import check_entry, check_profile, check_recompute, check_store
from onward.train.checkpoint import Checkpoint
from onward.train.data.feed import Feed, numpy_dtype
from onward.train.data.matching import SizeRule
from onward.train.data.preparation import Preparation
from onward.train.feeds import step_feeds
from onward.train.history import History
from onward.train.loop import Steps
from onward.train.position import Position
from onward.train.state_file import read_state, write_state
from onward.train.stored_model import StoredModel, stored_preparation
from onward.train.tuned import tuner_of


class RunningModel:
    """A program on a backend, with its state."""

    def __init__(
        self,
        model: Any,
        backend: str = "onnxruntime",
        *,
        profile: str | None = None,
        recompute: Asked | None = None,
        store: str | None = None,
        sizes: Mapping[str, int] | None = None,
        self_test: bool | None = None,
        tune: bool | int | Tuner = False,
        loss_scale: float | str | LossScale | None = None,
        **backend_options: Any,
    ) -> None:
        self._stored = model if isinstance(model, StoredModel) else StoredModel.of(model)
        self._stored.scale_loss(read_loss_scale(loss_scale))
        self._stored.split, self._stored.profile = wants_split(backend), profile or profile_of(backend)
        self._stored.recompute, self._stored.store = read_recompute(recompute, sizes), read_store(store, sizes)
        self._stored.tuner = tuner_of(tune, self._stored, backend, backend_options)
        self._backend = backend
        self._options = backend_options
        check_profile(profile, self._stored.program)
        check_recompute(self._stored.recompute, self._stored.program)
        check_store(self._stored.store, self._stored.program)
        self.program: Program
        self.session: Session
        self.program, self.session = open_tested(self._stored.program, backend, self_test, **backend_options)
        """The running program. Replace its state only through the trainer."""
        self.run_id = uuid.uuid4().hex
        self.preparation = stored_preparation(self.program) or Preparation()
        """How the last `fit` prepared its data. `evaluate` and `predict` do the same, and saved models carry it."""
        self._run: Steps = Steps(self.session)
        self._resumed: Checkpoint | None = None
        self._sizes = SizeRule(self._infer_apart)
        self._apart: Session | None = None
        self._feeds = {
            spec.name: Feed(spec, spec.name, False, Preparation(), numpy_dtype(spec.dtype)) for spec in self._specs
        }

    def _infer_apart(self, feeds: Mapping[str, np.ndarray]) -> Outputs:
        """Return the outputs for `feeds`, from a session of its own: the thread that prepares batches may ask."""
        if self._apart is None:
            self._apart = open_session(self.program, self._backend, **self._options)
        return self._apart.infer(feeds)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._backend}: {', '.join(self.input_names)}; step {self.steps}>"

    # ------------------------------------------------------------------ names and state

    @property
    def _specs(self) -> tuple[TensorSpec, ...]:
        return (*self.program.inputs, *self.program.targets)

    @property
    def steps(self) -> int:
        """The number of training steps done."""
        return self._run.position.step

    @property
    def phase(self) -> str | None:
        """The training entry of the phase in which the run stands; None for a model without phases."""
        position = self.resumed_position or self._run.position
        return position.phase(self.program.phases)

    @property
    def history(self) -> History:
        """The history of the last `fit`, or of the resumed run."""
        return self._run.history

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names that a step takes: the inputs of the model, then its targets."""
        return self.program.input_names

    @property
    def output_names(self) -> tuple[str, ...]:
        """The outputs of the inference graph."""
        return tuple(evaluation.output_names(self.program))

    @property
    def learning_rate_names(self) -> tuple[str, ...]:
        """The settings of the program that are learning rates."""
        return self.program.learning_rates

    @property
    def state(self) -> dict[str, np.ndarray]:
        """A copy of the whole state: parameters, moments, counters, random key."""
        return self.session.get_state()

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """A copy of the trained parameters."""
        state = self.session.get_state()
        return {name: state[name] for name in self.program.parameters}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Replace the named parts of the state.

        Raises:
            ArgumentError: unknown names, other shapes or types; all at once, and nothing is replaced.
        """
        if not isinstance(state, Mapping):
            raise ArgumentError(
                Diagnostic(A101, f"the state is {shown(state)}", needed="a dict of arrays by name, as trainer.state")
            )
        self.session.set_state({name: np.asarray(value) for name, value in state.items()})
        self._run.guard.reset()

    def initialize(self, seed: int = 0) -> None:
        """Set the state as the model's initialisation says; `seed` chooses the random numbers."""
        self.session.initialize(whole("seed", seed, 0))
        self._run.guard.reset()

    def save_state(self, path: str | Path) -> None:
        """Write the whole state as one file with checksums, for `load_state` and for JavaScript (docs/browser.md).

        Raises:
            CheckpointError: it could not be written.
            NumericError: the state is not finite; nothing is written.
        """
        check_path("path", path)
        state = self._run.guard.verify(self._run.position)
        if self.is_writer:
            write_state(Path(path), state, self.steps)

    def load_state(self, path: str | Path) -> None:
        """Replace the state, and the number of `steps`, by that of a file.

        The file is one of `save_state`, of JavaScript (`checkpoint()` of `@onward/train`), one step of a run, or the
        `state.safetensors` of a program.

        Raises:
            CheckpointError: the file is damaged or of another model; every difference is listed, nothing is replaced.
        """
        check_path("path", path)
        state, steps = read_state(Path(path), self.program)
        self.set_state(state)
        self._run.position.step = steps

    @property
    def resumed_position(self) -> Position | None:
        """Where the resumed run stands; None when this is not a resumed run, or `fit` has gone on with it."""
        state = None if self._resumed is None else self._resumed.run_state
        return None if state is None else Position(**state["position"])

    @property
    def is_writer(self) -> bool:
        """Whether this process writes files. With several processes, only the first does."""
        return self.session.writer

    # ------------------------------------------------------------------ one step

    def step(self, feeds: Mapping[str, Any], *, entry: str | None = None) -> Outputs:
        """Run one training step and return its outputs, `loss` among them.

        `feeds` holds one batch by name (see `input_names`) and may hold settings such as `learning_rate`.

        Raises:
            DataError: names, shapes or dtypes that do not fit, all at once.
            NumericError: NaN or Inf appeared; the state is the one before this step.
        """
        check_entry(entry, self.program)
        entry = entry or self.phase
        chosen = self.program.for_entry(entry)
        made = step_feeds(feeds, self._feeds, chosen, self.program.settings, self._sizes)
        outputs = self._run.step(made, entry)
        assert outputs is not None  # only "skip" leaves a batch out, and only `fit` uses it
        return outputs
