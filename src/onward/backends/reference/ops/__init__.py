"""Operators that onnx's reference evaluator computes wrongly or not at all (onnx 1.23), as the standard defines them.

One file per family, each with a list `OPERATORS` of `OpRun` classes; each class states the upstream bug. Delete the
class when upstream has fixed it.
"""

from __future__ import annotations

import importlib
import pkgutil

from onnx.reference.op_run import OpRun

OPERATORS: list[type[OpRun]] = [
    operator
    for module in pkgutil.iter_modules(__path__)
    for operator in importlib.import_module(f"{__name__}.{module.name}").OPERATORS
]
