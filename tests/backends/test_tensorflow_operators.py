"""The TensorFlow interpreter against ONNX's own node tests, with a strict list of what it cannot do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import tomllib

tf = pytest.importorskip("tensorflow")

from backends.node_tests import cases, check_gap, outcome, tensorflow_backend  # noqa: E402
from onward.backends.tensorflow.registry import REGISTRY  # noqa: E402
from onward.backends.tensorflow.tensors import tf_type  # noqa: E402
from onward.errors import BackendError  # noqa: E402

GAPS = tomllib.loads((Path(__file__).parent.parent / "known_gaps.toml").read_text())["tensorflow_node_tests"]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    found = [(case.name, outcome(case, tensorflow_backend())) for case in cases()]
    assert len({name for name, _ in found}) == len(found)  # each is counted once
    return dict(found)


def test_every_node_test_passes_but_the_known_gaps(outcomes: dict[str, str]) -> None:
    known = [re.compile(gap["tests"]) for gap in GAPS]

    unexpected = {
        name: found
        for name, found in outcomes.items()
        if found != "passed" and not any(k.fullmatch(name) for k in known)
    }

    assert unexpected == {}
    assert sum(found == "passed" for found in outcomes.values()) >= 0.9 * len(outcomes)


@pytest.mark.parametrize("gap", GAPS, ids=[g["tests"] for g in GAPS])
def test_a_known_gap_is_still_a_gap(gap: dict[str, Any], outcomes: dict[str, str]) -> None:
    check_gap(gap, outcomes)


# One of each family, traced as a training step is. Where axes and sizes are inputs they are not known, so no more.
TRACED = [
    "test_add_bcast", "test_averagepool_2d_pads_count_include_pad", "test_averagepool_2d_ceil",
    "test_basic_conv_with_padding", "test_batchnorm_epsilon_training_mode", "test_clip",
    "test_conv_with_autopad_same", "test_convtranspose_dilations", "test_convtranspose_group_2",
    "test_deform_conv_with_multiple_offset_groups", "test_einsum_batch_matmul", "test_gather_elements_0",
    "test_gathernd_example_int32_batch_dim1", "test_gelu_default_1", "test_gemm_all_attributes",
    "test_gridsample_bilinear", "test_gru_defaults", "test_if", "test_layer_normalization_4d_axis1",
    "test_loop11", "test_loop16_seq_none", "test_lrn", "test_lstm_with_peepholes", "test_maxpool_2d_dilations",
    "test_maxpool_with_argmax_2d_precomputed_pads", "test_range_float_type_positive_delta",
    "test_reshape_reordered_all_dims", "test_scan9_sum", "test_scatter_elements_with_axis",
    "test_sce_NCd1d2d3_none_no_weight_negative_ii_log_prob", "test_simple_rnn_batchwise", "test_softmax_axis_1",
    "test_top_k", "test_transpose_all_permutations_4", "test_where_example",
]  # fmt: skip
UNTRACEABLE = {"test_loop16_seq_none"}  # a sequence that grows in a loop whose number of steps is an input


def test_node_tests_pass_while_tensorflow_traces() -> None:
    chosen = [case for case in cases() if case.name in TRACED]

    found = {case.name: outcome(case, tensorflow_backend(traced=True)) for case in chosen}

    assert set(found) == set(TRACED)
    assert {name for name, what in found.items() if what != "passed"} == UNTRACEABLE, found


def test_every_registered_operator_exists_in_the_standard() -> None:
    known = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()}

    assert set(REGISTRY.supported()) <= known


def test_an_element_type_that_tensorflow_lacks_is_named() -> None:
    with pytest.raises(BackendError, match="TensorFlow has no element type STRING"):
        tf_type(ir.DataType.STRING)
