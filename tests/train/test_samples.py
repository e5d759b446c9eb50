"""Samples as they come: datasets of torch and Hugging Face, tf.data, lists."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import onward
from onward.errors import DataError
from onward.train import FunctionCallback
from onward.train.checkpoint import CheckpointWarning
from train.tables import classifier

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4)).astype("f")
LABELS = RNG.integers(0, 3, size=40)


class Squares(Dataset):
    """Counts how often it is read."""

    reads = 0

    def __len__(self):
        return 40

    def __getitem__(self, i):
        Squares.reads += 1
        return torch.tensor(X[i]), int(LABELS[i])


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(x, int(t)) for x, t in zip(X, LABELS, strict=True)])


def train(data, y=None, **settings):
    trainer = onward.Trainer(classifier())
    trainer.fit(data, y, **{"epochs": 2, "batch_size": 16, "progress": False, **settings})
    return trainer


def tuples():
    return [(x, int(t)) for x, t in zip(X, LABELS, strict=True)]


def dicts():
    return [{"x": x.tolist(), "labels": int(t)} for x, t in zip(X, LABELS, strict=True)]


def hugging_face():
    return pytest.importorskip("datasets").Dataset.from_dict({"x": X, "labels": LABELS})


RANDOM_ACCESS = {
    "torch Dataset": Squares,
    "torch TensorDataset": lambda: TensorDataset(torch.tensor(X), torch.tensor(LABELS)),
    "list of tuples": tuples,
    "list of dicts": dicts,
    "Hugging Face": hugging_face,
}


@pytest.mark.parametrize("kind", RANDOM_ACCESS)
def test_random_access_shuffles_and_splits_as_arrays_do(kind):
    expected = train(X, LABELS, validation_data=0.2)

    found = train(RANDOM_ACCESS[kind](), validation_data=0.2)

    for name, array in expected.parameters.items():
        np.testing.assert_array_equal(found.parameters[name], array)
    assert found.history.epochs[-1]["val_loss"] == expected.history.epochs[-1]["val_loss"]


@pytest.mark.parametrize("kind", RANDOM_ACCESS)
def test_random_access_resumes_in_the_middle_of_an_epoch(tmp_path, kind):
    whole = train(RANDOM_ACCESS[kind](), epochs=3)

    def fail(run, logs):
        if logs["step"] == 4:
            raise RuntimeError("the power fails")

    trainer = onward.Trainer(classifier())
    settings = {"batch_size": 16, "checkpoint": tmp_path, "checkpoint_every": 1, "progress": False}
    with pytest.raises(RuntimeError, match="the power fails"):
        trainer.fit(RANDOM_ACCESS[kind](), epochs=3, callbacks=[FunctionCallback(on_step_end=fail)], **settings)
    resumed = onward.Trainer.resume(tmp_path)

    resumed.fit(RANDOM_ACCESS[kind](), epochs=3, progress=False)

    for name, array in whole.parameters.items():
        np.testing.assert_array_equal(resumed.parameters[name], array)


def test_each_sample_is_read_once_for_all_columns():
    source = Squares()
    Squares.reads = 0

    train(source, epochs=1)

    assert Squares.reads <= 40 + 3  # the first sample tells the shapes


@pytest.mark.parametrize("kind", ["torch", "Hugging Face"])
def test_a_stream_of_samples_is_put_into_batches_in_its_own_order(kind):
    stream = Stream() if kind == "torch" else hugging_face().to_iterable_dataset()
    expected = train(X, LABELS, shuffle=False)

    found = train(stream)

    np.testing.assert_array_equal(found.parameters["W1"], expected.parameters["W1"])


def test_batches_stay_batches():
    loader = DataLoader(Squares(), batch_size=16)
    expected = train(X, LABELS, shuffle=False)

    for data in (loader, list(loader), [(X[:16], LABELS[:16]), (X[16:32], LABELS[16:32]), (X[32:], LABELS[32:])]):
        np.testing.assert_array_equal(train(data).parameters["W1"], expected.parameters["W1"])


def test_a_shuffling_dataloader_says_that_it_cannot_be_resumed(tmp_path):
    loader = DataLoader(Squares(), batch_size=16, shuffle=True)

    with pytest.warns(CheckpointWarning, match=r"torch's own random numbers.*pass its dataset instead"):
        train(loader, checkpoint=tmp_path)


def test_the_parts_of_a_dataset_dict_are_chosen_by_the_method():
    datasets = pytest.importorskip("datasets")
    parts = datasets.DatasetDict(train=hugging_face(), test=hugging_face().select(range(8)))

    trainer = train(parts)

    assert trainer.evaluate(parts) == trainer.evaluate(X[:8], LABELS[:8])
    with pytest.raises(DataError, match="no part to train on"):
        train(datasets.DatasetDict(test=hugging_face()))


def test_rows_of_a_hugging_face_dataset_are_a_table_with_class_names():
    datasets = pytest.importorskip("datasets")
    columns = {f"c{i}": X[:, i] for i in range(4)}
    names = ["ant", "bee", "cat"]
    features = {**{n: datasets.Value("float32") for n in columns}, "label": datasets.ClassLabel(names=names)}
    rows = datasets.Dataset.from_dict({**columns, "label": LABELS}, features=datasets.Features(features))

    trainer = train(rows, target="label")

    assert trainer.preparation.classes == ("ant", "bee", "cat")
    np.testing.assert_array_equal(trainer.parameters["W1"], train(X, LABELS).parameters["W1"])


@pytest.mark.parametrize("form", ["table", "arrays"])
def test_classes_keep_their_numbers_in_a_dataset_that_numbers_them_otherwise(form):
    datasets = pytest.importorskip("datasets")
    number, row = datasets.Value("float32"), datasets.Sequence(datasets.Value("float32"))
    columns = {f"c{i}": X[:, i] for i in range(4)} if form == "table" else {"x": X}

    def rows(labels, names):
        features = dict.fromkeys(columns, number if form == "table" else row) | {
            "labels": datasets.ClassLabel(names=names)
        }
        return datasets.Dataset.from_dict({**columns, "labels": labels}, features=datasets.Features(features))

    trainer = train(rows(LABELS, ["cat", "bee", "ant"]))

    again = trainer.evaluate(rows(2 - LABELS, ["ant", "bee", "cat"]), metrics=["accuracy"])
    assert again == trainer.evaluate(X, LABELS, metrics=["accuracy"])
    with pytest.raises(DataError, match="classes that the model does not know: `dog`"):
        trainer.evaluate(rows(LABELS, ["cat", "dog", "ant"]))


def test_samples_of_unequal_shapes_are_named():
    uneven = [(np.zeros(4, "f"), 0), (np.zeros(4, "f"), 1), (np.zeros(3, "f"), 2)]

    with pytest.raises(DataError, match="another shape in sample 2"):
        train(uneven, shuffle=False)


def test_tf_data_gives_samples_or_batches():
    tf = pytest.importorskip("tensorflow")
    expected = train(X, LABELS, shuffle=False)
    samples = tf.data.Dataset.from_tensor_slices((X, LABELS))

    for data in (samples, samples.batch(16)):
        np.testing.assert_array_equal(train(data).parameters["W1"], expected.parameters["W1"])


def test_dicts_whose_first_axes_differ_are_batches_where_they_have_all_axes_of_the_model():
    """A recurrent state has one row for each direction: its first axis is not the batch (pythainlp's thai2rom)."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        recurrent (float[1, steps, 3] x) => (float[2, steps, 2] state) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
            layer = MatMul (x, w)
            state = Concat <axis = 0> (layer, layer)
        }""")
    trainer = onward.Trainer(onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.01)))
    batch = {"x": np.ones((1, 1, 3), "f"), trainer.input_names[1]: np.zeros((2, 1, 2), "f")}

    history = trainer.fit([batch, batch], epochs=2, progress=False)

    assert history["loss"][1] < history["loss"][0]
