import numpy as np
import pytest

from stillbox.boxes.ssd_anchors import ssd_anchors, ssd_anchors_per_location
from tests.boxes import golden

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
    expected = golden.load("boxes_anchors.json")["ssd_mobilenet_v1_ppn_300x300"]
    settings = {**SSD, "min_scale": 0.15, "reduce_boxes_in_lowest_layer": False}
    anchors = ssd_anchors(golden.SSD_300_SHAPES, (300, 300), **settings)
    assert len(anchors) == expected["num_anchors"]
    np.testing.assert_array_equal(anchors[:12], np.float32(expected["anchors_first12"]))
    np.testing.assert_array_equal(anchors[-6:], np.float32(expected["anchors_last6"]))
    np.testing.assert_allclose(anchors.sum(axis=0), expected["anchors_sum"], rtol=1e-6)


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


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"scales": (0.1, 0.2)}, "2 scales for 6 feature maps"),
        ({"height_strides": (8,)}, "1 strides for 6 feature maps"),
        ({"width_offsets": (8, 8)}, "2 offsets for 6 feature maps"),
        ({"aspect_ratios": (1.0, 0.0)}, "aspect ratios are positive"),
    ],
)
def test_lists_that_do_not_fit_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        ssd_anchors(golden.SSD_300_SHAPES, (300, 300), **{**SSD, **wrong})
