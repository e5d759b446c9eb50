"""Data from arrays, files, folders and iterables, and what happens when it does not fit."""

from __future__ import annotations

import gzip
import struct
import sys

import numpy as np
import pytest
from PIL import Image

from onward.errors import ArgumentError, DataError, MissingExtra
from onward.program import TensorSpec
from onward.train.data import BatchRequest, IterableSource, Preparation, as_source, match
from onward.train.data.files import open_data, open_named
from onward.train.data.prefetch import Prefetcher
from onward.train.data.source import default_prefetch

IMAGES = (TensorSpec("images", "float32", ("N", 1, 4, 4)),)
LABELS = (TensorSpec("labels", "int64", ("N",)),)
FEATURES = (TensorSpec("x", "float32", ("N", 3)),)
TARGET = (TensorSpec("t", "float32", ("N", 1)),)


def feeds_of(source, inputs, targets, preparation=None, batch_size=1000):
    matching = match(source, inputs, targets, preparation or Preparation())
    return [matching.make(b) for b in source.batches(BatchRequest(batch_size))]


def arrays(*values):
    return as_source(values, None, IMAGES, LABELS, Preparation())


def write_idx(path, array, opener=open):
    codes = {np.dtype("u1"): 8, np.dtype("i4"): 12, np.dtype("f4"): 13}
    header = struct.pack(">HBB", 0, codes[array.dtype], array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    with opener(path, "wb") as file:
        file.write(header + array.astype(array.dtype.newbyteorder(">")).tobytes())


def mnist_folder(path, opener=open, suffix=""):
    for part, count in (("train", 6), ("t10k", 3)):
        images = np.arange(count * 16, dtype=np.uint8).reshape(count, 4, 4)
        write_idx(path / f"{part}-images-idx3-ubyte{suffix}", images, opener)
        write_idx(path / f"{part}-labels-idx1-ubyte{suffix}", np.arange(count, dtype=np.uint8), opener)


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
    with pytest.raises(DataError, match="batch 0 of the iterable is a int"):
        IterableSource([1, 2]).specs()


def test_an_object_that_is_no_data_is_refused():
    with pytest.raises(ArgumentError, match="a int is no training data"):
        as_source(3, None, FEATURES, TARGET, Preparation())


# -- files


def test_npz_columns_go_by_name(tmp_path):
    np.savez(tmp_path / "d.npz", t=np.ones((4, 1)), x=np.zeros((4, 3)))

    (feeds,) = feeds_of(open_data(tmp_path / "d.npz"), FEATURES, TARGET)

    assert feeds["x"].shape == (4, 3)


def test_npy_files_of_a_folder_are_memory_mapped_columns(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((4, 3), np.float32))
    np.save(tmp_path / "t.npy", np.ones((4, 1), np.float32))

    source = open_data(tmp_path)

    assert isinstance(source.columns["x"].array, np.memmap)
    assert len(feeds_of(source, FEATURES, TARGET)) == 1


def test_named_files_become_columns(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((4, 3), np.float32))
    np.save(tmp_path / "b.npy", np.ones((4, 1), np.float32))

    source = open_named({"x": tmp_path / "a.npy", "t": tmp_path / "b.npy"})

    assert [s.name for s in source.specs()] == ["x", "t"]


def test_npy_with_python_objects_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)

    with pytest.raises(DataError, match="damaged or not what its name says"):
        open_data(tmp_path / "x.npy")


def test_safetensors_columns_go_by_name(tmp_path):
    from safetensors.numpy import save_file

    save_file({"x": np.ones((4, 3), np.float32), "t": np.ones((4, 1), np.float32)}, tmp_path / "d.safetensors")

    (feeds,) = feeds_of(open_data(tmp_path / "d.safetensors"), FEATURES, TARGET)

    assert feeds["t"].shape == (4, 1)


@pytest.mark.parametrize(("opener", "suffix"), [(open, ""), (gzip.open, ".gz")])
def test_mnist_folder_gives_its_parts(tmp_path, opener, suffix):
    mnist_folder(tmp_path, opener, suffix)

    (train,) = feeds_of(open_data(tmp_path, part="train"), IMAGES, LABELS)
    (test,) = feeds_of(open_data(tmp_path, part="evaluate"), IMAGES, LABELS)

    assert train["images"].shape == (6, 1, 4, 4)
    assert test["images"].shape == (3, 1, 4, 4)
    np.testing.assert_array_equal(train["images"].ravel(), np.arange(96))
    np.testing.assert_array_equal(test["labels"], [0, 1, 2])


def test_idx_of_wider_types_is_read_in_native_order(tmp_path):
    array = np.array([[1.5, -2.0], [3.25, 1e9]], np.float32)
    write_idx(tmp_path / "a-idx", array)

    source = open_data(tmp_path / "a-idx")

    read = source.columns["a-idx"].array
    np.testing.assert_array_equal(read, array)
    assert read.dtype.isnative


@pytest.mark.parametrize("cut", [5, 20, -1])
def test_a_cut_idx_file_is_an_error(tmp_path, cut):
    mnist_folder(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:cut])

    with pytest.raises(DataError, match="no whole IDX file"):
        open_data(tmp_path)


def test_idx_with_something_behind_it_is_an_error(tmp_path):
    mnist_folder(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes() + b"x")

    with pytest.raises(DataError, match="there is more than"):
        open_data(tmp_path)


def test_csv_columns_by_name_prefix_and_rest(tmp_path):
    (tmp_path / "d.csv").write_text("a,b,c,t\n1,2,3,0.5\n4,5,6,1.5\n")

    (feeds,) = feeds_of(open_data(tmp_path / "d.csv", FEATURES, TARGET), FEATURES, TARGET)

    np.testing.assert_array_equal(feeds["x"], [[1, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(feeds["t"], [[0.5], [1.5]])


def test_csv_numbered_columns_are_sorted_by_number(tmp_path):
    wide = (TensorSpec("x", "float32", ("N", 11)),)
    names = [f"x_{i}" for i in reversed(range(11))]
    (tmp_path / "d.csv").write_text(",".join([*names, "t"]) + "\n" + ",".join(map(str, [*range(10, -1, -1), 7])) + "\n")

    (feeds,) = feeds_of(open_data(tmp_path / "d.csv", wide, TARGET), wide, TARGET)

    np.testing.assert_array_equal(feeds["x"], [range(11)])


def test_csv_columns_can_be_named(tmp_path):
    (tmp_path / "d.csv").write_text("id,a,b,c,price\n1,1,2,3,9\n2,4,5,6,8\n")
    preparation = Preparation(columns={"x": "c,b,a", "t": "price"})

    (feeds,) = feeds_of(
        open_data(tmp_path / "d.csv", FEATURES, TARGET, preparation=preparation), FEATURES, TARGET, preparation
    )

    np.testing.assert_array_equal(feeds["x"], [[3, 2, 1], [6, 5, 4]])


def test_text_labels_become_class_numbers_in_sorted_order(tmp_path):
    (tmp_path / "d.csv").write_text("a,b,c,labels\n1,2,3,dog\n4,5,6,cat\n7,8,9,dog\n")

    source = open_data(tmp_path / "d.csv", FEATURES, LABELS)

    (feeds,) = feeds_of(source, FEATURES, LABELS)
    np.testing.assert_array_equal(feeds["labels"], [1, 0, 1])
    assert list(source.classes) == ["cat", "dog"]


def test_a_table_without_rows_is_refused(tmp_path):
    (tmp_path / "d.csv").write_text("a,b,c,labels\n")

    with pytest.raises(DataError, match="the data holds no samples"):
        open_data(tmp_path / "d.csv", FEATURES, LABELS)


def test_another_table_is_read_by_the_columns_of_the_training_table(tmp_path):
    (tmp_path / "train.csv").write_text("a,b,c,labels\n1,2,3,0\n4,5,6,1\n")
    (tmp_path / "test.csv").write_text("labels,c,b,a\n0,3,2,1\n1,6,5,4\n")
    (tmp_path / "lacks.csv").write_text("a,b,d,labels\n1,2,3,0\n")
    known = Preparation(table=open_data(tmp_path / "train.csv", FEATURES, LABELS).table)

    source = open_data(tmp_path / "test.csv", FEATURES, LABELS, preparation=known)

    (feeds,) = feeds_of(source, FEATURES, LABELS)
    np.testing.assert_array_equal(feeds["x"], [[1, 2, 3], [4, 5, 6]])
    with pytest.raises(DataError, match="no column `c` for `x`"):
        open_data(tmp_path / "lacks.csv", FEATURES, LABELS, preparation=known)
    named = Preparation(table=known.table, columns={"x": "a,b,d"})
    assert list(open_data(tmp_path / "lacks.csv", FEATURES, LABELS, preparation=named).table["x"]) == ["a", "b", "d"]


def test_classes_of_the_training_data_number_other_data(tmp_path):
    (tmp_path / "d.csv").write_text("a,b,c,labels\n1,2,3,dog\n")
    known = Preparation(classes=("bird", "cat", "dog"))

    (feeds,) = feeds_of(open_data(tmp_path / "d.csv", FEATURES, LABELS, preparation=known), FEATURES, LABELS)

    np.testing.assert_array_equal(feeds["labels"], [2])


def test_a_class_that_training_did_not_have_is_an_error(tmp_path):
    (tmp_path / "d.csv").write_text("a,b,c,labels\n1,2,3,fox\n")

    with pytest.raises(DataError, match="`fox`"):
        open_data(tmp_path / "d.csv", FEATURES, LABELS, preparation=Preparation(classes=("cat", "dog")))


def test_empty_cells_and_text_are_reported_together(tmp_path):
    (tmp_path / "d.csv").write_text("a,b,c,t\n1,,3,1\n4,5,red,1\n")

    with pytest.raises(DataError) as caught:
        open_data(tmp_path / "d.csv", FEATURES, TARGET)

    assert [d.message for d in caught.value.diagnostics] == ["column `b` has 1 empty cells", "column `c` holds text"]


def test_a_table_with_too_few_columns_says_how_many(tmp_path):
    (tmp_path / "d.csv").write_text("a,b,t\n1,2,3\n")

    with pytest.raises(DataError, match="2 columns for `x`, which takes 3"):
        open_data(tmp_path / "d.csv", FEATURES, TARGET)


def test_parquet_is_read_like_csv(tmp_path):
    import pandas

    pandas.DataFrame({"a": [1.0], "b": [2.0], "c": [3.0], "t": [4.0]}).to_parquet(tmp_path / "d.parquet")

    (feeds,) = feeds_of(open_data(tmp_path / "d.parquet", FEATURES, TARGET), FEATURES, TARGET)

    np.testing.assert_array_equal(feeds["x"], [[1, 2, 3]])


@pytest.mark.parametrize("name", ["d.csv", "d.parquet", "d.npz", "d.safetensors", "d.npy"])
def test_garbage_is_one_clear_error(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x00\x01garbage\xff" * 20)

    with pytest.raises(DataError):
        feeds_of(open_data(tmp_path / name, FEATURES, TARGET), FEATURES, TARGET)


def test_missing_packages_name_the_extra(tmp_path, monkeypatch):
    (tmp_path / "d.csv").write_text("a,t\n1,2\n")
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "cat" / "1.png").write_bytes(b"")
    for name in ("pandas", "PIL.Image"):
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(MissingExtra, match=r"pip install 'onward\[data\]'"):
        open_data(tmp_path / "d.csv", FEATURES, TARGET)
    with pytest.raises(MissingExtra, match=r"pip install 'onward\[images\]'"):
        open_data(tmp_path / "images", IMAGES, LABELS)


def test_a_path_that_is_not_there():
    with pytest.raises(DataError, match="there is no `nowhere`"):
        open_data("nowhere")


# -- images


def image_folder(path, size=(4, 4), mode="L"):
    for name, value in (("cat", 10), ("ant", 200)):
        (path / name).mkdir(parents=True)
        for i in range(2):
            colour = value + i if mode == "L" else (value + i, 0, 0)
            Image.new(mode, size, colour).save(path / name / f"{i}.png")


def test_image_folder_labels_are_sorted_class_names(tmp_path):
    image_folder(tmp_path)

    source = open_data(tmp_path, IMAGES, LABELS)

    (feeds,) = feeds_of(source, IMAGES, LABELS)
    assert list(source.classes) == ["ant", "cat"]
    np.testing.assert_array_equal(feeds["labels"], [0, 0, 1, 1])
    np.testing.assert_array_equal(feeds["images"][:, 0, 0, 0], [200, 201, 10, 11])


def test_images_are_resized_and_coloured_as_the_model_wants(tmp_path):
    image_folder(tmp_path, size=(9, 7), mode="RGB")
    model = (TensorSpec("images", "float32", ("N", 3, 4, 5)),)

    (feeds,) = feeds_of(open_data(tmp_path, model, LABELS), model, LABELS)

    assert feeds["images"].shape == (4, 3, 4, 5)
    np.testing.assert_array_equal(feeds["images"][0, :, 0, 0], [200, 0, 0])


def test_channels_last_images(tmp_path):
    image_folder(tmp_path, mode="RGB")
    model = (TensorSpec("images", "float32", ("N", 4, 4, 3)),)

    (feeds,) = feeds_of(open_data(tmp_path, model, LABELS), model, LABELS)

    np.testing.assert_array_equal(feeds["images"][0, 0, 0], [200, 0, 0])


def test_a_broken_image_is_named(tmp_path):
    image_folder(tmp_path)
    (tmp_path / "cat" / "1.png").write_bytes(b"nothing")

    with pytest.raises(DataError, match=r"1\.png` cannot be decoded"):
        feeds_of(open_data(tmp_path, IMAGES, LABELS), IMAGES, LABELS)


def test_train_and_test_subfolders_are_the_parts(tmp_path):
    image_folder(tmp_path / "train")
    image_folder(tmp_path / "test", mode="RGB")

    (feeds,) = feeds_of(open_data(tmp_path, IMAGES, LABELS, part="evaluate"), IMAGES, LABELS)

    assert feeds["images"][0, 0, 0, 0] < 100  # red, made grey


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
