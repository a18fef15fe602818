"""`eval_config` of a pipeline.config: every field is honoured, has no effect, or is refused."""

import pytest

from stillbox.errors import UserError
from stillbox.experiment.overrides import apply_overrides
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.pipeline_config.no_effect import NO_EFFECT
from stillbox.experiment.pipeline_config.section import load_schema
from stillbox.experiment.rules import check
from stillbox.experiment.schema import Experiment
from tests.experiment.sample import SAMPLE

OLD = SAMPLE[SAMPLE.index("eval_config {") : SAMPLE.index("eval_input_reader {")]


def read(fields):
    return read_pipeline_config(SAMPLE.replace(OLD, f"eval_config {{\n{fields}\n}}\n"), "p.config")


def refusal(fields):
    with pytest.raises(UserError) as caught:
        read(fields)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "metrics", "best"),
    [
        ("", ("coco",), "AP"),
        ('metrics_set: "coco_detection_metrics"', ("coco",), "AP"),
        ('metrics_set: "pascal_voc_detection_metrics"', ("pascal_voc",), "VOC_mAP"),
        (
            'metrics_set: "weighted_pascal_voc_detection_metrics"',
            ("weighted_pascal_voc",),
            "VOC_weighted_mAP",
        ),
        ('metrics_set: "oid_V2_detection_metrics"', ("open_images",), "OpenImages_mAP"),
        (
            'metrics_set: ["pascal_voc_detection_metrics", "coco_detection_metrics"]',
            ("pascal_voc", "coco"),
            "VOC_mAP",
        ),
        (
            'metrics_set: "coco_detection_metrics" metrics_set: "coco_detection_metrics"',
            ("coco",),
            "AP",
        ),
    ],
)
def test_metrics_are_read_and_the_first_chooses_the_best_checkpoint(fields, metrics, best):
    evaluation = read(fields).experiment.evaluation
    assert (evaluation.metrics, evaluation.best_metric) == (metrics, best)
    assert evaluation.voc_interpolation == "all_points"  # the original's


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("coco_mask_metrics", "metrics_set = coco_mask_metrics: it scores masks", "there is"),
        ("oid_challenge_detection_metrics", "oid_V2_detection_metrics does without", "there is"),
        ("precision_at_recall_detection_metrics", "bounds of recall", "coco_detection_metrics"),
        ("coco_keypoint_metrics", "keypoints", "there is: coco_detection_metrics"),
        ("pascal_voc_detection_metric", "not supported", "did you mean 'pascal_voc_detection_m"),
        ("coco_detection_metrcs", "not supported", "did you mean 'coco_detection_metrics'? there"),
        ("coco_evaluation_all_frames", "not supported", "there is: coco_detection_metrics, pas"),
    ],
)
def test_other_metrics_are_refused_with_what_there_is(name, what, fix):
    error = refusal(f'metrics_set: "{name}"')
    assert what in error.what
    assert fix in error.fix
    assert error.where.startswith("p.config:")


def test_limits_hold_where_the_file_sets_them_and_say_how_to_lift_them():
    reading = read("num_examples: 40\nmax_evals: 7")
    evaluation = reading.experiment.evaluation
    assert (evaluation.max_examples, evaluation.max_evaluations) == (40, 7)
    assert any("--set evaluation.max_examples=0 scores all" in line for line in reading.warnings)
    assert any("--set evaluation.max_evaluations=0 lifts" in line for line in reading.notes)


@pytest.mark.parametrize("fields", ["", "num_examples: 0 max_evals: 0"])
def test_neither_the_format_s_5000_images_nor_zero_is_a_limit(fields):
    reading = read(fields)
    evaluation = reading.experiment.evaluation
    assert (evaluation.max_examples, evaluation.max_evaluations) == (0, 0)
    said = (*reading.notes, *reading.warnings)
    assert not [line for line in said if "num_examples" in line or "max_evals" in line]


def test_pictures_are_read():
    evaluation = read(
        'visualization_export_dir: "out" keep_image_id_for_visualization_export: true\n'
        "skip_scores: true skip_labels: true visualize_groundtruth_boxes: true\n"
        'groundtruth_box_visualization_color: "Lime" num_visualizations: 3\n'
        "min_score_threshold: 0.2 max_num_boxes_to_visualize: 9"
    ).experiment.evaluation
    assert (evaluation.pictures_directory, evaluation.name_pictures_by_image) == ("out", True)
    assert (evaluation.show_scores, evaluation.show_labels) == (False, False)
    assert (evaluation.draw_truth_on_predictions, evaluation.truth_color) == (True, "Lime")
    assert evaluation.num_visualizations == 3
    assert (evaluation.min_score, evaluation.max_boxes_drawn) == (0.2, 9)


@pytest.mark.parametrize(
    ("place", "own"), [("/data/eval/shown", "shown"), ("../shown", "shown"), ("x/..", "exported")]
)
def test_a_folder_of_pictures_elsewhere_becomes_one_of_the_results(place, own):
    reading = read(f'visualization_export_dir: "{place}"')
    assert reading.experiment.evaluation.pictures_directory == own
    (note,) = [note for note in reading.notes if "visualization_export_dir" in note]
    assert note.endswith(f"pictures are written into the folder {own!r} of the results")


def test_numbers_of_classes_are_read():
    evaluation = read("include_metrics_per_category: false all_metrics_per_category: true")
    assert not evaluation.experiment.evaluation.per_category
    assert evaluation.experiment.evaluation.all_metrics_per_category
    # The format's default is to leave them out; ours costs nothing.
    assert read("").experiment.evaluation.per_category


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("eval_instance_masks: true", "masks"),
        ("ignore_groundtruth: true", "scores need ground truth"),
        ("force_no_resize: true", "every shape is static"),
        ("skip_predictions_for_unlabeled_class: true", "labels of whole images"),
        ("image_classes_field_map_empty_to_ones: true", "labels of whole images"),
        ("retain_original_image_additional_channels: true", "three channels"),
        ("parameterized_metric { coco_keypoint_metrics { class_label: 'a' } }", "keypoints"),
        ("super_categories { key: 'a' value: 'b' }", "groups of classes"),
    ],
)
def test_what_there_is_not_is_refused_with_its_reason(field, reason):
    error = refusal(field)
    assert reason in error.what
    assert f"EvalConfig.{field.partition(':')[0].partition(' ')[0]}" in error.what
    assert error.where.startswith("p.config:")


@pytest.mark.parametrize(
    "field",
    [
        "eval_interval_secs: 5",
        "save_graph: true",
        'eval_master: "m"',
        'export_path: "e"',
        "retain_original_images: false",
        "recall_lower_bound: 0.2",
        "recall_upper_bound: 0.7",
        "use_dummy_loss_in_eval: true",
        "keypoint_edge { start: 1 end: 2 }",
    ],
)
def test_what_changes_nothing_is_noted_with_its_reason(field):
    reading = read(field)
    assert reading.experiment.evaluation == read("").experiment.evaluation
    name = field.partition(":")[0].partition(" ")[0]
    assert any(f"EvalConfig.{name} has no effect here" in note for note in reading.notes)


def test_every_field_ends_in_one_of_the_three_ways():
    """The tests above name every field that there is."""
    honoured = {
        *("batch_size", "num_visualizations", "num_examples", "max_evals", "metrics_set"),
        *("visualization_export_dir", "use_moving_averages", "min_score_threshold"),
        *("max_num_boxes_to_visualize", "skip_scores", "skip_labels"),
        *("visualize_groundtruth_boxes", "groundtruth_box_visualization_color"),
        *("keep_image_id_for_visualization_export", "include_metrics_per_category"),
        "all_metrics_per_category",
    }
    refused = {
        *("eval_instance_masks", "ignore_groundtruth", "force_no_resize", "super_categories"),
        *("skip_predictions_for_unlabeled_class", "image_classes_field_map_empty_to_ones"),
        *("retain_original_image_additional_channels", "parameterized_metric"),
    }
    assert honoured | refused | NO_EFFECT["EvalConfig"].keys() == set(
        load_schema().messages["EvalConfig"].fields
    )


def broken(*overrides):
    with pytest.raises(UserError) as caught:
        check(apply_overrides(Experiment(), overrides, {}), {})
    return caught.value


def test_the_best_metric_is_one_that_is_computed():
    error = broken("evaluation.metrics=[pascal_voc]")
    assert "best_metric AP belongs to coco" in error.what
    assert error.fix.startswith("--set evaluation.best_metric=VOC_mAP")
    error = broken("evaluation.best_metric=VOC_weighted_mAP")
    assert "belongs to weighted_pascal_voc, which is not in evaluation.metrics (coco)" in error.what
    fine = ["evaluation.metrics=[coco, weighted_pascal_voc]", "evaluation.best_metric=AP50"]
    check(apply_overrides(Experiment(), fine, {}), {})


@pytest.mark.parametrize(
    ("color", "fix"),
    [("blak", "did you mean 'black'"), ("#12", "#rrggbb"), ("qqqqqq", "a name such as lime")],
)
def test_a_colour_is_one_that_can_be_drawn(color, fix):
    error = broken(f"evaluation.truth_color={color!r}")
    assert "is no colour" in error.what
    assert fix in error.fix


@pytest.mark.parametrize("field", ["max_examples", "max_evaluations"])
def test_limits_are_not_negative(field):
    assert f"{field} is -1" in broken(f"evaluation.{field}=-1").what
