"""Write docs/trajectories.md: how far 50 training steps outside of PyTorch are from 50 steps inside.

python docs/generate_trajectories.py
"""

from __future__ import annotations

import functools
import platform
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
STEPS = 50

HEAD = """# Trajectories

Written by `python docs/generate_trajectories.py`; `tests/frontends/test_trajectories.py` holds these models to
1e-4. Each model makes three steps in PyTorch; then it is converted with `onward.from_torch`, optimizer state included,
and PyTorch and Onward make the same {steps} steps from there. The numbers are the largest relative differences of any
loss on the way, in float32:

- *ONNX Runtime*: `onward.Trainer(model)`, the backward pass and the optimizer as plain ONNX operators;
- *torch backend*: `onward.Trainer(model, backend="torch")`, the same graphs on torch's kernels;
- *back in PyTorch*: `onward.to_torch(model)`, torch's autograd and torch's own optimizer over the imported graph.

| model | optimizer | ONNX Runtime | torch backend | back in PyTorch |
|---|---|---|---|---|
"""


def main() -> None:
    import onnxruntime
    import torch
    from torch.onnx._internal._lazy_import import onnxscript_apis

    import onward
    from frontends.runs import batches, onward_step, start, torch_step, worst
    from frontends.zoo import ZOO

    torch.set_num_threads(1)
    onnxscript_apis.get_torchlib_ops = functools.lru_cache(maxsize=1)(onnxscript_apis.get_torchlib_ops)
    rows = []
    for subject in ZOO:
        module, optimizer, model = start(subject)
        data = batches(subject, STEPS)
        runtime = onward.Trainer(model, threads=1)
        on_torch = onward.Trainer(model, backend="torch")
        back, its_optimizer = onward.to_torch(model)
        back.train()
        losses: dict[str, list[Any]] = {"torch": [], "onnxruntime": [], "backend": [], "back": []}
        for inputs, targets in data:
            losses["torch"].append(torch_step(module, optimizer, subject.loss, inputs, targets))
            losses["onnxruntime"].append(onward_step(runtime, inputs, targets))
            losses["backend"].append(onward_step(on_torch, inputs, targets))
            losses["back"].append(torch_step(back, its_optimizer, subject.loss, inputs, targets))
        errors = [worst(losses[k], losses["torch"]) for k in ("onnxruntime", "backend", "back")]
        cells = " | ".join("0" if e == 0 else f"{e:.0e}" for e in errors)
        rows.append(f"| {subject.name} | {type(optimizer).__name__} | {cells} |")
        print(rows[-1], file=sys.stderr)
    versions = f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, Python {platform.python_version()}"
    text = HEAD.format(steps=STEPS) + "\n".join(rows) + f"\n\nMeasured with {versions}, one thread.\n"
    (Path(__file__).parent / "trajectories.md").write_text(text)


if __name__ == "__main__":
    main()
