"""What the peers need of a workload, written by PyTorch in a process of its own: `prepare.py FOLDER WORKLOAD...`.

The training file of Onward, the starting weights, and the forward graph as ONNX for the peers that read it (opset 17
for onnxsim, 15 for onnxruntime-training). Prints the operations of a step for each workload as JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import flops
import numpy as np
import onnx
import torch
from peers import Files
from peers.pytorch import fresh, optimizer_for
from workloads import Workload, find

import onward


def write_training(workload: Workload, files: Files) -> None:
    """Write Onward's training file."""
    module = fresh(workload)
    x, t = (torch.from_numpy(a) for a in workload.batches(1)[0])
    model = onward.from_torch(
        module, loss=torch.nn.CrossEntropyLoss(), optimizer=optimizer_for(workload, module),
        example_inputs=(x,), example_targets=t,
    )  # fmt: skip
    onward.save(model, files.training)


def write_forward(workload: Workload, files: Files) -> int:
    """Write weights and forward graphs; return the operations of a step."""
    x = workload.batches(1)[0][0]
    np.savez(files.weights, **{n: v.numpy() for n, v in fresh(workload).state_dict().items()})
    for opset in (15, 17):
        module = fresh(workload)
        for part in module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.eval()  # its ratio is 0, and peers refuse its training mode
        torch.onnx.export(
            module, (torch.from_numpy(x),), str(files.forward(opset)), dynamo=False, opset_version=opset,
            training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False,
            input_names=["input"], output_names=["output"],
        )  # fmt: skip
    return flops.count(onnx.load(files.forward(17)), x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--training-only", action="store_true", help="write Onward's file only")
    arguments = parser.parse_args()
    operations = {}
    for name in arguments.workloads:
        workload, files = find(name), Files(arguments.folder, name)
        write_training(workload, files)
        if not arguments.training_only:
            operations[name] = write_forward(workload, files)
    print(json.dumps(operations))


if __name__ == "__main__":
    main()
