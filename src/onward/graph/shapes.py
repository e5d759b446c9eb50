"""Types and shapes of values, and onnx's own inference over a message without large tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from onward.graph.ranks import learn_ranks
from onward.graph.walk import all_nodes, subgraphs
from onward.storage.external_data import Folder
from onward.storage.reader import Reader
from onward.storage.writer import Writer, put_light


def static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """Return the shape if every dimension is known, else None."""
    if value.shape is None:
        return None
    dims = tuple(d if isinstance(d, int) else None for d in value.shape)
    return None if any(d is None for d in dims) else tuple(d for d in dims if d is not None)


def dims(value: ir.Value) -> tuple[int | str | None, ...] | None:
    """Return an int, a symbol or None for each dimension; None if the rank is unknown."""
    if value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else d.value for d in value.shape)


def reduced_axes(node: ir.Node) -> set[int] | None:
    """Return the axes that a ReduceSum, ReduceMean or the like reduces, counted from the front; None if unknown."""
    axes: Sequence[int] | None = node.attributes.get_ints("axes", None)
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        tensor = ir.convenience.get_const_tensor(node.inputs[1])
        if tensor is None:
            return None
        axes = tensor.numpy().ravel().tolist()
    sizes = None if node.inputs[0] is None else dims(node.inputs[0])
    if sizes is None:
        return None
    if not axes:
        return set() if node.attributes.get_int("noop_with_empty_axes", 0) else set(range(len(sizes)))
    return {a % len(sizes) for a in axes} if sizes else set()  # a scalar has none, whatever the node says


def reduces_all(node: ir.Node) -> bool:
    """Return whether a ReduceSum, ReduceMean or the like reduces every axis of its input."""
    has_axes = "axes" in node.attributes or (len(node.inputs) > 1 and node.inputs[1] is not None)
    if not has_axes:  # the number of axes need not be known
        return not node.attributes.get_int("noop_with_empty_axes", 0)
    sizes = None if node.inputs[0] is None else dims(node.inputs[0])
    return sizes is not None and reduced_axes(node) == set(range(len(sizes)))


def infer_shapes(model: ir.Model, algorithm: ir.Graph | None = None) -> bool:
    """Fill in the types and shapes of all values of `model`, by onnx's own inference with data propagation.

    With `algorithm`, the standard's combined graph is inferred and both graphs are filled in. The data of large tensors
    is not used. Values that onnx cannot infer keep what the file says about them, or get the rank that a node needs.
    Shapes in the file that contradict what is inferred (a tool changed a node and left them) are forgotten, as runtimes
    do.

    Returns whether onnx finds the types and shapes consistent. Some models that it finds inconsistent do run.
    """
    proto = onnx.ModelProto()
    light = Writer(put_light([]))
    light.model(proto, model)
    nodes = list(model.graph)
    if algorithm is not None:
        combined = onnx.GraphProto()
        light.graph(combined, algorithm)
        proto.graph.MergeFrom(combined)
        nodes += algorithm
    inferred = _infer_strictly(proto)
    if inferred is not None:  # nearly always
        merge_inferred(nodes, inferred)
        return infer_shapes(model, algorithm) if learn_ranks(nodes) else True
    # Data propagation takes vectors for shapes and then finds errors in them: what it finds does not count.
    consistent = _infer_strictly(proto, data_prop=False) is not None
    for outputs in (False, True):  # what the file says of its outputs may be right and all that is known
        if not consistent:
            _forget_stated_shapes(proto, outputs=outputs)
            consistent = _infer_strictly(proto, data_prop=False) is not None
    merge_inferred(nodes, infer(proto))
    return consistent


def _infer_strictly(proto: onnx.ModelProto, *, data_prop: bool = True) -> onnx.GraphProto | None:
    try:
        return infer(proto, strict=True, data_prop=data_prop)
    except onnx.shape_inference.InferenceError:
        return None


def _forget_stated_shapes(proto: onnx.ModelProto, *, outputs: bool = True) -> None:
    """Remove the stated shapes of what operators of the standard compute, and with `outputs`, those of all outputs."""
    for graph in _all_graphs([proto.graph, *proto.functions]):
        computed = {name for n in graph.node if n.domain in ("", "ai.onnx") for name in n.output}
        stated = [info for info in graph.value_info if info.name not in computed]
        del graph.value_info[:]
        graph.value_info.extend(stated)
        if not outputs or not isinstance(graph, onnx.GraphProto):
            continue
        given = {value.name for value in graph.input}
        for output in graph.output:
            if output.type.HasField("tensor_type") and output.name not in given:
                output.type.tensor_type.ClearField("shape")


def restate_in_branches(model: ir.Model) -> bool:
    """Keep of the shapes inside branches of If only what follows from the nodes; return whether there are branches.

    A branch that does not run may have another rank than what enters it: PyTorch exports `squeeze` as a choice between
    a branch that squeezes and one that does not, and the gradient of both enters both. A shape that is right whenever
    the branch runs then contradicts what a runtime infers, and one without exceptions (onnxruntime-web) refuses it.
    Bodies of Loop and Scan keep what they state: ONNX Runtime needs the shapes of what a Scan stacks.
    """
    choices = [n for n in all_nodes(model.graph) if n.op_type == "If" and n.domain in ("", "ai.onnx")]
    for value in (v for node in choices for branch in subgraphs(node) for n in branch for v in n.outputs):
        value.shape = None
    if choices:
        infer_shapes(model)
    return bool(choices)


UNPROVEN = "?"
"""The end of a dimension's name that the file states for an output and that inference does not confirm."""


def mark_unproven_sizes(model: ir.Model) -> None:
    """Correct what the file states about sizes that follow from the inputs, and rename what does not.

    Files name the first axis of an output after the batch although it counts frames, boxes or the scores of one sample.
    Whoever takes equal names for equal sizes would calculate with the wrong one: such a name gets a mark. And files
    state a number, that of the example with which they were made, where the nodes compute the size of an input that the
    file leaves open: such a number becomes the name. And tools state that an output is a single number where they know
    nothing: unless the nodes say so too, at least for a batch of one, its rank is unknown.
    """
    given = [d for v in model.graph.inputs for d in dims(v) or ()]
    single = [v for v in model.graph.outputs if v.shape is not None and not v.shape and v.producer() is not None]
    if all(isinstance(d, int) for d in given) and not single:
        return
    named = {d for d in given if isinstance(d, str)}
    proven = proven_sizes(model)
    unproven = [v for v in single if v.name not in proven]
    if unproven:
        proto = onnx.ModelProto()
        Writer(put_light([])).model(proto, model)
        _forget_stated_shapes(proto)
        _set_first_sizes_to_one(proto)
        of_one = _inferred_dims(proto)
        for value in unproven:
            if of_one.get(value.name or "") != []:
                value.shape = None
    outputs = set(model.graph.outputs)
    for value in (v for node in model.graph for v in node.outputs):
        stated = dims(value) or ()
        follows = proven.get(value.name or "", [])
        if len(follows) != len(stated):  # the rank is unknown, or stated wrongly
            follows = [None] * len(stated)
        found = [p if p in named and isinstance(d, int) else d for d, p in zip(stated, follows, strict=True)]
        if value in outputs:
            pairs = enumerate(zip(found, follows, strict=True))
            found = [_marked(value, i, d, p, named) for i, (d, p) in pairs]
        if found != list(stated):
            value.shape = ir.Shape(found)


def proven_sizes(model: ir.Model) -> dict[str, list[int | str | None]]:
    """Return the sizes, by name, that follow from the inputs of the graph and its nodes, whatever the file states."""
    proto = onnx.ModelProto()
    Writer(put_light([])).model(proto, model)
    _forget_stated_shapes(proto)
    return _inferred_dims(proto)


def _inferred_dims(proto: onnx.ModelProto) -> dict[str, list[int | str | None]]:
    """Return the sizes of all values whose rank the nodes tell."""
    inferred = infer(proto)
    return {
        info.name: [d.dim_param or d.dim_value or None for d in info.type.tensor_type.shape.dim]
        for info in (*inferred.value_info, *inferred.output)
        if info.type.tensor_type.HasField("shape")
    }


def _set_first_sizes_to_one(proto: onnx.ModelProto) -> None:
    """Give each input with a named first size a batch of one."""
    for value in proto.graph.input:
        sizes = value.type.tensor_type.shape.dim
        if sizes and sizes[0].dim_param:
            sizes[0].dim_value = 1


def _marked(
    output: ir.Value, axis: int, stated: int | str | None, proven: int | str | None, named: set[str]
) -> int | str | None:
    """Return the size of an axis of an output, with a mark if it is stated like one of an input and is not.

    So are numbers that nothing confirms, such as that of the samples or of the time steps. The last axis keeps its
    number, which is that of the classes, unless the nodes show that it is the width of an image or the length of a
    sound. The name of a marked number tells the output and the axis, because equal numbers that are wrong need not be
    equal sizes.
    """
    if stated in named and stated != proven:
        return f"{stated}{UNPROVEN}"
    if isinstance(stated, int) and not isinstance(proven, int) and axis < _open_axes(output):
        return f"{output.name}:{axis}:{stated}{UNPROVEN}"
    return stated


# These slide over the last axis, so its size follows from that of an input and is no number of classes.
_SLIDING = {"Conv", "ConvTranspose", "AveragePool", "LpPool", "MaxPool", "Resize", "Upsample", "DepthToSpace", "Pad"}
# These keep the axes of their first input, or remove axes of size 1.
_KEEPING = {
    "Add", "BatchNormalization", "Cast", "Clip", "Div", "Dropout", "Elu", "Gelu", "HardSigmoid", "HardSwish",
    "Identity", "InstanceNormalization", "LeakyRelu", "Mul", "PRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Squeeze",
    "Sub", "Tanh", "Unsqueeze",
}  # fmt: skip


def _open_axes(output: ir.Value) -> int:
    """Return the number of leading axes of an output whose stated sizes may be those of an example."""
    rank = len(output.shape or ())
    node = output.producer()
    while node is not None and node.op_type in _KEEPING and node.inputs and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return rank if rank > 3 or (node is not None and node.op_type in _SLIDING) else rank - 1


def forget_marks(model: ir.Model) -> None:
    """Give the dimensions of outputs their stated names and numbers back."""
    marked: dict[str, int | str] = {
        f"{d}{UNPROVEN}": d for v in model.graph.inputs for d in dims(v) or () if isinstance(d, str)
    }
    for value in model.graph.outputs:
        for i, size in enumerate(dims(value) or ()):
            prefix = f"{value.name}:{i}:"
            if isinstance(size, str) and size.startswith(prefix):
                number = size.removeprefix(prefix).removesuffix(UNPROVEN)
                if number.isdecimal() and size.endswith(UNPROVEN):
                    marked[size] = int(number)
        if value.shape is not None:
            value.shape = ir.Shape([marked.get(d, d) if isinstance(d, str) else d for d in dims(value) or ()])


def infer(model: onnx.ModelProto, *, strict: bool = False, data_prop: bool = True) -> onnx.GraphProto:
    """Return the graph of `model` with the types and shapes that onnx's own inference finds.

    `model` is changed: nodes that onnx infers wrongly are replaced by others with the same types and shapes.
    """
    model.ir_version = max(model.ir_version, 10)  # before version 4, each initializer must also be an input
    graphs = list(_all_graphs([model.graph, *model.functions]))
    known = {entry.domain for entry in model.opset_import}
    for domain in {node.domain for graph in graphs for node in graph.node} - {"", "ai.onnx", *known}:
        model.opset_import.add(domain=domain, version=1)  # onnx refuses a model that does not import it
    kinds = {node.op_type for graph in graphs for node in graph.node}
    if kinds & (_STAND_INS.keys() | _SAME_SHAPE.keys()):
        for graph in graphs:
            for node in graph.node:
                _stand_in(node)
    options = {"check_type": strict, "strict_mode": strict, "data_prop": data_prop}
    inferred = onnx.shape_inference.infer_shapes(model, **options).graph
    if any("Sequence" in kind for kind in kinds):
        _forget_sequence_symbols([i for g in _all_graphs([inferred]) for i in (*g.value_info, *g.output)])
    return inferred


def _all_graphs(graphs: list[Any]) -> Iterator[Any]:
    """Yield the messages of `graphs` and of the graphs inside them."""
    while graphs:
        graph = graphs.pop()
        yield graph
        graphs += _inner_graphs(graph.node)


def _inner_graphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield attribute.g
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                yield from attribute.graphs


def _stand_in(node: onnx.NodeProto) -> None:
    """Replace a node for which onnx (1.23) has a wrong or no inference by one with the same types and shapes."""
    if node.domain == _ML and node.op_type in _SAME_SHAPE:
        del node.attribute[:]
        node.domain, node.op_type = "", _SAME_SHAPE[node.op_type]
        if node.op_type == "Cast":
            node.attribute.append(onnx.helper.make_attribute("to", onnx.TensorProto.FLOAT))
    if node.op_type not in _STAND_INS or node.domain not in ("", "ai.onnx"):
        return
    if node.op_type != "STFT":
        del node.attribute[:]
    elif all(a.name != "onesided" for a in node.attribute):
        node.attribute.append(onnx.helper.make_attribute("onesided", 1))  # the default, for which inference uses 0
    node.op_type = _STAND_INS[node.op_type]


# The inference of MeanVarianceNormalization's body fails for all types except float, and if `axes` is absent.
# onnx has no inference for these operators of scikit-learn's files; Scaler and Normalizer always give float.
_ML = "ai.onnx.ml"
_SAME_SHAPE = {"Imputer": "Identity", "Scaler": "Cast", "Normalizer": "Cast"}
_STAND_INS = {"STFT": "STFT", "GroupNormalization": "LayerNormalization", "MeanVarianceNormalization": "Sqrt"}


def merge_inferred(nodes: Iterable[ir.Node], proto: onnx.GraphProto) -> None:
    """Give the outputs of `nodes`, and of the nodes inside them, the types and shapes that `infer` found."""
    infos = {info.name: info for info in [*proto.value_info, *proto.output]}
    reader = Reader(Folder(None), owned=True)
    for node, node_proto in zip(nodes, proto.node, strict=True):
        for value in node.outputs:
            info = infos.get(value.name or "")
            if info is not None and info.HasField("type"):
                before = value.shape
                if info.type.HasField("tensor_type") and not info.type.tensor_type.HasField("elem_type"):
                    value.type, value.shape = None, ir.serde.deserialize_type_proto_for_shape(info.type)
                else:
                    reader.describe(value, info)
                if value.shape is None:  # a declared shape stays known
                    value.shape = before
        inner = list(subgraphs(node))
        if inner:
            for graph, graph_proto in zip(inner, _inner_graphs([node_proto]), strict=True):
                merge_inferred(graph, graph_proto)


def _forget_sequence_symbols(infos: Sequence[onnx.ValueInfoProto]) -> None:
    """Remove the symbols that onnx made up for the elements of sequences.

    It uses one symbol for all elements of a sequence, although their sizes may differ, and for values that are taken
    out of the sequence. A runtime that relies on the symbol reuses a buffer of the wrong size.
    """
    made_up: set[str] = set()
    for info in infos:
        element, in_sequence = _element(info.type)
        if in_sequence:
            made_up.update(d.dim_param for d in element.tensor_type.shape.dim if d.dim_param.startswith("unk__"))
    for info in infos if made_up else ():
        element, _ = _element(info.type)
        for dim in element.tensor_type.shape.dim if element.HasField("tensor_type") else ():
            if dim.dim_param in made_up:
                dim.ClearField("value")


def _element(kind: onnx.TypeProto) -> tuple[onnx.TypeProto, bool]:
    """Return the type inside sequences and optionals, and whether there is a sequence."""
    in_sequence = False
    while (wrapper := kind.WhichOneof("value")) in ("sequence_type", "optional_type"):
        in_sequence |= wrapper == "sequence_type"
        kind = getattr(kind, wrapper).elem_type
    return kind, in_sequence
