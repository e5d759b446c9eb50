"""Model files for tests: one that uses everything the format has, and a small ordinary one."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TRAINING = "ai.onnx.preview.training"


def known_gap(name: str) -> str:
    """Return why a test is skipped, as tests/known_gaps.toml says it; a gap that is not listed there is an error."""
    import tomllib

    gaps = tomllib.loads((pathlib.Path(__file__).parents[1] / "known_gaps.toml").read_text(encoding="utf-8"))
    return str(gaps["skips"][name]["reason"])


def note(message: Any, what: str) -> Any:
    """Add a doc string and two metadata entries to any message that has them."""
    message.doc_string = f"about {what}"
    if hasattr(message, "metadata_props"):
        message.metadata_props.add(key="zeta", value=what)
        message.metadata_props.add(key="alpha", value="ä — ✓")
    return message


def floats(name: str, *shape: int, start: float = 0.1) -> onnx.TensorProto:
    count = int(np.prod(shape))
    return numpy_helper.from_array((np.arange(count, dtype=np.float32) * 0.01 + start).reshape(shape), name)


def value(name: str, shape: list[Any], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def small_model() -> onnx.ModelProto:
    """Return y = x @ W + b with one training entry: mean squared error, Gradient, Momentum, and a reset."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["xW"], "matmul"), helper.make_node("Add", ["xW", "b"], ["y"], "add")],
        "small",
        [value("x", ["batch", 3])],
        [value("y", ["batch", 2])],
        [floats("W", 3, 2), floats("b", 2)],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(TRAINING, 1)], ir_version=10
    )
    model.training_info.append(momentum_entry(["W", "b"]))
    return model


def momentum_entry(parameters: list[str], prefix: str = "", shapes: dict[str, list[int]] | None = None) -> Any:
    """Return a training entry that moves `parameters` down the gradient of mean((y - labels)^2)."""
    shapes = shapes or {"W": [3, 2], "b": [2]}
    p = prefix
    grads = [f"{p}grad/{n}" for n in parameters]
    new = [f"{p}{n}_new" for n in parameters]
    old_v, new_v = [f"{p}{n}_v" for n in parameters], [f"{p}{n}_v_new" for n in parameters]
    nodes = [
        helper.make_node("Sub", ["y", f"{p}labels"], [f"{p}diff"], f"{p}sub"),
        helper.make_node("Mul", [f"{p}diff", f"{p}diff"], [f"{p}sq"], f"{p}mul"),
        helper.make_node("ReduceMean", [f"{p}sq"], [f"{p}loss"], f"{p}mean", keepdims=0),
        helper.make_node("Gradient", parameters, grads, f"{p}gradient", domain=TRAINING, xs=parameters, y=f"{p}loss"),
        helper.make_node(
            "Momentum",
            [f"{p}R", f"{p}T", *parameters, *grads, *old_v],
            [*new, *new_v],
            f"{p}momentum",
            domain=TRAINING,
            alpha=0.9,
            beta=1.0,
            norm_coefficient=0.0,
            mode="standard",
        ),
        helper.make_node("Add", [f"{p}T", f"{p}one"], [f"{p}T_new"], f"{p}count"),
    ]
    algorithm = helper.make_graph(
        nodes,
        f"{p}train",
        [value(f"{p}labels", ["batch", 2])],
        [
            value(f"{p}loss", []),
            *(value(n, shapes[m]) for n, m in zip([*new, *new_v], parameters * 2, strict=True)),
            value(f"{p}T_new", [], TensorProto.INT64),
        ],
        [
            numpy_helper.from_array(np.float32(0.1), f"{p}R"),
            numpy_helper.from_array(np.int64(0), f"{p}T"),
            numpy_helper.from_array(np.int64(1), f"{p}one"),
            *(
                numpy_helper.from_array(np.zeros(shapes[n], np.float32), v)
                for n, v in zip(parameters, old_v, strict=True)
            ),
        ],
    )
    first = parameters[0]
    initialization = helper.make_graph(
        [helper.make_node("RandomNormal", [], [f"{first}_init"], f"{p}draw", shape=shapes[first], scale=0.1, seed=1.0)],
        f"{p}reset",
        [],
        [value(f"{first}_init", shapes[first])],
    )
    info = onnx.TrainingInfoProto(algorithm=algorithm, initialization=initialization)
    for key, out in [*zip([*parameters, *old_v], [*new, *new_v], strict=True), (f"{p}T", f"{p}T_new")]:
        info.update_binding.add(key=key, value=out)
    info.initialization_binding.add(key=first, value=f"{first}_init")
    return info


def rich_model() -> onnx.ModelProto:
    """Return a model that uses every part of the format."""
    branch = helper.make_graph(
        [
            note(helper.make_node("Constant", [], ["c"], "inner_constant", value=floats("ct", 2)), "a node"),
            helper.make_node("Add", ["h", "c"], ["branch_out"]),
        ],
        "then",
        [],
        [value("branch_out", ["batch", 2])],
        [floats("inner_weight", 2)],
        value_info=[value("c", [2])],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["h"], ["other_out"])], "else", [], [value("other_out", ["batch", 2])]
    )
    sparse = helper.make_sparse_tensor(
        floats("S", 2), numpy_helper.from_array(np.array([0, 3], np.int64), "S_idx"), [2, 2]
    )
    attribute_sparse = helper.make_sparse_tensor(
        floats("AS", 1), numpy_helper.from_array(np.array([1], np.int64), "AS_idx"), [2]
    )
    nodes = [
        note(helper.make_node("MatMul", ["x", "W"], ["xW"], "matmul"), "the product"),
        helper.make_node("Scale", ["xW"], ["h"], "call_a", domain="my.functions", overload="a", by=2.0),
        helper.make_node("Scale", ["h"], ["h2"], "call_b", domain="my.functions", overload="b"),
        helper.make_node("If", ["flag"], ["h3"], "choose", then_branch=branch, else_branch=other),
        helper.make_node("MatMul", ["h3", "S"], ["h4"], "sparse_product"),
        helper.make_node("Dropout", ["h4", "", "flag"], ["h5", ""], "drop"),
        helper.make_node("Constant", [], ["sc"], "sparse_constant", sparse_value=attribute_sparse),
        helper.make_node("Add", ["h5", "b"], ["y"], "add"),
        helper.make_node("ZipMap", ["y"], ["zipped"], "zip", domain="ai.onnx.ml", classlabels_int64s=[0, 1]),
        helper.make_node("Odd", ["y"], ["odd"], "odd", domain="my.domain", blob=b"\xff\xfe", blobs=[b"\xff", b"ok"],
                         kind=helper.make_tensor_type_proto(TensorProto.FLOAT, [1, "n"])),
    ]  # fmt: skip
    nodes[0].attribute.add(name="documented", type=onnx.AttributeProto.INT, i=3, doc_string="an attribute")
    zipped = onnx.ValueInfoProto(name="zipped")
    element = zipped.type.sequence_type.elem_type.map_type
    element.key_type = TensorProto.INT64
    element.value_type.tensor_type.elem_type = TensorProto.FLOAT
    special = [
        helper.make_tensor("bf16", TensorProto.BFLOAT16, [2], [1.5, -2.0]),
        numpy_helper.from_array(np.array([1.5, 2.5], np.float16), "f16"),
        helper.make_tensor("f8", TensorProto.FLOAT8E4M3FN, [3], [0.5, 1.0, 2.0]),
        helper.make_tensor("f8b", TensorProto.FLOAT8E5M2, [2], b"\x3c\x40", raw=True),
        helper.make_tensor("i4", TensorProto.INT4, [3], [1, -2, 7]),
        helper.make_tensor("u4", TensorProto.UINT4, [3], b"\x21\x03", raw=True),
        helper.make_tensor("text", TensorProto.STRING, [2], [b"a", b"\xffb"]),
        helper.make_tensor("c64", TensorProto.COMPLEX64, [1], [1 + 2j]),
        helper.make_tensor("as_floats", TensorProto.FLOAT, [2], [1.0, 2.0]),
        helper.make_tensor("empty", TensorProto.FLOAT, [0, 3], []),
    ]
    batch = value("x", ["batch", 3])
    batch.type.denotation = "TENSOR"
    batch.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    graph = note(
        helper.make_graph(
            nodes,
            "rich",
            [note(batch, "the input"), value("flag", [], TensorProto.BOOL), value("b", [2])],
            [note(value("y", ["batch", 2]), "the output"), zipped, value("b", ["n"])],
            [note(floats("W", 3, 2), "a weight"), floats("b", 2), *special],
            value_info=[
                note(value("xW", ["batch", 2]), "a product"),
                value("h", ["batch", None]),
                value("nowhere", [7]),
                value("W", [3, 2]),
            ],
            sparse_initializer=[sparse],
        ),
        "the graph",
    )
    annotation = graph.quantization_annotation.add(tensor_name="xW")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    graph.quantization_annotation.add(tensor_name="nowhere")
    functions = []
    for overload, factor in (("a", 1.0), ("b", 3.0)):
        body = [
            helper.make_node("Constant", [], ["factor"], "factor", value=floats("f", 2)),
            helper.make_node("Constant", [], ["by_value"]),
            helper.make_node("Mul", ["X", "factor"], ["m"]),
            helper.make_node("Mul", ["m", "by_value"], ["Y"]),
        ]
        body[1].attribute.add(name="value_float", ref_attr_name="by", type=onnx.AttributeProto.FLOAT)
        function = helper.make_function(
            "my.functions",
            "Scale",
            ["X"],
            ["Y"],
            body,
            [helper.make_opsetid("", 18)],
            ["plain"],
            [helper.make_attribute("by", factor, doc_string="a default")],
            overload=overload,
            value_info=[value("m", ["n", 2])],
        )
        functions.append(note(function, "a function"))
    model = helper.make_model(
        graph,
        functions=functions,
        opset_imports=[
            helper.make_opsetid("", 18),
            helper.make_opsetid(TRAINING, 1),
            helper.make_opsetid("my.functions", 1),
            helper.make_opsetid("ai.onnx.ml", 3),
            helper.make_opsetid("my.domain", 1),
        ],
        ir_version=10,
        producer_name="hand",
        producer_version="1",
        model_version=7,
        domain="org.example",
    )
    note(model, "the model")
    model.training_info.append(momentum_entry(["W", "b"]))
    model.training_info.append(momentum_entry(["W"], "second/"))
    note(model.training_info[1].algorithm, "an algorithm")
    return model


def canonical(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy without what carries no meaning: the order of two lists, explicit empty strings, `ai.onnx`."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    stack: list[Any] = [copy]
    while stack:
        message = stack.pop()
        for field, content in message.ListFields():
            if field.name in ("value_info", "quantization_annotation"):
                ordered = sorted((i.SerializeToString(), i.__class__) for i in content)
                del content[:]
                content.extend(kind.FromString(data) for data, kind in ordered)
            elif content == "" or (field.name == "domain" and content == "ai.onnx"):
                message.ClearField(field.name)
            if field.message_type is not None:
                stack.extend(content if field.is_repeated else [content])
    return copy


def externalise(proto: onnx.ModelProto, folder: Any, file: str = "weights.bin") -> onnx.ModelProto:
    """Return a copy whose every numeric tensor, of every graph, is in `folder`/`file` (not written by Onward)."""
    from onward.storage.external_data import all_tensors

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    data = b""
    for _, tensor in all_tensors(copy):
        if tensor.data_type == TensorProto.STRING:
            continue
        raw = (
            numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data if not tensor.HasField("raw_data") else b""
        )
        raw = tensor.raw_data if tensor.HasField("raw_data") else raw
        for field in ("raw_data", "float_data", "int32_data", "int64_data"):
            tensor.ClearField(field)
        tensor.data_location = TensorProto.EXTERNAL
        for key, content in (("location", file), ("offset", str(len(data))), ("length", str(len(raw)))):
            tensor.external_data.add(key=key, value=content)
        data += raw + b"\0" * 3
    (folder / file).write_bytes(data)
    return copy
