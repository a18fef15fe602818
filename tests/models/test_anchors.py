"""Anchors of a configuration, and their number at a location."""

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.models.anchors import anchors_per_location, build_anchors

TWO_MAPS = ((4, 6), (2, 3))
ONE_MAP = TWO_MAPS[:1]
FLEXIBLE = schema.FlexibleGridAnchors(
    grids=(
        schema.AnchorGrid(
            sizes=(8.0, 16.0),
            aspect_ratios=(1.0, 4.0),
            height_stride=8,
            width_stride=16,
            height_offset=4,
            width_offset=2,
        ),
        schema.AnchorGrid(),
    )
)
GRID = schema.GridAnchors(
    base_height=8,
    base_width=16,
    scales=(1.0, 2.0),
    aspect_ratios=(1.0,),
    height_stride=8,
    width_stride=16,
    height_offset=4,
    width_offset=2,
)


@pytest.mark.parametrize(
    ("config", "shapes", "per_location"),
    [
        (schema.SsdAnchors(num_layers=2), TWO_MAPS, (3, 6)),
        (schema.MultiscaleAnchors(min_level=3, max_level=4, scales_per_octave=3), TWO_MAPS, (9, 9)),
        (GRID, ONE_MAP, (2,)),
        (FLEXIBLE, TWO_MAPS, (2, 1)),
    ],
)
def test_the_number_of_anchors_equals_anchors_per_location(config, shapes, per_location):
    assert config.count_maps() == len(shapes)
    assert anchors_per_location(config, len(shapes)) == per_location
    anchors = build_anchors(config, shapes, (32, 96))
    total = sum(n * h * w for n, (h, w) in zip(per_location, shapes, strict=True))
    assert anchors.shape == (total, 4)
    assert not anchors.flags.writeable


def in_pixels(config, shapes):
    return build_anchors(config, shapes, (32, 96)) * np.array([32, 96, 32, 96])


def test_a_grid_has_its_own_base_stride_and_offset():
    # Scale 1: 8 x 16 around (4, 2); scale 2: 16 x 32; then 16 pixels to the right.
    expected = [[0, -6, 8, 10], [-4, -14, 12, 18], [0, 10, 8, 26]]
    np.testing.assert_allclose(in_pixels(GRID, ONE_MAP)[:3], expected, atol=1e-5)
    # The first of the second row, 8 pixels down.
    np.testing.assert_allclose(in_pixels(GRID, ONE_MAP)[12], [8, -6, 16, 10], atol=1e-5)


def test_a_flexible_grid_pairs_sizes_with_ratios():
    # 8 x 8 around (4, 2); size 16 at ratio 4 is 8 high and 32 wide.
    anchors = in_pixels(FLEXIBLE, TWO_MAPS)
    np.testing.assert_allclose(anchors[:2], [[0, -2, 8, 6], [0, -14, 8, 18]], atol=1e-5)
    # The second map follows after 4 * 6 * 2: 32 x 32 in the corner.
    np.testing.assert_allclose(anchors[48], [-16, -16, 16, 16], atol=1e-5)


def test_multiscale_anchors_take_their_fields():
    config = schema.MultiscaleAnchors(
        min_level=3, max_level=3, anchor_scale=2.0, aspect_ratios=(4.0,), scales_per_octave=1
    )
    # Level 3: stride 8, side 16, at ratio 4 8 high and 32 wide, around (4, 4).
    np.testing.assert_allclose(in_pixels(config, ONE_MAP)[0], [0, -12, 8, 20], atol=1e-5)


def test_anchors_for_another_number_of_maps_are_refused():
    with pytest.raises(UserError, match="described for 5 feature maps, the neck makes 6"):
        anchors_per_location(schema.MultiscaleAnchors(), 6)
