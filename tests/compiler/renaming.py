"""Rename every value of a training file with random strings: names are cosmetic."""

from __future__ import annotations

import random
from typing import Any

import onnx

ROLE_REFERENCE = "onward.of"


class Renamer:
    """One new name for each old one; `renamed(model)` applies them everywhere that a value is named."""

    def __init__(self, seed: int = 0) -> None:
        self.names: dict[str, str] = {"": ""}
        self._random = random.Random(seed)

    def new(self, name: str) -> str:
        if name not in self.names:
            self.names[name] = "v" + "".join(self._random.choices("abcdefghijklmnopqrstuvwxyz0123456789_./", k=12))
        return self.names[name]

    def renamed(self, model: onnx.ModelProto) -> onnx.ModelProto:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        graphs = [copy.graph]
        for info in copy.training_info:
            graphs += [info.algorithm, info.initialization]
            for binding in (*info.update_binding, *info.initialization_binding):
                binding.key, binding.value = self.new(binding.key), self.new(binding.value)
        for graph in graphs:
            self._graph(graph)
        return copy

    def _graph(self, graph: onnx.GraphProto) -> None:
        for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            value.name = self.new(value.name)
            self._roles(value)
        for node in graph.node:
            node.input[:] = [self.new(n) for n in node.input]
            node.output[:] = [self.new(n) for n in node.output]
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    self._graph(attribute.g)
                if node.op_type == "Gradient" and attribute.name == "y":
                    attribute.s = self.new(attribute.s.decode()).encode()
                if node.op_type == "Gradient" and attribute.name in ("xs", "zs"):
                    attribute.strings[:] = [self.new(n.decode()).encode() for n in attribute.strings]

    def _roles(self, value: Any) -> None:
        for entry in value.metadata_props:
            if entry.key == ROLE_REFERENCE:
                entry.value = self.new(entry.value)
