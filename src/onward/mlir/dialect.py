"""The dialect `onnx` of onnx-mlir: how its operations are called, and at which level each operator is."""

from __future__ import annotations

import functools
import re

from onward.errors import Diagnostic, ModelError
from onward.graph.schema import TRAINING_DOMAIN, Schema, newest_opset, schema
from onward.mlir.messages import M131

M132 = "M132"
ML_DOMAIN = "ai.onnx.ml"
DOMAINS = ("", ML_DOMAIN, TRAINING_DOMAIN)
"""The domains whose operators are operations of the dialect; all others are `onnx.Custom`."""

VERSIONS: dict[str, tuple[int, ...]] = {
    "Clip": (13, 12, 11, 6), "DFT": (20, 17), "GridSample": (22, 16), "GroupNormalization": (21, 18),
    "Pad": (21, 18, 13, 11, 2), "ReduceL1": (18, 13), "ReduceL2": (18, 13), "ReduceLogSum": (18, 13),
    "ReduceLogSumExp": (18, 13), "ReduceMax": (20, 18, 13), "ReduceMean": (18, 13), "ReduceMin": (20, 18, 13),
    "ReduceProd": (18, 13), "ReduceSum": (13, 11), "ReduceSumSquare": (18, 13), "Resize": (19, 18, 13, 11, 10),
    "Softmax": (13, 11), "Split": (18, 13, 11), "Squeeze": (21, 11), "Unsqueeze": (21, 11), "Upsample": (10, 7),
}  # fmt: skip
"""Operators that onnx-mlir (July 2026) has in several versions. The newest has the plain name, an older one `V11`."""

ONE_RESULT = {"MaxPool": "MaxPoolSingleOut", "BatchNormalization": "BatchNormalizationInferenceMode"}
"""Operators that have another name in the dialect where only their first output is there."""

PREFIX = "onnx."
CUSTOM = "onnx.Custom"
NO_VALUE = "onnx.NoValue"
ENTRY_POINT = "onnx.EntryPoint"
TRAINING = "onward.training"
RETURNS = ("onnx.Return", "return", "func.return")
YIELDS = ("onnx.Yield", "torch.operator_terminator")

REGIONS = {
    "If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",), "SequenceMap": ("body",),
}  # fmt: skip
"""The graphs of the operators that have some, in the order of their regions in onnx-mlir."""

CORE, FUNCTION, OTHER = "core", "function", "other"

_SUFFIX = re.compile(r"(.+?)V(\d{1,2})")
_NEWEST_SEARCHED = 25  # the opset that a text without one is read as, at most


def operation_name(op_type: str, opset: int, outputs: int) -> str:
    """Return the name of an operator in the dialect.

    >>> operation_name("ReduceMean", 13, 1), operation_name("ReduceMean", 18, 1), operation_name("MaxPool", 18, 1)
    ('ReduceMeanV13', 'ReduceMean', 'MaxPoolSingleOut')

    Versions that differ only in types share a name, as in onnx-mlir:

    >>> operation_name("Squeeze", 11, 1), operation_name("Squeeze", 13, 1)
    ('SqueezeV11', 'Squeeze')
    """
    if op_type in ONE_RESULT and outputs == 1:
        return ONE_RESULT[op_type]
    versions = VERSIONS.get(op_type, ())
    if not versions:
        return op_type
    known = schema(op_type, "", opset)
    since = opset if known is None else known.since_version
    version = min((v for v in versions if v >= since), default=versions[0])  # it has all that the older one has
    return op_type if version == versions[0] else f"{op_type}V{version}"


def operator_of(name: str) -> tuple[str, int | None]:
    """Return the operator that a name of the dialect stands for, and the version that the name has.

    >>> operator_of("ReduceMeanV13"), operator_of("MaxPoolSingleOut"), operator_of("Add")
    (('ReduceMean', 13), ('MaxPool', None), ('Add', None))
    """
    for operator, single in ONE_RESULT.items():
        if name == single:
            return operator, None
    found = _SUFFIX.fullmatch(name)
    return (found[1], int(found[2])) if found and found[1] in VERSIONS else (name, None)


@functools.cache
def domain_of(op_type: str) -> str | None:
    """Return the domain of the dialect that has an operator; None if none has it."""
    return next((d for d in DOMAINS if schema(op_type, d) is not None), None)


def opset_of(names: set[tuple[str, int | None]]) -> int:
    """Return the newest operator set at which all of these operations have these names, for a text that names none.

    >>> opset_of({("Relu", None), ("ReduceMean", 13)})
    17

    Raises:
        ModelError: there is none.
    """
    for opset in range(min(_NEWEST_SEARCHED, newest_opset()), 5, -1):
        if all(operator_of(operation_name(op, opset, 2))[1] == version for op, version in names if op in VERSIONS):
            return opset
    found = ", ".join(sorted(f"{op}{f'V{v}' if v else ''}" for op, v in names if op in VERSIONS))
    raise ModelError(
        Diagnostic(
            M131,
            "no operator set has all of these operations",
            found=found,
            hint="let onnx-mlir bring them to one version first",
        )
    )


def at_opset(op_type: str, domain: str, opset: int) -> Schema | None:
    """Return the schema of an operator of the dialect; None for others."""
    return schema(op_type, domain, opset) if domain in DOMAINS else None


@functools.cache
def level(op_type: str, domain: str) -> str:
    """Return the level of an operator, as docs/core_operators.md defines it: core, a function of core, or other.

    >>> level("Add", ""), level("Gemm", ""), level("StringSplit", "")
    ('core', 'function', 'other')
    """
    from onward.passes.core.operators import CORE as OPERATORS
    from onward.passes.core.registry import table

    if domain:
        return OTHER
    return CORE if op_type in OPERATORS else FUNCTION if op_type in table() else OTHER
