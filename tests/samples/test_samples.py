from __future__ import annotations

import onnx
import pytest

from onward import samples
from onward.check import check
from onward.errors import ArgumentError
from onward.model.convert import combined_proto


@pytest.mark.parametrize("name", sorted(samples.SAMPLES))
def test_a_sample_has_nothing_to_report(name: str) -> None:
    proto = samples.build(name).proto()

    report = check(proto, pedantic=True)

    assert report.findings == ()


@pytest.mark.parametrize("name", sorted(samples.SAMPLES))
def test_onnx_accepts_the_combined_graph_of_a_sample(name: str) -> None:
    model = samples.build(name)

    proto = combined_proto(model, model.entries[0])

    onnx.checker.check_model(proto, full_check=True)


@pytest.mark.parametrize("name", sorted(samples.SAMPLES))
def test_a_sample_has_the_same_bytes_each_time(name: str) -> None:
    assert samples.build(name).proto().SerializeToString() == samples.build(name).proto().SerializeToString()


def test_the_linear_sample_is_adagrad_with_r_t_and_h() -> None:
    model = samples.build("linear")

    (optimizer,) = [n for n in model.entries[0].algorithm if n.op_type == "Adagrad"]

    assert [v.name for v in optimizer.inputs] == ["R", "T", "W", "grad/W", "H"]


@pytest.mark.parametrize(("name", "side"), [("digits", 8), ("mnist", 28)])
def test_the_image_samples_read_images_and_labels(name: str, side: int) -> None:
    model = samples.build(name)

    assert (model.inputs, model.targets, model.outputs) == (["images"], ["labels"], ["logits"])
    assert [str(d) for d in model.graph.inputs[0].shape] == ["N", "1", str(side), str(side)]


def test_an_unknown_sample_lists_those_that_exist() -> None:
    with pytest.raises(ArgumentError) as caught:
        samples.build("minst")

    assert str(caught.value) == (
        "error[A100]: no such sample `minst`\n  needed: one of: digits, linear, mnist\n\nhint: did you mean `mnist`?"
    )
