"""Default boxes against the executed original ."""

import hashlib
import math

import numpy as np
import pytest

from stillbox.boxes.anchors import (
    BoxSpec,
    DefaultBoxSpec,
    Grid,
    anchor_major_order,
    default_boxes,
    default_boxes_in_center_form,
    grid_anchors,
    multiscale_grids,
    pixel_grid_anchors,
    scale_ratio_specs,
    ssd_anchors,
    ssd_anchors_per_location,
)
from tests.boxes import golden
from tests.small import SHARED, needs_shared

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


def assert_equal_golden(anchors, name):
    expected = golden.load("boxes_anchors.json")[name]
    assert len(anchors) == expected["num_anchors"]
    np.testing.assert_array_equal(anchors[:12], np.float32(expected["anchors_first12"]))
    np.testing.assert_array_equal(anchors[-6:], np.float32(expected["anchors_last6"]))
    np.testing.assert_allclose(anchors.sum(axis=0), expected["anchors_sum"], rtol=1e-6)


def retinanet_640():
    grids = multiscale_grids((640, 640), **RETINANET)
    return pixel_grid_anchors(RETINANET_SHAPES, (640, 640), grids)


def test_multiscale_anchors_equal_the_executed_reference():
    anchors = retinanet_640()
    assert anchors.dtype == np.float32
    assert_equal_golden(anchors, "ssd_mobilenet_v1_fpn_640x640")


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


SSD = {
    "min_scale": 0.2,
    "max_scale": 0.95,
    "scales": (),
    "aspect_ratios": golden.SSD_ASPECT_RATIOS,
    "interpolated_scale_aspect_ratio": 1.0,
    "reduce_boxes_in_lowest_layer": True,
}
# One square as large as the image at every location.
ONE_SQUARE = {
    **SSD,
    "scales": (1.0,),
    "aspect_ratios": (1.0,),
    "interpolated_scale_aspect_ratio": 0.0,
    "reduce_boxes_in_lowest_layer": False,
}


def test_ssd_300_anchors_equal_the_reference_bit_by_bit():
    anchors = ssd_anchors(golden.SSD_300_SHAPES, (300, 300), **SSD)
    assert anchors.dtype == np.float32
    np.testing.assert_array_equal(anchors, golden.ssd_300_anchors())


def test_anchors_without_a_reduced_lowest_layer_equal_the_reference_bit_by_bit():
    settings = {**SSD, "min_scale": 0.15, "reduce_boxes_in_lowest_layer": False}
    anchors = ssd_anchors(golden.SSD_300_SHAPES, (300, 300), **settings)
    assert_equal_golden(anchors, "ssd_mobilenet_v1_ppn_300x300")


@pytest.mark.parametrize("reduced, total", [(True, 7308), (False, 11640)])
def test_the_number_of_anchors_equals_the_published_test(reduced, total):
    # 38^2 + 19^2 + 10^2 + 5^2 + 3^2 + 1 = 1940 locations: 6 * 1940, less 3 * 1444 when reduced.
    shapes = [(side, side) for side in (38, 19, 10, 5, 3, 1)]
    settings = {
        **SSD,
        "aspect_ratios": (1.0, 2.0, 3.0, 1 / 2, 1 / 3),
        "reduce_boxes_in_lowest_layer": reduced,
    }
    anchors = ssd_anchors(shapes, (300, 300), **settings)
    assert anchors.shape == (total, 4)
    counts = ssd_anchors_per_location(
        6,
        aspect_ratios=settings["aspect_ratios"],
        interpolated_scale_aspect_ratio=1.0,
        reduce_boxes_in_lowest_layer=reduced,
    )
    assert counts == (3 if reduced else 6, 6, 6, 6, 6, 6)
    assert sum(n * h * w for n, (h, w) in zip(counts, shapes, strict=True)) == total


@pytest.mark.parametrize(
    "image_shape, expected",
    [
        # Row 6: centres (.5, .25) and (.5, .75), half a side .5.
        ((1, 1), [[0, -0.25, 1, 0.75], [0, 0.25, 1, 1.25]]),
        # In an image twice as wide as high a square is half as wide in normalised terms.
        ((320, 640), [[0, 0, 1, 0.5], [0, 0.5, 1, 1]]),
    ],
)
def test_squares_stay_square_in_an_oblong_image(image_shape, expected):
    np.testing.assert_allclose(ssd_anchors([(1, 2)], image_shape, **ONE_SQUARE), expected)


def test_rows_come_before_columns_and_columns_before_boxes():
    settings = {**ONE_SQUARE, "aspect_ratios": (1.0, 4.0)}
    anchors = ssd_anchors([(2, 3)], (100, 100), **settings).reshape(2, 3, 2, 4)
    centers = (anchors[..., :2] + anchors[..., 2:]) / 2
    np.testing.assert_allclose(centers[1, 2, 0], [0.75, 5 / 6], rtol=1e-6)
    # Aspect ratio 4: twice as wide and half as high.
    np.testing.assert_allclose(anchors[0, 0, 1, 2:] - anchors[0, 0, 1, :2], [0.5, 2], rtol=1e-6)


def test_strides_and_offsets_are_in_pixels():
    anchors = ssd_anchors(
        [(2, 2)],
        (200, 100),
        **ONE_SQUARE,
        height_strides=(50,),
        width_strides=(10,),
        height_offsets=(20,),
        width_offsets=(0,),
    )
    centers = (anchors[:, :2] + anchors[:, 2:]) / 2
    # Rows at 20 and 70 of 200 pixels, columns at 0 and 10 of 100.
    expected = [[0.1, 0], [0.1, 0.1], [0.35, 0], [0.35, 0.1]]
    np.testing.assert_allclose(centers, expected, rtol=1e-6)


def test_the_offset_is_half_a_stride_unless_given():
    anchors = ssd_anchors([(2, 1)], (100, 100), **ONE_SQUARE, height_strides=(20,))
    # Rows at 10 and 30 pixels; the width has neither, so its one column lies in the middle.
    centers = (anchors[:, :2] + anchors[:, 2:]) / 2
    np.testing.assert_allclose(centers, [[0.1, 0.5], [0.3, 0.5]], rtol=1e-6)


def test_the_base_anchor_scales_every_box():
    anchors = ssd_anchors([(1, 1)], (9, 9), **ONE_SQUARE, base_anchor_height=0.5)
    np.testing.assert_allclose(anchors, [[0.25, 0, 0.75, 1]])


def test_the_last_map_interpolates_towards_scale_one():
    settings = {**ONE_SQUARE, "scales": (0.25,), "interpolated_scale_aspect_ratio": 1.0}
    anchors = ssd_anchors([(1, 1)], (9, 9), **settings)
    # sqrt(.25 * 1) = .5
    np.testing.assert_allclose(anchors[:, 2] - anchors[:, 0], [0.25, 0.5])


def test_one_map_has_the_smallest_scale():
    anchors = ssd_anchors([(1, 1)], (9, 9), **{**ONE_SQUARE, "scales": ()})
    np.testing.assert_allclose(anchors[:, 2] - anchors[:, 0], [0.2], rtol=1e-6)


IMAGE = (300, 300)
SHAPES = [(side, side) for side in (38, 19, 10, 5, 3, 1)]
SIZES = (21, 45, 99, 153, 207, 261, 315)
STEPS = (8, 16, 32, 64, 100, 300)
RATIOS = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))
SPECS = [DefaultBoxSpec(SIZES[k], SIZES[k + 1], STEPS[k], RATIOS[k]) for k in range(6)]


def centered() -> np.ndarray:
    return default_boxes_in_center_form(SHAPES, IMAGE, SPECS, clip=True).astype(np.float32)


def digest(boxes: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(boxes).tobytes()).hexdigest()


def test_all_boxes_are_those_of_the_original_bit_by_bit():
    assert centered().shape == (8732, 4)
    expected = "acd1289ec74a4695cf43421a4b94f536c0154b16640c8982427d0d3785715e6d"
    assert digest(centered()) == expected


def test_the_older_order_is_that_of_the_original_bit_by_bit():
    boxes = centered()[anchor_major_order(SHAPES, SPECS)]
    expected = "55305b8c6f62f46bed107bec1388425f1e35d641097cc3020d99f6378b973674"
    assert digest(boxes) == expected
    # One kind of box at all 38 x 38 = 1444 locations, then the next kind.
    np.testing.assert_allclose(boxes[1], [0.0133333, 0.04, 0.07, 0.07], atol=1e-6)
    np.testing.assert_allclose(boxes[1444, 2:], 0.10246951, atol=1e-7)
    np.testing.assert_allclose(boxes[2888, 2:], [0.0495, 0.0990], atol=5e-5)


@pytest.mark.parametrize(
    "index, row",
    [
        # Centre .5 * 8 / 300, side 21 / 300; the large square's sqrt(21 * 45) / 300.
        (0, (0.01333333, 0.01333333, 0.07, 0.07)),
        (1, (0.01333333, 0.01333333, 0.10246951, 0.10246951)),
        # Twice as wide as high: .07 / sqrt(2) and .07 * sqrt(2).
        (2, (0.01333333, 0.01333333, 0.04949747, 0.09899495)),
        (3, (0.01333333, 0.01333333, 0.09899495, 0.04949747)),
        (4, (0.01333333, 0.04, 0.07, 0.07)),
        (5776, (0.02666667, 0.02666667, 0.15, 0.15)),
        (5780, (0.02666667, 0.02666667, 0.08660254, 0.25980762)),
        (8692, (0.16666667, 0.16666667, 0.69, 0.69)),
        (8729, (0.5, 0.5, 0.9557719, 0.9557719)),
        # .87 * sqrt(2) = 1.23 is cut to 1.
        (8730, (0.5, 0.5, 0.6151829, 1.0)),
    ],
)
def test_single_boxes_equal_the_original(index, row):
    np.testing.assert_allclose(centered()[index], row, atol=1e-7)


def test_sums_of_all_columns_equal_the_original():
    edges = default_boxes(SHAPES, IMAGE, SPECS, clip=True)
    assert edges.dtype == np.float32
    np.testing.assert_allclose(
        edges.sum(axis=0, dtype=np.float64), [3857.1628, 3857.1628, 5029.1305, 5029.1305], atol=1e-3
    )
    # Clipping is done before the edges are taken, which therefore lie outside.
    assert edges.min() == pytest.approx(-0.335, abs=1e-3)
    assert edges.max() == pytest.approx(1.402, abs=1e-3)


def test_without_clipping_centres_leave_the_image():
    # Level 5: ten steps of 32 pixels are 320, and the last centre lies at 304.
    boxes = default_boxes_in_center_form(SHAPES, IMAGE, SPECS, clip=False)
    assert boxes[:, 0].max() == pytest.approx(304 / 300)
    assert centered()[:, 0].max() == 1.0


def test_images_that_are_not_square_have_square_boxes_in_pixels():
    (box,) = default_boxes_in_center_form(
        [(1, 1)], (100, 200), [DefaultBoxSpec(20, 45, 40, ())], clip=False
    )[:1]
    # Centre 20 of 100 rows and of 200 columns, side 20.
    np.testing.assert_allclose(box, [0.2, 0.1, 0.2, 0.1])
