"""Weights for images of RGB in detectors for other images, and back."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.checkpoints.first_layer import for_rgb, is_first_layer, with_image_channels
from stillbox.checkpoints.importer import ImportOptions, read_weights
from stillbox.checkpoints.weights_file import open_weights
from stillbox.cli.overrides import changes_of
from stillbox.experiment.recipes import recipe_names
from stillbox.experiment.resolve import read_config, resolve
from stillbox.models.build import abstract_detector, build_detector
from stillbox.models.paths import variables_of
from tests.small import SMALL

KERNEL = np.random.default_rng(0).normal(size=(3, 3, 3, 5)).astype(np.float32)
GRAY = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)


def result(kernel):
    """What the kernel computes for an image that has the same values in all channels."""
    return np.einsum("hwcd,hw->d", kernel, GRAY)


@pytest.mark.parametrize("channels", [1, 4])
def test_the_result_for_gray_images_stays(channels):
    kernel = with_image_channels(KERNEL, channels)
    assert kernel.shape == (3, 3, channels, 5)
    np.testing.assert_allclose(result(kernel), result(KERNEL), rtol=1e-5)


def test_the_fourth_channel_has_the_mean_of_the_three():
    kernel = with_image_channels(KERNEL, 4)
    np.testing.assert_allclose(kernel[:, :, :3], KERNEL * 0.75, rtol=1e-6)
    np.testing.assert_allclose(kernel[:, :, 3], KERNEL.mean(axis=2) * 0.75, rtol=1e-5)


def test_brightness_is_divided_among_colours():
    kernel = with_image_channels(KERNEL[:, :, :1], 3)
    np.testing.assert_allclose(result(kernel), result(KERNEL[:, :, :1]), rtol=1e-5)


def test_other_layers_are_not_first_ones():
    assert is_first_layer((3, 3, 3, 32), (3, 3, 1, 32))
    assert not is_first_layer((3, 3, 3, 32), (3, 3, 1, 16))
    assert not is_first_layer((5, 5, 3, 32), (3, 3, 1, 32))
    assert not is_first_layer((1, 1, 96, 24), (1, 1, 32, 24))


def one_recipe_of_each_backbone():
    recipes = {type(read_config(name).experiment.model.backbone): name for name in recipe_names()}
    return sorted(recipes.values())


@pytest.mark.parametrize("recipe", one_recipe_of_each_backbone())
def test_every_backbone_takes_images_of_four_channels(recipe):
    model = read_config(recipe, {"model.pixels.channels": 4}).experiment.model
    _, params, _ = abstract_detector(model, "float32")
    assert any(len(array.shape) == 4 and array.shape[2] == 4 for array in params.values())
    colors = for_rgb(model)
    assert colors == read_config(recipe).experiment.model


def detector(*overrides):
    model = resolve("ssd_mobilenet_v1_300x300", changes_of((*SMALL, *overrides))).experiment.model
    return model, build_detector(model)


def variables(module):
    kinds = nnx.Param | nnx.BatchStat
    return {path: value for path, value in variables_of(module).items() if isinstance(value, kinds)}


@pytest.mark.parametrize("channels", [1, 4])
def test_an_import_says_what_was_done_with_the_first_layer(channels, tmp_path):
    _, colors = detector()
    held = {path: np.asarray(value[...]) for path, value in variables(colors).items()}
    np.savez(tmp_path / "weights.npz", **held)
    assert open_weights(tmp_path / "weights.npz")
    model, other = detector(f"model.pixels.channels={channels}")
    report, arrays = read_weights(
        variables(other), model, tmp_path / "weights.npz", ImportOptions()
    )
    (first,) = (path for path, array in held.items() if array.shape[2:3] == (3,))
    assert (report.loaded_share, len(report.notes)) == (1.0, 1)
    assert f"these have {channels}" in report.notes[0]
    assert np.array_equal(arrays[first], with_image_channels(held[first], channels))
    images = jnp.asarray(np.random.default_rng(0).uniform(0, 255, (1, 64, 64, 1)), jnp.float32)
    for path, value in variables(other).items():
        value.set_value(jnp.asarray(arrays[path]))
    maps = [
        module.features(jnp.repeat(images, count, axis=3), train=False)
        for module, count in ((colors, 3), (other, channels))
    ]
    for mine, theirs in zip(*maps, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)
