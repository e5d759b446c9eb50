"""`gradient`, `vjp`, `jvp` and `lower_gradients`: derivatives of any ONNX model as plain ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import onnx
import onnx_ir as ir

from onward.arguments import check_name
from onward.autodiff.engine import Backward, zeros
from onward.autodiff.gradient_functions import outline
from onward.autodiff.lowering import prepare_slice
from onward.autodiff.profile import DEFAULT, PORTABLE, PROFILES, current, lowering_for
from onward.autodiff.scope import Scope
from onward.errors import A101, ArgumentError, Diagnostic, NotDifferentiable
from onward.graph import edit, shapes, walk
from onward.graph.builder import Names, Value
from onward.model.serde import Source
from onward.model.training_model import TrainingModel
from onward.passes.base import NO_GRADIENTS, Unit, collector_paused, run_passes
from onward.passes.gradients import LowerGradients
from onward.passes.pads import PadEveryAxis
from onward.passes.portable.rewrites import AvoidDenied
from onward.passes.scatter import ScatterInFloat32
from onward.upgrade import normalise


@overload
def lower_gradients(model: TrainingModel) -> TrainingModel: ...
@overload
def lower_gradients(model: str | bytes | onnx.ModelProto) -> onnx.ModelProto: ...
def lower_gradients(model: Source) -> TrainingModel | onnx.ModelProto:
    """Return `model` with every `Gradient` node replaced by plain operators; `model` itself does not change.

    Gradient nodes in the graph, in training graphs, in the bodies of If, Loop and Scan and in functions are all
    lowered; the outputs keep their names. A `TrainingModel` gives a `TrainingModel`, anything else a `ModelProto`.

    Raises:
        NotDifferentiable: listing every blocking node, not only the first.
    """
    with collector_paused():
        lowered = normalise(model, copy=True)
        LowerGradients()(Unit(lowered, name="lower_gradients"))
        return lowered if isinstance(model, TrainingModel) else lowered.proto()


def gradient(
    model: Source, of: str, wrt: Sequence[str] | str, *, functions: bool = False, profile: str = DEFAULT
) -> onnx.ModelProto:
    """Return `model` with further outputs `grad/<name>`: the derivative of `of` with respect to each name in `wrt`.

    `of` and `wrt` may be inputs, initializers or intermediate values. A non-scalar `of` means the sum of its
    elements. `grad/<name>` has the shape and type of `<name>`; it is zeros where `of` does not depend on it. Where the
    model has a `grad/<name>` already (a second derivative), the new one is `grad/<name>_2`.

    >>> from onnx import parser
    >>> net = parser.parse_model('''
    ...     <ir_version: 10, opset_import: ["" : 18]>
    ...     net (float[N] x) => (float[N] y) { y = Mul(x, x) }''')
    >>> [o.name for o in gradient(net, of="y", wrt=["x"]).graph.output]
    ['y', 'grad/x']

    With `functions`, the backward of each node is one node, `grad/<its name>`, which calls a function of the model.
    Nodes with the same backward share a function. The results are the same and the graph is easier to read; runtimes
    inline the functions.

    >>> net.graph.node[0].op_type = "Sigmoid"
    >>> del net.graph.node[0].input[1]
    >>> [n.op_type for n in gradient(net, of="y", wrt=["x"], functions=True).graph.node]
    ['Sigmoid', 'Shape', 'ConstantOfShape', 'SigmoidGradient']

    `profile` is that of `onward.compile`: "portable" avoids what some runtimes get wrong (docs/portable.md).

    Raises:
        NotDifferentiable: a name is unknown or not floating point, or nodes on the way have no gradient: all listed.
    """
    check_name("profile", profile, PROFILES)
    with collector_paused(), lowering_for(profile):
        return _differentiate(model, of, wrt, functions=functions)


def vjp(model: Source, of: str, wrt: Sequence[str] | str) -> onnx.ModelProto:
    """Return `model` with an input `cotangent/<of>` and outputs `grad/<name>`: cotangent times Jacobian."""
    with collector_paused():
        return _differentiate(model, of, wrt, cotangent=True)


def jvp(model: Source, of: str, wrt: Sequence[str] | str) -> onnx.ModelProto:
    """Return `model` with inputs `tangent/<name>` and the output `tangent/<of>`: Jacobian times tangent.

    It is built from the same reverse rules. The vjp is linear in its cotangent u; the derivative, with respect to u, of
    its product with the tangents is the jvp. Nodes that only u needs are removed.
    """
    with collector_paused():
        return _forward_mode(model, of, wrt)


def _forward_mode(model: Source, of: str, wrt: Sequence[str] | str) -> onnx.ModelProto:
    lowered, scope, target, sources = _prepare(model, of, wrt)
    graph = lowered.graph
    names = [v.name or "" for v in sources]
    cotangent = edit.copy_value(target, scope.names.unique(f"cotangent/{of}"))
    cotangent.const_value = None
    target, sources, part = prepare_slice(target, sources, [], scope)
    backward = Backward(scope.emitter())
    op = backward.op
    grads = backward.run(target, sources, part, seed=cotangent)
    products: list[Value] = []
    for name, source, grad in zip(names, sources, grads, strict=True):
        tangent = edit.copy_value(source, scope.names.unique(f"tangent/{name}"))
        tangent.const_value = None
        graph.inputs.append(tangent)
        if grad is not None:
            products.append(op.ReduceSum(op.Mul(grad, tangent), keepdims=0))
    graph.inputs.append(cotangent)
    result: Value | None = None
    if products:
        total = products[0] if len(products) == 1 else op.Sum(*products)
        total.shape = ir.Shape([])
        graph.extend(op.nodes)
        scope.infer()
        total, (cotangent,), part = prepare_slice(total, [cotangent], [], scope)
        backward = Backward(scope.emitter())
        (result,) = backward.run(total, [cotangent], part)
    if result is None:
        result = zeros(backward.op, target)
    graph.extend(backward.op.nodes)
    _add_output(graph, result, f"tangent/{of}", target, scope)
    edit.remove_dead_nodes(graph)
    if cotangent.uses():  # only its shape is read, which is the shape of the target
        cotangent.replace_all_uses_with(target)
    graph.inputs.remove(cotangent)
    run_passes((PadEveryAxis(), ScatterInFloat32()), Unit(lowered))
    return lowered.proto()


def _prepare(model: Source, of: str, wrt: Sequence[str] | str) -> tuple[TrainingModel, Scope, Value, list[Value]]:
    """Return a copy of the model, the scope of its values, the value `of` and the values `wrt`."""
    names = [wrt] if isinstance(wrt, str) else list(wrt)
    if not names:
        raise ArgumentError(Diagnostic(A101, "`wrt` is empty", needed="at least one name"))
    if len(set(names)) < len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise ArgumentError(Diagnostic(A101, f"`wrt` names `{twice[0]}` twice", needed="each name once"))
    lowered = normalise(model, copy=True)
    LowerGradients()(Unit(TrainingModel(lowered.ir), name="gradient", profile=current()))
    shapes.infer_shapes(lowered.ir)
    taken = Names(walk.all_names(lowered.graph))
    scope = Scope([lowered.graph], lowered.opset, taken, lowered.ir.functions, lambda: shapes.infer_shapes(lowered.ir))
    found = [scope.resolve(of, "`of`"), *(scope.resolve(n, "`wrt`") for n in names)]
    problems = [f for f in found if isinstance(f, Diagnostic)]
    if problems:
        raise NotDifferentiable(problems)
    target, *sources = (f for f in found if isinstance(f, ir.Value))
    return lowered, scope, target, sources


def _differentiate(
    model: Source, of: str, wrt: Sequence[str] | str, *, cotangent: bool = False, functions: bool = False
) -> onnx.ModelProto:
    lowered, scope, target, sources = _prepare(model, of, wrt)
    graph = lowered.graph
    names = [v.name or "" for v in sources]
    seed = None
    if cotangent:
        seed = edit.copy_value(target, scope.names.unique(f"cotangent/{of}"))
        seed.const_value = None
        graph.inputs.append(seed)
    target, sources, part = prepare_slice(target, sources, [], scope)
    backward = Backward(scope.emitter())
    grads = backward.run(target, sources, part, seed=seed)
    results = [g if g is not None else zeros(backward.op, s) for g, s in zip(grads, sources, strict=True)]
    graph.extend(backward.op.nodes)
    for name, source, result in zip(names, sources, results, strict=True):
        _add_output(graph, result, f"grad/{name}", source, scope)
    edit.remove_dead_nodes(graph, backward.op.nodes)
    if functions:
        outline(lowered.ir, backward.groups, backward.op.nodes, scope.names)
    passes = (PadEveryAxis(), ScatterInFloat32(), *((AvoidDenied(),) if current() == PORTABLE else ()))
    run_passes(passes, Unit(lowered, facts={NO_GRADIENTS}))
    return lowered.proto()


def _add_output(graph: ir.Graph, value: Value, name: str, like: Value, scope: Scope) -> None:
    """Make `value` an output called `name`, through an Identity if it has another role."""
    producer = value.producer()
    if producer is None or value.is_graph_output() or producer.op_type == "Constant":
        node = ir.Node("", "Identity", [value], num_outputs=1, name=scope.names.unique(f"{name}/Identity"))
        graph.append(node)
        value = node.outputs[0]
    value.name = scope.names.unique(name)
    value.type, value.shape = like.type, like.shape
    graph.outputs.append(value)
