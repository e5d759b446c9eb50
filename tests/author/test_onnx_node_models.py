"""ONNX's own node tests as models: each is made trainable, or refused with an error of ours."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

from onward.author import make_trainable
from onward.check import check
from onward.errors import ArgumentError, Severity
from onward.model.inference import to_inference

EVERY = 16  # the whole set (1884 models) takes two minutes
RANDOM = ("training", "bernoulli", "random", "dropout", "multinomial")


def as_network(case) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return the node with its floating-point inputs as weights, and feeds for the rest."""
    proto = onnx.ModelProto()
    proto.CopyFrom(case.model)
    feeds, kept = {}, []
    for info, array in zip(list(proto.graph.input), case.data_sets[0][0], strict=False):
        if isinstance(array, np.ndarray) and array.dtype.kind == "f" and info.type.HasField("tensor_type"):
            proto.graph.initializer.append(numpy_helper.from_array(array, info.name))
        else:
            feeds[info.name] = array
            kept.append(info)
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    return proto, feeds


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_node_models_train_or_say_why_not_and_keep_their_inference() -> None:
    cases = [c for c in load_model_tests(kind="node")[::EVERY] if c.data_sets and not any(r in c.name for r in RANDOM)]
    if not cases:
        pytest.skip("onnx before 1.23 has its node tests in files, without their data")
    trained = 0

    for case in cases:
        proto, feeds = as_network(case)
        try:
            model = make_trainable(proto, loss="mse", optimizer="sgd", output=proto.graph.output[0].name)
        except ArgumentError:
            continue
        trained += 1
        errors = [d for d in check(model.proto()).findings if d.severity is Severity.ERROR and d.code != "C119"]
        assert not errors, (case.name, errors)
        before, after = (ReferenceEvaluator(p).run(None, feeds) for p in (proto, to_inference(model)))
        for old, new in zip(before, after, strict=True):
            if isinstance(old, np.ndarray):
                np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-6, err_msg=case.name)

    assert trained > 0.4 * len(cases)
