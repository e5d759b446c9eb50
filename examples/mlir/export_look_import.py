"""A training model as MLIR: write it, look at it, read it back.

python examples/mlir/export_look_import.py [FOLDER]
"""

from __future__ import annotations

import collections
import re
import sys
import tempfile
from pathlib import Path

import numpy as np

import onward

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
folder.mkdir(parents=True, exist_ok=True)
model = onward.samples.build("digits")

# Export: the whole file, with Gradient and Adam as operators; the weights go to a file beside it.
onward.mlir.save(model, folder / "digits.mlir", weights="external")
# The training step in plain operators, for onnx-mlir; and the same for IREE and torch-mlir.
onward.mlir.save(model, folder / "step.mlir", graph="step")
onward.mlir.save(model, folder / "step.torch.mlir", graph="step", dialect="torch-onnx")
# The step with core operators alone, for a small backend.
onward.mlir.save(model, folder / "core.mlir", graph="step", level="core")

# Look: which operations are there, and at which level each is.
for name in ("digits", "step", "core"):
    text = (folder / f"{name}.mlir").read_text()
    operations = collections.Counter(re.findall(r'"onnx\.(\w+)"\(', text))
    levels = collections.Counter(re.findall(r'onward\.level = "(\w+)"', text))
    print(f"{name}.mlir: {sum(operations.values())} operations, {dict(sorted(levels.items()))}")
    print(f"  most frequent: {', '.join(f'{op} ({n})' for op, n in operations.most_common(4))}")

# A compiled step says what replaces what after it ran.
step = (folder / "step.mlir").read_text()
print("replaced by the step:", ", ".join(sorted(re.findall(r'onward\.replaces = "([^"]+)"', step))[:4]), "…")

# Import: the same model, bit by bit. It trains.
again = onward.load(onward.mlir.load(folder / "digits.mlir"))
same = again.proto().SerializeToString(deterministic=True) == model.proto().SerializeToString(deterministic=True)
print("the same model, bit by bit:", same)
trainer, chance = onward.Trainer(again), np.random.default_rng(0)
batch = {"images": chance.random((8, 1, 8, 8), dtype=np.float32), "labels": np.arange(8)}
losses = [float(trainer.step(batch)["loss"]) for _ in range(10)]
print(f"it trains: the loss of one batch goes from {losses[0]:.2f} to {losses[-1]:.2f}")
