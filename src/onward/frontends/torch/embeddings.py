"""Embeddings as PyTorch trains them: the padding row without a gradient, bags written out as Gather and a reduction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from onward.autodiff.lowering import is_gradient
from onward.errors import ArgumentError, Diagnostic, define
from onward.model import graphs
from onward.model.builder import Builder, Names
from onward.model.training_model import TrainingModel

A212 = define(
    "A212",
    "an embedding that PyTorch trains in a way that a file cannot hold",
    why="`max_norm` changes the table in the forward pass, `sparse` and `scale_grad_by_freq` change what the optimizer "
    "sees, and a bag with offsets or padding has rows of different lengths. An ordinary gradient would train "
    "something else.",
    fix="Leave the option out, or write the bag as torch.nn.Embedding and a sum or mean over a 2-D batch.",
)

BAG_INSTEAD = (
    "pad the bags to one length, take torch.nn.Embedding of the 2-D batch, and reduce over dimension 1 (a sum, "
    "weighted with 0 where there is padding)"
)


def check_options(module: torch.nn.Module) -> None:
    """Raise, with every problem, for embeddings whose own options say that a file cannot train them."""
    problems = []
    for name, part in module.named_modules():
        if not isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            continue
        place = _place(name, type(part).__name__)
        if part.max_norm is not None:
            problems.append(_renorm(place, f"max_norm={part.max_norm}"))
        if part.weight.requires_grad:
            problems += _options(place, part.scale_grad_by_freq, part.sparse)
        if isinstance(part, torch.nn.EmbeddingBag) and part.padding_idx is not None:
            problems.append(_bag(place, f"padding_idx={part.padding_idx}"))
    if problems:
        raise ArgumentError(problems)


def padding_rows(
    program: torch.export.ExportedProgram, module: torch.nn.Module, trained: Sequence[str]
) -> dict[str, int]:
    """Return the row of each trained table, by its first name, that gets no gradient in PyTorch: `padding_idx`.

    The captured graph is read, not the modules, so `torch.nn.functional.embedding` counts as well.

    Raises:
        ArgumentError: with every embedding that an ordinary gradient would train otherwise than PyTorch does.
    """
    first = {id(p): n for n, p in module.named_parameters()}
    aliases = {n: first[id(p)] for n, p in module.named_parameters(remove_duplicate=False)}
    parameters = {k: aliases.get(n, n) for k, n in program.graph_signature.inputs_to_parameters.items()}
    users: dict[str, list[torch.fx.Node]] = {}
    rows: dict[str, tuple[int, torch.fx.Node]] = {}
    problems = []
    for graph in (m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)):
        whole = graph is program.graph
        for node in graph.nodes:
            if whole and node.op == "placeholder" and node.name in parameters:
                users.setdefault(parameters[node.name], []).extend(node.users)
            target = node.target.name() if isinstance(node.target, torch._ops.OpOverload) else ""
            if target.startswith(("aten::embedding_renorm", "aten::_embedding_bag", "aten::embedding_bag")):
                renorm = "renorm" in target
                problems.append((_renorm if renorm else _bag)(_place_of(node), target.removeprefix("aten::")))
            if target != "aten::embedding":
                continue
            given = {
                **dict(zip(("padding_idx", "scale_grad_by_freq", "sparse"), node.args[2:], strict=False)),
                **node.kwargs,
            }
            padding = given.get("padding_idx", -1)
            table = parameters.get(node.args[0].name) if whole else None
            if table is None or table in trained:
                problems += _options(_place_of(node), given.get("scale_grad_by_freq"), given.get("sparse"))
            if padding < 0:
                continue
            if table is None:
                problems.append(_padding(_place_of(node), padding, "the table is computed, not a parameter itself"))
            elif table in trained:
                rows[table] = (padding, node)
    for table, (row, node) in rows.items():
        others = [u for u in users[table] if not _is_padded(u, row)]
        if others:
            used = ", ".join(dict.fromkeys(_place_of(u) for u in others))
            problems.append(_padding(_place_of(node), row, f"`{table}` is used elsewhere too, by {used}"))
    if problems:
        raise ArgumentError(problems)
    return {table: row for table, (row, _) in rows.items()}


def block_padding(model: TrainingModel, rows: Mapping[str, int]) -> dict[str, str]:
    """Put zeros into the padding row of each table's gradient, before the optimizer; return the new gradients' names.

    A table is read by nothing but embeddings with this padding (`padding_rows`), so this is PyTorch's gradient; weight
    decay still reaches the row, as in PyTorch.
    """
    algorithm = model.entries[0].algorithm
    assert algorithm is not None
    names = Names(graphs.all_names(model.graph) | graphs.all_names(algorithm))
    made: dict[str, str] = {}
    for node in [n for n in algorithm if is_gradient(n)]:
        op = Builder(model.opset, names, prefix="padding/")
        for table, gradient in zip(node.attributes["xs"].as_strings(), node.outputs, strict=False):
            if table not in rows:
                continue
            uses = list(gradient.uses())
            weight = model.graph.initializers[table]
            assert weight.const_value is not None
            zeros = np.zeros_like(weight.const_value.numpy()[:1])
            blocked = op.ScatterND(gradient, np.array([[rows[table]]]), zeros)
            blocked.name, blocked.type, blocked.shape = (
                names.unique(f"{gradient.name}/padded"),
                weight.type,
                weight.shape,
            )
            made[table] = blocked.name
            for user, index in uses:
                user.replace_input_with(index, blocked)
        algorithm.insert_after(node, op.nodes)
    return made


@contextlib.contextmanager
def checked_bags(module: torch.nn.Module) -> Iterator[None]:
    """Refuse, as it is called, every `embedding_bag` that `written_bags` cannot write out."""
    names = {id(p): n for n, p in module.named_parameters()}
    original = torch.nn.functional.embedding_bag

    def embedding_bag(input: Any, weight: Any, offsets: Any = None, *rest: Any, **options: Any) -> Any:
        given = dict(zip(_BAG_OPTIONS, rest, strict=False)) | options
        place = f"embedding_bag of `{names.get(id(weight), 'a table that is no parameter')}`"
        problems = _options(place, given.get("scale_grad_by_freq"), given.get("sparse"))
        if given.get("max_norm") is not None:
            problems.append(_renorm(place, f"max_norm={given['max_norm']}"))
        if given.get("padding_idx") is not None:
            problems.append(_bag(place, f"padding_idx={given['padding_idx']}"))
        if input.is_nested or input.ndim != 2 or offsets is not None:
            found = "a nested tensor" if input.is_nested else f"{input.ndim}-D indices with offsets"
            problems.append(_bag(place, found))
        if problems:
            raise ArgumentError(problems)
        return original(input, weight, offsets, *rest, **options)

    with _replaced(embedding_bag):
        yield


@contextlib.contextmanager
def written_bags() -> Iterator[None]:
    """Write `embedding_bag` of a 2-D batch as an embedding and a reduction, which is what it computes.

    PyTorch's exporter makes a Loop of If nodes of it, on which ONNX Runtime 1.31.1 crashes.
    """

    def embedding_bag(input: Any, weight: Any, offsets: Any = None, *rest: Any, **options: Any) -> Any:
        given = dict(zip(_BAG_OPTIONS, rest, strict=False)) | options
        rows = torch.nn.functional.embedding(input, weight)
        scales = given.get("per_sample_weights")
        if scales is not None:
            rows = rows * scales.unsqueeze(-1)
        mode = given.get("mode", "mean")
        return rows.sum(1) if mode == "sum" else rows.mean(1) if mode == "mean" else rows.amax(1)

    with _replaced(embedding_bag):
        yield


_BAG_OPTIONS = ("max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights",
                "include_last_offset", "padding_idx")  # fmt: skip


@contextlib.contextmanager
def _replaced(function: Any) -> Iterator[None]:
    original = torch.nn.functional.embedding_bag
    torch.nn.functional.embedding_bag = function
    try:
        yield
    finally:
        torch.nn.functional.embedding_bag = original


def _is_padded(node: torch.fx.Node, row: int) -> bool:
    return str(node.target) == "aten.embedding.default" and len(node.args) > 2 and node.args[2] == row


def _place(name: str, kind: str) -> str:
    return f"`{name or '(the module itself)'}` ({kind})"


def _place_of(node: torch.fx.Node) -> str:
    """Return the module that the operator was captured in."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    name, kind = stack[-1] if stack else ("", node.name)
    return _place(name, str(getattr(kind, "__name__", kind)).rpartition(".")[2])


def _options(place: str, by_frequency: Any, sparse: Any) -> list[Diagnostic]:
    found = []
    if by_frequency:
        found.append(
            Diagnostic(A212, "an embedding divides its gradient by how often a row occurs", place=place,
                       found="scale_grad_by_freq=True", hint="use scale_grad_by_freq=False")
        )  # fmt: skip
    if sparse:
        found.append(
            Diagnostic(A212, "an embedding has sparse gradients", place=place, found="sparse=True",
                       hint="use sparse=False: with sparse gradients PyTorch's optimizers skip the rows of no sample")
        )  # fmt: skip
    return found


def _renorm(place: str, found: str) -> Diagnostic:
    return Diagnostic(A212, "an embedding changes its table in the forward pass", place=place, found=found,
                      hint="leave max_norm out; a bound of the update is clip_norm= of onward.optimizers")  # fmt: skip


def _bag(place: str, found: str) -> Diagnostic:
    return Diagnostic(A212, "an embedding bag that has no form in a file", place=place, found=found,
                      needed="2-D indices without padding_idx, through torch.nn.functional.embedding_bag or "
                      "torch.nn.EmbeddingBag", hint=BAG_INSTEAD)  # fmt: skip


def _padding(place: str, row: int, found: str) -> Diagnostic:
    return Diagnostic(
        A212,
        f"row {row} of an embedding's table is padding, and its gradient cannot be told from the others'",
        place=place,
        found=found,
        needed="a parameter that only embeddings with this padding_idx read",
        hint="use padding_idx=None (then the row trains like the others), or give the other use a table of its own",
    )
