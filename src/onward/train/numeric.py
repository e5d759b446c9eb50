"""The guard between the training loop and the session: it never keeps NaN or Inf.

It checks the loss of every step. It checks the state every few steps, when it copies the state, and before every
checkpoint. When something is not finite, it goes back to the last good copy and repeats the steps since then. This is
exact, because a step is a pure function of (batch, state, settings). It finds the first bad update and the first bad
tensor, and the state stays as it was before that update. So a backend needs no way to undo a step, and a bad gradient
behind a finite loss is found as well.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from onward.arguments import check_name
from onward.backends.base import Outputs, Session
from onward.errors import A101, ArgumentError, Diagnostic, NumericError
from onward.model.task import Task
from onward.train.first_bad import FirstBad, find_first_bad, is_finite
from onward.train.position import Position

N100 = "N100"
N101 = "N101"
N102 = "N102"
N103 = "N103"

MODES = ("stop", "skip", "off")
Arrays = Mapping[str, np.ndarray]
_Held = tuple[int, dict[str, np.ndarray], str | None]  # a step that may be repeated: number, feeds, entry
_LEAST_SCALE = 2.0**-24  # the smallest number of float16: whatever is not finite with this scale is so with any
_MIN_STEPS, _MAX_STEPS, _MAX_BYTES, _MAX_SHARE = 16, 256, 64 << 20, 0.02


def bad_names(values: Arrays) -> list[str]:
    """Return the names of the arrays that hold NaN or Inf, in order."""
    return [name for name, array in values.items() if not is_finite(array)]


class NumericGuard:
    """Runs the steps of a session and keeps its state finite.

    `mode`: "stop" raises before the bad update is kept, "skip" leaves the batch out (at most `max_skips` in a row),
    "off" checks nothing and needs no copy of the state.
    """

    def __init__(self, session: Session, max_skips: int = 5) -> None:
        self.mode = "stop"
        self.max_skips = max_skips
        self._session = session
        self._snapshot: dict[str, np.ndarray] | None = None
        self._held: list[_Held] = []
        self._held_bytes = 0
        self._every = _MIN_STEPS
        self._exempt: frozenset[str] = frozenset()
        self._step_seconds = 0.0
        self._warned = False

    def set_mode(self, mode: str) -> None:
        """Choose what happens when something is not finite: "stop", "skip" or "off"."""
        check_name("on_nan=", mode, MODES)
        if mode == "skip" and self._session.sharded:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "on_nan='skip' needs a copy of the state, and sharded processes do not keep one",
                    needed="on_nan='stop', and checkpoints",
                )
            )
        if "off" in (mode, self.mode) and mode != self.mode:
            self.reset()
        self.mode = mode

    def reset(self) -> None:
        """Forget the copy of the state. Call this when the state was replaced from outside."""
        self._snapshot = None
        self._held.clear()
        self._held_bytes = 0

    def step(self, feeds: Arrays, position: Position, entry: str | None = None) -> Outputs | None:
        """Run one step and return its outputs, or None when the batch was skipped.

        Skipped batches are counted in `position`. The arrays in `feeds` must not change for the next few steps.
        """
        number = position.step + 1
        if self.mode == "off":
            return self._session.step(feeds, entry=entry)
        if self._session.sharded:
            return self._step_without_copy(feeds, number, entry)
        if self._snapshot is None:
            self._start()
        self._hold(number, feeds, entry)
        began = time.perf_counter()
        try:
            outputs = self._session.step(feeds, entry=entry)
        except BaseException:
            self._held.pop()  # it changed nothing, so it must not be repeated
            raise
        self._step_seconds = time.perf_counter() - began
        if self._loss_is_finite(outputs):
            if len(self._held) >= self._every or self._held_bytes >= _MAX_BYTES:
                skipped = position.skipped
                self.verify(position)
                if position.skipped > skipped and position.skipped_in_a_row:
                    return None
            else:
                position.skipped_in_a_row = 0
            return outputs
        self._repeat(position)
        return None

    def verify(self, position: Position) -> dict[str, np.ndarray]:
        """Return a copy of the state, known to be finite (unless the mode is "off"); repairs or raises otherwise."""
        began = time.perf_counter()
        state = self._session.get_state()
        if self.mode == "off":
            return state
        if self._session.sharded:
            self._check_start(state)
            self._check_scales(state)
            return state
        self._check_scales(state)
        if self._snapshot is None:
            self._exempt = self._check_start(state)
        elif self._bad_state(state):
            self._repeat(position)
            return dict(self._snapshot)
        if self._held:
            position.skipped_in_a_row = 0
        self._keep(state)
        seconds = time.perf_counter() - began
        # Several processes take their copies at the same steps, whatever their clocks say.
        if self._step_seconds > 0.0 and self._session.processes == 1:
            wanted = seconds / (_MAX_SHARE * self._step_seconds)
            self._every = int(min(max(wanted, _MIN_STEPS), _MAX_STEPS))
        return dict(state)

    def _step_without_copy(self, feeds: Arrays, number: int, entry: str | None) -> Outputs:
        """Run one step of a session whose state is too large for one process; so would be a copy of it."""
        outputs = self._session.step(feeds, entry=entry)
        if not self._loss_is_finite(outputs):
            raise NumericError(
                Diagnostic(
                    N100,
                    f"the loss is not finite at step {number}",
                    hint="go on from the last checkpoint with a lower learning rate; sharded processes keep no copy of "
                    "the state to go back to",
                )
            )
        return outputs

    def _start(self) -> None:
        state = self._session.get_state()
        self._exempt = self._check_start(state)
        self._keep(state)

    def _check_start(self, state: Arrays) -> frozenset[str]:
        """Return the names that hold Inf on purpose ("best so far" counters); NaN or a bad parameter is an error."""
        bad = bad_names(state)
        parameters = set(self._session.program.parameters)
        broken = [n for n in bad if n in parameters or np.isnan(state[n]).any()]
        if broken:
            raise NumericError(
                [Diagnostic(N102, f"`{name}` holds {_count(state[name])} before the first step") for name in broken]
            )
        return frozenset(bad)

    def _check_scales(self, state: Arrays) -> None:
        """Warn if a dynamic loss scale has become very small, and raise if it is so small that none would do."""
        for name, entry in self._session.program.entries.items():
            scale = float(state[entry.loss_scale]) if entry.loss_scale in state else 1.0
            skipped = int(state.get(f"{entry.loss_scale}/skipped", 0))
            if scale < _LEAST_SCALE:
                raise NumericError(
                    Diagnostic(
                        N103,
                        f"no loss scale gives finite gradients: that of entry `{name}` fell to {scale:.3g}",
                        found=f"{skipped} steps without an update; the weights are those before them",
                        needed="finite gradients",
                        hint="train without loss_scale=: the error then names the first tensor that is not finite",
                    )
                )
            if scale < 1.0 and not self._warned:
                self._warned = True
                warnings.warn(
                    f"the loss scale of entry `{name}` fell to {scale:.3g}, after {skipped} steps without an update: "
                    "gradients are not finite even where the loss is not scaled up",
                    stacklevel=2,
                )

    def _hold(self, number: int, feeds: Arrays, entry: str | None) -> None:
        self._held.append((number, dict(feeds), entry))
        # Several processes hold parts of unequal size: what decides when a copy is taken is the whole batch.
        whole = [(a.nbytes, (getattr(a, "total", 0) or len(a), len(a)) if a.ndim else (1, 1)) for a in feeds.values()]
        self._held_bytes += sum(size * samples // max(own, 1) for size, (samples, own) in whole)

    def _keep(self, state: dict[str, np.ndarray]) -> None:
        self._snapshot = state
        self._held.clear()
        self._held_bytes = 0

    def _loss_is_finite(self, outputs: Arrays) -> bool:
        loss = self._session.program.loss
        return all(is_finite(np.asarray(v)) for name, v in outputs.items() if name == loss or np.ndim(v) == 0)

    def _hint(self, loss: Any) -> str:
        task = Task.of_metadata(self._session.program.infer_graph.model.metadata_props)
        infinite = not isinstance(loss, str) and bool(np.isinf(np.float64(loss)))
        if task is not None and task.kind == "ctc" and infinite:
            return (
                "a sample may have more labels than the output has steps (a repeated label needs one step more): "
                "shorten them, or let the loss leave such samples out with zero_infinity=True"
            )
        store = self._session.program.store
        if store is not None and store.dtype == "float16" and not infinite:
            return "float16 ends at 65504, and a value that was stored may be larger: use store='bfloat16'"
        return "lower the learning rate, clip the gradients, or freeze a weight whose slope is infinite where it starts"

    def _bad_state(self, state: Arrays) -> list[str]:
        return [
            name
            for name in bad_names(state)
            if name not in self._exempt or bool(np.isnan(state[name].astype(np.float64)).any())
        ]

    def _repeat(self, position: Position) -> None:
        """Repeat the steps since the last good copy. Leave out every bad update, or stop at the first."""
        assert self._snapshot is not None
        good = self._snapshot
        self._session.set_state(good)
        for held in list(self._held):
            _, feeds, entry = held
            outputs = self._session.step(feeds, entry=entry)
            state = self._session.get_state()
            if self._loss_is_finite(outputs) and not self._bad_state(state):
                good = state
                position.skipped_in_a_row = 0
                continue
            self._session.set_state(good)
            if self.mode == "skip":
                position.skipped += 1
                position.skipped_in_a_row += 1
                if position.skipped_in_a_row <= self.max_skips:
                    continue
            self._keep(good)
            raise NumericError(self._explain(held, outputs, good, state, position.skipped_in_a_row))
        self._keep(good)

    def _explain(
        self, held: _Held, outputs: Arrays, before: Arrays, after: Arrays, skipped_in_a_row: int
    ) -> Diagnostic:
        number, feeds, entry = held
        whole = self._session.whole_batch(feeds)
        first = find_first_bad(self._session.program, whole, before, entry)
        if first is None:
            named = [
                FirstBad(n, "", "NaN" if np.isnan(np.asarray(v)).any() else "Inf")
                for n, v in _bad_items(outputs, after)
            ]
            first = named[0] if named else FirstBad(self._session.program.loss, "", "NaN or Inf")
        loss = self._session.program.loss
        value = np.asarray(outputs[loss]).ravel()[0] if loss in outputs else "unknown"
        bad_state = self._bad_state(after)
        code, message = N100, f"{first.what} in `{first.name}` at step {number}; the update was not kept"
        if self.mode == "skip":
            code = N101
            message = f"{skipped_in_a_row} bad batches one after another, the last at step {number}: "
            message += f"{first.what} in `{first.name}`"
        found = f"loss {value}"
        if bad_state:
            found += f"; the update would have spoiled {len(bad_state)} tensors, first `{bad_state[0]}`"
        return Diagnostic(
            code,
            message,
            place=first.place,
            found=found,
            needed="finite numbers; the state is the one before this step",
            hint=first.hint or self._hint(value),
        )


def _bad_items(*groups: Arrays) -> Iterator[tuple[str, Any]]:
    for group in groups:
        for name in bad_names({n: np.asarray(v) for n, v in group.items()}):
            yield name, group[name]


def _count(array: np.ndarray) -> str:
    nans, infs = int(np.isnan(array).sum()), int(np.isinf(array).sum())
    parts = [f"{nans} NaN"] * bool(nans) + [f"{infs} Inf"] * bool(infs)
    return f"{' and '.join(parts)} of {array.size} numbers"
