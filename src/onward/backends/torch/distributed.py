"""Train one model in several processes: each computes its share of every batch, and all keep the same state.

The program's graphs run on shares (`batch_split`), so all results equal those of a single process. Autograd computes
the gradients under DistributedDataParallel, which averages them. Alternatively the explicit `gradients` graph gives
each process a summand of every gradient, and one message sums them. `update` runs in every process on the same numbers.

With `shard=True` a process keeps only its share of the parameters and of the optimizer's state, like PyTorch's
fully_shard. A weight is gathered for each node that reads it and then freed. A gradient is summed and cut as soon as it
is computed, and the update runs on the shares.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import weakref
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from onward.backends.processes import Rows, rank, share, world_size
from onward.backends.torch.autograd import Forward
from onward.backends.torch.batch_split import B303, Cut, Partial, Share, Team
from onward.backends.torch.tensors import to_numpy, to_tensor
from onward.compiler.program import Program
from onward.errors import ArgumentError, BackendError, Diagnostic


class Group(Team):
    """The processes of a run, created once per session. The program needs separate gradients and update graphs.

    Raises:
        ArgumentError: the program lacks these graphs.
        BackendError: the other processes cannot be reached.
    """

    def __init__(self, program: Program, device: torch.device, *, shard: bool = False) -> None:
        super().__init__(rank(), world_size(), device)
        self.shard = shard
        if any(entry.gradients is None for entry in program.entries.values()):
            raise ArgumentError(
                Diagnostic(
                    B303,
                    "the program has no gradients graph, which training in several processes needs",
                    hint="give the Trainer the model itself, or compile it with split=True",
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
        self._checked = False

    def kept(self, value: np.ndarray) -> torch.Tensor | Share:
        """Return the state, or the share of it, that this process keeps."""
        if not self.shard or not self.can_cut(value.shape):
            return to_tensor(value).to(self.device)
        sizes = self.evenly(value.shape[0])
        start = self.start(sizes)
        return Share(to_tensor(value[start : start + sizes[self.rank]]).to(self.device), 0, Cut(sizes))

    def shares(self, feeds: Mapping[str, np.ndarray], names: tuple[str, ...]) -> dict[str, Any]:
        """Return the feeds with the batch divided over the processes; other feeds are whole in every process."""
        count = next((_samples(feeds[n]) for n in names if n in feeds and np.ndim(feeds[n])), 0)
        self.samples = self.evenly(count)
        own = share(count, self.rank, self.size)
        return {
            n: Share(to_tensor(v if _is_part(v) else v[own]).to(self.device), 0, Cut(self.samples))
            if n in names and np.ndim(v) and _samples(v) == count
            else v
            for n, v in feeds.items()
        }

    def whole_batch(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the feeds with the rows of all processes."""
        found = dict(feeds)
        for name, value in feeds.items():
            if _is_part(value):
                rows = to_tensor(value).to(self.device)
                found[name] = to_numpy(self.gather(rows, 0, Cut(self.evenly(_samples(value)))))
        return found

    def gradients(self, session: Any, name: str, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the outputs of the gradients graph of entry `name`, computed together with the other processes.

        Raises:
            BackendError: another process was lost; the state is that before this step.
        """
        program: Program = session.program
        gradients, update = program.entries[name].gradients, program.entries[name].update
        assert gradients is not None
        assert update is not None
        if not self._checked:
            self._check_same(feeds)
            if not self.shard:
                self._broadcast_from_first(session._state)
            self._checked = True
        try:
            own = {**feeds, **self.shares(feeds, program.input_names)}
            if session._forward[name] is not None:
                found: dict[str, Any] = session.differentiate(name, own)
                return found
            cut = [n for n in gradients.outputs if n in update.input_names] if self.shard else ()
            results: dict[str, Any] = session._run(gradients, own, cut=cut)
        finally:
            self.samples = (0,) * self.size
        self.add_all({n: v for n, v in results.items() if isinstance(v, Partial)})
        return results

    def parallel(self, forward: Forward) -> torch.nn.Module:
        """Return the module in DistributedDataParallel, which averages gradients during the backward pass."""
        module = torch.nn.parallel.DistributedDataParallel(
            forward, static_graph=not forward.branches, find_unused_parameters=forward.branches
        )
        _PARALLEL.add(module)
        return module

    @staticmethod
    def is_lost(error: Exception) -> bool:
        """Return whether an error of PyTorch means that another process was lost."""
        return isinstance(error, dist.DistError) or "gloo" in str(error)

    def as_kept(self, value: Any, before: Any) -> Any:
        """Return a new state in the form of the old one."""
        if isinstance(before, Share):
            if isinstance(value, Share) and (value.axis, value.cut) == (before.axis, before.cut):
                return value
            whole = self.whole(value)
            return Share(self.cut(whole, before.axis, before.cut).clone(), before.axis, before.cut)
        return self.whole(value)

    def _broadcast_from_first(self, values: dict[str, torch.Tensor]) -> None:
        """Replace the values by those of process 0."""
        for name in values:
            values[name] = values[name].contiguous()
            self.send(dist.broadcast, values[name], 0)

    def _check_same(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Raise in every process unless all have the same batch."""
        digest = 0
        for name, value in sorted(feeds.items()):
            part = _is_part(value)  # only the number of samples is the same in all processes
            digest = zlib.crc32(f"{name} {_samples(value) if np.ndim(value) else 1}".encode(), digest)
            digest = digest if part else zlib.crc32(np.asarray(value).tobytes(), digest)
        ends = self.add(torch.tensor([digest, -digest], device=self.device), dist.ReduceOp.MAX)
        if int(ends[0]) != -int(ends[1]):
            raise ArgumentError(
                Diagnostic(
                    B303,
                    "the processes have different batches",
                    hint="each process needs the same data, the same seed and the same checkpoint, and takes its share "
                    "of a batch itself",
                )
            )


def _is_part(value: Any) -> bool:
    return isinstance(value, Rows) and value.total > 0


def _samples(value: Any) -> int:
    return value.total if _is_part(value) else int(np.shape(value)[0])


def _join(backend: str, own: int, size: int) -> None:
    """Connect to the other processes.

    After a restart the store may still contain addresses of dead processes, so each attempt uses its own names.
    """
    # Its functions have the group of the moment in which it is imported as a default argument, and so keep that group
    # until Python is gone. DistributedDataParallel imports it; before there is a group, it does no harm.
    importlib.import_module("torch.distributed.nn.functional")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store, _, _ = next(iter(dist.rendezvous("env://", own, size)))
    dist.init_process_group(backend, store=dist.PrefixStore(f"onward/{attempt}", store), rank=own, world_size=size)


_PARALLEL: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def _leave() -> None:
    """Disconnect from the other processes, and end the threads of the connection, before Python exits.

    The threads end when nothing refers to the group. If that is while Python exits, one that needs Python's lock is
    ended by force, which sometimes aborts the process. DistributedDataParallel refers to the group in a cycle.
    """
    for module in list(_PARALLEL):
        for held in ("reducer", "logger", "process_group"):
            module.__dict__.pop(held, None)
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()
