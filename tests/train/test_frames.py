"""Tables as they come: frames of three libraries, text, missing values, and the preparation as ONNX."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnxruntime
import pandas
import pytest
from onnx import TensorProto, helper

import onward
from onward.errors import ArgumentError, DataError
from onward.train import Preparation
from onward.train.data import BatchRequest, as_source, match
from onward.train.data.frame import Frame
from onward.train.data.source import split_rows
from train.tables import COLUMNS, TARGET, cars, regression

STANDARD = Preparation(rescale="standard")


def rows_of(trainer, table, part="evaluate", preparation=None):
    """Return what the model's input `x` gets for a table."""
    preparation = preparation or trainer.preparation
    source = as_source(table, None, trainer.program.inputs, (), preparation, part=part)
    return match(source, trainer.program.inputs, (), preparation).make(next(source.batches(BatchRequest(10_000))))["x"]


def fitted(table=None, *, model=None, preparation=STANDARD, **settings):
    trainer = onward.Trainer(model or regression())
    settings = {"target": TARGET, "features": COLUMNS, "progress": False, "preparation": preparation, **settings}
    trainer.fit(cars() if table is None else table, **settings)
    return trainer


def as_polars(table):
    return pytest.importorskip("polars").from_pandas(table)


def as_arrow(table):
    import pyarrow

    return pyarrow.Table.from_pandas(table)


def as_records(table):
    return table[[*COLUMNS, TARGET]].to_dict("records")


@pytest.mark.parametrize("convert", [as_polars, as_arrow, as_records, dict])
def test_every_kind_of_table_trains_to_the_same_bits(convert):
    table = cars()[[*COLUMNS, TARGET]]

    expected = fitted(table, epochs=2).parameters
    found = fitted(convert(table), epochs=2).parameters

    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_the_preparation_is_that_of_scikit_learn_on_the_training_rows_alone():
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    table = cars()
    trainer = fitted(table, validation_data=0.25, seed=3)
    features = {f.column: f for f in trainer.preparation.features["x"]}

    source = as_source(table, None, trainer.program.inputs, trainer.program.targets, trainer.preparation)
    training = source.split(0.25, 3)[0].frame
    raw = training["Horsepower"].values[:, None]
    filled = SimpleImputer(strategy="median").fit_transform(raw)
    scaler = StandardScaler().fit(filled)

    assert len(training["Origin"].values) == 298  # of 398
    assert np.isnan(raw).any()
    assert features["Horsepower"].fill == np.nanmedian(raw)
    np.testing.assert_allclose(features["Horsepower"].shift, scaler.mean_[0], rtol=1e-12)
    np.testing.assert_allclose(features["Horsepower"].scale, scaler.scale_[0], rtol=1e-12)
    assert features["Origin"].categories == ("Europe", "Japan", "USA")


def test_the_rows_that_are_held_back_do_not_change_the_preparation():
    table = cars()
    plain = fitted(table, validation_data=0.25).preparation.features
    training, held = split_rows(len(table), 0.25, 0, "")
    other_held, other_training = table.copy(), table.copy()
    other_held.loc[held, "Weight_in_lbs"] = 10**6
    other_training.loc[training, "Weight_in_lbs"] = 10**6

    assert fitted(other_held, validation_data=0.25).preparation.features == plain
    assert fitted(other_training, validation_data=0.25).preparation.features != plain


def test_one_hot_or_codes_as_the_width_of_the_input_asks():
    wide, narrow = fitted(), fitted(model=regression(4))

    origins = [f.encoding for t in (wide, narrow) for f in t.preparation.features["x"] if f.column == "Origin"]
    assert origins == ["one_hot", "codes"]
    np.testing.assert_array_equal(
        rows_of(narrow, cars())[:, 3], [{"Europe": 0, "Japan": 1, "USA": 2}[o] for o in cars().Origin]
    )


def test_a_width_that_nothing_gives_shows_what_each_column_gives():
    with pytest.raises(DataError, match="give 6 numbers, and it takes 9") as caught:
        fitted(model=regression(9))

    assert "Origin: 3" in str(caught.value)
    assert "categories='codes'" in str(caught.value)


def test_the_missing_indicator_is_one_where_the_cell_was_empty():
    trainer = fitted(model=regression(7), preparation=Preparation(missing_indicator=True, missing="mean"))

    rows = rows_of(trainer, cars())

    np.testing.assert_array_equal(rows[:, 2], cars().Horsepower.isna())
    np.testing.assert_allclose(rows[cars().Horsepower.isna(), 1], np.float32(cars().Horsepower.mean()))


def test_an_unknown_category_is_refused_or_ignored_as_asked():
    table = cars()
    strange = table.assign(Origin="Mars")
    strict = fitted(table)
    lenient = fitted(table, preparation=Preparation(unknown="ignore"))

    with pytest.raises(DataError, match=r"T143.*'Mars'"):
        strict.predict(strange)
    np.testing.assert_array_equal(rows_of(lenient, strange)[:, 3:], 0)
    codes = fitted(table, model=regression(4), preparation=Preparation(unknown="ignore"))
    np.testing.assert_array_equal(rows_of(codes, strange)[:, 3], 2)  # USA is the most frequent


def test_a_missing_value_in_a_column_that_had_none_is_refused_by_default():
    table = cars()
    trainer = fitted(table)

    with pytest.raises(DataError, match=r"T142.*`Weight_in_lbs` has 398 empty cells"):
        trainer.predict(table.assign(Weight_in_lbs=np.nan))


def test_rows_that_need_a_preparation_are_not_prepared_by_themselves():
    trainer = onward.Trainer(regression())

    with pytest.raises(DataError) as caught:
        trainer.evaluate(cars(), target=TARGET, features=COLUMNS)

    power, origin = caught.value.diagnostics
    assert {power.code, origin.code} == {"T144"}
    assert power.message == "column `Horsepower` needs a preparation of the training, and the model stores none"
    assert power.place.endswith(", for input `x`")
    assert power.found == "6 empty cells, first in row 33"
    assert origin.found == "text, such as 'USA'"
    assert origin.needed == "float32 numbers in every row, or a model that was trained on such a table"
    assert "checkpoint directory" in origin.hint


def test_a_wish_to_rescale_needs_training_rows_too():
    trainer = onward.Trainer(regression())

    with pytest.raises(DataError, match=r"T144.*Weight_in_lbs") as caught:
        trainer.evaluate(cars(), target=TARGET, features=["Weight_in_lbs"], preparation=STANDARD)

    assert caught.value.diagnostics[0].found == "a wish: rescale is standard"


def test_numbers_with_a_slip_and_free_text_are_not_taken_for_categories():
    table = cars()
    slip = table.assign(Horsepower=[*(str(h) for h in range(397)), "n.k."])

    with pytest.raises(DataError, match="holds numbers as text"):
        fitted(slip)
    with pytest.raises(DataError, match="different in most rows"):
        fitted(table, features=["Name", *COLUMNS])
    with pytest.raises(DataError, match=r"`Year` holds neither numbers nor text"):
        fitted(table, features=["Year", *COLUMNS])


def test_a_wrong_column_is_named_with_the_nearest():
    with pytest.raises(DataError, match="no column `Horsepowers`") as caught:
        fitted(features=["Horsepowers", "Origin"])

    assert "did you mean `Horsepower`?" in str(caught.value)
    with pytest.raises(ArgumentError, match="target names `price`"):
        fitted(target={"price": TARGET})


def test_columns_of_numbers_can_be_categories():
    preparation = Preparation(categorical=("Cylinders",), categories="codes")
    trainer = fitted(model=regression(4), preparation=preparation)

    cylinders = rows_of(trainer, cars())[:, 0]

    np.testing.assert_array_equal(cylinders, [[3, 4, 5, 6, 8].index(c) for c in cars().Cylinders])


def test_the_preparation_is_saved_with_the_model_and_the_checkpoint(tmp_path):
    table = cars()
    trainer = fitted(table, checkpoint=tmp_path / "run")
    onward.save(trainer.to_model(), tmp_path / "t.onnx")
    onward.save(trainer.to_inference(), tmp_path / "i.onnx")
    expected = trainer.predict(table)

    for other in (onward.Trainer(tmp_path / "t.onnx"), onward.Trainer(tmp_path / "i.onnx")):
        np.testing.assert_allclose(other.predict(table), expected, rtol=1e-5, atol=1e-6)
    resumed = onward.Trainer.resume(tmp_path / "run")
    assert resumed.preparation.features == trainer.preparation.features
    assert resumed.evaluate(table) == trainer.evaluate(table)


def test_a_resumed_run_on_a_table_is_bit_identical(tmp_path):
    whole = fitted(epochs=4, validation_data=0.2)
    fitted(epochs=2, validation_data=0.2, checkpoint=tmp_path / "run")
    resumed = onward.Trainer.resume(tmp_path / "run")

    resumed.fit(cars(), target=TARGET, features=COLUMNS, epochs=4, validation_data=0.2, progress=False)

    for name, array in whole.parameters.items():
        np.testing.assert_array_equal(resumed.parameters[name], array)


def test_the_preparation_is_shown(capsys):
    trainer = fitted(progress="plain")

    shown = capsys.readouterr().err
    assert "Horsepower: missing (6 rows) → 93.5" in shown
    assert "Origin: 3 categories ('Europe', 'Japan', 'USA') → 3 numbers of 0 and 1" in shown
    assert "Horsepower: missing (6 rows) → 93.5" in repr(trainer.preparation)


# -- as ONNX ---------------------------------------------------------------------------------------------------------


def raw_feeds(table, inputs):
    return {
        n: table[n].fillna("").to_numpy(object) if table[n].dtype.kind not in "fi" else table[n].to_numpy("f8")
        for n in inputs
    }


@pytest.mark.parametrize(
    ("width", "preparation"),
    [
        (6, STANDARD),
        (4, Preparation(rescale="min_max")),
        (9, Preparation(missing_indicator=True, missing={"Horsepower": "mean", "Origin": "nowhere"})),
        (10, Preparation(rescale="standard", categorical=("Cylinders",), unknown="ignore", scale=0.5)),
    ],
)
def test_the_embedded_preparation_gives_the_same_bits(width, preparation):
    table = cars()
    if preparation.missing_indicator:
        table.loc[3, "Origin"] = None
    trainer = fitted(table, model=regression(width), preparation=preparation)
    if preparation.unknown == "ignore":
        table = table.assign(Origin=["Mars", *table.Origin[1:]])
    expected = rows_of(trainer, table)

    embedded = trainer.to_inference(embed_preparation=True)
    prepared = next(n for n in embedded.graph.node if n.name == "first").input[0]
    embedded.graph.output.append(helper.make_tensor_value_info(prepared, TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(embedded.SerializeToString())
    outputs = session.run(None, raw_feeds(table, [i.name for i in session.get_inputs()]))

    assert [i.name for i in session.get_inputs()] == COLUMNS
    np.testing.assert_array_equal(outputs[-1], expected)
    np.testing.assert_allclose(outputs[0], trainer.predict(table), rtol=1e-5, atol=1e-6)


def test_an_embedded_file_takes_raw_tables_without_a_second_preparation(tmp_path):
    table = cars()
    trainer = fitted(table)
    onward.save(trainer.to_inference(embed_preparation=True), tmp_path / "tuned.onnx")

    tuned = onward.Trainer(tmp_path / "tuned.onnx")

    assert not tuned.preparation.features
    np.testing.assert_allclose(tuned.predict(table), trainer.predict(table), rtol=1e-5, atol=1e-6)


def test_an_embedded_file_gives_nan_for_a_category_that_python_refuses():
    table = cars()
    embedded = fitted(table).to_inference(embed_preparation=True)
    session = onnxruntime.InferenceSession(embedded.SerializeToString())

    (found,) = session.run(None, raw_feeds(table.assign(Origin="Mars"), COLUMNS))

    assert np.isnan(found).all()


@pytest.mark.parametrize("categories", ["one_hot", "codes"])
def test_an_embedded_file_gives_nan_for_a_missing_category_that_python_refuses(categories):
    table = cars()
    width = len(COLUMNS) + (2 if categories == "one_hot" else 0)
    wanted = Preparation(unknown="ignore", categories=categories, missing={"Horsepower": "mean"})
    trainer = fitted(table, model=regression(width), preparation=wanted)
    session = onnxruntime.InferenceSession(trainer.to_inference(embed_preparation=True).SerializeToString())
    gone = table.assign(Origin="").iloc[:3]

    (found,) = session.run(None, raw_feeds(gone, COLUMNS))

    assert np.isnan(found).all()
    with pytest.raises(DataError, match="column `Origin` has 3 empty cells"):
        trainer.predict(gone)


def test_an_embedded_input_has_the_name_of_its_column_whatever_the_model_calls_its_values(tmp_path):
    """`b1` is a weight of the network, `a` is what a node computes, `first` is a node, `y` is the output."""
    names = {"Cylinders": "b1", "Horsepower": "a", "Weight_in_lbs": "first", "Origin": "y"}
    table = cars()[[*names, TARGET]].rename(columns=names)
    trainer = fitted(table, features=list(names.values()))
    embedded = trainer.to_inference(embed_preparation=True)
    onward.save(embedded, tmp_path / "tuned.onnx")

    session = onnxruntime.InferenceSession(embedded.SerializeToString())
    found = session.run(None, {**raw_feeds(table, ["b1", "a", "first"]), "y_2": table["y"].to_numpy(object)})[0]

    assert [i.name for i in session.get_inputs()] == ["b1", "a", "first", "y_2"]  # an output must keep its name
    np.testing.assert_allclose(found, trainer.predict(table), rtol=1e-5, atol=1e-6)
    tuned = onward.Trainer(tmp_path / "tuned.onnx")
    np.testing.assert_allclose(tuned.predict(table), found, rtol=1e-5, atol=1e-6)
    assert tuned.evaluate(table, target=TARGET, metrics=["mae"]).keys() == {"mae"}


def test_numbers_alone_stay_one_matrix():
    numbers = COLUMNS[:3]
    trainer = fitted(model=regression(3), features=numbers)

    embedded = trainer.to_inference(embed_preparation=True)

    session = onnxruntime.InferenceSession(embedded.SerializeToString())
    assert [(i.name, i.type, i.shape) for i in session.get_inputs()] == [("x", "tensor(double)", ["N", 3])]
    (found,) = session.run(None, {"x": cars()[numbers].to_numpy("f8")})
    np.testing.assert_allclose(found, trainer.predict(cars()), rtol=1e-5, atol=1e-6)


def test_scale_mean_and_std_are_embedded_too():
    x, t = np.random.default_rng(0).normal(size=(8, 6)), np.zeros((8, 1))
    trainer = onward.Trainer(regression())
    trainer.fit(x, t, preparation=Preparation(scale=0.5, mean=[1, 2, 3, 4, 5, 6], std=2.0), progress=False)

    session = onnxruntime.InferenceSession(trainer.to_inference(embed_preparation=True).SerializeToString())

    (found,) = session.run(None, {"x": x.astype("f")})
    np.testing.assert_allclose(found, trainer.predict(x), rtol=1e-5, atol=1e-6)


# -- models that take text and NaN ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")  # the rest of the training is ours
def test_a_pipeline_of_scikit_learn_takes_text_and_nan_itself():
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    table = cars()
    numbers = ["Horsepower", "Weight_in_lbs"]
    x = table[[*numbers, "Origin"]].astype(dict.fromkeys(numbers, "float32"))
    steps = Pipeline([("fill", SimpleImputer()), ("scale", StandardScaler())])
    prepare = ColumnTransformer([("n", steps, numbers), ("c", OneHotEncoder(handle_unknown="ignore"), ["Origin"])])
    network = MLPRegressor(hidden_layer_sizes=(8,), max_iter=5, random_state=0)
    pipeline = Pipeline([("prepare", prepare), ("network", network)]).fit(x, table[TARGET])
    model = onward.make_trainable(
        skl2onnx.to_onnx(pipeline, x[:1]), loss="mse", optimizer=onward.Adam(1e-2), label="mpg"
    )
    trainer = onward.Trainer(model)
    np.testing.assert_allclose(trainer.predict(table).ravel(), pipeline.predict(x), rtol=1e-4)
    before = trainer.evaluate(table, target=TARGET)["loss"]

    trainer.fit(table, target=TARGET, epochs=5, progress=False)

    assert trainer.evaluate(table, target=TARGET)["loss"] < before
    assert not trainer.preparation.features
    assert np.isfinite(trainer.predict(table)).all()


def test_no_framework_is_imported_for_arrays():
    code = (
        "import sys, numpy, onward\n"
        "t = onward.Trainer(onward.samples.build('linear'))\n"
        "specs = t.program.inputs + t.program.targets\n"
        "t.fit(*[numpy.zeros([8] + [d for d in s.shape[1:]], s.dtype) for s in specs], progress=False)\n"
        "print([m for m in ('pandas', 'polars', 'pyarrow', 'datasets', 'torch', 'tensorflow') if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_frame_of_odd_cells_is_read_or_refused():
    nullable = pandas.DataFrame(
        {"a": pandas.array([1, None, 3], dtype="Int64"), "b": pandas.Categorical(["u", "v", None])}
    )
    frame = Frame.of(nullable)

    assert frame["a"].missing.tolist() == [False, True, False]
    assert frame["b"].values.tolist() == ["u", "v", ""]
    assert Frame.of({"v": [[1, 2], [3, 4]]})["v"].values.shape == (2, 2)
    with pytest.raises(DataError, match="text and other things"):
        Frame.of({"v": ["a", 3, None]})["v"]
    with pytest.raises(DataError, match="same name"):
        Frame.of(pandas.DataFrame([[1, 2]], columns=["a", "a"]))
