"""Processes as threads: `together(size, work)` runs `work(team)` once per member, with messages that meet in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from onward.backends.torch.batch_split import Team


class _Meeting:
    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.given: list[Any] = [None] * size


class ThreadTeam(Team):
    """A team whose members are threads."""

    def __init__(self, rank: int, size: int, meeting: _Meeting) -> None:
        super().__init__(rank, size, torch.device("cpu"))
        self.meeting = meeting
        self.messages = 0

    def send(self, message: Callable[..., Any], *arguments: Any) -> None:
        self.messages += 1
        kind = message.__name__
        own = arguments[0] if kind == "all_reduce" else arguments[1]
        operation = arguments[1] if kind == "all_reduce" and len(arguments) > 1 else dist.ReduceOp.SUM
        self.meeting.given[self.rank] = (kind, own.clone())
        self.meeting.barrier.wait()
        kinds, tensors = zip(*self.meeting.given, strict=True)
        assert len(set(kinds)) == 1, f"the members send different messages: {kinds}"
        assert len({(t.shape, t.dtype) for t in tensors}) == 1, "the members send tensors of different shapes"
        self.meeting.barrier.wait()
        if kind == "all_gather":
            for place, tensor in zip(arguments[0], tensors, strict=True):
                place.copy_(tensor)
            return
        stacked = torch.stack(tensors)
        reductions = {dist.ReduceOp.SUM: stacked.sum, dist.ReduceOp.MAX: stacked.amax, dist.ReduceOp.MIN: stacked.amin}
        own.copy_(reductions[operation](0))


def together(size: int, work: Callable[[ThreadTeam], Any]) -> list[Any]:
    """Return what `work` gives for each member of a team of `size`; an error in one is raised here."""
    meeting = _Meeting(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def member(rank: int) -> None:
        try:
            results[rank] = work(ThreadTeam(rank, size, meeting))
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=member, args=(r,)) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    real = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)]
    if errors:
        raise (real or errors)[0]
    return results
