"""Find the initializers that can be trained, and choose among them with glob patterns."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onward.arguments import did_you_mean, nearest
from onward.errors import ArgumentError, Diagnostic
from onward.graph.walk import all_nodes, ancestors, constant_of, subgraphs
from onward.model.training_model import FLOAT_TYPES

A110 = "A110"
A111 = "A111"

# Inputs that are never trained: (operator, input) → a description.
CONSTANT_INPUTS = {
    ("BatchNormalization", 3): "a running statistic",
    ("BatchNormalization", 4): "a running statistic",
    ("Clip", 1): "a limit of Clip",
    ("Clip", 2): "a limit of Clip",
    ("Dropout", 1): "a dropout ratio",
    ("Pad", 2): "a padding value",
    ("Pow", 1): "an exponent",
    ("Resize", 1): "a region of Resize",
    ("Resize", 2): "a scale of Resize",
    ("Upsample", 1): "a scale of Upsample",
    ("QuantizeLinear", 1): "a quantisation scale",
    ("DequantizeLinear", 1): "a quantisation scale",
    ("OneHot", 2): "the values of OneHot",
    ("SoftmaxCrossEntropyLoss", 2): "class weights",
    ("NegativeLogLikelihoodLoss", 2): "class weights",
    ("RotaryEmbedding", 1): "a table of cosines",
    ("RotaryEmbedding", 2): "a table of sines",
    ("MelWeightMatrix", 3): "a frequency",
    ("MelWeightMatrix", 4): "a frequency",
    **{(op, i): "a quantisation scale" for op in ("QLinearConv", "QLinearMatMul") for i in (1, 4, 6)},
}

# Inputs that are usually constant and sometimes learned: trained only if they are named.
USUALLY_CONSTANT_INPUTS = {(op, i): "an initial state" for op in ("LSTM", "GRU", "RNN") for i in (5, 6)}

# Inputs that the operator defines as weights, whatever their size.
WEIGHT_INPUTS = frozenset(
    {
        *((op, i) for op in ("Conv", "ConvTranspose", "DeformConv") for i in (1, 2, 3)),
        *((op, i) for op in ("LSTM", "GRU", "RNN") for i in (1, 2, 3, 7)),
        *((op, i) for op in ("BatchNormalization", "InstanceNormalization", "GroupNormalization") for i in (1, 2)),
        *((op, i) for op in ("LayerNormalization", "RMSNormalization") for i in (1, 2)),
        ("Gemm", 0), ("Gemm", 1), ("Gemm", 2), ("MatMul", 0), ("MatMul", 1), ("PRelu", 1), ("Gather", 0),
    }
)  # fmt: skip

_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"})

# These pass a weight through: the nodes that read their output decide.
_PASS_ON = frozenset({"Identity", "Cast", "Transpose", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand"})

# A value that only these read has no gradient.
_NO_GRADIENT = frozenset(
    {
        "ArgMax", "ArgMin", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Shape", "Size", "IsNaN",
        "IsInf", "NonZero", "NonMaxSuppression", "Range", "ConstantOfShape", "OneHot", "Sign", "Floor", "Ceil",
        "Round", "Unique",
    }
)  # fmt: skip

PREPARES = "onward.prepares"  # the key of a number that prepares the input, and the operator that held it
LEARNED = "onward.learned"  # the key of a number that an operator of ai.onnx.ml held as a weight, and the operator
FIXED = "onward.fixed"  # the key of a constant that nothing can train, and why
_TORCH_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"


def is_passed_on(node: ir.Node, index: int) -> bool:
    """Return whether a node only passes its input `index` through."""
    return node.op_type in _PASS_ON and node.domain in ("", "ai.onnx") and index == 0


def final_uses(value: ir.Value) -> list[tuple[ir.Node, int]]:
    """Return the nodes and inputs that read `value`, directly or through operators that only pass it through."""
    found: list[tuple[ir.Node, int]] = []
    queue, seen = [value], {value}
    while queue:
        for node, index in queue.pop().uses():
            if is_passed_on(node, index):
                fresh = [v for v in node.outputs if v not in seen]
                seen.update(fresh)
                queue += fresh
            else:
                found.append((node, index))
    return found


def obstacle(value: ir.Value, influential: Collection[ir.Node], *, named: bool = False) -> str | None:
    """Return the reason why an initializer is not trained, or None if it can be.

    `influential` are the nodes that the loss depends on. `named` means that the caller chose it by name. This decides
    the case that the graph leaves open: a single number in arithmetic may be a learned scale or a constant.
    """
    if value.dtype not in FLOAT_TYPES:
        return f"it is {value.dtype.name.lower() if value.dtype is not None else 'of unknown type'}, not floating point"
    uses = [(node, index) for node, index in final_uses(value) if node in influential]
    if not uses:
        return "the loss does not depend on it"
    if value.const_value is not None and value.const_value.size == 0:
        return "it holds no numbers"
    reasons = [_constant_use(node, index) for node, index in uses]
    if all(reasons):
        return f"it is {reasons[0]}"
    steep = next((node.op_type for node, index in uses if _is_infinitely_steep(value, node, index)), None)
    if steep is not None:
        return f"it is 0 in places, where the slope of {steep} is infinite"
    kind = value.metadata_props.get(_TORCH_KIND, "")
    if kind.endswith("PARAMETER") or named:
        return None
    if "BUFFER" in kind:
        return "PyTorch exported it as a buffer, not as a parameter"
    if PREPARES in value.metadata_props:
        operator = value.metadata_props[PREPARES]
        return f"it prepares the input, as {operator} did; name it in `train` if it is to be learned"
    if LEARNED in value.metadata_props:
        return None
    doubt = _doubt(value, uses)
    return None if doubt is None else f"it is {doubt}; name it in `train` if it is learned"


def _doubt(value: ir.Value, uses: Sequence[tuple[ir.Node, int]]) -> str | None:
    """Return what a floating-point initializer probably is if it is not a weight, or None."""
    if any((node.op_type, index) in WEIGHT_INPUTS for node, index in uses):
        return None
    is_number = value.shape is not None and all(d == 1 for d in value.shape)
    if is_number and not (value.shape and any(_is_bias(node, index) for node, index in uses)):
        return "a single number, which may be a constant"
    usual = [USUALLY_CONSTANT_INPUTS.get((node.op_type, index)) for node, index in uses]
    if all(usual):
        return usual[0]
    if value.const_value is not None and _is_mask(value.const_value.numpy()):
        return "a mask by its values"
    return None


def _is_infinitely_steep(value: ir.Value, node: ir.Node, index: int) -> bool:
    """Return whether the node takes a root of a zero in the value: no first step can be made from there."""
    exponent = constant_of(node.inputs[1]) if node.op_type == "Pow" and index == 0 else None
    is_root = node.op_type == "Sqrt" or (exponent is not None and exponent.size > 0 and bool((exponent < 1).all()))
    if not is_root or node.domain not in ("", "ai.onnx") or value.const_value is None:
        return False
    return not value.const_value.numpy().all() and (exponent is None or bool((exponent != 0).any()))


def _is_bias(node: ir.Node, index: int) -> bool:
    """Return whether the input is added to a matrix product, as the bias of a layer with one output is."""
    if node.op_type != "Add" or node.domain not in ("", "ai.onnx"):
        return False
    other = node.inputs[1 - index]
    maker = other.producer() if other is not None else None
    return maker is not None and maker.op_type in _PRODUCTS


def _is_mask(array: np.ndarray) -> bool:
    """Return whether an array looks like an attention mask: infinities, or only zeros and one very large number."""
    if array.size == 0:
        return False
    wide = array.astype(np.float32) if array.dtype.itemsize < 4 else array
    low, high = float(wide.min()), float(wide.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        return bool(np.isinf(wide).any())
    extreme = low if -low > high else high
    return abs(extreme) >= 1e3 and bool(((wide == 0) | (wide == extreme)).all())


def influential_nodes(outputs: Iterable[ir.Value]) -> set[ir.Node]:
    """Return every node that one of `outputs` depends on, including the nodes inside bodies."""
    found = ancestors(outputs)
    return found | {inner for node in found for graph in subgraphs(node) for inner in all_nodes(graph)}


def _constant_use(node: ir.Node, index: int) -> str | None:
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in _NO_GRADIENT:
        return f"read only where no gradient flows ({node.op_type})"
    if node.op_type == "Mul" and (_is_dynamic_scale(node.inputs[1 - index]) or _makes_scale(node)):
        return "a quantisation scale"
    return CONSTANT_INPUTS.get((node.op_type, index))


def _is_dynamic_scale(value: ir.Value | None) -> bool:
    """Return whether the value is the scale of a DynamicQuantizeLinear."""
    maker = None if value is None else value.producer()
    return maker is not None and maker.op_type == "DynamicQuantizeLinear" and value is maker.outputs[1]


def _makes_scale(node: ir.Node) -> bool:
    """Return whether only quantised operators read the product, as their scale: that of a bias."""
    uses = final_uses(node.outputs[0])
    return bool(uses) and all(CONSTANT_INPUTS.get((n.op_type, i)) == "a quantisation scale" for n, i in uses)


def as_patterns(patterns: str | Iterable[str]) -> list[str]:
    """Return one or several globs as a list."""
    return [patterns] if isinstance(patterns, str) else list(patterns)


def no_match(pattern: str, names: Sequence[str], what: str, place: str) -> Diagnostic:
    """Return the diagnostic for a glob that matches none of `names`, with the most similar names."""
    near = nearest(pattern.replace("*", ""), names, n=5, cutoff=0.4)
    rest = [n for n in names if n not in near][: max(0, 8 - len(near))]
    listed = ", ".join(f"`{n}`" for n in [*near, *rest])
    more = len(names) - len(near) - len(rest)
    return Diagnostic(
        A110,
        f"`{pattern}` matches no {what}",
        place=place,
        needed=f"a glob that matches one of: {listed}{f' and {more} more' if more > 0 else ''}" if names else "",
        hint=did_you_mean(near[:1]),
    )


def choose(
    values: Sequence[ir.Value],
    influential: Collection[ir.Node],
    train: str | Iterable[str],
    freeze: str | Iterable[str],
    without_gradient: Mapping[str, str] | None = None,
) -> list[ir.Value]:
    """Return the initializers to train: those that match `train`, do not match `freeze`, and can be trained.

    `without_gradient` holds those that no gradient reaches, with the reason.

    Raises:
        ArgumentError: a glob matches no initializer, or none that can be trained.
    """
    wanted, unwanted = as_patterns(train), as_patterns(freeze)
    floats = [v.name or "" for v in values if v.dtype in FLOAT_TYPES]
    names = [v.name or "" for v in values]
    problems = []
    for place, patterns in (("train=", wanted), ("freeze=", unwanted)):
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(n, pattern) for n in names) and pattern != "*":
                problems.append(no_match(pattern, floats, "weight of the model", place))
    if problems:
        raise ArgumentError(problems)
    chosen, reasons = [], {}
    for value in values:
        name = value.name or ""
        fitting = [p for p in wanted if fnmatch.fnmatchcase(name, p)]
        if not fitting or any(fnmatch.fnmatchcase(name, p) for p in unwanted):
            continue
        reason = obstacle(value, influential, named=any(p.strip("*") for p in fitting))
        reason = reason or (without_gradient or {}).get(name)
        if reason is None:
            chosen.append(value)
        else:
            reasons[name] = reason
    for pattern in wanted:
        if any(fnmatch.fnmatchcase(v.name or "", pattern) for v in chosen):
            continue
        refused = {n: r for n, r in reasons.items() if fnmatch.fnmatchcase(n, pattern)}
        problems.append(_nothing(pattern, refused))
    if problems:
        raise ArgumentError(problems)
    return chosen


def _hints(pattern: str, refused: dict[str, str]) -> Iterator[str]:
    if not refused:
        yield "`freeze` matches the same initializers, or the model has none"
    if any(re.match(r"it is u?int(4|8),", reason) for reason in refused.values()):
        yield "dequantize=True makes floats of weights that are stored as integers"
    if not pattern.strip("*"):  # the user relied on the default
        yield "`onward doctor FILE` shows where the weights are and what blocks them"


def _nothing(pattern: str, refused: dict[str, str]) -> Diagnostic:
    listed = "; ".join(f"`{n}`: {r}" for n, r in list(refused.items())[:8])
    if len(refused) > 8:
        listed += f"; and {len(refused) - 8} more"
    return Diagnostic(
        A111,
        f"nothing that `{pattern}` chooses can be trained",
        place="train=",
        found=listed or "no initializer that is not frozen",
        hint="; ".join(_hints(pattern, refused)),
    )


__all__ = [
    "CONSTANT_INPUTS",
    "FIXED",
    "LEARNED",
    "PREPARES",
    "WEIGHT_INPUTS",
    "as_patterns",
    "choose",
    "final_uses",
    "is_passed_on",
    "no_match",
    "obstacle",
]
