"""What a value is, is data on the value: names are cosmetic, and files without roles still work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onward
from compiler.renaming import Renamer
from compiler.zoo import ZOO, feeds, normalised, two_entries
from onward.model import serde
from onward.model.roles import Role, averages, entry_roles, has_role
from onward.model.training_model import TrainingModel

OLD_PREFIX = "onward."


def train(model: onnx.ModelProto, seed: int = 3) -> tuple[onward.Trainer, list[dict[str, np.ndarray]]]:
    trainer = onward.Trainer(model, threads=1)
    trainer.initialize(seed)
    return trainer, [trainer.step(feeds(trainer.input_names, step)) for step in range(4)]


def without_roles(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the file as an Onward before roles wrote it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for graph in (copy.graph, *(info.algorithm for info in copy.training_info)):
        for value in (*graph.input, *graph.output, *graph.value_info):
            kept = [p for p in value.metadata_props if not p.key.startswith(OLD_PREFIX)]
            del value.metadata_props[:]
            value.metadata_props.extend(kept)
    return copy


@pytest.mark.parametrize("name", ZOO)
def test_a_file_with_random_names_trains_to_the_same_bytes(name: str) -> None:
    proto = ZOO[name]().proto()
    renamer = Renamer()

    trained, outputs = train(proto)
    renamed, renamed_outputs = train(renamer.renamed(proto))

    back = {new: old for old, new in renamer.names.items()}
    state = {back.get(n, n): v for n, v in renamed.state.items()}
    assert set(state) == set(trained.state)
    for key, value in trained.state.items():
        assert state[key].tobytes() == value.tobytes(), key
    for expected, found in zip(outputs, renamed_outputs, strict=True):
        for key, value in expected.items():
            new = key if key in found else renamer.new(key)
            assert np.asarray(found[new]).tobytes() == np.asarray(value).tobytes(), key
    assert [back[n] for n in renamed.learning_rate_names] == list(trained.learning_rate_names)
    assert {back[n] for n in renamed.program.averages} == set(trained.program.averages)


@pytest.mark.parametrize("name", ZOO)
def test_a_file_with_random_names_evaluates_alike(name: str) -> None:
    proto = ZOO[name]().proto()
    renamer = Renamer()
    trainer, renamed = onward.Trainer(proto, threads=1), onward.Trainer(renamer.renamed(proto), threads=1)

    for entry in trainer.program.entries:
        data = feeds(trainer.program.for_entry(entry).input_names, 0)
        expected = trainer.evaluate(data, entry=entry)
        found = renamed.evaluate({renamer.new(n): a for n, a in data.items()}, entry=entry)

        assert next(iter(found.values())) == next(iter(expected.values()))


@pytest.mark.parametrize("name", ZOO)
def test_a_file_without_roles_is_compiled_to_the_same_graphs(name: str) -> None:
    proto = ZOO[name]().proto()
    old = without_roles(proto)
    assert old != proto

    graphs, old_graphs = (onward.compile(p, split=True).graphs() for p in (proto, old))

    for new, before in zip(graphs, old_graphs, strict=True):
        assert before.proto() == new.proto(), new.name


@pytest.mark.parametrize("name", ZOO)
def test_roles_that_are_inferred_are_those_that_are_marked(name: str) -> None:
    model = ZOO[name]()
    old = serde.from_proto(without_roles(model.proto()))

    for entry, before in zip(model.entries, old.entries, strict=True):
        marked, inferred = entry_roles(model, entry), entry_roles(old, before)
        assert inferred.loss == marked.loss
        assert inferred.targets == marked.targets
        assert inferred.learning_rates == marked.learning_rates
        assert inferred.gradients == marked.gradients
        assert inferred.training == marked.training
        assert inferred.forward_state == marked.forward_state
        assert inferred.slots.items() <= marked.slots.items()
    assert averages(old) == averages(model)


def test_a_file_by_another_program_evaluates_in_inference_mode() -> None:
    """Random names and no roles: what stands for what is seen from the operators and their inputs."""
    renamer = Renamer()
    proto = renamer.renamed(without_roles(two_entries().proto()))
    trainer = onward.Trainer(proto, threads=1)
    names = trainer.input_names[:2]
    x, first = feeds(names, 0).values()

    found = trainer.evaluate(dict(zip(names, (x, first), strict=True)), entry="train")

    (y,) = onward.Trainer(onward.to_inference(proto)).session.infer({names[0]: x}).values()
    assert found["loss" if "loss" in found else renamer.new("loss")] == pytest.approx(float(((y - first) ** 2).mean()))


@pytest.mark.parametrize("name", ["batch norm and dropout", "dropout in a branch", "two entries"])
def test_a_tool_that_renames_values_and_not_the_roles_changes_no_number(name: str) -> None:
    proto = ZOO[name]().proto()
    renamer = Renamer()
    stale = renamer.renamed(proto)
    back = {new: old for old, new in renamer.names.items()}
    for graph in (stale.graph, *(info.algorithm for info in stale.training_info)):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for entry in value.metadata_props:
                if entry.key == "onward.of":
                    entry.value = back[entry.value]
    trainer, renamed = onward.Trainer(proto, threads=1), onward.Trainer(stale, threads=1)
    names = trainer.program.for_entry("train").input_names
    data = feeds(names, 0)

    expected = trainer.evaluate(data, entry="train")
    found = renamed.evaluate({renamer.new(n): a for n, a in data.items()}, entry="train")

    assert list(found.values()) == list(expected.values())
    assert renamed.learning_rate_names == tuple(renamer.new(n) for n in trainer.learning_rate_names)


def test_two_entries_of_a_model_with_batch_normalisation_evaluate_alike() -> None:
    """Once 13.48 and 1.00: which value stood for which was guessed from names, and the second guess failed."""
    model = onward.make_trainable(normalised(), loss="mse")
    model = onward.make_trainable(model, loss="mse", entry="second", label="labels2", loss_name="loss2")
    trainer = onward.Trainer(model, threads=1)
    x, target = feeds(("x", "labels"), 0).values()

    first = trainer.evaluate({"x": x, "labels": target}, entry="train")
    second = trainer.evaluate({"x": x, "labels2": target}, entry="second")

    y = trainer.predict(x)
    assert list(first.values()) == list(second.values()) == [pytest.approx(float(((y - target) ** 2).mean()), rel=1e-6)]


def test_every_kind_of_role_is_written() -> None:
    found = dict.fromkeys([role for role in Role if role is not Role.EVALUATION], 0)  # which from_jax alone writes
    for make in ZOO.values():
        model = make()
        graphs = [model.graph, *(e.algorithm for e in model.entries if e.algorithm is not None)]
        for graph in graphs:
            for value in [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]:
                for role in found:
                    found[role] += has_role(value, role)

    assert all(found.values()), found


def test_an_inference_model_has_no_roles() -> None:
    proto = onward.to_inference(ZOO["batch norm and dropout"]())

    infos = (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)
    assert not [p.key for v in infos for p in v.metadata_props if p.key.startswith(OLD_PREFIX)]


def test_roles_survive_the_file(tmp_path: Path) -> None:
    model = ZOO["average"]()
    onward.save(model, tmp_path / "model.onnx")

    loaded = onward.load(tmp_path / "model.onnx")

    assert isinstance(loaded, TrainingModel)
    assert entry_roles(loaded, loaded.entries[0]) == entry_roles(model, model.entries[0])
