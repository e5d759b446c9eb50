"""The core operators: what a backend must have to run everything that Onward compiles with `core=True`.

An operator is core if the others cannot express it with the same values (NaN, infinities, -0, overflow and integers
included; floating-point results within a few units in the last place) and in the same complexity class, which counts
work and depth, the number of steps that must follow one another. A few more are kept because nearly every graph has
them; `instead` says how each of them could be written.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

ELEMENTWISE, CONTRACTION, REDUCTION = "element-wise", "contraction", "reduction"
LAYOUT, INDEXING, CONTROL = "layout", "indexing", "control flow"
CONTAINERS, RANDOM = "containers", "random"
CATEGORIES = (ELEMENTWISE, CONTRACTION, REDUCTION, LAYOUT, INDEXING, CONTROL, CONTAINERS, RANDOM)


@dataclasses.dataclass(frozen=True)
class CoreOperator:
    """One core operator: why it is one, and how it could be written if it is kept only because it is natural."""

    name: str
    category: str
    why: str
    instead: str = ""


def _table(*operators: CoreOperator) -> dict[str, CoreOperator]:
    return {o.name: o for o in operators}


C = CoreOperator
CORE: dict[str, CoreOperator] = _table(
    C("Add", ELEMENTWISE, "arithmetic of the hardware"),
    C("Sub", ELEMENTWISE, "one node instead of two in nearly every graph", "Add(A, Mul(B, -1))"),
    C("Mul", ELEMENTWISE, "arithmetic of the hardware; Exp(Log + Log) loses signs, zeros and digits"),
    C("Div", ELEMENTWISE, "correctly rounded, and truncated for integers; Pow(B, -1) is neither"),
    C("Mod", ELEMENTWISE, "exact for floats, where A - B * Floor(A / B) is not"),
    C("Pow", ELEMENTWISE, "negative bases and integer types; Exp(Log * B) has neither"),
    C("Abs", ELEMENTWISE, "one node instead of four", "Where(Less(X, 0), Mul(X, -1), X) + 0"),
    C("Max", ELEMENTWISE, "one node instead of four", "Where(Or(Less(A, B), Not(Equal(B, B))), B, A)"),
    C("Min", ELEMENTWISE, "one node instead of four", "Where(Or(Less(B, A), Not(Equal(B, B))), B, A)"),
    C("Exp", ELEMENTWISE, "transcendental"),
    C("Log", ELEMENTWISE, "transcendental"),
    C("Sqrt", ELEMENTWISE, "correctly rounded, keeps -0; Pow(X, 0.5) does neither"),
    C("Sin", ELEMENTWISE, "transcendental"),
    C("Cos", ELEMENTWISE, "Sin(X + pi / 2) loses the digits of large X"),
    C("Atan", ELEMENTWISE, "transcendental; gives Asin and Acos"),
    C("Tanh", ELEMENTWISE, "accurate near 0, where (e^x - e^-x) / (e^x + e^-x) cancels; gives Sinh"),
    C("Erf", ELEMENTWISE, "transcendental"),
    C("Floor", ELEMENTWISE, "exact for every float; Cast to an integer overflows"),
    C("Round", ELEMENTWISE, "halves to even, keeps -0"),
    C("Equal", ELEMENTWISE, "comparison; also tells NaN, which is not equal to itself"),
    C("Less", ELEMENTWISE, "comparison; with swapped inputs it is Greater"),
    C("Where", ELEMENTWISE, "choice; arithmetic with masks turns 0 * inf into NaN"),
    C("And", ELEMENTWISE, "of booleans"),
    C("Or", ELEMENTWISE, "one node instead of four", "Not(And(Not(A), Not(B)))"),
    C("Not", ELEMENTWISE, "its name says what Equal(X, false) hides", "Equal(X, false)"),
    C("BitwiseAnd", ELEMENTWISE, "bits of integers"),
    C("BitwiseOr", ELEMENTWISE, "runtimes lack Add for narrow integers", "A + B - BitwiseAnd(A, B)"),
    C("BitwiseXor", ELEMENTWISE, "runtimes lack Add for narrow integers", "A + B - 2 * BitwiseAnd(A, B)"),
    C("BitShift", ELEMENTWISE, "bits of integers; Div rounds negative numbers towards 0"),
    C("Cast", ELEMENTWISE, "conversion between types"),
    C("BitCast", ELEMENTWISE, "the same bits as another type"),
    C("MatMul", CONTRACTION, "sum of products; Mul and ReduceSum need the memory of all products"),
    C("ReduceSum", REDUCTION, "sum; MatMul with ones has no integers of every width and no run-time axes"),
    C("ReduceMax", REDUCTION, "order; TopK sorts, and has no booleans"),
    C("ReduceProd", REDUCTION, "product; Exp(ReduceSum(Log)) loses signs, zeros and integers"),
    C("CumSum", REDUCTION, "a Loop has n steps, a MatMul with a triangle n * n products"),
    C("CumProd", REDUCTION, "a Loop has n steps"),
    C("Constant", LAYOUT, "a value of the program"),
    C("Identity", LAYOUT, "a value under another name: an input as an output, in a branch or a body"),
    C("Shape", LAYOUT, "sizes that are known only at run time"),
    C("Reshape", LAYOUT, "other sizes for the same elements"),
    C("Transpose", LAYOUT, "another order of the axes; Gather of a flat tensor needs an index per element"),
    C("Expand", LAYOUT, "repetition without a copy where the runtime has views"),
    C("Concat", LAYOUT, "joins tensors"),
    C("Slice", LAYOUT, "parts of tensors, with steps, also backwards"),
    C("Pad", LAYOUT, "constant values around a tensor, also a negative number of them", "Concat, Expand and Slice"),
    C("Range", INDEXING, "counts; the way to an index where sizes are known at run time", "NonZero(Expand(1, n))"),
    C("Gather", INDEXING, "reads by index; MatMul with a one-hot matrix has another complexity"),
    C("ScatterND", INDEXING, "writes, or accumulates, by index"),
    C("NonZero", INDEXING, "a result whose size depends on values"),
    C("TopK", INDEXING, "sorting"),
    C("Unique", INDEXING, "a result whose size depends on values; rows need one stable sort per column"),
    C("If", CONTROL, "runs one branch, and not the other"),
    C("Loop", CONTROL, "a number of steps known at run time"),
    C("SequenceEmpty", CONTAINERS, "a list of tensors"),
    C("SequenceInsert", CONTAINERS, "adds to a list"),
    C("SequenceErase", CONTAINERS, "removes from a list"),
    C("SequenceAt", CONTAINERS, "reads a list"),
    C("SequenceLength", CONTAINERS, "counts a list"),
    C("ConcatFromSequence", CONTAINERS, "joins a list; a Loop of Concat copies n * n elements"),
    C("Optional", CONTAINERS, "a value that may be absent"),
    C("OptionalHasElement", CONTAINERS, "whether it is there"),
    C("OptionalGetElement", CONTAINERS, "the value"),
    C("RandomUniformLike", RANDOM, "the runtime's generator, in inference; a training step computes its own numbers"),
)
del C

CANNOT: dict[str, str] = {
    "ImageDecoder": "it decodes files of pictures",
    "RegexFullMatch": "it works on text",
    "StringConcat": "it works on text",
    "StringNormalizer": "it works on text",
    "StringSplit": "it works on text",
    "TfIdfVectorizer": "it counts the n-grams of a vocabulary in text or in whole numbers",
}
"""The operators of ai.onnx that no decomposition expresses, with the reason."""


def is_core(node: ir.Node) -> bool:
    """Return whether `node` is a core operator in its core form: Pad is, with constants."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in CORE:
        return False
    if node.op_type == "Pad":
        mode = node.attributes.get("mode")
        return mode is None or mode.as_string() == "constant"
    return True
