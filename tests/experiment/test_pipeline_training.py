"""`train_config` and the input readers: fields that are honoured, and why others are not.

`eval_config` of a pipeline.config: every field is honoured, has no effect, or is refused.
"""

from pathlib import Path

import pytest

from stillbox.cli.overrides import changes_of
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.pipeline_config.section import NO_EFFECT, load_schema
from stillbox.experiment.rules import check
from stillbox.experiment.schema import Experiment, FineTune
from stillbox.experiment.updating import apply_changes
from stillbox.references import worded
from tests.experiment.sample import FASTER_RCNN, SAMPLE
from tests.helpers import refusal as user_error
from tests.helpers import refused

TF2 = Path(__file__).parents[1] / "goldens/checkpoints/tf2"


def read(fields, place="train_config {"):
    assert SAMPLE.count(place) == 1
    return read_pipeline_config(SAMPLE.replace(place, f"{place}\n{fields}\n"), "p.config")


def read_reader(fields):
    return read(fields, "train_input_reader {")


@pytest.mark.parametrize(("value", "factor"), [("2", 2.0), ("0.5", 0.5), ("0", 1.0)])
def test_the_factor_of_biases_is_read_and_zero_stands_for_none(value, factor):
    reading = read(f"bias_grad_multiplier: {value}")
    assert reading.experiment.train.bias_gradient_multiplier == factor
    line = SAMPLE.splitlines().index("train_config {") + 2
    assert reading.origins["train.bias_gradient_multiplier"] == f"p.config:{line}:1"


def test_without_the_factor_biases_are_as_all_others():
    assert read("").experiment.train.bias_gradient_multiplier == 1.0


def fine_tune(fields):
    text = SAMPLE.replace(
        '  fine_tune_checkpoint_type: "detection"\n  load_all_detection_checkpoint_vars: true\n',
        f"{fields}\n",
    )
    return read_pipeline_config(text, "p.config").experiment.train.fine_tune


@pytest.mark.parametrize(
    ("fields", "scope", "heads"),
    [
        ('fine_tune_checkpoint_type: "classification"', "classification", False),
        ('fine_tune_checkpoint_type: "detection"', "detection", False),
        ('fine_tune_checkpoint_type: "full"', "detection", True),
        ('fine_tune_checkpoint_type: "detection" load_all_detection_checkpoint_vars: true',
         "detection", True),
    ],
)  # fmt: skip
def test_the_types_of_both_ages_say_what_is_taken(fields, scope, heads):
    assert fine_tune(fields) == FineTune(checkpoint="backbone.npz", scope=scope, load_heads=heads)


def test_a_type_that_belongs_to_other_detectors_is_refused():
    with refused("p.config:95:1", "fine_tune", "CenterNet"):
        fine_tune('fine_tune_checkpoint_type: "fine_tune"')
    with refused("p.config:95:1"):
        fine_tune('fine_tune_checkpoint_type: "clasification"')


@pytest.mark.parametrize(
    ("place", "field", "reason"),
    [
        ("train_config {", "merge_multiple_label_boxes: true", "a box has one class"),
        ("train_config {", "use_multiclass_scores: true", "scores of several classes"),
        ("train_input_reader {", "num_additional_channels: 1", "three channels"),
        ("train_input_reader {", "num_keypoints: 4", "keypoints"),
        ("train_input_reader {", "keypoint_type_weight: 1", "keypoints"),
        ("train_input_reader {", "use_keypoint_label_map: true", "keypoints"),
        ("train_input_reader {", "load_keypoint_depth_features: true", "keypoints"),
        ("train_input_reader {", "load_context_features: true", "Context R-CNN"),
        ("train_input_reader {", "load_context_image_ids: true", "Context R-CNN"),
        ("train_input_reader {", "load_instance_masks: true", "masks"),
        ("train_input_reader {", "load_dense_pose: true", "DensePose"),
        ("train_input_reader {", "load_track_id: true", "tracking"),
        ("train_input_reader {", "expand_labels_hierarchy: true", "ancestor_ids"),
        ("train_input_reader {", "sample_from_datasets_weights: [1, 2]", "by weight"),
        ("train_input_reader {", "input_type: TF_SEQUENCE_EXAMPLE", "sequences of frames"),
        ("  use_display_name: true", "external_input_reader {}", "external_input_reader"),
    ],
)
def test_what_there_is_not_is_refused_with_its_reason(place, field, reason):
    caught = user_error(read, field, place)
    assert reason in caught.what
    assert caught.where.startswith("p.config:")
    assert caught.fix


@pytest.mark.parametrize("kind", ["TF_EXAMPLE", "INPUT_DEFAULT"])
def test_records_of_single_images_go_by_two_names(kind):
    assert read_reader(f"input_type: {kind}").experiment == read("").experiment


@pytest.mark.parametrize(
    ("place", "field"),
    [
        ("train_config {", "keep_checkpoint_every_n_hours: 1"),
        ("train_config {", "startup_delay_steps: 0"),
        ("train_config {", "summarize_gradients: true"),
        ("train_input_reader {", "load_multiclass_scores: true"),
        ("train_input_reader {", "shuffle_buffer_size: 1"),
        ("train_input_reader {", "drop_remainder: false"),
    ],
)
def test_what_changes_nothing_is_noted_with_its_reason(place, field):
    reading = read(field, place)
    assert reading.experiment == read("").experiment
    name = field.partition(":")[0]
    assert any(f"{name} has no effect here" in note for note in reading.notes)


def test_every_field_of_the_input_reader_ends_in_one_of_the_three_ways():
    honoured = {
        *("label_map_path", "shuffle", "num_epochs", "sample_1_of_n_examples", "input_type"),
        *("max_number_of_boxes", "use_display_name", "tf_record_input_reader"),
    }
    refused = {
        *("num_additional_channels", "num_keypoints", "keypoint_type_weight"),
        *("use_keypoint_label_map", "load_keypoint_depth_features", "load_context_features"),
        *("load_context_image_ids", "load_instance_masks", "load_dense_pose", "load_track_id"),
        *("expand_labels_hierarchy", "sample_from_datasets_weights", "external_input_reader"),
    }
    fields = set(load_schema().messages["InputReader"].fields)
    assert honoured | refused | NO_EFFECT["InputReader"].keys() == fields


def test_every_field_of_the_train_config_ends_in_one_of_the_three_ways():
    honoured = {
        *("batch_size", "data_augmentation_options", "optimizer", "gradient_clipping_by_norm"),
        *("fine_tune_checkpoint", "fine_tune_checkpoint_type", "from_detection_checkpoint"),
        *("load_all_detection_checkpoint_vars", "num_steps", "bias_grad_multiplier"),
        *("update_trainable_variables", "freeze_variables", "add_regularization_loss"),
        *("max_number_of_boxes", "use_bfloat16", "fine_tune_checkpoint_version"),
    }
    refused = {"merge_multiple_label_boxes", "use_multiclass_scores"}
    fields = set(load_schema().messages["TrainConfig"].fields)
    assert honoured | refused | NO_EFFECT["TrainConfig"].keys() == fields


@pytest.mark.parametrize(("version", "least"), [("V1", 0.5), ("V2", 1.0)])
def test_a_checkpoint_of_tf2_has_all_that_is_wanted(version, least):
    read_version = read(f"fine_tune_checkpoint_version: {version}")
    assert read_version.warnings == ()
    assert read_version.experiment.train.fine_tune.min_loaded == least


@pytest.mark.parametrize("name", sorted(file.stem for file in TF2.glob("*.config")))
def test_models_of_the_second_generation_are_updated_as_keras_updates(name):
    text = (TF2 / f"{name}.config").read_text()
    average = "optimizer { use_moving_average: %s moving_average_decay: 0.9"
    for value, kept in (("true", True), ("false", False)):
        assert "momentum_optimizer" in text
        read_text = text.replace("optimizer {", average % value, 1)
        read_text = read_text.replace("use_moving_average: false\n", "", 1)
        reading = read_pipeline_config(read_text, "p.config")
        train = reading.experiment.train
        assert train.optimizer.rate_in_accumulator
        assert (train.ema_decay, train.ema_warmup, train.ema_from_zero) == (
            0.9 if kept else None,
            kept,
            kept,
        )
        assert reading.origins["train.optimizer.rate_in_accumulator"].startswith("p.config:")
        assert ("train.ema_from_zero" in reading.origins) == kept


@pytest.mark.parametrize("text", [SAMPLE, FASTER_RCNN])
def test_models_of_the_first_generation_are_updated_as_tf1_updates(text):
    momentum = "momentum_optimizer { learning_rate { constant_learning_rate {} } }"
    start, end = text.index("  optimizer {"), text.index("  fine_tune_checkpoint")
    text = f"{text[:start]} optimizer {{ {momentum} use_moving_average: true }} {text[end:]}"
    train = read_pipeline_config(text, "p.config").experiment.train
    assert train.ema_decay == 0.9999
    assert not train.optimizer.rate_in_accumulator
    assert not train.ema_warmup
    assert not train.ema_from_zero


def test_other_rules_of_the_second_generation_are_those_of_the_first():
    text = SAMPLE.replace('"ssd_mobilenet_v1"', '"ssd_mobilenet_v1_keras"')
    train = read_pipeline_config(text, "p.config").experiment.train
    assert train.optimizer == read("").experiment.train.optimizer
    assert train.ema_from_zero


OLD = SAMPLE[SAMPLE.index("eval_config {") : SAMPLE.index("eval_input_reader {")]


def read_evaluation(fields):
    return read_pipeline_config(SAMPLE.replace(OLD, f"eval_config {{\n{fields}\n}}\n"), "p.config")


def refusal(fields):
    caught = user_error(read_evaluation, fields)
    return caught


@pytest.mark.parametrize(("fields", "metrics", "best"), [
    ("", ("coco",), "AP"),
    ('metrics_set: "coco_detection_metrics"', ("coco",), "AP"),
    ('metrics_set: "pascal_voc_detection_metrics"', ("pascal_voc",), "VOC_mAP"),
    ('metrics_set: "weighted_pascal_voc_detection_metrics"', ("weighted_pascal_voc",),
     "VOC_weighted_mAP"),
    ('metrics_set: "oid_V2_detection_metrics"', ("open_images",), "OpenImages_mAP"),
    # Names of 2017.
    ('metrics_set: "open_images_metrics"', ("open_images",), "OpenImages_mAP"),
    ('metrics_set: "pascal_voc_metrics"', ("pascal_voc",), "VOC_mAP"),
    ('metrics_set: ["pascal_voc_detection_metrics", "coco_detection_metrics"]',
     ("pascal_voc", "coco"), "VOC_mAP"),
    ('metrics_set: "coco_detection_metrics" metrics_set: "coco_detection_metrics"', ("coco",),
     "AP"),
])  # fmt: skip
def test_metrics_are_read_and_the_first_chooses_the_best_checkpoint(fields, metrics, best):
    evaluation = read_evaluation(fields).experiment.evaluation
    assert (evaluation.metrics, evaluation.best_metric) == (metrics, best)
    assert evaluation.voc_interpolation == "all_points"  # the original's


@pytest.mark.parametrize(
    ("name", "sentence", "fix"),
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
def test_other_metrics_are_refused_with_what_there_is(name, sentence, fix):
    error = refusal(f'metrics_set: "{name}"')
    assert sentence in error.what
    assert fix in error.fix
    assert error.where.startswith("p.config:")


def test_limits_hold_where_the_file_sets_them_and_say_how_to_lift_them():
    reading = read_evaluation("num_examples: 40\nmax_evals: 7")
    evaluation = reading.experiment.evaluation
    assert (evaluation.max_examples, evaluation.max_evaluations) == (40, 7)
    assert any("evaluation.max_examples=0 scores all" in worded(line) for line in reading.warnings)
    assert any("evaluation.max_evaluations=0 lifts" in worded(line) for line in reading.notes)


@pytest.mark.parametrize("fields", ["", "num_examples: 0 max_evals: 0"])
def test_neither_the_format_s_5000_images_nor_zero_is_a_limit(fields):
    reading = read_evaluation(fields)
    evaluation = reading.experiment.evaluation
    assert (evaluation.max_examples, evaluation.max_evaluations) == (0, 0)
    said = (*reading.notes, *reading.warnings)
    assert not [line for line in said if "num_examples" in line or "max_evals" in line]


def test_pictures_are_read():
    evaluation = read_evaluation(
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
    ("place", "folder"),
    [("/data/eval/shown", "shown"), ("../shown", "shown"), ("x/..", "exported")],
)
def test_a_folder_of_pictures_elsewhere_becomes_one_of_the_results(place, folder):
    reading = read_evaluation(f'visualization_export_dir: "{place}"')
    assert reading.experiment.evaluation.pictures_directory == folder
    (note,) = [note for note in reading.notes if "visualization_export_dir" in note]
    assert note.endswith(f"pictures are written into the folder {folder!r} of the results")


def test_numbers_of_classes_are_read():
    evaluation = read_evaluation(
        "include_metrics_per_category: false all_metrics_per_category: true"
    )
    assert not evaluation.experiment.evaluation.per_category
    assert evaluation.experiment.evaluation.all_metrics_per_category
    # The format's default is to leave them out; ours costs nothing.
    assert read_evaluation("").experiment.evaluation.per_category


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
def test_what_evaluation_has_not_is_refused_with_its_reason(field, reason):
    error = refusal(field)
    assert reason in error.what
    assert f"EvalConfig.{field.partition(':')[0].partition(' ')[0]}" in error.what
    assert error.where.startswith("p.config:")


@pytest.mark.parametrize("field", [
    "eval_interval_secs: 5", "save_graph: true", 'eval_master: "m"', 'export_path: "e"',
    "retain_original_images: false", "recall_lower_bound: 0.2", "recall_upper_bound: 0.7",
    "use_dummy_loss_in_eval: true", "keypoint_edge { start: 1 end: 2 }",
])  # fmt: skip
def test_what_changes_nothing_in_evaluation_is_noted_with_its_reason(field):
    reading = read_evaluation(field)
    assert reading.experiment.evaluation == read_evaluation("").experiment.evaluation
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
    caught = user_error(check, apply_changes(Experiment(), changes_of(overrides), {}), {})
    return caught


def test_the_best_metric_is_one_that_is_computed():
    error = broken("evaluation.metrics=[pascal_voc]")
    assert "best_metric AP belongs to coco" in error.what
    assert worded(error.fix).startswith("evaluation.best_metric=VOC_mAP")
    error = broken("evaluation.best_metric=VOC_weighted_mAP")
    assert "belongs to weighted_pascal_voc, which is not in evaluation.metrics (coco)" in error.what
    fine = ["evaluation.metrics=[coco, weighted_pascal_voc]", "evaluation.best_metric=AP50"]
    check(apply_changes(Experiment(), changes_of(fine), {}), {})


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
