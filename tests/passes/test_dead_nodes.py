"""Nodes that nothing reads are removed, with what only their branches and bodies read."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.edit import remove_dead_nodes


def value(name: str, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    return ir.val(name, dtype, [2])


def branch(read: ir.Value, name: str) -> ir.Graph:
    op = Builder(18, prefix=f"{name}/")
    return ir.Graph([], [op.Neg(read)], nodes=op.nodes, name=name)


def operators(graph: ir.Graph) -> list[str]:
    return [node.op_type for node in graph]


def test_what_only_a_dead_if_reads_is_dead() -> None:
    x, c, op = value("x"), value("c", ir.DataType.BOOL), Builder(18)
    read = op.Exp(op.Abs(x))
    op.If(c, then_branch=branch(read, "then"), else_branch=branch(x, "else"))
    graph = ir.Graph([x, c], [op.Relu(x)], nodes=op.nodes)

    count = remove_dead_nodes(graph)

    assert count == 3
    assert operators(graph) == ["Relu"]
    assert [use.node.op_type for use in x.uses()] == ["Relu"]


def test_at_any_depth() -> None:
    x, c, op, inner = value("x"), value("c", ir.DataType.BOOL), Builder(18), Builder(18, prefix="inner/")
    read = op.Exp(x)
    nested = inner.If(c, then_branch=branch(read, "then"), else_branch=branch(x, "else"))
    body = ir.Graph([], [nested], nodes=inner.nodes, name="body")
    op.If(c, then_branch=body, else_branch=branch(x, "other"))
    graph = ir.Graph([x, c], [op.Relu(x)], nodes=op.nodes)

    remove_dead_nodes(graph)

    assert operators(graph) == ["Relu"]


def test_what_a_used_if_reads_stays() -> None:
    x, c, op = value("x"), value("c", ir.DataType.BOOL), Builder(18)
    read = op.Exp(x)
    used = op.If(c, then_branch=branch(read, "then"), else_branch=branch(x, "else"))
    op.If(c, then_branch=branch(read, "unused"), else_branch=branch(x, "unused too"))
    graph = ir.Graph([x, c], [used], nodes=op.nodes)

    assert remove_dead_nodes(graph) == 1

    assert operators(graph) == ["Exp", "If"]
    assert [use.node.op_type for use in read.uses()] == ["Neg"]


def test_a_branch_that_a_used_if_shares_with_a_dead_one_keeps_its_inputs() -> None:
    x, c, op = value("x"), value("c", ir.DataType.BOOL), Builder(18)
    read = op.Exp(x)
    shared = branch(read, "shared")
    used = op.If(c, then_branch=shared, else_branch=branch(x, "else"))
    op.If(c, then_branch=shared, else_branch=branch(x, "unused"))
    graph = ir.Graph([x, c], [used], nodes=op.nodes)

    remove_dead_nodes(graph)

    assert operators(graph) == ["Exp", "If"]
    assert [node.inputs[0] for node in shared] == [read]


def test_only_candidates_are_removed() -> None:
    x, c, op = value("x"), value("c", ir.DataType.BOOL), Builder(18)
    read = op.Exp(x)
    op.If(c, then_branch=branch(read, "then"), else_branch=branch(x, "else"))
    graph = ir.Graph([x, c], [op.Relu(x)], nodes=op.nodes)

    assert remove_dead_nodes(graph, [read.producer()]) == 0

    assert operators(graph) == ["Exp", "If", "Relu"]
