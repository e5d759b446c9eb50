"""Invalid files: a valid training model, broken in one way each; SPEC.md says where each rule comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

from generate.gradient import TRAINING
from generate.writer import Suite, slug

Break = Callable[[onnx.ModelProto], Any]
RULES: list[tuple[str, str, str, Break]] = []

TEXT = """<ir_version: 10, opset_import: ["" : 21, "ai.onnx.preview.training" : 1, "user" : 1]>
g (float[4,3] x) => (float[4,2] y) { h = MatMul(x, W) y = user.Shift(h, b) }
<domain: "user", opset_import: ["" : 21]> Shift (h, b) => (y) { y = Add(h, b) }"""
ALGORITHM = """a (float[4,2] t, float[3,2] point) => (float loss, float[3,2] W_new, float[2] b_new, float[3,2] HW_new, float[2] Hb_new, int64 T_new) {
  d = Sub(y, t) q = Mul(d, d) loss = ReduceMean<keepdims=0>(q)
  dW, db = ai.onnx.preview.training.Gradient<xs=["W", "b"], zs=["x", "t"], y="loss">(W, b, x, t)
  W_new, b_new, HW_new, Hb_new =
    ai.onnx.preview.training.Adagrad<epsilon=0.001>(R, T, W, b, dW, db, HW, Hb)
  T_new = Add(T, one) }"""  # noqa: E501
INITIALIZATION = """i () => (float[3,2] W_init, float[2] b_init) {
  shape = Constant<value = int64[2] {3, 2}>() W_init = ConstantOfShape<value = float[1] {0.5}>(shape)
  size = Constant<value = int64[1] {2}>() b_init = ConstantOfShape(size) }"""


def base() -> onnx.ModelProto:
    """Return the valid model that all others are made from."""
    model = parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    model.graph.initializer.extend([constant("W", rng.normal(0, 1, (3, 2))), constant("b", rng.normal(0, 1, 2))])
    algorithm = parser.parse_graph(ALGORITHM)
    algorithm.initializer.extend([
        constant("R", np.array(0.1)), constant("T", np.array(0, np.int64)), constant("one", np.array(1, np.int64)),
        constant("HW", np.zeros((3, 2))), constant("Hb", np.zeros(2)),
    ])  # fmt: skip
    updates = {n: f"{n}_new" for n in ("W", "b", "HW", "Hb", "T")}
    initialization = parser.parse_graph(INITIALIZATION)
    bindings = [("W", "W_init"), ("b", "b_init")]
    model.training_info.append(helper.make_training_info(algorithm, list(updates.items()), initialization, bindings))
    return model


def constant(name: str, array: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(array.astype(np.float32) if array.dtype == np.float64 else array, name)


def rule(group: str, name: str, text: str) -> Callable[[Break], Break]:
    """Register a function that breaks the rule `text` in a model, in place."""

    def register(function: Break) -> Break:
        RULES.append((group, name, text, function))
        return function

    return register


def node(graph: onnx.GraphProto, op_type: str) -> onnx.NodeProto:
    return next(n for n in graph.node if n.op_type == op_type)


def info(model: onnx.ModelProto) -> onnx.TrainingInfoProto:
    return model.training_info[0]


def algorithm(model: onnx.ModelProto) -> onnx.GraphProto:
    return model.training_info[0].algorithm


def initialization(model: onnx.ModelProto) -> onnx.GraphProto:
    return model.training_info[0].initialization


def bind(entries: Any, key: str, value: str) -> None:
    entry = entries.add()
    entry.key, entry.value = key, value


def binding(entries: Any, key: str) -> onnx.StringStringEntryProto:
    return next(e for e in entries if e.key == key)


def set_strings(target: onnx.NodeProto, name: str, values: list[str]) -> None:
    attribute = next(a for a in target.attribute if a.name == name)
    attribute.CopyFrom(helper.make_attribute(name, values, attr_type=onnx.AttributeProto.STRINGS))


def add_output(graph: onnx.GraphProto, name: str, kind: int, sizes: list[Any]) -> None:
    graph.output.append(helper.make_tensor_value_info(name, kind, sizes))


def gradient(model: onnx.ModelProto) -> onnx.NodeProto:
    return node(algorithm(model), "Gradient")


def adagrad(model: onnx.ModelProto) -> onnx.NodeProto:
    return node(algorithm(model), "Adagrad")


def second_entry(model: onnx.ModelProto) -> onnx.TrainingInfoProto:
    """Add a valid entry of its own."""
    extra = parser.parse_graph("a2 (float[4,2] t2) => (float[3] C_new) { C_new = Add(C, C) }")
    extra.initializer.append(constant("C", np.ones(3)))
    model.training_info.append(helper.make_training_info(extra, [("C", "C_new")], None, None))
    return model.training_info[-1]


# Bindings
BINDINGS = "bindings"
for _name, _text, _break in [
    ("update key unknown", "every key of update_binding is an initializer of the graph or of the entry's algorithm",
     lambda m: setattr(binding(info(m).update_binding, "W"), "key", "nowhere")),
    ("update key is a graph input", "every key of update_binding is an initializer of the graph or of the algorithm",
     lambda m: bind(info(m).update_binding, "x", "W_new")),
    ("update key is a node output", "every key of update_binding is an initializer of the graph or of the algorithm",
     lambda m: bind(info(m).update_binding, "h", "W_new")),
    ("update key of another entry", "an entry binds initializers of the graph or of its own algorithm",
     lambda m: (second_entry(m), bind(info(m).update_binding, "C", "W_new"))),
    ("update key twice", "keys are unique within update_binding",
     lambda m: bind(info(m).update_binding, "W", "W_new")),
    ("update value unknown", "every value of update_binding is an output of the algorithm or of the graph",
     lambda m: setattr(binding(info(m).update_binding, "W"), "value", "nowhere")),
    ("update value is no output", "every value of update_binding is an output of the algorithm or of the graph",
     lambda m: (setattr(binding(info(m).update_binding, "W"), "value", "dW"))),
    ("initialization key unknown", "every key of initialization_binding is an initializer",
     lambda m: setattr(binding(info(m).initialization_binding, "W"), "key", "nowhere")),
    ("initialization key is a graph input", "every key of initialization_binding is an initializer",
     lambda m: bind(info(m).initialization_binding, "x", "W_init")),
    ("initialization key twice", "keys are unique within initialization_binding",
     lambda m: bind(info(m).initialization_binding, "W", "W_init")),
    ("initialization value unknown", "every value of initialization_binding is an output of the initialization",
     lambda m: setattr(binding(info(m).initialization_binding, "W"), "value", "nowhere")),
    ("initialization value is no output", "every value of initialization_binding is an output of the initialization",
     lambda m: setattr(binding(info(m).initialization_binding, "W"), "value", "shape")),
    ("initialization value of the algorithm", "every initialization_binding value is an output of the initialization",
     lambda m: setattr(binding(info(m).initialization_binding, "W"), "value", "W_new")),
    ("initialization missing", "initialization may be absent only if there is no initialization_binding",
     lambda m: info(m).ClearField("initialization")),
    ("update of another shape", "the new value of an initializer has its shape",
     lambda m: (bind(info(m).update_binding, "R", "b_new"))),
    ("update of another type", "the new value of an initializer has its element type",
     lambda m: (bind(info(m).update_binding, "R", "T_new"))),
    ("initialization of another shape", "the initial value of an initializer has its shape",
     lambda m: setattr(binding(info(m).initialization_binding, "W"), "value", "b_init")),
    ("initialization of another type", "the initial value of an initializer has its element type",
     lambda m: (add_output(initialization(m), "size", TensorProto.INT64, [1]),
                setattr(binding(info(m).initialization_binding, "b"), "value", "size"))),
]:  # fmt: skip
    rule(BINDINGS, _name, _text)(_break)


# The graphs
GRAPHS = "graphs"


@rule(GRAPHS, "IR version before training", "training_info exists since IR version 7")
def _(m: onnx.ModelProto) -> None:
    m.ir_version = 6
    del m.functions[:]
    node(m.graph, "Shift").op_type = "Add"
    node(m.graph, "Add").domain = ""


@rule(GRAPHS, "initialization with an input", "the initialization has no inputs")
def _(m: onnx.ModelProto) -> None:
    initialization(m).input.append(helper.make_tensor_value_info("seed", TensorProto.FLOAT, [1]))


@rule(GRAPHS, "initialization reads the inference graph", "the initialization is a graph of its own")
def _(m: onnx.ModelProto) -> None:
    initialization(m).node.append(helper.make_node("Neg", ["W"], ["W_other"]))
    binding(info(m).initialization_binding, "W").value = "W_other"
    add_output(initialization(m), "W_other", TensorProto.FLOAT, [3, 2])


@rule(GRAPHS, "initialization defines a name twice", "every name is defined once")
def _(m: onnx.ModelProto) -> None:
    initialization(m).node.append(helper.make_node("ConstantOfShape", ["shape"], ["W_init"]))


@rule(GRAPHS, "initialization reads an undefined name", "every name that is read is defined before")
def _(m: onnx.ModelProto) -> None:
    node(initialization(m), "ConstantOfShape").input[0] = "nowhere"


@rule(GRAPHS, "initialization with an unknown operator", "every operator exists in the imported version of its domain")
def _(m: onnx.ModelProto) -> None:
    node(initialization(m), "ConstantOfShape").op_type = "ConstantOfNothing"


@rule(GRAPHS, "algorithm input has the name of a graph input", "the combined graph defines every name once")
def _(m: onnx.ModelProto) -> None:
    algorithm(m).input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3]))


@rule(GRAPHS, "algorithm initializer has the name of a graph initializer", "the combined graph defines every name once")
def _(m: onnx.ModelProto) -> None:
    algorithm(m).initializer.append(constant("W", np.zeros((3, 2))))


@rule(GRAPHS, "algorithm initializer has the name of a graph input",
      "an algorithm does not turn an input of the inference graph into an optional one")  # fmt: skip
def _(m: onnx.ModelProto) -> None:
    algorithm(m).initializer.append(constant("x", np.zeros((4, 3))))


@rule(GRAPHS, "algorithm redefines a value of the inference graph", "the combined graph defines every name once")
def _(m: onnx.ModelProto) -> None:
    algorithm(m).node.append(helper.make_node("Neg", ["x"], ["h"]))


@rule(GRAPHS, "algorithm defines a name twice", "every name is defined once")
def _(m: onnx.ModelProto) -> None:
    algorithm(m).node.append(helper.make_node("Neg", ["d"], ["q"]))


@rule(GRAPHS, "algorithm reads an undefined name", "every name that is read is defined before")
def _(m: onnx.ModelProto) -> None:
    node(algorithm(m), "Sub").input[1] = "nowhere"


@rule(GRAPHS, "an output that nothing computes", "every output of a graph is computed")
def _(m: onnx.ModelProto) -> None:
    add_output(algorithm(m), "nowhere", TensorProto.FLOAT, [1])


@rule(GRAPHS, "a subgraph shadows an outer name", "a subgraph does not define a name of the graph around it")
def _(m: onnx.ModelProto) -> None:
    branch = parser.parse_graph("b () => (float[4,2] d) { d = Neg(y) }")
    other = parser.parse_graph("c () => (float[4,2] k) { k = Identity(y) }")
    algorithm(m).initializer.append(constant("flag", np.array(True)))
    algorithm(m).node.append(helper.make_node("If", ["flag"], ["unused"], then_branch=branch, else_branch=other))


@rule(GRAPHS, "nodes that depend on each other", "the nodes have an order of execution")
def _(m: onnx.ModelProto) -> None:
    node(algorithm(m), "Sub").input[1] = "q"


@rule(GRAPHS, "inference graph reads a value of the algorithm", "the inference graph alone is a valid graph")
def _(m: onnx.ModelProto) -> None:
    node(m.graph, "MatMul").input[1] = "W_new"


@rule(GRAPHS, "inference graph reads an initializer of the algorithm", "the inference graph alone is a valid graph")
def _(m: onnx.ModelProto) -> None:
    node(m.graph, "MatMul").input[1] = "HW"


@rule(GRAPHS, "inference graph reads an input of the algorithm", "the inference graph alone is a valid graph")
def _(m: onnx.ModelProto) -> None:
    node(m.graph, "MatMul").input[1] = "point"


@rule(GRAPHS, "an output twice", "the combined graph has every output once")
def _(m: onnx.ModelProto) -> None:
    add_output(algorithm(m), "y", TensorProto.FLOAT, [4, 2])


@rule(GRAPHS, "a domain that is not imported", "opset_import has every domain that the training graphs use")
def _(m: onnx.ModelProto) -> None:
    kept = [i for i in m.opset_import if i.domain != TRAINING]
    del m.opset_import[:]
    m.opset_import.extend(kept)


@rule(
    GRAPHS, "an unknown operator of the training domain", "every operator exists in the imported version of its domain"
)
def _(m: onnx.ModelProto) -> None:
    adagrad(m).op_type = "Adadelta"


@rule(GRAPHS, "an unknown operator in the algorithm", "every operator exists in the imported version of its domain")
def _(m: onnx.ModelProto) -> None:
    node(algorithm(m), "Sub").op_type = "Substract"


@rule(GRAPHS, "an unknown attribute in the algorithm", "a node has only the attributes of its operator")
def _(m: onnx.ModelProto) -> None:
    node(algorithm(m), "ReduceMean").attribute.append(helper.make_attribute("keepdim", 1))


@rule(GRAPHS, "types that do not fit in the algorithm", "the combined graph passes type inference")
def _(m: onnx.ModelProto) -> None:
    node(algorithm(m), "Sub").input[1] = "T"


@rule(GRAPHS, "shapes that do not fit in the algorithm", "the combined graph passes shape inference")
def _(m: onnx.ModelProto) -> None:
    node(algorithm(m), "Sub").input[1] = "point"


@rule(GRAPHS, "an algorithm input without a type", "inputs and outputs of graphs have a type")
def _(m: onnx.ModelProto) -> None:
    algorithm(m).input[0].ClearField("type")


@rule(GRAPHS, "a function that does not exist", "a function that a training graph calls is in the model")
def _(m: onnx.ModelProto) -> None:
    algorithm(m).node.append(helper.make_node("Elsewhere", ["d"], ["unused"], domain="user"))


@rule(GRAPHS, "a function that calls itself", "functions are not recursive")
def _(m: onnx.ModelProto) -> None:
    body = m.functions[0]
    body.node.append(helper.make_node("Shift", ["h", "b"], ["again"], domain="user"))
    body.opset_import.append(helper.make_opsetid("user", 1))


# Tensors
TENSORS = "tensors"


@rule(TENSORS, "data that is too short", "the data of a tensor fills its dims")
def _(m: onnx.ModelProto) -> None:
    tensor = next(t for t in algorithm(m).initializer if t.name == "HW")
    tensor.raw_data = tensor.raw_data[:-4]


@rule(TENSORS, "data that is too long", "the data of a tensor fills its dims")
def _(m: onnx.ModelProto) -> None:
    tensor = next(t for t in algorithm(m).initializer if t.name == "HW")
    tensor.raw_data = tensor.raw_data + tensor.raw_data


@rule(TENSORS, "a negative dimension", "the dims of a tensor are not negative")
def _(m: onnx.ModelProto) -> None:
    next(t for t in algorithm(m).initializer if t.name == "Hb").dims[0] = -2


@rule(TENSORS, "a tensor without a type", "a tensor has an element type")
def _(m: onnx.ModelProto) -> None:
    next(t for t in algorithm(m).initializer if t.name == "Hb").data_type = 0


@rule(TENSORS, "a damaged constant in the initialization", "the data of a tensor fills its dims")
def _(m: onnx.ModelProto) -> None:
    tensor = node(initialization(m), "Constant").attribute[0].t
    del tensor.int64_data[:]
    tensor.raw_data = b"123"


@rule(TENSORS, "external data outside the folder", "external data is below the folder of the model")
def _(m: onnx.ModelProto) -> None:
    tensor = next(t for t in algorithm(m).initializer if t.name == "HW")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "../../elsewhere.bin", "offset": "0", "length": "24"}.items():
        bind(tensor.external_data, key, value)


# Gradient
GRADIENT = "gradient"
for _name, _text, _break in [
    ("no xs", "xs names at least one tensor", lambda m: (
        set_strings(gradient(m), "xs", []), set_strings(gradient(m), "zs", ["W", "b", "x", "t"]))),
    ("no y", "y is a required attribute", lambda m: gradient(m).attribute.remove(
        next(a for a in gradient(m).attribute if a.name == "y"))),
    ("a name twice in xs", "xs and zs name each tensor once", lambda m: set_strings(gradient(m), "xs", ["W", "W"])),
    ("a name in xs and zs", "xs and zs name each tensor once", lambda m: set_strings(gradient(m), "zs", ["x", "W"])),
    ("too few inputs", "the node has one input for each name in xs and zs", lambda m: gradient(m).input.pop()),
    ("too many inputs", "the node has one input for each name in xs and zs", lambda m: gradient(m).input.append("R")),
    ("too many outputs", "the node has at most one output for each name in xs",
     lambda m: gradient(m).output.append("dx")),
    ("an unknown x", "xs name tensors of the graph", lambda m: set_strings(gradient(m), "xs", ["W", "nowhere"])),
    ("an unknown z", "zs name tensors of the graph", lambda m: set_strings(gradient(m), "zs", ["x", "nowhere"])),
    ("an unknown y", "y names a tensor of the graph",
     lambda m: next(a for a in gradient(m).attribute if a.name == "y").CopyFrom(helper.make_attribute("y", "nowhere"))),
    ("a y that is computed later", "y is computed before the node",
     lambda m: next(a for a in gradient(m).attribute if a.name == "y").CopyFrom(helper.make_attribute("y", "W_new"))),
    ("dependent xs", "no tensor of xs and zs can be computed from the others",
     lambda m: (set_strings(gradient(m), "xs", ["W", "y"]), gradient(m).input.__setitem__(1, "y"))),
    ("an x that depends on zs", "no tensor of xs and zs can be computed from the others",
     lambda m: (set_strings(gradient(m), "zs", ["h", "t"]), gradient(m).input.__setitem__(2, "h"))),
    ("an x of integers", "xs are floating-point tensors",
     lambda m: (set_strings(gradient(m), "xs", ["W", "T"]), gradient(m).input.__setitem__(1, "T"))),
    ("a point of another shape", "input i has the shape of the i-th name",
     lambda m: gradient(m).input.__setitem__(0, "b")),
    ("a point of another type", "input i has the type of the i-th name",
     lambda m: gradient(m).input.__setitem__(1, "T")),
]:  # fmt: skip
    rule(GRADIENT, _name, _text)(_break)


# Optimizers
OPTIMIZER = "optimizer"


def momentum(m: onnx.ModelProto, **attributes: Any) -> None:
    """Replace Adagrad by Momentum, with the same inputs and outputs."""
    new = helper.make_node("Momentum", list(adagrad(m).input), list(adagrad(m).output), domain=TRAINING, **attributes)
    adagrad(m).CopyFrom(new)


STANDARD = {"alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.0, "mode": "standard"}
for _name, _text, _break in [
    ("too few inputs", "the inputs are R, T and three tensors for each trained one", lambda m: adagrad(m).input.pop()),
    ("too many inputs", "the inputs are R, T and three tensors for each trained one",
     lambda m: adagrad(m).input.append("HW")),
    ("too few outputs", "there are two outputs for each trained tensor",
     lambda m: (adagrad(m).output.pop(), info(m).update_binding.remove(binding(info(m).update_binding, "Hb")),
                algorithm(m).output.remove(next(o for o in algorithm(m).output if o.name == "Hb_new")))),
    ("too many outputs", "there are two outputs for each trained tensor", lambda m: adagrad(m).output.append("extra")),
    ("R is a vector", "R is a scalar", lambda m: adagrad(m).input.__setitem__(0, "b")),
    ("R is an integer", "R is float or double", lambda m: adagrad(m).input.__setitem__(0, "T")),
    ("T is a float", "T is int64", lambda m: adagrad(m).input.__setitem__(1, "R")),
    ("a gradient of another shape", "X, G and the states have one shape",
     lambda m: (adagrad(m).input.__setitem__(4, "db"), adagrad(m).input.__setitem__(5, "dW"))),
    ("a state of another shape", "X, G and the states have one shape",
     lambda m: (adagrad(m).input.__setitem__(6, "Hb"), adagrad(m).input.__setitem__(7, "HW"))),
    ("tensors ordered one by one", "tensors are grouped by kind: all X, then all G, then all H",
     lambda m: [adagrad(m).input.__setitem__(2 + i, n) for i, n in enumerate(["W", "dW", "HW", "b", "db", "Hb"])]),
    ("an unknown mode", "mode is standard or nesterov", lambda m: momentum(m, **{**STANDARD, "mode": "heavy"})),
    ("Momentum without alpha", "alpha, beta, norm_coefficient and mode are required",
     lambda m: momentum(m, **{k: v for k, v in STANDARD.items() if k != "alpha"})),
    ("Momentum without mode", "alpha, beta, norm_coefficient and mode are required",
     lambda m: momentum(m, **{k: v for k, v in STANDARD.items() if k != "mode"})),
    ("an attribute of another optimizer", "a node has only the attributes of its operator",
     lambda m: adagrad(m).attribute.append(helper.make_attribute("beta", 0.5))),
]:  # fmt: skip
    rule(OPTIMIZER, _name, _text)(_break)


def add_all(suite: Suite) -> Iterator[str]:
    """Write every invalid file with its valid twin."""
    for group, name, text, break_it in RULES:
        model = base()
        break_it(model)
        suite.add(
            f"invalid/{group}/{slug(name)}", model, [], kind="invalid", operator=group, domain=TRAINING,
            dtypes=["float32"], oracle="the rule of the standard that SPEC.md names", rule=text, twin=base(),
        )  # fmt: skip
    yield from ()
