"""The report on anchors and boxes, on records whose boxes are known."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from stillbox.checking.anchor_page import conclusions, coverage_tables, overlap_figure
from stillbox.checking.anchors import examine_anchors
from stillbox.checking.truth_boxes import read_truth
from stillbox.errors import UserError
from stillbox.evaluation.charts import figure_png
from stillbox.experiment.overrides import apply_overrides
from stillbox.experiment.rules import check
from stillbox.experiment.schema import (
    FixedShapeResizer,
    IdentityResizer,
    KeepAspectRatioResizer,
)
from stillbox.records.label_map import LabelMap
from stillbox.records.source import ExampleSource
from tests.checking.advised import OtherModel
from tests.small import small_experiment


@pytest.fixture
def source(scenes):
    return ExampleSource(
        [f"{scenes}/train.record-*"], LabelMap.from_file(scenes / "label_map.pbtxt")
    )


@pytest.fixture
def report(scenes):
    """The function from overrides to the report on the small experiment."""
    return lambda *overrides, **options: examine_anchors(
        small_experiment(scenes, *overrides), **options
    )


def test_a_stretched_image_keeps_its_normalised_boxes(source):
    truth = read_truth(source, FixedShapeResizer(height=64, width=640))
    expected = np.concatenate([source.example(record).boxes for record in range(10)])
    np.testing.assert_array_equal(truth.boxes, expected)
    assert (truth.records, truth.left_out, len(truth.starts)) == (10, 0, 11)


def test_a_padded_image_fills_its_part_of_the_network_input(source):
    truth = read_truth(source, KeepAspectRatioResizer(min_dimension=100, max_dimension=200))
    start = 0
    for record in range(10):
        example = source.example(record)
        # The short side becomes 100 pixels of 200, the long one keeps its ratio to it.
        size = np.rint(100 * np.array([example.height, example.width] * 2) / min(
            example.height, example.width
        ))  # fmt: skip
        found = truth.boxes[start : start + len(example.boxes)]
        np.testing.assert_allclose(found, example.boxes * size / 200, atol=1e-6)
        start += len(example.boxes)
    assert start == len(truth.boxes)


def test_images_too_large_for_the_canvas_are_counted(source):
    truth = read_truth(source, IdentityResizer(canvas=(8, 8)))
    assert (truth.left_out, len(truth.boxes)) == (10, 0)


def test_a_limit_spreads_the_records_over_the_set(source):
    truth = read_truth(source, FixedShapeResizer(), limit=3)
    # 0, 4.5 and 9; half to even makes 4 of 4.5.
    expected = np.concatenate([source.example(record).boxes for record in (0, 4, 9)])
    np.testing.assert_array_equal(truth.boxes, expected)


def test_every_box_has_a_size_a_class_and_a_map(report, scenes):
    found = report()
    everything, *sizes = found.sizes
    assert [row.name for row in found.sizes] == ["all", "small", "medium", "large"]
    for rows in (sizes, found.classes, found.maps):
        assert sum(row.boxes for row in rows) == everything.boxes == len(found.best)
    assert sum(shape.share for shape in found.shapes) == pytest.approx(1)
    assert sum(found.histogram["all"]) == everything.boxes
    assert everything.recall_50 == pytest.approx(np.mean(found.best >= 0.5))
    assert everything.recall_40 >= everything.recall_50
    # At 64 pixels no box of a scene is large.
    assert found.sizes[3].boxes == 0
    label_map = LabelMap.from_file(scenes / "label_map.pbtxt")
    assert {row.name for row in found.classes} <= {item.name for item in label_map}


def test_an_experiment_with_the_suggestion_has_its_coverage(scenes, report):
    small = "model.anchors.scales=[0.02, 0.04]"
    found = report(small)
    assert found.suggestion is not None
    better = report(small, *found.suggestion.overrides)
    assert better.sizes[0].recall_50 == pytest.approx(found.suggestion.coverage.recall_50)
    assert better.sizes[0].mean_iou == pytest.approx(found.suggestion.coverage.mean_iou, abs=1e-6)
    assert better.sizes[0].recall_50 > found.sizes[0].recall_50
    check(apply_overrides(small_experiment(scenes), found.suggestion.overrides, {}), {})


def test_nothing_is_suggested_twice(report):
    overrides = []
    for _ in range(4):
        found = report("model.anchors.scales=[0.02, 0.04]", *overrides)
        if found.suggestion is None:
            break
        overrides += found.suggestion.overrides
    assert found.suggestion is None
    assert "No other values that were tried" in conclusions(found)[-1]


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
    found = report(other)
    assert found.unmatched is None
    assert not any("no anchor's match" in line for line in conclusions(found))


def test_plain_values_are_json(report):
    plain = json.loads(json.dumps(report("model.anchors.scales=[0.02, 0.04]").to_dict()))
    assert plain["sizes"][0]["name"] == "all"
    assert plain["shapes"][0].keys() == {"height", "width", "share"}
    assert plain["suggestion"]["overrides"]


def test_a_picture_and_tables_are_made_with_and_without_a_suggestion(report):
    with_one = report("model.anchors.scales=[0.02, 0.04]")
    without = dataclasses.replace(with_one, suggestion=None, suggested_best=None)
    pictures = [figure_png(overlap_figure(found)) for found in (with_one, without)]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert pictures[0] != pictures[1]
    assert len(coverage_tables(with_one)) == 3


def test_levels_have_their_numbers(report):
    found = report("model.anchors={kind: flexible_grid, grids: [{}, {sizes: [9], "
                   "aspect_ratios: [2]}]}")  # fmt: skip
    assert [row.name for row in found.maps] == ["map 1, 32x32", "map 2, 16x16"]
    assert (found.maps[0].smallest, found.maps[1].largest) == (pytest.approx(32), pytest.approx(9))
    assert found.suggestion is None


def test_without_records_or_boxes_it_is_refused(scenes, tmp_path):
    experiment = small_experiment(scenes, "data.train.paths=[]")
    with pytest.raises(UserError, match=r"data\.train\.paths: there are no records"):
        examine_anchors(experiment)
    other = tmp_path / "other.pbtxt"
    other.write_text(LabelMap.from_names(["owl"]).to_text())
    experiment = small_experiment(scenes, f"data.train.label_map={other}", "model.num_classes=1")
    with pytest.raises(UserError, match="no usable box in 10 records"):
        examine_anchors(experiment)
    assert Path(other).is_file()


def test_a_model_without_anchors_is_refused(scenes):
    experiment = dataclasses.replace(small_experiment(scenes), model=OtherModel())
    with pytest.raises(UserError, match="a model of kind other has no anchors"):
        examine_anchors(experiment)
