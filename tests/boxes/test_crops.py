"""Crops beside the original's two forms, and the two computations beside each other."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes.crops import crop_and_resize, gathered, multiplied, roi_align
from stillbox.boxes.samples import Samples, edge_samples
from tests.boxes import golden
from tests.boxes.compiling import optimised

GOLDEN = golden.load("boxes_crops.json")
# The original's form by matrix products lets what is outside of the map fade.
FORMS = {"gather": "zero", "matmul": "fade"}

each_computation = pytest.mark.parametrize("compute", [gathered, multiplied])
each_form = pytest.mark.parametrize("form", FORMS)


def recorded_map(*shape):
    """The features that the goldens were computed from."""
    index = np.arange(np.prod(shape))
    return np.sin(0.7 * index + 0.1 * (index % 5)).astype(np.float32).reshape(shape)


def random_case(seed=0, boxes=7):
    """A map `[9, 6, 3]`, boxes that reach beyond 0 and 1, and the extent of a part of the map."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(9, 6, 3)).astype(np.float32)
    return features, golden.random_boxes(rng, boxes) * 1.3 - 0.15, np.int32([7, 5])


crop = partial(crop_and_resize, size=4, outside="fade")
align = partial(roi_align, size=3, samples=2, window=(6.7, 4.5))
each_crop = pytest.mark.parametrize("function", [crop, align], ids=["crop_and_resize", "roi_align"])


@each_form
@each_computation
@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: str(case["crop_size"]))
def test_crops_equal_the_originals(case, compute, form):
    def one(features, boxes):
        by_size = [
            edge_samples(boxes, [5, 6], size=size, outside=FORMS[form])
            for size in case["crop_size"]
        ]
        samples = Samples(by_size[0].rows, by_size[1].columns)
        return compute([features], jnp.zeros(4, jnp.int32), samples)

    found = jax.jit(jax.vmap(one))(recorded_map(2, 5, 6, 3), np.float32(GOLDEN["boxes"]))
    np.testing.assert_allclose(found, case[form], atol=1e-6)


@each_form
@each_computation
def test_crops_of_a_pyramid_equal_the_originals(compute, form):
    case = GOLDEN["multilevel"]
    maps = [recorded_map(2, side, side, 2) for side in (8, 4, 2)]
    sides = jnp.asarray([[8, 8], [4, 4], [2, 2]])

    def one(maps, boxes, levels):
        samples = edge_samples(boxes, sides[levels], size=2, outside=FORMS[form])
        return compute(maps, levels, samples)

    boxes = np.clip(np.float32(GOLDEN["boxes"]), 0, 1)
    found = jax.jit(jax.vmap(one))(maps, boxes, np.int32(case["levels"]))
    np.testing.assert_allclose(found, case[form], atol=1e-6)


@each_computation
def test_rows_lost_by_rounding_are_the_originals(compute):
    case = GOLDEN["crop_edge_rounding"]
    boxes = np.random.RandomState(3).uniform(0, 0.9, (4000, 4)).astype(np.float32)
    boxes[:, 2:] = 1.0
    zero, fade = (
        optimised(
            partial(crop_and_resize, size=14, outside=outside, compute=compute),
            np.full((38, 50, 1), 5, np.float32),
            boxes,
            extent=np.int32([38, 50]),
        )
        for outside in ("zero", "fade")
    )
    lost = np.flatnonzero((zero == 0).any((1, 2, 3)))
    assert len(lost) == case["n_boxes_with_zeros_in_gather"]
    assert lost[:200].tolist() == case["indices_first200"]
    for example in case["examples"]:
        (index,) = np.flatnonzero((boxes == np.float32(example["box"])).all(-1))
        empty = zero[index, :, :, 0] == 0
        assert np.flatnonzero(empty.all(1)).tolist() == example["zero_rows"]
        assert np.flatnonzero(empty.all(0)).tolist() == example["zero_cols"]
    np.testing.assert_allclose(fade, 5, rtol=1e-5)


@each_crop
def test_both_computations_and_their_gradients_are_the_same(function):
    features, boxes, extent = random_case()
    results = []
    for compute in (gathered, multiplied):
        crops, pull = jax.vjp(
            jax.jit(lambda x, compute=compute: function(x, boxes, extent=extent, compute=compute)),
            features,
        )
        weights = np.random.default_rng(1).normal(size=crops.shape).astype(np.float32)
        (gradient,) = pull(weights)
        # Crops are linear in the map.
        np.testing.assert_allclose(np.vdot(gradient, features), np.vdot(weights, crops), rtol=1e-4)
        results.append((crops, gradient))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
        assert np.abs(one).max() > 0.1


@each_crop
@each_computation
def test_nothing_beyond_the_extent_is_read(function, compute):
    features, boxes, extent = random_case()
    jitted = jax.jit(partial(function, compute=compute))
    height, width = extent
    alone = jitted(features[:height, :width], boxes, extent=extent)
    features[height:], features[:, width:] = 1e6, 1e6
    np.testing.assert_allclose(jitted(features, boxes, extent=extent), alone, atol=1e-6)


@each_crop
@each_computation
def test_a_batch_equals_its_images(function, compute):
    cases = [random_case(seed) for seed in range(2)]
    one = jax.jit(lambda *case: function(*case[:2], extent=case[2], compute=compute))
    batch = jax.vmap(one)(*(np.stack(arrays) for arrays in zip(*cases, strict=True)))
    for case, crops in zip(cases, batch, strict=True):
        np.testing.assert_allclose(one(*case), crops, atol=1e-6)


@each_crop
@each_computation
def test_points_of_bfloat16_maps_are_computed_in_float32(function, compute):
    features, boxes, extent = random_case()
    # Thousandths of boxes are lost in bfloat16; features of small integers are not.
    features = np.round(features)
    jitted = jax.jit(partial(function, compute=compute))
    crops, exact = (
        jitted(jnp.asarray(features, dtype), boxes, extent=extent)
        for dtype in (jnp.bfloat16, jnp.float32)
    )
    assert crops.dtype == jnp.bfloat16
    # Each weight, band and result is rounded to 8 bits, of values up to 3.
    np.testing.assert_allclose(crops.astype(np.float32), exact, atol=4 * 3 * 2**-9)
