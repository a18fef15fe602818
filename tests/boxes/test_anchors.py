import math

import numpy as np
import pytest

from stillbox.boxes.anchors import (
    BoxSpec,
    Grid,
    grid_anchors,
    multiscale_grids,
    pixel_grid_anchors,
    scale_ratio_specs,
)
from tests.boxes import golden
from tests.shared import SHARED, needs_shared

RETINANET = {
    "min_level": 3,
    "max_level": 7,
    "anchor_scale": 4.0,
    "aspect_ratios": (1.0, 2.0, 0.5),
    "scales_per_octave": 2,
}
RETINANET_SHAPES = [(side, side) for side in (80, 40, 20, 10, 5)]


def one_level(level, image_shape, feature_shape, **settings):
    """Anchors of a single level, in pixels."""
    defaults = {"anchor_scale": 4.0, "aspect_ratios": (1.0,), "scales_per_octave": 1}
    grids = multiscale_grids(
        image_shape, min_level=level, max_level=level, **{**defaults, **settings}
    )
    return pixel_grid_anchors([feature_shape], image_shape, grids) * np.tile(image_shape, 2)


def test_the_anchors_of_two_grids_equal_the_published_test():
    # From the original's unit tests. Ratio 1/2 at scale 1: height 1 / sqrt(1/2), width sqrt(1/2).
    square, large, upright = BoxSpec(1.0, 1.0), BoxSpec(2.0, 1.0), BoxSpec(1.0, 0.5)
    fine = grid_anchors((4, 4), [square, large, upright], (1, 1), (0.25, 0.25), (0.125, 0.125))
    coarse = grid_anchors((2, 2), [square, upright], (1, 1), (0.5, 0.5), (0.25, 0.25))
    assert len(fine) + len(coarse) == 56
    h, w = math.sqrt(2) / 2, 1 / math.sqrt(2) / 2
    np.testing.assert_allclose(
        fine[:3],
        [
            [-0.375, -0.375, 0.625, 0.625],
            [-0.875, -0.875, 1.125, 1.125],
            [0.125 - h, 0.125 - w, 0.125 + h, 0.125 + w],
        ],
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        coarse[:2],
        [[-0.25, -0.25, 0.75, 0.75], [0.25 - h, 0.25 - w, 0.25 + h, 0.25 + w]],
        rtol=1e-6,
    )


def retinanet_640():
    grids = multiscale_grids((640, 640), **RETINANET)
    return pixel_grid_anchors(RETINANET_SHAPES, (640, 640), grids)


def test_multiscale_anchors_equal_the_executed_reference():
    expected = golden.load("boxes_anchors.json")["ssd_mobilenet_v1_fpn_640x640"]
    anchors = retinanet_640()
    assert anchors.dtype == np.float32
    assert len(anchors) == expected["num_anchors"]
    np.testing.assert_array_equal(anchors[:12], np.float32(expected["anchors_first12"]))
    np.testing.assert_array_equal(anchors[-6:], np.float32(expected["anchors_last6"]))
    np.testing.assert_allclose(anchors.sum(axis=0), expected["anchors_sum"], rtol=1e-6)


@needs_shared
@pytest.mark.proof
def test_all_multiscale_anchors_equal_the_executed_reference_bit_by_bit():
    folder = SHARED / "goldens" / "object_detection_api"
    name = "anchors_ssd_mobilenet_v1_fpn_shared_box_predictor_640x640_coco14_sync.npy"
    np.testing.assert_array_equal(retinanet_640(), np.load(folder / name))


def test_the_anchors_of_one_level_equal_the_published_test():
    # From the original's unit tests: stride 32, side 4 * 32 = 128, first centre at 16.
    expected = [[-48, -48, 80, 80], [-48, -16, 80, 112], [-16, -48, 112, 80], [-16, -16, 112, 112]]
    np.testing.assert_allclose(one_level(5, (64, 64), (2, 2)), expected)


def test_the_offset_is_0_along_a_side_that_the_stride_does_not_divide():
    # Row 2: 65 = 2 * 32 + 1, so the first centre lies in the corner.
    anchors = one_level(5, (65, 65), (3, 3))
    np.testing.assert_allclose(anchors[0], [-64, -64, 64, 64], rtol=1e-6)
    centers = (anchors[:, :2] + anchors[:, 2:]) / 2
    expected = [[row, column] for row in (0, 32, 64) for column in (0, 32, 64)]
    np.testing.assert_allclose(centers, expected, atol=1e-5)
    # Each side for itself: 64 rows are divided, 65 columns are not.
    mixed = one_level(5, (64, 65), (2, 3))
    np.testing.assert_allclose((mixed[0, :2] + mixed[0, 2:]) / 2, [16, 0], atol=1e-5)


def test_scales_of_one_ratio_stand_together_as_in_the_published_test():
    # Row 3: level 6, side 256 and 256 * sqrt(2) around 32; aspect ratio 2 is wider than high.
    square = [[-96, -96, 160, 160], [-149.0193, -149.0193, 213.0193, 213.0193]]
    wide = [[-58.50967, -149.0193, 122.50967, 213.0193], [-96, -224, 160, 288]]
    two = one_level(6, (64, 64), (1, 1), scales_per_octave=2)
    np.testing.assert_allclose(two, square, rtol=1e-6)
    four = one_level(6, (64, 64), (1, 1), scales_per_octave=2, aspect_ratios=(1.0, 2.0))
    np.testing.assert_allclose(four, [*square, *wide], rtol=1e-6)


def test_a_grid_of_scales_and_ratios_by_hand():
    specs = scale_ratio_specs((0.5, 2.0), (0.25, 1.0))
    grid = Grid(specs, (256, 256), (16, 16), (7, -3))
    pixels = pixel_grid_anchors([(1, 1)], (512, 256), [grid]) * [512, 256, 512, 256]
    # Ratio 1/4 at scale 1/2: height .5 / .5 * 256 = 256, width .5 * .5 * 256 = 64; scale 2 is four
    # times that; then squares of 128 and 512; all around (7, -3).
    expected = [
        [-121, -35, 135, 29],
        [-505, -131, 519, 125],
        [-57, -67, 71, 61],
        [-249, -259, 263, 253],
    ]
    np.testing.assert_allclose(pixels, expected, rtol=1e-6)


def test_every_map_has_its_own_grid():
    grids = [
        Grid((BoxSpec(8, 1.0),), (1, 1), (4, 8), (2, 4)),
        Grid((BoxSpec(16, 1.0), BoxSpec(16, 4.0)), (1, 1), (8, 8), (0, 0)),
    ]
    anchors = pixel_grid_anchors([(2, 1), (1, 1)], (32, 64), grids)
    # Centres (2, 4) and (6, 4) of 32 x 64 pixels; then 16 x 16 and 8 x 32 around the corner.
    expected = [[-2, 0, 6, 8], [2, 0, 10, 8], [-8, -8, 8, 8], [-4, -16, 4, 16]]
    np.testing.assert_allclose(anchors * [32, 64, 32, 64], expected)


def test_ratios_of_one_scale_stand_together_where_the_scale_comes_first():
    # From RetinaNet for TPU: level 6, side 2 * 64 = 128 around 32; ratio 4 is 64 high and
    # 256 wide, ratio 1/4 turned.
    settings = {"anchor_scale": 2.0, "scale_major": True}
    three = one_level(6, (64, 64), (1, 1), aspect_ratios=(1.0, 4.0, 0.25), **settings)
    expected = [[-32, -32, 96, 96], [0, -96, 64, 160], [-96, 0, 160, 64]]
    np.testing.assert_allclose(three, expected, rtol=1e-6)
    # A second scale follows after all three: sqrt(2) * 128 = 181.019 around 32.
    six = one_level(
        6, (64, 64), (1, 1), aspect_ratios=(1.0, 4.0, 0.25), scales_per_octave=2, **settings
    )
    np.testing.assert_allclose(six[:3], expected, rtol=1e-6)
    np.testing.assert_allclose(six[3], [-58.50967, -58.50967, 122.50967, 122.50967], rtol=1e-6)


def test_levels_of_anchors_of_two_strides_equal_the_published_test():
    # From RetinaNet for TPU: sides 64 around 16 and 48, then 128 around 32.
    fine = [[-16, -16, 48, 48], [-16, 16, 48, 80], [16, -16, 80, 48], [16, 16, 80, 80]]
    grids = multiscale_grids(
        (64, 64),
        min_level=5,
        max_level=6,
        anchor_scale=2.0,
        aspect_ratios=(1.0,),
        scales_per_octave=1,
        scale_major=True,
    )
    anchors = pixel_grid_anchors([(2, 2), (1, 1)], (64, 64), grids) * 64
    np.testing.assert_allclose(anchors, [*fine, [-32, -32, 96, 96]], rtol=1e-6)
