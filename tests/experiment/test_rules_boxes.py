"""Rules about anchors, coders, matchers, losses and post-processing.

Rules about two-stage models, and rules of all models in them.
"""

import pytest

from stillbox.cli.overrides import changes_of
from stillbox.experiment import schema
from stillbox.experiment.rules import check, check_trainable, find, find_missing, warnings_about
from stillbox.experiment.schema import Experiment, FasterRcnn
from stillbox.experiment.updating import apply_changes
from tests.helpers import refusal, refused

MULTISCALE = "model.anchors={kind: multiscale, max_level: 8}"
COMBINED = "model.postprocessing.nms={combined: true, change_coordinate_frame: false, %s}"
CALIBRATION = "model.postprocessing.calibration={kind: %s}"
FLEXIBLE = "model.anchors={kind: flexible_grid, grids: [{%s}]}"


def overridden(*overrides):
    return apply_changes(schema.Experiment(), changes_of(overrides), {})


def test_six_levels_suit_the_six_maps_of_the_default():
    check(overridden(MULTISCALE), {})


@pytest.mark.parametrize(("overrides", "message"), [
    ([MULTISCALE, "model.anchors.max_level=7"], "anchors for 5 feature maps, but the neck"),
    ([MULTISCALE, "model.anchors.min_level=9"], "min_level 9 is above max_level 8"),
    ([MULTISCALE, "model.anchors.max_level=16"], "model.anchors.max_level is 16"),
    ([MULTISCALE, "model.anchors.aspect_ratios=[]"], "no aspect ratios"),
    ([MULTISCALE, "model.anchors.anchor_scale=0"], "anchor_scale is 0"),
    ([MULTISCALE, "model.anchors.scales_per_octave=0"], "scales_per_octave is 0"),
    (["model.anchors={kind: grid, scales: []}"], "no scales"),
    (["model.anchors={kind: grid, base_width: 0}"], "model.anchors.base_width is 0"),
    (["model.anchors={kind: grid, width_stride: 0}"], "model.anchors.width_stride is 0"),
    ([FLEXIBLE % "sizes: [], aspect_ratios: []"], "no sizes"),
    ([FLEXIBLE % "sizes: [8, 9]"], "2 sizes and 1 aspect ratio"),
    ([FLEXIBLE % "height_stride: 0"], "model.anchors.grids.0.height_stride is 0"),
    ([FLEXIBLE % "sizes: [0]"], "model.anchors.grids.0.sizes is 0"),
    (["model.anchors={kind: flexible_grid, grids: []}"], "anchors for 0 feature maps"),
    (["model.loss.class_weights=[1, 2]"], "2 class_weights for 90 classes"),
    (["model.num_classes=2", "model.loss.class_weights=[1, -2]"], "class_weights is -2"),
    (["model.loss.classification={kind: bootstrapped_sigmoid, alpha: 2}"], "alpha is 2"),
    (["model.loss.hard_example_miner={num_hard_examples: -1}"], "num_hard_examples is -1"),
    (["model.postprocessing.nms.soft_sigma=-1"], "soft_sigma is -1"),
    (["model.postprocessing.nms={soft_sigma: 0.5, drop_at_threshold: true}"],
     "soft NMS drops no box for its overlap"),
    (["model.postprocessing.nms.combined=true"], "change_coordinate_frame together with comb"),
    ([COMBINED % "soft_sigma: 0.5"], "soft_sigma together with combined"),
    ([COMBINED % "class_agnostic: true"], "class_agnostic together with combined"),
    (["model.postprocessing.box_encodings_clip={min: 1, max: 1}"],
     "box_encodings_clip from 1.0 to 1.0 leaves one value"),
    ([CALIBRATION % "curve, scores: [0, 0.5, 1]"], "3 scores and 2 calibrated ones"),
    ([CALIBRATION % "curve, scores: [], calibrated: []"], "a curve without points"),
    ([CALIBRATION % "curve, scores: [0.5, 0.5]"], "the scores of a curve do not rise"),
    ([CALIBRATION % "class_curves, curves: [{slot: 2}, {scores: [1, 0]}]"],
     "calibration.curves.1.scores: the scores of a curve do not rise"),
    ([CALIBRATION % "class_curves, curves: []"], "no curves"),
    ([CALIBRATION % "class_sigmoids, sigmoids: []"], "no sigmoids"),
    ([CALIBRATION % "class_sigmoids, sigmoids: [{slot: 91}]"], "there is no class slot 91"),
    ([CALIBRATION % "class_curves, curves: [{slot: -1}]"], "there is no class slot -1"),
    ([CALIBRATION % "class_sigmoids, sigmoids: [{}, {}]"], "class slot 1 is calibrated twice"),
    ([CALIBRATION % "temperature, scaler: 0"], "scaler is 0"),
    (["model.box_coder={kind: mean_stddev, stddev: 0}"], "model.box_coder.stddev is 0"),
    (["model.similarity={kind: thresholded_iou, iou_threshold: 2}"], "iou_threshold is 2"),
    (["model.similarity=neg_sq_dist"], "with matched_threshold 0.5 no anchor would be matched"),
    (["model.matcher.matched_threshold=1.5"], "is 1.5, but overlaps lie in 0..1"),
    (["model.similarity=ioa", "model.matcher.unmatched_threshold=-1"], "is -1.0, but over"),
    (["model.box_coder={kind: square, length_scale: 0}"], "box_coder.length_scale is 0"),
    (["model.postprocessing.nms.clip_margin=-1"], "nms.clip_margin is -1"),
    (["model.postprocessing.nms={clip: false, clip_to: input}"],
     "clip_to input while clip is false: nothing is clipped"),
    (["model.postprocessing.nms={clip: false, clip_first: true}"],
     "clip_first True while clip is false"),
    (["model.loss.normalizer_momentum=1"], "model.loss.normalizer_momentum is 1"),
    (["model.loss={normalizer_momentum: 0.9, normalizer: per_replica}"],
     "normalizer_momentum 0.9 while normalizer is per_replica"),
    (["model.loss={normalizer_momentum: 0.9, normalize_per_image: true}"],
     "while normalize_per_image is true: it averages the matches of a whole batch"),
    (["model.loss={normalizer_momentum: 0.9, normalize_by_matches: false}"],
     "while normalize_by_matches is false: it averages"),
    (["model.box_coder.y_scale=0"], "model.box_coder.y_scale is 0"),
    (["model.box_coder.max_log_ratio=-1"], "model.box_coder.max_log_ratio is -1"),
    (["model.loss.added_matches=-1"], "model.loss.added_matches is -1"),
    (["model.loss={added_matches: 1, normalize_by_matches: false}"],
     "nothing is divided by the number of matches"),
    (["model.loss={skip_zero_codes: true, localization: giou}"], "with giou, which compares"),
    (["model.loss={skip_zero_codes: true, localization: ciou}"], "with ciou, which compares"),
    (["model.matcher=atss", "model.similarity=ioa"], "atss compares boxes by iou"),
])  # fmt: skip
def test_contradictions_are_refused_with_a_fix(overrides, message):
    caught = refusal(check, overridden(*overrides), {})
    assert message in str(caught)
    assert caught.fix


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.similarity=neg_sq_dist", "model.matcher.ignore_thresholds=true"],
        ["model.similarity=neg_sq_dist", "model.matcher.force_match_for_each_row=true"],
        [
            "model.similarity=neg_sq_dist",
            "model.matcher={matched_threshold: -0.1, unmatched_threshold: -0.2}",
        ],
        ["model.similarity=neg_sq_dist", "model.matcher=bipartite"],
    ],
)
def test_thresholds_of_distances_are_not_limited_to_0_and_1(overrides):
    check(overridden(*overrides), {})


def test_combined_nms_and_padded_images_need_a_frame_that_stays():
    check(overridden(COMBINED % "max_total: 200"), {})
    stays = "model.postprocessing.nms.change_coordinate_frame=false"
    assert warnings_about(overridden(stays), {}) == ()
    padded = "model.resizer={kind: keep_aspect_ratio, min_dimension: 300, max_dimension: 300}"
    (warning,) = warnings_about(overridden(stays, padded), {})
    assert "detections stay relative to the padded network input" in warning
    assert warnings_about(overridden(padded), {}) == ()


SIDES = "model.resizer={kind: fixed_shape, height: %d, width: %d}"


def experiment_of(*overrides):
    sound = Experiment(model=FasterRcnn())
    return apply_changes(sound, changes_of(overrides), {})


@pytest.mark.parametrize(("overrides", "where", "sentence", "fix"), [
    (["model.boxes.crop={size: 4, pool_size: 5}"], "model.boxes.crop.pool_size",
     "pool_size 5 is more than the crop's 4 rows and columns", "at most 4"),
    (["devices.spatial_partitions=2"], "devices.spatial_partitions",
     "crops are taken from whole feature maps", "devices.spatial_partitions=1"),
    ([SIDES % (32, 64)], "model.resizer.height",
     "an image side of 32 pixels is too small for resnet_v1", "at least 33"),
    (["model.pixels.mean=[1, 2]"], "model.pixels.mean", "has 2 numbers", "R, G, B"),
    (["model.backbone.last_layer=block_5"], "model.backbone.last_layer",
     "resnet_v1 has no layer 'block_5'", "did you mean 'block_4'"),
    (["model.backbone.output_stride=8"], "model.neck.min_level",
     "min_level 4: the backbone has the levels 2 to 3", "give one from 2 to 3"),
    (["model.neck={min_level: 3, max_level: 4}"], "model.proposals.anchors",
     "anchors for 1 feature maps, but the neck makes 2", "describe anchors for 2 maps"),
    (["model.neck={kind: fpn, min_level: 2, max_level: 6}", SIDES % (320, 320),
     "model.proposals.anchors={kind: multiscale, min_level: 3, max_level: 6}"],
     "model.proposals.anchors.min_level", "anchors of min_level 3 for a pyramid of min_level 2",
     "set it to 2"),
    (["model.neck={kind: fpn, min_level: 2, max_level: 6}",
     "model.proposals.anchors={kind: multiscale, min_level: 2, max_level: 6}"],
     "model.resizer.height",
     "300 pixels does not fit a feature pyramid that hands down a map of stride 32",
     "288 and 320"),
    (["model.backbone={kind: resnet, space_to_depth_stem: true}", SIDES % (301, 320)],
     "model.resizer.height", "space_to_depth_stem requires an even image side, not 301",
     "such as 302"),
    (["model.backbone={kind: resnet, space_to_depth_stem: true, explicit_padding: false}"],
     "model.backbone.space_to_depth_stem", "pads both sides equally, and explicit_padding is false",
     "set explicit_padding to true"),
    (["model.proposals.matcher.matched_threshold=1.5"],
     "model.proposals.matcher.matched_threshold",
     "matched_threshold is 1.5, but overlaps lie in 0..1", "at most 1"),
    (["model.boxes.classification=sigmoid_focal", "model.boxes.hard_example_miner={}"],
     "model.boxes.hard_example_miner", "hard_example_miner together with a focal loss",
     "take the miner out"),
    # Slot 0 is the background, and 90 the last class.
    (["model.boxes.postprocessing.calibration="
     "{kind: class_sigmoids, sigmoids: [{slot: 90}, {slot: 91}]}"],
     "model.boxes.postprocessing.calibration.sigmoids.1.slot", "there is no class slot 91",
     "they are 0 to 90"),
])  # fmt: skip
def test_a_contradiction_is_refused_with_its_place_and_a_remedy(overrides, where, sentence, fix):
    caught = refusal(check, experiment_of(*overrides), {})
    assert caught.where == where
    assert sentence in caught.what
    assert fix in caught.fix
    assert "pad_to_multiple" not in caught.fix


def test_the_defaults_are_sound():
    check(experiment_of(), {})
    check(experiment_of("model.boxes=null"), {})


def test_a_sample_is_a_part_of_the_proposals():
    few = "model.proposals.max_proposals=50"
    # Detection does not sample.
    check(experiment_of(few), {})
    missing = [broken.path for broken in find_missing(experiment_of(few))]
    assert "model.boxes.sample_size" in missing
    with refused("model.boxes.sample_size", 64, 50) as caught:
        check_trainable(experiment_of(few, "data.train.paths=[a]", "data.train.label_map=b"), {})
    assert "model.boxes.sample_size=50" in caught.value.fix
    for sound in ("model.boxes.sample_size=50", "model.boxes.hard_example_miner={}"):
        paths = [broken.path for broken in find_missing(experiment_of(few, sound))]
        assert "model.boxes.sample_size" not in paths


def test_statistics_over_padding_are_warned_about():
    masked, trained = "model.mask_padding=true", "model.freeze_batch_norm=false"
    (warning,) = find(experiment_of(masked, trained))
    assert (warning.severity, warning.path) == ("warning", "model.freeze_batch_norm")
    assert "they include the padding" in warning.what
    for overrides in (
        [masked],
        [trained],
        [masked, trained, "model.backbone.conv.batch_norm.train=false"],
    ):
        assert find(experiment_of(*overrides)) == []
