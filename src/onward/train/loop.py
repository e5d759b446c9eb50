"""The training loop: epochs, steps, validation, checkpoints, callbacks."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.backends.base import Outputs, Session
from onward.backends.processes import rank, world_size
from onward.errors import A101, ArgumentError, CheckpointError, Diagnostic, NumericError, OnwardError
from onward.graph import shapes
from onward.train import evaluation
from onward.train.arguments import FitSettings
from onward.train.asked import Asked
from onward.train.callbacks import Callback, KeepBest
from onward.train.checkpoint import BEST, Checkpoint, CheckpointDirectory
from onward.train.data.augmenting import Augmenting
from onward.train.data.matching import Matching, fixed_batch
from onward.train.data.prefetch import Prefetcher, default_prefetch
from onward.train.data.reader import Reader
from onward.train.data.source import Batch, BatchRequest, DataSource, batch_length, no_batches
from onward.train.history import History
from onward.train.learning_rates import next_rate, rates_to_feed, require_rate
from onward.train.metrics import label
from onward.train.numeric import NumericGuard
from onward.train.position import Position
from onward.train.progress import progress_callback
from onward.train.signals import Interrupted, StopRequested, StopSignals

if TYPE_CHECKING:
    from onward.train.trainer import Trainer


@dataclasses.dataclass
class Validation:
    """The data to validate on after each epoch."""

    source: DataSource
    matching: Matching
    batch_size: int


class Steps:
    """Runs guarded training steps of a session and counts them: a `Run` without data."""

    def __init__(
        self,
        session: Session,
        guard: NumericGuard | None = None,
        position: Position | None = None,
        history: History | None = None,
    ) -> None:
        self.session = session
        self.guard = guard or NumericGuard(session)
        self.position = position or Position()
        self.history = History() if history is None else history

    def step(self, feeds: Mapping[str, np.ndarray], entry: str | None) -> Outputs | None:
        """Run one step whose feeds are known to fit and count it; return None when the batch was skipped."""
        program = self.session.program
        with evaluation.explaining(program, feeds):
            outputs = self.guard.step(feeds, self.position, entry)
        self.position.step += 1
        if outputs is not None and "loss" not in outputs:
            loss = program.loss if entry is None else program.entries[entry].loss
            outputs = {"loss": outputs[loss], **outputs} if loss in outputs else outputs
        return outputs


class Run(Steps):
    """One call of `fit`. This is what callbacks see.

    It continues the steps `before`, or the run in the checkpoint `resumed`.

    Raises:
        ArgumentError: the data, the metrics or the callbacks are not those of the resumed run, or the model has no
            learning rate to be set.
    """

    def __init__(
        self,
        trainer: Trainer,
        settings: FitSettings,
        source: DataSource,
        matching: Matching,
        *,
        augmenting: Augmenting,
        before: Steps,
        resumed: Checkpoint | None = None,
        validation: Validation | None = None,
        metrics: Sequence[Asked] = (),
    ) -> None:
        super().__init__(trainer.session, before.guard, Position(step=before.position.step))
        self.trainer = trainer
        self.settings = settings
        self.source = source
        self.metrics = [asked.metric for asked in metrics]
        self.asked = list(metrics)
        """The metrics with what they read. A callback may add optional ones, which are computed in validations."""
        self.validation = validation
        self.schedule = settings.schedule
        self.started = 0.0
        """When `fit` began, in seconds of `time.perf_counter`."""
        self.steps_before = 0
        """How many steps had been done when `fit` began."""
        self._matching = matching
        writer, directory = self.session.writer, settings.checkpoint
        self._best = _keep_best(settings)
        progress = progress_callback(settings.progress if writer else "none")
        self._callbacks = [*settings.callbacks, *self._best, *progress]
        self._checkpoints = CheckpointDirectory(directory, settings.keep) if writer and directory is not None else None
        # Another process writes checkpoints, and needs this one's part of the state.
        self._takes_part = directory is not None and self.session.sharded and not writer
        given = settings.prefetch
        usual = default_prefetch(source, settings.batch_size) if augmenting.is_plain else 2
        self._prefetch = usual if given is None else given
        self._reader = Reader(source, matching, augmenting, settings.workers, self._prefetch)
        self._saved_at: tuple[int, int] | None = None
        self._signals = StopSignals(saves=self._checkpoints is not None)
        if settings.learning_rate is not None:
            self.require_learning_rate("learning_rate=")
        if resumed is not None and resumed.run_state is not None:
            self.set_state(resumed.run_state, resumed.run_arrays)
        self.guard.set_mode(settings.on_nan)

    # ------------------------------------------------------------------ for callbacks

    @property
    def steps_per_epoch(self) -> int | None:
        """The number of steps of an epoch; None when the data does not say."""
        known = self.source.count_batches(self.settings.batch_size, self.settings.drop_last)
        limit = self.settings.steps_per_epoch
        return known if limit is None else limit if known is None else min(limit, known)

    @property
    def entry(self) -> str | None:
        """The training entry of the next step: the one that was asked for, or that of the phase; None for all."""
        return self.settings.entry or self.position.phase(self.trainer.program.phases)

    @property
    def finished(self) -> bool:
        """True when the run came to its end, by the number of epochs or by `stop`."""
        return self.position.finished

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step, for the phase or the first training entry; NaN when none can be set."""
        return next_rate(self)

    @property
    def rate_factor(self) -> float:
        """The learning rate is multiplied by this; kept in checkpoints."""
        return self.position.rate_factor

    @rate_factor.setter
    def rate_factor(self, factor: float) -> None:
        self.position.rate_factor = factor

    def require_learning_rate(self, wanted_by: str) -> None:
        """Raise if the model has no learning rate that can be set."""
        require_rate(self, wanted_by)

    @property
    def columns(self) -> list[str]:
        """The columns that the record of an epoch will have, as far as that is known before the first step."""
        program = self.trainer.program
        numbers = ["loss"]
        for step in (entry.step for entry in program.for_entry(self.settings.entry).entries.values()):
            values = {v.name: v for v in step.model.graph.outputs}
            numbers += [n for n in step.outputs if shapes.dims(values[n]) in (None, ())]
        found = ["epoch", "step", *numbers, *(a.label for a in self.asked if a.in_step and not a.is_matrix)]
        if self.validation is not None:
            found += [f"val_{n}" for n in [*numbers, *(a.label for a in self.asked if not a.is_matrix)]]
        found += ["learning_rate"] if self.trainer.learning_rate_names else []
        if any(e.loss_scale for e in program.for_entry(self.settings.entry).entries.values()):
            found += ["loss_scale", "skipped_updates"]
        return list(dict.fromkeys([*found, "seconds", "samples_per_second"]))

    def larger_is_better(self, column: str) -> bool:
        """Return whether a larger value of the column is an improvement."""
        name = column.removeprefix("val_")
        found = next((m.larger_is_better for m in self.metrics if label(m) == name), False)
        if found is None:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"nothing says whether a larger `{name}` is better",
                    needed="mode='min' or mode='max' of the callback",
                    hint="or an attribute of the function: f.larger_is_better = False",
                )
            )
        return found

    def stop(self, reason: str) -> None:
        """End the run after this step or epoch."""
        self.history.stopped = reason

    # ------------------------------------------------------------------ the loop

    def fit(self) -> History:
        """Train until the last epoch, until a callback stops the run, or until a signal comes."""
        self.started = time.perf_counter()
        self.steps_before = self.position.step
        try:
            with contextlib.ExitStack() as stack:
                if self._checkpoints is not None:
                    stack.enter_context(self._checkpoints.writing())
                    self._checkpoints.check_owner(self.trainer.run_id)
                stack.enter_context(self._signals)
                stack.enter_context(self._reader)
                if self.position.epoch < self.settings.epochs:
                    self._reader.try_one(self._request())
                    self._reader.start(self.settings.batch_size)
                for callback in self._callbacks:
                    callback.on_fit_begin(self)
                self._loop()
        except StopRequested as request:
            if request.number == signal.SIGTERM:
                saved = self._checkpoints is not None or self._takes_part
                raise SystemExit(0 if saved else 128 + signal.SIGTERM) from None
            raise Interrupted from None
        finally:
            self.guard.set_mode("stop")  # for single steps after the run
            for callback in self._callbacks:
                callback.on_fit_end(self)
        return self.history

    def _loop(self) -> None:
        try:
            while self.position.epoch < self.settings.epochs and not self.history.stopped:
                self.position.finished = False
                try:
                    self._train_epoch()
                except (NumericError, CheckpointError):
                    raise
                except Exception:  # for example bad data: the steps before it must not be lost
                    with contextlib.suppress(OnwardError):  # the user must see the error that ended the run
                        self._save()
                    raise
                self._end_epoch()
                self._save_best()
                if self.settings.checkpoint_every is None:
                    self._save()
            if not self.position.finished:
                self.position.finished = True
                self._save(again=True)
        except StopRequested:
            self._save()
            raise

    def _request(self) -> BatchRequest:
        """Return what the run needs next of the data."""
        settings, position = self.settings, self.position
        course = (settings.batch_size, settings.shuffle, settings.seed, position.epoch, position.batch)
        return BatchRequest(*course, settings.drop_last, *self._part())

    def _train_epoch(self) -> None:
        settings, position = self.settings, self.position
        left = None if settings.steps_per_epoch is None else max(settings.steps_per_epoch - position.batch, 0)
        feeds = itertools.islice(self._reader.feeds(self._request()), left)
        origin = time.perf_counter() - position.seconds
        with Prefetcher(feeds, self._prefetch, self._signals.poll) as ready:
            for batch in ready:
                self._train_batch(batch, origin)
                position.seconds = time.perf_counter() - origin
                if self.settings.checkpoint_every and position.step % self.settings.checkpoint_every == 0:
                    self._save()
                self._signals.poll()
                if self.history.stopped:
                    break
        if not position.batch:
            raise no_batches(f"epoch {position.epoch + 1}")

    def _part(self) -> tuple[int, int]:
        """Return (number of this process, number of processes) for reading a part of each batch; (0, 1) for whole ones.

        A process reads whole batches where it must not fail alone, and where the model fixes the number of samples.
        """
        whole = self.session.sharded or fixed_batch([f.spec for f in self._matching.feeds]) is not None
        return (0, 1) if whole or self.session.processes == 1 else (rank(), world_size())

    def _train_batch(self, batch: Batch, origin: float) -> None:
        """Train on a batch and tell the callbacks. `origin` is when the epoch began, or would have without a pause."""
        position = self.position
        feeds: dict[str, np.ndarray] = dict(batch)
        feeds |= rates_to_feed(self)
        entry = self.entry
        outputs = self.step(feeds, entry)
        samples = batch_length(batch)
        position.batch += 1
        position.samples += samples
        position.seconds = time.perf_counter() - origin  # callbacks show the speed
        if outputs is None:
            return
        logs: dict[str, Any] = {"epoch": position.epoch + 1, "step": position.step}
        own = self.trainer.program.entries[entry].loss if entry is not None and "loss" in outputs else "loss"
        for name, value in outputs.items():
            if name == own and own != "loss":
                continue  # it is there as `loss`, whatever the phase calls it
            if np.ndim(value) == 0 or (name == self.trainer.program.loss and np.size(value) == 1):
                logs[name] = float(np.asarray(value).ravel()[0])
                position.add(name, logs[name], samples)
        if self.metrics:
            whole = self.session.whole_batch(batch)  # several processes read a part each
            for asked in self.asked:
                asked.update(outputs, whole, training=True)
        if "loss" in logs:
            self.history.add_step(position.step, logs["loss"])
        for callback in self._callbacks:
            callback.on_step_end(self, logs)

    def _end_epoch(self) -> None:
        position = self.position
        logs: dict[str, Any] = {"epoch": position.epoch + 1, "step": position.step}
        logs |= {name: total / weight for name, (total, weight) in position.sums.items()}
        logs.setdefault("loss", float("nan"))
        logs |= {a.label: a.compute() for a in self.asked if a.in_step and not a.is_matrix}
        if self.validation is not None:
            found = self._validate(self.validation, self.asked)
            matrices = {a.label for a in self.asked if a.is_matrix}
            logs |= {f"val_{name}": value for name, value in found.items() if name not in matrices}
        for matrix in [a for a in self.asked if a.is_matrix and not a.failed][:1]:
            self.history.confusion = matrix.compute()  # of the validation, where there is one
        for asked in self.asked:
            asked.metric.reset()
        if self.trainer.learning_rate_names:
            logs["learning_rate"] = self.learning_rate
        logs |= self._loss_scale()
        logs["seconds"] = position.seconds
        logs["samples_per_second"] = position.samples / position.seconds if position.seconds > 0 else 0.0
        before = self.entry
        position.begin_epoch(position.epoch + 1)
        self.history.add_epoch(logs)
        for callback in self._callbacks:
            callback.on_epoch_end(self, logs)
        if self.entry != before:
            position.rate_factor = 1.0  # the next phase has a rate of its own, whatever a callback just made of it

    def _loss_scale(self) -> dict[str, float]:
        """Return the dynamic loss scale and how many updates it has cost so far; nothing where there is none."""
        entry = self.trainer.program.for_entry(self.entry).first
        if entry is None or not entry.loss_scale:
            return {}
        state = self.session.get_state()
        skipped = int(state.get(f"{entry.loss_scale}/skipped", 0))
        return {"loss_scale": float(state[entry.loss_scale]), "skipped_updates": skipped}

    def _validate(self, validation: Validation, metrics: Sequence[Asked]) -> dict[str, Any]:
        for callback in self._callbacks:
            callback.on_validation_begin(self)
        held = [asked.metric.get_state() for asked in metrics]
        try:
            return evaluation.run_evaluation(
                self.session,
                validation.source,
                validation.matching,
                validation.batch_size,
                metrics,
                self._signals.poll,
                entry=self.entry,
            )
        except BaseException:  # after a signal, the next checkpoint must hold the metrics of the training
            for asked, state in zip(metrics, held, strict=True):
                asked.metric.reset()
                asked.metric.set_state(state)
            raise

    # ------------------------------------------------------------------ checkpoints

    def _save(self, again: bool = False) -> None:
        here = (self.position.epoch, self.position.step)
        if self._saved_at == here and not again:
            return
        if self._takes_part:
            self._saved_at = here
            self.session.get_state()
        if self._checkpoints is None:
            return
        path = self.trainer.write_checkpoint(self._checkpoints, self)
        self._saved_at = here
        for callback in self._callbacks:
            callback.on_checkpoint(self, str(path))

    def _save_best(self) -> None:
        """Write the checkpoint of the epoch that has just ended to `best`, if it is the best so far."""
        for keeper in self._best:
            if keeper.due and self._takes_part:
                self.session.get_state()
            if keeper.due and self._checkpoints is not None:
                path = self.trainer.write_checkpoint(CheckpointDirectory(self._checkpoints.path / BEST, 1), self)
                for callback in self._callbacks:
                    callback.on_checkpoint(self, str(path))
            keeper.due = False

    def get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return (JSON, arrays): everything that `set_state` needs to continue the run exactly."""
        data = {
            "settings": self.settings.stored(),
            "position": dataclasses.asdict(self.position),
            "history": self.history.as_dict(),
            "data": self.source.fingerprint(),
            "metrics": [label(m) for m in self.metrics],
            "callbacks": [[type(c).__name__, c.get_state()] for c in self._callbacks if _remembers(c)],
        }
        arrays: dict[str, np.ndarray] = {}
        for i, metric in enumerate(self.metrics):
            arrays |= {f"metric/{i}/{key}": value for key, value in metric.get_state().items()}
        for i, callback in enumerate(c for c in self._callbacks if _remembers(c)):
            arrays |= {f"callback/{i}/{key}": value for key, value in callback.get_arrays().items()}
        return data, arrays

    def set_state(self, data: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Go on with the run that `get_state` described.

        Raises:
            ArgumentError: the data, the metrics or the callbacks are not those of the run.
        """
        self._check_same(data)
        self.position = Position(**data["position"])
        self.history = History.from_dict(data["history"])
        if self.position.epoch < self.settings.epochs and not self.position.batch:
            self.position.finished = False
        for i, metric in enumerate(self.metrics):
            metric.set_state(_under(arrays, f"metric/{i}/"))
        remembering = [c for c in self._callbacks if _remembers(c)]
        for i, (callback, (_, state)) in enumerate(zip(remembering, data["callbacks"], strict=True)):
            callback.set_state(state)
            callback.set_arrays(_under(arrays, f"callback/{i}/"))

    def _check_same(self, data: Mapping[str, Any]) -> None:
        mine = {
            "data": self.source.fingerprint(),
            "metrics": [label(m) for m in self.metrics],
            "callbacks": [type(c).__name__ for c in self._callbacks if _remembers(c)],
        }
        stored = {"data": data["data"], "metrics": data["metrics"], "callbacks": [n for n, _ in data["callbacks"]]}
        problems = [
            Diagnostic(
                A101,
                f"the run was started with other {key}",
                found=f"now: {mine[key]}",
                needed=f"as before: {stored[key]}",
                hint="a resumed run goes on exactly as it was; to change it, start a new run from this state",
            )
            for key in mine
            if mine[key] != stored[key]
        ]
        if problems:
            raise ArgumentError(problems)


def _keep_best(settings: FitSettings) -> list[KeepBest]:
    """Return the callback that finds the best epoch, if its checkpoint is to be kept."""
    if settings.keep_best is False:
        return []
    if settings.checkpoint is None:
        raise ArgumentError(
            Diagnostic(A101, "keep_best needs a checkpoint directory", needed="checkpoint=, the directory of the run")
        )
    return [KeepBest(settings.keep_best if isinstance(settings.keep_best, str) else None)]


def _remembers(callback: Callback) -> bool:
    return type(callback).get_state is not Callback.get_state


def _under(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
