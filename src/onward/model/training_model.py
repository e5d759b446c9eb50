"""`TrainingModel`: an ONNX model and its training entries, over onnx-ir."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import onnx_ir as ir

from onward.errors import counted
from onward.graph.schema import TRAINING_DOMAIN
from onward.graph.walk import subgraphs

if TYPE_CHECKING:
    import onnx

PHASE = "onward.phase"
"""Metadata of an algorithm that is one phase of a training: JSON with `train` and `epochs`."""

FLOAT_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


@dataclasses.dataclass
class TrainingEntry:
    """One `TrainingInfoProto`: a step (`algorithm`) and a reset (`initialization`), with what each writes where.

    `algorithm` reads values of the model's graph directly, as the standard's combined graph does; `initialization` is
    self-contained. The bindings map the name of an initializer to the name of the output that replaces it.
    """

    algorithm: ir.Graph | None = None
    initialization: ir.Graph | None = None
    update_binding: dict[str, str] = dataclasses.field(default_factory=dict)
    initialization_binding: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The algorithm graph's name, by which one entry of several is chosen."""
        return (self.algorithm.name if self.algorithm is not None else None) or "train"

    @property
    def epochs(self) -> int | None:
        """For how many epochs it trains, if it is one phase of a training (`make_trainable(phases=)`)."""
        text = "" if self.algorithm is None else self.algorithm.metadata_props.get(PHASE, "")
        try:
            epochs = json.loads(text)["epochs"] if text else None
        except (ValueError, KeyError, TypeError):  # metadata that somebody else wrote: the entry is no phase
            return None
        return epochs if isinstance(epochs, int) and not isinstance(epochs, bool) and epochs > 0 else None


class TrainingModel:
    """A model, its loss, its optimizer, its state and its initialisation: what one standard ONNX file holds.

    `ir` is the inference model (an `onnx_ir.Model`: graph, functions, opset imports, metadata); `entries` are the
    training entries, empty for an inference-only model.
    """

    def __init__(self, model: ir.Model, entries: list[TrainingEntry] | None = None) -> None:
        self.ir = model
        self.entries = list(entries or [])

    def __repr__(self) -> str:
        return (
            f"<TrainingModel {self.graph.name!r}: {counted(len(self.parameters), 'parameter')}, "
            f"{len(self.frozen)} frozen, {len(self.state)} state, {counted(len(self.entries), 'training entry')}>"
        )

    def _repr_html_(self) -> str:
        from onward.model.panel import model_html

        return model_html(self)

    @property
    def graph(self) -> ir.Graph:
        """The inference graph."""
        return self.ir.graph

    @property
    def opset(self) -> int:
        """The version of the default operator set."""
        return self.ir.opset_imports.get("", self.ir.opset_imports.get("ai.onnx", 1))

    @property
    def inputs(self) -> list[str]:
        """The names of the inference graph's inputs that have no default."""
        return [v.name or "" for v in self.graph.inputs if v.name not in self.graph.initializers]

    @property
    def outputs(self) -> list[str]:
        """The names of the inference graph's outputs."""
        return [v.name or "" for v in self.graph.outputs]

    @property
    def targets(self) -> list[str]:
        """The names of what a training step needs beyond the inputs: labels and the like."""
        names: dict[str, None] = {}
        for entry in self.entries:
            if entry.algorithm is not None:
                names.update(
                    (v.name or "", None) for v in entry.algorithm.inputs if v.name not in entry.algorithm.initializers
                )
        return list(names)

    def initializers(self) -> dict[str, ir.Value]:
        """Return every initializer of the graph and of all algorithms, by name."""
        found = dict(self.graph.initializers)
        for entry in self.entries:
            if entry.algorithm is not None:
                found.update(entry.algorithm.initializers)
        return found

    @property
    def parameters(self) -> dict[str, ir.Value]:
        """The trained initializers: an update replaces them, and the loss is differentiated with respect to them."""
        from onward.model.roles import trained

        found = trained(self)
        return {k: found[k] for k in self._bound() if k in found}

    @property
    def state(self) -> dict[str, ir.Value]:
        """The other initializers that training replaces: moments, running statistics, counters."""
        known, parameters = self.initializers(), self.parameters
        return {k: known[k] for k in self._bound() if k in known and k not in parameters}

    @property
    def frozen(self) -> dict[str, ir.Value]:
        """The floating-point initializers of the inference graph that no update replaces."""
        bound = set(self._bound())
        return {k: v for k, v in self.graph.initializers.items() if k not in bound and v.dtype in FLOAT_TYPES}

    def _bound(self) -> list[str]:
        names: dict[str, None] = {}
        for entry in self.entries:
            names.update((k, None) for k in entry.update_binding)
        return list(names)

    def gradient_nodes(self) -> Iterator[ir.Node]:
        """Yield every `Gradient` node of the graph and the algorithms, those in subgraphs included."""
        graphs = [self.graph, *(e.algorithm for e in self.entries if e.algorithm is not None)]
        while graphs:
            for node in graphs.pop():
                if is_gradient(node):
                    yield node
                graphs.extend(subgraphs(node))

    def proto(self) -> onnx.ModelProto:
        """Return the model as a standard `ModelProto`, `training_info` included."""
        from onward.model import serde

        return serde.to_proto(self)

    def values(self) -> Mapping[str, ir.Value]:
        """Return the values of the inference graph by name."""
        return ir.convenience.create_value_mapping(self.graph)


def is_gradient(node: ir.Node) -> bool:
    """Return whether `node` is the standard's `Gradient`."""
    return node.op_type == "Gradient" and node.domain == TRAINING_DOMAIN


def differentiated(node: ir.Node) -> list[str]:
    """Return what a `Gradient` node differentiates with respect to: its xs, or the initializers behind Identity nodes.

    A file reads a tensor through two Identity nodes, one in xs and one in zs, where a part of its uses is constant.
    """
    found = []
    for index, name in enumerate(_strings(node, "xs")):
        value = node.inputs[index] if index < len(node.inputs) else None
        found.append(initializer_behind(value) or name if value is not None and value.name == name else name)
    return found


def initializer_behind(value: ir.Value | None) -> str | None:
    """Return the name of the initializer that a chain of Identity nodes forwards as `value`; None for other values."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type != "Identity" or node.domain not in ("", "ai.onnx"):
            return None
        value = node.inputs[0]
    return None if value is None or not value.is_initializer() else value.name


def _strings(node: ir.Node, name: str) -> list[str]:
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.STRINGS:
        return []  # a wrong type is for `check` to report
    return [s for s in attribute.value if isinstance(s, str)]
