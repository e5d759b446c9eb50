"""Write the table of optax optimizers in docs/jax.md: each is traced, trained for 50 steps and compared with optax.

python docs/generate_optax.py          # write the table
python docs/generate_optax.py adam     # print the rows of some optimizers only
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src")]
BEGIN, END = "<!-- optax: begin -->", "<!-- optax: end -->"
STEPS = 50

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np
import optax

import onward


def optimizers() -> dict[str, Any]:
    """Return every public optimizer of optax and optax.contrib, made with its defaults or the least it needs."""
    rate = 1e-2
    made: dict[str, Any] = {}
    contrib = optax.contrib
    plain = [
        "adabelief", "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan", "amsgrad",
        "fromage", "lamb", "lars", "lion", "nadam", "nadamw", "novograd", "optimistic_gradient_descent", "radam",
        "rmsprop", "rprop", "sgd", "sign_sgd", "signum", "sm3", "yogi",
    ]  # fmt: skip
    for name in plain:
        made[name] = getattr(optax, name)(rate)
    made["optimistic_adam_v2"] = optax.optimistic_adam_v2(rate)
    made["sgd(momentum, nesterov, schedule)"] = optax.sgd(
        optax.warmup_cosine_decay_schedule(0.0, 0.1, 10, 40), 0.9, nesterov=True
    )
    made["rmsprop(centered, momentum)"] = optax.rmsprop(rate, centered=True, momentum=0.9)
    made["polyak_sgd"] = optax.polyak_sgd()
    made["noisy_sgd"] = optax.noisy_sgd(rate, key=jax.random.key(0))
    made["lbfgs"] = optax.lbfgs()
    made["lbfgs(linesearch=None)"] = optax.lbfgs(rate, linesearch=None)
    for name in ["acprop", "ademamix", "adopt", "dadapt_adamw", "dog", "dowg", "galore", "madgrad", "momo", "momo_adam",
                 "muon", "prodigy", "schedule_free_adamw", "schedule_free_sgd", "simplified_ademamix", "sophia",
                 "cocob"]:  # fmt: skip
        factory = getattr(contrib, name)
        try:
            made[f"contrib.{name}"] = factory(rate) if name not in ("dadapt_adamw", "prodigy", "cocob") else factory()
        except TypeError:
            made[f"contrib.{name}"] = factory()
    made["contrib.sam"] = contrib.sam(optax.sgd(rate), optax.sgd(0.05), sync_period=2)
    made["contrib.dpsgd"] = contrib.dpsgd(rate, 1.0, 0.5, seed=0)
    made["contrib.mechanize"] = contrib.mechanize(optax.sgd(rate))
    made["contrib.reduce_on_plateau"] = optax.chain(optax.adam(rate), contrib.reduce_on_plateau(patience=3))
    adam = optax.adam(rate)
    made["chain(clip_by_global_norm, adam)"] = optax.chain(optax.clip_by_global_norm(0.5), adam)
    made["chain(adaptive_grad_clip, sgd)"] = optax.chain(optax.adaptive_grad_clip(0.01), optax.sgd(0.1))
    made["chain(ema, sgd)"] = optax.chain(optax.ema(0.9), optax.sgd(0.1))
    made["chain(centralize, zero_nans, adam)"] = optax.chain(optax.centralize(), optax.zero_nans(), adam)
    made["chain(add_noise, sgd)"] = optax.chain(optax.add_noise(0.1, 0.55, jax.random.key(0)), optax.sgd(0.1))
    made["multi_transform"] = optax.multi_transform({"a": adam, "b": optax.sgd(0.1)}, {"w": "a", "b": "b", "e": "a"})
    made["masked"] = optax.masked(adam, {"w": True, "b": False, "e": True})
    made["MultiSteps"] = optax.MultiSteps(adam, 3)
    made["apply_if_finite"] = optax.apply_if_finite(adam, 3)
    made["inject_hyperparams"] = optax.inject_hyperparams(optax.adam)(learning_rate=optax.linear_schedule(0.01, 0.1, 9))
    made["apply_every"] = optax.chain(adam, optax.apply_every(2))
    made["flatten"] = optax.flatten(adam)
    made["lookahead"] = optax.lookahead(adam, 5, 0.5)
    return made


def problem(dtype: Any) -> tuple[Any, Any, Any, Any]:
    """Return parameters, loss, prediction and a function from step to batch."""
    random = np.random.RandomState(0)
    params = {
        "w": jnp.asarray(random.randn(4, 5) * 0.5, dtype),
        "b": jnp.full(5, 0.1, dtype),
        "e": jnp.asarray(random.randn(3, 5) * 0.5, dtype),
    }

    def predict(params: Any, batch: Any) -> Any:
        return jnp.tanh(batch["x"] @ params["w"] + params["b"]) @ params["e"].T

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((predict(params, batch) - batch["y"]) ** 2)

    def batch(step: int) -> Any:
        draw = np.random.RandomState(step + 1)
        n = 6 if step < STEPS - 1 else 2
        return {"x": draw.randn(n, 4).astype(dtype), "y": draw.randn(n, 3).astype(dtype)}

    return params, loss, predict, batch


def error(optimizer: Any, dtype: Any) -> tuple[float, float]:
    """Return the largest error of the parameters and the optimizer's state after 50 steps, relative to each array.

    The second number is that of optax itself, if it starts from parameters that differ in the last bit.
    """
    params, loss, predict, batch = problem(dtype)
    model = onward.from_jax(loss, params, optimizer=optimizer, example_batch=batch(0), predict=predict)
    state = optimizer.init(params)
    trainer = onward.Trainer(model, backend="onnxruntime")
    extra = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(optimizer.update).parameters.values())

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        more = {"value": value, "grad": gradients} if extra else {}
        updates, state = optimizer.update(gradients, state, params, **more)
        return optax.apply_updates(params, updates), state

    nearby = jax.tree.map(lambda p: p * (1 + np.finfo(dtype).eps), params), state
    for index in range(STEPS):
        params, state = step(params, state, batch(index))
        nearby = step(*nearby, batch(index))
        trainer.step(batch(index))
    theirs = {"": params, "optimizer.": state}
    ours = trainer.state
    return _distance(theirs, ours), _distance(theirs, _named({"": nearby[0], "optimizer.": nearby[1]}))


def _named(trees: dict[str, Any]) -> dict[str, Any]:
    return {
        prefix + jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for prefix, tree in trees.items()
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    }


def _distance(trees: dict[str, Any], ours: dict[str, Any]) -> float:
    worst = 0.0
    for prefix, tree in trees.items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            name = prefix + jax.tree_util.keystr(path, simple=True, separator=".")
            if name not in ours:
                continue  # it never changes
            wanted, mine = np.float64(leaf), np.float64(ours[name])
            worst = max(
                worst, float(np.abs(mine - wanted).max(initial=0.0) / max(np.abs(wanted).max(initial=0.0), 1e-6))
            )
    return worst


def row(name: str, optimizer: Any) -> str:
    """Return the row of one optimizer: its errors, or why it is refused."""
    if "noise" in name or name in ("noisy_sgd", "contrib.dpsgd"):
        return _noisy(name, optimizer)
    cells = []
    for dtype in (np.float64, np.float32):
        try:
            found, sensitive = error(optimizer, dtype)
            small = found <= (1e-10 if dtype == np.float64 else 1e-5)
            cells.append(f"{found:.0e}" + ("" if small else f" (optax, changed in the last bit: {sensitive:.0e})"))
        except onward.OnwardError as refusal:
            first = refusal.diagnostics[0]
            return f"| `optax.{name}` | refused | {_short(first.message)}{'; ' + first.hint if first.hint else ''} |"
    return f"| `optax.{name}` | {cells[0]} | {cells[1]} |"


def _noisy(name: str, optimizer: Any) -> str:
    params, loss, predict, batch = problem(np.float32)
    try:
        model = onward.from_jax(loss, params, optimizer=optimizer, example_batch=batch(0), predict=predict)
        onward.Trainer(model).step(batch(0))
    except onward.OnwardError as refusal:
        return f"| `optax.{name}` | refused | {_short(refusal.diagnostics[0].message)} |"
    what = "captured; Onward's keyed noise, so other numbers of the same distribution"
    return f"| `optax.{name}` | its own noise | {what} |"


def _short(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")[:160]


def main() -> None:
    """Write the table, or print the rows that were asked for."""
    warnings.simplefilter("ignore")
    chosen = {n: o for n, o in optimizers().items() if not sys.argv[1:] or n in sys.argv[1:]}
    lines = []
    for name, optimizer in chosen.items():
        lines.append(row(name, optimizer))
        print(lines[-1], flush=True)
    if sys.argv[1:]:
        return
    page = ROOT / "docs/jax.md"
    head = ["| optimizer | error in float64 | error in float32 |", "|---|---|---|"]
    versions = f"Measured with JAX {jax.__version__} and optax {optax.__version__}."
    table = "\n".join([BEGIN, versions, "", *head, *sorted(lines, key=str.lower), END])
    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: table, text, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
