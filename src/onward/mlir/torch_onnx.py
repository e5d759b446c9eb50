"""The form of ONNX that torch-mlir and IREE read, and back: `torch.operator "onnx.Add"` on `!torch.vtensor` values.

It is made from the module of `exporting` and becomes such a module again. It has no names of values, no training
entries and no model-local functions, so it is not lossless.
"""

from __future__ import annotations

import dataclasses
import re

import onnx

from onward.errors import Diagnostic, ModelError
from onward.mlir import dialect
from onward.mlir.dialect import M132
from onward.mlir.messages import refuse
from onward.mlir.numbers import integer_width
from onward.mlir.syntax import (
    NONE,
    Array,
    Attribute,
    Dense,
    Dialect,
    Dictionary,
    Function,
    Integer,
    Module,
    Operation,
    Region,
    Resource,
    Scalar,
    String,
    Tensor,
    Type,
    TypeAttribute,
    text,
)
from onward.mlir.types import element_number

OPERATOR = "torch.operator"
PREFIX = "torch.onnx."
_META = "torch.onnx_meta."
_FOREIGN = frozenset({"si2", "ui2", "f4E2M1FN", "f6E2M3FN", "f6E3M2FN", "f8E8M0FNU"})  # which torch-mlir has not
_STRING = Dialect("onnx.String")
_VTENSOR = re.compile(r"(\*|\[[0-9?, ]*\]),\s*([\w.!<>]+)")


# -- from the dialect `onnx` -----------------------------------------------------------------------------------


def to_torch(module: Module, proto: onnx.ModelProto) -> Module:
    """Return a module for IREE and torch-mlir from one of the dialect `onnx`, whose resources it shares.

    Raises:
        ModelError: lists the values whose types are not known, which this form needs.
    """
    made = Module(resources=module.resources)
    (function,) = module.functions()
    writer = _Writer()
    region = writer.region(function.regions[0], "func.return")
    kind = function.attributes["function_type"]
    assert isinstance(kind, TypeAttribute)
    assert isinstance(kind.type, Function)
    signature = Function(
        tuple(writer.type(t, "an input") for t in kind.type.inputs),
        tuple(writer.type(t, "an output") for t in kind.type.results),
    )
    if writer.problems:
        raise ModelError(writer.problems)
    name = proto.graph.name if re.fullmatch(r"[A-Za-z_]\w*", proto.graph.name) else "main_graph"
    made.operations.append(
        Operation(
            "func.func",
            attributes={"sym_name": text(name), "function_type": TypeAttribute(signature), **_meta(proto)},
            regions=[region],
        )
    )
    return made


def _meta(proto: onnx.ModelProto) -> dict[str, Attribute]:
    versions = {o.domain if o.domain != "ai.onnx" else "": Integer(o.version, "si64") for o in proto.opset_import}
    meta: dict[str, Attribute] = {f"{_META}ir_version": Integer(proto.ir_version, "si64")}
    if "" in versions:
        meta[f"{_META}opset_version"] = versions.pop("")
    if versions:
        meta[f"{_META}opset_versions"] = Dictionary(dict(versions))
    for field in ("producer_name", "producer_version"):
        meta[_META + field] = text(getattr(proto, field))
    return meta


class _Writer:
    def __init__(self) -> None:
        self.problems: list[Diagnostic] = []

    def region(self, region: Region, end: str) -> Region:
        made = Region([(name, self.type(kind, f"`%{name}`")) for name, kind in region.arguments])
        for operation in region.operations:
            made.operations.append(self._operation(operation, end))
        return made

    def _operation(self, old: Operation, end: str) -> Operation:
        if old.name == dialect.NO_VALUE:
            return Operation("torch.constant.none", results=old.results, result_types=[Dialect("torch.none")])
        new = Operation(
            end if old.name in (*dialect.RETURNS, *dialect.YIELDS) else OPERATOR,
            list(old.operands),
            list(old.results),
            operand_types=[self.type(t, f"`%{o}`") for t, o in zip(old.operand_types, old.operands, strict=True)],
            result_types=[self.type(t, f"`%{r}`") for t, r in zip(old.result_types, old.results, strict=True)],
        )
        if new.name == end:
            return new
        kept = old.attributes.get("onward.inputs")
        count = kept.value if isinstance(kept, Integer) else 0
        none = Dialect("torch.none")
        while len(new.operands) > count and new.operand_types[-1] == none:  # what the schema has beyond the node
            new.operands.pop()
            new.operand_types.pop()
        while new.result_types and new.result_types[-1] == none:
            new.results.pop()
            new.result_types.pop()
        operator = dialect.operator_of(old.name.removeprefix(dialect.PREFIX))[0]
        if old.name == dialect.CUSTOM:
            operator = getattr(old.attributes["function_name"], "text", "")
        new.attributes["name"] = text(dialect.PREFIX + operator)
        for name, value in old.attributes.items():
            if name.startswith("onward.") or name in ("onnx_node_name", "domain_name", "function_name"):
                continue
            new.attributes[PREFIX + name] = self._attribute(value)
        regions = [self.region(region, "torch.operator_terminator") for region in old.regions]
        names = dialect.REGIONS.get(operator, ())
        if len(names) == len(regions):  # here they are in the order of their names
            regions = [regions[names.index(name)] for name in sorted(names)]
        new.regions = regions
        return new

    def _attribute(self, value: Attribute) -> Attribute:
        if isinstance(value, Integer):
            return Integer(value.value, "si64")
        if isinstance(value, Array):
            return Array(tuple(self._attribute(item) for item in value.items))
        if isinstance(value, TypeAttribute) and isinstance(value.type, Scalar | Dialect):
            return Integer(element_number(value.type, ""), "si64")
        if isinstance(value, Dense | Resource):
            element = value.type.element
            kind = Tensor(value.type.shape, _signed(element))
            return dataclasses.replace(value, type=kind)
        return value

    def type(self, kind: Type, what: str) -> Type:
        """Return the type in torch-mlir; what it has none for is reported."""
        if kind == NONE:
            return Dialect("torch.none")
        inner = _torch_text(kind)
        if inner is None:
            problem = Diagnostic(
                M132,
                f"the type of {what} is not known, or torch-mlir has none for it",
                hint="give the inputs of the model types and shapes, or use the dialect `onnx`",
            )
            if problem not in self.problems:
                self.problems.append(problem)
            return Dialect("torch.none")
        name, _, rest = inner.partition("<")
        return Dialect(f"torch.{name}", text=rest[:-1])


def _signed(element: Type) -> Type:
    """Return an element type as torch-mlir has it: signed integers say so."""
    if isinstance(element, Scalar) and re.fullmatch(r"i(?!1$)\d+", element.name):
        return Scalar(f"s{element.name}")
    return element


def _torch_text(kind: Type) -> str | None:
    """Return a type without `!torch.`; None if there is none."""
    if isinstance(kind, Tensor):
        element = _signed(kind.element)
        if element.name in _FOREIGN if isinstance(element, Scalar) else element != _STRING:
            return None
        name = element.name if isinstance(element, Scalar) else "!torch.str"
        sizes = "*" if kind.shape is None else f"[{','.join('?' if d is None else str(d) for d in kind.shape)}]"
        return f"vtensor<{sizes},{name}>"
    if isinstance(kind, Dialect) and kind.of and kind.name in ("onnx.Seq", "onnx.Opt"):
        inner = _torch_text(kind.of[0])
        return None if inner is None else f"{'list' if kind.name == 'onnx.Seq' else 'optional'}<{inner}>"
    return None


# -- back to the dialect `onnx` --------------------------------------------------------------------------------


def is_torch(module: Module) -> bool:
    """Return whether a module is in the form of torch-mlir."""
    return any(name.startswith(_META) for f in module.functions() for name in f.attributes)


def from_torch(module: Module) -> Module:
    """Return a module of the dialect `onnx` from one for IREE and torch-mlir: values get the names of the text.

    Raises:
        ModelError: the module has something else than ONNX operators.
    """
    made = Module(resources=module.resources)
    for function in module.functions():
        region = _region_back(function.regions[0]) if function.regions else Region()
        attributes = {k: v for k, v in function.attributes.items() if not k.startswith(_META)}
        kind = function.attributes.get("function_type")
        if isinstance(kind, TypeAttribute) and isinstance(kind.type, Function):
            inputs, results = (tuple(_type_back(t) for t in part) for part in (kind.type.inputs, kind.type.results))
            attributes["function_type"] = TypeAttribute(Function(inputs, results))
        made.operations.append(dataclasses.replace(function, attributes=attributes, regions=[region]))
        made.attributes["onward.model"] = _model(function)
    return made


def _model(function: Operation) -> Dictionary:
    """Return the versions that a function of this form states."""
    found = {k.removeprefix(_META): v for k, v in function.attributes.items() if k.startswith(_META)}
    opsets: dict[str, Attribute] = {"": found.pop("opset_version")} if "opset_version" in found else {}
    others = found.pop("opset_versions", None)
    opsets |= others.items if isinstance(others, Dictionary) else {}
    imports = [Dictionary({"domain": text(domain), "version": version}) for domain, version in opsets.items()]
    return Dictionary({**found, "opset_import": Array(tuple(imports))})


def _region_back(region: Region) -> Region:
    made = Region([(name, _type_back(kind)) for name, kind in region.arguments])
    made.operations = [_operation_back(operation) for operation in region.operations]
    return made


def _operation_back(old: Operation) -> Operation:
    operands, results = ([_type_back(t) for t in part] for part in (old.operand_types, old.result_types))
    new = dataclasses.replace(old, operand_types=operands, result_types=results)
    if old.name != OPERATOR:
        return new
    place = f"line {old.line}"
    name = old.attributes.get("name")
    operator = name.data.decode("utf-8", "replace") if isinstance(name, String) else ""
    if not operator.startswith(dialect.PREFIX) or "\ufffd" in operator:
        refuse(f"`{operator[:60]}` is no operator of ONNX", place=place)
    new.name = operator
    new.attributes = {}
    for key, value in old.attributes.items():
        if key.startswith(PREFIX):
            new.attributes[key.removeprefix(PREFIX)] = _attribute_back(value)
    if dialect.domain_of(operator.removeprefix(dialect.PREFIX)) is None:  # this form drops the domain
        new.name = dialect.CUSTOM
        new.attributes |= {
            "domain_name": text("com.microsoft"),
            "function_name": text(operator.removeprefix(dialect.PREFIX)),
        }
    new.regions = [_region_back(region) for region in old.regions]
    regions = dialect.REGIONS.get(operator.removeprefix(dialect.PREFIX), ())
    if len(regions) == len(new.regions) > 1:  # this form has them in the order of their names
        order = sorted(regions)
        new.regions = [new.regions[order.index(name)] for name in regions]
    return new


def _attribute_back(value: Attribute) -> Attribute:
    if isinstance(value, Array):
        return Array(tuple(_attribute_back(item) for item in value.items))
    if isinstance(value, Dense | Resource):
        return dataclasses.replace(value, type=Tensor(value.type.shape, _unsigned(value.type.element)))
    return value


def _unsigned(element: Type) -> Type:
    if isinstance(element, Scalar) and integer_width(element.name) and element.name.startswith("s"):
        return Scalar(element.name[1:])
    return element


def _type_back(kind: Type) -> Type:
    """Return a type of torch-mlir as one of the dialect `onnx`."""
    if not isinstance(kind, Dialect) or not kind.name.startswith("torch."):
        return kind
    if kind.name == "torch.none":
        return NONE
    return _read_type(f"{kind.name.removeprefix('torch.')}<{kind.text}>")


def _read_type(written: str) -> Type:
    name, _, rest = written.strip().removeprefix("!torch.").partition("<")
    inner = rest[:-1]
    if name == "vtensor":
        found = _VTENSOR.fullmatch(inner.strip())
        if found is not None:
            listed = found[1].strip("[] ")
            sizes = None if found[1] == "*" else [s.strip() for s in listed.split(",")] if listed else []
            if sizes is None or all(s == "?" or (s.isdigit() and len(s) < 19) for s in sizes):
                shape = None if sizes is None else tuple(None if s == "?" else int(s) for s in sizes)
                return Tensor(shape, _STRING if found[2] == "!torch.str" else _unsigned(Scalar(found[2])))
    elif name in ("list", "optional") and inner.count("<") < 8:
        return Dialect("onnx.Seq" if name == "list" else "onnx.Opt", (_read_type(inner),))
    refuse("ONNX has no such type", found=f"`!torch.{written[:60]}`")
