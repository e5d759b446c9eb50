"""Write a module as MLIR text, in the generic form, which every MLIR parser reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np

from onward.mlir.numbers import float_text, float_width, is_splat, storage
from onward.mlir.syntax import (
    Array,
    Attribute,
    Dense,
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
    Unit,
)

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")
_ESCAPED = re.compile(rb'[^\x20-\x7e]|["\\]')
_ALIGNMENT = (16).to_bytes(4, "little")  # what a blob of MLIR begins with
LISTED = 16
"""Up to this number of elements a tensor is written as a list, for people; a longer one as the hex of its bytes."""


def module_chunks(module: Module) -> Iterator[str]:
    """Yield the text of a module, in parts."""
    yield f"module{_attributes(module.attributes, ' attributes ')} {{\n"
    for operation in module.operations:
        yield from _operation(operation, "  ")
    yield "}\n"
    if module.resources:
        yield "\n{-#\n  dialect_resources: {\n    builtin: {\n"
        for index, (key, data) in enumerate(module.resources.items()):
            yield f'{"" if index == 0 else f",{chr(10)}"}      {_name(key)}: "0x{_ALIGNMENT.hex().upper()}'
            yield data.hex().upper()
            yield '"'
        yield "\n    }\n  }\n#-}\n"


def _operation(operation: Operation, indent: str) -> Iterator[str]:
    if operation.name == "func.func":
        yield from _function(operation, indent)
        return
    results = f"{', '.join('%' + r for r in operation.results)} = " if operation.results else ""
    head = f'{indent}{results}"{operation.name}"({", ".join("%" + o for o in operation.operands)})'
    if operation.regions:
        yield f"{head} ("
        for index, region in enumerate(operation.regions):
            yield from _region(region, indent, first=index == 0)
        head = ")"
    types = f"({types_text(operation.operand_types)}) -> {_results(operation.result_types)}"
    yield f"{head}{_attributes(operation.attributes, ' ')} : {types}\n"


def _region(region: Region, indent: str, *, first: bool) -> Iterator[str]:
    yield "{\n" if first else ", {\n"
    if region.arguments:
        listed = ", ".join(f"%{name}: {type_text(kind)}" for name, kind in region.arguments)
        yield f"{indent}^bb0({listed}):\n"
    for operation in region.operations:
        yield from _operation(operation, indent + "  ")
    yield f"{indent}}}"


def _function(function: Operation, indent: str) -> Iterator[str]:
    """Yield `func.func` in its usual form."""
    attributes = dict(function.attributes)
    name, kind = attributes.pop("sym_name"), attributes.pop("function_type")
    assert isinstance(name, String)
    assert isinstance(kind, TypeAttribute)
    assert isinstance(kind.type, Function)
    given = _each(attributes.pop("arg_attrs", None), len(kind.type.inputs))
    returned = _each(attributes.pop("res_attrs", None), len(kind.type.results))
    visibility = attributes.pop("sym_visibility", None)
    (region,) = function.regions
    arguments = ", ".join(
        f"%{argument}: {type_text(of)}{_attributes(about, ' ')}"
        for (argument, of), about in zip(region.arguments, given, strict=True)
    )
    results = ", ".join(
        type_text(of) + _attributes(about, " ") for of, about in zip(kind.type.results, returned, strict=True)
    )
    private = f"{visibility.text} " if isinstance(visibility, String) else ""
    yield f"{indent}func.func {private}{_symbol(name.text)}({arguments})"
    if kind.type.results:
        yield f" -> ({results})"
    yield f"{_attributes(attributes, ' attributes ')} {{\n"
    for operation in region.operations:
        yield from _operation(operation, indent + "  ")
    yield f"{indent}}}\n"


def _each(attribute: Attribute | None, count: int) -> list[dict[str, Attribute]]:
    """Return the attributes of each argument or result."""
    if not isinstance(attribute, Array):
        return [{} for _ in range(count)]
    return [item.items if isinstance(item, Dictionary) else {} for item in attribute.items]


def _attributes(attributes: dict[str, Attribute], before: str) -> str:
    return f"{before}{attribute_text(Dictionary(attributes))}" if attributes else ""


def _results(types: list[Type]) -> str:
    return type_text(types[0]) if len(types) == 1 and not isinstance(types[0], Function) else f"({types_text(types)})"


def types_text(types: Iterable[Type]) -> str:
    return ", ".join(type_text(t) for t in types)


def type_text(kind: Type) -> str:
    """Return a type.

    >>> type_text(Tensor((2, None), Scalar("f32")))
    'tensor<2x?xf32>'
    """
    if isinstance(kind, Scalar):
        return kind.name
    if isinstance(kind, Tensor):
        sizes = "*x" if kind.shape is None else "".join(f"{'?' if d is None else d}x" for d in kind.shape)
        return f"tensor<{sizes}{type_text(kind.element)}>"
    if isinstance(kind, Function):
        return f"({types_text(kind.inputs)}) -> {_results(list(kind.results))}"
    inner = kind.text or types_text(kind.of)
    return f"!{kind.name}<{inner}>" if inner else f"!{kind.name}"


def attribute_text(attribute: Attribute) -> str:
    """Return an attribute.

    >>> attribute_text(Array((Integer(1), Integer(-1, "si64"), String(b'a"b'))))
    '[1, -1 : si64, "a\\\\22b"]'
    """
    if isinstance(attribute, String):
        return string_text(attribute.data)
    if isinstance(attribute, Integer):
        if attribute.type == "i1":
            return "true" if attribute.value else "false"
        return str(attribute.value) if attribute.type == "i64" else f"{attribute.value} : {attribute.type}"
    if isinstance(attribute, Float):
        return f"{float_text(attribute.bits, attribute.type)} : {attribute.type}"
    if isinstance(attribute, Array):
        return f"[{', '.join(attribute_text(item) for item in attribute.items)}]"
    if isinstance(attribute, Dictionary):
        return f"{{{', '.join(_entry(name, value) for name, value in attribute.items.items())}}}"
    if isinstance(attribute, TypeAttribute):
        return type_text(attribute.type)
    if isinstance(attribute, Symbol):
        return _symbol(attribute.name)
    if isinstance(attribute, Dense):
        return f"dense<{_elements(attribute)}> : {type_text(attribute.type)}"
    if isinstance(attribute, Resource):
        return f"dense_resource<{_name(attribute.key)}> : {type_text(attribute.type)}"
    if isinstance(attribute, Sparse):
        indices = _nested([str(i) for i in attribute.indices.ravel().tolist()], attribute.indices.shape)
        values = ", ".join(_numbers(attribute.values, _element(attribute.type)))
        return f"sparse<{indices}, [{values}]> : {type_text(attribute.type)}"
    assert isinstance(attribute, Unit)
    return "unit"


def _entry(name: str, value: Attribute) -> str:
    return _name(name) if isinstance(value, Unit) else f"{_name(name)} = {attribute_text(value)}"


def string_text(data: bytes) -> str:
    """Return a text with quotes; what is not plain ASCII is written as the hex of its bytes."""
    return '"' + _ESCAPED.sub(lambda found: b"\\%02X" % found[0][0], data).decode("ascii") + '"'


def _name(name: str) -> str:
    return name if _BARE.fullmatch(name) else string_text(name.encode("utf-8", "surrogateescape"))


def _symbol(name: str) -> str:
    return f"@{_name(name)}"


def _element(kind: Tensor) -> str:
    assert isinstance(kind.element, Scalar)
    return kind.element.name


def _elements(dense: Dense) -> str:
    """Return what is between the brackets of a dense tensor."""
    shape = tuple(d or 0 for d in dense.type.shape or ())
    if dense.texts is not None:
        return _nested([string_text(t) for t in dense.texts], shape)
    name = _element(dense.type)
    kind = storage(name)
    assert kind is not None
    count = len(dense.data) // kind.itemsize
    readable = not name.startswith("complex") and (float_width(name) is None or name in ("f32", "f64"))
    if readable and (dense.splat or (count > LISTED and is_splat(dense.data, kind.itemsize))):
        return _numbers(dense.data[: kind.itemsize], name)[0]
    if name != "i1" and (not readable or count > LISTED):
        return f'"0x{dense.data.hex().upper()}"' if count else ""
    return _nested(_numbers(dense.data, name), shape)


def _numbers(data: bytes | memoryview, name: str) -> list[str]:
    kind = storage(name)
    assert kind is not None
    if name == "i1":
        return ["true" if value else "false" for value in bytes(data)]
    if float_width(name) is not None:
        size = kind.itemsize
        return [float_text(int.from_bytes(data[i : i + size], "little"), name) for i in range(0, len(data), size)]
    if name.startswith("complex"):
        part = name[8:-1]
        half = _numbers(data, part)
        return [f"({a},{b})" for a, b in zip(half[::2], half[1::2], strict=True)]
    return [str(value) for value in np.frombuffer(data, kind).tolist()]


def _nested(items: list[str], shape: tuple[int, ...]) -> str:
    """Return elements as nested lists of a shape.

    >>> _nested(["1", "2"], (2, 1)), _nested(["1"], ()), _nested([], (0, 3))
    ('[[1], [2]]', '1', '')
    """
    if not items:
        return ""
    for size in reversed(shape):
        items = [f"[{', '.join(items[i : i + size])}]" for i in range(0, len(items), size)]
    return items[0]
