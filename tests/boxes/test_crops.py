"""Arithmetic with a rounding after every operation, beside numpy's.

Where samples of boxes lie.

Crops beside the original's two forms, and the two computations beside each other.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes.crops import (
    Samples,
    edge_samples,
    gathered,
    multiplied,
    product,
    pyramid_level,
    quotient,
    scaled_down,
)
from tests.boxes import golden
from tests.boxes.golden import optimised
from tests.boxes.one_map import crop_and_resize, roi_align

NUMBERS = np.random.default_rng(0).uniform(-600, 600, 2000).astype(np.float32)


def test_a_quotient_by_a_constant_is_no_product():
    expected = NUMBERS / np.float32(600)
    assert (optimised(lambda numbers: quotient(numbers, 600), NUMBERS) == expected).all()


@pytest.mark.parametrize("size", [192, 600, 41])
def test_boxes_are_multiplied_by_the_reciprocal_of_the_size(size):
    """`scale(boxlist, 1 / height, 1 / width)` of the original's `to_normalized_coordinates`."""
    expected = NUMBERS * (np.float32(1) / np.float32(size))
    assert (expected != NUMBERS / np.float32(size)).any()
    assert (optimised(lambda numbers: scaled_down(numbers, size), NUMBERS) == expected).all()
    assert (optimised(scaled_down, NUMBERS, np.int32(size)) == expected).all()


def test_one_unit_in_the_last_place_decides_whether_a_crop_ends_on_its_map():
    """Executed: the original samples the last row of a proposal from 53.04454 to 192 of 192."""
    box = np.float32([[53.04454, 0, 192, 192]])
    for framed, inside in ((scaled_down(box, 192), True), (quotient(box, 192), False)):
        rows = edge_samples(framed, np.array([12, 12]), size=14, outside="zero").rows
        assert bool(rows.weights[0, -1].sum() > 0) == inside


def test_a_product_is_rounded_before_it_is_added():
    expected = NUMBERS * np.float32(1.1) + NUMBERS[::-1]
    merged = lambda left, other: product(left, 1.1) + other  # noqa: E731
    assert (optimised(merged, NUMBERS, NUMBERS[::-1]) == expected).all()


def test_a_product_is_limited_to_what_fits_into_an_integer():
    assert (product(np.float32([-3e38, 3e38]), 1) == np.float32([-(2**29), 2**29])).all()


LEVELS = golden.load("boxes_crops.json")["fpn_feature_levels"]
# The value of a cell is its row; and one that is its column.
ROWS, COLUMNS = np.mgrid[:6, :8].astype(np.float32)[..., None]
EXTENT = np.float32([6, 8])
sample_cells = jax.jit(crop_and_resize, static_argnames=("size", "outside"))
sample_edges = jax.jit(roi_align, static_argnames=("size", "samples"))


@pytest.mark.parametrize("side, levels, key", [(640, 5, "levels"), (800, 4, "image_ratio_800")])
def test_levels_equal_the_originals(side, levels, key):
    of_level = jax.jit(pyramid_level, static_argnums=2)
    levels_chosen = of_level(np.float32(LEVELS["boxes"][0]), np.float32([side, side]), levels)
    assert levels_chosen.tolist() == LEVELS[key][0]


def test_levels_change_at_powers_of_two_of_224_pixels():
    sides = np.float32([55, 56, 111, 112, 223, 224, 447, 448, 895, 896, 2000]) / 1024
    boxes = np.stack([np.zeros_like(sides), np.zeros_like(sides), sides, sides], -1)
    levels = pyramid_level(boxes, np.float32([1024, 1024]), 5)
    assert levels.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 4]
    # An inverted box has no size, and one level is the level of all.
    assert pyramid_level(np.float32([[0.5, 0, 0, 0.5]]), np.float32([640, 640]), 5).tolist() == [0]
    assert pyramid_level(boxes, np.float32([1024, 1024]), 1).tolist() == [0] * 11


def test_points_lie_from_edge_to_edge():
    # 5 * .2 = 1 to 5 * .8 = 4 in rows, 7 * .5 = 3.5 to 7 in columns.
    boxes = np.float32([[0.2, 0.5, 0.8, 1.0]])
    rows, columns = (
        sample_cells(ramp, boxes, size=4, extent=EXTENT, outside="fade")[0, :, :, 0]
        for ramp in (ROWS, COLUMNS)
    )
    np.testing.assert_allclose(rows[:, 0], [1, 2, 3, 4], rtol=1e-6)
    np.testing.assert_allclose(columns[0], [3.5, 3.5 + 7 / 6, 3.5 + 7 / 3, 7], rtol=1e-5)


@pytest.mark.parametrize("outside, expected", [("zero", 0.0), ("fade", 0.75)])
def test_a_point_beyond_the_map_is_zero_or_fades(outside, expected):
    # One point, in row -.25 and column 3.5 of a map of ones.
    boxes = np.float32([[-0.1, 0.5, 0.0, 0.5]])
    value = sample_cells(np.ones((6, 8, 1)), boxes, size=1, extent=EXTENT, outside=outside)
    np.testing.assert_allclose(value.item(), expected, rtol=1e-6)


def test_cells_of_aligned_crops_have_the_means_of_their_points():
    # Rows 1.5 to 4.5 of 6 and columns 2 to 6 of 8, in cells; a centre is half a cell further up.
    boxes = np.float32([[0.25, 0.25, 0.75, 0.75]])
    options = {"size": 2, "samples": 3, "extent": EXTENT, "window": EXTENT}
    rows = sample_edges(ROWS, boxes, **options)[0, :, :, 0]
    columns = sample_edges(COLUMNS, boxes, **options)[0, :, :, 0]
    np.testing.assert_allclose(rows, [[1.75, 1.75], [3.25, 3.25]], rtol=1e-6)
    np.testing.assert_allclose(columns, [[2.5, 4.5], [2.5, 4.5]], rtol=1e-6)


def test_points_of_aligned_crops_keep_the_edges_value_for_one_cell():
    # Cells of one point each: rows -2, -1, 0, 1 of a map with 5 in row 0 and 7 in the others.
    features = np.full((6, 8, 1), 7, np.float32)
    features[0] = 5
    boxes = np.float32([[-2 / 6, 0.25, 2 / 6, 0.75]])
    cropped = sample_edges(features, boxes, size=4, samples=1, extent=EXTENT, window=EXTENT)
    np.testing.assert_allclose(cropped[0, :, 0, 0], [0, 5, 5, 7], rtol=1e-5)


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
align = partial(roi_align, size=3, samples=2, window=np.float32([6.7, 4.5]))
each_crop = pytest.mark.parametrize("function", [crop, align], ids=["crop_and_resize", "roi_align"])


@each_form
@each_computation
@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: str(case["crop_size"]))
def test_crops_equal_the_originals(case, compute, form):
    def crop_image(features, boxes):
        by_size = [
            edge_samples(boxes, np.array([5, 6]), size=size, outside=FORMS[form])
            for size in case["crop_size"]
        ]
        samples = Samples(by_size[0].rows, by_size[1].columns)
        return compute([features], jnp.zeros(4, jnp.int32), samples)

    crops = jax.jit(jax.vmap(crop_image))(recorded_map(2, 5, 6, 3), np.float32(GOLDEN["boxes"]))
    np.testing.assert_allclose(crops, case[form], atol=1e-6)


@each_form
@each_computation
def test_crops_of_a_pyramid_equal_the_originals(compute, form):
    case = GOLDEN["multilevel"]
    maps = [recorded_map(2, side, side, 2) for side in (8, 4, 2)]
    sides = jnp.asarray([[8, 8], [4, 4], [2, 2]])

    def crop_image(maps, boxes, levels):
        samples = edge_samples(boxes, sides[levels], size=2, outside=FORMS[form])
        return compute(maps, levels, samples)

    boxes = np.clip(np.float32(GOLDEN["boxes"]), 0, 1)
    crops = jax.jit(jax.vmap(crop_image))(maps, boxes, np.int32(case["levels"]))
    np.testing.assert_allclose(crops, case[form], atol=1e-6)


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
    for left, other in zip(*results, strict=True):
        np.testing.assert_allclose(left, other, atol=1e-5)
        assert np.abs(left).max() > 0.1


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
    of_image = jax.jit(lambda *case: function(*case[:2], extent=case[2], compute=compute))
    batch = jax.vmap(of_image)(*(np.stack(arrays) for arrays in zip(*cases, strict=True)))
    for case, crops in zip(cases, batch, strict=True):
        np.testing.assert_allclose(of_image(*case), crops, atol=1e-6)


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
