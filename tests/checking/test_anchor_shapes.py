"""Shapes of boxes and the descriptions of anchors that they suggest."""

import numpy as np
import pytest

from stillbox.checking.anchor_shapes import Shape, candidates, cluster_shapes, typical_ratios
from stillbox.experiment.schema import GridAnchors, MultiscaleAnchors, SsdAnchors


def test_two_clusters_of_boxes_are_two_shapes():
    # 30 boxes about 10 x 20 and 10 about 80 x 40 pixels (height x width).
    rng = np.random.default_rng(0)
    sizes = np.concatenate([rng.normal((10, 20), 0.5, (30, 2)), rng.normal((80, 40), 0.5, (10, 2))])
    first, second = cluster_shapes(sizes, 2)
    assert first == (pytest.approx(10, abs=0.5), pytest.approx(20, abs=0.5), 0.75)
    assert second == (pytest.approx(80, abs=0.5), pytest.approx(40, abs=0.5), 0.25)


def test_there_are_no_more_shapes_than_different_boxes():
    assert cluster_shapes(np.array([[5.0, 5.0]] * 4)) == [Shape(5.0, 5.0, 1.0)]


def test_ratios_represent_equal_parts_of_the_boxes_or_the_whole_range():
    shapes = [Shape(100, 50, 0.25), Shape(100, 100, 0.5), Shape(50, 100, 0.25)]
    # In two parts the square, at the middle, belongs to the second: ln 2 * 1/3 -> 1.26.
    parts, spread = typical_ratios(shapes, 2)
    assert parts == (0.5, 1.26)
    assert spread == (0.5, 2.0)
    assert typical_ratios(shapes, 3)[1] == (0.5, 1.0, 2.0)
    assert typical_ratios([Shape(9, 9, 1.0)], 3) == [(1.0,), (1.0,)]


SIZES = np.linspace(20, 200, 50)[:, None] * [1.0, 0.5]
SHAPES = cluster_shapes(SIZES)


def test_candidates_are_of_the_same_kind_and_cost_no_more():
    ssd = SsdAnchors(num_layers=3, aspect_ratios=(1.0, 2.0), base_anchor_width=0.5)
    found = list(candidates(ssd, SIZES, SHAPES, (300, 400)))
    assert ssd in found
    for candidate in found:
        assert isinstance(candidate, SsdAnchors)
        assert (candidate.num_layers, candidate.base_anchor_width) == (3, 0.5)
        assert len(candidate.aspect_ratios) <= 2
        assert 0 < candidate.min_scale < candidate.max_scale
    # The largest box is 200 x 100 pixels: its side is 141, and scale 1 is 300 * sqrt(.5) = 212.
    assert max(candidate.max_scale for candidate in found[1:]) == pytest.approx(0.95, abs=0.01)
    assert {c.max_scale for c in found} >= {0.67}


def test_explicit_scales_stay_explicit():
    ssd = SsdAnchors(num_layers=3, scales=(0.1, 0.2, 0.3))
    found = list(candidates(ssd, SIZES, SHAPES, (300, 300)))
    assert all(len(candidate.scales) == 3 for candidate in found)
    assert len({candidate.scales for candidate in found}) > 3


def test_a_pyramid_gets_another_base():
    anchors = MultiscaleAnchors(min_level=3)
    found = list(candidates(anchors, SIZES, SHAPES, (640, 640)))
    # A hundredth of the way from 20 to 200 lies 21.8; 21.8 x 10.9 has a side of 15.4, which is 1.93
    # strides of 8.
    assert min(candidate.anchor_scale for candidate in found) == 1.93
    assert {candidate.scales_per_octave for candidate in found} == {2}


def test_other_kinds_have_no_values_to_suggest():
    assert list(candidates(GridAnchors(), SIZES, SHAPES, (300, 300))) == []
