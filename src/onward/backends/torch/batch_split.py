"""Values that are distributed over processes, and the interpreter that runs a graph on them.

A tensor is complete in every process. A `Share` is cut along one axis, such as the samples of a batch. A `Partial` is a
sum of which each process has one summand, such as a gradient. A node runs on the local share if the rule of its
operator (`batch_split_rules`) gives the same result. Otherwise its inputs are made whole first, and every process
computes all of it. So the results are those of a single process, up to the order of sums: batch statistics, the mean of
a loss with weights and ignored labels, dropout masks.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
import torch
import torch.distributed as dist
from torch import Tensor

from onward.backends.graph.interpreter import Body, Instruction
from onward.backends.processes import share
from onward.backends.torch.framework import TORCH, number
from onward.backends.torch.interpreter import Interpreter
from onward.errors import BackendError, Diagnostic

B303 = "B303"


class Cut(NamedTuple):
    """How an axis is divided: the sizes of all processes' shares, in order, repeated `turns` times.

    An axis of samples has one turn. An axis of 15 that was reshaped from [5 steps, 3 samples] has five turns.
    """

    sizes: tuple[int, ...]
    turns: int = 1

    @property
    def total(self) -> int:
        return self.turns * sum(self.sizes)


class Share:
    """This process's share of a tensor that is cut along `axis`."""

    __slots__ = ("axis", "cut", "own_positions", "tensor")

    def __init__(self, tensor: Tensor, axis: int, cut: Cut, own_positions: bool = False) -> None:
        self.tensor, self.axis, self.cut = tensor, axis, cut
        self.own_positions = own_positions  # the values are flat positions within this process's share

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return (*self.tensor.shape[: self.axis], self.cut.total, *self.tensor.shape[self.axis + 1 :])

    @property
    def ndim(self) -> int:
        return len(self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def like(self, tensor: Tensor, axis: int | None = None) -> Share:
        """Return another tensor cut in the same way, along `axis`."""
        return Share(tensor, self.axis if axis is None else axis, self.cut)


class Partial:
    """A tensor that is the sum of every process's `tensor`."""

    __slots__ = ("tensor", "total")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.total: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        return len(self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype


def spread(value: Any) -> bool:
    """Return whether a value is distributed over the processes."""
    if isinstance(value, list):
        return any(spread(v) for v in value)
    return isinstance(value, (Share, Partial))


class Team:
    """The processes that share values: the rank of this one, the division of a batch, and the messages."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.samples: tuple[int, ...] = (0,) * size  # of the batch, by process

    def start(self, sizes: Sequence[int]) -> int:
        """Return where this process's share begins."""
        return sum(sizes[: self.rank])

    def evenly(self, count: int) -> tuple[int, ...]:
        """Return the sizes of the shares of `count` items; they differ by one at most."""
        parts = [share(count, r, self.size) for r in range(self.size)]
        return tuple(p.stop - p.start for p in parts)

    def cut(self, value: Tensor, axis: int, cut: Cut) -> Tensor:
        """Return this process's share of a whole tensor, without a copy if there is one turn."""
        start, size = self.start(cut.sizes), cut.sizes[self.rank]
        if cut.turns == 1:
            return value.narrow(axis, start, size)
        return value.unflatten(axis, (cut.turns, -1)).narrow(axis + 1, start, size).flatten(axis, axis + 1)

    def share(self, value: Tensor, axis: int, cut: Cut) -> Share:
        return Share(self.cut(value, axis, cut), axis, cut)

    def whole(self, value: Any) -> Any:
        """Return the whole value: a share gathered, a partial summed, anything else unchanged."""
        if isinstance(value, Share):
            return self._gather(value)
        if isinstance(value, Partial):
            if value.total is None:
                value.total = self.add(value.tensor)
            return value.total
        return [self.whole(v) for v in value] if isinstance(value, list) else value

    def add(self, value: Tensor, operation: Any = dist.ReduceOp.SUM) -> Tensor:
        """Return the sum of every process's `value` (or another reduction, without a gradient)."""
        if needs_gradient(value) and operation == dist.ReduceOp.SUM:
            total: Tensor = _Added.apply(value, self)
            return total
        total = value.detach().contiguous().clone()
        self.send(dist.all_reduce, total, operation)
        return total

    def send(self, message: Callable[..., Any], *arguments: Any) -> None:
        """Exchange tensors with the other processes.

        Raises:
            BackendError: another process was lost.
        """
        try:
            message(*arguments)
        except RuntimeError as error:
            raise self.lost(error) from error

    def lost(self, error: Exception) -> BackendError:
        """Return the error for a failed message."""
        return BackendError(
            Diagnostic(
                B303,
                f"process {self.rank} lost another process: {str(error).splitlines()[0]}",
                hint="start again with Trainer.resume(...); torchrun does so by itself if it may restart processes",
            )
        )

    def add_all(self, values: dict[str, Partial]) -> None:
        """Compute the totals of all values, with one message per element type."""
        open_ones = [v for v in dict.fromkeys(values.values()) if v.total is None]
        for dtype in dict.fromkeys(v.dtype for v in open_ones):
            members = [v for v in open_ones if v.dtype == dtype]
            flat = torch.cat([v.tensor.reshape(-1) for v in members])
            self.send(dist.all_reduce, flat)
            for value, part in zip(members, flat.split([v.tensor.numel() for v in members]), strict=True):
                value.total = value.tensor = part.reshape(value.shape)  # the summand is not needed any more

    def can_cut(self, shape: Sequence[int]) -> bool:
        """Return whether a tensor of this shape is worth cutting along its first axis."""
        return bool(shape) and shape[0] >= self.size

    def scatter(self, value: Partial) -> Any:
        """Return this process's share of the sum along axis 0; the whole sum if it is too small to cut."""
        if not self.can_cut(value.shape):
            return self.whole(value)
        cut = Cut(self.evenly(value.shape[0]))
        return Share(self.cut(self.whole(value), 0, cut).clone(), 0, cut)

    def once(self, value: Any) -> Any:
        """Return a summand that counts `value` once: the value in the first process, zeros in the others.

        The zeros also depend on the value, so that every process sends the same messages in the backward pass.
        """
        if not self.rank:
            return value
        tensor = TORCH.tensor(value)
        if not needs_gradient(tensor):
            return torch.zeros_like(tensor)
        return torch.where(torch.zeros((), dtype=torch.bool, device=tensor.device), tensor, torch.zeros_like(tensor))

    def _gather(self, value: Share) -> Tensor:
        if needs_gradient(value.tensor):
            whole: Tensor = _Gathered.apply(value.tensor, self, value.axis, value.cut)
            return whole
        return self.gather(value.tensor.detach(), value.axis, value.cut)

    def gather(self, tensor: Tensor, axis: int, cut: Cut) -> Tensor:
        """Return the whole tensor of which each process has a share along `axis`."""
        value = Share(tensor, axis, cut)
        sizes, turns = value.cut
        local = value.tensor.movedim(value.axis, 0)
        local = local.reshape(turns, sizes[self.rank], *local.shape[1:])
        padded = local.new_zeros(turns, max(sizes), *local.shape[2:])
        padded[:, : sizes[self.rank]] = local
        as_bytes = padded.view(torch.uint8) if padded.dtype == torch.bool else padded
        parts = [torch.empty_like(as_bytes) for _ in sizes]
        self.send(dist.all_gather, parts, as_bytes)
        joined = torch.cat([p[:, :n] for p, n in zip(parts, sizes, strict=True)], 1).flatten(0, 1)
        return joined.view(padded.dtype).movedim(0, value.axis)


def needs_gradient(value: Tensor) -> bool:
    """Return whether autograd records operations on a tensor."""
    return bool(torch.is_grad_enabled() and value.requires_grad)


# Messages with a backward pass. Every process differentiates the same loss, so a value that all of them have counts
# once for each. The average of their gradients with respect to a parameter is the gradient; DistributedDataParallel
# computes that average.


class _Added(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """The sum over processes; its backward is the sum as well."""

    @staticmethod
    def forward(context: Any, value: Tensor, team: Team) -> Tensor:
        context.team = team
        return team.add(value)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Any, ...]:
        return context.team.add(gradient), None


class _Gathered(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """The whole of a share; in its backward each process takes its share of the sum."""

    @staticmethod
    def forward(context: Any, value: Tensor, team: Team, axis: int, cut: Cut) -> Tensor:
        context.team, context.axis, context.cut = team, axis, cut
        return team.gather(value, axis, cut)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Any, ...]:
        whole = context.team.add(gradient)
        return context.team.cut(whole, context.axis, context.cut), None, None, None


Rule = Callable[["Shared", Instruction, list[Any]], Any]
RULES: dict[str, Rule] = {}


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators on shares; it returns None if the inputs must be made whole."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(op_types, function))
        return function

    return register


# These return their inputs unchanged, or run bodies that support shares.
_OPAQUE = frozenset(
    {"If", "Loop", "Scan", "SequenceConstruct", "SequenceAt", "SequenceInsert", "SequenceErase", "SequenceLength"}
    | {"SequenceMap", "Optional", "OptionalGetElement", "OptionalHasElement", "Identity"}
)


class Shared(Interpreter):
    """An interpreter whose feeds and outputs may be `Share` and `Partial`.

    Partial outputs in `cut` are summed as soon as they are computed, and each process keeps its share along axis 0.
    """

    def __init__(
        self,
        graph: ir.Graph,
        opset: int,
        team: Team,
        *,
        outputs: Sequence[ir.Value] | None = None,
        cut: Sequence[str] = (),
        made_whole: set[str] | None = None,
    ) -> None:
        importlib.import_module("onward.backends.torch.batch_split_layers")  # registers all rules
        self.team = team
        self.made_whole = set() if made_whole is None else made_whole  # operators without a rule, for diagnosis
        self._masks = _ranges_of_masks(graph)
        super().__init__(graph, opset, outputs=outputs)
        self._cut = {slot for name, slot in zip(self.output_names, self._outputs, strict=True) if name in set(cut)}

    def body(self, graph: ir.Graph) -> Body:
        return SharedBody(graph, Shared(graph, self.opset, self.team, made_whole=self.made_whole), self.team)

    def call(self, instruction: Instruction, arguments: list[Any]) -> Any:
        result = self._call(instruction, arguments)
        if not self._cut.intersection(instruction.outputs):
            return result
        results = result if isinstance(result, tuple) else (result,)
        return tuple(
            self.team.scatter(v) if slot in self._cut and isinstance(v, Partial) else v
            for slot, v in zip(instruction.outputs, results, strict=False)
        )

    def _call(self, instruction: Instruction, arguments: list[Any]) -> Any:
        if instruction.name in self._masks:
            made = self._mask_range(arguments)
            if made is not None:
                return made
        captured = [v for b in instruction.bodies for v in b.values.values()]
        if not any(spread(a) for a in itertools.chain(arguments, captured)):
            return super().call(instruction, arguments)
        if instruction.op_type in _OPAQUE:
            if instruction.op_type == "If":
                arguments = [self.team.whole(a) for a in arguments]
            return self.plain(instruction, arguments)
        found = RULES.get(instruction.op_type)
        if found is not None:
            result = found(self, instruction, arguments)
            if result is not None:
                return result
        self.made_whole.add(instruction.op_type)
        return super().call(instruction, [self.team.whole(a) for a in arguments])

    def _mask_range(self, arguments: Sequence[Any]) -> Share | None:
        """Return this process's share of the Range behind a random mask, if the mask has an axis of samples."""
        count, length = sum(self.team.samples), int(number(arguments[1]))
        if not count or length % count:
            return None
        sizes = tuple(n * (length // count) for n in self.team.samples)
        start = self.team.start(sizes)
        numbers = torch.arange(start, start + sizes[self.team.rank], dtype=torch.int64, device=self.team.device)
        return Share(numbers, 0, Cut(sizes))


class SharedBody(Body):
    """The body of a control-flow node whose values may be distributed."""

    def __init__(self, graph: ir.Graph, interpreter: Interpreter, team: Team) -> None:
        super().__init__(graph, interpreter)
        self.team = team

    def __call__(self, *inputs: Any) -> list[Any]:
        # A number may control the iterations of a loop, so it must be whole.
        return [self.team.whole(v) if isinstance(v, Partial) and not v.ndim else v for v in super().__call__(*inputs)]

    def select(self, value: Any, axis: int, index: int) -> Any:
        if isinstance(value, Share) and value.axis != axis % value.ndim:
            axis = axis % value.ndim
            return value.like(value.tensor.select(axis, index), value.axis - (axis < value.axis))
        if isinstance(value, Partial):
            return Partial(value.tensor.select(axis, index))
        return super().select(self.team.whole(value), axis, index)

    def stack(self, values: list[Any], axis: int = 0) -> Any:
        first = values[0]
        if all(isinstance(v, Partial) for v in values):
            return Partial(torch.stack([v.tensor for v in values], axis))
        if all(isinstance(v, Share) and (v.axis, v.cut) == (first.axis, first.cut) for v in values):
            place = axis % (first.ndim + 1)
            return first.like(torch.stack([v.tensor for v in values], axis), first.axis + (place <= first.axis))
        return super().stack([self.team.whole(v) for v in values], axis)


def _ranges_of_masks(graph: ir.Graph) -> set[str]:
    """Return the names of the Range nodes of random masks (passes/randomness.py): only they reach BitwiseXor."""
    return {
        node.name or ""
        for node in graph
        if node.op_type == "Range" and node.name and all(u.node.op_type == "BitwiseXor" for u in node.outputs[0].uses())
    }


def elements(value: Any) -> int:
    """Return the number of elements of the whole value."""
    return math.prod(value.shape)
