"""Read the attributes and types of MLIR text; `parser` reads the operations around them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from onward.errors import Diagnostic, ModelError
from onward.mlir.elements import AMPLIFIED, Expanded, make_dense, read_literal
from onward.mlir.numbers import float_bits, float_width, integer_width
from onward.mlir.scanner import DEFAULT, Limits, Scanner
from onward.mlir.syntax import (
    UNIT,
    Array,
    Attribute,
    Dense,
    Dialect,
    Dictionary,
    Float,
    Function,
    Integer,
    Resource,
    Scalar,
    Sparse,
    String,
    Symbol,
    Tensor,
    Type,
    TypeAttribute,
)
from onward.storage.limits import M102, M103

_SIZE = re.compile(r"(\?|[0-9]{1,19})x")
_SCALAR = re.compile(r"[a-z]+[0-9]*[A-Z0-9]*[A-Z]*")


Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class Alias(Generic[Value]):
    """What an alias stands for: as deep, and as large, as if it were written out wherever it is used."""

    value: Value
    depth: int
    size: int


def unsupported(scan: Scanner, what: str) -> None:
    """Raise because of valid MLIR that has no meaning in an ONNX model."""
    scan.fail(f"{what} cannot be in an ONNX model", needed="operations of the dialects `onnx` and `func`")


class ValueParser:
    """The part of a recursive-descent parser that reads values; `_deeper` bounds the recursion."""

    def __init__(self, text: str, limits: Limits = DEFAULT) -> None:
        if len(text) > limits.file_bytes:
            raise ModelError(
                Diagnostic(
                    M102,
                    "the text is too large",
                    found=f"{len(text):,} bytes",
                    needed=f"at most {limits.file_bytes:,}",
                )
            )
        self.scan = Scanner(text, limits)
        self.limits = limits
        self.depth = self.deepest = 0
        self.expanded = Expanded(self.scan)
        self.attribute_aliases: dict[str, Alias[Attribute]] = {}
        self.type_aliases: dict[str, Alias[Type]] = {}

    def _aliased(self, read: Callable[[], Value]) -> Alias[Value]:
        """Read what an alias stands for."""
        begin, left, self.deepest = self.scan.position, self.expanded.left, self.depth
        value = read()
        size = AMPLIFIED * (self.scan.position - begin) + left - self.expanded.left
        return Alias(value, self.deepest - self.depth, size)

    def _used(self, alias: Alias[Value]) -> Value:
        """Return what an alias stands for, within the limits of what is written out."""
        self._deeper(alias.depth)
        self.depth -= alias.depth
        self.expanded.spend(self.scan, alias.size, "what aliases stand for takes")
        return alias.value

    def _deeper(self, levels: int = 1) -> None:
        self.depth += levels
        self.deepest = max(self.deepest, self.depth)
        if self.depth > self.limits.nesting:
            raise ModelError(
                Diagnostic(
                    M103,
                    "the text is nested too deeply",
                    place=f"line {self.scan.line()}",
                    needed=f"at most {self.limits.nesting} levels",
                )
            )

    # -- attributes ------------------------------------------------------------------------------------------

    def dictionary(self) -> dict[str, Attribute]:
        """Read `{name = value, name}`."""
        scan, found = self.scan, dict[str, Attribute]()
        self._deeper()
        scan.expect("{")
        while not scan.take("}"):
            if found:
                scan.expect(",")
            begin = scan.position
            name = scan.name("the name of an attribute")
            if name in found:
                scan.fail(f"attribute `{name[:60]}` is given twice", at=begin)
            found[name] = self.attribute() if scan.take("=") else UNIT
        self.depth -= 1
        return found

    def attribute(self) -> Attribute:
        """Read the value of an attribute."""
        scan = self.scan
        first = scan.peek()
        if first == '"':
            data = scan.string()
            if scan.take(":"):
                self.type()
            return String(data)
        if first == "{":
            return Dictionary(self.dictionary())
        if first == "[":
            return self._array()
        if first == "@":
            return self._symbol()
        if first == "-" or first.isdigit():
            return self._number()
        if first == "#":
            scan.position += 1
            name = scan.word()
            if name not in self.attribute_aliases:
                unsupported(scan, f"the attribute `#{name[:60]}`")
            return self._used(self.attribute_aliases[name])
        word = scan.optional_word()
        if word in ("true", "false", "unit"):
            scan.word()
            return UNIT if word == "unit" else Integer(int(word == "true"), "i1")
        if word == "dense":
            return self._dense()
        if word == "dense_resource":
            return self._resource()
        if word == "sparse":
            return self._sparse()
        if word == "array":
            return self._dense_array()
        if word in ("affine_map", "affine_set", "strided", "distinct", "opaque", "loc"):
            unsupported(scan, f"an attribute `{word}`")
        return TypeAttribute(self.type())

    def _array(self) -> Array:
        self._deeper()
        self.scan.expect("[")
        items: list[Attribute] = []
        while not self.scan.take("]"):
            if items:
                self.scan.expect(",")
            items.append(self.attribute())
        self.depth -= 1
        return Array(tuple(items))

    def _symbol(self) -> Symbol:
        self.scan.expect("@")
        name = self.scan.name()
        while self.scan.take("::"):
            self.scan.expect("@")
            name += "::" + self.scan.name()
        return Symbol(name)

    def _number(self) -> Integer | Float:
        begin = self.scan.position
        number = self.scan.number()
        kind = "f64" if "." in number else "i64"
        if self.scan.take(":"):
            given = self.type()
            if not isinstance(given, Scalar):
                self.scan.fail("a number has a type that is not one of a number", at=begin)
            kind = given.name
        return self._as_number(number, kind, begin)

    def _as_number(self, number: str, kind: str, begin: int) -> Integer | Float:
        size = float_width(kind)
        if size is not None:
            if "." in number:
                return Float(float_bits(number, kind), kind)
            if number.startswith("0x") and int(number, 16) < 2**size:
                return Float(int(number, 16), kind)
        elif "." not in number:
            value = int(number, 16 if "x" in number else 10)
            bits, unsigned = integer_width(kind) or ((64, False) if kind == "index" else (0, False))
            if bits and (0 if unsigned else -(2 ** (bits - 1))) <= value < 2**bits:
                if not unsigned and value >= 2 ** (bits - 1) and bits > 1:  # written as the bits of a negative one
                    value -= 2**bits
                return Integer(value, kind)
        self.scan.fail(f"a number is not one of the type `{kind}`", at=begin)

    def _typed(self) -> Tensor:
        self.scan.expect(":")
        kind = self.type()
        if not isinstance(kind, Tensor):
            self.scan.fail("a constant has a type that is not that of a tensor", needed="`tensor<…>`")
        return kind

    def _dense(self) -> Dense:
        self.scan.expect("dense")
        self.scan.expect("<")
        literal = read_literal(self.scan)
        self.scan.expect(">")
        return make_dense(self.scan, literal, self._typed(), self.expanded)

    def _resource(self) -> Resource:
        self.scan.expect("dense_resource")
        self.scan.expect("<")
        key = self.scan.name("the key of a resource")
        self.scan.expect(">")
        return Resource(key, self._typed())

    def _sparse(self) -> Sparse:
        scan = self.scan
        scan.expect("sparse")
        scan.expect("<")
        first, second = self._sparse_part(","), self._sparse_part(">")
        kind = self._typed()
        if kind.shape is None or None in kind.shape or not isinstance(kind.element, Scalar):
            scan.fail("a sparse constant has an unknown size, or texts")
        shape = first[2] or (1, len(kind.shape))  # a single number is every index of one element
        if shape == (0,):
            shape = (0, len(kind.shape))
        indices = make_dense(scan, first, Tensor(shape, Scalar("i64")), self.expanded)
        values = make_dense(scan, second, Tensor(shape[:1], kind.element), self.expanded)
        if len(shape) != 2 or shape[1] != len(kind.shape):
            scan.fail("the indices of a sparse constant do not fit its rank")
        return Sparse(kind, np.frombuffer(indices.data, "<i8").reshape(shape), bytes(values.data))

    def _sparse_part(self, end: str) -> tuple[str, list[str] | list[bytes] | str, tuple[int, ...]]:
        """Read one list of `sparse<…>` by itself: the reader of lists takes all that is before `>`."""
        scan = self.scan
        begin = scan.position
        if scan.peek() == "[":
            text = f"[{scan.balanced()}]"
        else:
            text = scan.text[scan.position : scan.position + 400].partition(end)[0]
            scan.position += len(text)
        literal = read_literal(Scanner(f"{text}>", self.limits))
        if literal[0] != "numbers" and literal[0] != "empty":
            scan.fail("a sparse constant has something else than numbers", at=begin)
        scan.expect(end)
        return literal

    def _dense_array(self) -> Array:
        """Read `array<i64: 1, 2>`."""
        scan = self.scan
        scan.expect("array")
        scan.expect("<")
        kind = self.type()
        if not isinstance(kind, Scalar):
            scan.fail("an array has elements that are not numbers")
        items: list[Attribute] = []
        if scan.take(":"):
            while scan.peek() != ">":
                if items:
                    scan.expect(",")
                if kind.name == "i1":
                    items.append(Integer(int(scan.word() == "true"), "i1"))
                else:
                    begin = scan.position
                    items.append(self._as_number(scan.number(), kind.name, begin))
        scan.expect(">")
        return Array(tuple(items))

    # -- types -----------------------------------------------------------------------------------------------

    def type(self) -> Type:
        """Read a type."""
        scan = self.scan
        self._deeper()
        try:
            if scan.peek() == "(":
                return self._function_type()
            if scan.peek() == "!":
                return self._dialect_type()
            word = scan.word("a type")
            if word == "tensor":
                return self._tensor_type()
            if word == "complex":
                scan.expect("<")
                inner = scan.word("f32 or f64")
                scan.expect(">")
                return Scalar(f"complex<{inner}>")
            if scan.peek() == "<" or not _SCALAR.fullmatch(word):
                unsupported(scan, f"the type `{word[:60]}`")
            return Scalar(word)
        finally:
            self.depth -= 1

    def _function_type(self) -> Function:
        scan = self.scan
        scan.expect("(")
        inputs: list[Type] = []
        while not scan.take(")"):
            if inputs:
                scan.expect(",")
            inputs.append(self.type())
        scan.expect("->")
        results: list[Type] = []
        if scan.take("("):
            while not scan.take(")"):
                if results:
                    scan.expect(",")
                results.append(self.type())
        else:
            results.append(self.type())
        return Function(tuple(inputs), tuple(results))

    def _tensor_type(self) -> Tensor:
        scan = self.scan
        scan.expect("<")
        shape: list[int | None] = []
        unranked = scan.take("*x")
        while not unranked and (found := scan.match(_SIZE)) is not None:
            if len(shape) >= self.limits.rank:
                scan.fail("a tensor has too many dimensions", needed=f"at most {self.limits.rank}")
            size = None if found[1] == "?" else int(found[1])
            if size is not None and size >= 2**63:
                scan.fail("a dimension is too large")
            shape.append(size)
        element = self.type()
        if scan.peek() == ",":
            unsupported(scan, "a tensor with a layout")
        scan.expect(">")
        return Tensor(None if unranked else tuple(shape), element)

    def _dialect_type(self) -> Type:
        scan = self.scan
        scan.expect("!")
        name = scan.word("a type")
        if name in self.type_aliases:
            return self._used(self.type_aliases[name])
        if scan.text[scan.position : scan.position + 1] != "<":
            return Dialect(name)
        if name not in ("onnx.Seq", "onnx.Opt"):
            return Dialect(name, text=scan.balanced().strip())
        scan.expect("<")
        inner = [self.type()]
        while scan.take(","):
            inner.append(self.type())
        scan.expect(">")
        return Dialect(name, tuple(inner))
