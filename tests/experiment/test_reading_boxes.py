"""Losses of a pipeline.config.

Anchors, box coders, matchers and similarities of a pipeline.config.

Post-processing and calibration of a pipeline.config.
"""

from functools import partial

import pytest

from stillbox.experiment import schema
from stillbox.experiment.pipeline_config.boxes import (
    read_anchors,
    read_box_coder,
    read_calibration,
    read_loss,
    read_matcher,
    read_postprocessing,
    read_similarity,
)
from tests.experiment.sample import members_of, read_section
from tests.helpers import refusal, refused

LOSS = """
loss {
  classification_loss { %s }
  localization_loss { %s }
  %s
}
"""
ssd_loss = partial(read_section, read_loss, "Ssd")


def loss_of(classification="weighted_sigmoid {}", localization="weighted_smooth_l1 {}", rest=""):
    return ssd_loss(LOSS % (classification, localization, rest))


CLASSIFICATION = [
    ("weighted_sigmoid {}", schema.SigmoidLoss()),
    ("weighted_sigmoid_focal {}", schema.SigmoidFocalLoss(gamma=2.0, alpha=None)),
    ("weighted_sigmoid_focal { alpha: 0 }", schema.SigmoidFocalLoss(gamma=2.0, alpha=0.0)),
    ("weighted_softmax { logit_scale: 2 }", schema.SoftmaxLoss(logit_scale=2.0)),
    ("weighted_logits_softmax {}", schema.SoftmaxAgainstLogitsLoss(logit_scale=1.0)),
    ("weighted_logits_softmax { logit_scale: 3 }",
     schema.SoftmaxAgainstLogitsLoss(logit_scale=3.0)),
    ("bootstrapped_sigmoid {}", schema.BootstrappedSigmoidLoss(alpha=0.0, hard=False)),
    ("bootstrapped_sigmoid { alpha: 0.9 hard_bootstrap: true }",
     schema.BootstrappedSigmoidLoss(alpha=0.9, hard=True)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "loss"), CLASSIFICATION)
def test_a_classification_loss_reads(text, loss):
    assert loss_of(text)[0].classification == loss


LOCALIZATION = [
    ("weighted_smooth_l1 { delta: 0.5 }", schema.SmoothL1Loss(delta=0.5)),
    ("weighted_l2 {}", schema.L2Loss()),
    ("l1_localization_loss {}", schema.L1Loss()),
    ("weighted_iou {}", schema.IouLoss()),
    ("weighted_giou {}", schema.GiouLoss()),
]


@pytest.mark.parametrize(("text", "loss"), LOCALIZATION)
def test_a_localisation_loss_reads(text, loss):
    assert loss_of(localization=text)[0].localization == loss


@pytest.mark.parametrize(
    ("family", "cases"),
    [(schema.ClassificationLoss, CLASSIFICATION), (schema.LocalizationLoss, LOCALIZATION)],
)
def test_the_cases_above_are_all_losses(family, cases):
    # The original does not have these.
    others = {schema.DiouLoss, schema.CiouLoss, schema.QualityFocalLoss, schema.VarifocalLoss}
    assert {type(loss) for _, loss in cases} == set(members_of(family)) - others


@pytest.mark.parametrize("name", ["weighted_logits_softmax", "bootstrapped_sigmoid"])
def test_the_form_of_the_originals_output_has_no_effect(name):
    _, log = loss_of(f"{name} {{ anchorwise_output: true }}")
    (note,) = log.notes
    assert "anchorwise_output has no effect here: the loss is the same sum either way" in note


@pytest.mark.parametrize(("arguments", "message"), [
    ({"rest": "random_example_sampler {}"}, "Loss.random_example_sampler: training with a r"),
    ({"rest": "equalization_loss { weight: 1 }"}, "Loss.equalization_loss: the equalization"),
    ({"rest": "expected_loss_weights: EXPECTED_SAMPLING"},
     "Loss.expected_loss_weights = EXPECTED_SAMPLING: expected-sampling weights"),
    ({"classification": "penalty_reduced_logistic_focal_loss {}"},
     "penalty_reduced_logistic_focal_loss: it compares heat maps"),
    ({"classification": "weighted_dice_classification_loss {}"},
     "weighted_dice_classification_loss: it compares heat maps or masks, which only Cent"),
])  # fmt: skip
def test_what_there_is_not_is_refused_with_a_reason(arguments, message):
    caught = refusal(loss_of, **arguments)
    assert message in str(caught)
    assert caught.where.startswith("p:")


def test_confidences_as_targets_are_refused_with_a_reason():
    text = LOSS % ("weighted_sigmoid {}", "weighted_l2 {}", "")
    with refused("p:1:1", "use_confidences_as_targets"):
        ssd_loss("use_confidences_as_targets: true" + text)


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
    with refused("p:2:2") as caught:
        anchors_of(text)
    assert "leave it at its default, true" in str(caught.value)


def test_box_coders_are_read_or_refused():
    assert coder_of("mean_stddev_box_coder { stddev: 0.1 }")[0] == schema.MeanStddevBoxCoder(
        stddev=0.1
    )
    assert coder_of("mean_stddev_box_coder {}")[0] == schema.MeanStddevBoxCoder(stddev=0.01)
    square = "square_box_coder { y_scale: 2 x_scale: 3 length_scale: 4 }"
    assert coder_of(square)[0] == schema.SquareBoxCoder(y_scale=2.0, x_scale=3.0, length_scale=4.0)
    with refused("p:1:1", "BoxCoder.keypoint_box_coder") as e:
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
    classes = {type(similarity) for _, similarity in SIMILARITIES}
    assert classes == set(members_of(schema.Similarity))


calibration_of = partial(read_section, read_calibration, "CalibrationConfig")


def ssd_postprocessing(text):
    def read(section, path):
        predictor = section.child("box_predictor")
        return read_postprocessing(section.child("post_processing"), path, predictor)

    return read_section(read, "Ssd", text)


def nms_of(text):
    result, log = ssd_postprocessing(
        f"post_processing {{ batch_non_max_suppression {{\n {text} }} }}"
    )
    return result.nms, log


def test_every_field_of_nms_reads():
    nms, log = nms_of(
        "score_threshold: 0.2 iou_threshold: 0.5 max_detections_per_class: 7 "
        "max_total_detections: 9 soft_nms_sigma: 0.25 use_class_agnostic_nms: true "
        "use_combined_nms: true change_coordinate_frame: false"
    )
    assert nms == schema.Nms(
        score_threshold=0.2,
        iou_threshold=0.5,
        max_per_class=7,
        max_total=9,
        soft_sigma=0.25,
        class_agnostic=True,
        combined=True,
        change_coordinate_frame=False,
    )
    assert log.origins["here.nms.soft_sigma"].startswith("p:2:")


def test_defaults_of_nms_and_refused_classes():
    assert nms_of("")[0] == schema.Nms()
    assert ssd_postprocessing("")[0] == schema.Postprocessing()
    assert nms_of("max_classes_per_detection: 1")[0] == schema.Nms()
    with refused("p:2:31", "max_classes_per_detection"):
        nms_of("use_class_agnostic_nms: true max_classes_per_detection: 2")


def test_partitioned_nms_drops_at_the_threshold_where_shapes_are_static():
    nms, _ = nms_of("use_partitioned_nms: true use_static_shapes: true")
    assert nms == schema.Nms(drop_at_threshold=True)
    # The original looks at the one only where the other is set.
    nms, log = nms_of("use_partitioned_nms: true")
    assert nms == schema.Nms()
    (note,) = log.notes
    assert note.startswith("p:2:2: use_partitioned_nms has no effect without use_static_shapes")


@pytest.mark.parametrize("kind", ["convolutional", "weight_shared_convolutional"])
def test_the_range_of_encodings_comes_from_the_predictor(kind):
    text = f"box_predictor {{ {kind}_box_predictor {{ %s }} }}"
    result, log = ssd_postprocessing(text % "box_encodings_clip_range { min: -5 max: 4 }")
    assert result.box_encodings_clip == schema.BoxEncodingsClip(min=-5.0, max=4.0)
    assert log.origins["here.box_encodings_clip.min"].startswith("p:1:")
    assert ssd_postprocessing(text % "")[0].box_encodings_clip is None


def test_the_calibration_is_there_when_the_file_has_one():
    result, _ = ssd_postprocessing(
        "post_processing { calibration_config { temperature_scaling_calibration { scaler: 2 } } }"
    )
    assert result.calibration == schema.TemperatureCalibration(scaler=2.0)


PAIRS = "x_y_pair { x: 0.1 y: 0.2 } x_y_pair { x: 0.5 y: 0.9 }"


CALIBRATIONS = [
    (f"function_approximation {{ x_y_pairs {{ {PAIRS} }} }}",
     schema.CurveCalibration(scores=(0.1, 0.5), calibrated=(0.2, 0.9))),
    (
        f"class_id_function_approximations {{ class_id_xy_pairs_map {{ key: 3 value: {{ {PAIRS}"
        " }} class_id_xy_pairs_map { key: 1 value { x_y_pair { x: 0.4 } } } }",
        schema.ClassCurveCalibration(
            curves=(
                schema.ClassCurve(slot=3, scores=(0.1, 0.5), calibrated=(0.2, 0.9)),
                schema.ClassCurve(slot=1, scores=(0.4,), calibrated=(0.0,)),
            )
        ),
    ),
    ("sigmoid_calibration { sigmoid_parameters { b: 0.5 } }",
     schema.SigmoidCalibration(a=-1.0, b=0.5)),
    # Two of a key stay two, for the rules to refuse.
    ("class_id_sigmoid_calibrations { class_id_sigmoid_parameters_map { key: 2 value { a: -3"
     " } } class_id_sigmoid_parameters_map { key: 2 value { a: -4 b: 1 } } }",
     schema.ClassSigmoidCalibration(sigmoids=(schema.ClassSigmoid(slot=2, a=-3.0, b=0.0),
     schema.ClassSigmoid(slot=2, a=-4.0, b=1.0)))),
    ("temperature_scaling_calibration { scaler: 1.5 }", schema.TemperatureCalibration(scaler=1.5)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "calibration"), CALIBRATIONS)
def test_a_calibration_reads(text, calibration):
    assert calibration_of(text)[0] == calibration


def test_calibrations_are_complete_and_have_notes_and_places():
    classes = {type(calibration) for _, calibration in CALIBRATIONS}
    assert classes == set(members_of(schema.Calibration))
    pairs = "training_data_type: ALL_CLASSES " + PAIRS
    _, log = calibration_of(f"function_approximation {{ x_y_pairs {{ {pairs} }} }}")
    (note,) = log.notes
    assert "XYPairs.training_data_type has no effect here" in note
    _, log = calibration_of(
        "class_id_function_approximations {\nclass_id_xy_pairs_map { key: 3 value { x_y_pair {\n"
        "x: 0.5 } } } }"
    )
    assert log.origins["here.curves.0.scores"] == "p:3:1"
    assert log.origins["here.curves.0.slot"] == "p:2:25"


def test_a_weight_shared_predictor_may_have_the_score_converter():
    predictor = (
        "box_predictor { weight_shared_convolutional_box_predictor { score_converter: SIGMOID } }"
    )
    result, log = ssd_postprocessing(predictor)
    assert result.score_converter == "sigmoid"
    assert log.origins["here.score_converter"].startswith("p:1:")
    with refused("p:1:61"):
        ssd_postprocessing(f"{predictor} post_processing {{ score_converter: SIGMOID }}")
