from __future__ import annotations

import onnx_ir as ir
import pytest

from onward import losses
from onward.errors import ArgumentError
from onward.graph.builder import Builder


def value(*shape: int | str, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    return ir.Value(name="y", type=ir.TensorType(dtype), shape=ir.Shape(shape))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.by_name("mze"), "error[A100]: no such loss `mze`"),
        (lambda: losses.by_name("huber", delt=1.0), "no such setting `delt`\n  at loss `huber`"),
        (lambda: losses.MSE(reduction="avg"), "at loss `MSE`\n  needed: one of: mean, none, sum"),
        (lambda: losses.KLDiv(reduction="avg"), "needed: one of: batchmean, mean, none, sum"),
        (lambda: losses.CrossEntropy(label_smoothing=2.0), "`label_smoothing` of `CrossEntropy` is out of range"),
        (lambda: losses.CrossEntropy(targets="onehot"), "no such kind of targets `onehot`"),
        (lambda: losses.CrossEntropy(targets="probability", ignore_index=1), "`ignore_index` needs index targets"),
        (lambda: losses.CrossEntropy(ignore_index="foo"), "`ignore_index` of `CrossEntropy` is not a class number"),
        (lambda: losses.NLL(ignore_index=1.5), "`ignore_index` of `NLL` is not a class number"),
        (lambda: losses.Huber(delta=0.0), "needed: a finite number above 0"),
        (lambda: losses.TripletMargin(p=-1.0), "`p` of `TripletMargin` is out of range"),
        (lambda: losses.MSE() * float("nan"), "`weight` of `Weighted` is out of range"),
    ],
)  # fmt: skip
def test_a_wrong_setting_says_what_is_right(make, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make()

    assert message in str(caught.value)


def test_class_weights_must_fit_the_classes() -> None:
    with pytest.raises(ArgumentError) as caught:
        losses.CrossEntropy(weight=[1.0, 2.0]).emit(Builder(18), [value("N", 3)], [value("N", dtype=ir.DataType.INT64)])

    assert "found: weights of shape [2]\n  needed: one weight for each of the 3 classes of output `y`" in str(
        caught.value
    )


@pytest.mark.parametrize(("shape", "axis"), [((3,), 1), ((2, 3), 2), ((2, 3), 0), ((2, 3), -2)])
def test_an_output_without_the_class_axis_is_refused(shape: tuple[int, ...], axis: int) -> None:
    with pytest.raises(ArgumentError, match=f"output `y` has no class axis {axis}"):
        losses.CrossEntropy(axis=axis).labels([value(*shape)])


def test_a_cross_entropy_of_one_class_is_refused() -> None:
    """It is 0 for every output, so nothing would be trained, in silence."""
    for targets in losses.cross_entropy.TARGETS:
        with pytest.raises(ArgumentError, match="`y` has one class") as caught:
            losses.CrossEntropy(targets=targets).labels([value("N", 1)])

        assert "`bce_with_logits`" in str(caught.value)
    assert losses.CrossEntropy().labels([value("N", 2)])[0].shape == ("N",)


def test_terms_that_read_different_labels_cannot_be_added() -> None:
    with pytest.raises(ArgumentError) as caught:
        (losses.CrossEntropy() + losses.MSE()).labels([value("N", 3)])

    assert "the losses of a sum do not read the same labels" in str(caught.value)
    assert "`MSE` needs float['N', 3], another term needs int64['N']" in str(caught.value)


def test_an_output_of_unknown_rank_asks_for_a_shape() -> None:
    output = ir.Value(name="y", type=ir.TensorType(ir.DataType.FLOAT))

    with pytest.raises(ArgumentError, match="the number of dimensions of output `y` is not known"):
        losses.MSE().labels([output])
