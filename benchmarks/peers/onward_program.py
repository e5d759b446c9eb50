"""Onward: the ONNX training file on stock ONNX Runtime, with no framework in the process."""

from __future__ import annotations

from workloads import Workload

import onward
from onward.backends import open_session
from peers import THREADS, Batches, Files, Step


def build(workload: Workload, batches: Batches, files: Files, *, fused: bool = True) -> Step:
    """Return a training step; it begins with the compiled update, and `fused=False` keeps the update in the graph."""
    program = onward.compile(files.training)
    session = open_session(program, "onnxruntime", threads=THREADS, fused=fused)
    feeds = [dict(zip(program.input_names, batch, strict=True)) for batch in batches]
    return lambda k: float(session.step(feeds[k % len(feeds)])["loss"])
