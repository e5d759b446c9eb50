"""A training scenario as text, and how it becomes a case."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper, parser

from generate.formulas import STATES, UPDATES
from generate.gradient import TRAINING, TYPES
from generate.oracle import torch_name
from generate.tolerance import tolerance
from generate.writer import Suite, slug

Values = dict[str, np.ndarray]
Step = Callable[[Values, Values], tuple[Values, Values]]
ORACLE = f"{torch_name()} with the standard's update formulas"


@dataclasses.dataclass
class Scenario:
    """A model with training_info, in ONNX text with the type `float`, the inputs of its steps, and its oracle.

    graph, algorithm   graphs as text; the values that `updates` binds become outputs of the algorithm
    weights, states    initializers of the graph and of the algorithm: float64 arrays become the case's type
    updates            initializer -> value that replaces it after each step
    feeds              the inputs of each step
    step               (state, feeds) -> (outputs, new values of some states), in float64
    initialization     a graph as text, `initial` binds its outputs, `initialized` are the values it must give
    more               further entries: (algorithm, states, updates)
    """

    name: str
    graph: str
    algorithm: str
    weights: Values
    states: Values
    updates: Mapping[str, str]
    feeds: Sequence[Values]
    step: Step
    initialization: str = ""
    initial: Mapping[str, str] = dataclasses.field(default_factory=dict)
    initialized: Values = dataclasses.field(default_factory=dict)
    more: Sequence[tuple[str, Values, Mapping[str, str]]] = ()
    functions: Sequence[str] = ()
    features: Sequence[str] = ()
    dtypes: Sequence[str] = ("float32", "float64")
    precision: str = ""
    opset: int = 18
    ir_version: int = 10


def add(suite: Suite, scenario: Scenario) -> None:
    """Write the cases of a scenario: in each type with known sizes, and in the first with unknown sizes."""
    for dtype in scenario.dtypes:
        for shapes in ("static", "rank"):
            if shapes == "static" or dtype == scenario.dtypes[0]:
                write(suite, scenario, dtype, shapes)


def write(suite: Suite, scenario: Scenario, dtype: str, shapes: str) -> None:
    model = build(scenario, dtype, shapes)
    state = {n: rounded(a) for n, a in {**scenario.weights, **scenario.states}.items()}
    bound = {**scenario.updates}
    for _, states, updates in scenario.more:
        state |= {n: rounded(a) for n, a in states.items()}
        bound |= updates
    if scenario.initialization:
        state |= {n: rounded(a) for n, a in scenario.initialized.items()}
    sets = []
    for feeds in scenario.feeds:
        given = {n: rounded(a) for n, a in feeds.items()}
        outputs, new = scenario.step(dict(state), given)
        state |= new
        sets.append(({n: cast(a, dtype) for n, a in given.items()}, {n: cast(a, dtype) for n, a in outputs.items()}))
    names = {*bound, *scenario.initial}
    final = {n: cast(state[n], dtype) for n in state if n in names}
    every = [a for _, outputs in sets for a in outputs.values()] + list(final.values())
    rtol, atol = tolerance(scenario.precision or dtype, [a for a in every if a.dtype.kind == "f"])
    name = f"training/{slug(scenario.name)}/{'known' if shapes == 'static' else 'rank'}-{dtype}"
    suite.add(
        name, model, sets, kind="training", operator=slug(scenario.name), dtypes=[dtype], shapes=shapes, oracle=ORACLE,
        rtol=rtol, atol=atol, state=final,
        features=[*scenario.features, *(["initialization"] if scenario.initialization else [])],
    )  # fmt: skip


def rounded(array: Any) -> np.ndarray:
    """Return float64 values that float32 holds exactly; other types as they are."""
    array = np.asarray(array)
    return array.astype(np.float32).astype(np.float64) if array.dtype == np.float64 else array


def cast(array: Any, dtype: str) -> np.ndarray:
    array = np.asarray(array)
    return array.astype(TYPES[dtype]) if array.dtype == np.float64 else array


def build(scenario: Scenario, dtype: str, shapes: str) -> onnx.ModelProto:
    """Return the model of a scenario."""
    graph = parse(scenario.graph, dtype, shapes)
    graph.initializer.extend(tensors(scenario.weights, dtype))
    imports = [helper.make_opsetid("", scenario.opset), helper.make_opsetid(TRAINING, 1)]
    functions = [parser.parse_function(retype(f, dtype)) for f in scenario.functions]
    imports += [helper.make_opsetid(d, 1) for d in sorted({f.domain for f in functions})]
    model = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=scenario.ir_version)
    for index, (text, states, updates) in enumerate(
        [(scenario.algorithm, scenario.states, scenario.updates), *scenario.more]
    ):
        algorithm = parse(text, dtype, shapes)
        algorithm.initializer.extend(tensors(states, dtype))
        present = {o.name for o in algorithm.output}
        every = {**scenario.weights, **scenario.states, **states}
        for key, value in updates.items():
            if value in present or value in {o.name for o in graph.output}:
                continue
            array = cast(every[key], dtype)
            sizes = list(array.shape) if shapes == "static" else [None] * array.ndim
            algorithm.output.append(
                helper.make_tensor_value_info(value, helper.np_dtype_to_tensor_dtype(array.dtype), sizes)
            )
        initialization, bindings = None, None
        if scenario.initialization and index == 0:
            initialization = parse(scenario.initialization, dtype, "static")
            bindings = list(scenario.initial.items())
        info = helper.make_training_info(algorithm, list(updates.items()), initialization, bindings)
        model.training_info.append(info)
    return model


def tensors(values: Mapping[str, Any], dtype: str) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(cast(rounded(a), dtype), n) for n, a in values.items()]


def parse(text: str, dtype: str, shapes: str) -> onnx.GraphProto:
    """Return a graph from its text, with another floating-point type and perhaps without sizes."""
    head, brace, body = text.partition("{")
    if shapes != "static":
        counter = iter(range(1000))
        head = re.sub(
            r"\[([^\]]*)\]", lambda m: "[" + ",".join(f"s{next(counter)}" for _ in m[1].split(",") if _) + "]", head
        )
    return parser.parse_graph(retype(head + brace + body, dtype))


def retype(text: str, dtype: str) -> str:
    for operator in ("Gradient", "Adagrad", "Adam", "Momentum", "GraphCall"):
        text = re.sub(rf"= {operator}\b", f"= {TRAINING}.{operator}", text)
    return re.sub(r"\bfloat\b(?!\d)", {"float32": "float", "float64": "double"}[dtype], text).replace(
        "<to=1>", "<to=1>" if dtype == "float32" else "<to=11>"
    )


def gradients(loss: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> Values:
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {
        n: np.zeros(tuple(p.shape)) if g is None else g.numpy()
        for (n, p), g in zip(parameters.items(), found, strict=True)
    }


def leaf(array: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(array), dtype=torch.float64, requires_grad=True)


def tensor(array: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(array))


def trained(
    loss: Callable[[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]], Any],
    parameters: Sequence[str],
    optimizer: str,
    **attributes: Any,
) -> Step:
    """Return the step of a scenario that minimises `loss(parameters, feeds and states)` with a standard optimizer.

    States are called <V or H>_<parameter>; R and T are states, too, and T counts. `loss` returns the loss, or the loss
    and a dict of further updates.
    """

    def step(state: Values, feeds: Values) -> tuple[Values, Values]:
        points = {n: leaf(state[n]) for n in parameters}
        others = {n: tensor(a) for n, a in {**state, **feeds}.items() if n not in points}
        result = loss({**others, **points}, others)
        value, new = result if isinstance(result, tuple) else (result, {})
        found = gradients(value, points)
        new = {n: np.asarray(a) for n, a in new.items()} | {"T": state["T"] + 1}
        for n in parameters:
            kept = [state[f"{k}_{n}"] for k in STATES[optimizer]]
            results = UPDATES[optimizer](float(state["R"]), int(state["T"]), state[n], found[n], *kept, **attributes)
            new |= dict(zip([n, *(f"{k}_{n}" for k in STATES[optimizer])], results, strict=True))
        return {"loss": value.detach().numpy()}, new

    return step


def optimizer_text(
    optimizer: str, parameters: Sequence[str], zs: Sequence[str], rate: str = "R", **attributes: Any
) -> str:
    """Return the text that differentiates `loss` and updates `parameters`, with T + 1 at the end."""
    quoted = ", ".join(f'"{p}"' for p in parameters)
    names = ", ".join(parameters)
    rest = ", ".join(f'"{z}"' for z in zs)
    lines = [f'{", ".join("d" + p for p in parameters)} = Gradient<xs=[{quoted}], zs=[{rest}], y="loss">'
             f"({names}, {', '.join(zs)})"]  # fmt: skip
    settings = ", ".join(f'{k}="{v}"' if isinstance(v, str) else f"{k}={float(v)}" for k, v in attributes.items())
    kinds = STATES[optimizer]
    inputs = [rate, "T", *parameters, *(f"d{p}" for p in parameters), *(f"{k}_{p}" for k in kinds for p in parameters)]
    outputs = [f"{p}_new" for p in parameters] + [f"{k}_{p}_new" for k in kinds for p in parameters]
    lines.append(f"{', '.join(outputs)} = {optimizer}<{settings}>({', '.join(inputs)})")
    lines.append("T_new = Add(T, one)")
    return "\n  ".join(lines)


def optimizer_states(optimizer: str, weights: Mapping[str, Any], parameters: Sequence[str], R: float) -> Values:
    """Return R, T, one and zeros for the optimizer's state."""
    zeros = {f"{k}_{p}": np.zeros(np.shape(weights[p])) for k in STATES[optimizer] for p in parameters}
    return {"R": np.array(R), "T": np.array(0, np.int64), "one": np.array(1, np.int64), **zeros}


def optimizer_updates(optimizer: str, parameters: Sequence[str]) -> dict[str, str]:
    names = [*parameters, *(f"{k}_{p}" for k in STATES[optimizer] for p in parameters), "T"]
    return {n: f"{n}_new" for n in names}
