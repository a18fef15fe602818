"""Crops of the second stage: levels, parts of a padded input, platforms."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes.crops import crop_and_resize, multiplied, roi_align
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models import two_stage  # noqa: F401 - registers them
from tests.boxes.golden import random_boxes

INPUT = (1024, 1024)
SIDES, STRIDES = (32, 16, 8), (32, 64, 128)
CONFIGS = {
    "crop_and_resize": schema.CropAndResize(size=5, pool_size=2, pool_stride=1, outside="fade"),
    "roi_align": schema.RoiAlign(size=4, samples=2),
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
each_number_of_maps = pytest.mark.parametrize("count", [1, 3], ids=["one_map", "pyramid"])


def inputs(count):
    """Maps of two images, 9 boxes each, and windows inside the input."""
    rng = np.random.default_rng(0)
    maps = [rng.normal(size=(2, side, side, 3)).astype(np.float32) for side in SIDES[:count]]
    return maps, random_boxes(rng, 2, 9), np.int32([[1000, 900], [1024, 308]])


def cropped(config, input_size=INPUT):
    crop = implementation_of(config)
    return jax.jit(lambda maps, boxes, windows: crop(config, maps, boxes, windows, input_size))


def pooled(crop):
    """Maxima of 2x2 windows, one apart."""
    views = [crop[:, i : i + 4, j : j + 4] for i in range(2) for j in range(2)]
    return np.max(views, axis=0)


_crop = jax.jit(partial(crop_and_resize, size=5, outside="fade", compute=multiplied))
_align = jax.jit(partial(roi_align, size=4, samples=2, compute=multiplied))


def one_by_one(config, maps, boxes, window):
    """Crops of one image, from one map after the other, by matrix products."""
    sides = np.sqrt(np.prod((boxes[:, 2:] - boxes[:, :2]) * window, axis=-1))
    levels = np.clip(np.floor(np.log2(sides / 224)) + len(maps) - 2, 0, len(maps) - 1)
    crops = np.zeros((len(boxes), config.output_size, config.output_size, 3), np.float32)
    for level, (features, stride) in enumerate(zip(maps, STRIDES, strict=False)):
        extent = np.ceil(window / stride)
        if isinstance(config, schema.RoiAlign):
            found = _align(features, boxes, extent=extent, window=window / stride)
        else:
            found = pooled(np.asarray(_crop(features, boxes, extent=extent)))
        crops = np.where((levels == level)[:, None, None, None], found, crops)
    return crops, levels


@each_config
@each_number_of_maps
def test_boxes_are_cropped_from_the_map_of_their_size(config, count):
    maps, boxes, windows = inputs(count)
    found = cropped(config)(maps, boxes, windows)
    assert found.shape == (2, 9, config.output_size, config.output_size, 3)
    used = set()
    for image, crops in enumerate(found):
        own = [features[image] for features in maps]
        expected, levels = one_by_one(config, own, boxes[image], windows[image])
        np.testing.assert_allclose(crops, expected, atol=1e-5)
        used |= set(levels)
    assert len(used) == count


@each_config
@each_number_of_maps
def test_a_padded_image_has_the_crops_of_its_true_size(config, count):
    maps, boxes, windows = inputs(count)
    found = cropped(config)(maps, boxes, windows)
    window = (1000, 900)
    alone = [
        features[:1, : -(-window[0] // stride), : -(-window[1] // stride)]
        for features, stride in zip(maps, STRIDES, strict=False)
    ]
    crops = cropped(config, window)(alone, boxes[:1], windows[:1])
    np.testing.assert_allclose(found[:1], crops, atol=1e-6)


@each_config
@pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])
def test_each_platform_has_one_computation(config, platform):
    maps, boxes, windows = inputs(3)

    def gradient(maps, boxes, windows):
        return jax.grad(lambda maps: cropped(config)(maps, boxes, windows).sum())(maps)

    traced = jax.jit(gradient).trace(maps, boxes, windows)
    program = traced.lower(lowering_platforms=(platform,)).as_text()
    products, sums = "stablehlo.dot_general" in program, "stablehlo.scatter" in program
    assert (products, sums) == ((False, True) if platform == "cpu" else (True, False))


@each_config
def test_crops_of_bfloat16_maps_are_bfloat16(config):
    maps, boxes, windows = inputs(3)
    rounded = [jnp.asarray(features, jnp.bfloat16) for features in maps]
    found = cropped(config)(rounded, boxes, windows)
    assert found.dtype == jnp.bfloat16
    exact = cropped(config)([one.astype(np.float32) for one in rounded], boxes, windows)
    # Computed in float32 and rounded once.
    np.testing.assert_allclose(found.astype(np.float32), exact, rtol=2**-8)


@each_config
def test_padded_proposals_have_finite_crops_and_gradients(config):
    maps, boxes, windows = inputs(3)
    # All their points are in the corner of the finest map.

    @jax.jit
    def both(maps):
        crops, pull = jax.vjp(lambda maps: cropped(config)(maps, boxes * 0, windows), maps)
        return crops, *pull(jnp.ones_like(crops))

    crops, gradient = both(maps)
    assert np.isfinite(crops).all()
    for level, features in enumerate(gradient):
        assert [tuple(cell) for cell in np.argwhere(features[0].any(-1))] == [(0, 0)][level:]
