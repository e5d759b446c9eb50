"""If, Loop and Scan as Python control flow, which a framework records step by step."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.backends.graph.framework import Framework
from onward.backends.graph.host import Host
from onward.backends.graph.registry import Attributes


class Unrolled:
    """If, Loop and Scan step by step, where conditions and numbers of steps can be read.

    Its methods are handlers: `op("If")(Unrolled(framework).if_)`.
    """

    def __init__(self, framework: Framework) -> None:
        self._framework = framework

    def if_(self, attributes: Attributes, condition: Any) -> tuple[Any, ...]:
        chosen = bool(self._framework.number(condition))
        return tuple(attributes["then_branch" if chosen else "else_branch"]())

    def loop(self, attributes: Attributes, trips: Any, condition: Any, *carried: Any) -> tuple[Any, ...]:
        number, tensor = self._framework.number, self._framework.tensor
        body = attributes["body"]
        count = None if trips is None else int(number(trips))
        going = True if condition is None else bool(number(condition))
        values = list(carried)
        collected: list[list[Any]] = [[] for _ in range(attributes.outputs - len(carried))]
        step = 0
        while going and (count is None or step < count):
            results = body(Host([step], ()), Host([going], (), "bool"), *values)
            going = bool(number(results[0]))
            values = results[1 : 1 + len(carried)]
            for store, value in zip(collected, results[1 + len(carried) :], strict=True):
                store.append(tensor(value))
            step += 1
        stacked = [body.stack(s) if s else self._framework.to_tensor(np.zeros(0, np.float32)) for s in collected]
        return (*values, *stacked)

    def scan(self, attributes: Attributes, *inputs: Any) -> tuple[Any, ...]:
        tensor = self._framework.tensor
        plan = ScanPlan(attributes, len(inputs))
        states, scanned = list(inputs[: plan.states]), [tensor(v) for v in inputs[plan.states :]]
        body = attributes["body"]
        steps = self._framework.shape(scanned[0])[plan.in_axes[0]]
        collected: list[list[Any]] = [[] for _ in plan.out_axes]
        for step in range(steps):
            slices = [
                body.select(x, axis, steps - 1 - step if backward else step)
                for x, axis, backward in zip(scanned, plan.in_axes, plan.in_backward, strict=True)
            ]
            results = body(*states, *slices)
            states = results[: plan.states]
            for store, value in zip(collected, results[plan.states :], strict=True):
                store.append(tensor(value))
        stacked = [
            body.stack(list(reversed(s)) if backward else s, axis)
            for s, axis, backward in zip(collected, plan.out_axes, plan.out_backward, strict=True)
        ]
        return (*states, *stacked)


class ScanPlan:
    """The axes and directions of a Scan, and how many of its inputs are states."""

    def __init__(self, attributes: Attributes, inputs: int) -> None:
        count = attributes["num_scan_inputs"]
        self.states = inputs - count
        outputs = attributes.outputs - self.states
        self.in_axes: list[int] = attributes.get("scan_input_axes") or [0] * count
        self.in_backward: list[int] = attributes.get("scan_input_directions") or [0] * count
        self.out_axes: list[int] = attributes.get("scan_output_axes") or [0] * outputs
        self.out_backward: list[int] = attributes.get("scan_output_directions") or [0] * outputs
