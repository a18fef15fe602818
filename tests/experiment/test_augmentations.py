"""Augmentations and resizers on the way from text to values, and the rules about them."""

import dataclasses
import re
import typing
from pathlib import Path

import pytest

from stillbox.cli.overrides import changes_of
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.pipeline_config.section import NO_EFFECT, REFUSED, load_schema
from stillbox.experiment.rules import check, warnings_about
from stillbox.experiment.updating import apply_changes
from stillbox.experiment.yaml_config import from_yaml, to_yaml
from tests.experiment.augmentation_cases import BEYOND_FIELDS, BEYOND_THE_LANGUAGE, CASES
from tests.experiment.sample import SAMPLE
from tests.helpers import refusal, refused

PAGE = (Path(__file__).parents[2] / "docs" / "images.md").read_text(encoding="utf-8")
MODEL = SAMPLE[: SAMPLE.index("train_config")]
FIXED = "fixed_shape_resizer { height: 160 width: 192 }"


EVERY = (*CASES.values(), *BEYOND_THE_LANGUAGE)


def read(step):
    optimizer = "optimizer { adam_optimizer { learning_rate { constant_learning_rate {} } } }"
    return read_pipeline_config(
        f"{MODEL}\ntrain_config {{ {optimizer} data_augmentation_options {{\n{step} }} }}",
        "p.config",
    )


def augmentation(step):
    (step_read,) = read(step).experiment.train.augmentations
    return step_read


def with_augmentations(*augmentations):
    experiment = schema.Experiment()
    train = dataclasses.replace(experiment.train, augmentations=augmentations)
    return dataclasses.replace(experiment, train=train)


# ---- pipeline.config ----------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "expected"), CASES.items(), ids=lambda case: str(case)[:30])
def test_every_field_of_every_augmentation_is_read(text, expected):
    reading = read(text)
    assert reading.experiment.train.augmentations == (expected,)
    # Nothing that is set is the default, or the reader might not look at it at all.
    assert expected != type(expected)() or not dataclasses.fields(expected)
    for field in dataclasses.fields(expected):
        if field.name in BEYOND_FIELDS:
            assert getattr(expected, field.name) == field.default
            continue
        path = f"train.augmentations.0.{field.name}"
        assert any(origin == path or origin.startswith(f"{path}.") for origin in reading.origins)
    assert reading.origins["train.augmentations.0"].startswith("p.config:")
    check(reading.experiment, reading.origins)


@pytest.mark.parametrize("text", CASES)
def test_the_cases_above_set_everything_that_the_language_has(text):
    messages = load_schema().messages
    step = messages["PreprocessingStep"].fields[text.split()[0]]
    todo = [messages[step.type]]
    while todo:
        message = todo.pop()
        for name, kind in message.fields.items():
            assert name in text or name in NO_EFFECT.get(message.name, {}), (message.name, name)
            if kind.type in messages:
                todo.append(messages[kind.type])


def test_every_step_of_the_language_and_class_of_the_schema_is_reached():
    steps = set(load_schema().messages["PreprocessingStep"].fields)
    understood = {text.split()[0] for text in CASES}
    refused = {
        label.partition(".")[2] for label in REFUSED if label.startswith("PreprocessingStep.")
    }
    assert understood | refused == steps
    assert not understood & refused
    assert {type(case) for case in EVERY} == set(schema.Augmentation.variants.values())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The proto says 500,000; the builder passes only what is set, and the operation has this.
        ("random_downscale_to_target_pixels {}", schema.RandomDownscaleToTargetPixels()),
        ("random_horizontal_flip {}", schema.RandomHorizontalFlip(probability=0.5)),
        ("random_horizontal_flip { probability: 0 }", schema.RandomHorizontalFlip(probability=0.0)),
        ("random_pad_image {}", schema.RandomPadImage()),
        ("random_crop_pad_image {}", schema.RandomCropPadImage()),
        ("ssd_random_crop_pad {}", schema.SsdRandomCropPad()),
        ("ssd_random_crop_fixed_aspect_ratio {}", schema.SsdRandomCropFixedAspectRatio()),
        ("ssd_random_crop_pad_fixed_aspect_ratio {}", schema.SsdRandomCropPadFixedAspectRatio()),
        ("random_jitter_boxes {}", schema.RandomJitterBoxes()),
        ("autoaugment_image {}", schema.AutoAugment(policy="v0", contrast="original")),
        ("random_distort_color {}", schema.RandomDistortColor(ordering=0)),
        ("random_square_crop_by_scale {}", schema.RandomSquareCropByScale()),
        ("random_scale_crop_and_pad_to_square {}", schema.RandomScaleCropAndPadToSquare()),
        ("random_black_patches {}", schema.RandomBlackPatches()),
        ("random_patch_gaussian {}", schema.RandomPatchGaussian()),
        ("random_jpeg_quality {}", schema.RandomJpegQuality()),
        ("random_adjust_contrast {}", schema.RandomAdjustContrast()),
        ("random_pixel_value_scale {}", schema.RandomPixelValueScale()),
    ],
    ids=lambda case: str(case)[:30],
)
def test_what_a_file_leaves_unset_has_the_operations_default(text, expected):
    assert augmentation(text) == expected


def test_defaults_are_those_of_the_original_operations():
    assert schema.RandomDownscaleToTargetPixels().max_target_pixels == 800_000
    assert [o.min_object_covered for o in schema.SsdRandomCropPad().operations] == [
        *(0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    ]
    for operation in schema.SsdRandomCropFixedAspectRatio().operations:
        assert (operation.min_area, operation.max_area, operation.random_coef) == (0.1, 1.0, 0.15)
    (operation,) = augmentation("ssd_random_crop_pad { operations { max_area: 1 } }").operations
    assert operation.pad_color == (0.0, 0.0, 0.0)
    assert operation.max_padded_size_ratio == (2.0, 2.0)


@pytest.mark.parametrize(
    "text",
    [
        "random_horizontal_flip { keypoint_flip_permutation: [0, 2, 1] }",
        "random_vertical_flip { keypoint_flip_permutation: [0, 2, 1] }",
        "random_rotation90 { keypoint_rot_permutation: [0, 2, 1] }",
    ],
)
def test_permutations_of_keypoints_are_accepted_with_a_note(text):
    assert any("no keypoints are read" in note for note in read(text).notes)


def test_an_aspect_ratio_that_the_original_ignores_is_warned_about():
    reading = read("ssd_random_crop_fixed_aspect_ratio { aspect_ratio: 2 }")
    assert reading.experiment.train.augmentations[0].aspect_ratio == 2.0
    assert any("the original ignores aspect_ratio" in line for line in reading.warnings)


# ---- docs/images.md -----------------------------------------------------------------------------


def test_the_page_lists_all_augmentations_and_resizers():
    tables = "".join(line for line in PAGE.splitlines(keepends=True) if line.startswith("|"))
    shown = re.findall(r"`([a-z0-9_]+)`", tables)
    kinds = {case.kind for case in EVERY}
    assert kinds <= set(shown)
    assert all(shown.count(kind) == 1 for kind in kinds)
    assert {resizer.kind for resizer in typing.get_args(schema.Resizer)} <= set(shown)


def test_what_the_page_shows_is_sound():
    examples = [from_yaml(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    for example in examples:
        check(example, {})
    assert not any("resized twice" in line for e in examples for line in warnings_about(e, {}))
    (override,) = re.findall(r"set '(.*?)'", PAGE)
    changed = apply_changes(schema.Experiment(), changes_of([override]), {})
    assert changed.model.resizer.input_size == (480, 640)
    check(changed, {})


# ---- YAML ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.kind)
def test_yaml_gives_every_augmentation_back(case):
    experiment = with_augmentations(case, type(case)())
    assert from_yaml(to_yaml(experiment)) == experiment


@pytest.mark.parametrize(
    "resizer",
    [
        schema.IdentityResizer(canvas=(40, 50), pad_value=(1.0, 2.0, 3.0)),
        schema.ConditionalShapeResizer(
            condition="smaller", threshold=20, method="area", canvas=(40, 50)
        ),
        schema.PadToMultipleResizer(multiple=10, canvas=(40, 50)),
    ],
    ids=lambda resizer: resizer.kind,
)
def test_yaml_gives_every_resizer_back(resizer):
    experiment = schema.Experiment(model=schema.OneStage(resizer=resizer))
    assert from_yaml(to_yaml(experiment)) == experiment


# ---- rules --------------------------------------------------------------------------------------


def broken(*augmentations, **fields):
    caught = refusal(check, with_augmentations(*augmentations), {})
    assert caught.fix
    return f"{caught.where}: {caught.what}"


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (schema.RandomImageScale(min_ratio=3.0), "0.min_ratio: min_ratio 3.0 is above max_ratio"),
        (schema.RandomAdjustContrast(min_factor=2.0), "min_factor 2.0 is above max_factor 1.25"),
        (schema.RandomJpegQuality(min_quality=60, max_quality=50), "min_quality 60 is above"),
        (schema.RandomPatchGaussian(min_stddev=2.0), "min_stddev 2.0 is above max_stddev 1.0"),
        (schema.RandomPadImage(min_height=9, min_width=9, max_height=8, max_width=9), "min_height"),
        (schema.RandomCropPadImage(min_padded_size_ratio=(1.0, 3.0)),
         "min_padded_size_ratio [1.0, 3.0] is above max_padded_size_ratio [2.0, 2.0]"),
        (
            schema.SsdRandomCropPad(
                operations=(schema.RandomCropPadImage(min_area=1.0, max_area=0.5),)
            ),
            "0.operations.0.min_area: min_area 1.0 is above max_area 0.5",
        ),
        (schema.SsdRandomCropPad(operations=()), "0.operations: no operations"),
        (schema.SsdRandomCropFixedAspectRatio(operations=()), "0.operations: no operations"),
        (schema.RandomPadImage(pad_color=(1.0,)), "pad_color has 1 number"),
        (schema.RandomPadImage(pad_color=(1.0, 2.0, 256.0)), "pad_color is 256.0"),
        (schema.RandomPadImage(max_height=0, max_width=5), "0.max_height is 0"),
        (schema.RandomPadImage(min_height=5), "min_height without min_width"),
        (schema.SubtractChannelMean(means=()), "means has 0 numbers"),
        (schema.RandomCropPadImage(max_padded_size_ratio=(2.0,)), "ratio has 1 number"),
        (schema.ResizeImage(height=0), "0.height is 0"),
        (schema.RandomResizeMethod(width=-1), "0.width is -1"),
        (schema.RandomScaleCropAndPadToSquare(output_size=0), "output_size is 0"),
        (schema.RandomSquareCropByScale(num_scales=0), "num_scales is 0"),
        (schema.RandomSquareCropByScale(max_border=0), "max_border is 0"),
        (schema.RandomAdjustBrightness(max_delta=1.5), "max_delta is 1.5"),
        (schema.RandomAdjustHue(max_turn=0.6), "max_turn is 0.6"),
        (schema.RandomDistortColor(ordering=2), "ordering is 2"),
        (schema.RandomJpegQuality(max_quality=101), "max_quality is 101"),
        (schema.RandomPatchGaussian(min_patch_size=0), "min_patch_size is 0"),
        (schema.RandomDownscaleToTargetPixels(min_target_pixels=0), "min_target_pixels is 0"),
        (schema.RandomSelfConcatImage(vertical_probability=2.0), "vertical_probability is 2.0"),
        (schema.RandomJitterBoxes(ratio=1.5), "0.ratio is 1.5"),
        (schema.NormalizeImage(original_max=0.0), "original_max 0.0 is not above original_min 0.0"),
        (schema.DropLabelProbabilistically(label=0), "label is 0"),
        (schema.DropLabelProbabilistically(label=91), "there is no class 91: the model has 90"),
        (schema.RemapLabels(original_labels=(1, 91)), "original_labels: there is no class 91"),
        (schema.RemapLabels(original_labels=(1,), new_label=91), "new_label: there is no class 91"),
        (schema.RemapLabels(), "remap_labels changes nothing"),
        (schema.SsdIouCrop(min_ious=()), "ssd_iou_crop has no min_ious to choose from"),
        (schema.SsdIouCrop(min_ious=(0.5, 1.0)), "min_ious: no window has an IoU above 1"),
        (schema.SsdIouCrop(min_ious=(1.1,)), "min_ious is 1.1"),
        (schema.SsdIouCrop(max_aspect_ratio=1.0), "both sides below 1.0 times the other"),
        (schema.SsdIouCrop(min_side=0.0), "min_side is 0.0"),
        (schema.SsdIouCrop(max_side=1.1), "max_side is 1.1"),
        (schema.SsdIouCrop(min_side=0.9, max_side=0.5), "min_side 0.9 is above max_side 0.5"),
        (schema.SsdIouCrop(candidates=0), "candidates is 0"),
        (schema.SsdIouCrop(max_draws=0), "max_draws is 0"),
        (schema.SsdIouCrop(whole_image_probability=1.5), "whole_image_probability is 1.5"),
        (schema.SsdIouCrop(resize_to=(300,)), "resize_to has 1 number"),
        (schema.SsdIouCrop(resize_to=(0, 300)), "resize_to is 0"),
        (schema.LargeScaleJitter(output_size=8193), "output_size is 8193"),
        (schema.LargeScaleJitter(min_scale=2.5), "min_scale 2.5 is above max_scale 2.0"),
        (schema.LargeScaleJitter(max_scale=5.0), "max_scale is 5.0"),
        (schema.LargeScaleJitter(pad_color=(1.0,)), "pad_color has 1 number"),
        (schema.RandomAffine(output_size=(300,)), "output_size has 1 number"),
        (schema.RandomAffine(max_shear=90.0), "max_shear is 90.0"),
        (schema.RandomAffine(max_shift=1.5), "max_shift is 1.5"),
        (schema.Mosaic(height=0), "height is 0"),
        (schema.Mosaic(min_center=1.6), "min_center 1.6 is above max_center 1.5"),
        (schema.Mosaic(max_center=2.5), "max_center is 2.5"),
        (schema.MixUp(min_box_side=-1.0), "min_box_side is -1.0"),
        (schema.MixUp(skip_last_steps=9),
         "0.skip_last_steps: training without an end has no last 9 steps"),
    ],
    ids=lambda case: str(case)[:60],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_place(case, message):
    assert message in broken(schema.RandomHorizontalFlip(), case).replace(".1.", ".0.")


@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.kind)
def test_the_defaults_break_no_rule(case):
    if not isinstance(case, schema.RemapLabels):  # it must be told what to do
        check(with_augmentations(type(case)()), {})


def test_values_that_only_training_sees_are_warned_about():
    cases = schema.NormalizeImage(), schema.SubtractChannelMean(), schema.AdjustGamma()
    warnings = warnings_about(with_augmentations(*cases), {})
    assert [line.partition(":")[0] for line in warnings if "training alone" in line] == [
        "train.augmentations.0",
        "train.augmentations.1",
    ]


def test_windows_that_are_resized_twice_are_warned_about():
    def twice(*cases):
        warnings = warnings_about(with_augmentations(*cases), {})
        return [line for line in warnings if "resized twice" in line]

    # The network input of the default experiment is 300 x 300.
    (line,) = twice(schema.SsdIouCrop(resize_to=(320, 300)))
    assert line.startswith("train.augmentations.0.resize_to: ")
    assert "[320, 300]" in line
    assert "[300, 300] resizes them once" in line
    assert not twice(schema.SsdIouCrop(), schema.SsdIouCrop(resize_to=()))


def test_a_contrast_that_the_policy_never_changes_is_warned_about():
    def silent(**fields):
        warnings = warnings_about(with_augmentations(schema.AutoAugment(**fields)), {})
        return [line for line in warnings if "contrast" in line]

    (line,) = silent(policy="v1", contrast="mean")
    assert line.startswith("train.augmentations.0.contrast: contrast mean has no effect: policy v1")
    assert "v2 and v3 do" in line
    assert not silent(policy="v1")
    assert not silent(policy="v2", contrast="mean")
    assert not silent(policy="v3", contrast="mean")


def with_end(*augmentations, **fields):
    experiment = with_augmentations(*augmentations)
    return dataclasses.replace(
        experiment, train=dataclasses.replace(experiment.train, steps=100, **fields)
    )


def test_an_end_beyond_the_whole_run_or_behind_early_stopping_is_warned_about():
    def about(skipped, **fields):
        warnings = warnings_about(with_end(schema.Mosaic(skip_last_steps=skipped), **fields), {})
        return [line for line in warnings if "skip_last_steps" in line]

    assert not about(99)
    (line,) = about(100)
    assert "mosaic has no effect: the last 100 steps of 100 leave it out" in line
    stopping = {"early_stopping": schema.EarlyStopping(), "evaluate_every": 10}
    (line,) = about(10, **stopping)
    assert "early stopping may end training before its last 10 steps" in line
    assert not about(0, **stopping)


def test_passes_over_the_records_are_an_end():
    experiment = with_augmentations(schema.MixUp(skip_last_steps=9))
    check(apply_changes(experiment, changes_of(["data.train.num_epochs=2"]), {}), {})


def test_a_result_of_another_size_than_the_input_is_warned_about():
    def other(*cases):
        warnings = warnings_about(with_augmentations(*cases), {})
        return [line for line in warnings if "another scale" in line]

    # The network input of the default experiment is 300 x 300.
    (line,) = other(schema.LargeScaleJitter(output_size=320))
    assert line.startswith("train.augmentations.0.output_size: large_scale_jitter gives images of")
    assert "[320, 320] (height, width), and model.resizer resizes them to [300, 300]" in line
    assert len(other(schema.RandomAffine(output_size=(300, 320)))) == 1
    right = schema.LargeScaleJitter(output_size=300), schema.RandomAffine(output_size=(300, 300))
    assert not other(*right, schema.RandomAffine(), schema.Mosaic())


@pytest.mark.parametrize("path", ["evaluation", "data.evaluation"])
def test_a_mosaic_of_evaluation_data_is_refused_with_the_reason(path):
    override = f"{path}.augmentations=[mosaic]"
    caught = refusal(apply_changes, schema.Experiment(), changes_of([override]), {})
    assert caught.what == f"{path} has no field 'augmentations'"
    assert caught.fix.startswith("set train.augmentations: evaluation scores images as they are")


# ---- resizers that require a canvas ----


def with_resizer(text):
    return read_pipeline_config(MODEL.replace(FIXED, text), "p.config")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("identity_resizer {}", schema.IdentityResizer()),
        (
            "conditional_shape_resizer { condition: SMALLER size_threshold: 200 "
            "resize_method: BICUBIC }",
            schema.ConditionalShapeResizer(condition="smaller", threshold=200, method="bicubic"),
        ),
        ("conditional_shape_resizer {}", schema.ConditionalShapeResizer(threshold=300)),
        ("pad_to_multiple_resizer { multiple: 32 }", schema.PadToMultipleResizer(multiple=32)),
    ],
)
def test_a_resizer_without_a_shape_requires_a_canvas(text, expected):
    reading = with_resizer(text)
    # Zeros behind the normalisation of pixels.
    expected = dataclasses.replace(expected, pad_value=reading.experiment.model.pixels.mean)
    assert reading.experiment.model.resizer == expected
    with refused("p.config:5:21") as caught:
        check(reading.experiment, reading.origins)
    assert caught.value.where.startswith("p.config:")
    assert "model.resizer.canvas=[" in caught.value.fix
    # The remedy of the message mends it.
    origins = dict(reading.origins)
    mended = apply_changes(
        reading.experiment, changes_of(["model.resizer.canvas=[320,640]"]), origins
    )
    assert mended.model.resizer.input_size == (320, 640)
    check(mended, origins)


def test_a_condition_that_is_none_is_refused():
    with refused("p.config:5:49", "INVALID") as caught:
        with_resizer("conditional_shape_resizer { condition: INVALID }")
    assert "GREATER, SMALLER" in caught.value.fix


@pytest.mark.parametrize(
    ("resizer", "message", "fix"),
    [
        (schema.IdentityResizer(canvas=(300,)), "canvas has 1 number", "height and width"),
        (schema.IdentityResizer(canvas=(0, 300)), "model.resizer.canvas is 0", "at least 1"),
        (schema.PadToMultipleResizer(multiple=32, canvas=(320, 330)),
         "canvas [320, 330] is no multiple of 32", "model.resizer.canvas=[320,352]"),
        (schema.PadToMultipleResizer(multiple=0, canvas=(320, 330)), "multiple is 0", "at least 1"),
        (schema.ConditionalShapeResizer(threshold=0, canvas=(64, 64)), "threshold is 0", "least 1"),
        (schema.IdentityResizer(canvas=(64, 64), pad_value=(1.0,)), "pad_value has 1 number",
         "R, G, B"),
        (schema.IdentityResizer(canvas=(300, 20)), "image side of 20 pixels is too small", "33"),
    ],
    ids=lambda case: str(case)[:40],
)  # fmt: skip
def test_a_canvas_that_cannot_be_is_refused(resizer, message, fix):
    experiment = schema.Experiment(model=schema.OneStage(resizer=resizer))
    caught = refusal(check, experiment, {})
    assert message in caught.what
    assert fix in caught.fix
