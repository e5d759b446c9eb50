"""Warn about weights that different layers share, and give each layer its own copy (`untie`).

`nn.TransformerEncoder` creates its layers as copies of one, so an untrained model is exported with one set of weights
for all of them. In the graph these look like intentionally tied layers. Only the module names of the nodes differ
(docs/decisions/merged-initializers.md).
"""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Sequence

import onnx_ir as ir

from onward.author.merged_weights import copy_initializer
from onward.errors import ArgumentError, Diagnostic, Severity, counted
from onward.graph.builder import Names, Value
from onward.model.trainable import as_patterns, final_uses, is_passed_on, no_match
from onward.model.training_model import FLOAT_TYPES

A117 = "A117"

_SCOPES = "pkg.torch.onnx.name_scopes"  # the modules around a node, written by PyTorch's exporter
_REUSE = re.compile(r"_\d+(?=/|$)")  # PyTorch's older exporter calls the second use of module `fc` `fc_1`
# A table that encoder and decoder, or input and output embedding, share is tied on purpose.
_TABLES = ("Gather", "GatherElements", "GatherND")


class TiedWeightsWarning(UserWarning):
    """Layers of different names share weights; `diagnostic` lists them."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.render())
        self.diagnostic = diagnostic


def tied_layers(parameters: Sequence[Value], influential: set[ir.Node]) -> TiedWeightsWarning | None:
    """Return the warning for weights that modules of different names share; None if no matrix is among them.

    The modules are those of `influential`, the nodes that the loss depends on: the update of another training entry
    reads the weights too.
    """
    readers = {value.name or "": _readers(value) for value in parameters}
    layers = {name: [m for m, nodes in found.items() if nodes & influential] for name, found in readers.items()}
    shared = {name: found for name, found in layers.items() if len(found) > 1}
    if not any(len(value.shape or ()) > 1 for value in parameters if value.name in shared):
        return None
    listed = [f"`{name}` in {', '.join(found[:3])}{', …' * (len(found) > 3)}" for name, found in shared.items()]
    more = f"; and {len(listed) - 3} more" if len(listed) > 3 else ""
    return TiedWeightsWarning(
        Diagnostic(
            A117,
            f"layers of different names share {counted(len(shared), 'weight')}",
            found="; ".join(listed[:3]) + more,
            hint='exporters merge equal weights; give each layer its own with untie="*", or pass '
            "keep_shared=True if they are tied on purpose",
            severity=Severity.WARNING,
        )
    )


def untie(graph: ir.Graph, names: Names, patterns: str | Sequence[str]) -> list[Value]:
    """Give each layer its own copy of every shared weight that a glob matches; return the new weights.

    The module names in the file define the layers. Without module names, a weight that is named in full gets one copy
    for each node that reads it.

    Raises:
        ArgumentError: a glob matches no shared weight.
    """
    wanted = as_patterns(patterns)
    shared: dict[str, tuple[Value, dict[str, set[ir.Node]]]] = {}
    for name, value in graph.initializers.items():
        fitting = [p for p in wanted if fnmatch.fnmatchcase(name, p)]
        readers = _readers(value, every_node=name in fitting) if fitting else {}
        if len(readers) > 1:
            shared[name] = value, readers
    unfit = [p for p in wanted if not any(fnmatch.fnmatchcase(name, p) for name in shared)]
    if unfit:
        candidates = [name for name, value in graph.initializers.items() if len(_readers(value)) > 1]
        raise ArgumentError([no_match(p, candidates, "shared weight", "untie=") for p in unfit])
    made = []
    for shared_name, (value, readers) in shared.items():
        keeper = max(readers, key=lambda layer: shared_name.startswith(f"{layer}."))  # the first, if no name fits
        rest = shared_name.removeprefix(f"{keeper}.")
        for layer in readers:
            if layer != keeper:
                stand_in = _stand_in(value, readers[layer])
                name = names.unique(f"{layer}.{rest}") if stand_in is None else stand_in.outputs[0].name or ""
                copy = copy_initializer(value, name)
                if stand_in is not None:
                    stand_in.outputs[0].replace_all_uses_with(copy)
                    graph.remove(stand_in, safe=True)
                graph.register_initializer(copy)
                _reassign(value, copy, readers[layer])
                made.append(copy)
    return made


def _readers(value: Value, *, every_node: bool = False) -> dict[str, set[ir.Node]]:
    """Return the nodes that read a weight, directly or not, by module; {} where the modules are unknown."""
    if value.dtype not in FLOAT_TYPES or value.const_value is None or value.const_value.size < 2:
        return {}
    nodes = list(dict.fromkeys(node for node, _ in final_uses(value)))
    if any(node.op_type in _TABLES for node in nodes) and not every_node:
        return {}
    modules = {node: module for node in nodes if (module := _module(node))}
    if not modules and every_node:
        modules = {node: node.name or f"{node.op_type}_{number}" for number, node in enumerate(nodes)}
    paths = set(modules.values())
    readers: dict[str, set[ir.Node]] = {}
    for node, path in modules.items():
        first = _REUSE.sub("", path)
        readers.setdefault((first if first in paths else path).replace("/", "."), set()).add(node)
    return readers


def _module(node: ir.Node) -> str:
    """Return the path of the module that a node was exported from, or "" where it is unknown."""
    scopes = node.metadata_props.get(_SCOPES, "")
    if scopes:
        try:
            path = ast.literal_eval(scopes)
        except (ValueError, SyntaxError):
            return ""
        return str(path[-2]) if isinstance(path, list) and len(path) > 1 else ""
    parts: list[str] = []
    for part in (node.name or "").split("/")[:-1]:
        if parts and part.startswith(f"{parts[-1]}."):
            parts.pop()  # the older exporter writes `layer1/layer1.0` for child 0 of `layer1`
        if part:
            parts.append(part)
    return "/".join(parts)


def _stand_in(value: Value, readers: set[ir.Node]) -> ir.Node | None:
    """Return the Identity that PyTorch's older exporter writes for a merged weight: its output has the old name."""
    for node, _ in value.uses():
        if node.op_type == "Identity" and node.graph is value.graph and not node.outputs[0].is_graph_output():
            behind = {reader for reader, _ in final_uses(node.outputs[0])}
            if behind and behind <= readers:
                return node
    return None


def _reassign(value: Value, copy: Value, readers: set[ir.Node]) -> None:
    """Let `readers` read `copy` instead of `value`; copy the operators between them that others also read."""
    for node, index in list(value.uses()):
        if node in readers:
            node.replace_input_with(index, copy)
        elif is_passed_on(node, index):
            behind = {n for output in node.outputs for n, _ in final_uses(output)}
            if behind and behind <= readers:
                node.replace_input_with(index, copy)
            elif behind & readers:
                twin = ir.Node(
                    node.domain,
                    node.op_type,
                    [copy if i == index else v for i, v in enumerate(node.inputs)],
                    node.attributes.values(),
                    num_outputs=len(node.outputs),
                )
                assert node.graph is not None
                node.graph.insert_after(node, twin)
                for old, new in zip(node.outputs, twin.outputs, strict=True):
                    new.name = f"{copy.name}/{node.op_type}"
                    new.type, new.shape = old.type, old.shape
                    _reassign(old, new, readers)
