"""`train_config` and the input readers: fields that are honoured, and why others are not."""

from pathlib import Path

import pytest

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.pipeline_config.no_effect import NO_EFFECT
from stillbox.experiment.pipeline_config.section import load_schema
from stillbox.experiment.schema import FineTune
from tests.experiment.faster_rcnn_sample import FASTER_RCNN
from tests.experiment.sample import SAMPLE

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
        (
            'fine_tune_checkpoint_type: "detection" load_all_detection_checkpoint_vars: true',
            "detection",
            True,
        ),
    ],
)
def test_the_types_of_both_ages_say_what_is_taken(fields, scope, heads):
    assert fine_tune(fields) == FineTune(checkpoint="backbone.npz", scope=scope, load_heads=heads)


def test_a_type_that_belongs_to_other_detectors_is_refused():
    with pytest.raises(UserError, match="_type = fine_tune: it belongs to CenterNet"):
        fine_tune('fine_tune_checkpoint_type: "fine_tune"')
    with pytest.raises(UserError, match=r"there is: classification, detection, full"):
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
    with pytest.raises(UserError) as caught:
        read(field, place)
    assert reason in caught.value.what
    assert caught.value.where.startswith("p.config:")
    assert caught.value.fix


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
