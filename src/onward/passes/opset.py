"""Label graphs with the lowest valid opset and IR version, so that older runtimes load them."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onward.errors import A101, ArgumentError, Diagnostic, ModelError, named_node
from onward.graph import walk
from onward.graph.schema import WORKING_OPSET, Schema, attribute_default, schema
from onward.passes.base import INLINED, Pass, Unit

M302 = "M302"

# Versions at which the meaning of an operator changed, while names and types stayed the same.
_MEANING_CHANGED = {
    "GroupNormalization": [21],  # scale and bias per channel instead of per group
    "Resize": [19],  # rounding of half_pixel_symmetric and of keep_aspect_ratio_policy
    "AveragePool": [19],  # ceil_mode and count_include_pad
    "MaxPool": [22],
    "LpPool": [22],
    "DFT": [20],  # axis became an input
    "GridSample": [20],  # the modes were renamed
    "BatchNormalization": [14, 15],
    "Attention": [24],
    "Cast": [24],
    "CastLike": [24],
    "QuantizeLinear": [21],
    "DequantizeLinear": [21],
}


class LabelOpset(Pass):
    """Label a graph with the lowest opset and IR version that preserve its meaning, or with given ones.

    Raises:
        ModelError: lists every node that does not fit the target opset.
        ArgumentError: the target IR version is too low for the opset.
    """

    requires = (INLINED,)

    def __init__(self, target_opset: int | None = None, target_ir: int | None = None) -> None:
        self._target_opset, self._target_ir = target_opset, target_ir

    def run(self, unit: Unit) -> bool:
        model, before = unit.model, unit.opset
        opset = self._target_opset if self._target_opset is not None else lowest_opset(model, WORKING_OPSET)
        _label(model, opset)
        lowest = max(8, ir_version_of(opset))
        if self._target_ir is not None and self._target_ir < lowest:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"target IR version {self._target_ir} is too low",
                    needed=f"{lowest} or higher for opset {opset}",
                )
            )
        model.ir_version = lowest if self._target_ir is None else self._target_ir
        return opset != before


def _label(model: ir.Model, target: int) -> None:
    """Check that every node has the same meaning at opset `target`, and label `model` with it, in place."""
    current = model.opset_imports.get("", target)
    nodes = list(walk.all_nodes(model.graph))
    problems = [
        Diagnostic(
            M302,
            f"`{node.op_type}` does not fit opset {target}: {reason}",
            place=named_node(node),
            hint=f"use target_opset={current} or higher",
        )
        for node in (nodes if target != current else ())
        if (reason := _misfit(node, current, target))
    ]
    if problems:
        raise ModelError(problems)
    used = {n.domain for n in nodes}
    kept = {"": target, **{d: v for d, v in model.opset_imports.items() if d and d in used}}
    for imports in (model.opset_imports, model.graph.opset_imports):  # the model may be made of another graph's
        imports.clear()
        imports.update(kept)


def lowest_opset(model: ir.Model, floor: int) -> int:
    """Return the lowest opset, from `floor` on, that preserves the meaning of every node of `model`."""
    current = model.opset_imports.get("", floor)
    nodes = list(walk.all_nodes(model.graph))
    for target in range(min(floor, current), current):
        if not any(_misfit(n, current, target) for n in nodes):
            return target
    return current


def ir_version_of(opset: int) -> int:
    """Return the lowest IR version that admits `opset`."""
    return int(onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)], ignore_unknown=True))


def _misfit(node: ir.Node, current: int, target: int) -> str:
    """Return why `node` cannot be labelled with `target`, or "" if it can."""
    if node.domain not in ("", "ai.onnx"):
        return ""
    now, then = schema(node.op_type, "", current), schema(node.op_type, "", target)
    if now is None or (then is not None and then.since_version == now.since_version):
        return ""
    if then is None:
        return f"it was introduced in opset {now.since_version}"
    low, high = sorted((then.since_version, now.since_version))
    changed = [v for v in _MEANING_CHANGED.get(node.op_type, []) if low < v <= high]
    if changed:
        return f"its meaning changed in opset {changed[0]}"
    for name in node.attributes:
        if name not in then.attributes:
            return f"attribute `{name}` is newer"
    for name in then.attributes:
        if name not in node.attributes and name in now.attributes:
            before = attribute_default(node.op_type, "", target, name)
            if before != attribute_default(node.op_type, "", current, name):
                return f"the default of `{name}` differs"
    if now.input_names[: len(node.inputs)] != then.input_names[: len(node.inputs)] and not then.inputs[-1].variadic:
        return "its inputs differ"
    return _type_misfit(node, then)


def _type_misfit(node: ir.Node, then: Schema) -> str:
    for index, value in enumerate(node.inputs):
        if value is not None and value.dtype is not None and then.inputs:
            formal = then.input_at(index)
            name = f"tensor({_onnx_type_name(value.dtype)})"
            if formal.types and name not in formal.types and all(t.startswith("tensor(") for t in formal.types):
                return f"input `{formal.name}` cannot be {name}"
    return ""


def _onnx_type_name(dtype: ir.DataType) -> str:
    return dtype.name.lower()
