"""The history shows the learning rate that the steps take, also where the schedule is in the model."""

from __future__ import annotations

import numpy as np
import pytest

import onward
from onward.optimizers import Adam
from onward.schedules import Cosine, Step
from onward.train import Trainer
from train.test_backends import network, samples


def scheduled(schedule, **settings):
    return onward.make_trainable(network(), loss="cross_entropy", optimizer=Adam(schedule, **settings))


@pytest.mark.parametrize("backend", ["onnxruntime", "reference"])
def test_the_rate_follows_the_schedule_in_the_model(backend):
    schedule = Cosine(1e-2, steps=16)
    trainer = Trainer(scheduled(schedule), backend=backend)

    history = trainer.fit(*samples(64), epochs=3, batch_size=16, progress="none")

    np.testing.assert_allclose(history["learning_rate"], [schedule(step) for step in (4, 8, 12)], rtol=1e-5)


def test_a_rate_that_is_fed_scales_the_schedule():
    schedule = Step(1e-2, every=4, gamma=0.5)
    trainer = Trainer(scheduled(schedule))

    history = trainer.fit(*samples(64), epochs=2, batch_size=16, learning_rate=1.0, progress="none")

    np.testing.assert_allclose(history["learning_rate"], [0.5, 0.25], rtol=1e-6)


def test_a_second_run_goes_on_where_the_schedule_stands():
    schedule = Cosine(1e-2, steps=16)
    trainer = Trainer(scheduled(schedule))
    trainer.fit(*samples(64), epochs=1, batch_size=16, progress="none")

    history = Trainer(trainer.to_model()).fit(*samples(64), epochs=1, batch_size=16, progress="none")

    np.testing.assert_allclose(history["learning_rate"], [schedule(8)], rtol=1e-5)


def test_a_compiled_program_knows_its_schedule(tmp_path):
    schedule = Cosine(1e-2, steps=16)
    onward.compile(scheduled(schedule)).save(tmp_path / "program")

    history = Trainer(tmp_path / "program").fit(*samples(64), epochs=1, batch_size=16, progress="none")

    np.testing.assert_allclose(history["learning_rate"], [schedule(4)], rtol=1e-5)


def test_accumulated_steps_count_once():
    schedule = Step(1e-2, every=2, gamma=0.5)
    trainer = Trainer(scheduled(schedule, accumulate=2))

    history = trainer.fit(*samples(64), epochs=2, batch_size=16, progress="none")

    np.testing.assert_allclose(history["learning_rate"], [schedule(2), schedule(4)], rtol=1e-6)


def test_without_a_schedule_the_rate_is_constant():
    trainer = Trainer(scheduled(1e-2))

    history = trainer.fit(*samples(64), epochs=2, batch_size=16, progress="none")

    np.testing.assert_allclose(history["learning_rate"], [1e-2, 1e-2], rtol=1e-6)
