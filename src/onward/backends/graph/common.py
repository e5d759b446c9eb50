"""Operators that only move values or ask for shapes, for every framework.

Sequences are lists, and an absent optional is None.
"""

from __future__ import annotations

import math
from typing import Any

from onward.backends.graph.framework import Framework
from onward.backends.graph.host import Host
from onward.backends.graph.registry import Attributes


def register_shapes(framework: Framework) -> None:
    """Register Shape, Size, Identity and Constant."""
    op = framework.registry.op

    @op("Shape")
    def shape(attributes: Attributes, x: Any) -> Host:
        sizes = framework.shape(x)
        start, end = attributes.get("start", 0), attributes.get("end")
        sizes = sizes[start : len(sizes) if end is None else end]
        return Host(sizes, (len(sizes),))

    @op("Size")
    def size(attributes: Attributes, x: Any) -> Host:
        return Host([math.prod(framework.shape(x))], ())

    @op("Identity")
    def identity(attributes: Attributes, x: Any) -> Any:
        return x

    @op("Constant")
    def constant(attributes: Attributes) -> Any:
        """Register Constant as supported; the interpreter itself evaluates constants."""
        raise AssertionError("the interpreter evaluates constants once")


def register_containers(framework: Framework) -> None:
    """Register the operators that make sequences and optionals, and those that only read an optional."""
    op, tensor = framework.registry.op, framework.tensor

    @op("SequenceConstruct")
    def sequence_construct(attributes: Attributes, *inputs: Any) -> list[Any]:
        return [tensor(v) for v in inputs]

    @op("SequenceEmpty")
    def sequence_empty(attributes: Attributes) -> list[Any]:
        return []

    @op("Optional")
    def optional(attributes: Attributes, value: Any = None) -> Any:
        return value

    @op("OptionalHasElement")
    def optional_has_element(attributes: Attributes, value: Any = None) -> Host:
        return Host([value is not None], (), "bool")

    @op("OptionalGetElement")
    def optional_get_element(attributes: Attributes, value: Any) -> Any:
        return value


def register_sequences(framework: Framework) -> None:
    """Register the operators on sequences and optionals that only move values."""
    op, number, tensor = framework.registry.op, framework.number, framework.tensor
    register_containers(framework)

    @op("SequenceAt")
    def sequence_at(attributes: Attributes, sequence: list[Any], position: Any) -> Any:
        return sequence[int(number(position))]

    @op("SequenceInsert")
    def sequence_insert(attributes: Attributes, sequence: list[Any], value: Any, position: Any = None) -> list[Any]:
        result = list(sequence)
        result.insert(len(result) if position is None else int(number(position)), tensor(value))
        return result

    @op("SequenceErase")
    def sequence_erase(attributes: Attributes, sequence: list[Any], position: Any = None) -> list[Any]:
        result = list(sequence)
        del result[-1 if position is None else int(number(position))]
        return result

    @op("SequenceLength")
    def sequence_length(attributes: Attributes, sequence: list[Any]) -> Host:
        return Host([len(sequence)], ())

    @op("SequenceMap")
    def sequence_map(attributes: Attributes, sequence: list[Any], *others: Any) -> tuple[list[Any], ...]:
        collected: list[list[Any]] = [[] for _ in range(attributes.outputs)]
        for index, element in enumerate(sequence):
            results = attributes["body"](element, *(v[index] if isinstance(v, list) else v for v in others))
            for store, value in zip(collected, results, strict=True):
                store.append(value)
        return tuple(collected)
