"""Anchors, box coders, matchers and similarities of a pipeline.config."""

from functools import partial

import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config.boxes import (
    read_anchors,
    read_box_coder,
    read_matcher,
    read_similarity,
)
from tests.experiment.sections import members_of, read_section

anchors_of = partial(read_section, read_anchors, "AnchorGenerator")
coder_of = partial(read_section, read_box_coder, "BoxCoder")


def test_multiscale_anchors_read_field_by_field():
    anchors, log = anchors_of(
        "multiscale_anchor_generator { min_level: 2 max_level: 6 anchor_scale: 3 "
        "aspect_ratios: [1.0, 3.0] scales_per_octave: 4 normalize_coordinates: true }"
    )
    assert anchors == schema.MultiscaleAnchors(
        min_level=2, max_level=6, anchor_scale=3.0, aspect_ratios=(1.0, 3.0), scales_per_octave=4
    )
    assert log.origins["here.max_level"] == "p:1:44"


def test_multiscale_anchors_have_the_originals_defaults():
    anchors, _ = anchors_of("multiscale_anchor_generator {}")
    assert anchors == schema.MultiscaleAnchors(aspect_ratios=())


def test_grid_anchors_read_field_by_field():
    anchors, _ = anchors_of(
        "grid_anchor_generator { height: 64 width: 32 height_stride: 8 width_stride: 4 "
        "height_offset: 2 width_offset: 1 scales: [0.25, 1.0] aspect_ratios: 2.0 }"
    )
    assert anchors == schema.GridAnchors(
        base_height=64,
        base_width=32,
        height_stride=8,
        width_stride=4,
        height_offset=2,
        width_offset=1,
        scales=(0.25, 1.0),
        aspect_ratios=(2.0,),
    )
    assert anchors_of("grid_anchor_generator {}")[0] == schema.GridAnchors(
        scales=(), aspect_ratios=()
    )


def test_flexible_grid_anchors_read_grid_by_grid():
    anchors, log = anchors_of(
        "flexible_grid_anchor_generator {\n"
        "anchor_grid { base_sizes: [8, 16] aspect_ratios: [1, 2] height_stride: 8 width_stride: 4 "
        "height_offset: 2 width_offset: 1 }\n"
        "anchor_grid { base_sizes: 32 aspect_ratios: 1 height_stride: 32 width_stride: 32 } }"
    )
    assert anchors == schema.FlexibleGridAnchors(
        grids=(
            schema.AnchorGrid(
                sizes=(8.0, 16.0),
                aspect_ratios=(1.0, 2.0),
                height_stride=8,
                width_stride=4,
                height_offset=2,
                width_offset=1,
            ),
            schema.AnchorGrid(
                sizes=(32.0,), aspect_ratios=(1.0,), height_stride=32, width_stride=32
            ),
        )
    )
    assert log.origins["here.grids.1.sizes"].startswith("p:3:")


@pytest.mark.parametrize("kind", ["multiscale", "flexible_grid"])
def test_anchors_in_pixels_are_refused(kind):
    text = f"{kind}_anchor_generator {{\n normalize_coordinates: false }}"
    with pytest.raises(UserError, match=r"p:2:2.*in pixels would meet none") as caught:
        anchors_of(text)
    assert "leave it at its default, true" in str(caught.value)


def test_box_coders_read_field_by_field():
    assert coder_of("mean_stddev_box_coder { stddev: 0.1 }")[0] == schema.MeanStddevBoxCoder(
        stddev=0.1
    )
    assert coder_of("mean_stddev_box_coder {}")[0] == schema.MeanStddevBoxCoder(stddev=0.01)
    square = "square_box_coder { y_scale: 2 x_scale: 3 length_scale: 4 }"
    assert coder_of(square)[0] == schema.SquareBoxCoder(y_scale=2.0, x_scale=3.0, length_scale=4.0)


def test_the_keypoint_coder_is_refused_by_name():
    with pytest.raises(UserError, match=r"BoxCoder.keypoint_box_coder: keypoints are not") as e:
        coder_of("keypoint_box_coder { num_keypoints: 5 }")
    assert "there is: faster_rcnn_box_coder, mean_stddev_box_coder, square_box_c" in str(e.value)


def test_the_bipartite_matcher_is_read_and_its_field_noted():
    matcher, log = read_section(
        read_matcher, "Matcher", "bipartite_matcher { use_matmul_gather: true }"
    )
    assert matcher == schema.BipartiteMatcher()
    (note,) = log.notes
    assert "BipartiteMatcher.use_matmul_gather has no effect here" in note


SIMILARITIES = [
    ("iou_similarity {}", schema.IouSimilarity()),
    ("ioa_similarity {}", schema.IoaSimilarity()),
    ("neg_sq_dist_similarity {}", schema.NegSqDistSimilarity()),
    ("thresholded_iou_similarity {}", schema.ThresholdedIouSimilarity(iou_threshold=0.5)),
    (
        "thresholded_iou_similarity { iou_threshold: 0.3 }",
        schema.ThresholdedIouSimilarity(iou_threshold=0.3),
    ),
]


@pytest.mark.parametrize(("text", "similarity"), SIMILARITIES)
def test_a_similarity_reads(text, similarity):
    assert read_section(read_similarity, "RegionSimilarityCalculator", text)[0] == similarity


def test_the_cases_above_are_all_similarities():
    found = {type(similarity) for _, similarity in SIMILARITIES}
    assert found == set(members_of(schema.Similarity))
