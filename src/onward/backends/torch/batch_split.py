"""Values that are spread over processes, and the interpreter that runs a graph on them.

Every value means what it means in one process. What is stored differs: a tensor is whole in every process, a `Share`
is cut along one axis (the samples of a batch, say), and a `Partial` is a sum of which each process has a part (a
gradient). A node runs on its share wherever the rule of its operator (`batch_split_rules`) says that this is the same;
where none does, its inputs are made whole first, and every process computes all of it. So the numbers are those of one
process, up to the order of sums: batch statistics, the mean of a loss with weights and ignored labels, dropout masks.
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

from onward.backends.processes import share
from onward.backends.torch.host import number
from onward.backends.torch.interpreter import Body, Instruction, Interpreter, on_device
from onward.errors import BackendError, Diagnostic, define

B303 = define(
    "B303",
    "the processes do not fit together",
    why="All processes of a run train the same model on the same batches, each on its share of them.",
    fix="Start all of them with the same command and the same data.",
)


class Cut(NamedTuple):
    """How an axis is shared out: the sizes of all processes' parts, one after the other, so many times over.

    An axis of samples has one turn. Five steps of three samples in one axis of 15, as a reshape of [5, 3] gives, are
    five turns.
    """

    sizes: tuple[int, ...]
    turns: int = 1

    @property
    def total(self) -> int:
        return self.turns * sum(self.sizes)


class Share:
    """This process's part of a tensor that is cut along `axis`."""

    __slots__ = ("axis", "cut", "own_positions", "tensor")

    def __init__(self, tensor: Tensor, axis: int, cut: Cut, own_positions: bool = False) -> None:
        self.tensor, self.axis, self.cut = tensor, axis, cut
        self.own_positions = own_positions  # the values are flat positions, each in this process's own part

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole."""
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
    """Return whether a value is not whole in this process."""
    if isinstance(value, list):
        return any(spread(v) for v in value)
    return isinstance(value, (Share, Partial))


class Team:
    """The processes that share values: who this one is, how a batch is cut, and the messages between them."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.samples: tuple[int, ...] = (0,) * size  # of the batch, by process

    def start(self, sizes: Sequence[int]) -> int:
        """Return where this process's part begins."""
        return sum(sizes[: self.rank])

    def evenly(self, count: int) -> tuple[int, ...]:
        """Return the sizes of the parts of `count` things; they differ by one at most."""
        parts = [share(count, r, self.size) for r in range(self.size)]
        return tuple(p.stop - p.start for p in parts)

    def cut(self, value: Tensor, axis: int, cut: Cut) -> Tensor:
        """Return this process's part of a whole tensor; no copy where there is one turn."""
        start, size = self.start(cut.sizes), cut.sizes[self.rank]
        if cut.turns == 1:
            return value.narrow(axis, start, size)
        return value.unflatten(axis, (cut.turns, -1)).narrow(axis + 1, start, size).flatten(axis, axis + 1)

    def share(self, value: Tensor, axis: int, cut: Cut) -> Share:
        return Share(self.cut(value, axis, cut), axis, cut)

    def whole(self, value: Any) -> Any:
        """Return the whole of a value: gathered, or added up; anything else as it is."""
        if isinstance(value, Share):
            return self._gather(value)
        if isinstance(value, Partial):
            if value.total is None:
                value.total = self.add(value.tensor)
            return value.total
        return [self.whole(v) for v in value] if isinstance(value, list) else value

    def add(self, value: Tensor, operation: Any = dist.ReduceOp.SUM) -> Tensor:
        """Return the sum (or another reduction, which has no gradient) of every process's `value`."""
        if needs_gradient(value) and operation == dist.ReduceOp.SUM:
            total: Tensor = _Added.apply(value, self)
            return total
        total = value.detach().contiguous().clone()
        self.send(dist.all_reduce, total, operation)
        return total

    def send(self, message: Callable[..., Any], *arguments: Any) -> None:
        """Exchange tensors with the other processes.

        Raises:
            BackendError: one of them is gone.
        """
        try:
            message(*arguments)
        except RuntimeError as error:
            raise self.lost(error) from error

    def lost(self, error: Exception) -> BackendError:
        """Return the error for a message that did not get through."""
        return BackendError(
            Diagnostic(
                B303,
                f"process {self.rank} lost another process: {str(error).splitlines()[0]}",
                hint="start again with --resume; torchrun does so by itself with --max-restarts",
            )
        )

    def add_all(self, values: dict[str, Partial]) -> None:
        """Find the totals of all values, in one message per element type."""
        open_ones = [v for v in dict.fromkeys(values.values()) if v.total is None]
        for dtype in dict.fromkeys(v.dtype for v in open_ones):
            members = [v for v in open_ones if v.dtype == dtype]
            flat = torch.cat([v.tensor.reshape(-1) for v in members])
            self.send(dist.all_reduce, flat)
            for value, part in zip(members, flat.split([v.tensor.numel() for v in members]), strict=True):
                value.total = value.tensor = part.reshape(value.shape)  # the part alone is not needed any more

    def can_cut(self, shape: Sequence[int]) -> bool:
        """Return whether a tensor of this shape is worth cutting along its first axis."""
        return bool(shape) and shape[0] >= self.size

    def scatter(self, value: Partial) -> Any:
        """Return this process's part of the sum, along axis 0; all of it where it is too small to be cut."""
        if not self.can_cut(value.shape):
            return self.whole(value)
        cut = Cut(self.evenly(value.shape[0]))
        return Share(self.cut(self.whole(value), 0, cut).clone(), 0, cut)

    def once(self, value: Any) -> Any:
        """Return what counts once in a sum over the processes: the value in the first, zeros in the others.

        The zeros depend on the value, too, so that every process sends the same messages on the way back.
        """
        if not self.rank:
            return value
        tensor = value if isinstance(value, Tensor) else value.tensor()
        if not needs_gradient(tensor):
            return torch.zeros_like(tensor)
        return torch.where(torch.zeros((), dtype=torch.bool, device=tensor.device), tensor, torch.zeros_like(tensor))

    def _gather(self, value: Share) -> Tensor:
        if needs_gradient(value.tensor):
            whole: Tensor = _Gathered.apply(value.tensor, self, value.axis, value.cut)
            return whole
        return self.gather(value.tensor.detach(), value.axis, value.cut)

    def gather(self, tensor: Tensor, axis: int, cut: Cut) -> Tensor:
        """Return the whole of which each process has a part, cut along `axis`."""
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
    """Return whether autograd records what is done with a tensor."""
    return bool(torch.is_grad_enabled() and value.requires_grad)


# Messages that autograd goes back through. Every process differentiates the same loss, so a value that all of them have
# counts once for each: what they find by a parameter is, on average, the gradient, and DistributedDataParallel takes
# that average.


class _Added(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """The sum over processes: what comes back is the sum as well."""

    @staticmethod
    def forward(context: Any, value: Tensor, team: Team) -> Tensor:
        context.team = team
        return team.add(value)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Any, ...]:
        return context.team.add(gradient), None


class _Gathered(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """The whole of a share: what comes back is the sum, of which each process takes its part."""

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
    """Register how operators run on shares; a rule returns None where the inputs must be made whole."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(op_types, function))
        return function

    return register


# These hand their inputs on as they are, or run bodies that know shares themselves.
_OPAQUE = frozenset(
    {"If", "Loop", "Scan", "SequenceConstruct", "SequenceAt", "SequenceInsert", "SequenceErase", "SequenceLength"}
    | {"Optional", "OptionalGetElement", "OptionalHasElement", "Identity"}
)


class Shared(Interpreter):
    """An interpreter whose feeds may be `Share` and `Partial`, and whose outputs may be.

    Outputs in `cut` that are sums are added up as soon as they are there, and each process keeps its part along axis 0.
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
        self.made_whole = set() if made_whole is None else made_whole  # operators that had no rule, for the curious
        self._masks = _ranges_of_masks(graph)
        super().__init__(graph, opset, outputs=outputs)
        self._cut = {slot for name, slot in zip(self.output_names, self._outputs, strict=True) if name in set(cut)}

    def body(self, graph: ir.Graph) -> Body:
        return SharedBody(graph, Shared(graph, self.opset, self.team, made_whole=self.made_whole), self.team)

    def plain(self, instruction: Instruction, arguments: Sequence[Any]) -> Any:
        """Return what the operator gives for tensors as they are in this process."""
        return instruction.handler(instruction.attributes, *on_device(instruction, list(arguments)))

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
        """Return this process's part of the numbers from which a mask is made, where the mask has samples."""
        count, length = sum(self.team.samples), int(number(arguments[1]))
        if not count or length % count:
            return None
        sizes = tuple(n * (length // count) for n in self.team.samples)
        start = self.team.start(sizes)
        numbers = torch.arange(start, start + sizes[self.team.rank], dtype=torch.int64, device=self.team.device)
        return Share(numbers, 0, Cut(sizes))


class SharedBody(Body):
    """The body of a control-flow node whose values may be spread."""

    def __init__(self, graph: ir.Graph, interpreter: Interpreter, team: Team) -> None:
        super().__init__(graph, interpreter)
        self.team = team

    def __call__(self, *inputs: Any) -> list[Any]:
        # A number may decide how often a loop runs: it is needed here.
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
    """Return the names of the Range nodes of random masks (lower/random.py): only they are mixed by BitwiseXor."""
    return {
        node.name or ""
        for node in graph
        if node.op_type == "Range" and node.name and all(u.node.op_type == "BitwiseXor" for u in node.outputs[0].uses())
    }


def elements(value: Any) -> int:
    """Return how many elements the whole of a value has."""
    return math.prod(value.shape)
