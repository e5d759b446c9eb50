"""Gradient cases of what a Gradient node can ask for: zs, skipped outputs, another point, second order.

Each takes the first ordinary table entry of an operator, in float32 with static shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from generate.gradient import TRAINING, TYPES, Point, differentiate, evaluate, make_weights, output_types, vote
from generate.oracle import NoOracle, finite_differences, torch_gradients, torch_name, weighted_sum
from generate.tolerance import tolerance
from generate.writer import Suite, slug

DTYPE = "float32"


def add_features(suite: Suite, case: Any) -> Iterator[str]:
    """Write the cases of one table entry; yield a sentence for each that no oracle could compute."""
    try:
        point = evaluate(case, DTYPE)
    except NoOracle as error:
        yield f"features of {case}: {error}"
        return
    forward = case.model(dtype=np.float32)
    types = output_types(forward.proto, onnx.TensorProto.FLOAT)
    low = {n: a.astype(np.float32) if a.dtype == np.float64 else a for n, a in point.feeds.items()}
    if types is None or any(forward.feeds[n].dtype != low[n].dtype for n in low):
        return
    wrt = list(point.expected)
    kept = {"xs": wrt, "types": types, "low": low}
    if len(wrt) > 1:
        write(suite, case, point, forward.proto, "zs", "only the first, the others in zs", **{**kept, "xs": wrt[:1]})
        write(suite, case, point, forward.proto, "zs", "only the last, the others in zs", **{**kept, "xs": wrt[-1:]})
        write(suite, case, point, forward.proto, "skipped-output", "first output skipped", change=skip_first, **kept)
    write(suite, case, point, forward.proto, "intermediate", "by intermediate values", change=negate_inputs, **kept)
    if all(n.op_type != "MaxRoiPool" for n in forward.proto.graph.node):  # moved regions may name no sample
        write(suite, case, point, forward.proto, "another-point", "at another point", change=move_point, **kept)
    yield from add_sum_of_elements(suite, case, forward.proto, low, types)
    if case.smooth:
        yield from add_second_order(suite, case, point, forward.proto, low, types)


Change = Callable[[onnx.ModelProto, dict[str, np.ndarray], list[str]], list[str]]


def write(
    suite: Suite,
    case: Any,
    point: Point,
    forward: onnx.ModelProto,
    feature: str,
    label: str,
    *,
    xs: Sequence[str],
    types: Mapping[str, int],
    low: Mapping[str, np.ndarray],
    change: Change | None = None,
) -> None:
    """Write one case; `change` edits the model and its inputs, and returns the gradients that remain."""
    built = differentiate(forward, low, point.weights, xs, "static", DTYPE, types)
    assert built is not None
    model, feeds = built
    names = [f"d{n}" for n in xs]
    if change is not None:
        names = change(model, feeds, names)
    expected = {n: point.expected[n[1:]].astype(np.float32) for n in names}
    add(suite, case, label, model, feeds, expected, point.oracle, ["zs", feature])


def add(
    suite: Suite, case: Any, label: str, model: onnx.ModelProto, feeds: Mapping[str, Any], expected: Mapping[str, Any],
    oracle: str, features: Sequence[str],
) -> None:  # fmt: skip
    rtol, atol = tolerance(DTYPE, expected.values())
    suite.add(
        f"gradient/{case.op}/{slug(case.name)}-{slug(label)}", model, [(feeds, expected)], kind="gradient",
        operator=case.op, domain=case.domain, dtypes=[DTYPE], oracle=oracle, rtol=rtol, atol=atol, features=features,
    )  # fmt: skip


def gradient_node(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.op_type == "Gradient")


def skip_first(model: onnx.ModelProto, feeds: dict[str, np.ndarray], names: list[str]) -> list[str]:
    """Leave out the first output of the Gradient node."""
    gradient_node(model).output[0] = ""
    del model.graph.output[0]
    return names[1:]


def negate_inputs(model: onnx.ModelProto, feeds: dict[str, np.ndarray], names: list[str]) -> list[str]:
    """Let the graph compute each x as the negative of an input: the derivative stops at x."""
    nodes = []
    for info in model.graph.input:
        name = info.name
        if f"d{name}" not in names:
            continue
        info.name = f"{name}_negative"
        nodes.append(helper.make_node("Neg", [info.name], [name]))
    renamed = {n.output[0]: n.input[0] for n in nodes}
    values = {renamed.get(n, n): -a if n in renamed else a for n, a in feeds.items()}
    feeds.clear()
    feeds.update(values)
    old = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *old])
    return names


def move_point(model: onnx.ModelProto, feeds: dict[str, np.ndarray], names: list[str]) -> list[str]:
    """Feed the graph with other values than those that the Gradient node gets in xs and zs: the latter count."""
    node = gradient_node(model)
    for index, info in enumerate(list(model.graph.input)):
        name = info.name
        if feeds[name].dtype.kind != "f":
            continue
        node.input[list(node.input).index(name)] = f"{name}_point"
        copy = model.graph.input.add()
        copy.CopyFrom(info)
        copy.name = f"{name}_point"
        feeds[f"{name}_point"] = feeds[name]
        feeds[name] = np.roll(feeds[name], 1 + index) if feeds[name].size > 1 else feeds[name] * np.float32(0.5)
    return names


def add_sum_of_elements(
    suite: Suite, case: Any, forward: onnx.ModelProto, low: Mapping[str, np.ndarray], types: Mapping[str, int]
) -> Iterator[str]:
    """Write the case whose y is the operator's output itself: a y that is no scalar means the sum of its elements."""
    try:
        point = evaluate(case, DTYPE, ones=True)
    except NoOracle as error:
        yield f"features of {case}: {error}"
        return
    if len(point.weights) != 1 or types[next(iter(point.weights))] != onnx.TensorProto.FLOAT:
        return
    (output,) = point.weights
    built = differentiate(forward, low, point.weights, list(point.expected), "static", DTYPE, types)
    assert built is not None
    model, feeds = built
    weight = f"weight_{output}"
    node = gradient_node(model)
    xs = list(point.expected)
    zs = [n for n in list(node.input)[len(xs) :] if n != weight]
    attributes = {"zs": zs} if zs else {}
    new = helper.make_node("Gradient", [*xs, *zs], list(node.output), domain=TRAINING, xs=xs, y=output, **attributes)
    kept = [n for n in model.graph.node if not {f"weighted_{output}", f"sum_{output}", "total"} & {*n.output}]
    del model.graph.node[:]
    model.graph.node.extend([*(n for n in kept if n.op_type != "Gradient"), new])
    infos = [i for i in model.graph.input if i.name != weight]
    del model.graph.input[:]
    model.graph.input.extend(infos)
    feeds.pop(weight)
    expected = {f"d{n}": a.astype(np.float32) for n, a in point.expected.items()}
    add(suite, case, "sum of the elements of y", model, feeds, expected, point.oracle, ["zs"] * bool(zs) + ["tensor-y"])


def add_second_order(
    suite: Suite, case: Any, point: Point, forward: onnx.ModelProto, low: Mapping[str, np.ndarray],
    types: Mapping[str, int],
) -> Iterator[str]:  # fmt: skip
    """Write the case that differentiates a weighted sum of the gradients once more."""
    xs = list(point.expected)
    second = make_weights({n: point.feeds[n].shape for n in xs}, seed=1)
    expected = None
    try:
        evaluators, torch_result, _, _ = vote(case, case.model(), point.feeds)
        if torch_result is not None:
            try:
                expected = torch_gradients(case.torch, point.feeds, point.weights, xs, second)
                oracle = f"{torch_name()}, twice"
            except RuntimeError as error:
                reason = f"PyTorch has no second derivative: {error}"[:120]
        else:
            reason = "no evaluator in float64"
        for evaluator in evaluators if expected is None else ():
            expected = differences_of_differences(evaluator, point, xs, second)
            oracle = f"{evaluator.name}, twice"
            break
    except NoOracle as error:
        reason = str(error)
    if expected is None:
        yield f"second order of {case}: {reason}"
        return
    if not all(np.isfinite(a).all() for a in expected.values()):
        yield f"second order of {case}: not finite"
        return
    built = differentiate(forward, low, point.weights, xs, "static", DTYPE, types)
    assert built is not None
    model, feeds = built
    first = gradient_node(model)
    terms, zs = [], list(first.input)[len(xs) :]
    for n in xs:
        info = model.graph.input.add()
        info.CopyFrom(next(i for i in model.graph.input if i.name == n))
        info.name = f"weight_d{n}"
        feeds[info.name] = second[n].astype(TYPES[DTYPE])
        zs.append(info.name)
        model.graph.node.extend([
            helper.make_node("Mul", [f"d{n}", info.name], [f"weighted_d{n}"]),
            helper.make_node("ReduceSum", [f"weighted_d{n}"], [f"sum_d{n}"], keepdims=0),
        ])  # fmt: skip
        terms.append(f"sum_d{n}")
    model.graph.node.append(helper.make_node("Sum", terms, ["second_total"]))
    outputs = [f"dd{n}" for n in xs]
    attributes = {"zs": zs}
    model.graph.node.append(
        helper.make_node("Gradient", [*xs, *zs], outputs, domain=TRAINING, xs=xs, y="second_total", **attributes)
    )
    for output, name in zip(model.graph.output, outputs, strict=True):
        output.name = name
    values = {f"dd{n}": expected[n].astype(np.float32) for n in xs}
    add(suite, case, "second order", model, feeds, values, oracle, ["zs", "second-order"])


def differences_of_differences(
    evaluator: Any, point: Point, xs: Sequence[str], second: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return d/dx of the derivative along `second`, by finite differences of finite differences with wide steps."""

    def along(feeds: Mapping[str, np.ndarray]) -> float:
        def loss(t: float) -> float:
            moved = {n: feeds[n] + t * second[n] for n in xs}
            return weighted_sum(evaluator({**feeds, **moved}), point.weights)

        slopes = [(loss(h) - loss(-h)) / (2 * h) for h in (0.016, 0.008, 0.004)]
        coarse, fine = (4 * slopes[1] - slopes[0]) / 3, (4 * slopes[2] - slopes[1]) / 3
        return (16 * fine - coarse) / 15

    return finite_differences(along, point.feeds, xs, 0.008, uncertain=1e-5)
