"""Convert graphs to a newer operator set with onnx's own converter.

`onnx.version_converter` drops training_info, functions and metadata, and ignores subgraphs. So it gets only the nodes
whose operator changed between the two versions; every other node is masked and restored unchanged. Types are inferred
beforehand, over the combined graph of the standard, because several adapters need shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx
from onnx import version_converter

from onward.errors import Diagnostic, ModelError, named_node
from onward.graph.builder import Names
from onward.graph.schema import TRAINING_DOMAIN, schema
from onward.upgrade.scan import convert_batched_scan

M121 = "M121"

Types = dict[str, onnx.TypeProto]

_MASK = "onward.mask"
_ERRORS = (RuntimeError, ValueError, TypeError, version_converter.ConvertError, onnx.shape_inference.InferenceError)


def default_opset(imports: Iterable[onnx.OperatorSetIdProto]) -> int:
    """Return the version of the default operator set, or 1 if none is imported."""
    return max((o.version for o in imports if o.domain in ("", "ai.onnx")), default=1)


def convert_model(proto: onnx.ModelProto, target: int) -> None:
    """Convert every graph of `proto`, in place: inference, algorithms, initializations, functions, subgraphs.

    Values keep their names, so bindings and `Gradient` attributes stay valid. A function that cannot be converted,
    because its shapes are unknown, keeps its own operator set; the standard allows that.

    Raises:
        ModelError: lists the nodes that cannot be converted.
    """
    names = Names(all_names(proto))
    source = default_opset(proto.opset_import)
    problems: list[Diagnostic] = []
    if source < target:
        main = _infer(proto, [proto.graph])
        algorithms = [_infer(proto, [proto.graph, i.algorithm]) for i in proto.training_info if i.HasField("algorithm")]
        resets = [_infer(proto, [i.initialization]) for i in proto.training_info if i.HasField("initialization")]
        constants = {t.name: t for t in proto.graph.initializer}
        before = len(proto.graph.node)
        _Conversion(source, target, names, "graph", problems).graph(proto.graph, main, {}, {})
        for index, info in enumerate(proto.training_info):
            where = f"training_info[{index}]"
            if info.HasField("algorithm"):
                inferred = algorithms.pop(0)
                outer = _types_of(inferred, {})
                del inferred.node[:before]
                convert = _Conversion(source, target, names, f"{where}.algorithm", problems)
                convert.graph(info.algorithm, inferred, outer, constants)
            if info.HasField("initialization"):
                convert = _Conversion(source, target, names, f"{where}.initialization", problems)
                convert.graph(info.initialization, resets.pop(0), {}, {})
    for function in proto.functions:
        _convert_function(function, target, names)
    if problems:
        raise ModelError(problems)
    for opset in proto.opset_import:
        if opset.domain in ("", "ai.onnx"):
            opset.version = max(opset.version, target)
    if source == 1 and not any(o.domain in ("", "ai.onnx") for o in proto.opset_import):
        proto.opset_import.add(domain="", version=target)
    proto.ir_version = max(proto.ir_version, onnx.helper.find_min_ir_version_for(proto.opset_import, True))


def _convert_function(function: onnx.FunctionProto, target: int, names: Names) -> None:
    source = default_opset(function.opset_import)
    if source >= target:
        return
    body = onnx.GraphProto(name=function.name)
    body.node.extend(function.node)
    body.input.extend(onnx.ValueInfoProto(name=n) for n in function.input)
    body.output.extend(onnx.ValueInfoProto(name=n) for n in function.output)
    body.value_info.extend(function.value_info)
    shell = onnx.ModelProto(ir_version=10)
    shell.opset_import.extend(function.opset_import)
    problems: list[Diagnostic] = []
    inferred = _infer(shell, [body])
    _Conversion(source, target, names, f"function `{function.name}`", problems).graph(body, inferred, {}, {})
    if problems:
        return
    del function.node[:]
    for tensor in body.initializer:  # functions have none
        constant = function.node.add(op_type="Constant", output=[tensor.name], name=names.unique(tensor.name))
        constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(tensor)
    function.node.extend(body.node)
    for opset in function.opset_import:
        if opset.domain in ("", "ai.onnx"):
            opset.version = target


class _Conversion:
    """The conversion of one graph and its subgraphs from one version to another."""

    def __init__(self, source: int, target: int, names: Names, place: str, problems: list[Diagnostic]) -> None:
        self.source, self.target, self.names, self.place, self.problems = source, target, names, place, problems

    def graph(
        self,
        graph: onnx.GraphProto,
        inferred: onnx.GraphProto,
        outer: Mapping[str, onnx.TypeProto],
        constants: Mapping[str, onnx.TensorProto],
    ) -> None:
        """Convert `graph` in place; `inferred` is the same graph with types, `outer` the values of outer scopes."""
        types = _types_of(inferred, outer)
        known = {**constants, **{t.name: t for t in graph.initializer}}
        for node, typed in zip(graph.node, inferred.node, strict=True):
            for attribute, typed_attribute in zip(node.attribute, typed.attribute, strict=True):
                if attribute.HasField("g"):
                    self.graph(attribute.g, typed_attribute.g, types, known)
                for inner, typed_inner in zip(attribute.graphs, typed_attribute.graphs, strict=True):
                    self.graph(inner, typed_inner, types, known)
        if self.source < 7 <= self.target:
            self._repair_prelu(graph, types)
        active = [i for i, node in enumerate(graph.node) if self._changed(graph, node)]
        if not active:
            return
        reasons = {i: self._unfit(graph.node[i]) for i in active}
        for i, reason in reasons.items():
            if reason:
                self._problem(graph, graph.node[i], reason)
        if any(reasons.values()):
            return
        try:
            nodes, tensors = self._convert(graph, active, types, known)
        except _ERRORS as error:
            self._find_culprits(graph, active, types, known, error)
            return
        missing = {o for n in graph.node for o in n.output if o} - {o for n in nodes for o in n.output}
        if missing:
            self._problem(graph, None, f"onnx's converter renamed {', '.join(f'`{m}`' for m in sorted(missing)[:5])}")
            return
        if self.source < 11 <= self.target:
            _repair_resize(nodes)
        del graph.node[:]
        graph.node.extend(nodes)
        graph.initializer.extend(tensors)

    def _repair_prelu(self, graph: onnx.GraphProto, types: Types) -> None:
        """Reshape the slope of PRelu to one number per channel.

        Before operator set 7 it applied to axis 1; since then it is broadcast from the right. onnx's converter ignores
        the difference.
        """
        for index in reversed(range(len(graph.node))):
            node = graph.node[index]
            if node.op_type != "PRelu" or node.domain not in ("", "ai.onnx"):
                continue
            x, slope = (types.get(name) for name in node.input)
            if slope is not None and [d.dim_value for d in slope.tensor_type.shape.dim] in ([], [1]):
                continue  # one slope for all channels
            if x is None or not x.tensor_type.HasField("shape"):
                self._problem(graph, node, "the rank of its input is not known")
                continue
            shape = [-1, *[1] * (len(x.tensor_type.shape.dim) - 2)]
            shaped, name = self.names.unique("upgrade/slope"), self.names.unique("upgrade/Reshape")
            if self.source < 5:
                reshape = onnx.helper.make_node("Reshape", [node.input[1]], [shaped], name, shape=shape)
            else:
                to = self.names.unique("upgrade/slope_shape")
                graph.initializer.add(name=to, data_type=onnx.TensorProto.INT64, dims=[len(shape)], int64_data=shape)
                reshape = onnx.helper.make_node("Reshape", [node.input[1], to], [shaped], name)
            node.input[1] = shaped
            graph.node.insert(index, reshape)

    def _changed(self, graph: onnx.GraphProto, node: onnx.NodeProto) -> bool:
        """Return whether the converter must see this node."""
        if node.domain not in ("", "ai.onnx"):
            return False
        old, new = schema(node.op_type, "", self.source), schema(node.op_type, "", self.target)
        if old is None:
            return False  # not an operator of the model's version; `check` reports it
        if node.op_type == "Constant" and any(a.t.data_location == onnx.TensorProto.EXTERNAL for a in node.attribute):
            return False  # later versions only gained types; onnx would look for the file of a tensor that is set aside
        if any(a.HasField("g") or a.graphs for a in node.attribute):
            if node.op_type == "Scan" and self.source < 9 <= self.target:
                reason = convert_batched_scan(node, self.names)
                if reason:
                    self._problem(graph, node, reason)
            return False  # If, Loop and Scan only gained types
        return new is None or new.deprecated or old.since_version != new.since_version

    def _unfit(self, node: onnx.NodeProto) -> str:
        """Return why the node cannot go to onnx's converter, which crashes on invalid attributes; "" if it can."""
        if any(a.ref_attr_name for a in node.attribute):
            return "it reads attributes of the caller, which onnx's converter drops"
        context = onnx.checker.C.CheckerContext()
        context.ir_version = 10
        context.opset_imports = {"": self.source}
        try:
            onnx.checker.check_node(node, context)
        except onnx.checker.ValidationError as error:
            return _reason(error)
        return ""

    def _convert(
        self,
        graph: onnx.GraphProto,
        active: list[int],
        types: Types,
        constants: Mapping[str, onnx.TensorProto],
    ) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
        shown = set(active)
        masked = onnx.ModelProto(ir_version=10)
        masked.opset_import.add(domain="", version=self.source)
        masked.opset_import.add(domain=_MASK, version=1)
        out = masked.graph
        out.name = "masked"
        defined: set[str] = set()
        given: set[str] = set()
        for index, node in enumerate(graph.node):
            for name in node.input:
                if name and name not in defined and name not in given:
                    given.add(name)
                    _declare(out, name, types, constants, index in shown)
            defined.update(node.output)
            if index in shown:
                out.node.add().CopyFrom(node)
                out.node[-1].name = f"a{index}"
            else:
                out.node.add(op_type="Mask", domain=_MASK, name=f"m{index}", input=node.input, output=node.output)
        # The converter drops unused values, so every result is declared as an output.
        for name in dict.fromkeys(o for n in graph.node for o in n.output if o):
            _describe(out.output.add(name=name), types)
        converted = version_converter.convert_version(masked, self.target).graph
        renamed: dict[str, str] = {}
        nodes = [self._restore(node, graph, renamed) for node in converted.node]
        originals = {o for n in graph.node for o in n.output} | given
        for node in nodes:
            for result in node.output:
                if result and result not in originals:
                    renamed[result] = self.names.unique(f"upgrade/{result.lstrip('_')}")
        tensors = []
        for tensor in converted.initializer:
            if tensor.name not in given:
                renamed[tensor.name] = self.names.unique(f"upgrade/{tensor.name.lstrip('_')}")
                tensors.append(tensor)
                tensor.name = renamed[tensor.name]
        for node in nodes:
            _rename(node.input, renamed)
            _rename(node.output, renamed)
        return nodes, tensors

    def _restore(self, node: onnx.NodeProto, graph: onnx.GraphProto, renamed: dict[str, str]) -> onnx.NodeProto:
        """Return a converted node with the information that the converter drops."""
        new = onnx.NodeProto()
        if node.domain == _MASK:
            new.CopyFrom(graph.node[int(node.name[1:])])
            return new
        new.CopyFrom(node)
        if node.name.startswith("a"):
            old = graph.node[int(node.name[1:])]
            new.name, new.doc_string = old.name, old.doc_string
            del new.metadata_props[:]
            new.metadata_props.extend(old.metadata_props)
        else:
            new.name = self.names.unique(f"upgrade/{node.op_type}")
        return new

    def _find_culprits(
        self,
        graph: onnx.GraphProto,
        active: list[int],
        types: Types,
        constants: Mapping[str, onnx.TensorProto],
        error: Exception,
    ) -> None:
        found = False
        for index in active[:200]:
            try:
                self._convert(graph, [index], types, constants)
            except _ERRORS as reason:
                self._problem(graph, graph.node[index], _reason(reason))
                found = True
        if not found:
            self._problem(graph, None, _reason(error))

    def _problem(self, graph: onnx.GraphProto, node: onnx.NodeProto | None, reason: str) -> None:
        what = "the graph" if node is None else f"`{node.op_type}`"
        self.problems.append(
            Diagnostic(
                M121,
                f"{what} cannot be converted from operator set {self.source} to {self.target}",
                place=self.place + ("" if node is None else f", {named_node(node, graph.node)}"),
                found=reason,
            )
        )


def _repair_resize(nodes: Iterable[onnx.NodeProto]) -> None:
    """Keep dividing coordinates by the scale where a Resize was one of operator set 10 or an Upsample.

    Operator set 11 made half_pixel the default; onnx's converter silently switches the node to it.
    """
    for node in nodes:
        if node.op_type == "Resize" and all(a.name != "coordinate_transformation_mode" for a in node.attribute):
            node.attribute.append(onnx.helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
            node.attribute.append(onnx.helper.make_attribute("nearest_mode", "floor"))


def _declare(
    graph: onnx.GraphProto, name: str, types: Types, constants: Mapping[str, onnx.TensorProto], wanted: bool
) -> None:
    """Declare an outer value as an input; a small constant, which an adapter may read, keeps its data."""
    _describe(graph.input.add(name=name), types)
    tensor = constants.get(name)
    if wanted and tensor is not None and tensor.data_location != onnx.TensorProto.EXTERNAL:
        graph.initializer.add().CopyFrom(tensor)


def _describe(info: onnx.ValueInfoProto, types: Types) -> None:
    if info.name in types:
        info.type.CopyFrom(types[info.name])


def _infer(proto: onnx.ModelProto, graphs: list[onnx.GraphProto]) -> onnx.GraphProto:
    """Return the concatenation of `graphs` with every type that onnx can infer."""
    model = onnx.ModelProto(ir_version=max(proto.ir_version, 10))
    model.opset_import.extend(proto.opset_import)
    model.functions.extend(proto.functions)
    model.graph.name = "combined"
    for graph in graphs:
        for field in ("node", "input", "output", "initializer", "sparse_initializer", "value_info"):
            getattr(model.graph, field).extend(getattr(graph, field))
    for _ in range(2):  # a second derivative needs a second pass
        try:
            inferred = onnx.shape_inference.infer_shapes(model, strict_mode=False, data_prop=True)
        except (RuntimeError, ValueError, onnx.shape_inference.InferenceError):
            return model.graph  # the model is inconsistent; `check` reports where
        if not _type_gradients(model.graph, _types_of(inferred.graph, {})):
            break
    return inferred.graph


def _type_gradients(graph: onnx.GraphProto, types: Types) -> bool:
    """Infer the types of `Gradient` outputs, which onnx cannot do; return whether any type is new."""
    added = False
    for node in graph.node:
        if node.op_type == "Gradient" and node.domain == TRAINING_DOMAIN:
            xs = [s.decode("utf-8", "replace") for a in node.attribute if a.name == "xs" for s in a.strings]
            for x, name in zip(xs, node.output, strict=False):
                if name and name not in types and x in types:
                    _describe(graph.value_info.add(name=name), {name: types[x]})
                    added = True
    return added


def _types_of(graph: onnx.GraphProto, outer: Mapping[str, onnx.TypeProto]) -> Types:
    types = dict(outer)
    for tensor in graph.initializer:
        kind = onnx.TypeProto()
        kind.tensor_type.elem_type = tensor.data_type
        kind.tensor_type.shape.SetInParent()
        for dim in tensor.dims:
            kind.tensor_type.shape.dim.add(dim_value=dim)
        types[tensor.name] = kind
    for info in [*graph.input, *graph.value_info, *graph.output]:
        if info.HasField("type"):
            types[info.name] = info.type
    return types


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].split(": ", 2)[-1][:300]


def _rename(field: Any, renamed: Mapping[str, str]) -> None:
    for index, name in enumerate(field):
        if name in renamed:
            field[index] = renamed[name]


def all_names(proto: onnx.ModelProto) -> set[str]:
    """Return every value and node name of every graph and function."""
    names: set[str] = set()
    stack: list[Any] = [proto.graph, *proto.functions]
    for info in proto.training_info:
        stack += [info.algorithm, info.initialization]
    while stack:
        graph = stack.pop()
        if isinstance(graph, onnx.GraphProto):
            names.update(t.name for t in graph.initializer)
            names.update(i.name for i in [*graph.input, *graph.value_info, *graph.output])
        else:
            names.update(graph.input)
        for node in graph.node:
            names.update(node.input, node.output, [node.name])
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    stack.append(attribute.g)
                stack.extend(attribute.graphs)
    return names
