"""Where samples of boxes lie."""

import jax
import numpy as np
import pytest

from stillbox.boxes.crops import crop_and_resize, roi_align
from stillbox.boxes.samples import pyramid_level
from tests.boxes import golden

LEVELS = golden.load("boxes_crops.json")["fpn_feature_levels"]
# The value of a cell is its row; and one that is its column.
ROWS, COLUMNS = np.mgrid[:6, :8].astype(np.float32)[..., None]
EXTENT = np.float32([6, 8])
crop = jax.jit(crop_and_resize, static_argnames=("size", "outside"))
align = jax.jit(roi_align, static_argnames=("size", "samples"))


@pytest.mark.parametrize("side, levels, key", [(640, 5, "levels"), (800, 4, "image_ratio_800")])
def test_levels_equal_the_originals(side, levels, key):
    of_level = jax.jit(pyramid_level, static_argnums=2)
    found = of_level(np.float32(LEVELS["boxes"][0]), np.float32([side, side]), levels)
    assert found.tolist() == LEVELS[key][0]


def test_levels_change_at_powers_of_two_of_224_pixels():
    sides = np.float32([55, 56, 111, 112, 223, 224, 447, 448, 895, 896, 2000]) / 1024
    boxes = np.stack([np.zeros_like(sides), np.zeros_like(sides), sides, sides], -1)
    found = pyramid_level(boxes, np.float32([1024, 1024]), 5)
    assert found.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 4]
    # An inverted box has no size, and one level is the level of all.
    assert pyramid_level(np.float32([[0.5, 0, 0, 0.5]]), np.float32([640, 640]), 5).tolist() == [0]
    assert pyramid_level(boxes, np.float32([1024, 1024]), 1).tolist() == [0] * 11


def test_points_lie_from_edge_to_edge():
    # 5 * .2 = 1 to 5 * .8 = 4 in rows, 7 * .5 = 3.5 to 7 in columns.
    boxes = np.float32([[0.2, 0.5, 0.8, 1.0]])
    rows, columns = (
        crop(ramp, boxes, size=4, extent=EXTENT, outside="fade")[0, :, :, 0]
        for ramp in (ROWS, COLUMNS)
    )
    np.testing.assert_allclose(rows[:, 0], [1, 2, 3, 4], rtol=1e-6)
    np.testing.assert_allclose(columns[0], [3.5, 3.5 + 7 / 6, 3.5 + 7 / 3, 7], rtol=1e-5)


@pytest.mark.parametrize("outside, expected", [("zero", 0.0), ("fade", 0.75)])
def test_a_point_beyond_the_map_is_zero_or_fades(outside, expected):
    # One point, in row -.25 and column 3.5 of a map of ones.
    boxes = np.float32([[-0.1, 0.5, 0.0, 0.5]])
    value = crop(np.ones((6, 8, 1)), boxes, size=1, extent=EXTENT, outside=outside)
    np.testing.assert_allclose(value.item(), expected, rtol=1e-6)


def test_cells_of_aligned_crops_have_the_means_of_their_points():
    # Rows 1.5 to 4.5 of 6 and columns 2 to 6 of 8, in cells; a centre is half a cell further up.
    boxes = np.float32([[0.25, 0.25, 0.75, 0.75]])
    options = {"size": 2, "samples": 3, "extent": EXTENT, "window": EXTENT}
    rows = align(ROWS, boxes, **options)[0, :, :, 0]
    columns = align(COLUMNS, boxes, **options)[0, :, :, 0]
    np.testing.assert_allclose(rows, [[1.75, 1.75], [3.25, 3.25]], rtol=1e-6)
    np.testing.assert_allclose(columns, [[2.5, 4.5], [2.5, 4.5]], rtol=1e-6)


def test_points_of_aligned_crops_keep_the_edges_value_for_one_cell():
    # Cells of one point each: rows -2, -1, 0, 1 of a map whose row 0 is 5 and whose others are 7.
    features = np.full((6, 8, 1), 7, np.float32)
    features[0] = 5
    boxes = np.float32([[-2 / 6, 0.25, 2 / 6, 0.75]])
    found = align(features, boxes, size=4, samples=1, extent=EXTENT, window=EXTENT)
    np.testing.assert_allclose(found[0, :, 0, 0], [0, 5, 5, 7], rtol=1e-5)
