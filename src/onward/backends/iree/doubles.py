"""Functions of float64 that IREE's compiler lacks, written with exp, log, square roots and arithmetic.

IREE links no mathematical library. What it has of its own for Tanh, Erf, Sin, Cos and their inverses is for float32; in
float64 the compiler ends with "undefined symbol: tanh". The rational approximations are those of the Cephes library
(S. Moshier, https://www.netlib.org/cephes): within a few units of the last digit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import onnx
from onnx import inliner, parser

DOMAIN = "onward.iree.doubles"

_DOUBLE = onnx.TensorProto.DOUBLE
# Highest power first.
_TANH = (
    (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3),
    (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3),
)
_ERF = (
    (9.60497373987051638749, 9.00260197203842689217e1, 2.23200534594684319226e3, 7.00332514112805075473e3,
     5.55923013010394962768e4),
    (1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3, 2.26290000613890934246e4,
     4.92673942608635921086e4),
)  # fmt: skip
_ERFC = (
    (2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687, 4.86371970985681366614e1,
     1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3,
     5.57535335369399327526e2),
    (1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2,
     1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2),
)  # fmt: skip
_SIN = (1.58962301576546568060e-10, -2.50507477628578072866e-8, 2.75573136213857245213e-6, -1.98412698295895385996e-4,
        8.33333333332211858878e-3, -1.66666666666666307295e-1)  # fmt: skip
_COS = (-1.13585365213876817300e-11, 2.08757008419747316778e-9, -2.75573141792967388112e-7, 2.48015872888517045348e-5,
        -1.38888888888730564116e-3, 4.16666666666665929218e-2)  # fmt: skip
_ATAN = (
    (-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1, -1.228866684490136173410e2,
     -6.485021904942025371773e1),
    (1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2, 4.853903996359136964868e2,
     1.945506571482613964425e2),
)  # fmt: skip
# π/2 in parts of 33 bits, so that a multiple below 2²⁰ of the first two is exact.
_HALF_PI = (1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624879595063154e-21)


class _Body:
    """The text of one function."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, operator: str, *inputs: str | float, **attributes: int) -> str:
        """Add a node; return the name of what it gives. A number is a constant of float64."""
        names = [self._number(v) if isinstance(v, float) else v for v in inputs]
        given = f" <{', '.join(f'{k} = {v}' for k, v in attributes.items())}>" if attributes else ""
        return self._line(f"{operator}{given} ({', '.join(names)})")

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Return the sum of the powers of x, the highest first."""
        first, *rest = coefficients
        value: str | float = first
        for each in rest:
            value = self.add("Add", x if value == 1.0 else self.add("Mul", value, x), each)
        assert isinstance(value, str)
        return value

    def ratio(self, x: str, pair: tuple[Sequence[float], Sequence[float]]) -> str:
        """Return the quotient of two polynomials."""
        return self.add("Div", self.polynomial(x, pair[0]), self.polynomial(x, pair[1]))

    def signed(self, x: str, value: str) -> str:
        """Return a value with the sign of x."""
        return self.add("Where", self.add("Less", x, 0.0), self.add("Neg", value), value)

    def _number(self, value: float) -> str:
        return self._line(f"Constant <value = double {{{value!r}}}> ()")

    def _line(self, text: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name


def _tanh(b: _Body, x: str) -> str:
    """x + x³·P(x²)/Q(x²) below 0.625; above, (1 - z) / (1 + z) with z = e^(-2|x|)."""
    size, square = b.add("Abs", x), b.add("Mul", x, x)
    near = b.add("Min", square, 0.390625)  # so that what is not taken stays finite
    small = b.add("Add", x, b.add("Mul", x, b.add("Mul", near, b.ratio(near, _TANH))))
    z = b.add("Exp", b.add("Mul", size, -2.0))
    large = b.add("Div", b.add("Sub", 1.0, z), b.add("Add", 1.0, z))
    return b.add("Where", b.add("Less", size, 0.625), small, b.signed(x, large))


def _erf(b: _Body, x: str) -> str:
    """x·T(x²)/U(x²) below 1; above, 1 - e^(-x²)·P(|x|)/Q(|x|), and 1 from 8 on."""
    size = b.add("Abs", x)
    near, far = b.add("Min", size, 1.0), b.add("Min", size, 8.0)
    small = b.add("Mul", x, b.ratio(b.add("Mul", near, near), _ERF))
    e = b.add("Exp", b.add("Neg", b.add("Mul", far, far)))
    large = b.add("Sub", 1.0, b.add("Mul", e, b.ratio(far, _ERFC)))
    return b.add("Where", b.add("Less", size, 1.0), small, b.signed(x, large))


def _circle(b: _Body, x: str, quarter: float) -> str:
    """The sine of x plus a quarter of the circle times `quarter`: x without multiples of π/2, and two polynomials."""
    turns = b.add("Floor", b.add("Add", b.add("Mul", x, 2 / math.pi), 0.5))
    rest = x
    for part in _HALF_PI:
        rest = b.add("Sub", rest, b.add("Mul", turns, part))
    z = b.add("Mul", rest, rest)
    sine = b.add("Add", rest, b.add("Mul", rest, b.add("Mul", z, b.polynomial(z, _SIN))))
    tail = b.add("Mul", z, b.add("Mul", z, b.polynomial(z, _COS)))
    cosine = b.add("Add", b.add("Sub", 1.0, b.add("Mul", z, 0.5)), tail)
    place = b.add("Add", turns, quarter)
    fourth = b.add("Sub", place, b.add("Mul", b.add("Floor", b.add("Mul", place, 0.25)), 4.0))
    half = b.add("Sub", fourth, b.add("Mul", b.add("Floor", b.add("Mul", fourth, 0.5)), 2.0))
    value = b.add("Where", b.add("Greater", half, 0.5), cosine, sine)
    return b.add("Where", b.add("Greater", fourth, 1.5), b.add("Neg", value), value)


def _tan(b: _Body, x: str) -> str:
    return b.add("Div", _circle(b, x, 0.0), _circle(b, x, 1.0))


def _atan(b: _Body, x: str) -> str:
    """z + z³·P(z²)/Q(z²), of |x|, of (|x| - 1) / (|x| + 1) behind π/4, or of -1 / |x| behind π/2."""
    size = b.add("Abs", x)
    low, high = b.add("Less", size, 0.66), b.add("Greater", size, 1 + math.sqrt(2))
    middle = b.add("Div", b.add("Sub", size, 1.0), b.add("Add", size, 1.0))
    z = b.add("Where", high, b.add("Div", -1.0, size), b.add("Where", low, size, middle))
    start = b.add("Where", high, math.pi / 2, b.add("Where", low, 0.0, math.pi / 4))
    square = b.add("Mul", z, z)
    tail = b.add("Add", z, b.add("Mul", z, b.add("Mul", square, b.ratio(square, _ATAN))))
    return b.signed(x, b.add("Add", start, tail))


def _asin(b: _Body, x: str) -> str:
    """2·atan(x / (1 + √((1 - x)(1 + x))))."""
    root = b.add("Sqrt", b.add("Mul", b.add("Sub", 1.0, x), b.add("Add", 1.0, x)))
    return b.add("Mul", _atan(b, b.add("Div", x, b.add("Add", 1.0, root))), 2.0)


def _acos(b: _Body, x: str) -> str:
    """2·atan(√((1 - x) / (1 + x)))."""
    quotient = b.add("Div", b.add("Sub", 1.0, x), b.add("Add", 1.0, x))
    return b.add("Mul", _atan(b, b.add("Sqrt", quotient)), 2.0)


def _gelu(b: _Body, x: str) -> str:
    half = b.add("Mul", x, 0.5)
    return b.add("Mul", half, b.add("Add", _erf(b, b.add("Mul", x, 0.5**0.5)), 1.0))


def _gelu_by_tanh(b: _Body, x: str) -> str:
    cube = b.add("Mul", b.add("Mul", x, x), b.add("Mul", x, 0.044715))
    inner = b.add("Mul", b.add("Add", x, cube), math.sqrt(2 / math.pi))
    return b.add("Mul", b.add("Mul", x, 0.5), b.add("Add", _tanh(b, inner), 1.0))


def _mish(b: _Body, x: str) -> str:
    """x·tanh(log(1 + e^x)), the logarithm as max(x, 0) + log(1 + e^-|x|), which does not overflow."""
    tail = b.add("Log", b.add("Add", b.add("Exp", b.add("Neg", b.add("Abs", x))), 1.0))
    return b.add("Mul", x, _tanh(b, b.add("Add", b.add("Max", x, 0.0), tail)))


_FORMULAS = {
    "Tanh": _tanh,
    "Erf": _erf,
    "Sin": lambda b, x: _circle(b, x, 0.0),
    "Cos": lambda b, x: _circle(b, x, 1.0),
    "Tan": _tan,
    "Atan": _atan,
    "Asin": _asin,
    "Acos": _acos,
    "Gelu": _gelu,
    "GeluByTanh": _gelu_by_tanh,
    "Mish": _mish,
}
LACKED = frozenset(_FORMULAS) - {"GeluByTanh"}
"""The operators that are written out where they compute in float64."""


def write_out_doubles(given: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without the functions of float64 that IREE lacks. It states the types of its values.

    A model without such functions is returned as it is.
    """
    model = onnx.ModelProto()
    model.CopyFrom(given)
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.value_info)}
    kinds |= {t.name: t.data_type for t in model.graph.initializer}
    used: set[str] = set()
    for node in model.graph.node:
        if node.domain in ("", "ai.onnx") and node.op_type in LACKED and kinds.get(node.input[0]) == _DOUBLE:
            by_tanh = any(a.name == "approximate" and a.s == b"tanh" for a in node.attribute)
            node.domain, node.op_type = DOMAIN, "GeluByTanh" if by_tanh else node.op_type
            del node.attribute[:]
            used.add(node.op_type)
    if not used:
        return given
    version = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    model.functions.extend(_function(name, version) for name in sorted(used))
    inlined = inliner.inline_selected_functions(model, [(DOMAIN, name) for name in used])
    kept = [o for o in inlined.opset_import if o.domain != DOMAIN]
    del inlined.opset_import[:]
    inlined.opset_import.extend(kept)
    return onnx.shape_inference.infer_shapes(inlined)


@functools.cache
def _function(name: str, version: int) -> onnx.FunctionProto:
    body = _Body()
    result = _FORMULAS[name](body, "x")
    lines = "\n".join([*body.lines, f"y = Identity ({result})"])
    return parser.parse_function(f'<domain: "{DOMAIN}", opset_import: ["": {version}]> {name} (x) => (y) {{ {lines} }}')
