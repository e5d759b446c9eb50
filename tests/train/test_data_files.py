"""Data in files: arrays, IDX, tables and images."""

from __future__ import annotations

import gzip
import struct
import sys

import numpy as np
import pytest
from PIL import Image

from onward.compiler.program import TensorSpec
from onward.errors import DataError, MissingExtra
from onward.reading.pictures import check_pictures
from onward.train.data import Preparation
from onward.train.data.files import open_data, open_named
from train.specs import FEATURES, IMAGES, LABELS, TARGET, feeds_of


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

    with pytest.raises(DataError, match="not a complete IDX file"):
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
    (tmp_path / "d.csv").write_text("a,b,c,t\n1,2,3,\n4,5,red,1\n")

    with pytest.raises(DataError) as caught:
        open_data(tmp_path / "d.csv", FEATURES, TARGET)

    assert [d.message for d in caught.value.diagnostics] == [
        "column `c` holds numbers as text",
        "column `t` has 1 empty cells",
    ]


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


BROKEN = {
    "no image": lambda content: b"<html>404</html>",
    "empty": lambda content: b"",
    "cut off": lambda content: content[: len(content) // 2],
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_every_image_is_looked_at_before_the_first_step(tmp_path, kind, suffix):
    paths = [tmp_path / f"{i}{suffix}" for i in range(70)]
    for path in paths:
        Image.fromarray(np.arange(3072, dtype=np.uint8).reshape(32, 32, 3)).save(path)
    check_pictures([str(p) for p in paths])
    for path in (paths[5], paths[69]):
        path.write_bytes(BROKEN[kind](path.read_bytes()))
    paths[7].write_bytes(paths[7].read_bytes() + b"a camera's notes" * 100)  # is decoded, and is no problem

    with pytest.raises(DataError) as caught:
        check_pictures([str(p) for p in paths])

    assert [d.code for d in caught.value.diagnostics] == ["T150", "T150"]
    assert f"5{suffix}` cannot be decoded" in str(caught.value)
    assert f"69{suffix}` cannot be decoded" in str(caught.value)


def test_of_many_broken_images_some_are_named_and_the_rest_is_counted(tmp_path):
    paths = [tmp_path / f"{i}.png" for i in range(25)]
    for path in paths:
        path.write_bytes(b"")

    with pytest.raises(DataError) as caught:
        check_pictures([str(p) for p in paths])

    assert len(caught.value.diagnostics) == 21
    assert "5 more images cannot be used" in str(caught.value)


def test_train_and_test_subfolders_are_the_parts(tmp_path):
    image_folder(tmp_path / "train")
    image_folder(tmp_path / "test", mode="RGB")

    (feeds,) = feeds_of(open_data(tmp_path, IMAGES, LABELS, part="evaluate"), IMAGES, LABELS)

    assert feeds["images"][0, 0, 0, 0] < 100  # red, made grey


def test_images_without_labels_name_the_missing_file(tmp_path):
    write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((3, 2, 2), np.uint8))

    with pytest.raises(DataError, match=r"has no counterpart[\s\S]*train-labels-idx1-ubyte \(or \.gz\) beside it"):
        open_data(tmp_path)


def test_a_table_that_is_not_utf8_says_how_to_save_it(tmp_path):
    (tmp_path / "t.csv").write_bytes("a,b\n1,caf\xe9\n".encode("latin1"))

    with pytest.raises(DataError, match="save it as UTF-8"):
        open_data(tmp_path / "t.csv")


@pytest.mark.parametrize("size", [(8, 12), (None, None)], ids=["resized", "as they are"])
def test_a_photo_that_a_phone_stored_sideways_is_read_upright(size, tmp_path):
    from onward.train.data.images import ImageColumn

    upright = np.zeros((80, 120, 3), np.uint8)
    upright[:40, :60] = 255  # the corner at the top left is white
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it clockwise to see it upright
    Image.fromarray(np.rot90(upright)).save(tmp_path / "photo.jpg", exif=exif, quality=95)

    column = ImageColumn([tmp_path / "photo.jpg"], (None, 3, *size))
    picture = column.take(slice(None))[0].transpose(1, 2, 0)

    height, width = size if size[0] else (80, 120)
    assert picture.shape == (height, width, 3)
    assert picture[: height // 2 - 1, : width // 2 - 1].min() > 200
    assert picture[height // 2 + 1 :, width // 2 + 1 :].max() < 55
