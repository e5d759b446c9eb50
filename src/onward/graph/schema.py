"""Read the schemas of operators; the only user of `onnx.defs`.

>>> schema("Gather", opset=13).input_names
('data', 'indices')
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import onnx
import onnx_ir as ir

TRAINING_DOMAIN = "ai.onnx.preview.training"
GRADIENT_DOMAIN = "onward.gradients"
"""Functions whose gradient is not that of their body (autodiff/rules/custom_gradients.py)."""

# Models of an older opset are converted to this one for training; gradient rules may use its operators.
WORKING_OPSET = 18

EXPERIMENTAL = frozenset({
    "Affine", "Crop", "DynamicSlice", "ImageScaler", "LayerNormalization", "MeanVarianceNormalization",
    "ParametricSoftplus", "Scale", "ScaledTanh", "SimplifiedLayerNormalization", "ThresholdedRelu",
})  # fmt: skip
"""What ONNX Runtime runs in the default domain at versions that do not have it.

Three are operators of a later version, whose meaning they have; upgrade/microsoft writes the others as plain ones."""


def newest_opset(domain: str = "") -> int:
    """Return the newest version of `domain` that the installed onnx package defines."""
    return int(onnx.defs.onnx_opset_version()) if domain == "" else _newest(domain)


@functools.cache
def _newest(domain: str) -> int:
    return max((s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain), default=1)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One formal input or output of an operator."""

    name: str
    type_variable: str  # such as "T", or a concrete type such as "tensor(int64)"
    types: frozenset[str]
    optional: bool
    variadic: bool
    homogeneous: bool
    differentiation: str  # the tag of the schema: Differentiable, NonDifferentiable or Unknown


@dataclasses.dataclass(frozen=True)
class Schema:
    """An operator at one version."""

    domain: str
    op_type: str
    since_version: int
    deprecated: bool
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    min_inputs: int
    max_inputs: int
    min_outputs: int
    max_outputs: int
    attributes: tuple[str, ...]
    required_attributes: tuple[str, ...]
    has_function: bool

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.outputs)

    def input_at(self, index: int) -> Parameter:
        """Return the formal parameter of actual input `index`; a variadic one stands for all that follow."""
        return self.inputs[min(index, len(self.inputs) - 1)]

    def output_at(self, index: int) -> Parameter:
        return self.outputs[min(index, len(self.outputs) - 1)]


def _parameter(formal: Any) -> Parameter:
    option = onnx.defs.OpSchema.FormalParameterOption
    return Parameter(
        formal.name,
        formal.type_str,
        frozenset(formal.types),
        formal.option == option.Optional,
        formal.option == option.Variadic,
        formal.is_homogeneous,
        formal.differentiation_category.name,
    )


def _convert(raw: Any) -> Schema:
    return Schema(
        raw.domain,
        raw.name,
        raw.since_version,
        raw.deprecated,
        tuple(_parameter(p) for p in raw.inputs),
        tuple(_parameter(p) for p in raw.outputs),
        raw.min_input,
        raw.max_input,
        raw.min_output,
        raw.max_output,
        tuple(sorted(raw.attributes)),
        tuple(sorted(name for name, a in raw.attributes.items() if a.required)),
        raw.has_function or raw.has_context_dependent_function,
    )


@functools.cache
def raw_schema(op_type: str, domain: str = "", opset: int | None = None) -> Any:
    """Return the `onnx.defs.OpSchema` of an operator at `opset` (the newest if None), or None if it has none."""
    domain = "" if domain == "ai.onnx" else domain
    try:
        if opset is None:
            return onnx.defs.get_schema(op_type, domain=domain)
        return onnx.defs.get_schema(op_type, max_inclusive_version=opset, domain=domain)
    except onnx.defs.SchemaError:
        return None


@functools.cache
def schema(op_type: str, domain: str = "", opset: int | None = None) -> Schema | None:
    """Return the schema of an operator at `opset` (the newest if None), or None if it has none.

    >>> schema("NoSuchOperator") is None
    True
    """
    raw = raw_schema(op_type, domain, opset)
    return None if raw is None else _convert(raw)


@functools.cache
def attribute_default(op_type: str, domain: str, opset: int, name: str) -> Any:
    """Return the default of an attribute as a plain Python value, or None if it has none."""
    raw = raw_schema(op_type, domain, opset)
    if raw is None or name not in raw.attributes:
        return None
    default = raw.attributes[name].default_value
    if not default.name and default.type == onnx.AttributeProto.UNDEFINED:
        return None
    value = onnx.helper.get_attribute_value(default)
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if not isinstance(value, int | float | str) else value


def all_schemas(domain: str = "") -> list[Schema]:
    """Return the newest version of every operator of `domain`, including deprecated ones."""
    return sorted(
        (_convert(s) for s in onnx.defs.get_all_schemas() if s.domain == domain),
        key=lambda s: s.op_type,
    )


def versions(op_type: str, domain: str = "") -> list[int]:
    """Return every version in which an operator was defined or changed."""
    return sorted(
        s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == op_type and s.domain == domain
    )


_TENSOR_TYPES = {
    "tensor(float)": ir.DataType.FLOAT,
    "tensor(double)": ir.DataType.DOUBLE,
    "tensor(float16)": ir.DataType.FLOAT16,
    "tensor(bfloat16)": ir.DataType.BFLOAT16,
    "tensor(bool)": ir.DataType.BOOL,
    "tensor(string)": ir.DataType.STRING,
    **{f"tensor({n})": getattr(ir.DataType, n.upper()) for n in
       ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
}  # fmt: skip


def concrete_type(parameter: Parameter) -> ir.DataType | None:
    """Return the element type of a parameter that accepts only one, else None."""
    if len(parameter.types) == 1:
        return _TENSOR_TYPES.get(next(iter(parameter.types)))
    return None
