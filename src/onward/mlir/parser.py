"""Read MLIR text: the generic form, and the few other forms that ONNX modules have.

The other forms are those of `module`, `func.func` and `return`, of onnx-mlir's `onnx.Constant`, `onnx.ConstantOfShape`,
`onnx.Return` and `onnx.Yield`, and of torch-mlir's `torch.operator` and `torch.constant.none`. The parser is strict and
bounded: `scanner.Limits` says by what.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from onward.errors import Diagnostic, ModelError
from onward.mlir.elements import Expanded, make_dense, read_literal
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
    Module,
    Operation,
    Region,
    Resource,
    Scalar,
    Sparse,
    String,
    Symbol,
    Tensor,
    Type,
    TypeAttribute,
)
from onward.storage.limits import M102, M103, M104

_SIZE = re.compile(r"(\?|[0-9]{1,19})x")
_SCALAR = re.compile(r"[a-z]+[0-9]*[A-Z0-9]*[A-Z]*")
_ARGUMENTS = re.compile(r"\(\s*%")


def parse(text: str, limits: Limits = DEFAULT) -> Module:
    """Return the module of a text.

    Raises:
        ModelError: it is not MLIR text, or has something that ONNX modules do not have.
    """
    return Parser(text, limits).module()


def unsupported(scan: Scanner, what: str) -> None:
    """Raise because of valid MLIR that has no meaning in an ONNX model."""
    scan.fail(f"{what} cannot be in an ONNX model", needed="operations of the dialects `onnx` and `func`")


class Parser:
    """A recursive-descent parser; `_deeper` bounds the recursion."""

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
        self.depth = 0
        self.operations = 0
        self.expanded = Expanded(self.scan)
        self.attribute_aliases: dict[str, Attribute] = {}
        self.type_aliases: dict[str, Type] = {}

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > self.limits.nesting:
            raise ModelError(
                Diagnostic(
                    M103,
                    "the text is nested too deeply",
                    place=f"line {self.scan.line()}",
                    needed=f"at most {self.limits.nesting} levels",
                )
            )

    # -- the file --------------------------------------------------------------------------------------------

    def module(self) -> Module:
        """Read the whole file."""
        module = Module()
        found: list[Operation] = []
        while self.scan.peek():
            if self.scan.peek(3) == "{-#":
                self._resources(module)
            elif self.scan.peek() in ("#", "!"):
                self._alias()
            else:
                found.append(self.operation())
        if len(found) == 1 and found[0].name == "builtin.module":
            module.attributes = found[0].attributes
            module.operations = found[0].regions[0].operations if found[0].regions else []
        else:  # a file without `module`: its functions
            module.operations = found
        return module

    def _alias(self) -> None:
        """Read `#name = attribute` or `!name = type`; locations are only skipped."""
        scan = self.scan
        sign = scan.peek()
        scan.position += 1
        name = scan.word()
        scan.expect("=")
        if sign == "!":
            self.type_aliases[name] = self.type()
        elif scan.optional_word() == "loc":
            self._location()
        else:
            self.attribute_aliases[name] = self.attribute()

    def _location(self) -> None:
        if self.scan.take("loc"):
            if self.scan.peek() != "(":
                self.scan.fail("`loc` has no place", needed="`(`")
            self.scan.balanced()

    def _resources(self, module: Module) -> None:
        """Read `{-# dialect_resources: { builtin: { key: "0x…" } } #-}`; resources of other tools are skipped."""
        scan = self.scan
        scan.expect("{-#")
        while not scan.take("#-}"):
            section = scan.name()
            scan.expect(":")
            if section != "dialect_resources":
                if scan.peek() != "{":
                    scan.fail("a resource section has no brackets", needed="`{`")
                scan.balanced()
            else:
                self._entries(lambda _: self._entries(lambda key: self._blob(module, key)))
            scan.take(",")

    def _entries(self, read: Callable[[str], None]) -> None:
        """Read `{name: …, name: …}`."""
        self.scan.expect("{")
        while not self.scan.take("}"):
            name = self.scan.name()
            self.scan.expect(":")
            read(name)
            if not self.scan.take(",") and self.scan.peek() != "}":
                self.scan.fail("an entry does not end", needed="`,` or `}`")

    def _blob(self, module: Module, key: str) -> None:
        begin = self.scan.position
        raw = self.scan.raw_string()
        try:
            data = bytes.fromhex(raw[2:]) if raw.startswith("0x") else b""
        except ValueError:
            data = b""
        if len(data) < 4:  # the alignment comes first
            self.scan.fail(f"resource `{key[:60]}` is not hex", at=begin)
        if key in module.resources:
            self.scan.fail(f"resource `{key[:60]}` is given twice", at=begin)
        module.resources[key] = memoryview(data)[4:]

    # -- operations ------------------------------------------------------------------------------------------

    def operation(self) -> Operation:
        """Read one operation."""
        scan = self.scan
        self.operations += 1
        if self.operations > self.limits.operations:
            raise ModelError(
                Diagnostic(M104, "the text has too many operations", needed=f"at most {self.limits.operations:,}")
            )
        scan.skip()
        made = Operation("", line=scan.line())
        if scan.peek() == "%":
            made.results = self._results()
        if scan.peek() == '"':
            made.name = scan.string().decode("utf-8", "replace")
            self._generic(made)
        else:
            made.name = scan.word("an operation")
            read = _FORMS.get(made.name)
            if read is None:
                unsupported(scan, f"the operation `{made.name}` in a form of its own")
            else:
                read(self, made)
        self._location()
        if len(made.results) != len(made.result_types):
            scan.fail(
                f"`{made.name}` has {len(made.result_types)} results and {len(made.results)} names for them",
                needed="as many names",
            ) if made.results else None
            made.results = [""] * len(made.result_types)  # nobody reads them
        if len(made.operands) != len(made.operand_types):
            scan.fail(f"`{made.name}` has {len(made.operands)} operands and {len(made.operand_types)} types for them")
        return made

    def _results(self) -> list[str]:
        """Read `%a, %b:2 =`."""
        scan, names = self.scan, []
        while True:
            name = scan.value()
            if scan.take(":"):
                count = scan.number()
                if not count.isdigit() or not 0 < int(count) < 100_000:
                    scan.fail("an operation has no such number of results")
                names += [f"{name}#{i}" for i in range(int(count))] if int(count) > 1 else [name]
            else:
                names.append(name)
            if not scan.take(","):
                break
        scan.expect("=")
        return names

    def _operand(self) -> str:
        name = self.scan.value()
        if self.scan.take("#"):
            return f"{name}#{self.scan.number()}"
        return name

    def _operands(self, close: str = ")") -> list[str]:
        """Read operands up to `close`."""
        names: list[str] = []
        while not self.scan.take(close):
            if names:
                self.scan.expect(",")
            names.append(self._operand())
        return names

    def _generic(self, made: Operation) -> None:
        scan = self.scan
        scan.expect("(")
        made.operands = self._operands()
        if scan.peek() == "[":
            unsupported(scan, "a jump between blocks")
        if scan.peek(2) == "<{":
            scan.position += 1
            made.attributes.update(self.dictionary())
            scan.expect(">")
        if scan.peek(2) == "({" or re.compile(r"\(\s*\{").match(scan.text, scan.position):
            scan.expect("(")
            while True:
                made.regions.append(self._region())
                if not scan.take(","):
                    break
            scan.expect(")")
        if scan.peek() == "{":
            made.attributes.update(self.dictionary())
        self._signature(made)

    def _signature(self, made: Operation) -> None:
        """Read `: (types) -> types`."""
        self.scan.expect(":")
        kind = self._function_type()
        made.operand_types, made.result_types = list(kind.inputs), list(kind.results)

    def _region(self) -> Region:
        """Read `{ ^bb0(%a: type): operations }`."""
        scan, region = self.scan, Region()
        self._deeper()
        scan.expect("{")
        blocks = 0
        while not scan.take("}"):
            if scan.peek() == "^":
                if blocks or region.operations:
                    unsupported(scan, "a region of several blocks")
                blocks += 1
                scan.position += 1
                scan.word()
                if scan.take("("):
                    region.arguments = self._arguments()
                scan.expect(":")
            else:
                region.operations.append(self.operation())
        self.depth -= 1
        return region

    def _arguments(self) -> list[tuple[str, Type]]:
        found: list[tuple[str, Type]] = []
        while not self.scan.take(")"):
            if found:
                self.scan.expect(",")
            name = self.scan.value()
            self.scan.expect(":")
            found.append((name, self.type()))
            self._location()
        return found

    def _module_form(self, made: Operation) -> None:
        made.name = "builtin.module"
        if self.scan.take("@"):
            made.attributes["sym_name"] = String(self.scan.name().encode("utf-8", "surrogateescape"))
        if self.scan.take("attributes"):
            made.attributes.update(self.dictionary())
        made.regions = [self._region()]

    def _function_form(self, made: Operation) -> None:
        """Read `func.func private @name(%a: type {…}) -> (type {…}) attributes {…} {…}`, as the generic form."""
        scan = self.scan
        if scan.optional_word() in ("private", "public", "nested"):
            made.attributes["sym_visibility"] = String(scan.word().encode())
        scan.expect("@")
        made.attributes["sym_name"] = String(scan.name().encode("utf-8", "surrogateescape"))
        scan.expect("(")
        arguments: list[tuple[str, Type]] = []
        given: list[Attribute] = []
        while not scan.take(")"):
            if arguments:
                scan.expect(",")
            name = ""
            if scan.peek() == "%":
                name = scan.value()
                scan.expect(":")
            arguments.append((name, self.type()))
            given.append(Dictionary(self.dictionary() if scan.peek() == "{" else {}))
            self._location()
        results: list[Type] = []
        returned: list[Attribute] = []
        if scan.take("->"):
            if scan.take("("):
                while not scan.take(")"):
                    if results:
                        scan.expect(",")
                    results.append(self.type())
                    returned.append(Dictionary(self.dictionary() if scan.peek() == "{" else {}))
            else:
                results.append(self.type())
                returned.append(Dictionary({}))
        if scan.take("attributes"):
            made.attributes.update(self.dictionary())
        made.attributes["arg_attrs"], made.attributes["res_attrs"] = Array(tuple(given)), Array(tuple(returned))
        signature = Function(tuple(kind for _, kind in arguments), tuple(results))
        made.attributes["function_type"] = TypeAttribute(signature)
        made.regions = [self._region() if scan.peek() == "{" else Region()]
        made.regions[0].arguments = arguments

    def _terminator_form(self, made: Operation) -> None:
        """Read `return %a, %b : type, type`."""
        scan = self.scan
        if scan.peek() == "{":
            made.attributes = self.dictionary()
        if scan.peek() == "%":
            made.operands.append(self._operand())
            while scan.take(","):
                made.operands.append(self._operand())
            scan.expect(":")
            made.operand_types.append(self.type())
            while scan.take(","):
                made.operand_types.append(self.type())

    def _constant_form(self, made: Operation) -> None:
        """Read `onnx.Constant {…} dense<…> : type`, or `onnx.Constant {value_int = 1 : si64} : type`."""
        scan = self.scan
        if scan.peek() == "{":
            made.attributes = self.dictionary()
        if scan.take(":"):
            made.result_types = [self.type()]
            return
        value = self.attribute()
        if not isinstance(value, Dense | Sparse | Resource):
            scan.fail("a constant has no tensor", needed="`dense<…>`, `sparse<…>` or `dense_resource<…>`")
        else:
            made.attributes["sparse_value" if isinstance(value, Sparse) else "value"] = value
            made.result_types = [self.type() if scan.take(":") else value.type]

    def _constant_of_shape_form(self, made: Operation) -> None:
        self.scan.expect("(")
        made.operands = self._operands()
        if self.scan.peek() == "{":
            made.attributes = self.dictionary()
        self._signature(made)

    def _torch_operator_form(self, made: Operation) -> None:
        """Read `torch.operator "onnx.Add"(%a, %b) {…} : (types) -> types {regions}`."""
        made.attributes["name"] = String(self.scan.string())
        self.scan.expect("(")
        made.operands = self._operands()
        if self.scan.peek() == "{":
            made.attributes.update(self.dictionary())
        self._signature(made)
        while self.scan.peek() == "{":
            made.regions.append(self._region())
            self.scan.take(",")

    def _none_form(self, made: Operation) -> None:
        made.result_types = [Dialect("torch.none")]

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
            return self.attribute_aliases[name]
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
        shape: list[int | None] | None = []
        if scan.take("*x"):
            shape = None
        else:
            while (found := scan.match(_SIZE)) is not None:
                if len(shape) >= self.limits.rank:
                    scan.fail("a tensor has too many dimensions", needed=f"at most {self.limits.rank}")
                shape.append(None if found[1] == "?" else int(found[1]))
                if (shape[-1] or 0) >= 2**63:
                    scan.fail("a dimension is too large")
        element = self.type()
        if scan.peek() == ",":
            unsupported(scan, "a tensor with a layout")
        scan.expect(">")
        return Tensor(None if shape is None else tuple(shape), element)

    def _dialect_type(self) -> Type:
        scan = self.scan
        scan.expect("!")
        name = scan.word("a type")
        if name in self.type_aliases:
            return self.type_aliases[name]
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


_FORMS: dict[str, Callable[[Parser, Operation], None]] = {
    "module": Parser._module_form,
    "builtin.module": Parser._module_form,
    "func.func": Parser._function_form,
    "return": Parser._terminator_form,
    "func.return": Parser._terminator_form,
    "onnx.Return": Parser._terminator_form,
    "onnx.Yield": Parser._terminator_form,
    "onnx.Constant": Parser._constant_form,
    "onnx.ConstantOfShape": Parser._constant_of_shape_form,
    "torch.operator": Parser._torch_operator_form,
    "torch.operator_terminator": Parser._terminator_form,
    "torch.constant.none": Parser._none_form,
}
