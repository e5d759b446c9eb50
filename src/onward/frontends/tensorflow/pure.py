"""Make a traced function of TensorFlow pure: variables and random numbers become arguments, assignments results.

A graph of TensorFlow reads and assigns variables through handles, in an order that control dependencies state. Here
the order is followed once: a read becomes the value at that point, an assignment changes what later reads get. What is
left is a graph without effects. tf2onnx can translate it and folds no weight into a constant, and TensorFlow can run
it, with chosen numbers in place of random ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onward.errors import ArgumentError, Diagnostic
from onward.frontends.tensorflow import versions
from onward.frontends.tensorflow.bodies import Bodies, is_control

A262 = "A262"
A264 = "A264"
A265 = "A265"

_DRAWS = {
    "RandomUniform": "uniform",
    "RandomStandardNormal": "normal",
    "StatelessRandomUniformV2": "uniform",
    "StatelessRandomNormalV2": "normal",
}
_OTHER_DRAWS = frozenset(
    {
        "TruncatedNormal", "ParameterizedTruncatedNormal", "RandomUniformInt", "RandomGamma", "RandomPoissonV2",
        "Multinomial", "RandomShuffle", "StatelessRandomUniform", "StatelessRandomNormal", "StatelessRandomUniformInt",
        "StatelessRandomUniformIntV2", "StatelessRandomUniformFullInt", "StatelessRandomUniformFullIntV2",
        "StatelessTruncatedNormal", "StatelessTruncatedNormalV2", "StatelessMultinomial", "StatelessRandomBinomial",
        "StatelessRandomPoisson", "StatelessRandomGammaV2", "StatelessRandomGammaV3", "StatefulUniform",
        "StatefulStandardNormalV2", "StatefulTruncatedNormal", "StatefulUniformInt", "StatefulUniformFullInt",
        "StatefulRandomBinomial", "StatelessShuffle",
    }
)  # fmt: skip
_IGNORED = frozenset({"NoOp", "Assert", "Print", "PrintV2", "CheckNumerics", "CheckNumericsV2"})
_SCATTERS = {
    "ResourceScatterAdd": "TensorScatterAdd",
    "ResourceScatterSub": "TensorScatterSub",
    "ResourceScatterUpdate": "TensorScatterUpdate",
    "ResourceScatterNdAdd": "TensorScatterAdd",
    "ResourceScatterNdSub": "TensorScatterSub",
    "ResourceScatterNdUpdate": "TensorScatterUpdate",
}


@dataclasses.dataclass(frozen=True)
class Draw:
    """Random numbers that are an argument now: its tensor, their distribution and type, and the tensor of the shape."""

    name: str
    kind: str
    dtype: Any
    shape: str


@dataclasses.dataclass
class Pure:
    """A graph without effects; everything in it is the name of a tensor.

    `variables` maps the variable's place in the list to its tensor, `changed` to that of its new value.
    """

    graph_def: Any
    inputs: list[str]
    variables: dict[int, str]
    outputs: list[str]
    changed: dict[int, str]
    draws: list[Draw]

    @property
    def arguments(self) -> list[str]:
        """All tensors that are fed."""
        return [*self.inputs, *self.variables.values(), *(d.name for d in self.draws)]


def purify(function: Any, outputs: int, variables: Sequence[Any], what: str, *, differentiable: bool) -> Pure:
    """Return a concrete function as a pure graph.

    It returns a flat list: `outputs` results, then a read of each of `variables` after everything else. If gradients go
    through it (`differentiable`), derivatives that somebody wrote by hand are refused: they would be lost.

    Raises:
        ArgumentError: lists everything that has an effect which a file cannot have.
    """
    return _Purifier(function, variables, what, differentiable).run(outputs)


class _Purifier:
    def __init__(self, function: Any, variables: Sequence[Any], what: str, differentiable: bool) -> None:
        self.what = what
        self.differentiable = differentiable
        self.function = function
        self.variables = list(variables)
        source = versions.inlined(function)
        self.nodes = {node.name: node for node in source.node}
        self.made = tf.compat.v1.GraphDef()
        self.made.versions.CopyFrom(source.versions)
        self.bodies = Bodies(source.library, what, differentiable)
        self.handles: dict[str, int] = {}  # the tensor of a handle: the variable
        self.current: dict[int, str] = {}
        self.cut: dict[str, str] = {}  # a value that was assigned: the same without a gradient
        self.generators: set[int] = set()  # variables that only hold the state of a generator of random numbers
        self.draws: dict[str, Draw] = {}
        self.given: set[str] = set()  # nodes that are arguments
        self.names: dict[str, str] = {}  # a tensor of the source: what stands for it
        self.problems: list[Diagnostic] = []
        self.unknown: set[str] = set()  # handles that are no variables

    def run(self, outputs: int) -> Pure:
        inputs = self._arguments()
        first = dict(self.current)
        wanted = [t.name for t in self.function.outputs]
        for node in self._order(wanted):
            self._visit(node)
        if self.problems:
            raise ArgumentError(self.problems)
        results = [
            self._result(f"onward_output_{i}", self._tensor(t.name), t.dtype.as_datatype_enum)
            for i, t in enumerate(self.function.outputs[:outputs])
        ]
        changed = {}
        for index in range(len(self.variables)):
            if index not in first or index in self.generators:
                continue
            if self.current[index] != first[index]:
                dtype = self.variables[index].dtype.as_datatype_enum
                changed[index] = self._result(f"onward_variable_{index}", self.current[index], dtype)
        self.made.library.CopyFrom(self.bodies.library())
        draws = list(self.draws.values())
        self._prune([*results, *changed.values(), *(d.shape for d in draws)])
        kept = {i: name for i, name in first.items() if i not in self.generators}
        return Pure(self.made, inputs, kept, results, changed, draws)

    def _prune(self, wanted: Sequence[str]) -> None:
        """Remove what nothing reads: the keys of generators, whose draws are arguments now."""
        nodes = {node.name: node for node in self.made.node}
        needed: set[str] = set()
        waiting = [_node_of(name) for name in wanted]
        while waiting:
            name = waiting.pop()
            if name in needed:
                continue
            needed.add(name)
            waiting += [_node_of(i) for i in nodes[name].input] if name in nodes else []
        missing = [self.nodes[name] for name in needed if name not in nodes]
        for node in missing:
            self._refuse(node, "the state of a generator is used as a number", A265)
        if missing:
            raise ArgumentError(self.problems)
        kept = [n for n in self.made.node if n.name in needed or n.op == "Placeholder"]
        del self.made.node[:]
        self.made.node.extend(kept)

    # -- arguments -----------------------------------------------------------------------------------------------------

    def _arguments(self) -> list[str]:
        captures = {inside.op.name: outside for outside, inside in self.function.graph.captures}
        by_handle = {id(v.handle): i for i, v in enumerate(self.variables)}
        inputs = []
        for tensor in self.function.inputs:
            name = tensor.op.name
            self.given.add(name)
            if name not in captures:
                self._placeholder(name, tensor.dtype, tensor.shape)
                inputs.append(f"{name}:0")
            elif tensor.dtype != tf.resource:
                self._constant(name, captures[name])
            elif id(captures[name]) in by_handle:
                index = by_handle[id(captures[name])]
                if index not in self.current:
                    self.current[index] = self._variable(index)
                self.handles[f"{name}:0"] = index
            else:
                self.unknown.add(f"{name}:0")
        return inputs

    def _placeholder(self, name: str, dtype: Any, shape: Any) -> str:
        node = self.made.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
        return f"{name}:0"

    def _variable(self, index: int) -> str:
        variable = self.variables[index]
        return self._placeholder(f"onward_argument_{index}", variable.dtype, variable.shape)

    def _constant(self, name: str, value: Any) -> None:
        node = self.made.node.add(name=name, op="Const")
        array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
        node.attr["dtype"].type = tf.as_dtype(array.dtype).as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(array))

    def _result(self, name: str, tensor: str, dtype: int) -> str:
        node = self.made.node.add(name=name, op="Identity", input=[tensor])
        node.attr["T"].type = dtype
        return f"{name}:0"

    # -- order ---------------------------------------------------------------------------------------------------------

    def _order(self, wanted: Sequence[str]) -> list[Any]:
        """Return the nodes behind `wanted` after all that they read and all that must have happened before."""
        done: set[str] = set()
        order = []
        stack = [(_node_of(name), False) for name in reversed(wanted)]
        while stack:
            name, ready = stack.pop()
            if ready:
                order.append(self.nodes[name])
                continue
            if name in done:
                continue
            done.add(name)
            stack.append((name, True))
            stack.extend((_node_of(i), False) for i in reversed(self.nodes[name].input) if _node_of(i) not in done)
        return order

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _visit(self, node: Any) -> None:
        if node.name in self.given:
            return  # an argument, which is there
        handles = [self.handles.get(_tensor(i)) for i in node.input]
        if any(_tensor(i) in self.unknown for i in node.input):
            if node.op == "Identity":
                self.unknown.add(f"{node.name}:0")
            else:
                self._refuse(node, "it reads a resource that is not a variable, such as a table or a data set")
        elif node.op in ("Identity", "IdentityN") and any(h is not None for h in handles):
            self._pass_on(node, handles)
        elif node.op in _DRAWS or node.op in _OTHER_DRAWS:
            self._draw(node)
        elif node.op == "RngReadAndSkip":
            self.generators.add(handles[0] if handles[0] is not None else -1)
            self._copy(node, drop=True)
        elif is_control(node.op):
            self._control(node, handles)
        elif any(h is not None for h in handles):
            self._use(node, next(h for h in handles if h is not None))
        elif node.op in _IGNORED:
            self._ignore(node)
        elif why := _never(node.op):
            self._refuse(node, why)
        else:
            self._check_derivative(node)
            self._copy(node)

    def _ignore(self, node: Any) -> None:
        """Leave a check or a message out; what it passes on is passed on."""
        if node.op.startswith("CheckNumerics"):
            copied = self._copy(node)
            copied.op = "Identity"
            del copied.attr["message"]

    def _copy(self, node: Any, *, drop: bool = False) -> Any:
        copied = tf.compat.v1.NodeDef() if drop else self.made.node.add()
        copied.CopyFrom(node)
        copied.ClearField("input")
        copied.input.extend(self._tensor(i) for i in node.input if not i.startswith("^"))
        copied.device = ""
        return copied

    def _tensor(self, name: str) -> str:
        """Return what a node of the pure graph reads for a tensor."""
        return self.names.get(_tensor(name), name)

    def _pass_on(self, node: Any, handles: Sequence[int | None]) -> None:
        """Follow handles through Identity nodes, which the inlining of calls leaves behind."""
        values = [i for i in node.input if not i.startswith("^")]
        for index, (name, handle) in enumerate(zip(values, handles, strict=False)):
            if handle is not None:
                self.handles[f"{node.name}:{index}"] = handle
            else:
                self.names[f"{node.name}:{index}"] = self._tensor(name)

    def _use(self, node: Any, index: int) -> None:
        """Replace a node that reads or assigns a variable."""
        values = [self._tensor(i) for i in node.input[1:] if not i.startswith("^")]
        now, dtype = self.current[index], self.variables[index].dtype.as_datatype_enum
        if node.op == "ReadVariableOp":
            self._node(node.name, "Identity", [self._read(index)], T=dtype)
        elif node.op == "AssignVariableOp":
            self.current[index] = values[0]
        elif node.op in ("AssignAddVariableOp", "AssignSubVariableOp"):
            kind = "AddV2" if node.op == "AssignAddVariableOp" else "Sub"
            self.current[index] = self._node(f"{node.name}/onward_new", kind, [now, values[0]], T=dtype)
        elif node.op == "VariableShape":
            self._node(node.name, "Shape", [now], T=dtype, out_type=node.attr["out_type"].type)
        elif node.op == "VarIsInitializedOp":
            self._constant(node.name, np.asarray(True))
        elif node.op == "ResourceGather":
            axis = f"{node.name}/onward_axis"
            self._constant(axis, np.int32(0))
            made = self._node(node.name, "GatherV2", [self._read(index), values[0], axis], Tparams=dtype)
            kinds = {"Tindices": node.attr["Tindices"].type, "Taxis": tf.int32.as_datatype_enum}
            self._types(made, **kinds)
            self.made.node[-1].attr["batch_dims"].i = node.attr["batch_dims"].i
        elif node.op == "ResourceGatherNd":
            made = self._node(node.name, "GatherNd", [self._read(index), values[0]], Tparams=dtype)
            self._types(made, Tindices=node.attr["Tindices"].type)
        elif node.op in _SCATTERS:
            self._scatter(node, index, values)
        else:
            self._refuse(node, f"it uses variable `{self.variables[index].name}` in a way that is not known")

    def _read(self, index: int) -> str:
        """Return what a read of a variable gives now; gradients do not go through an assignment that was before it."""
        now = self.current[index]
        if now == f"onward_argument_{index}:0" or not self.variables[index].dtype.is_floating:
            return now
        if now not in self.cut:
            dtype = self.variables[index].dtype.as_datatype_enum
            self.cut[now] = self._node(f"onward_assigned_{len(self.cut)}", "StopGradient", [now], T=dtype)
        return self.cut[now]

    def _scatter(self, node: Any, index: int, values: Sequence[str]) -> None:
        places, kind = values[0], node.attr["Tindices"].type
        if "Nd" not in node.op:
            last = f"{node.name}/onward_last"
            self._constant(last, np.int32(-1))
            places = self._node(f"{node.name}/onward_places", "ExpandDims", [places, last], T=kind)
            self._types(places, Tdim=tf.int32.as_datatype_enum)
        dtype = self.variables[index].dtype.as_datatype_enum
        now = [self.current[index], places, values[1]]
        made = self._node(f"{node.name}/onward_new", _SCATTERS[node.op], now, T=dtype)
        self._types(made, Tindices=kind)
        self.current[index] = made

    def _node(self, name: str, op: str, inputs: Sequence[str], **types: int) -> str:
        node = self.made.node.add(name=name, op=op, input=list(inputs))
        for key, value in types.items():
            node.attr[key].type = value
        return f"{name}:0"

    def _types(self, made: str, **types: int) -> None:
        node = self.made.node[-1]
        assert made == f"{node.name}:0"
        for key, value in types.items():
            node.attr[key].type = value

    def _control(self, node: Any, handles: Sequence[int | None]) -> None:
        """Copy a loop or a branch; the variables that it reads become values that it is given."""
        copied = self._copy(node)
        given = {}
        for place, handle in enumerate(handles):
            if handle is not None:
                copied.input[place] = self._read(handle)
                given[place] = self.variables[handle]
                if "While" in node.op:
                    self.handles[f"{node.name}:{place}"] = handle
        try:
            self.bodies.rewrite(copied, given)
        except ArgumentError as error:
            self.problems.extend(error.diagnostics)

    # -- random numbers ------------------------------------------------------------------------------------------------

    def _draw(self, node: Any) -> None:
        if node.op not in _DRAWS:
            self._refuse(node, "only uniform and normal random numbers have an equivalent", A265)
            return
        if node.op.startswith("Stateless"):
            reason = self._seed_problem(node)
            if reason:
                self._refuse(node, reason, A265)
                return
        dtype = tf.as_dtype(node.attr["dtype"].type)
        name = f"onward_draw_{len(self.draws)}"
        self._placeholder(name, dtype, None)
        shape = self._result(f"{name}_shape", self._tensor(node.input[0]), _shape_type(node))
        self.names[f"{node.name}:0"] = f"{name}:0"
        self.draws[node.name] = Draw(f"{name}:0", _DRAWS[node.op], dtype, shape)

    def _seed_problem(self, node: Any) -> str:
        """Return why the numbers are not others in each step; empty where a generator gives the seed."""
        behind = self._order([_node_of(i) for i in node.input[1:]])
        if any(n.op == "RngReadAndSkip" for n in behind):
            return ""
        return (
            "its seed does not come from a generator: the same seed draws the same numbers in every step; use "
            "tf.random.uniform, tf.random.normal, tf.nn.dropout or a tf.random.Generator"
        )

    # -- refusals ------------------------------------------------------------------------------------------------------

    def _check_derivative(self, node: Any) -> None:
        kind = node.attr["_gradient_op_type"].s.decode() if "_gradient_op_type" in node.attr else ""
        if self.differentiable and kind.startswith("CustomGradient") and not self._is_silu(node):
            owner = versions.owner_of_gradient(kind)
            what = f"the tf.custom_gradient of {owner}" if owner else "a tf.custom_gradient"
            self._refuse(node, f"it is {what}, and its own derivative would be lost", hint=versions.CUSTOM_GRADIENT)

    def _is_silu(self, node: Any) -> bool:
        """Return whether it is tf.nn.silu, whose rule only saves memory: x · sigmoid(β x)."""
        product = self.nodes.get(_node_of(node.input[0]))
        if product is None or product.op != "Mul":
            return False
        behind = [self.nodes[_node_of(i)] for i in product.input]
        return any(n.op == "Sigmoid" for n in behind) and node.input[1] in product.input

    def _refuse(
        self,
        node: Any,
        why: str,
        code: str = A262,
        hint: str = "write it with functions of TensorFlow that compute their result from tensors",
    ) -> None:
        self.problems.append(
            Diagnostic(
                code,
                f"`{node.op}` cannot be captured: {why}",
                place=f"{self.what}, node `{node.name}`",
                hint="" if code == A265 else hint,
            )
        )


def _never(op_type: str) -> str:
    """Return why an operator can be in no file; empty where it may."""
    if op_type in ("PyFunc", "PyFuncStateless", "EagerPyFunc"):
        return "it runs Python code (tf.numpy_function, tf.py_function)"
    if op_type.startswith(("Collective", "Nccl")):
        return "it communicates between devices"
    if versions.is_stateful(op_type):
        return "it has effects outside of the graph, or another result in each call"
    return ""


def _shape_type(node: Any) -> int:
    key = "T" if node.op in ("RandomUniform", "RandomStandardNormal") else "Tshape"
    return int(node.attr[key].type)


def _node_of(name: str) -> str:
    return name.removeprefix("^").partition(":")[0]


def _tensor(name: str) -> str:
    return name if ":" in name or name.startswith("^") else f"{name}:0"
