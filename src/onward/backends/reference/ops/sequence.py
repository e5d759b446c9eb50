"""Corrected operators of sequences and optionals."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun


class SequenceMap(OpRun):
    """onnx 1.23 does not let the body read outer values, fails on mixed inputs and on an empty sequence."""

    def need_context(self) -> bool:
        return True

    def _run(
        self, input_sequence: Any, *additional: Any, context: Any = None, body: Any = None, **_: Any
    ) -> tuple[Any, ...]:
        graph = next(a.g for a in self.onnx_node.attribute if a.name == "body")
        names = [i.name for i in graph.input]
        outputs: list[list[Any]] = [[] for _ in graph.output]
        for index, element in enumerate(input_sequence):
            feeds = dict(context or {})
            others = [a[index] if isinstance(a, list) else a for a in additional]
            feeds.update(zip(names, [element, *others], strict=True))
            for output, value in zip(outputs, body.run(None, feeds), strict=True):
                output.append(value)
        return tuple(outputs)


class SequenceInsert(OpRun):
    """onnx 1.23 inserts at the front where the position is the length of the sequence."""

    def _run(self, S: list[Any], T: Any, position: Any = None) -> tuple[list[Any]]:
        result = list(S)
        index = len(result) if position is None else int(np.asarray(position).reshape(-1)[0])
        result.insert(index if index >= 0 else index + len(S), T)
        return (result,)


class Optional(OpRun):
    """onnx 1.23 wraps the element in a list that OptionalGetElement does not unwrap."""

    def _run(self, x: Any = None, type: Any = None) -> tuple[Any, ...]:
        return (x,)

    def _check_and_fix_outputs(self, res: tuple[Any, ...]) -> tuple[Any, ...]:
        return res


OPERATORS: list[type[OpRun]] = [SequenceMap, SequenceInsert, Optional]
