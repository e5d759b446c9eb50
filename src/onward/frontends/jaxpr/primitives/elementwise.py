"""Element-wise arithmetic, comparisons, choices and type conversions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.frontends.jaxpr import derivatives, sizes
from onward.frontends.jaxpr.frame import Frame, constant_of
from onward.frontends.jaxpr.primitives import NotNamedError, named
from onward.frontends.jaxpr.registry import UnsupportedError, primitive
from onward.graph.builder import Value

_PLAIN = {
    "neg": "Neg", "exp": "Exp", "log": "Log", "tanh": "Tanh", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos", "tan": "Tan",
    "abs": "Abs", "sign": "Sign", "floor": "Floor", "ceil": "Ceil", "logistic": "Sigmoid", "erf": "Erf",
    "atan": "Atan", "asin": "Asin", "acos": "Acos", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh",
    "acosh": "Acosh", "atanh": "Atanh",
}  # fmt: skip
_COMPARE = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}
# Element types that ONNX Runtime's arithmetic and comparisons take; others go through int64, or float32.
_NUMBERS = (np.float32, np.float64, np.int32, np.int64)
_FLOATS = (np.float16, np.float32, np.float64)


def is_float(aval: Any) -> bool:
    """Return whether a value has a floating-point type."""
    return bool(np.issubdtype(aval.dtype, np.floating)) or str(aval.dtype) == "bfloat16"


def _wide(aval: Any) -> Any:
    """Return the type in which to compute with values of this type."""
    if aval.dtype in (*_NUMBERS, np.float16):
        return aval.dtype
    return np.float32 if is_float(aval) else np.int64


def _arithmetic(operator: str) -> Any:
    def rule(frame: Frame, equation: Any, *inputs: Value) -> Value:
        wide, out = _wide(equation.invars[0].aval), equation.outvars[0].aval
        made = getattr(frame.op, operator)(*(frame.cast(v, wide) for v in inputs))
        if out.dtype in (np.uint32, np.uint8, np.uint16) and operator in ("Add", "Sub", "Mul"):
            made = frame.op.BitwiseAnd(made, int(np.iinfo(out.dtype).max))  # wraps, as unsigned numbers do
        return frame.cast(made, out.dtype)

    return rule


for _name, _operator in _PLAIN.items():

    def _unary(frame: Frame, equation: Any, x: Value, operator: str = _operator) -> Value:
        wide = _wide(equation.invars[0].aval)
        return frame.cast(getattr(frame.op, operator)(frame.cast(x, wide)), equation.outvars[0].aval.dtype)

    primitive(_name)(_unary)

for _name, _operator in {"sub": "Sub", "mul": "Mul", "div": "Div"}.items():
    primitive(_name)(_arithmetic(_operator))
primitive("add", "add_any")(_arithmetic("Add"))


@primitive("max", "min")
def extreme(frame: Frame, equation: Any, a: Value, b: Value) -> Value:
    """max and min, of booleans too."""
    aval = equation.invars[0].aval
    if aval.dtype == bool:
        made: Value = frame.op.Or(a, b) if equation.primitive.name == "max" else frame.op.And(a, b)
        return made
    return _arithmetic("Max" if equation.primitive.name == "max" else "Min")(frame, equation, a, b)  # type: ignore[no-any-return]


for _name, _operator in _COMPARE.items():

    def _compare(frame: Frame, equation: Any, a: Value, b: Value, operator: str = _operator) -> Value:
        wide = np.int32 if equation.invars[0].aval.dtype == bool else _wide(equation.invars[0].aval)
        made: Value = getattr(frame.op, operator)(frame.cast(a, wide), frame.cast(b, wide))
        return made

    primitive(_name)(_compare)


@primitive("ne")
def not_equal(frame: Frame, equation: Any, a: Value, b: Value) -> Value:
    """a != b."""
    wide = np.int32 if equation.invars[0].aval.dtype == bool else _wide(equation.invars[0].aval)
    made: Value = frame.op.Not(frame.op.Equal(frame.cast(a, wide), frame.cast(b, wide)))
    return made


@primitive("lt_to", "le_to")
def before(frame: Frame, equation: Any, a: Value, b: Value) -> Value:
    """The order by which JAX sorts and searches, in which NaN is the last; JAX has made one zero of both before."""
    op, aval = frame.op, equation.invars[0].aval
    a, b = (frame.cast(v, _wide(aval)) for v in (a, b))
    if not is_float(aval):
        return op.Less(a, b) if equation.primitive.name == "lt_to" else op.LessOrEqual(a, b)
    if equation.primitive.name == "lt_to":
        return op.Or(op.Less(a, b), op.And(op.IsNaN(b), op.Not(op.IsNaN(a))))
    return op.Or(op.LessOrEqual(a, b), op.IsNaN(b))


@primitive("rem")
def remainder(frame: Frame, equation: Any, a: Value, b: Value) -> Value:
    """The remainder with the sign of the dividend."""
    wide, out = _wide(equation.invars[0].aval), equation.outvars[0].aval
    made = frame.op.Mod(frame.cast(a, wide), frame.cast(b, wide), fmod=1)
    return frame.cast(made, out.dtype)


@primitive("and", "or", "xor")
def bits(frame: Frame, equation: Any, a: Value, b: Value) -> Value:
    """Logical on booleans, bitwise on integers."""
    word = {"and": "And", "or": "Or", "xor": "Xor"}[equation.primitive.name]
    made: Value = getattr(frame.op, word if equation.outvars[0].aval.dtype == bool else f"Bitwise{word}")(a, b)
    return made


@primitive("not")
def invert(frame: Frame, equation: Any, a: Value) -> Value:
    """Logical on booleans, bitwise on integers."""
    made: Value = frame.op.Not(a) if equation.outvars[0].aval.dtype == bool else frame.op.BitwiseNot(a)
    return made


@primitive("square")
def square(frame: Frame, equation: Any, x: Value) -> Value:
    """x * x."""
    return _arithmetic("Mul")(frame, equation, x, x)  # type: ignore[no-any-return]


@primitive("rsqrt")
def reciprocal_root(frame: Frame, equation: Any, x: Value) -> Value:
    """1 / sqrt(x)."""
    made: Value = frame.op.Reciprocal(frame.op.Sqrt(x))
    return made


@primitive("cbrt")
def cube_root(frame: Frame, equation: Any, x: Value) -> Value:
    """The real cube root."""
    op = frame.op
    root = op.Mul(op.Sign(x), op.Pow(op.Abs(x), frame.constant(1 / 3, equation.invars[0].aval.dtype)))

    def slope(x: Value) -> Value:
        third: Value = op.Div(root_of(x), op.Mul(x, 3.0))
        return third

    def root_of(x: Value) -> Value:
        return op.Mul(op.Sign(x), op.Pow(op.Abs(x), frame.constant(1 / 3, equation.invars[0].aval.dtype)))

    return derivatives.with_slope(frame, root, x, slope)


@primitive("exp2")
def power_of_two(frame: Frame, equation: Any, x: Value) -> Value:
    """2 ** x."""
    made: Value = frame.op.Exp(frame.op.Mul(x, frame.constant(math.log(2), equation.invars[0].aval.dtype)))
    return made


@primitive("expm1")
def exp_minus_one(frame: Frame, equation: Any, x: Value) -> Value:
    """exp(x) - 1, accurate near 0: 2 sinh(x/2) exp(x/2) there, exp(x) - 1 elsewhere."""
    op, dtype = frame.op, equation.invars[0].aval.dtype
    half = op.Mul(op.Max(op.Min(x, frame.constant(1, dtype)), frame.constant(-1, dtype)), frame.constant(0.5, dtype))
    near = op.Mul(op.Mul(op.Sinh(half), op.Exp(half)), frame.constant(2, dtype))
    far = op.Sub(op.Exp(x), frame.constant(1, dtype))
    value = op.Where(op.Less(op.Abs(x), frame.constant(0.5, dtype)), near, far)
    value.type, value.shape = x.type, x.shape
    return derivatives.with_slope(frame, value, x, op.Exp)


@primitive("log1p")
def log_of_one_plus(frame: Frame, equation: Any, x: Value) -> Value:
    """log(1 + x), accurate near 0: log(u) x / (u - 1) with u = 1 + x, and x where u is 1."""
    op, one = frame.op, frame.constant(1, equation.invars[0].aval.dtype)
    u = op.Add(x, one)
    rest = op.Sub(u, one)
    small = op.Equal(rest, frame.constant(0, equation.invars[0].aval.dtype))
    ratio = op.Div(x, op.Where(small, one, rest))
    far = op.Or(op.IsInf(u), op.Greater(u, frame.constant(1e4, equation.invars[0].aval.dtype)))
    value = op.Where(small, x, op.Mul(op.Log(u), op.Where(far, one, ratio)))
    value.type, value.shape = x.type, x.shape
    return derivatives.with_slope(frame, value, x, lambda x: op.Reciprocal(op.Add(x, one)))


@primitive("erfc")
def complementary_error(frame: Frame, equation: Any, x: Value) -> Value:
    """1 - erf(x), which loses its digits beyond 1 (2 in float64): there exp(-x²) times a continued fraction."""
    op, dtype = frame.op, equation.invars[0].aval.dtype
    if dtype not in (np.float32, np.float64):
        raise UnsupportedError(f"erfc in {dtype}")

    def number(v: float) -> Value:
        return frame.constant(v, dtype)

    start = 1.0 if dtype == np.float32 else 2.0
    far = op.Max(x, number(start))
    fraction = far
    for k in range(40, 0, -1):  # 1 / (x + (1/2) / (x + (2/2) / (x + …)))
        fraction = op.Add(far, op.Div(number(k / 2), fraction))
    tail = op.Div(op.Mul(op.Exp(op.Neg(op.Mul(far, far))), number(1 / math.sqrt(math.pi))), fraction)
    value = op.Where(op.Greater(x, number(start)), tail, op.Sub(number(1), op.Erf(x)))
    value.type, value.shape = x.type, x.shape

    def slope(x: Value) -> Value:
        made: Value = op.Mul(op.Exp(op.Neg(op.Mul(x, x))), number(-2 / math.sqrt(math.pi)))
        return made

    return derivatives.with_slope(frame, value, x, slope)


@primitive("erf_inv")
def inverse_error(frame: Frame, equation: Any, x: Value) -> Value:
    """The inverse of erf: Winitzki's approximation, then three steps of Halley's method."""
    op, dtype = frame.op, equation.invars[0].aval.dtype
    if dtype not in (np.float32, np.float64):
        raise UnsupportedError(f"the inverse of erf in {np.dtype(dtype).name}")

    def number(v: float) -> Value:
        return frame.constant(v, dtype)

    inside = op.Mul(op.Sub(number(1), x), op.Add(number(1), x))
    logarithm = op.Log(op.Max(inside, number(float(np.finfo(dtype).tiny))))
    a = op.Add(op.Mul(logarithm, number(0.5)), number(2 / (math.pi * 0.147)))
    root = op.Sub(op.Sqrt(op.Sub(op.Mul(a, a), op.Div(logarithm, number(0.147)))), a)
    y = op.Mul(op.Sign(x), op.Sqrt(op.Max(root, number(0))))
    for _ in range(3):
        error = op.Sub(op.Erf(y), x)
        step = op.Div(error, op.Mul(op.Exp(op.Neg(op.Mul(y, y))), number(2 / math.sqrt(math.pi))))
        y = op.Sub(y, op.Div(step, op.Add(op.Mul(y, step), number(1))))
    end = op.GreaterOrEqual(op.Abs(x), number(1))
    value = op.Where(end, op.Mul(op.Sign(x), number(np.inf)), y)
    value.type, value.shape = x.type, x.shape

    def slope(_: Value) -> Value:
        stopped = derivatives.stop_gradient(frame, value)
        made: Value = op.Mul(op.Exp(op.Mul(stopped, stopped)), number(math.sqrt(math.pi) / 2))
        return made

    return derivatives.with_slope(frame, value, x, slope)


@primitive("pow")
def power(frame: Frame, equation: Any, x: Value, y: Value) -> Value:
    """x ** y, as JAX differentiates it: with an integer exponent, only the base moves."""
    if not is_float(equation.invars[0].aval):
        raise UnsupportedError("a power of integers")
    made: Value = frame.op.Pow(x, frame.cast(y, equation.invars[0].aval.dtype))
    return made


@primitive("integer_pow")
def integer_power(frame: Frame, equation: Any, x: Value) -> Value:
    """x ** n for a number n, by multiplications."""
    n, op = int(equation.params["y"]), frame.op
    if n < 0 and not is_float(equation.invars[0].aval):
        raise UnsupportedError("a negative power of integers")
    left, square, made = abs(n), x, None
    while left:
        if left & 1:
            made = square if made is None else op.Mul(made, square)
        left >>= 1
        if left:
            square = op.Mul(square, square)
    if made is None:
        return frame.constant(1, equation.invars[0].aval.dtype)
    return op.Identity(made) if n == 1 else op.Reciprocal(made) if n < 0 else made


@primitive("is_finite")
def is_finite(frame: Frame, equation: Any, x: Value) -> Value:
    """Neither infinite nor NaN."""
    made: Value = frame.op.Not(frame.op.Or(frame.op.IsNaN(x), frame.op.IsInf(x)))
    return made


@primitive("round")
def rounded(frame: Frame, equation: Any, x: Value) -> Value:
    """To the nearest integer; halves to the even one, or away from zero."""
    op = frame.op
    if int(equation.params["rounding_method"]) == 1:
        made: Value = op.Round(x)
        return made
    half = frame.constant(0.5, equation.invars[0].aval.dtype)
    away: Value = op.Mul(op.Sign(x), op.Floor(op.Add(op.Abs(x), half)))
    return away


@primitive("clamp")
def clamp(frame: Frame, equation: Any, low: Value, x: Value, high: Value) -> Value:
    """min(max(x, low), high). At a bound, no gradient reaches x, as in JAX."""
    op = frame.op
    if not is_float(equation.invars[1].aval):
        return op.Min(op.Max(x, low), high)
    inside = op.And(op.Greater(x, low), op.Less(x, high))
    bound = op.Where(op.Greater(x, low), high, low)
    made: Value = op.Where(op.Or(inside, op.IsNaN(x)), x, bound)
    return made


@primitive("select_n")
def select(frame: Frame, equation: Any, which: Value, *cases: Value) -> Value:
    """cases[which], element by element."""
    op, dtype = frame.op, equation.outvars[0].aval.dtype
    if len(cases) == 1:
        return op.Identity(cases[0])
    made = cases[-1]
    for index in range(len(cases) - 2, -1, -1):
        if equation.invars[0].aval.dtype == bool:
            later = which
        else:
            later = op.Greater(frame.cast(which, np.int64), index)
        made = _choose(frame, later, made, cases[index], dtype)
    return made


def _choose(frame: Frame, condition: Value, yes: Value, no: Value, dtype: Any) -> Value:
    op = frame.op
    if np.dtype(dtype) == bool:  # ONNX Runtime has no Where over booleans
        chosen: Value = op.Or(op.And(condition, yes), op.And(op.Not(condition), no))
        return chosen
    if dtype in (*_NUMBERS, *_FLOATS, np.uint8):
        chosen = op.Where(condition, yes, no)
        return chosen
    wide = np.int64 if np.issubdtype(dtype, np.integer) else np.float32  # bfloat16
    return frame.cast(op.Where(condition, frame.cast(yes, wide), frame.cast(no, wide)), dtype)


@primitive("convert_element_type")
def convert(frame: Frame, equation: Any, x: Value) -> Value:
    """A cast. To a narrower integer it wraps, as in JAX."""
    before, after = equation.invars[0].aval, equation.outvars[0].aval
    if before.dtype == after.dtype:
        return x
    known = constant_of(x)
    if known is not None:
        return frame.constant(known.astype(np.dtype(after.dtype)))
    if np.issubdtype(after.dtype, np.integer) and is_float(before):
        # JAX saturates where ONNX leaves the result open.
        limits = np.iinfo(after.dtype)
        wide = frame.cast(x, np.float64)
        low, high = frame.constant(float(limits.min), np.float64), frame.constant(float(limits.max), np.float64)
        number = frame.op.Where(frame.op.IsNaN(wide), frame.constant(0.0, np.float64), wide)
        inside = frame.op.Min(frame.op.Max(number, low), high)
        if limits.max > 2**53:
            return frame.cast(x, after.dtype)
        return frame.cast(inside, after.dtype)
    return frame.cast(x, after.dtype)


@primitive("copy", "copy_p", "reduce_precision", "name", "pvary")
def same(frame: Frame, equation: Any, x: Value) -> Value:
    """The same value."""
    if equation.primitive.name == "reduce_precision":
        limits = (equation.params["exponent_bits"], equation.params["mantissa_bits"])
        if limits not in ((8, 23), (11, 52)):
            raise UnsupportedError(f"a rounding to {limits[1]} bits")
    made: Value = frame.op.Identity(x)
    return made


@primitive("optimization_barrier")
def barrier(frame: Frame, equation: Any, *values: Value) -> list[Value]:
    """The same values."""
    return list(values)


@primitive("stop_gradient")
def stop_gradient(frame: Frame, equation: Any, x: Value) -> Value:
    """The same value, through which no gradient passes."""
    if not is_float(equation.invars[0].aval):
        return x
    return derivatives.stop_gradient(frame, x)


@primitive("shift_right_logical", "shift_left")
def shift(frame: Frame, equation: Any, x: Value, count: Value) -> Value:
    """Shifts of unsigned numbers."""
    dtype = equation.invars[0].aval.dtype
    if not np.issubdtype(dtype, np.unsignedinteger):
        raise UnsupportedError("a shift of signed numbers")
    direction = "RIGHT" if equation.primitive.name == "shift_right_logical" else "LEFT"
    made: Value = frame.op.BitShift(x, count, direction=direction)
    return made


@primitive("shift_right_arithmetic")
def signed_shift(frame: Frame, equation: Any, x: Value, count: Value) -> Value:
    """x >> n: the quotient of x and 2 ** n, rounded down."""
    op, dtype = frame.op, equation.invars[0].aval.dtype
    x, by = frame.cast(x, np.int64), op.Pow(np.int64(2), frame.cast(count, np.int64))
    return frame.cast(op.Div(op.Sub(x, op.Mod(x, by)), by), dtype)


@primitive("debug_print", "debug_callback", "io_callback", "pure_callback")
def callback(frame: Frame, equation: Any, *values: Value) -> list[Value]:
    """Refused: a file holds no Python code."""
    raise UnsupportedError("it calls Python code in every step, and a file has none; leave it out")


@primitive("population_count")
def population_count(frame: Frame, equation: Any, x: Value) -> Value:
    """Refused: nothing that is trained counts bits."""
    raise UnsupportedError("ONNX does not count bits")


@primitive("real")
def real(frame: Frame, equation: Any, x: Value) -> Value:
    """Refused: complex numbers."""
    raise UnsupportedError("complex numbers cannot be trained")


@named("relu")
def relu(frame: Frame, equation: Any, x: Value) -> Value:
    """max(x, 0), with slope 0 at 0, as jax.nn.relu defines it."""
    if x.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16):
        return frame.op.Max(x, frame.constant(0, equation.invars[0].aval.dtype))
    made: Value = frame.op.Relu(x)
    return made


@primitive("nextafter")
def next_after(frame: Frame, equation: Any, a: Value, b: Value) -> Value:
    """The next number; of constants only."""
    number, towards = constant_of(a), constant_of(b)
    if number is None or towards is None:
        raise UnsupportedError("the next floating-point number of something computed")
    return frame.constant(np.nextafter(number, towards))


@primitive("atan2")
def arc_tangent_of_two(frame: Frame, equation: Any, y: Value, x: Value) -> Value:
    """The angle of the point (x, y): atan(y / x), moved by half a turn where x is negative."""
    op, dtype = frame.op, equation.invars[0].aval.dtype
    zero = frame.constant(0, dtype)
    level = op.Equal(x, zero)
    turn = op.Where(op.Less(y, zero), frame.constant(-math.pi, dtype), frame.constant(math.pi, dtype))
    angle = op.Atan(op.Div(y, op.Where(level, frame.constant(1, dtype), x)))
    upright = op.Mul(op.Sign(y), frame.constant(math.pi / 2, dtype))
    value = op.Where(level, upright, op.Where(op.Less(x, zero), op.Add(angle, turn), angle))
    value.type, value.shape = y.type, sizes.shape_of(equation.outvars[0].aval.shape)
    if not frame.translator.differentiable:
        return value
    a, b = (derivatives.stop_gradient(frame, v) for v in (y, x))
    square = op.Add(op.Mul(a, a), op.Mul(b, b))
    moved = op.Sub(op.Mul(derivatives.tangent(frame, y), b), op.Mul(derivatives.tangent(frame, x), a))
    return derivatives.attach(frame, op.Div(moved, square), value)


@named("softplus")
def softplus(frame: Frame, equation: Any, x: Value) -> Value:
    """log(1 + exp(x)): one operator in float32; in other types, of which runtimes have no kernel, as JAX writes it."""
    if x.dtype == ir.DataType.FLOAT:
        return frame.op.Softplus(x)
    (made,) = frame.run(equation.params["jaxpr"], [x])
    return made  # type: ignore[no-any-return]


@named("gelu")
def gelu(frame: Frame, equation: Any, x: Value) -> Value:
    """x Φ(x). The exact form takes 1 + erf, of which x keeps the small end small; else as JAX writes it."""
    op, dtype, inside = frame.op, equation.outvars[0].aval.dtype, equation.params["jaxpr"]
    if dtype not in (np.float32, np.float64) or not any(e.primitive.name == "erfc" for e in inside.jaxpr.eqns):
        (result,) = frame.run(inside, [x])
        return result  # type: ignore[no-any-return]
    half = op.Mul(x, frame.constant(0.5, dtype))
    inner = op.Erf(op.Mul(x, frame.constant(math.sqrt(0.5), dtype)))
    made: Value = op.Mul(half, op.Add(inner, frame.constant(1, dtype)))
    return made


@named("_softmax")
def softmax(frame: Frame, equation: Any, *inputs: Value) -> Value:
    """One operator, where it is over one axis and of all elements; else as JAX writes it."""
    inside = equation.params["call_jaxpr"]
    axes = [e.params["axes"] for e in inside.jaxpr.eqns if e.primitive.name == "reduce_max"]
    plain = all(e.primitive.name not in ("select_n", "jit", "pjit") for e in inside.jaxpr.eqns)
    if len(inputs) != 1 or len(axes) != 1 or len(axes[0]) != 1 or not plain:
        raise NotNamedError
    made: Value = frame.op.Softmax(inputs[0], axis=int(axes[0][0]))
    return made


@named("log_softmax")
def log_softmax(frame: Frame, equation: Any, *inputs: Value) -> Value:
    """One operator, where it is over one axis and of all elements; else as JAX writes it."""
    inside = equation.params["jaxpr"]
    axes = [e.params["axes"] for e in inside.jaxpr.eqns if e.primitive.name == "reduce_max"]
    if len(inputs) == 1 and len(axes) == 1 and len(axes[0]) == 1:
        made: Value = frame.op.LogSoftmax(inputs[0], axis=int(axes[0][0]))
        return made
    result: Value = frame.run(inside, inputs)[0]
    return result
