"""Several processes, one model: each takes its share of every batch, and gradients are averaged before the update.

It is the arithmetic of DistributedDataParallel, applied to the program's own graphs: `gradients` runs on the shard,
one all-reduce averages what it gives, weighted by the size of the shards, and `updates` runs in every process on the
same numbers, so that all keep the same state. DistributedDataParallel itself hooks into autograd, which a program with
its backward pass written out does not use.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from onward.backends.processes import rank, world_size
from onward.backends.torch.tensors import to_numpy
from onward.errors import ArgumentError, BackendError, Diagnostic, OnwardError, define
from onward.lower.random import KEY
from onward.program import Program, StepGraph

B303 = define(
    "B303",
    "the processes do not fit together",
    why="All processes of a run train the same model on the same batches, each on its share of them.",
    fix="Start all of them with the same command and the same data.",
)


class Group:
    """The processes of a run. Made once per session; needs the program's gradients and updates as graphs of their own.

    Raises:
        ArgumentError: the program has no such graphs, or a fixed batch size.
        BackendError: the other processes cannot be reached.
    """

    def __init__(self, program: Program, device: torch.device) -> None:
        self.rank, self.size, self.device = rank(), world_size(), device
        if program.steps and not program.gradients:
            raise ArgumentError(
                Diagnostic(
                    B303,
                    "the program has no gradients graph, which training in several processes needs",
                    hint="give the Trainer the model itself, or compile it with split=True",
                )
            )
        fixed = next((s for s in program.inputs if s.shape and isinstance(s.shape[0], int)), None)
        if fixed is not None:
            raise ArgumentError(
                Diagnostic(
                    B303,
                    f"the model has a fixed batch size of {fixed.shape[0]}, which cannot be shared out",
                    place=f"input `{fixed.name}`",
                    hint="export the model with a free batch size",
                )
            )
        if not dist.is_initialized():
            try:
                _join("nccl" if device.type == "cuda" else "gloo", self.rank, self.size)
            except (RuntimeError, ValueError) as error:
                raise BackendError(
                    Diagnostic(B303, f"the processes cannot reach each other: {str(error).splitlines()[0]}")
                ) from error
            atexit.register(_leave)
        self._sums: dict[str, bool] = {}

    def step(self, session: Any, entry: str, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Make one step together with the other processes.

        Raises:
            BackendError: another process is gone; the state is the one before this step.
        """
        try:
            return distributed_step(session, self, entry, feeds)
        except RuntimeError as error:
            if isinstance(error, OnwardError):
                raise
            raise BackendError(
                Diagnostic(
                    B303,
                    f"process {self.rank} lost another process: {str(error).splitlines()[0]}",
                    hint="start again with --resume; torchrun does so by itself with --max-restarts",
                )
            ) from error

    # -- batches -------------------------------------------------------------------------------------------------

    def shard(self, feeds: Mapping[str, np.ndarray], names: tuple[str, ...]) -> tuple[dict[str, np.ndarray], int, int]:
        """Return this process's part of the batch, its number of samples, and the number of all."""
        count = next((int(feeds[n].shape[0]) for n in names if n in feeds and np.ndim(feeds[n])), 0)
        start, end = (count * r // self.size for r in (self.rank, self.rank + 1))
        own = {n: v[start:end] if n in names and np.ndim(v) and v.shape[0] == count else v for n, v in feeds.items()}
        return own, end - start, count

    def with_own_key(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the state with a random key of this process: samples at the same place of two shards differ."""
        return {**state, KEY: state[KEY] + 1_000_003 * self.rank} if KEY in state else state

    # -- numbers -------------------------------------------------------------------------------------------------

    def combine(self, values: Mapping[str, torch.Tensor], weight: float) -> dict[str, torch.Tensor]:
        """Return the weighted sum of every process's values, in one message per element type."""
        combined: dict[str, torch.Tensor] = {}
        for dtype in dict.fromkeys(v.dtype for v in values.values()):
            names = [n for n, v in values.items() if v.dtype == dtype]
            flat = torch.cat([values[n].reshape(-1) for n in names]) * weight
            dist.all_reduce(flat)
            for name, part in zip(names, flat.split([values[n].numel() for n in names]), strict=True):
                combined[name] = part.reshape(values[name].shape)
        return combined

    def from_first(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return process 0's values everywhere."""
        sent = {n: v.contiguous().clone() for n, v in values.items()}
        for value in sent.values():
            dist.broadcast(value, 0)
        return sent

    def gather(self, value: torch.Tensor, count: int) -> np.ndarray:
        """Return the rows of every process, in order: an output of the whole batch."""
        sizes = [count * (r + 1) // self.size - count * r // self.size for r in range(self.size)]
        padded = value.new_zeros(max(sizes), *value.shape[1:])
        padded[: value.shape[0]] = value
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded.contiguous())
        return to_numpy(torch.cat([p[:n] for p, n in zip(parts, sizes, strict=True)]))

    # -- agreement -----------------------------------------------------------------------------------------------

    def check_same(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Raise in every process unless all were given the same batch."""
        digest = 0.0
        for index, (_, value) in enumerate(sorted(feeds.items())):
            array = np.asarray(value, np.float64).reshape(-1)
            digest += float(array @ np.cos(np.arange(array.size) + index)) + array.size
        ends = torch.tensor([digest, -digest], dtype=torch.float64)
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        if float(ends[0]) != -float(ends[1]):
            raise ArgumentError(
                Diagnostic(
                    B303,
                    "the processes were given different batches",
                    hint="each process reads the whole batch and takes its share itself: same data, same seed, same "
                    "checkpoint",
                )
            )

    def is_sum(self, entry: str, whole: float, own: float, weight: float) -> bool:
        """Return whether the loss adds up over samples, instead of averaging them; found out at the first step."""
        if entry not in self._sums:
            parts = torch.tensor([own, own * weight], dtype=torch.float64)
            dist.all_reduce(parts)
            self._sums[entry] = abs(float(parts[0]) - whole) < abs(float(parts[1]) - whole)
        return self._sums[entry]

    def knows(self, entry: str) -> bool:
        return entry in self._sums


def _join(backend: str, own: int, size: int) -> None:
    """Meet the other processes. After a restart the store may still hold the dead ones' addresses; each try has its
    own names in it.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store, _, _ = next(iter(dist.rendezvous("env://", own, size)))
    dist.init_process_group(backend, store=dist.PrefixStore(f"onward/{attempt}", store), rank=own, world_size=size)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def distributed_step(session: Any, group: Group, name: str, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Make one step of entry `name` together with the other processes; the state is the same in all of them."""
    program: Program = session.program
    gradients: StepGraph = program.gradients[name]
    updates: StepGraph = program.updates[name]
    own, samples, count = group.shard(feeds, program.input_names)
    weight = samples / count if count else 1.0 / group.size
    update_inputs = {v.name for v in updates.model.graph.input}
    handed_on = [n for n in gradients.outputs if n in update_inputs]
    visible = [n for n in gradients.outputs if n not in handed_on]
    first = not group.knows(name)
    if first:
        group.check_same(feeds)
        session._state = group.from_first(session._state)
    if samples:
        results = session._run(f"gradients {name}", gradients.model, own, group.with_own_key(session._state))
    else:  # fewer samples than processes: nothing to add, but the others wait for it
        results = {n: torch.zeros_like(v) for n, v in _shapes(session, gradients, feeds, name).items()}
    whole = 0.0
    if first:
        full = session._run(f"gradients {name}", gradients.model, feeds, session._state)
        whole = float(full[visible[0]]) if visible else 0.0
    scale = weight
    if visible and group.is_sum(name, whole, float(results[visible[0]]), weight):
        scale = 1.0
    scalars = [n for n in visible if results[n].ndim == 0]
    combined = group.combine({n: results[n] for n in [*handed_on, *scalars]}, scale)
    outputs = {n: to_numpy(combined[n]) for n in scalars}
    outputs.update({n: group.gather(results[n][:samples], count) for n in visible if n not in scalars})
    # Running statistics are those of process 0's share, as DistributedDataParallel has it.
    early = group.from_first({o: results[o] for o in gradients.replaces})
    following = session._run(
        f"update {name}", updates.model, {**feeds, **{n: combined[n] for n in handed_on}}, session._state
    )
    session._state.update({s: early[o] for o, s in gradients.replaces.items()})
    session._state.update({s: following[o] for o, s in updates.replaces.items()})
    return outputs


def _shapes(session: Any, graph: StepGraph, feeds: Mapping[str, np.ndarray], name: str) -> dict[str, torch.Tensor]:
    """Return outputs of the right shapes for a process without samples: it runs the first sample and drops it."""
    names = session.program.input_names
    one = {n: v[:1] if n in names and np.ndim(v) else v for n, v in feeds.items()}
    results: dict[str, torch.Tensor] = session._run(f"gradients {name}", graph.model, one, session._state)
    return results
