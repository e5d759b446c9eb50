"""Data from arrays and iterables: how it is matched to a model, in which order it comes, and what does not fit."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
from PIL import Image

from onward.compiler.program import TensorSpec
from onward.errors import ArgumentError, DataError
from onward.train.data import BatchRequest, IterableSource, Preparation, as_source, match
from onward.train.data.files import open_data
from onward.train.data.prefetch import Prefetcher, default_prefetch
from train.specs import FEATURES, IMAGES, LABELS, TARGET, arrays, feeds_of

# -- matching


def test_uint8_images_are_cast_and_get_a_channel_axis():
    images = np.arange(32, dtype=np.uint8).reshape(2, 4, 4)

    (feeds,) = feeds_of(arrays(images, np.array([0, 1], np.uint8)), IMAGES, LABELS)

    assert feeds["images"].dtype == np.float32
    assert feeds["images"].shape == (2, 1, 4, 4)
    np.testing.assert_array_equal(feeds["images"][:, 0], images)
    assert feeds["labels"].dtype == np.int64


def test_a_last_channel_axis_is_added_where_the_model_has_it_last():
    model = (TensorSpec("images", "float32", ("N", 4, 4, 1)),)

    (feeds,) = feeds_of(as_source(np.zeros((2, 4, 4)), None, model, (), Preparation()), model, ())

    assert feeds["images"].shape == (2, 4, 4, 1)


def test_images_are_flattened_for_a_flat_input():
    model = (TensorSpec("x", "float32", ("N", 16)),)

    (feeds,) = feeds_of(as_source(np.arange(32).reshape(2, 4, 4), None, model, (), Preparation()), model, ())

    np.testing.assert_array_equal(feeds["x"], np.arange(32).reshape(2, 16))


def test_labels_as_a_column_vector_are_squeezed():
    (feeds,) = feeds_of(arrays(np.zeros((2, 4, 4)), np.array([[3], [4]])), IMAGES, LABELS)

    np.testing.assert_array_equal(feeds["labels"], [3, 4])


def test_scale_mean_and_std_change_inputs_and_not_targets():
    preparation = Preparation(scale=0.5, mean=1.0, std=2.0)
    source = as_source({"x": np.full((2, 3), 6.0), "t": np.full((2, 1), 6.0)}, None, FEATURES, TARGET, preparation)

    (feeds,) = feeds_of(source, FEATURES, TARGET, preparation)

    np.testing.assert_array_equal(feeds["x"], np.full((2, 3), 1.0, np.float32))
    np.testing.assert_array_equal(feeds["t"], np.full((2, 1), 6.0, np.float32))


def test_mean_and_std_per_channel():
    model = (TensorSpec("x", "float32", ("N", 3, 2, 2)),)
    preparation = Preparation(mean=[1.0, 2.0, 3.0], std=[1.0, 2.0, 4.0])

    (feeds,) = feeds_of(as_source(np.full((1, 3, 2, 2), 7.0), None, model, (), preparation), model, (), preparation)

    np.testing.assert_array_equal(feeds["x"][0, :, 0, 0], [6.0, 2.5, 1.0])


def test_one_hot_codes_classes_with_the_width_of_the_model():
    target = (TensorSpec("t", "float32", ("N", 4)),)
    preparation = Preparation(one_hot=True)
    source = as_source(np.zeros((2, 3)), np.array([1, 3]), FEATURES, target, preparation)

    (feeds,) = feeds_of(source, FEATURES, target, preparation)

    np.testing.assert_array_equal(feeds["t"], [[0, 1, 0, 0], [0, 0, 0, 1]])


def test_one_hot_refuses_a_class_out_of_range():
    target = (TensorSpec("t", "float32", ("N", 4)),)
    preparation = Preparation(one_hot=True)
    source = as_source(np.zeros((2, 3)), np.array([1, 4]), FEATURES, target, preparation)

    with pytest.raises(DataError, match="labels from 1 to 4"):
        feeds_of(source, FEATURES, target, preparation)


def test_every_misfit_is_reported_with_both_sides():
    source = as_source({"images": np.zeros((5, 3, 4, 4)), "labels": np.zeros(5)}, None, IMAGES, LABELS, Preparation())

    with pytest.raises(DataError) as caught:
        match(source, IMAGES, LABELS, Preparation())

    assert str(caught.value) == (
        "error[T111]: column `images` does not have the shape of `images`\n"
        "  found: data: `images` float64 (N, 3, 4, 4)\n"
        "  needed: model: `images` float32 (N, 1, 4, 4)\n\n"
        "error[T112]: column `labels` has the wrong element type for `labels`\n"
        "  found: data: `labels` float64 (N,)\n"
        "  needed: model: `labels` int64 (N,)\n\n"
        "hint: class numbers are whole numbers: labels.astype('int64'), once nothing in it is NaN or a fraction"
    )


def test_a_missing_column_shows_what_there_is():
    source = as_source(
        {"pictures": np.zeros((5, 4, 4)), "labels": np.zeros(5, int)}, None, IMAGES, LABELS, Preparation()
    )

    with pytest.raises(DataError, match=r"no column `images` in the data\n  found: data: `pictures` float64"):
        match(source, IMAGES, LABELS, Preparation())


def test_columns_map_names_of_the_model_to_names_of_the_data():
    preparation = Preparation(columns={"images": "pictures"})
    source = as_source({"pictures": np.ones((5, 4, 4)), "labels": np.zeros(5, int)}, None, IMAGES, LABELS, preparation)

    (feeds,) = feeds_of(source, IMAGES, LABELS, preparation)

    assert feeds["images"].shape == (5, 1, 4, 4)


def test_class_numbers_where_rows_are_wanted_give_the_hint():
    target = (TensorSpec("t", "float32", ("N", 4)),)

    with pytest.raises(DataError, match="one_hot=True"):
        match(
            as_source(np.zeros((2, 3)), np.array([1, 3]), FEATURES, target, Preparation()),
            FEATURES,
            target,
            Preparation(),
        )


def test_an_integer_that_does_not_fit_is_an_error():
    model = (TensorSpec("x", "int8", ("N",)),)

    with pytest.raises(DataError, match="holds 300"):
        feeds_of(as_source(np.array([1, 300]), None, model, (), Preparation()), model, ())


def test_columns_of_different_length_are_refused():
    with pytest.raises(DataError, match="`images`: 3, `labels`: 2"):
        arrays(np.zeros((3, 4, 4)), np.zeros(2, int))


def test_no_samples_are_refused():
    with pytest.raises(DataError, match="no samples"):
        arrays(np.zeros((0, 4, 4)), np.zeros(0, int))


# -- order


def test_resuming_in_an_epoch_gives_the_rest_of_the_same_order():
    source = as_source({"x": np.arange(10)}, None, (), (), Preparation())
    request = BatchRequest(3, shuffle=True, seed=4, epoch=2)

    whole = [b["x"].tolist() for b in source.batches(request)]
    rest = [b["x"].tolist() for b in source.batches(BatchRequest(3, shuffle=True, seed=4, epoch=2, start=2))]

    assert sorted(x for batch in whole for x in batch) == list(range(10))
    assert rest == whole[2:]


@pytest.mark.parametrize("kind", ["folders", "text", "truth"])
def test_split_holds_back_the_same_share_of_each_class(kind, tmp_path):
    """Data sorted by class, as folders are: of 30 samples, seed 0 would hold back six of the first class."""
    sizes = [10, 30, 5] if kind != "truth" else [15, 30]
    classes = np.repeat(np.arange(len(sizes)), sizes)
    specs = [TensorSpec("x", "float32", ("N", 1, 2, 2))], [TensorSpec("kind", "int64", ("N",))]
    if kind == "folders":
        for i, number in enumerate(classes):
            (tmp_path / str(number)).mkdir(exist_ok=True)
            Image.new("L", (2, 2)).save(tmp_path / str(number) / f"{i}.png")
        source = open_data(tmp_path, *specs, part="train")
    else:
        specs = [TensorSpec("x", "float32", ("N",))], specs[1]
        names = np.array(["ant", "bee", "cow"])[classes] if kind == "text" else classes > 0
        pandas.DataFrame({"x": np.arange(45.0), "kind": names}).to_csv(tmp_path / "t.csv", index=False)
        source = open_data(tmp_path / "t.csv", *specs, part="train")

    chosen = [source.split_rows(0.2, seed, by=list(source.columns)[-1])[1] for seed in range(20)]

    counts = np.array([np.bincount(classes[held], minlength=len(sizes)) for held in chosen])
    assert (counts == np.array(sizes) // 5).all()
    assert len({tuple(held) for held in chosen}) == 20


def test_split_holds_back_a_share_and_loses_nothing():
    source = as_source({"x": np.arange(50)}, None, (), (), Preparation())

    rest, held = source.split(0.2, seed=1)

    a, b = (np.concatenate([batch["x"] for batch in s.batches(BatchRequest(7))]) for s in (rest, held))
    assert (len(a), len(b)) == (40, 10)
    assert sorted([*a, *b]) == list(range(50))


# -- iterables


def test_generator_function_is_called_with_the_epoch():
    source = IterableSource(lambda epoch: iter([(np.full((2, 3), epoch), np.zeros((2, 1)))]))

    assert [next(iter(source.batches(BatchRequest(1, epoch=e))))["item[0]"][0, 0] for e in range(3)] == [0, 1, 2]


def test_a_used_up_generator_says_so():
    source = IterableSource((np.zeros((2, 3)), np.zeros((2, 1))) for _ in range(2))
    source.specs()

    assert len(list(source.batches(BatchRequest(1, epoch=0)))) == 2
    with pytest.raises(DataError, match="a generator can be read only once"):
        list(source.batches(BatchRequest(1, epoch=1)))


def test_an_endless_generator_is_cut_into_epochs():
    source = IterableSource(iter({"x": np.array([[i]])} for i in range(1000)), steps_per_epoch=3)
    source.specs()

    seen = [[int(b["x"][0, 0]) for b in source.batches(BatchRequest(1, epoch=e))] for e in range(2)]

    assert seen == [[0, 1, 2], [3, 4, 5]]


def test_a_resumed_endless_generator_skips_what_was_seen():
    source = IterableSource(iter({"x": np.array([[i]])} for i in range(1000)), steps_per_epoch=3)

    assert [int(b["x"][0, 0]) for b in source.batches(BatchRequest(1, epoch=2, start=1))] == [7, 8]


def test_a_torch_dataloader_gives_batches():
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.arange(15.0).reshape(5, 3), torch.ones(5, 1))
    source = as_source(torch.utils.data.DataLoader(data, batch_size=2), None, FEATURES, TARGET, Preparation())

    batches = feeds_of(source, FEATURES, TARGET)

    assert [len(b["x"]) for b in batches] == [2, 2, 1]
    assert source.count_batches(2) == 3


def test_an_item_that_is_no_batch_is_named():
    with pytest.raises(DataError, match="batch 0 of the iterable is an int"):
        IterableSource([1, 2]).specs()


def test_an_object_that_is_no_data_is_refused():
    with pytest.raises(ArgumentError, match="an int is not training data"):
        as_source(3, None, FEATURES, TARGET, Preparation())


# -- prefetch


def test_prefetch_keeps_the_order_and_raises_in_place():
    def items():
        yield from range(5)
        raise RuntimeError("broken disk")

    seen = []
    with pytest.raises(RuntimeError, match="broken disk"), Prefetcher(items()) as ready:
        seen += ready  # one by one, up to the error
    with Prefetcher(iter(range(100)), depth=3) as ready:
        assert list(ready) == list(range(100))


def test_small_batches_from_memory_need_no_thread(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((10, 4)))
    small = as_source({"x": np.zeros((10, 4))}, None, (), (), Preparation())
    large = as_source({"x": np.zeros((10, 300, 300))}, None, (), (), Preparation())

    assert default_prefetch(small, 32) == 0
    assert default_prefetch(large, 32) == 2
    assert default_prefetch(open_data(tmp_path), 32) == 2
    assert default_prefetch(IterableSource([]), 32) == 2


def test_leaving_early_ends_the_thread():
    import threading

    before = threading.active_count()

    with Prefetcher(iter(range(10**9)), depth=2) as ready:
        next(iter(ready))

    assert threading.active_count() == before
