"""`gradient`, `vjp`, `jvp` and `lower_gradients`: derivatives of any ONNX model as plain ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import onnx
import onnx_ir as ir

from onward.autodiff import rules as rules  # importing the package registers every rule
from onward.autodiff.engine import Backward, zeros
from onward.autodiff.lowering import D100, D101, Scope, lower_model, prepare_slice
from onward.errors import A101, ArgumentError, Diagnostic, NotDifferentiable
from onward.model import graphs, serde
from onward.model.builder import Names, Value
from onward.model.schema import WORKING_OPSET
from onward.model.serde import Source
from onward.model.training_model import FLOAT_TYPES, TrainingModel


@overload
def lower_gradients(model: TrainingModel) -> TrainingModel: ...
@overload
def lower_gradients(model: str | bytes | onnx.ModelProto) -> onnx.ModelProto: ...
def lower_gradients(model: Source) -> TrainingModel | onnx.ModelProto:
    """Return `model` with every `Gradient` node replaced by plain operators; the argument is left as it was.

    Gradient nodes in the graph, in training graphs, in the bodies of If, Loop and Scan and in functions are all
    lowered; the outputs keep their names. A `TrainingModel` gives a `TrainingModel`, all else a `ModelProto`.

    Raises:
        NotDifferentiable: listing every blocking node, not only the first.
    """
    lowered = _working_copy(model)
    lower_model(lowered.ir, [e.algorithm for e in lowered.entries if e.algorithm is not None])
    return lowered if isinstance(model, TrainingModel) else lowered.proto()


def gradient(model: Source, of: str, wrt: Sequence[str] | str) -> onnx.ModelProto:
    """Return `model` with the further outputs `grad/<name>`: the derivative of `of` by each name in `wrt`.

    `of` and `wrt` may be inputs, initializers or intermediate values. A non-scalar `of` means the sum of its
    elements. `grad/<name>` has the shape and type of `<name>`; it is zeros where `of` does not depend on it. Where the
    model has a `grad/<name>` already (a second derivative), the new one is `grad/<name>_2`.

    >>> from onnx import parser
    >>> net = parser.parse_model('''
    ...     <ir_version: 10, opset_import: ["" : 18]>
    ...     net (float[N] x) => (float[N] y) { y = Mul(x, x) }''')
    >>> [o.name for o in gradient(net, of="y", wrt=["x"]).graph.output]
    ['y', 'grad/x']

    Raises:
        NotDifferentiable: a name is unknown or not floating point, or nodes on the way have no gradient: all listed.
    """
    return _differentiate(model, of, [wrt] if isinstance(wrt, str) else list(wrt))


def vjp(model: Source, of: str, wrt: Sequence[str] | str) -> onnx.ModelProto:
    """Return `model` with an input `cotangent/<of>` and outputs `grad/<name>`: cotangent times Jacobian."""
    return _differentiate(model, of, [wrt] if isinstance(wrt, str) else list(wrt), cotangent=True)


def jvp(model: Source, of: str, wrt: Sequence[str] | str) -> onnx.ModelProto:
    """Return `model` with inputs `tangent/<name>` and the output `tangent/<of>`: Jacobian times tangent.

    Built from the same reverse rules: the vjp is linear in its cotangent u, and the derivative of its product with
    the tangents by u is the jvp. Nodes that only served u are removed.
    """
    names = [wrt] if isinstance(wrt, str) else list(wrt)
    lowered = _working_copy(model)
    scope, (target, sources) = _prepare(lowered, of, names)
    cotangent = graphs.copy_value(target, scope.names.unique(f"cotangent/{of}"))
    backward = Backward(scope.opset, scope.names)
    grads = backward.run(target, sources, prepare_slice(target, sources, [], scope), seed=cotangent)
    op = backward.op
    graph = lowered.graph
    total: Value | None = None
    tangents: list[Value] = []
    for name, source, grad in zip(names, sources, grads, strict=True):
        tangent = graphs.copy_value(source, f"tangent/{name}")
        tangent.const_value = None
        tangents.append(tangent)
        if grad is not None:
            product = op.ReduceSum(op.Mul(grad, tangent), keepdims=0)
            total = product if total is None else op.Add(total, product)
    cotangent.const_value = None
    graph.inputs.extend([*tangents, cotangent])
    graph.extend(op.nodes)
    if total is None:
        second = Backward(scope.opset, scope.names)
        result = zeros(second.op, target)
        graph.extend(second.op.nodes)
    else:
        graphs.infer_shapes(lowered.ir)
        second = Backward(scope.opset, scope.names)
        (found,) = second.run(total, [cotangent], prepare_slice(total, [cotangent], [], scope))
        result = found if found is not None else zeros(second.op, target)
        graph.extend(second.op.nodes)
    _add_output(graph, result, f"tangent/{of}", target, scope)
    graphs.remove_dead_nodes(graph)
    if cotangent.uses():
        # Only shapes are read from the cotangent: take them from the target itself.
        cotangent.replace_all_uses_with(target)
    graph.inputs.remove(cotangent)
    return lowered.proto()


def _working_copy(model: Source) -> TrainingModel:
    proto = serde.read_proto(model)
    copied = serde.from_proto(proto)
    if copied.opset < WORKING_OPSET:
        from onward.upgrade import to_working_opset

        copied = to_working_opset(copied)
    return copied


def _prepare(model: TrainingModel, of: str, wrt: Sequence[str]) -> tuple[Scope, tuple[Value, list[Value]]]:
    graph = model.graph
    if not wrt:
        raise ArgumentError(Diagnostic(A101, "`wrt` is empty", needed="at least one name to differentiate by"))
    lower_model(model.ir)
    graphs.infer_shapes(model.ir)
    names = Names(graphs.all_names(graph))
    scope = Scope([graph], model.opset, names, model.ir.functions, lambda: graphs.infer_shapes(model.ir))
    problems: list[Diagnostic] = []
    found: list[Value] = []
    for argument, name in [("of", of), *(("wrt", n) for n in wrt)]:
        value = scope.find(name)
        if value is None:
            problems.append(_unknown(argument, name, scope))
        elif value.dtype not in FLOAT_TYPES:
            problems.append(
                Diagnostic(
                    D101,
                    f"`{argument}` names `{name}`, which is not a floating-point tensor",
                    found=str(value.type),
                    needed="float16, bfloat16, float or double",
                )
            )
        else:
            found.append(value)
    if problems:
        raise NotDifferentiable(problems)
    return scope, (found[0], found[1:])


def _unknown(argument: str, name: str, scope: Scope) -> Diagnostic:
    import difflib

    reach = scope.names_in_reach()
    near = difflib.get_close_matches(name, reach, n=3, cutoff=0.4)
    return Diagnostic(
        D100,
        f"`{argument}` names `{name}`, which is no tensor of the graph",
        needed="an input, an initializer or a node's output",
        hint=f"did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else f"there are: {', '.join(reach[:20])}",
    )


def _differentiate(model: Source, of: str, wrt: list[str], *, cotangent: bool = False) -> onnx.ModelProto:
    lowered = _working_copy(model)
    scope, (target, sources) = _prepare(lowered, of, wrt)
    graph = lowered.graph
    seed = None
    if cotangent:
        seed = graphs.copy_value(target, f"cotangent/{of}")
        seed.const_value = None
        graph.inputs.append(seed)
    part = prepare_slice(target, sources, [], scope)
    target = scope.find(of) or target
    backward = Backward(scope.opset, scope.names)
    grads = backward.run(target, sources, part, seed=seed)
    results = [g if g is not None else zeros(backward.op, s) for g, s in zip(grads, sources, strict=True)]
    graph.extend(backward.op.nodes)
    for name, source, result in zip(wrt, sources, results, strict=True):
        _add_output(graph, result, f"grad/{name}", source, scope)
    graphs.remove_dead_nodes(graph, backward.op.nodes)
    graphs.infer_shapes(lowered.ir)
    return lowered.proto()


def _add_output(graph: ir.Graph, value: Value, name: str, like: Value, scope: Scope) -> None:
    """Make `value` an output called `name`; a value that has another role is handed on by an Identity."""
    producer = value.producer()
    if producer is None or value.is_graph_output() or producer.op_type == "Constant":
        node = ir.Node("", "Identity", [value], num_outputs=1, name=scope.names.unique(f"{name}/Identity"))
        graph.append(node)
        value = node.outputs[0]
    value.name = scope.names.unique(name)
    value.type, value.shape = like.type, like.shape
    graph.outputs.append(value)
