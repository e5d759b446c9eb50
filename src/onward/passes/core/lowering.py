"""`LowerToCore`: the pass that leaves only core operators."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import onnx_ir as ir

from onward.autodiff.emit import Emitter
from onward.autodiff.function_bodies import inline_call, standard_body
from onward.autodiff.problems import Unsupported
from onward.errors import Diagnostic, ModelError, named_node
from onward.graph import edit, shapes, walk
from onward.passes.base import INLINED, NO_GRADIENTS, NO_OPTIMIZERS, Fact, Pass, Unit
from onward.passes.core.operators import CANNOT, is_core
from onward.passes.core.registry import Lowering, table

M304 = "M304"
_MOST_ROUNDS = 40

ONLY_CORE = Fact("only core operators", lambda unit: all(is_core(n) for n in walk.all_nodes(unit.graph)))


@dataclasses.dataclass
class Record:
    """What the pass did: the operators that one node of each became, in one step."""

    direct: dict[str, Counter[str]] = dataclasses.field(default_factory=dict)


class LowerToCore(Pass):
    """Replace every node that is not a core operator by its decomposition, until only core operators are left.

    Raises:
        ModelError: lists every node that has no decomposition, with the reason.
    """

    requires = (INLINED, NO_GRADIENTS, NO_OPTIMIZERS)
    ensures: ClassVar[tuple[Fact, ...]] = (ONLY_CORE,)

    def __init__(self, record: Record | None = None) -> None:
        self._record = record

    def leaves(self, node: ir.Node) -> bool:
        """Return whether a node may stay."""
        return is_core(node)

    def run(self, unit: Unit) -> bool:
        changed = False
        for _ in range(_MOST_ROUNDS):
            found = [n for n in walk.all_nodes(unit.graph) if not self.leaves(n)]
            if not found:
                return changed
            shapes.infer_shapes(unit.model)
            problems: list[Diagnostic] = []
            inside: set[ir.Node] = set()  # of nodes that were replaced, with their bodies
            for node in found:
                if node in inside:
                    continue
                held = _inside(node)
                problem = self._lower(node, unit)
                if problem is not None:
                    problems.append(problem)
                    continue
                inside.update(held)
                edit.forget(held)
            if len(problems) == len(found):  # otherwise the next round may know more types and shapes
                raise ModelError(problems)
            edit.remove_dead_nodes(unit.graph)
            changed = True
        raise AssertionError(f"decompositions do not end: {sorted({n.op_type for n in found})}")

    def _lower(self, node: ir.Node, unit: Unit) -> Diagnostic | None:
        """Replace one node; return what prevents it."""
        made = table().get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if made is None and node.domain not in ("", "ai.onnx"):
            body = standard_body(node, unit.opset)
            if body is not None:  # a function of ai.onnx.preview
                inline_call(node, body, unit.names)
                return None
        if made is None:
            domain = f" of domain `{node.domain}`" if node.domain not in ("", "ai.onnx") else ""
            why = "it is not an operator of ai.onnx" if domain else CANNOT.get(node.op_type, "it has no decomposition")
            return _problem(node, f"`{node.op_type}`{domain} is no core operator and cannot be written with them", why)
        if made.function is None:
            body = standard_body(node, unit.opset)
            if body is None:
                why = "the standard has no body for it at this opset, or its inputs have no types and shapes"
                return _problem(node, f"`{node.op_type}` cannot be written with core operators here", why)
            self._note(node.op_type, [n.op_type for n in walk.all_nodes(body)])
            inline_call(node, body, unit.names)
            return None
        op = Emitter(unit.opset, unit.names, prefix=f"{node.name or node.op_type}/")
        try:
            result = made.function(Lowering(node, op))
        except Unsupported as error:
            edit.forget(op.nodes)
            return _problem(node, f"`{node.op_type}` cannot be written with core operators here", str(error))
        outputs = [result] if isinstance(result, ir.Value) else list(result)
        self._note(node.op_type, [inner.op_type for n in op.nodes for inner in (n, *_inside(n))])
        replace_node(node, op, outputs)
        return None

    def _note(self, op_type: str, made: list[str]) -> None:
        if self._record is not None:
            counts = Counter(made)
            known = self._record.direct.setdefault(op_type, counts)
            for name, number in counts.items():
                known[name] = max(known[name], number)


class DecomposeSome(LowerToCore):
    """Replace the nodes that `unwanted` names by their decompositions, and no others.

    Raises:
        ModelError: as `LowerToCore`.
    """

    ensures = ()

    def __init__(self, unwanted: Callable[[ir.Node], bool]) -> None:
        super().__init__()
        self._unwanted = unwanted

    def leaves(self, node: ir.Node) -> bool:
        return not self._unwanted(node)


def _inside(node: ir.Node) -> list[ir.Node]:
    return [n for graph in walk.subgraphs(node) for n in walk.all_nodes(graph)]


def _problem(node: ir.Node, message: str, why: str) -> Diagnostic:
    return Diagnostic(
        M304,
        message,
        place=named_node(node),
        found=why,
        hint="compile without core=True, or replace the node; docs/core_operators.md lists what each operator becomes",
    )


def replace_node(node: ir.Node, op: Emitter, outputs: list[ir.Value | None]) -> None:
    """Replace `node` by the nodes of `op`; outputs that the node does not have are left out."""
    graph = node.graph
    assert graph is not None
    made = set(op.nodes)
    finals: list[ir.Value | None] = []
    for old, new in zip(node.outputs, outputs, strict=False):
        if not old.name and not old.uses():
            finals.append(None)
            continue
        assert new is not None, f"{node.op_type} lacks an output"
        producer = new.producer()
        if producer not in made or producer.op_type == "Constant" or new in finals:
            new = op.Identity(new)
        finals.append(new)
    graph.insert_before(node, op.nodes)
    for old, new in zip(node.outputs, finals, strict=False):
        if new is not None:
            edit.take_place(old, new)
    graph.remove(node, safe=True)
