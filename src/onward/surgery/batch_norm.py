"""Put back the batch normalisation that an exporter folded into convolutions.

Folding turns Conv and BatchNormalization into one Conv with a bias. What it takes away is the normalisation by the
batch while training. A BatchNormalization with mean m, variance v, scale √(v + ε) and bias m computes what it reads,
whatever m and v are: the network gives the same numbers as before. While training, it normalises with the batch
instead; this is the same function only if m and v are the statistics of the data. So they are measured on data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.arguments import shown
from onward.errors import ArgumentError, Diagnostic, Severity
from onward.graph.builder import Builder, Names, Value
from onward.graph.random_numbers import normal
from onward.graph.shapes import dims
from onward.graph.walk import all_names
from onward.model import serde
from onward.model.stash import from_light, to_light
from onward.model.training_model import FLOAT_TYPES, TrainingModel
from onward.runtime import evaluate
from onward.surgery.head import NoHead, find
from onward.surgery.splice import remove_unused, set_outputs, shape_text

A134 = "A134"
A135 = "A135"

EPSILON = 1e-5
_BATCH = 16  # samples that are made up where no data is given
Calibration = np.ndarray | Mapping[str, np.ndarray] | Iterable[Any]


class MadeUpStatisticsWarning(UserWarning):
    """The statistics of a batch normalisation come from made-up inputs; `diagnostic` says what to do."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.render())
        self.diagnostic = diagnostic


@dataclasses.dataclass
class Statistics:
    """Mean and variance of each channel over all batches so far."""

    count: int = 0
    mean: np.ndarray | float = 0.0
    variance: np.ndarray | float = 0.0

    def add(self, count: int, mean: np.ndarray, variance: np.ndarray) -> None:
        """Add a batch of `count` values in each channel (Chan, Golub and LeVeque)."""
        total = self.count + count
        delta = mean - self.mean
        between = delta**2 * (self.count * count / total)
        self.variance = (self.variance * self.count + variance * count + between) / total
        self.mean = self.mean + delta * (count / total)
        self.count = total


def recover_batch_norm(
    work: TrainingModel,
    parameters: Sequence[Value],
    outputs: Sequence[Value],
    names: Names,
    *,
    calibration: Calibration | None = None,
    seed: int = 0,
) -> tuple[list[Value], MadeUpStatisticsWarning | None]:
    """Insert a BatchNormalization after each trained convolution with a bias; return the parameters from then on.

    The bias of the convolution becomes that of the normalisation. The last linear layer, and convolutions that a
    normalisation follows, stay as they are. The numbers of the network do not change. The warning says that no data was
    given, and the statistics come from made-up inputs.

    Raises:
        ArgumentError: there is no such convolution, or the data does not fit.
    """
    chosen = _convolutions(work.graph, set(parameters), outputs)
    if not chosen:
        raise ArgumentError(
            Diagnostic(
                A134,
                "no convolution had its batch normalisation folded into it",
                place="batch_norm=",
                needed="a trained Conv with a bias, which no BatchNormalization follows and which is not the head",
                hint='batch_norm="train" is for files that have their batch normalisation',
            )
        )
    made_up = calibration is None
    feeds = _made_up(work, seed) if calibration is None else _batches(work, calibration)
    measured = _measure(work, [node.outputs[0].name or "" for node in chosen], feeds)
    kept = list(parameters)
    for node, statistics in zip(chosen, measured, strict=True):
        bias, new = _insert(work, node, statistics, names)
        if bias in kept and not bias.uses():
            kept.remove(bias)
            del work.graph.initializers[bias.name or ""]
        kept += new
    if not made_up:
        return kept, None
    problem = Diagnostic(
        A135,
        f"the statistics of {len(chosen)} batch normalisations come from made-up inputs",
        place="calibration=",
        found="no data: random numbers with mean 0 and standard deviation 1",
        hint="the network gives the same numbers as before, but training starts from other ones; pass some inputs: "
        "calibration=images[:256]",
        severity=Severity.WARNING,
    )
    return kept, MadeUpStatisticsWarning(problem)


def _convolutions(graph: ir.Graph, parameters: set[Value], outputs: Sequence[Value]) -> list[ir.Node]:
    """Return the convolutions that had a normalisation, as far as the graph can tell."""
    heads = set()
    for output in outputs:
        try:
            heads.add(find(graph, output).linear.node)
        except NoHead:
            continue
    ends = {*graph.outputs, *outputs}
    return [
        node
        for node in graph
        if node.op_type in ("Conv", "ConvTranspose")
        and node.domain in ("", "ai.onnx")
        and len(node.inputs) > 2
        and node.inputs[2] is not None
        and node.inputs[2].is_initializer()
        and node.inputs[1] in parameters
        and node not in heads
        and node.outputs[0] not in ends
        and not any(use.node.op_type == "BatchNormalization" for use in node.outputs[0].uses())
    ]


def _measure(work: TrainingModel, names: Sequence[str], feeds: Iterable[Mapping[str, np.ndarray]]) -> list[Statistics]:
    """Return the statistics of the values `names` over all feeds, as ONNX Runtime computes them."""
    probe = from_light(*to_light(work))
    op = Builder(probe.opset, Names(all_names(probe.graph)), prefix="statistics/")
    values = probe.values()
    results: list[Value] = []
    for name in names:
        value = op.Cast(values[name], to=ir.DataType.FLOAT)
        axes = [i for i in range(len(dims(values[name]) or ())) if i != 1]
        mean = op.ReduceMean(value, axes, keepdims=1)
        apart = op.Sub(value, mean)
        results += [op.Shape(value), mean, op.ReduceMean(op.Mul(apart, apart), axes, keepdims=1)]
    probe.graph.extend(op.nodes)
    set_outputs(probe.graph, results)
    inputs = [v.name or "" for v in probe.graph.inputs]
    remove_unused(probe.graph)
    read = {v.name for v in probe.graph.inputs}
    found = [Statistics() for _ in names]
    model = serde.to_proto(probe).SerializeToString()
    needed = ({n: a for n, a in feed.items() if n in read or n not in inputs} for feed in feeds)
    try:
        for outputs in evaluate(model, needed):
            for index, statistics in enumerate(found):
                shape, *moments = outputs[3 * index : 3 * index + 3]
                count = int(np.prod(shape, dtype=np.int64) // shape[1])
                statistics.add(count, *(moment.reshape(-1).astype(np.float64) for moment in moments))
    except Exception as error:  # the exceptions of ONNX Runtime have no common base
        problem = Diagnostic(
            A134,
            "the statistics cannot be measured: the model does not run with these inputs",
            place="calibration=",
            found=str(error).strip()[:300],
            needed="inputs with which the model runs",
        )
        raise ArgumentError(problem) from error
    if not all(np.isfinite(s.mean).all() and np.isfinite(s.variance).all() for s in found):
        raise ArgumentError(
            Diagnostic(
                A134,
                "the statistics are not finite: the model computes NaN or Inf with these inputs",
                place="calibration=",
                needed="inputs that are prepared as for training",
            )
        )
    return found


def _insert(
    work: TrainingModel, node: ir.Node, statistics: Statistics, names: Names
) -> tuple[Value, tuple[Value, Value]]:
    """Put a normalisation that changes nothing behind `node`; return the old bias, and the new scale and bias."""
    weight, bias, result = node.inputs[1], node.inputs[2], node.outputs[0]
    assert weight is not None
    assert bias is not None
    assert weight.dtype is not None
    assert bias.const_value is not None
    offset = bias.const_value.numpy().astype(np.float64)
    mean, variance = np.asarray(statistics.mean), np.asarray(statistics.variance)
    stem = (weight.name or "conv").removesuffix(".weight")
    arrays = {
        "weight": np.sqrt(variance + np.float32(EPSILON)),
        "bias": mean,
        "running_mean": mean - offset,  # the convolution no longer adds its bias
        "running_var": variance,
    }
    made = []
    for kind, array in arrays.items():
        name = names.unique(f"{stem}.bn.{kind}")
        tensor = ir.tensor(array.astype(weight.dtype.numpy()), name=name)
        value = ir.Value(name=name, type=weight.type, shape=ir.Shape(array.shape), const_value=tensor)
        work.graph.register_initializer(value)
        made.append(value)
    node.replace_input_with(2, None)
    node.resize_inputs(2)
    op = Builder(work.opset, names)
    normalised = op.BatchNormalization(result, *made, epsilon=EPSILON, name=f"{stem}.bn")
    work.graph.insert_after(node, op.nodes)
    normalised.type, normalised.shape = result.type, result.shape
    result.replace_all_uses_with(normalised)
    op.nodes[0].replace_input_with(0, result)
    normalised.name, result.name = result.name, names.unique(f"{result.name}/before_bn")
    return bias, (made[0], made[1])


# ------------------------------------------------------------------ the inputs to measure with


def _made_up(work: TrainingModel, seed: int) -> list[dict[str, np.ndarray]]:
    """Return one batch of standard normal numbers for each input."""
    feeds: dict[str, np.ndarray] = {}
    problems = []
    for value in (v for v in work.graph.inputs if v.name not in work.graph.initializers):
        sizes = dims(value)
        shape = [d if isinstance(d, int) else 0 for d in sizes or [None]]
        shape[0] = shape[0] or _BATCH if sizes else 0
        if value.dtype not in FLOAT_TYPES or 0 in shape:
            problems.append(
                Diagnostic(
                    A134,
                    f"no input can be made up for `{value.name}`",
                    place="calibration=",
                    found=f"{'unknown type' if value.dtype is None else value.dtype.name.lower()} {shape_text(sizes)}",
                    needed="some data: calibration=images[:256]",
                )
            )
            continue
        assert value.dtype is not None
        feeds[value.name or ""] = normal(seed, len(feeds), tuple(shape)).astype(value.dtype.numpy())
    if problems:
        raise ArgumentError(problems)
    return [feeds]


def _batches(work: TrainingModel, calibration: Calibration) -> Iterable[dict[str, np.ndarray]]:
    """Yield the feeds of each batch: of one array, a mapping from input to array, or several of these."""
    inputs = [v for v in work.graph.inputs if v.name not in work.graph.initializers]
    if isinstance(calibration, (np.ndarray, Mapping)):
        return [_feed(inputs, calibration)]
    if isinstance(calibration, (str, bytes)) or not isinstance(calibration, Iterable):
        raise _unfit(inputs, shown(calibration))
    found = [_feed(inputs, batch) for batch in calibration]
    if not found:
        raise _unfit(inputs, "no batch")
    return found


def _feed(inputs: Sequence[Value], batch: Any) -> dict[str, np.ndarray]:
    given = batch if isinstance(batch, Mapping) else {inputs[0].name or "": batch}
    feed = {}
    for value in inputs:
        name = value.name or ""
        array = np.asarray(given[name]) if name in given and (isinstance(batch, Mapping) or len(inputs) == 1) else None
        if array is None or value.dtype is None or array.dtype.kind not in "fiub" or not _fits(value, array):
            found = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
            raise _unfit(inputs, f"{found} for `{name}`")
        feed[name] = array.astype(value.dtype.numpy())
    return feed


def _fits(value: Value, array: np.ndarray) -> bool:
    sizes = dims(value)
    if sizes is None:
        return array.size > 0
    pairs = zip(sizes, array.shape, strict=False)
    return array.size > 0 and len(sizes) == array.ndim and all(d == n or not isinstance(d, int) for d, n in pairs)


def _unfit(inputs: Sequence[Value], found: str) -> ArgumentError:
    wanted = ", ".join(f"`{v.name}` {shape_text(dims(v))}" for v in inputs)
    return ArgumentError(
        Diagnostic(
            A134,
            "the calibration data does not fit the inputs of the model",
            place="calibration=",
            found=found,
            needed=f"an array for {wanted}, a mapping from input to array, or a list of such batches",
        )
    )


__all__ = ["A134", "A135", "Calibration", "MadeUpStatisticsWarning", "recover_batch_norm"]
