"""Peak memory of training a file of the zoo: Onward on ONNX Runtime against PyTorch on the same network.

    python benchmarks/zoo_memory.py [--compiled] [TITLE …]

Each runs three SGD steps in a process of its own. What is reported is the peak of the process minus what it had after
importing its packages and loading the file, in MiB, and the ratio of both. PyTorch runs `onward.to_torch` of the
same file, differentiated by autograd.

With the extra `fast`, a run of more than a few seconds imports numba and compiles the update. That adds about 120 MiB
once (55 for the import, 65 for LLVM), whatever the network, so it says nothing about a step and is left out;
`--compiled` makes Onward compile at the first step, and so shows it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "zoo"))

FILES = [
    "openwakeword 0.5.1: embedding_model.onnx", "faceplugin-face-recognition-js 0.0.1: fr_landmark.onnx",
    "silero-vad 6.2.3: silero_vad_op18_ifless.onnx", "rapidocr-onnxruntime 1.4.4: ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "rapidocr 3.10.0: PP-OCRv6_rec_small.onnx", "nudenet 3.4.2: 320n.onnx", "speechmos 0.0.1.1: bak_ovr.onnx",
]  # fmt: skip


def peak() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(kind: str, path: str, recipe: dict) -> None:
    """Train the file for three steps and print the memory that it took."""
    import onnxruntime
    import torch
    from examine import Examination

    import onward

    torch.set_num_threads(2)
    examination = Examination(Path(path), recipe)
    examination.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    examination._draw(None)
    examination._make({})
    del examination.session
    batch, model = examination.batch, examination.model
    before = peak()
    if kind != "torch":
        trainer = onward.Trainer(model, fused=kind == "compiled")
        for _ in range(3):
            trainer.step({k: batch[k] for k in trainer.input_names})
    else:
        module, optimizer = onward.to_torch(model)
        feeds = {n: torch.from_numpy(np.array(batch[n])) for n in [*module.input_names, *module.target_names]}
        for _ in range(3):
            optimizer.zero_grad()
            module.loss(**feeds).backward()
            optimizer.step()
    print(json.dumps(peak() - before))


def main() -> None:
    """Compare the files."""
    from fetch import fetch, manifest, title

    compiled = "--compiled" in sys.argv
    chosen = [a for a in sys.argv[1:] if a != "--compiled"] or FILES
    print(f"{'file':70} {'Onward':>8} {'PyTorch':>8}  ratio")
    for entry in [e for e in manifest() if title(e) in chosen]:
        found = []
        for kind in ("compiled" if compiled else "onward", "torch"):
            recipe = {key: entry[key] for key in ("inputs", "outputs") if key in entry}
            command = [sys.executable, __file__, "--child", kind, str(fetch(entry)), json.dumps(recipe)]
            found.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]))
        print(f"{title(entry):70} {found[0]:8.0f} {found[1]:8.0f}  {found[0] / max(found[1], 1):.2f}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
    else:
        main()
