"""onnxruntime-training 1.19.2, the last release of ONNX Runtime's own training API.

It has no SGD with momentum, and its AdamW has a formula of its own. Opset 15, as its LayerNormalization of opset 17
fails; below that the exporter writes the primitive operators, which it fuses.
"""

from __future__ import annotations

import tempfile

import numpy as np
import onnx
import onnxruntime
from onnxruntime.training import artifacts
from onnxruntime.training.api import CheckpointState, Module, Optimizer
from workloads import LEARNING_RATE, Workload

from peers import THREADS, Batches, Files, Step


def build(workload: Workload, batches: Batches, files: Files) -> Step:
    if workload.optimizer == "sgd":
        raise SystemExit("no SGD with momentum")
    onnx.IR_VERSION = min(int(onnx.IR_VERSION), 10)  # it stamps the installed onnx's version and reads up to 10
    onnxruntime.set_default_logger_severity(3)
    model = onnx.load(files.forward(15))
    names = [i.name for i in model.graph.initializer]
    with tempfile.TemporaryDirectory() as folder:
        artifacts.generate_artifacts(
            model, requires_grad=[n for n in names if "running_" not in n],
            frozen_params=[n for n in names if "running_" in n], loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.AdamW, artifact_directory=folder,
        )  # fmt: skip
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
        module = Module(f"{folder}/training_model.onnx", state, session_options=options)
        update = Optimizer(f"{folder}/optimizer_model.onnx", module)
    update.set_learning_rate(LEARNING_RATE)
    module.train()

    def step(k: int) -> float:
        loss = module(*batches[k % len(batches)])
        update.step()
        module.lazy_reset_grad()
        return float(np.asarray(loss).reshape(-1)[0])

    return step
