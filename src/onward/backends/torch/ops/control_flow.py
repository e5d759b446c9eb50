"""If, Loop and Scan, as Python control flow that autograd records; sequences as lists, optionals as None."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onward.backends.torch.host import Host, ints, number
from onward.backends.torch.registry import Attributes, op


def _tensor(value: Any) -> Any:
    return value.tensor() if isinstance(value, Host) else value


@op("If")
def if_(attributes: Attributes, condition: Any) -> tuple[Any, ...]:
    branch = attributes["then_branch" if bool(number(condition)) else "else_branch"]
    return tuple(branch())


@op("Loop")
def loop(attributes: Attributes, trips: Any, condition: Any, *carried: Any) -> tuple[Any, ...]:
    body = attributes["body"]
    count = None if trips is None else int(number(trips))
    going = True if condition is None else bool(number(condition))
    values = list(carried)
    collected: list[list[Any]] = []
    step = 0
    while going and (count is None or step < count):
        results = body(Host([step], ()), Host([going], (), torch.bool), *values)
        going = bool(number(results[0]))
        values = results[1 : 1 + len(carried)]
        scanned = results[1 + len(carried) :]
        collected = collected or [[] for _ in scanned]
        for store, value in zip(collected, scanned, strict=True):
            store.append(_tensor(value))
        step += 1
    outputs = attributes.outputs - len(carried)
    if not collected:
        collected = [[] for _ in range(outputs)]
    stacked = [body.stack(s) if s else torch.zeros(0) for s in collected]
    return (*values, *stacked)


@op("Scan", since=9)
def scan(attributes: Attributes, *inputs: Any) -> tuple[Any, ...]:
    body = attributes["body"]
    count = attributes["num_scan_inputs"]
    states, scanned = list(inputs[: len(inputs) - count]), [_tensor(v) for v in inputs[len(inputs) - count :]]
    directions = attributes.get("scan_input_directions") or [0] * count
    axes = attributes.get("scan_input_axes") or [0] * count
    steps = body.length(scanned[0], axes[0])
    collected: list[list[Tensor]] = [[] for _ in range(attributes.outputs - len(states))]
    for step in range(steps):
        slices = [
            body.select(x, axis, steps - 1 - step if backward else step)
            for x, axis, backward in zip(scanned, axes, directions, strict=True)
        ]
        results = body(*states, *slices)
        states = results[: len(states)]
        for store, value in zip(collected, results[len(states) :], strict=True):
            store.append(_tensor(value))
    out_directions = attributes.get("scan_output_directions") or [0] * len(collected)
    out_axes = attributes.get("scan_output_axes") or [0] * len(collected)
    stacked = [
        body.stack(list(reversed(s)) if backward else s, axis)
        for s, axis, backward in zip(collected, out_axes, out_directions, strict=True)
    ]
    return (*states, *stacked)


@op("SequenceConstruct")
def sequence_construct(attributes: Attributes, *inputs: Any) -> list[Any]:
    return [_tensor(v) for v in inputs]


@op("SequenceEmpty")
def sequence_empty(attributes: Attributes) -> list[Any]:
    return []


@op("SequenceAt")
def sequence_at(attributes: Attributes, sequence: list[Any], position: Any) -> Any:
    return sequence[int(number(position))]


@op("SequenceInsert")
def sequence_insert(attributes: Attributes, sequence: list[Any], value: Any, position: Any = None) -> list[Any]:
    result = list(sequence)
    result.insert(len(result) if position is None else int(number(position)), _tensor(value))
    return result


@op("SequenceErase")
def sequence_erase(attributes: Attributes, sequence: list[Any], position: Any = None) -> list[Any]:
    result = list(sequence)
    del result[-1 if position is None else int(number(position))]
    return result


@op("SequenceLength")
def sequence_length(attributes: Attributes, sequence: list[Any]) -> Host:
    return Host([len(sequence)], ())


@op("ConcatFromSequence")
def concat_from_sequence(attributes: Attributes, sequence: list[Tensor]) -> Tensor:
    join = torch.stack if attributes.get("new_axis", 0) else torch.cat
    return join(sequence, attributes["axis"])


@op("SplitToSequence")
def split_to_sequence(attributes: Attributes, x: Tensor, split: Any = None) -> list[Tensor]:
    axis = attributes["axis"]
    if split is None:
        parts = list(torch.split(x, 1, axis))
        return parts if attributes.get("keepdims", 1) else [p.squeeze(axis) for p in parts]
    sizes = ints(split)
    scalar = (isinstance(split, Host) and not split.shape) or (isinstance(split, Tensor) and split.ndim == 0)
    return list(torch.split(x, sizes[0] if scalar else sizes, axis))


@op("SequenceMap")
def sequence_map(attributes: Attributes, sequence: list[Any], *others: Any) -> tuple[list[Any], ...]:
    collected: list[list[Any]] = [[] for _ in range(attributes.outputs)]
    for index, element in enumerate(sequence):
        results = attributes["body"](element, *(v[index] if isinstance(v, list) else v for v in others))
        for store, value in zip(collected, results, strict=True):
            store.append(value)
    return tuple(collected)


@op("Optional")
def optional(attributes: Attributes, value: Any = None) -> Any:
    return value


@op("OptionalHasElement")
def optional_has_element(attributes: Attributes, value: Any = None) -> Host:
    return Host([value is not None], (), torch.bool)


@op("OptionalGetElement")
def optional_get_element(attributes: Attributes, value: Any) -> Any:
    return value
