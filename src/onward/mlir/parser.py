"""Read MLIR text: the generic form, and the few other forms that ONNX modules have.

The other forms are those of `module`, `func.func` and `return`, of onnx-mlir's `onnx.Constant`, `onnx.ConstantOfShape`,
`onnx.Return` and `onnx.Yield`, and of torch-mlir's `torch.operator` and `torch.constant.none`. The parser is strict and
bounded: `scanner.Limits` says by what.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from onward.errors import Diagnostic, ModelError
from onward.mlir.scanner import DEFAULT, Limits
from onward.mlir.syntax import (
    Array,
    Attribute,
    Dense,
    Dialect,
    Dictionary,
    Function,
    Module,
    Operation,
    Region,
    Resource,
    Sparse,
    String,
    Type,
    TypeAttribute,
)
from onward.mlir.values import ValueParser, unsupported
from onward.storage.limits import M104

_SIZE = re.compile(r"(\?|[0-9]{1,19})x")
_SCALAR = re.compile(r"[a-z]+[0-9]*[A-Z0-9]*[A-Z]*")
_ARGUMENTS = re.compile(r"\(\s*%")


def parse(text: str, limits: Limits = DEFAULT) -> Module:
    """Return the module of a text.

    Raises:
        ModelError: it is not MLIR text, or has something that ONNX modules do not have.
    """
    return Parser(text, limits).module()


class Parser(ValueParser):
    """The part of a recursive-descent parser that reads operations."""

    operations = 0

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
            self.type_aliases[name] = self._aliased(self.type)
        elif scan.optional_word() == "loc":
            self._location()
        else:
            self.attribute_aliases[name] = self._aliased(self.attribute)

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
        named = self._results() if scan.peek() == "%" else []
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
        count, name = sum(n for _, n in named), made.name[:60]
        if named and count != len(made.result_types):
            scan.fail(f"`{name}` has {len(made.result_types)} results and {count} names for them")
        if len(made.operands) != len(made.operand_types):
            scan.fail(f"`{name}` has {len(made.operands)} operands and {len(made.operand_types)} types for them")
        made.results = [f"{a}#{i}" if n > 1 else a for a, n in named for i in range(n)]
        if not named:
            made.results = [""] * len(made.result_types)  # nobody reads them
        return made

    def _results(self) -> list[tuple[str, int]]:
        """Read `%a, %b:2 =`, as names with the number of results that each stands for."""
        scan = self.scan
        names: list[tuple[str, int]] = []
        while True:
            name = scan.value()
            if scan.take(":"):
                count = scan.number()
                if not count.isdigit() or not 0 < int(count) < 100_000:
                    scan.fail("an operation has no such number of results")
                names.append((name, int(count)))
            else:
                names.append((name, 1))
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
