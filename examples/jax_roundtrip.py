"""Train in JAX, continue in ONNX Runtime without JAX, and return: one continuous loss curve.

    python examples/jax_roundtrip.py --output roundtrip

It trains a small convolutional network with batch normalisation and optax's AdamW with a schedule on random images:

    part 1   JAX, with the user's own optax loop
    part 2   ONNX Runtime, in a separate process that never imports JAX, from the file of part 1
    part 3   JAX again, from the file of part 2

For comparison it also runs the same steps in JAX alone. The curves are equal.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH, CLASSES = 16, 4


def batches(part: int, steps: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield the batches of one part: images with a bright quarter, which is the label; the last batch is smaller."""
    random = np.random.default_rng(part)
    for step in range(steps):
        count = BATCH if step < steps - 1 else BATCH // 2
        label = random.integers(0, CLASSES, count)
        image = random.normal(size=(count, 8, 8, 1))
        for index, quarter in enumerate(label):
            row, column = divmod(int(quarter), 2)
            image[index, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 0.7
        yield {"image": image.astype(np.float32), "label": label.astype(np.int32)}


# %% Part 2, in a separate process: ONNX Runtime without JAX.
def continue_without_jax(source: Path, target: Path, log: Path, steps: int) -> None:
    import onward

    trainer = onward.Trainer(source)
    losses = [float(trainer.step(batch)["loss"]) for batch in batches(2, steps)]
    onward.save(trainer.to_model(), target)
    log.write_text(json.dumps(losses))
    assert "jax" not in sys.modules


# %% Parts 1 and 3: JAX.
def main(output: Path, steps: int) -> float:
    import jax
    import jax.numpy as jnp
    import optax

    import onward

    output.mkdir(parents=True, exist_ok=True)

    def forward(params: Any, state: Any, image: Any, train: bool) -> tuple[Any, Any]:
        layout = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(image, params["conv"], (1, 1), "SAME", dimension_numbers=layout)
        mean, var = (x.mean((0, 1, 2)), x.var((0, 1, 2))) if train else (state["mean"], state["var"])
        if train:
            state = {"mean": 0.9 * state["mean"] + 0.1 * mean, "var": 0.9 * state["var"] + 0.1 * var}
        x = jax.nn.relu((x - mean) * jax.lax.rsqrt(var + 1e-5) * params["scale"] + params["bias"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 4, 4, 1), (1, 4, 4, 1), "VALID")
        return x.reshape(x.shape[0], -1) @ params["dense"], state

    def predict(params: Any, state: Any, batch: Any) -> Any:
        return forward(params, state, batch["image"], False)[0]

    def loss(params: Any, state: Any, batch: Any) -> tuple[Any, Any]:
        logits, state = forward(params, state, batch["image"], True)
        wanted = jax.nn.one_hot(batch["label"], CLASSES)
        return -(wanted * jax.nn.log_softmax(logits)).sum(-1).mean(), state

    keys = jax.random.split(jax.random.key(0))
    params = {
        "conv": jax.random.normal(keys[0], (3, 3, 1, 8)) * 0.3,
        "scale": jnp.ones(8),
        "bias": jnp.zeros(8),
        "dense": jax.random.normal(keys[1], (32, CLASSES)) * 0.1,
    }
    state = {"mean": jnp.zeros(8), "var": jnp.ones(8)}
    optimizer = optax.adamw(optax.cosine_decay_schedule(1e-2, 3 * steps))
    moments = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, moments: Any, batch: Any) -> Any:
        (value, state), gradients = jax.value_and_grad(loss, has_aux=True)(params, state, batch)
        updates, moments = optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, updates), state, moments, value

    def train(current: Any, part: int) -> tuple[Any, list[float]]:
        losses = []
        for batch in batches(part, steps):
            *current, value = step(*current, batch)
            losses.append(float(value))
        return current, losses

    after_first, first = train((params, state, moments), 1)
    model = onward.from_jax(
        loss, after_first[0], after_first[1], optimizer=optimizer, optimizer_state=after_first[2],
        example_batch=next(batches(1, steps)), predict=predict,
    )  # fmt: skip
    onward.save(model, output / "after_1.onnx")  # weights, statistics, moments and the schedule's step: all in one file

    command = [sys.executable, __file__, "--middle", "--output", str(output), "--steps", str(steps)]
    subprocess.run(command, check=True)
    second = json.loads((output / "losses_2.json").read_text())
    found = [*first, *second, *back_in_jax(output / "after_2.onnx", optimizer, moments, steps)]

    alone, expected = (params, state, moments), []
    for part in (1, 2, 3):
        alone, losses = train(alone, part)
        expected += losses
    difference = max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(found, expected, strict=True))
    print(f"{len(found)} steps: loss {found[0]:.3f} to {found[-1]:.3f}")
    print(f"largest difference from JAX alone: {difference:.1e} of the loss")
    return float(difference)


def back_in_jax(source: Path, optimizer: Any, moments: Any, steps: int) -> list[float]:
    """Train part 3 with optax, from the file; `moments` is a state of the optimizer, for its structure."""
    import jax
    import jax.numpy as jnp
    import optax

    import onward

    loss, params, state = onward.to_jax(source)  # loss(params, state, batch, key) -> (loss, new state)
    stored = onward.load(source).initializers()

    def of_the_file(path: Any, _: Any) -> Any:
        return jnp.asarray(
            stored[f"optimizer.{jax.tree_util.keystr(path, simple=True, separator='.')}"].const_value.numpy()
        )

    moments = jax.tree_util.tree_map_with_path(of_the_file, moments)

    @jax.jit
    def step(params: Any, state: Any, moments: Any, batch: Any) -> Any:
        (value, state), gradients = jax.value_and_grad(loss, has_aux=True)(params, state, batch, 0)
        updates, moments = optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, updates), state, moments, value

    losses = []
    for batch in batches(3, steps):
        params, state, moments, value = step(params, state, moments, batch)
        losses.append(float(value))
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("roundtrip"))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--middle", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.middle:
        folder = given.output
        continue_without_jax(folder / "after_1.onnx", folder / "after_2.onnx", folder / "losses_2.json", given.steps)
    else:
        main(given.output, given.steps)
