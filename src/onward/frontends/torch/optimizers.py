"""Convert optimizers of `torch.optim`, with settings and current state, exactly or not at all."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from onward.errors import ArgumentError, Diagnostic
from onward.frontends.torch.schedulers import convert_scheduler, steps_of
from onward.model.roles import STEP
from onward.optimizers import (
    ASGD,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adamax,
    Muon,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
    TorchAdam,
    TorchAdamW,
)

A210 = "A210"

Settings = dict[str, Any]
Translation = Callable[[Mapping[str, Any]], Settings]


def _sgd(g: Mapping[str, Any]) -> Settings:
    return {"momentum": g["momentum"], "nesterov": g["nesterov"], "dampening": g["dampening"]}


def _adam(g: Mapping[str, Any]) -> Settings:
    return {**_betas(g), "amsgrad": g["amsgrad"], **_decoupled(g)}


def _adamw(g: Mapping[str, Any]) -> Settings:
    return {**_betas(g), "amsgrad": g["amsgrad"]}


def _betas(g: Mapping[str, Any]) -> Settings:
    return {"beta1": float(g["betas"][0]), "beta2": float(g["betas"][1]), "epsilon": g["eps"]}


def _decoupled(g: Mapping[str, Any]) -> Settings:
    return {"decoupled": bool(g.get("decoupled_weight_decay", False))}


def _adagrad(g: Mapping[str, Any]) -> Settings:
    accumulator = g.get("initial_accumulator_value", 0.0)
    return {"decay_factor": g["lr_decay"], "epsilon": g["eps"], "initial_accumulator": accumulator}


def _rmsprop(g: Mapping[str, Any]) -> Settings:
    return {"alpha": g["alpha"], "epsilon": g["eps"], "momentum": g["momentum"], "centered": g["centered"]}


def _nadam(g: Mapping[str, Any]) -> Settings:
    return {**_betas(g), "momentum_decay": g["momentum_decay"], **_decoupled(g)}


def _radam(g: Mapping[str, Any]) -> Settings:
    return {**_betas(g), **_decoupled(g)}


def _rprop(g: Mapping[str, Any]) -> Settings:
    (shrink, growth), (smallest, largest) = g["etas"], g["step_sizes"]
    return {"shrink": shrink, "growth": growth, "smallest": float(smallest), "largest": float(largest)}


def _adadelta(g: Mapping[str, Any]) -> Settings:
    return {"rho": g["rho"], "epsilon": g["eps"]}


def _asgd(g: Mapping[str, Any]) -> Settings:
    return {"decay": g["lambd"], "power": g["alpha"], "start": float(g["t0"])}


def _adafactor(g: Mapping[str, Any]) -> Settings:
    epsilon1, epsilon2 = g["eps"]
    return {"beta2_decay": g["beta2_decay"], "epsilon1": epsilon1, "epsilon2": epsilon2, "threshold": float(g["d"])}


def _muon(g: Mapping[str, Any]) -> Settings:
    a, b, c = g["ns_coefficients"]
    return {
        "momentum": g["momentum"],
        "nesterov": g["nesterov"],
        **{"a": float(a), "b": float(b), "c": float(c)},
        "iterations": g["ns_steps"],
        "epsilon": g["eps"],
        "scale": g["adjust_lr_fn"] or "original",
    }


# torch class -> (our class, settings of a group, our slot -> torch's state key)
_TABLE: dict[type[torch.optim.Optimizer], tuple[type[Optimizer], Translation, dict[str, str]]] = {
    torch.optim.SGD: (SGD, _sgd, {"v": "momentum_buffer"}),
    torch.optim.Adam: (TorchAdam, _adam, {"m": "exp_avg", "v": "exp_avg_sq", "max_v": "max_exp_avg_sq"}),
    torch.optim.AdamW: (TorchAdamW, _adamw, {"m": "exp_avg", "v": "exp_avg_sq", "max_v": "max_exp_avg_sq"}),
    torch.optim.Adagrad: (Adagrad, _adagrad, {"h": "sum"}),
    torch.optim.RMSprop: (RMSprop, _rmsprop, {"v": "square_avg", "mean": "grad_avg", "momentum": "momentum_buffer"}),
    torch.optim.Adamax: (Adamax, _betas, {"m": "exp_avg", "u": "exp_inf"}),
    torch.optim.NAdam: (NAdam, _nadam, {"m": "exp_avg", "v": "exp_avg_sq", "mu_product": "mu_product"}),
    torch.optim.RAdam: (RAdam, _radam, {"m": "exp_avg", "v": "exp_avg_sq"}),
    torch.optim.Rprop: (Rprop, _rprop, {"previous": "prev", "size": "step_size"}),
    torch.optim.Adadelta: (Adadelta, _adadelta, {"v": "square_avg", "u": "acc_delta"}),
    torch.optim.ASGD: (ASGD, _asgd, {"average": "ax"}),
    torch.optim.Adafactor: (Adafactor, _adafactor, {"row": "row_var", "column": "col_var", "v": "variance"}),
}
if hasattr(torch.optim, "Muon"):  # since PyTorch 2.9
    _TABLE[torch.optim.Muon] = (Muon, _muon, {"m": "momentum_buffer"})


def convert_optimizer(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str], trained: Sequence[str], scheduler: Any = None
) -> tuple[Optimizer, list[str]]:
    """Return our optimizer and the parameters it trains (`requires_grad` ∩ `param_groups`).

    `names` maps id(parameter) to its name. Raises ArgumentError for an optimizer or option without an exact equivalent.
    """
    kind = type(optimizer)
    if kind not in _TABLE:
        raise ArgumentError(
            Diagnostic(
                A210,
                f"`{_full_name(kind)}` cannot be converted",
                place="optimizer=",
                found=_WHY_NOT.get(kind.__name__, ""),
                needed="one of: " + ", ".join(sorted(k.__name__ for k in _TABLE)),
                hint="pass optimizer=onward.optimizers.Custom(...) with the update as a function",
            )
        )
    ours, translate, _ = _TABLE[kind]
    rates, schedule = [float(g["lr"]) for g in optimizer.param_groups], None
    if scheduler is not None:
        rates, schedule, _ = convert_scheduler(scheduler, optimizer)
    chosen: list[str] = []
    groups: list[tuple[Settings, list[str]]] = []
    problems = _hooks(optimizer)
    for index, group in enumerate(optimizer.param_groups):
        members = []
        for parameter in group["params"]:
            name = names.get(id(parameter))
            if name is None:
                problems.append(
                    Diagnostic(A210, "the optimizer holds a parameter that is not in the module",
                               place=f"param_groups[{index}]", found=f"a tensor of shape {list(parameter.shape)}")
                )  # fmt: skip
            elif name in trained and name not in chosen:
                members.append(name)
        chosen += members
        settings = {
            "learning_rate": rates[index],
            "weight_decay": float(group.get("weight_decay", 0.0)),
            "maximize": bool(group.get("maximize", False)),
            **translate(group),
        }
        if members:
            groups.append((settings, members))
    if not groups:
        problems.append(Diagnostic(A210, "the optimizer trains no parameter of the module that requires a gradient"))
    if problems:
        raise ArgumentError(problems)
    base = dict(groups[0][0])
    overrides: dict[str, Settings] = {}
    for settings, members in groups[1:]:
        different = {k: v for k, v in settings.items() if v != base[k]}
        if different:
            overrides.update({glob.escape(name): different for name in members})
    if schedule is not None:
        base["learning_rate"] = dataclasses.replace(schedule, learning_rate=base["learning_rate"])
    return ours(**base, groups=overrides), chosen


# Their update is not a function of only a parameter, its gradient and its state.
_WHY_NOT = {
    "LBFGS": "an optimizer that evaluates the loss several times in one step",
    "SparseAdam": "an optimizer of sparse gradients, which ONNX does not have",
}


def _full_name(kind: type) -> str:
    own = kind.__module__.startswith("torch.optim")
    return f"torch.optim.{kind.__name__}" if own else f"{kind.__module__}.{kind.__qualname__}"


def _hooks(optimizer: torch.optim.Optimizer) -> list[Diagnostic]:
    """Return a problem for each kind of hook that changes a step; a file contains no Python."""
    return [
        Diagnostic(
            A210,
            "the optimizer has hooks, which a file cannot contain",
            place=f"torch.optim.{type(optimizer).__name__}",
            found=name,
            hint="remove the hook; clipping is an option of onward.optimizers (clip_norm=, clip_global_norm=)",
        )
        for name in ("register_step_pre_hook", "register_step_post_hook")
        if getattr(optimizer, "_optimizer_" + name.removeprefix("register_") + "s", None)
    ]


def optimizer_state(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str], scheduler: Any = None
) -> dict[tuple[str, str], np.ndarray]:
    """Return the current state by (slot, parameter), with parameter "" for the step count; {} before the first step."""
    slots = _TABLE[type(optimizer)][2]
    found: dict[tuple[str, str], np.ndarray] = {}
    steps: dict[int, str] = {}
    for parameter, state in optimizer.state.items():
        name = names.get(id(parameter))
        if name is None or not state:
            continue
        if "step" in state:
            steps[int(state["step"])] = name
        for ours, theirs in slots.items():
            value = state.get(theirs)
            if value is not None:
                found[ours, name] = torch.as_tensor(value).detach().cpu().numpy().copy()
    if len(steps) > 1:
        counts = ", ".join(f"`{n}`: {s}" for s, n in sorted(steps.items()))
        raise ArgumentError(
            Diagnostic(
                A210,
                "the parameters have taken different numbers of steps, but the file has one counter for all",
                found=counts,
                hint="train them the same number of steps, or start with a fresh optimizer",
            )
        )
    if scheduler is not None:
        found[STEP, ""] = np.array(steps_of(scheduler), np.int64)
    elif steps:
        found[STEP, ""] = np.array(next(iter(steps)), np.int64)
    elif found:  # SGD has no counter; all steps but the first are alike
        found[STEP, ""] = np.array(1, np.int64)
    return found
