"""Large-scale jitter, mosaic, mixup and the random affine map of mmdet and mmcv, executed.

A case gives the random numbers as fractions of their ranges. Boxes are `x, y, x, y` there, in
pixels.
"""

import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.inputs.augment.geometry import flip_boxes
from stillbox.inputs.augment.strong import (
    AffineDraws,
    JitterDraws,
    MixUpDraws,
    affine_matrix,
    combine,
    jitter,
    mix,
    place_center,
    place_jittered,
    transform,
)
from stillbox.inputs.sample import Sample
from tests.proofs.test_dense_parts import cases, drawn, flipped, names
from tests.small import needs_shared

pytestmark = [needs_shared, pytest.mark.proof]


def pictured(spec, colour=0):
    """The sample of a case, of one colour; boxes may reach beyond the image."""
    height, width = spec["image_height_width"]
    boxes, labels = drawn(spec["gts"])
    return Sample(
        image=np.full((height, width, 3), spec.get("colour", colour), np.uint8),
        boxes=(flipped(boxes) / [height, width, height, width]).astype(np.float32),
        class_ids=labels.astype(np.int32),
        weights=np.ones(len(labels), np.float32),
    )


def assert_boxes(sample, out):
    pixels = flipped(sample.boxes.astype(np.float64) * np.tile(sample.size, 2))
    np.testing.assert_allclose(pixels, np.reshape(out["boxes"], (-1, 4)), atol=1e-4, rtol=1e-6)
    assert sample.class_ids.tolist() == out["labels"]
    assert len(sample.weights) == len(out["labels"])


def assert_colours(image, out, flat):
    """Compares the extent and the count of every gray value.

    Those that are not `flat` are interpolated: OpenCV rounds them to the last bit as the processor
    has instructions, so that a value of 123.515 is 123 in some rows and 124 in others.
    """
    assert list(image.shape[:2]) == out["image_shape"]
    assert (image == image[..., :1]).all()
    gray = image[..., 0].astype(int)
    left = gray.size
    for colour, (x1, y1, x2, y2, count) in out["colour_extent"].items():
        rows, columns = np.nonzero(np.abs(gray - int(colour)) <= (int(colour) not in flat))
        assert len(rows) == count, colour
        left -= count
        assert [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] == [x1, y1, x2, y2]
    assert left == 0


@pytest.mark.parametrize("name", names("lsj"))
def test_large_scale_jitter(name):
    given, out = cases()[name]["inputs"], cases()[name]["out"]
    (side,) = set(given["scale"])
    (least,) = set(given["min_gt_bbox_wh"])
    config = schema.LargeScaleJitter(output_size=side, min_box_side=least)
    scale, _, _, y, x, _ = given["fractions"]
    sample = pictured(given)
    placement = place_jittered(sample.size, config, JitterDraws(scale, (y, x)))
    assert list(placement.size) == out["after_resize"]["image_shape"]
    assert list(placement.shown) == out["after_filter"]["image_shape"]
    after = jitter(sample, config, placement)
    assert after.size == (side, side)
    # What remains is padding, and the boxes are normalised with it.
    shown = placement.shown
    boxes = after.boxes * (side / np.tile(np.array(shown, np.float32), 2))
    boxes = flip_boxes(boxes) if given["flip"] else boxes
    unpadded = after.image[: shown[0], : shown[1]]
    bare = Sample(unpadded, boxes, after.class_ids, after.weights)
    assert_boxes(bare, out["after_flip"])
    assert (unpadded == 0).all()
    assert (after.image[shown[0] :] == [124, 116, 104]).all()


def shared_fields(given):
    """Returns the fields that mosaic and mixup share."""
    width, height = given["img_scale_width_height"]
    return {
        "height": height,
        "width": width,
        "pad_color": (float(given["pad_val"]),) * 3,
        "clip_boxes": given["bbox_clip_border"],
    }


@pytest.mark.parametrize("name", names("mosaic"))
def test_mosaic(name):
    given, out = cases()[name]["inputs"], cases()[name]["out"]
    low, high = given["center_ratio_range"]
    config = schema.Mosaic(min_center=low, max_center=high, **shared_fields(given))
    _, x, y = given["fractions"]
    pictures = [pictured(spec) for spec in given["pictures"]]
    after = combine(pictures, config, place_center(config, (y, x)))
    assert_boxes(after, out)
    assert_colours(after.image, out, {114, *(spec["colour"] for spec in given["pictures"])})


@pytest.mark.parametrize("name", names("mixup"))
def test_mixup(name):
    given, out = cases()[name]["inputs"], cases()[name]["out"]
    width, height = given["img_scale_width_height"]
    low, high = given["ratio_range"]
    config = schema.MixUp(min_scale=low, max_scale=high, **shared_fields(given))
    first, second = (pictured(spec) for spec in given["pictures"])
    jitter_draw, flip, *rest = given["fractions"]
    scale = low + jitter_draw * (high - low)
    # An offset is drawn only along an axis that is too long.
    fractions = iter(rest)
    offset = [
        next(fractions) if int(side * scale) > length else 0.0
        for side, length in zip((height, width), first.size, strict=True)
    ]
    draws = MixUpDraws(scale, flip > given["flip_ratio"], (offset[0], offset[1]))
    after = mix(first, second, config, draws)
    assert_boxes(after, out)
    left, other = (spec["colour"] for spec in given["pictures"])
    assert_colours(after.image, out, {(left + other) // 2, (left + given["pad_val"]) // 2})


@pytest.mark.parametrize("name", names("random_affine"))
def test_random_affine(name):
    given, out = cases()[name]["inputs"], cases()[name]["out"]
    sample = pictured(given)
    low, high = given["scaling_ratio_range"]
    border = given["border_x_y"][::-1]
    size = tuple(side + 2 * more for side, more in zip(sample.size, border, strict=True))
    config = schema.RandomAffine(
        max_rotation=given["max_rotate_degree"],
        min_scale=low,
        max_scale=high,
        max_shear=given["max_shear_degree"],
        max_shift=given["max_translate_ratio"],
        output_size=size,
        clip_boxes=given.get("bbox_clip_border", True),
    )
    matrix = affine_matrix(size, config, AffineDraws(*given["fractions"]))
    np.testing.assert_allclose(matrix, out["warp_matrix"], rtol=1e-6, atol=1e-6)
    after = transform(sample, size, config, matrix)
    assert list(after.size) == out["image_shape"]
    assert_boxes(after, out)
