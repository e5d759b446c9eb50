"""Export embeddings as PyTorch trains them: padding without a gradient, bags as Gather and a reduction."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from onward.errors import ArgumentError, Diagnostic
from onward.frontends.torch.replacements import replaced
from onward.graph.builder import Names
from onward.model.training_model import TrainingModel, is_gradient

A212 = "A212"

BAG_INSTEAD = (
    "pad the bags to one length, apply torch.nn.Embedding to the 2-D batch, and reduce over dimension 1 (a sum "
    "with weight 0 for padding)"
)


def check_options(module: torch.nn.Module) -> None:
    """Raise, with every problem, for embeddings with options that a file cannot express."""
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


@dataclasses.dataclass(frozen=True)
class Lookup:
    """An embedding with `padding_idx` in the captured graph: its table, the padding row, the Gather's output."""

    table: str
    row: int
    output: str
    indices: np.dtype[Any]
    place: str


def padded_lookups(
    program: torch.export.ExportedProgram, module: torch.nn.Module, trained: Sequence[str], outputs: Sequence[str]
) -> list[Lookup]:
    """Return the embeddings of trained tables whose padding row gets no gradient in PyTorch.

    This reads the captured graph, not the modules, so it includes `torch.nn.functional.embedding`. `outputs` are the
    names of the model's outputs in the file.

    Raises:
        ArgumentError: lists every embedding that an ordinary gradient would train differently from PyTorch.
    """
    first = {id(p): n for n, p in module.named_parameters()}
    aliases = {n: first[id(p)] for n, p in module.named_parameters(remove_duplicate=False)}
    parameters = {k: aliases.get(n, n) for k, n in program.graph_signature.inputs_to_parameters.items()}
    renamed = dict(zip(program.graph_signature.user_outputs, outputs, strict=False))
    found: list[Lookup] = []
    problems = []
    for graph in (m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)):
        whole = graph is program.graph
        for node in graph.nodes:
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
                problems.append(_padding(_place_of(node), padding, "the table is computed, not a parameter"))
            elif table in trained:
                kind = np.dtype(str(node.args[1].meta["val"].dtype).removeprefix("torch."))
                found.append(Lookup(table, padding, renamed.get(node.name, node.name), kind, _place_of(node)))
    if problems:
        raise ArgumentError(problems)
    return found


def split_padding_reads(proto: onnx.ModelProto, lookups: Sequence[Lookup]) -> dict[str, tuple[str, str]]:
    """Let each padded embedding read its padding row through a separate alias; return (trained, constant) by table.

    Gradient can only distinguish whole tensors, and a tied output may also read the table. So padding rows are read
    through one Identity of the table, and everything else through another. `exclude_padding_from_gradient` then
    differentiates with respect to the second only. The results of the graph do not change. Changes `proto` in place.

    Raises:
        ArgumentError: the exporter did not write an embedding as one Gather.
    """
    graph = proto.graph
    names = Names({n for g in all_graphs(graph) for node in g.node for n in (*node.input, *node.output)})
    names.taken.update(v.name for v in [*graph.initializer, *graph.input])
    tables = list(dict.fromkeys(lookup.table for lookup in lookups))
    aliases = {t: (names.unique(f"{t}/trained"), names.unique(f"{t}/constant")) for t in tables}
    for inner in all_graphs(graph):
        for node in inner.node:
            for index, name in enumerate(node.input):
                if name in aliases:
                    node.input[index] = aliases[name][0]
    for lookup in lookups:
        trained, constant = aliases[lookup.table]
        position = next((i for i, n in enumerate(graph.node) if lookup.output in n.output), None)
        gather = None if position is None else graph.node[position]
        if position is None or gather is None or gather.op_type != "Gather" or gather.input[0] != trained:
            raise ArgumentError(_padding(lookup.place, lookup.row, "the exporter did not write it as one Gather"))
        row, padded, looked, filled, last = (
            names.unique(f"{lookup.output}/{n}") for n in ("row", "is_padding", "looked_up", "padding", "last")
        )
        ids = gather.input[1]
        del gather.output[:]
        gather.output.append(looked)
        before = [
            _constant(row, np.array(lookup.row, lookup.indices)),
            _constant(last, np.array([-1])),
            onnx.helper.make_node("Equal", [ids, row], [f"{padded}/flat"]),
            onnx.helper.make_node("Unsqueeze", [f"{padded}/flat", last], [padded]),
            onnx.helper.make_node("Gather", [constant, row], [filled]),
        ]
        after = onnx.helper.make_node("Where", [padded, filled, looked], [lookup.output])
        nodes = [*graph.node]
        nodes[position : position + 1] = [*before, gather, after]
        _set_nodes(graph, nodes)
    if not aliases:
        return {}
    copies = [onnx.helper.make_node("Identity", [t], [alias]) for t, pair in aliases.items() for alias in pair]
    _set_nodes(graph, [*copies, *graph.node])
    return aliases


def _constant(name: str, array: np.ndarray) -> onnx.NodeProto:
    return onnx.helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(array))


def _set_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def exclude_padding_from_gradient(model: TrainingModel, aliases: Mapping[str, tuple[str, str]]) -> None:
    """Differentiate with respect to the trained alias of each table, so that padding rows get no gradient.

    Weight decay still changes the padding row, as in PyTorch.
    """
    if not aliases:
        return
    algorithm = model.entries[0].algorithm
    assert algorithm is not None
    values = model.values()
    for node in [n for n in algorithm if is_gradient(n)]:
        xs, zs = node.attributes["xs"].as_strings(), node.attributes["zs"].as_strings()
        constants = [aliases[x][1] for x in xs if x in aliases]
        for index, x in enumerate(xs):
            if x in aliases:
                node.replace_input_with(index, values[aliases[x][0]])
        count = len(node.inputs)
        node.resize_inputs(count + len(constants))
        for index, name in enumerate(constants):
            node.replace_input_with(count + index, values[name])
        node.attributes["xs"] = ir.AttrStrings("xs", [aliases[x][0] if x in aliases else x for x in xs])
        node.attributes["zs"] = ir.AttrStrings("zs", [*zs, *constants])


def all_graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """Return the graph and its subgraphs, to any depth."""
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += all_graphs(attribute.g)
    return found


@contextlib.contextmanager
def refuse_unsupported_bags(module: torch.nn.Module) -> Iterator[None]:
    """Raise at each call of `embedding_bag` that `decompose_bags` cannot express."""
    names = {id(p): n for n, p in module.named_parameters()}
    original = torch.nn.functional.embedding_bag

    def embedding_bag(input: Any, weight: Any, offsets: Any = None, *rest: Any, **options: Any) -> Any:
        given = dict(zip(_BAG_OPTIONS, rest, strict=False)) | options
        place = f"embedding_bag of `{names.get(id(weight), 'a table that is not a parameter')}`"
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

    with replaced(torch.nn.functional, {"embedding_bag": embedding_bag}):
        yield


@contextlib.contextmanager
def decompose_bags() -> Iterator[None]:
    """Replace `embedding_bag` of a 2-D batch by an embedding and a reduction.

    PyTorch's exporter writes a Loop with If nodes, on which ONNX Runtime 1.31.1 crashes.
    """

    def embedding_bag(input: Any, weight: Any, offsets: Any = None, *rest: Any, **options: Any) -> Any:
        given = dict(zip(_BAG_OPTIONS, rest, strict=False)) | options
        rows = torch.nn.functional.embedding(input, weight)
        scales = given.get("per_sample_weights")
        if scales is not None:
            rows = rows * scales.unsqueeze(-1)
        mode = given.get("mode", "mean")
        return rows.sum(1) if mode == "sum" else rows.mean(1) if mode == "mean" else rows.amax(1)

    with replaced(torch.nn.functional, {"embedding_bag": embedding_bag}):
        yield


_BAG_OPTIONS = ("max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights",
                "include_last_offset", "padding_idx")  # fmt: skip


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
                       hint="use sparse=False: with sparse gradients PyTorch's optimizers skip rows outside the batch")
        )  # fmt: skip
    return found


def _renorm(place: str, found: str) -> Diagnostic:
    return Diagnostic(A212, "an embedding changes its table in the forward pass", place=place, found=found,
                      hint="remove max_norm; to bound the update, use clip_norm= of onward.optimizers")  # fmt: skip


def _bag(place: str, found: str) -> Diagnostic:
    return Diagnostic(A212, "a file cannot express this embedding bag", place=place, found=found,
                      needed="2-D indices without padding_idx, through torch.nn.functional.embedding_bag or "
                      "torch.nn.EmbeddingBag", hint=BAG_INSTEAD)  # fmt: skip


def _padding(place: str, row: int, found: str) -> Diagnostic:
    return Diagnostic(
        A212,
        f"row {row} of an embedding's table is padding, and its gradient cannot be separated from the others'",
        place=place,
        found=found,
        needed="a parameter as the table, outside of control flow such as torch.cond",
        hint="use padding_idx=None (then the row trains like the others)",
    )
