"""A process without samples: a batch that is smaller than the number of processes, as the last of an epoch may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch

from backends.node_tests import difference, torch_backend
from backends.team import ThreadTeam, together
from backends.test_torch_autograd import _leaves, _total
from backends.test_torch_shares import arrays_of, graph_of, tried_cases
from onward.backends.torch.batch_split import Cut, Shared
from onward.backends.torch.interpreter import Interpreter
from onward.versions import parse
from whole import WHOLE

pytestmark = pytest.mark.usefixtures("one_thread")


def differentiated(model: onnx.ModelProto, arrays: dict[str, Any], team: ThreadTeam | None) -> tuple[list[Any], Any]:
    """Return the outputs and the gradients; the first of two members has no samples, the second has all."""
    leaves = _leaves(arrays)
    feeds: dict[str, Any] = dict(leaves)
    if team is None:
        results = list(Interpreter(*graph_of(model)).run(feeds).values())
    else:
        count = next((len(v) for v in leaves.values() if v.ndim), 0)
        team.samples = (0, count)
        for name, value in leaves.items():
            if value.ndim and value.shape[0] == count and value.is_floating_point():
                feeds[name] = team.share(value, 0, Cut((0, count)))
        results = [team.whole(v) for v in Shared(*graph_of(model), team).run(feeds).values()]
    total = _total(results)
    if total is not None:
        total.backward()
    gradients = {n: torch.zeros_like(t) if t.grad is None else t.grad for n, t in leaves.items() if t.requires_grad}
    return [None if v is None else arrays_of(v) for v in map(_whole, results)], gradients


def _whole(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def test_every_operator_runs_in_a_process_without_samples() -> None:
    wrong, tried = {}, 0
    for case in tried_cases():
        if "bitcast" in case.name:  # the bits of what is float64 here are others
            continue
        if "constant_pad" in case.name and parse(torch.__version__) < (2, 9):  # its pad refuses a batch without samples
            continue
        inputs, _ = case.data_sets[0]
        names = [v.name for v in case.model.graph.input]
        values = [onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x for x in inputs]
        if not all(isinstance(a, (np.ndarray, np.generic)) and a.dtype.kind in "fiub" for a in values):
            continue
        arrays = dict(zip(names, values, strict=True))
        try:
            outputs, gradients = differentiated(case.model, arrays, None)
        except Exception:  # noqa: BLE001 - what autograd cannot differentiate in one process either
            continue
        tried += 1
        try:
            members = together(2, lambda team, c=case, a=arrays: differentiated(c.model, a, team))
        except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
            wrong[case.name] = f"{type(error).__name__}: {error}"
            continue
        for own, _ in members:
            for actual, wanted in zip(own, outputs, strict=True):
                if wanted is not None and (problem := difference(actual, wanted, 1e-4, 1e-5, torch_backend())):
                    wrong[case.name] = problem
        for name, gradient in gradients.items():
            average = (members[0][1][name] + members[1][1][name]) / 2  # as DistributedDataParallel does
            if not torch.allclose(average, gradient, rtol=1e-5, atol=1e-6, equal_nan=True):
                wrong[case.name] = f"the gradient by {name}"

    assert wrong == {}, wrong
    assert tried > (300 if WHOLE else 150)
