"""Every operator of ai.onnx.ml as plain operators: the numbers of ONNX Runtime, and the operator comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import tomllib
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import onward
from onward.model.inference import to_inference
from onward.model.trainable import PREPARES
from onward.upgrade import normalise
from onward.upgrade.microsoft import decompose_microsoft
from onward.upgrade.ml.support import SUPPORT
from upgrade.ml_cases import CASES, FLOAT, INT, MEMBERS, ROUND, Case, grown, model_of, new_trees

KNOWN_GAPS = Path(__file__).parents[1] / "known_gaps.toml"


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[Any]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def assert_same(actual: list[Any], expected: list[Any], atol: float = 2e-6) -> None:
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        if e.dtype.kind == "f":
            np.testing.assert_allclose(a, e, rtol=2e-5, atol=atol)
        else:
            assert a.tolist() == e.tolist()


def attributes(proto: onnx.ModelProto) -> dict[str, Any]:
    found = {a.name: onnx.helper.get_attribute_value(a) for a in proto.graph.node[0].attribute}
    arrays = {n: numpy_helper.to_array(v) for n, v in found.items() if isinstance(v, onnx.TensorProto)}
    return dict(sorted((found | {n: (a.dtype, a.tolist()) for n, a in arrays.items()}).items()))


@pytest.mark.parametrize("name", CASES)
def test_the_plain_operators_give_the_numbers_of_onnxruntime(name: str) -> None:
    proto, feeds = model_of(CASES[name])
    model = ir.serde.deserialize_model(proto)

    assert decompose_microsoft(model)

    plain = ir.serde.serialize_model(model)
    left = {n.op_type for n in plain.graph.node if n.domain}
    assert left == ({"LabelEncoder"} if name == "word to number" else set())  # words have no plain operator
    expected = run(proto, feeds)
    assert any(np.unique(e[np.isfinite(e)] if e.dtype.kind == "f" else e).size > 1 for e in expected)
    # Near 0.5, PROBIT is the root of a difference of equal numbers.
    assert_same(run(plain, feeds), expected, 5e-4 if "PROBIT" in name else 2e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_operator_comes_back_as_it_was(name: str) -> None:
    proto, _ = model_of(CASES[name])

    back = to_inference(normalise(proto))

    assert [n.op_type for n in back.graph.node] == [proto.graph.node[0].op_type]
    assert repr(attributes(back)) == repr(attributes(proto))
    assert {o.domain: o.version for o in back.opset_import}["ai.onnx.ml"] == CASES[name].version
    assert not back.graph.initializer
    assert not back.graph.metadata_props


def test_members_of_sets_are_found() -> None:
    proto, feeds = model_of(MEMBERS)
    model = ir.serde.deserialize_model(proto)

    assert decompose_microsoft(model)

    expected = ReferenceEvaluator(proto).run(None, feeds)
    assert len(np.unique(expected[0])) > 4
    assert_same(run(ir.serde.serialize_model(model), feeds), expected)


LEFT = {
    "the two enumerations of post_transform": new_trees(FLOAT, post_transform=1),
    "base values of two scores": Case(
        "TreeEnsembleClassifier",
        [ROUND],
        {**grown(2, ids=(0, 1), kind="class", every=True), "classlabels_int64s": [4, 5], "base_values": [0.1, 0.2]},
        [INT, FLOAT],
    ),
    "one score that is the second": Case(
        "TreeEnsembleClassifier",
        [ROUND],
        {**grown(2, ids=(1,), kind="class"), "classlabels_int64s": [4, 5]},
        [INT, FLOAT],
    ),
}
GAPS = {line["what"]: line["reason"] for line in tomllib.loads(KNOWN_GAPS.read_text("utf-8"))["classical"]}


def test_what_has_no_plain_form_is_a_known_gap() -> None:
    without = {s.name for s in SUPPORT if not s.plain}

    assert set(GAPS) == without | set(LEFT)
    assert all(GAPS.values())


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_expressed_stays_and_is_refused(name: str) -> None:
    proto, _ = model_of(LEFT[name])
    output = proto.graph.output[-1].name
    proto.graph.output[-1].CopyFrom(onnx.helper.make_tensor_value_info(output, FLOAT, ["N", 2]))

    assert not decompose_microsoft(ir.serde.deserialize_model(proto))
    with pytest.raises(onward.OnwardError, match=r"(?s)A111.*onward doctor"):
        onward.make_trainable(proto, loss="mse", optimizer="sgd", output=output)


def test_the_table_of_what_trains_is_what_the_decompositions_do() -> None:
    known = {s.name for s in onnx.defs.get_all_schemas() if s.domain == "ai.onnx.ml"}
    assert {s.name for s in SUPPORT} == known
    found: dict[str, tuple[set[str], set[str]]] = {}
    for case in CASES.values():
        model = ir.serde.deserialize_model(model_of(case)[0])
        decompose_microsoft(model)
        trains, by_name = found.setdefault(case.op_type, (set(), set()))
        values = ir.convenience.create_value_mapping(model.graph)
        for key, text in model.graph.metadata_props.items():
            for attribute, name in json.loads(text)["weights"].items():
                assert key.startswith("onward.ml/")
                (by_name if PREPARES in values[name].metadata_props else trains).add(attribute)

    for support in SUPPORT:
        assert support.plain == (support.name in found)
        trains, by_name = found.get(support.name, (set(), set()))
        assert trains == set(support.trains), support.name
        assert by_name == set(support.by_name) - {"values_tensor"}, support.name
