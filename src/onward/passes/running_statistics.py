"""Protect running statistics from being overwritten too early."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph import walk
from onward.passes.base import Pass, Unit


class ProtectRunningStatistics(Pass):
    """Give every training BatchNormalization its own copy of the running statistics to overwrite.

    ONNX Runtime's CPU kernel declares Alias(3, 1) and Alias(4, 2): it writes the new statistics into the memory of the
    old ones, even where that is an input of the graph and other nodes still read it. Programs also run without our
    backend, so they contain the copies. Neg(Neg(x)) is an exact copy that no optimizer removes; optimizers remove
    Identity. ONNX Runtime merges equal copies, so further copies of the same value are scaled by a power of two and
    back, which is exact.
    """

    def run(self, unit: Unit) -> bool:
        copies: dict[ir.Value, int] = {}
        found = [n for n in walk.all_nodes(unit.graph) if _overwrites_its_inputs(n)]
        for node in found:
            op = unit.builder(f"{node.name or node.op_type}/")
            for position in (3, 4):
                old = node.inputs[position]
                assert old is not None
                number = copies[old] = copies.get(old, -1) + 1
                factor = float(2**number)
                copy = op.Neg(op.Neg(old)) if number == 0 else op.Div(op.Mul(old, factor), factor)
                copy.type, copy.shape = old.type, old.shape
                node.replace_input_with(position, copy)
            owner = node.graph
            assert owner is not None
            owner.insert_before(node, op.nodes)
        return bool(found)


def _overwrites_its_inputs(node: ir.Node) -> bool:
    return (
        node.op_type == "BatchNormalization"
        and node.domain in ("", "ai.onnx")
        and bool(node.attributes.get_int("training_mode", 0))
    )
