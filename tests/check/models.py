"""Training models that are right, built by hand with onnx.helper, for the tests to break one thing at a time."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TRAINING = "ai.onnx.preview.training"
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def tensor(name: str, value: object, dtype: type = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(value, dtype=dtype), name)


def info(name: str, shape: list[int | str | None] | None, elem_type: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, shape)


def node(op_type: str, inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, outputs, **attributes)


def model_of(
    graph: onnx.GraphProto,
    *entries: onnx.TrainingInfoProto,
    functions: tuple[onnx.FunctionProto, ...] = (),
    domains: tuple[str, ...] = (TRAINING,),
    ir_version: int = 10,
) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", 21), *(helper.make_opsetid(d, 1) for d in domains)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=ir_version, functions=list(functions))
    model.training_info.extend(entries)
    return model


def linear() -> onnx.ModelProto:
    """The standard's own first example: one weight, mean squared error, Gradient, Adagrad with R, T and H."""
    graph = helper.make_graph(
        [node("MatMul", ["X", "W"], ["Y"], name="forward")],
        "linear",
        [info("X", ["N", 3])],
        [info("Y", ["N", 1])],
        [tensor("W", [[1.0], [2.0], [3.0]])],
    )
    algorithm = helper.make_graph(
        [
            node("Sub", ["Y", "labels"], ["difference"], name="subtract"),
            node("Mul", ["difference", "difference"], ["square"], name="square"),
            node("ReduceMean", ["square"], ["loss"], name="mean", keepdims=0),
            node(
                "Gradient", ["W", "X", "labels"], ["dW"], name="grad", domain=TRAINING, xs=["W"], zs=["X", "labels"],
                y="loss",
            ),
            node("Adagrad", ["R", "T", "W", "dW", "H"], ["W_new", "H_new"], name="update", domain=TRAINING),
            node("Add", ["T", "one"], ["T_new"], name="count"),
        ],
        "step",
        [info("labels", ["N", 1])],
        [info("loss", []), info("W_new", [3, 1]), info("H_new", [3, 1]), info("T_new", [], INT64)],
        [tensor("R", 0.1), tensor("T", 0, np.int64), tensor("H", np.zeros((3, 1))), tensor("one", 1, np.int64)],
    )  # fmt: skip
    initialization = helper.make_graph(
        [
            node("RandomNormal", [], ["W_start"], name="random", shape=[3, 1]),
            node("Constant", [], ["H_start"], value=tensor("", np.zeros((3, 1)))),
            node("Constant", [], ["T_start"], value=tensor("", 0, np.int64)),
        ],
        "reset",
        [],
        [info("W_start", [3, 1]), info("H_start", [3, 1]), info("T_start", [], INT64)],
    )
    entry = helper.make_training_info(
        algorithm,
        [("W", "W_new"), ("H", "H_new"), ("T", "T_new")],
        initialization,
        [("W", "W_start"), ("H", "H_start"), ("T", "T_start")],
    )
    return model_of(graph, entry)


def two_entries() -> onnx.ModelProto:
    """Two entries that train a different weight each, as a GAN does."""
    graph = helper.make_graph(
        [node("MatMul", ["X", "G"], ["fake"]), node("MatMul", ["fake", "D"], ["score"])],
        "gan",
        [info("X", [4, 3])],
        [info("fake", [4, 2]), info("score", [4, 1])],
        [tensor("G", np.ones((3, 2))), tensor("D", np.ones((2, 1)))],
    )

    def entry(weight: str, shape: list[int], other: str) -> onnx.TrainingInfoProto:
        p = weight.lower()
        algorithm = helper.make_graph(
            [
                node("ReduceMean", ["score"], [f"{p}_loss"], keepdims=0),
                node(
                    "Gradient", [weight, "X", other], [f"{p}_grad"], domain=TRAINING, xs=[weight], zs=["X", other],
                    y=f"{p}_loss",
                ),
                node(
                    "Momentum", [f"{p}_R", f"{p}_T", weight, f"{p}_grad", f"{p}_V"], [f"{p}_new", f"{p}_V_new"],
                    domain=TRAINING, alpha=0.9, beta=1.0, norm_coefficient=0.0, mode="nesterov",
                ),
            ],
            f"{p}_step",
            [],
            [info(f"{p}_loss", []), info(f"{p}_new", shape), info(f"{p}_V_new", shape)],
            [tensor(f"{p}_R", 0.1), tensor(f"{p}_T", 1, np.int64), tensor(f"{p}_V", np.zeros(shape))],
        )  # fmt: skip
        return helper.make_training_info(algorithm, [(weight, f"{p}_new"), (f"{p}_V", f"{p}_V_new")], None, None)

    return model_of(graph, entry("G", [3, 2], "D"), entry("D", [2, 1], "G"))


def with_functions() -> onnx.ModelProto:
    """The linear model with its loss in a model-local function that calls another one, and an attribute."""
    square = helper.make_function(
        "my", "Square", ["a"], ["b"], [node("Mul", ["a", "a"], ["b"])], [helper.make_opsetid("", 21)]
    )
    mse = helper.make_function(
        "my",
        "MSE",
        ["a", "b"],
        ["c"],
        [
            node("Sub", ["a", "b"], ["d"]),
            node("Square", ["d"], ["e"], domain="my"),
            helper.make_node("ReduceMean", ["e"], ["c"]),
        ],
        [helper.make_opsetid("", 21), helper.make_opsetid("my", 1)],
        attributes=["keepdims"],
    )
    reference = mse.node[2].attribute.add(name="keepdims", type=onnx.AttributeProto.INT)
    reference.ref_attr_name = "keepdims"
    model = linear()
    algorithm = model.training_info[0].algorithm
    del algorithm.node[:3]
    algorithm.node.insert(0, node("MSE", ["Y", "labels"], ["loss"], name="mse", domain="my", keepdims=0))
    model.opset_import.append(helper.make_opsetid("my", 1))
    model.functions.extend([square, mse])
    return model


def with_if() -> onnx.ModelProto:
    """The linear model whose loss is chosen by an If, with subgraphs that read values of both graphs around them."""
    model = linear()
    algorithm = model.training_info[0].algorithm
    squared = helper.make_graph([node("Mul", ["difference", "difference"], ["s"])], "then", [], [info("s", ["N", 1])])
    absolute = helper.make_graph(
        [node("Sub", ["Y", "labels"], ["d2"]), node("Abs", ["d2"], ["a"])], "else", [], [info("a", ["N", 1])]
    )
    algorithm.node[1].CopyFrom(
        node("If", ["use_square"], ["square"], name="choose", then_branch=squared, else_branch=absolute)
    )
    algorithm.initializer.append(tensor("use_square", True, np.bool_))
    return model


def with_loop() -> onnx.ModelProto:
    """An inference model with a Loop."""
    body = helper.make_graph(
        [node("Add", ["state", "X"], ["next"]), node("Identity", ["go_on"], ["go_out"])],
        "body",
        [info("i", [], INT64), info("go_on", [], BOOL), info("state", [2])],
        [info("go_out", [], BOOL), info("next", [2])],
    )
    graph = helper.make_graph(
        [node("Loop", ["trips", "", "X"], ["Y"], body=body)],
        "g",
        [info("X", [2])],
        [info("Y", [2])],
        [tensor("trips", 3, np.int64)],
    )
    return model_of(graph)


def combined(model: onnx.ModelProto, index: int = 0) -> onnx.ModelProto:
    """Return the model whose graph is the concatenation that one training step runs, as the standard defines it."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.training_info[:]
    algorithm = model.training_info[index].algorithm
    for field in ("input", "initializer", "output", "node", "value_info", "sparse_initializer"):
        getattr(result.graph, field).extend(getattr(algorithm, field))
    return result


def with_training_function() -> onnx.ModelProto:
    """The linear model whose whole step, Gradient and Adagrad included, is a function that is called by another one."""
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(TRAINING, 1), helper.make_opsetid("my", 1)]
    inputs, outputs = ["w", "x", "t", "r", "n", "h"], ["l", "w_new", "h_new"]
    step = helper.make_function(
        "my",
        "Step",
        inputs,
        outputs,
        [
            node("MatMul", ["x", "w"], ["y"]),
            node("Sub", ["y", "t"], ["d"]),
            node("Mul", ["d", "d"], ["s"]),
            node("ReduceMean", ["s"], ["l"], keepdims=0),
            node("Gradient", ["w", "x", "t"], ["dw"], name="grad", domain=TRAINING, xs=["w"], zs=["x", "t"], y="l"),
            node("Adagrad", ["r", "n", "w", "dw", "h"], ["w_new", "h_new"], name="update", domain=TRAINING),
        ],
        imports,
    )
    outer = helper.make_function("my", "Outer", inputs, outputs, [node("Step", inputs, outputs, domain="my")], imports)
    model = linear()
    algorithm = model.training_info[0].algorithm
    del algorithm.node[:5]
    call = node("Outer", ["W", "X", "labels", "R", "T", "H"], ["loss", "W_new", "H_new"], name="call", domain="my")
    algorithm.node.insert(0, call)
    model.opset_import.append(helper.make_opsetid("my", 1))
    model.functions.extend([step, outer])
    return model
