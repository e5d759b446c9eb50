"""The tuned file is the file that was given, with other weights: wherever nothing but its operator set was changed."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper

import onward
from onward.model.inference import converted_inference
from onward.model.origin import ORIGIN
from onward.model.serde import to_proto

RNG = np.random.default_rng(4)
IMAGES = RNG.normal(size=(6, 2, 4, 4)).astype(np.float32)
LABELS = np.array([0, 2, 1, 1, 0, 2])

# What opset 9 has otherwise than opset 18: Clip's limits are attributes, Softmax flattens, Squeeze's axes are an
# attribute, Upsample is no Resize, the weights of IR version 3 are inputs.
OLD = """<ir_version: {ir}, opset_import: ["": 9], producer_name: "somebody", domain: "org.example", model_version: 3,
          doc_string: "a net", metadata_props: ["author": "me"]>
net (float[N, 2, 4, 4] x{inputs}) => (float[N, 3] y) {{
    [first] c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, K)
    [second] b = BatchNormalization(c, scale, shift, mean, variance)
    [third] r = Clip<min = 0.0, max = 6.0>(b)
    [fourth] d = Dropout<ratio = 0.5>(r)
    [fifth] u = Upsample<mode = "nearest">(d, scales)
    [sixth] p = GlobalAveragePool(u)
    [seventh] s = Squeeze<axes = [2, 3]>(p)
    [eighth] g = Gemm<transB = 1>(s, W, B)
    [last] y = {last}(g)
}}"""
SHAPES = {"K": (4, 2, 3, 3), "scale": (4,), "shift": (4,), "mean": (4,), "variance": (4,), "W": (3, 4), "B": (3,)}


def old(last: str = "Identity", ir: int = 6) -> onnx.ModelProto:
    inputs = "".join(f", float{list(shape)} {name}" for name, shape in SHAPES.items()) if ir == 3 else ""
    inputs += ", float[4] scales" if ir == 3 else ""
    model = onnx.parser.parse_model(OLD.format(last=last, ir=ir, inputs=inputs))
    weights = {name: RNG.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in SHAPES.items()}
    weights["scales"] = np.array([1, 1, 2, 2], np.float32)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    onnx.checker.check_model(model)
    return model


def trained(model, **arguments) -> onward.Trainer:
    arguments = {"loss": "cross_entropy", "optimizer": onward.SGD(0.1)} | arguments
    trainer = onward.Trainer(onward.make_trainable(model, **arguments))
    trainer.fit(IMAGES, LABELS, epochs=2, batch_size=4, seed=1)
    return trainer


def outputs(model: onnx.ModelProto) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": IMAGES})


def without_numbers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return all of a file but its weights, its metadata, and the empty domains that onnx's parser writes."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    del found.metadata_props[:]
    for node in found.graph.node:
        if not node.domain:
            node.ClearField("domain")
    for tensor in [*found.graph.initializer, *(n.attribute[0].t for n in found.graph.node if n.op_type == "Constant")]:
        for field in ("raw_data", "float_data"):
            tensor.ClearField(field)
    return found


def opset(model: onnx.ModelProto) -> int:
    return max(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))


def assert_only_numbers_changed(tuned: onnx.ModelProto, source: onnx.ModelProto, trainer: onward.Trainer) -> None:
    """Assert it, and that ONNX Runtime computes what it computes of the converted graph."""
    assert without_numbers(tuned) == without_numbers(source)
    state = {n: a for n, a in trainer.session.get_state().items() if n in trainer.to_model().initializers()}
    converted = to_proto(converted_inference(trainer.to_model(), state))
    for found, wanted, before in zip(outputs(tuned), outputs(converted), outputs(source), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        assert np.abs(found - before).max() > 1e-3


@pytest.mark.parametrize("ir", [3, 6])
def test_an_old_file_stays_the_file_that_it_was(ir: int) -> None:
    source = old(ir=ir)

    trainer = trained(source)

    tuned = trainer.to_inference()
    assert_only_numbers_changed(tuned, source, trainer)
    props = {p.key: p.value for p in tuned.metadata_props}
    assert props["author"] == "me"
    assert ORIGIN not in props
    onnx.checker.check_model(tuned)


def test_a_softmax_that_the_loss_looks_through_stays() -> None:
    source = old("Softmax")

    trainer = trained(source, output="g")

    assert_only_numbers_changed(trainer.to_inference(), source, trainer)


def test_weights_in_constant_nodes_stay_there() -> None:
    source = old()
    for tensor in list(source.graph.initializer):
        source.graph.node.insert(0, onnx.helper.make_node("Constant", [], [tensor.name], value=tensor))
    del source.graph.initializer[:]

    trainer = trained(source)

    tuned = trainer.to_inference()
    assert not tuned.graph.initializer
    assert_only_numbers_changed(tuned, source, trainer)


def test_checkpoints_and_training_files_keep_the_file(tmp_path) -> None:
    source = old()
    trainer = trained(source)
    trainer.save_checkpoint(tmp_path / "run")
    onward.save(trainer.to_model(), tmp_path / "net.train.onnx")

    for path in ("run", "net.train.onnx"):
        tuned = onward.to_inference(tmp_path / path)

        assert without_numbers(tuned) == without_numbers(source)
        np.testing.assert_array_equal(outputs(tuned)[0], outputs(trainer.to_inference())[0])


def test_phases_and_a_second_entry_keep_the_file() -> None:
    source = old()

    phased = trained(source, phases=[onward.Phase(train="head", epochs=1), onward.Phase(train="*", epochs=1)])
    twice = onward.make_trainable(onward.make_trainable(source), entry="again", label="others", loss_name="loss2")

    assert_only_numbers_changed(phased.to_inference(), source, phased)
    assert without_numbers(onward.to_inference(twice)) == without_numbers(source)


def test_a_file_that_a_teacher_lifts_to_a_newer_operator_set_keeps_its_own() -> None:
    source = old()

    model = onward.make_trainable(
        source, teacher=onnx.version_converter.convert_version(old(), 21), loss="distillation"
    )

    assert model.opset == 21
    assert without_numbers(onward.to_inference(model)) == without_numbers(source)


@pytest.mark.parametrize(
    "arguments",
    [{"classes": 5}, {"cut": "s", "head": lambda op, v: op.Relu(v), "loss": "mse"}, {"batch_norm": "recover"}],
    ids=["other classes", "cut", "batch_norm"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # the statistics of batch_norm are of random numbers
def test_a_graph_that_was_changed_is_written_as_it_is_now(arguments) -> None:
    source = old()
    if "batch_norm" in arguments:  # a convolution with a bias, into which it was folded
        source.graph.node[0].input.append("shift")
        source.graph.node[2].input[0] = "c"
        del source.graph.node[1]

    tuned = onward.to_inference(onward.make_trainable(source, **arguments))

    assert opset(tuned) >= 18
    assert outputs(tuned)


def test_fresh_weights_for_as_many_classes_are_other_weights_of_the_same_file() -> None:
    source = old("Softmax")

    trainer = trained(source, classes=["cat", "dog", "owl"])

    tuned = trainer.to_inference()
    assert_only_numbers_changed(tuned, source, trainer)
    assert "owl" in str(tuned.metadata_props)


def test_a_shared_weight_of_which_one_layer_trains_its_own_copy_is_not_written_to_both() -> None:
    text = """<ir_version: 6, opset_import: ["": 11]>
    net (float[N, 3] x) => (float[N, 3] y) { a = Gemm(x, one.W, zeros) r = Relu(a) y = Gemm(r, two.W, zeros) }"""
    source = onnx.parser.parse_model(text.replace("one.W", "W1").replace("two.W", "W2"))
    weights = {"W1": RNG.normal(size=(3, 3)), "W2": RNG.normal(size=(3, 3)), "zeros": np.zeros(3)}
    source.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items())
    model = onward.make_trainable(source, train=["W*", "zeros"], loss="mse", optimizer=onward.SGD(0.1))
    trainer = onward.Trainer(model)
    x = RNG.normal(size=(5, 3)).astype(np.float32)
    trainer.step({"x": x, "labels": x})

    tuned = trainer.to_inference()

    session = onnxruntime.InferenceSession(tuned.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], trainer.predict(x), rtol=1e-5, atol=1e-6)


def test_a_graph_that_was_edited_afterwards_is_written_as_it_is_now() -> None:
    model = onward.make_trainable(old())
    next(n for n in model.graph if n.op_type == "GlobalAveragePool").op_type = "GlobalMaxPool"

    assert opset(onward.to_inference(model)) == 18


def test_a_constant_that_conversion_made_and_somebody_changed_is_not_lost() -> None:
    model = onward.make_trainable(old())
    clip = next(n for n in model.graph if n.op_type == "Clip")
    most = clip.inputs[2]
    assert most is not None
    if most.producer() is None:
        most.const_value = ir.tensor(np.float32(0.1), name=most.name)
    else:
        most.producer().attributes["value"] = ir.AttrTensor("value", ir.tensor(np.float32(0.1)))

    tuned = onward.to_inference(model)

    assert opset(tuned) == 18
    assert not np.allclose(outputs(tuned)[0], outputs(old())[0])


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"model": "!", "graph": ""}', '{"model": "eJwDAAAAAAE=", "graph": 1}']
)
def test_a_damaged_note_is_left_aside(text: str) -> None:
    model = onward.make_trainable(old())
    model.ir.metadata_props[ORIGIN] = text

    assert opset(onward.to_inference(model)) == 18


def test_a_note_that_does_not_fit_the_graph_is_left_aside() -> None:
    one, other = onward.make_trainable(old()), onward.make_trainable(old("Softmax"), output="g")
    one.ir.metadata_props[ORIGIN] = other.ir.metadata_props[ORIGIN]

    assert opset(onward.to_inference(one)) == 18


def test_the_note_is_small_and_stays_out_of_programs() -> None:
    source = old()
    source.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((400, 2, 3, 3), np.float32), "K"))
    for tensor in source.graph.initializer:
        if tensor.name in ("scale", "shift", "mean", "variance"):
            tensor.CopyFrom(numpy_helper.from_array(RNG.random(400).astype(np.float32), tensor.name))
        if tensor.name == "W":
            tensor.CopyFrom(numpy_helper.from_array(RNG.random((3, 400)).astype(np.float32), "W"))
    model = onward.make_trainable(source)

    assert len(model.ir.metadata_props[ORIGIN]) < 2000
    assert json.loads(model.ir.metadata_props[ORIGIN])["graph"]
    assert ORIGIN not in {p.key for p in onward.compile(model).infer.metadata_props}


def test_a_file_of_a_new_operator_set_needs_no_note() -> None:
    source = onnx.version_converter.convert_version(old(), 18)

    assert ORIGIN not in onward.make_trainable(source).ir.metadata_props
