"""Anchors and boxes: the report on records with known boxes, overlaps, suggested shapes."""

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np
import pytest

from stillbox.boxes.geometry import iou, pairwise
from stillbox.boxes.matchers import Frame, Rows, argmax_match
from stillbox.checking import anchor_shapes
from stillbox.checking.anchor_shapes import (
    Shape,
    best_overlaps,
    candidates,
    cluster_shapes,
    match_boxes,
    split_lattices,
    suggest,
    typical_ratios,
)
from stillbox.checking.anchors import conclusions, coverage_tables, examine_anchors, overlap_figure
from stillbox.checking.data import TruthBoxes, read_truth
from stillbox.cli.overrides import setting_texts
from stillbox.evaluation.charts import figure_png
from stillbox.evaluation.results import iou_matrix
from stillbox.experiment import schema
from stillbox.experiment.rules import check
from stillbox.experiment.updating import apply_changes
from stillbox.models.anchors import anchors_per_location, build_anchors
from stillbox.records.label_map import LabelMap
from stillbox.records.source import ExampleSource
from tests.checking.advised import OtherModel
from tests.helpers import refused
from tests.small import small_experiment


@pytest.fixture
def source(scenes):
    return ExampleSource(
        [f"{scenes}/train.record-*"], LabelMap.from_file(scenes / "label_map.pbtxt")
    )


@pytest.fixture(scope="module")
def report(scenes):
    """The function from overrides to the report on the small experiment."""
    return functools.cache(lambda *overrides: examine_anchors(small_experiment(scenes, *overrides)))


def test_a_stretched_image_keeps_its_normalised_boxes(source):
    truth = read_truth(source, schema.FixedShapeResizer(height=64, width=640))
    expected = np.concatenate([source.example(record).boxes for record in range(10)])
    np.testing.assert_array_equal(truth.boxes, expected)
    assert (truth.records, truth.left_out, len(truth.starts)) == (10, 0, 11)


def test_a_padded_image_fills_its_part_of_the_network_input(source):
    truth = read_truth(source, schema.KeepAspectRatioResizer(min_dimension=100, max_dimension=200))
    start = 0
    for record in range(10):
        example = source.example(record)
        # The short side becomes 100 pixels of 200, the long one keeps its ratio to it.
        size = np.rint(100 * np.array([example.height, example.width] * 2) / min(
            example.height, example.width
        ))  # fmt: skip
        boxes = truth.boxes[start : start + len(example.boxes)]
        np.testing.assert_allclose(boxes, example.boxes * size / 200, atol=1e-6)
        start += len(example.boxes)
    assert start == len(truth.boxes)


def test_large_images_are_counted_and_a_limit_spreads_the_records(source):
    truth = read_truth(source, schema.IdentityResizer(canvas=(8, 8)))
    assert (truth.left_out, len(truth.boxes)) == (10, 0)
    truth = read_truth(source, schema.FixedShapeResizer(), limit=3)
    # 0, 4.5 and 9; half to even makes 4 of 4.5.
    expected = np.concatenate([source.example(record).boxes for record in (0, 4, 9)])
    np.testing.assert_array_equal(truth.boxes, expected)


def test_every_box_has_a_size_a_class_and_a_map(report, scenes):
    reported = report()
    everything, *sizes = reported.sizes
    assert [row.name for row in reported.sizes] == ["all", "small", "medium", "large"]
    for rows in (sizes, reported.classes, reported.maps):
        assert sum(row.boxes for row in rows) == everything.boxes == len(reported.best)
    assert sum(shape.share for shape in reported.shapes) == pytest.approx(1)
    assert sum(reported.histogram["all"]) == everything.boxes
    assert everything.recall_50 == pytest.approx(np.mean(reported.best >= 0.5))
    assert everything.recall_40 >= everything.recall_50
    # At 64 pixels no box of a scene is large.
    assert reported.sizes[3].boxes == 0
    label_map = LabelMap.from_file(scenes / "label_map.pbtxt")
    assert {row.name for row in reported.classes} <= {item.name for item in label_map}


def test_an_experiment_with_the_suggestion_has_its_coverage(scenes, report):
    small = "model.anchors.scales=[0.02, 0.04]"
    reported = report(small)
    assert reported.suggestion is not None
    better = report(small, *setting_texts(reported.suggestion.changes))
    assert better.sizes[0].recall_50 == pytest.approx(reported.suggestion.coverage.recall_50)
    assert better.sizes[0].mean_iou == pytest.approx(
        reported.suggestion.coverage.mean_iou, abs=1e-6
    )
    assert better.sizes[0].recall_50 > reported.sizes[0].recall_50
    check(apply_changes(small_experiment(scenes), reported.suggestion.changes, {}), {})


def test_nothing_is_suggested_twice(report):
    overrides = []
    for _ in range(4):
        reported = report("model.anchors.scales=[0.02, 0.04]", *overrides)
        if reported.suggestion is None:
            break
        overrides += setting_texts(reported.suggestion.changes)
    assert reported.suggestion is None
    assert "No other values that were tried" in conclusions(reported)[-1]


def test_anchors_that_are_units_of_distance_stay(report):
    reported = report("model.anchors.scales=[0.02, 0.04]", "model.box_coder={kind: distances}")
    assert reported.suggestion is None
    assert "measures distances in anchors" in conclusions(reported)[-1]


def test_a_suggestion_has_the_path_of_the_anchors():
    boxes = np.float32([[0.1, 0.1, 0.9, 0.9], [0.2, 0.2, 0.8, 0.8]])
    sides = np.float64([[80, 80], [60, 60]])
    anchors = schema.MultiscaleAnchors(min_level=3, max_level=3, anchor_scale=1.0)
    given = {"maps": ((12, 12),), "image": (100, 100), "where": "model.proposals.anchors"}
    suggestion, _ = suggest(anchors, boxes, sides, cluster_shapes(sides), **given)
    assert all(path.startswith("model.proposals.anchors.") for path in suggestion.changes)


def test_unmatched_boxes_are_forced_or_background(report):
    tiny = "model.anchors={scales: [0.01, 0.02], reduce_boxes_in_lowest_layer: false, "
    tiny += "interpolated_scale_aspect_ratio: 0}"
    forced = report(tiny, "model.matcher.force_match_for_each_row=true")
    assert (forced.unmatched, forced.threshold, forced.forced) == (1.0, 0.5, True)
    assert any("force_match_for_each_row gives them" in line for line in conclusions(forced))
    left = report(tiny, "model.matcher.force_match_for_each_row=false")
    assert any("trained as background" in line for line in conclusions(left))


@pytest.mark.parametrize("other", ["model.matcher=bipartite", "model.similarity=ioa"])
def test_other_matchers_and_similarities_have_no_such_threshold(report, other):
    reported = report(other)
    assert reported.unmatched is None
    assert not any("no anchor's match" in line for line in conclusions(reported))


def test_a_report_has_levels_and_plain_values(report):
    plain = json.loads(json.dumps(report("model.anchors.scales=[0.02, 0.04]").to_dict()))
    assert plain["sizes"][0]["name"] == "all"
    assert plain["shapes"][0].keys() == {"height", "width", "share"}
    assert plain["suggestion"]["changes"]
    reported = report("model.anchors={kind: flexible_grid, grids: [{}, {sizes: [9], "
                   "aspect_ratios: [2]}]}")  # fmt: skip
    assert [row.name for row in reported.maps] == ["map 1, 32x32", "map 2, 16x16"]
    assert (reported.maps[0].smallest, reported.maps[1].largest) == (
        pytest.approx(32),
        pytest.approx(9),
    )
    assert reported.suggestion is None


def test_a_picture_and_tables_are_made_with_and_without_a_suggestion(report):
    with_one = report("model.anchors.scales=[0.02, 0.04]")
    without = dataclasses.replace(with_one, suggestion=None, suggested_best=None)
    pictures = [figure_png(overlap_figure(reported)) for reported in (with_one, without)]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert pictures[0] != pictures[1]
    assert len(coverage_tables(with_one)) == 3


def test_without_records_or_boxes_it_is_refused(scenes, tmp_path):
    experiment = small_experiment(scenes, "data.train.paths=[]")
    with refused("data.train.paths"):
        examine_anchors(experiment)
    other = tmp_path / "other.pbtxt"
    other.write_text(LabelMap.from_names(["owl"]).to_text())
    experiment = small_experiment(scenes, f"data.train.label_map={other}", "model.num_classes=1")
    with refused("train.record-*", 10):
        examine_anchors(experiment)
    assert Path(other).is_file()


def test_a_model_without_anchors_is_refused(scenes):
    experiment = dataclasses.replace(small_experiment(scenes), model=OtherModel())
    with refused("model.kind"):
        examine_anchors(experiment)


def random_boxes(count, seed=0):
    rng = np.random.default_rng(seed)
    corners = rng.uniform(-0.1, 1.1, (count, 2, 2))
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1).astype(np.float32)


def truth_of(*images):
    lengths = [len(boxes) for boxes in images]
    boxes = np.concatenate(images).astype(np.float32)
    ids = np.ones(len(boxes), np.int32)
    return TruthBoxes(boxes, ids, np.cumsum([0, *lengths]), len(images), 0)


def test_overlaps_equal_those_of_boxes_geometry():
    boxes, anchors = random_boxes(7), random_boxes(11, seed=1)
    expected = pairwise(iou, boxes, anchors)
    np.testing.assert_allclose(iou_matrix(boxes, anchors), expected, atol=1e-6)


def test_two_boxes_on_one_anchor_and_one_beside_it():
    # The anchor is the left half. The first box is its left half: .5. The second is all of it: 1.
    anchors = np.array([[0, 0, 1, 0.5], [0, 0.9, 1, 1]], np.float32)
    truth = truth_of([[0, 0, 1, 0.25], [0, 0, 1, 0.5]], [[0, 0, 1, 0.25]])
    matched = match_boxes(truth, anchors, 0.5)
    np.testing.assert_allclose(matched.best, [0.5, 1, 0.5])
    assert matched.anchor.tolist() == [0, 0, 0]
    # The first box resembles the anchor enough, but the anchor prefers the second. In the second
    # image the same box has no rival.
    assert matched.chosen.tolist() == [False, True, True]


@pytest.mark.parametrize("pairs", [2**22, 40])
def test_chosen_boxes_are_those_of_the_matcher(pairs, monkeypatch):
    monkeypatch.setattr(anchor_shapes, "_PAIRS", pairs)
    boxes, anchors = random_boxes(9), random_boxes(300, seed=1)
    overlaps = pairwise(iou, boxes, anchors)
    matches = argmax_match(
        Rows(
            lambda row: overlaps[row],
            np.ones(9, bool),
            9,
            np.zeros((9, 4), np.float32),
            np.zeros((overlaps.shape[1], 4), np.float32),
            Frame(),
        ),
        matched_threshold=0.4,
        unmatched_threshold=0.4,
    )
    matched = match_boxes(truth_of(boxes), anchors, 0.4)
    assert set(np.flatnonzero(matched.chosen)) == set(np.asarray(matches).tolist()) - {-1}
    assert 0 < matched.chosen.sum() < 9


KINDS = [
    schema.SsdAnchors(num_layers=3, aspect_ratios=(1.0, 2.0)),
    schema.MultiscaleAnchors(min_level=3, max_level=5),
    schema.FlexibleGridAnchors(
        grids=(schema.AnchorGrid(), schema.AnchorGrid(sizes=(9.0, 60.0), aspect_ratios=(2, 1)))
    ),
    schema.GridAnchors(base_height=30, base_width=50),
]


@pytest.mark.parametrize("config", KINDS, ids=lambda config: config.kind)
def test_best_overlaps_equal_those_of_all_pairs(config):
    # An input that no stride divides, so that rows and columns differ.
    shapes = ((9, 13), (5, 7), (3, 4))[: config.count_maps()]
    anchors = build_anchors(config, shapes, (70, 100))
    lattices = split_lattices(anchors, shapes, anchors_per_location(config, len(shapes)))
    boxes = random_boxes(400)
    expected = iou_matrix(boxes, anchors).max(axis=1)
    np.testing.assert_allclose(best_overlaps(boxes, lattices), expected, atol=1e-5)


def test_images_without_boxes_are_skipped():
    matched = match_boxes(truth_of(np.zeros((0, 4)), [[0, 0, 1, 1]]), random_boxes(3), 0.5)
    assert matched.best.shape == (1,)


def test_boxes_of_few_shapes_have_few_clusters():
    # 30 boxes about 10 x 20 and 10 about 80 x 40 pixels (height x width).
    rng = np.random.default_rng(0)
    sizes = np.concatenate([rng.normal((10, 20), 0.5, (30, 2)), rng.normal((80, 40), 0.5, (10, 2))])
    first, second = cluster_shapes(sizes, 2)
    assert first == (pytest.approx(10, abs=0.5), pytest.approx(20, abs=0.5), 0.75)
    assert second == (pytest.approx(80, abs=0.5), pytest.approx(40, abs=0.5), 0.25)
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
    ssd = schema.SsdAnchors(num_layers=3, aspect_ratios=(1.0, 2.0), base_anchor_width=0.5)
    tried = list(candidates(ssd, SIZES, SHAPES, (300, 400)))
    assert ssd in tried
    for candidate in tried:
        assert isinstance(candidate, schema.SsdAnchors)
        assert (candidate.num_layers, candidate.base_anchor_width) == (3, 0.5)
        assert len(candidate.aspect_ratios) <= 2
        assert 0 < candidate.min_scale < candidate.max_scale
    # The largest box is 200 x 100 pixels: its side is 141, and scale 1 is 300 * sqrt(.5) = 212.
    assert max(candidate.max_scale for candidate in tried[1:]) == pytest.approx(0.95, abs=0.01)
    assert {c.max_scale for c in tried} >= {0.67}


def test_explicit_scales_stay_explicit():
    ssd = schema.SsdAnchors(num_layers=3, scales=(0.1, 0.2, 0.3))
    tried = list(candidates(ssd, SIZES, SHAPES, (300, 300)))
    assert all(len(candidate.scales) == 3 for candidate in tried)
    assert len({candidate.scales for candidate in tried}) > 3


def test_pyramids_get_another_base_and_other_kinds_nothing():
    anchors = schema.MultiscaleAnchors(min_level=3)
    tried = list(candidates(anchors, SIZES, SHAPES, (640, 640)))
    # A hundredth of the way from 20 to 200 lies 21.8; 21.8 x 10.9 has a side of 15.4, which is 1.93
    # strides of 8.
    assert min(candidate.anchor_scale for candidate in tried) == 1.93
    assert {candidate.scales_per_octave for candidate in tried} == {2}
    assert list(candidates(schema.GridAnchors(), SIZES, SHAPES, (300, 300))) == []
