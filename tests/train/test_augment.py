"""Augmentations one by one: what they do to an image, a sound, a mask."""

from __future__ import annotations

import numpy as np
import pytest

from onward import augment
from onward.augment.base import draws
from onward.augment.text import as_augmentations, describe, restore
from onward.errors import ArgumentError, DataError

NAMES = {
    "Augmentation", "Colour", "Crop", "Cutmix", "Erase", "Flip", "Gain", "Mixup", "Noise", "Rotate", "Shift",
    "from_text",
}  # fmt: skip


def image(height=12, width=16, channels=3, dtype=np.uint8):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, channels))
    return pixels.astype(dtype) if np.dtype(dtype).kind in "iu" else (pixels / 255).astype(dtype)


def test_the_names_of_the_module_are_exactly_these():
    assert set(augment.__all__) == NAMES


def test_the_random_numbers_of_a_sample_depend_on_seed_epoch_index_occurrence_and_augmentation():
    keys = [(0, 0, 0, 0, 0), (1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (0, 0, 1, 0, 0), (0, 0, 0, 1, 0), (0, 0, 0, 0, 1)]

    first = [draws(*key).random() for key in keys]

    assert len(set(first)) == len(keys)
    assert first == [draws(*key).random() for key in keys]


def test_the_random_numbers_are_not_those_of_the_order_of_the_epoch():
    raw = np.random.Philox(key=np.array([0, 0], np.uint64)).random_raw(4)

    assert not set(raw.tolist()) & set(draws(0, 0, 0).bit_generator.random_raw(4).tolist())


def test_a_flip_of_probability_one_mirrors_and_of_zero_does_nothing():
    pixels = image()

    np.testing.assert_array_equal(augment.Flip(1.0).apply(pixels, draws(0, 0, 0)), pixels[:, ::-1])
    np.testing.assert_array_equal(augment.Flip(0.0, vertical=1.0).apply(pixels, draws(0, 0, 0)), pixels[::-1])
    np.testing.assert_array_equal(augment.Flip(0.0).apply(pixels, draws(0, 0, 0)), pixels)


def test_half_of_the_images_are_flipped():
    pixels = image()

    flipped = sum(not np.array_equal(augment.Flip().apply(pixels, draws(0, 0, i)), pixels) for i in range(400))

    assert 160 < flipped < 240


@pytest.mark.parametrize("least", [0.08, 0.5, 0.9, 1.0])
def test_a_crop_keeps_at_least_its_share_inside_the_image(least):
    for i in range(200):
        left, top, right, bottom = augment.Crop(least).box(draws(0, 0, i))

        assert 0 <= left < right <= 1 + 1e-12
        assert 0 <= top < bottom <= 1 + 1e-12
        assert (right - left) * (bottom - top) >= least - 1e-9


def test_a_crop_enlarges_a_part_of_a_ramp():
    ramp = np.repeat(np.linspace(0, 1, 64, dtype=np.float32)[None, :, None], 64, axis=0)

    cropped = augment.Crop(0.25).apply(ramp, draws(0, 0, 3))

    left, _, right, _ = augment.Crop(0.25).box(draws(0, 0, 3))
    slope = (cropped[32, 48, 0] - cropped[32, 16, 0]) / (ramp[32, 48, 0] - ramp[32, 16, 0])
    assert slope == pytest.approx(right - left, rel=0.02)
    assert cropped[:, :, 0].mean() == pytest.approx((left + right) / 2, abs=0.02)


def test_a_rotation_by_a_known_angle_turns_a_point():
    pixels = np.zeros((65, 65, 1), np.uint8)
    pixels[32, 52] = 255  # 20 to the right of the centre
    rng = draws(0, 0, 1)
    angle = np.radians(draws(0, 0, 1).uniform(-90, 90))

    turned = augment.Rotate(90).apply(pixels, rng)

    y, x = np.unravel_index(np.argmax(turned[:, :, 0]), (65, 65))
    assert (x, y) == pytest.approx((32 + 20 * np.cos(angle), 32 - 20 * np.sin(angle)), abs=1.0)


@pytest.mark.parametrize("word", ["flip", "crop=0.5", "rotate=30", "colour=0.5", "erase=1"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_augmentation_keeps_shape_and_type_and_the_original(word, dtype, channels):
    pixels = image(channels=channels, dtype=dtype)
    before = pixels.copy()
    (one,) = augment.from_text(word)

    changed = [one.apply(pixels, draws(0, 0, i)) for i in range(4)]

    assert all(c.shape == pixels.shape and c.dtype == pixels.dtype for c in changed)
    assert any(not np.array_equal(c, pixels) for c in changed)
    np.testing.assert_array_equal(pixels, before)


@pytest.mark.parametrize("word", ["crop=0.5", "rotate=30"])
def test_bytes_and_floats_are_resampled_alike(word):
    (one,) = augment.from_text(word)

    as_bytes = one.apply(image(), draws(0, 0, 1)).astype(np.float32)
    as_floats = one.apply(image().astype(np.float32), draws(0, 0, 1))

    np.testing.assert_allclose(as_bytes, as_floats, atol=1.01)


def test_many_channels_are_resampled_one_by_one():
    pixels = image(channels=7)

    whole = augment.Rotate(30).apply(pixels, draws(0, 0, 1))

    alone = augment.Rotate(30).apply(pixels[:, :, 5:6], draws(0, 0, 1))  # as bytes, which round otherwise
    np.testing.assert_allclose(whole[:, :, 5:6].astype(int), alone.astype(int), atol=1)


@pytest.mark.parametrize("word", ["crop=0.3", "rotate=45"])
def test_a_mask_of_classes_moves_with_its_image_and_does_not_blend(word):
    (one,) = augment.from_text(word)
    classes = np.repeat(np.repeat([[0, 7], [200, 3]], 16, axis=0), 16, axis=1)[:, :, None].astype(np.int64)

    moved = one.apply(classes, draws(0, 0, 1), mask=True)
    picture = one.apply(classes.astype(np.uint8), draws(0, 0, 1))

    assert set(np.unique(moved).tolist()) <= {0, 3, 7, 200}
    assert (np.abs(moved - picture) <= 1).mean() > 0.8  # the same place, apart from the edges


def test_the_free_corners_of_a_mask_get_their_own_value():
    mask = np.full((32, 32, 1), 4, np.uint8)

    moved = augment.Rotate(45, mask_fill=255).apply(mask, draws(0, 0, 1), mask=True)

    assert set(np.unique(moved).tolist()) == {4, 255}


def test_colour_of_strength_zero_changes_nothing():
    np.testing.assert_array_equal(augment.Colour(0.0).apply(image(), draws(0, 0, 0)), image())


def test_brightness_multiplies_and_is_cut_at_white():
    only = augment.Colour(0.0, brightness=0.5)
    pixels = image(dtype=np.float32)
    factor = 1.0 + 0.5 * draws(0, 0, 2).uniform(-1, 1, 3)[0]

    changed = only.apply(pixels, draws(0, 0, 2))

    np.testing.assert_allclose(changed, np.clip(pixels * factor, 0, 1), atol=1e-5)


def test_contrast_and_saturation_keep_the_mean_grey_and_hue_keeps_the_grey_of_every_pixel():
    weights = np.array([0.299, 0.587, 0.114])
    pixels = (0.4 + 0.2 * image(dtype=np.float64)).astype(np.float64)  # nothing is cut

    contrast = augment.Colour(0.0, contrast=0.3).apply(pixels, draws(0, 0, 1))
    saturation = augment.Colour(0.0, saturation=0.3).apply(pixels, draws(0, 0, 1))
    hue = augment.Colour(0.0, hue=30).apply(pixels, draws(0, 0, 1))

    assert (contrast @ weights).mean() == pytest.approx((pixels @ weights).mean(), abs=1e-9)
    np.testing.assert_allclose(saturation @ weights, pixels @ weights, atol=1e-9)
    np.testing.assert_allclose(hue @ weights, pixels @ weights, atol=1e-9)
    assert contrast.std() != pytest.approx(pixels.std(), rel=0.01)
    assert not np.allclose(hue, pixels, atol=1e-3)


def test_colour_refuses_numbers_that_are_not_from_black_to_white():
    with pytest.raises(DataError, match=r"T170.*\n.*\n?.*from -1 to 1|T170") as caught:
        augment.Colour().apply(np.linspace(-1, 1, 48, dtype=np.float32).reshape(4, 4, 3), draws(0, 0, 0))

    assert "found: float32 from -1 to 1" in str(caught.value)
    with pytest.raises(DataError, match="0 to 1"):
        augment.Colour().apply(image().astype(np.float32), draws(0, 0, 0))
    augment.Colour(white=255).apply(image().astype(np.float32), draws(0, 0, 0))


def test_erase_covers_a_rectangle_with_the_mean_colour():
    pixels = image(64, 64)

    erased = augment.Erase(1.0).apply(pixels, draws(0, 0, 5))

    changed = (erased != pixels).any(axis=2)
    rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
    inside = erased[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    assert (inside == np.rint(pixels.mean(axis=(0, 1)))).all()
    assert 0.01 < inside.shape[0] * inside.shape[1] / 64**2 < 0.4


def test_erase_happens_with_its_probability():
    pixels = image()

    erased = sum(not np.array_equal(augment.Erase(0.25).apply(pixels, draws(0, 0, i)), pixels) for i in range(400))

    assert 70 < erased < 130


def test_gain_is_a_factor_within_its_decibels_and_cuts_integers():
    sound = np.sin(np.arange(400)).astype(np.float32)
    factors = [float(augment.Gain(6).apply(sound, draws(0, 0, i))[1] / sound[1]) for i in range(100)]
    loud = np.full(8, 30000, np.int16)

    assert all(10 ** (-6 / 20) - 1e-6 <= f <= 10 ** (6 / 20) + 1e-6 for f in factors)
    assert min(factors) < 0.6 < 1.7 < max(factors)
    assert max(int(augment.Gain(6).apply(loud, draws(0, 0, i)).max()) for i in range(40)) == 32767


def test_noise_has_the_loudness_that_was_asked_for():
    sound = np.sin(np.arange(8000) / 10).astype(np.float32)

    noisy = augment.Noise(20, 20).apply(sound, draws(0, 0, 0))

    ratio = 10 * np.log10(np.mean(sound**2) / np.mean((noisy - sound) ** 2))
    assert ratio == pytest.approx(20, abs=0.3)
    assert not augment.Noise().apply(np.zeros(100, np.float32), draws(0, 0, 0)).any()


def test_shift_moves_the_sound_and_fills_with_zeros():
    sound = np.arange(1, 101, dtype=np.float32)[None]

    for i in range(50):
        moved = augment.Shift(0.2).apply(sound, draws(0, 0, i))[0]

        kept = moved[moved != 0]
        assert 80 <= len(kept) <= 100
        assert (np.diff(kept) == 1).all()
        assert kept[0] == 1 or kept[-1] == 100


def test_text_names_augmentations_with_colons_and_equals_signs_and_both_spellings():
    assert augment.from_text("crop:0.8, color=1/4") == (augment.Crop(0.8), augment.Colour(0.25))


def test_every_mistake_in_a_text_is_reported_at_once():
    with pytest.raises(ArgumentError) as caught:
        as_augmentations(["flop", "crop=x,rotate=500", 3, augment.Flip, lambda sample: sample])

    text = str(caught.value)
    assert [d.code for d in caught.value.diagnostics] == ["A100", "A101", "A101", "A101", "A101", "A101"]
    assert "did you mean `flip`" in text
    assert "`crop`, or `crop=` and the number for `least` of Crop" in text
    assert "hint: Flip()" in text
    assert "cannot be called with (sample, rng)" in text


def test_augmentations_survive_a_checkpoint_and_functions_leave_their_name():
    given = augment.from_text("flip,crop=0.3,colour,erase,mixup=0.4,cutmix,gain,noise,shift,rotate")

    assert restore(describe(given)) == given
    described = describe(as_augmentations([np.add, "flip", image]))
    assert [d.get("function") for d in described] == ["add", None, "image"]
    assert restore(described) is None
