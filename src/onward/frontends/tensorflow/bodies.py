"""The bodies of loops and branches: functions of a graph that get the values of variables instead of their handles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from onward.errors import ArgumentError, Diagnostic
from onward.frontends.tensorflow import versions

A262 = "A262"
A264 = "A264"
A265 = "A265"

_CONTROL = {
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "While": ("cond", "body"),
    "StatelessWhile": ("cond", "body"),
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
}
_RESOURCE = tf.resource.as_datatype_enum


def is_control(op_type: str) -> bool:
    """Return whether an operator calls functions of the graph."""
    return op_type in _CONTROL


class Bodies:
    """The functions of a graph, and copies of them in which variables are values."""

    def __init__(self, library: Any, what: str, differentiable: bool) -> None:
        self.differentiable = differentiable
        self.known = {f.signature.name: f for f in library.function}
        self.made: dict[str, Any] = {}
        self.what = what

    def library(self) -> Any:
        """Return the functions that the pure graph calls."""
        found = tf.compat.v1.GraphDef().library
        found.function.extend(self.made.values())
        return found

    def rewrite(self, node: Any, given: Mapping[int, Any]) -> None:
        """Let a loop, branch or call take the values of variables; `given` maps its data inputs to them.

        Raises:
            ArgumentError: lists what its functions do that a file cannot do.
        """
        shift = 1 if node.op in ("If", "StatelessIf") else 0  # the condition is no argument of the branches
        places = {place - shift: variable for place, variable in given.items()}
        for key in _CONTROL[node.op]:
            node.attr[key].func.name = self._function(node.attr[key].func.name, places)
        for key in ("T", "Tin", "Tout"):
            if key in node.attr and not (key == "Tout" and node.op in ("If", "StatelessIf")):
                kinds = node.attr[key].list.type
                for place, variable in places.items():
                    if place < len(kinds) and kinds[place] == _RESOURCE:
                        kinds[place] = variable.dtype.as_datatype_enum
        if "While" in node.op:
            shapes = node.attr["output_shapes"].list.shape
            for place, variable in places.items():
                if place < len(shapes):
                    shapes[place].CopyFrom(variable.shape.as_proto())
        if node.op.startswith("Stateful"):
            node.op = node.op.removeprefix("Stateful")

    def _function(self, name: str, places: Mapping[int, Any]) -> str:
        function = self.known[name]
        wanted = f"onward_{name}" + "".join(f"_{i}" for i in sorted(places))
        if wanted in self.made:
            return wanted
        copied = type(function)()
        copied.CopyFrom(function)
        copied.signature.name = wanted
        copied.signature.is_stateful = False
        self.made[wanted] = copied
        copied.ClearField("control_ret")
        del copied.signature.control_output[:]
        arguments = copied.signature.input_arg
        values = {}  # the reference of a handle in this function: its variable
        for place, variable in places.items():
            arguments[place].type = variable.dtype.as_datatype_enum
            arguments[place].ClearField("handle_data")
            values[arguments[place].name] = variable
            shape = copied.arg_attr[place].attr["_output_shapes"].list
            del shape.shape[:]
            shape.shape.add().CopyFrom(variable.shape.as_proto())
        problems = [
            Diagnostic(
                A262,
                f"`{argument.name}` of a loop or branch is a resource that is not a variable",
                place=f"{self.what}, function `{name}`",
            )
            for argument in arguments
            if argument.type == _RESOURCE
        ]
        for node in list(copied.node_def):
            problems += self._visit(copied, node, values, name)
        for output in copied.signature.output_arg:
            target = copied.ret.get(output.name, "")
            if output.type == _RESOURCE and target in values:
                output.type = values[target].dtype.as_datatype_enum
                output.ClearField("handle_data")
        if problems:
            raise ArgumentError(problems)
        return wanted

    def _visit(self, function: Any, node: Any, values: dict[str, Any], name: str) -> list[Diagnostic]:
        place = f"{self.what}, node `{node.name}` of function `{name}`"
        kept = [i for i in node.input if not i.startswith("^")]
        del node.input[:]
        node.input.extend(kept)
        handles = {i: values[ref] for i, ref in enumerate(kept) if ref in values}
        if node.op in ("Identity",) and handles:
            values[f"{node.name}:output:0"] = handles[0]
            node.attr["T"].type = handles[0].dtype.as_datatype_enum
            return []
        if is_control(node.op):
            try:
                self.rewrite(node, handles)
            except ArgumentError as error:
                return list(error.diagnostics)
            return []
        if node.op == "ReadVariableOp" and handles:
            _become(function, node, "Identity", {"value": "output"}, T=handles[0].dtype.as_datatype_enum)
            return []
        if node.op == "ResourceGather" and handles:
            return [_unsupported(node, place, "look the rows up outside of the loop or branch")]
        if handles:
            variable = next(iter(handles.values()))
            return [
                Diagnostic(
                    A264,
                    f"variable `{variable.name}` changes inside of a loop or a branch (`{node.op}`)",
                    place=place,
                    needed="an assignment outside of it",
                    hint="return the new value from the loop or branch, and assign it afterwards",
                )
            ]
        if "Random" in node.op or node.op == "RngReadAndSkip":
            return [_unsupported(node, place, "draw all random numbers before the loop or branch", A265)]
        kind = node.attr["_gradient_op_type"].s if "_gradient_op_type" in node.attr else b""
        if self.differentiable and kind.startswith(b"CustomGradient"):
            owner = versions.owner_of_gradient(kind.decode())
            what = f"the tf.custom_gradient of {owner}" if owner else "a tf.custom_gradient"
            return [_unsupported(node, place, f"{what} would be lost; {versions.CUSTOM_GRADIENT}")]
        if node.op in ("NoOp", "Assert", "Print", "PrintV2"):
            function.node_def.remove(node)
            return []
        if versions.is_stateful(node.op):
            return [_unsupported(node, place, "write it with functions that compute their result from tensors")]
        return []


def _unsupported(node: Any, place: str, hint: str, code: str = A262) -> Diagnostic:
    return Diagnostic(code, f"`{node.op}` inside of a loop or branch cannot be captured", place=place, hint=hint)


def _become(function: Any, node: Any, op_type: str, outputs: Mapping[str, str], **types: int) -> None:
    """Change the operator of a node; references to its outputs get their new names."""
    node.op = op_type
    node.attr.clear()
    for key, value in types.items():
        node.attr[key].type = value
    changes = {f"{node.name}:{old}:0": f"{node.name}:{new}:0" for old, new in outputs.items()}
    for other in function.node_def:
        for index, reference in enumerate(other.input):
            other.input[index] = changes.get(reference, reference)
    for key, reference in list(function.ret.items()):
        function.ret[key] = changes.get(reference, reference)
