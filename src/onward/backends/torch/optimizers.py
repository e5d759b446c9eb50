"""Convert the optimizer of a training model to a `torch.optim.Optimizer`.

If the file names an optimizer with an exact equivalent in `torch.optim`, that is used, with its state; a numeric test
verifies it once. Otherwise `GraphOptimizer` runs the model's own update graph with everything in it: clipping,
accumulation, averages, custom updates.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from onward.backends.torch.interpreter import Interpreter
from onward.backends.torch.module import OnnxModule
from onward.backends.torch.tensors import to_tensor
from onward.compiler.compile import Compiler, settings_of, state_of
from onward.compiler.recipes import UPDATE
from onward.model.roles import STEP, entry_roles
from onward.model.training_model import TrainingEntry, TrainingModel

Maker = Callable[[Mapping[str, Any]], tuple[type[torch.optim.Optimizer], dict[str, Any]]]


def _adam(s: Mapping[str, Any]) -> dict[str, Any]:
    return {"betas": (s["beta1"], s["beta2"]), "eps": s["epsilon"]}


def _muon(s: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "momentum": s["momentum"],
        "nesterov": s["nesterov"],
        "ns_coefficients": (s["a"], s["b"], s["c"]),
        "eps": s["epsilon"],
        "ns_steps": s["iterations"],
        "adjust_lr_fn": s["scale"],
    }


_EXACT: dict[str, tuple[type[torch.optim.Optimizer], Callable[[Mapping[str, Any]], dict[str, Any]], dict[str, str]]] = {
    "SGD": (
        torch.optim.SGD,
        lambda s: {"momentum": s["momentum"], "nesterov": s["nesterov"], "dampening": s["dampening"]},
        {"v": "momentum_buffer"},
    ),
    "TorchAdam": (
        torch.optim.Adam,
        lambda s: {**_adam(s), "amsgrad": s["amsgrad"]},
        {"m": "exp_avg", "v": "exp_avg_sq", "max_v": "max_exp_avg_sq"},
    ),
    "TorchAdamW": (
        torch.optim.AdamW,
        lambda s: {**_adam(s), "amsgrad": s["amsgrad"]},
        {"m": "exp_avg", "v": "exp_avg_sq", "max_v": "max_exp_avg_sq"},
    ),
    "Adagrad": (
        torch.optim.Adagrad,
        lambda s: {"lr_decay": s["decay_factor"], "eps": s["epsilon"]},
        {"h": "sum"},
    ),
    "RMSprop": (
        torch.optim.RMSprop,
        lambda s: {
            "alpha": s["alpha"], "eps": s["epsilon"], "momentum": s["momentum"], "centered": s["centered"],
        },
        {"v": "square_avg", "mean": "grad_avg", "momentum": "momentum_buffer"},
    ),
    "Adamax": (torch.optim.Adamax, _adam, {"m": "exp_avg", "u": "exp_inf"}),
    "NAdam": (
        torch.optim.NAdam,
        lambda s: {**_adam(s), "momentum_decay": s["momentum_decay"], "decoupled_weight_decay": s["decoupled"]},
        {"m": "exp_avg", "v": "exp_avg_sq", "mu_product": "mu_product"},
    ),
    "RAdam": (
        torch.optim.RAdam,
        lambda s: {**_adam(s), "decoupled_weight_decay": s["decoupled"]},
        {"m": "exp_avg", "v": "exp_avg_sq"},
    ),
    "Rprop": (
        torch.optim.Rprop,
        lambda s: {"etas": (s["shrink"], s["growth"]), "step_sizes": (s["smallest"], s["largest"])},
        {"previous": "prev", "size": "step_size"},
    ),
    "Adadelta": (
        torch.optim.Adadelta,
        lambda s: {"rho": s["rho"], "eps": s["epsilon"]},
        {"v": "square_avg", "u": "acc_delta"},
    ),
    "Adafactor": (
        torch.optim.Adafactor,
        lambda s: {"beta2_decay": s["beta2_decay"], "eps": (s["epsilon1"], s["epsilon2"]), "d": s["threshold"]},
        {"row": "row_var", "column": "col_var", "v": "variance"},
    ),
}  # fmt: skip
if hasattr(torch.optim, "Muon"):  # since PyTorch 2.9
    _EXACT["Muon"] = (torch.optim.Muon, _muon, {"m": "momentum_buffer"})
_EXACT["Momentum"] = _EXACT["SGD"]
_WITH_OWN_DECAY = {
    "TorchAdamW",
    "NAdam",
    "RAdam",
    "Adafactor",
    "Muon",
}  # decoupled weight decay is part of torch's class


def build_optimizer(
    model: TrainingModel, entry: TrainingEntry, module: OnnxModule, *, prefer_graph: bool = False
) -> torch.optim.Optimizer:
    """Return torch's own optimizer if it computes exactly the model's update, else a `GraphOptimizer`."""
    graph = GraphOptimizer(model, entry, module)
    if prefer_graph:
        return graph
    exact = _torch_optimizer(model, entry, module)
    return exact if exact is not None and _agree(exact, graph, module) else graph


def _torch_optimizer(model: TrainingModel, entry: TrainingEntry, module: OnnxModule) -> torch.optim.Optimizer | None:
    assert entry.algorithm is not None
    text = entry.algorithm.metadata_props.get("onward.optimizer")
    if not text:
        return None
    settings = json.loads(text)
    found = _EXACT.get(settings.get("name", ""))
    plain = not any(settings.get(k) for k in ("clip_value", "clip_norm", "clip_global_norm", "ema"))
    if found is None or not plain or settings.get("accumulate", 1) != 1 or isinstance(settings["learning_rate"], dict):
        return None
    if settings.get("decoupled") and settings["name"] not in _WITH_OWN_DECAY:
        return None
    kind, translate, slots = found
    groups: dict[str, list[str]] = {}  # by their settings as text: the file may have one group per parameter
    for name in entry_roles(model, entry).gradients.values():
        chosen = next((g for g in settings["groups"] if fnmatch.fnmatchcase(name, g)), None)
        own = {**settings, **(settings["groups"][chosen] if chosen is not None else {})}
        groups.setdefault(json.dumps(own, sort_keys=True), []).append(name)
    param_groups = []
    for described, names in groups.items():
        own = json.loads(described)
        param_groups.append(
            {
                "params": [module.tensor(n) for n in names],
                "lr": own["learning_rate"],
                "weight_decay": own["weight_decay"],
                "maximize": own.get("maximize", False),
                **translate(own),
            }
        )
    optimizer = kind(param_groups)
    _load_state(optimizer, model, entry, module, settings, slots)
    return optimizer


def _load_state(
    optimizer: torch.optim.Optimizer,
    model: TrainingModel,
    entry: TrainingEntry,
    module: OnnxModule,
    settings: Mapping[str, Any],
    slots: Mapping[str, str],
) -> None:
    """Load the state of the file into torch's optimizer, which has none before the first step."""
    assert entry.algorithm is not None
    roles, known = entry_roles(model, entry), state_of(model)
    steps = int(known[roles.slots[STEP, ""]]) if (STEP, "") in roles.slots else 0
    if not steps:
        return
    for name in roles.gradients.values():
        parameter = module.tensor(name)
        state: dict[str, Any] = {
            theirs: to_tensor(known[roles.slots[ours, name]])
            for ours, theirs in slots.items()
            if (ours, name) in roles.slots
        }
        if "momentum_buffer" not in state or settings["name"] not in ("SGD", "Momentum", "Muon"):
            state["step"] = torch.tensor(float(steps))
        if state:
            optimizer.state[parameter] = state


class GraphOptimizer(torch.optim.Optimizer):  # type: ignore[misc]  # torch is not typed here
    """Runs a model's own update graph: gradients in, new parameters and state out.

    `state_dict()` carries the optimizer's state. Settings such as `learning_rate` are in `self.settings` and may be
    changed between steps; the rate is also `param_groups[0]["lr"]`, where PyTorch's schedulers change it.
    """

    def __init__(self, model: TrainingModel, entry: TrainingEntry, module: OnnxModule) -> None:
        update = Compiler(model).build(UPDATE, entry)
        self._interpreter = Interpreter(update.model.graph, update.opset)
        roles, alone = entry_roles(model, entry), TrainingModel(model.ir, [entry])
        with_the_forward = set(module.updated_by_forward)
        self._replaces = {o: s for o, s in update.replaces.items() if s not in with_the_forward}
        self._module = module
        self._gradients = roles.gradients
        self.settings: dict[str, Tensor] = {n: to_tensor(v) for n, v in settings_of(alone).items()}
        held = module.named_tensors()
        self._own: dict[str, Tensor] = {n: to_tensor(v) for n, v in state_of(alone).items() if n not in held}
        self._rate_name = next(iter(roles.learning_rates), None)
        group: dict[str, Any] = {"params": [module.tensor(n) for n in self._gradients.values()]}
        if self._rate_name is not None:
            group["lr"] = self._rate = float(self.settings[self._rate_name])
        super().__init__([group], {})

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)  # torch's method only includes the parameters and their state

    def _sync_rate(self) -> None:
        """Use the learning rate that changed since the last step: that of the group, or else of the settings."""
        if self._rate_name is None:
            return
        (group,) = self.param_groups
        setting = self.settings[self._rate_name]
        if float(group["lr"]) != self._rate:
            self.settings[self._rate_name] = setting.new_full((), float(group["lr"]))
        group["lr"] = self._rate = float(self.settings[self._rate_name])

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not typed here
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Apply the update to the parameters, all of which need a gradient in `.grad`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._sync_rate()
        feeds: dict[str, Any] = {**self.settings, **self._own, **self._module.named_tensors()}
        for gradient, name in self._gradients.items():
            parameter = self._module.tensor(name)
            feeds[gradient] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        wanted = {n: v for n, v in feeds.items() if n in self._interpreter.input_slots}
        results = self._interpreter.run(wanted)
        for output, name in self._replaces.items():
            if name in self._own:
                self._own[name] = results[output]
            else:
                self._module.tensor(name).copy_(results[output])
        return loss

    def state_dict(self) -> dict[str, Any]:
        (group,) = self.param_groups
        groups = [{**group, "params": list(range(len(group["params"])))}]
        return {"state": dict(self._own), "settings": dict(self.settings), "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._own.update({n: v.clone() for n, v in state_dict["state"].items()})
        self.settings.update(state_dict["settings"])
        if self._rate_name is not None:
            self._rate = float(self.settings[self._rate_name])
        for group, loaded in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({key: value for key, value in loaded.items() if key != "params"})


def _agree(exact: torch.optim.Optimizer, graph: GraphOptimizer, module: OnnxModule) -> bool:
    """Return whether both optimizers make the same two steps; restore everything afterwards."""
    before = {n: t.detach().clone() for n, t in module.named_tensors().items()}
    own = {n: t.clone() for n, t in graph._own.items()}
    saved = deep_copy(exact.state_dict())
    generator = torch.Generator().manual_seed(0)
    trained = list(graph._gradients.values())

    def draw() -> dict[str, Tensor]:
        return {n: torch.randn(before[n].shape, generator=generator).to(before[n].dtype) for n in trained}

    gradients = [draw(), draw()]
    ends = []
    for optimizer in (exact, graph):
        for step in gradients:
            for name, gradient in step.items():
                module.tensor(name).grad = gradient.clone()
            optimizer.step()
        ends.append({n: module.tensor(n).detach().clone() for n in trained})
        with torch.no_grad():
            for name, value in before.items():
                module.tensor(name).copy_(value)
    for name in trained:
        module.tensor(name).grad = None
    exact.load_state_dict(saved)
    graph._own.update(own)
    return all(torch.allclose(ends[0][n], ends[1][n], rtol=1e-4, atol=1e-6) for n in ends[0])


def deep_copy(value: Any) -> Any:
    """Return a deep copy of nested containers of tensors and numbers."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: deep_copy(v) for k, v in value.items()}
    if isinstance(value, list):
        return [deep_copy(v) for v in value]
    return value
