"""Exports of detectors for images of 1 and 4 channels and of more bits, and what they refuse."""

import json

import numpy as np
import pytest

import stillbox
from stillbox.checkpoints.trained import TrainedModel
from stillbox.cli.overrides import changes_of
from stillbox.experiment.resolve import resolve
from stillbox.exporting.export import export_model
from stillbox.exporting.settings import DECODES, ENCODED, ExportSettings
from stillbox.image_kind import ImageKind
from stillbox.inputs.channels import of_kind
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from stillbox.records.label_map import LabelMap
from stillbox.references import Parameter
from tests.helpers import refused
from tests.small import EVERY_DETECTION, SMALL

GRAY, FOUR, DEEP = ImageKind(1), ImageKind(4), ImageKind(1, 16)
KINDS = pytest.mark.parametrize("kind", [GRAY, FOUR, DEEP], ids=str)


def detector(kind):
    """An untrained detector, which resizes as Pillow does."""
    fields = [f"{path}={value}" for path, value in kind.settings.items()]
    overrides = (*SMALL, "model.resizer.method=bilinear_antialias", "model.num_classes=2", *fields)
    experiment = resolve("ssd_mobilenet_v1_300x300", changes_of(overrides)).experiment
    _, params, stats = split_detector(build_detector(experiment.model))
    return TrainedModel(
        experiment=experiment,
        label_map=LabelMap.from_names(["disc", "ring"]),
        params=params,
        stats=stats,
        source="fresh",
        report=None,
    )


def pictures(kind):
    """Two images that are larger than the network input, with values between whole numbers."""
    rng = np.random.default_rng(0)
    rgb = [rng.integers(0, 256, size, np.uint8) for size in ((90, 130, 3), (64, 64, 3))]
    images = [of_kind(image, kind) for image in rgb]
    if kind.bits > 8:
        images = [np.clip(image + rng.random(image.shape), 0, 255) for image in images]
    return [image.astype(kind.dtype) for image in images]


def exported(kind, folder, images=None, **settings):
    images = pictures(kind) if images is None else images
    return export_model(detector(kind), folder, ExportSettings(**settings), images)


@KINDS
@pytest.mark.parametrize("form", ["stablehlo", "onnx", "saved_model"])
def test_an_artefact_takes_images_of_any_size(kind, form, tmp_path):
    platforms = {"platforms": ("cpu",), "any_size": form == "stablehlo"}
    export = exported(kind, tmp_path / "export", format=form, **platforms)
    assert export.verification.images == 4
    assert export.verification.max_score_difference < 1e-4
    content = json.loads((tmp_path / "export/export.json").read_text())
    assert (content["images"]["channels"], content["images"]["bits"]) == kind
    assert ("65535" in content["images"]["client"]) == (kind == DEEP)
    wanted = "float_image_tensor" if kind == DEEP else "image_tensor"
    assert content["settings"]["input_type"] == wanted


@KINDS
def test_a_model_for_phones_resizes_images_of_one_size(kind, tmp_path):
    images = [picture[:48, :80] for picture in pictures(kind)[:1]]
    export = exported(kind, tmp_path / "export", images, format="tflite", image_size=(48, 80))
    assert export.verification.images == 3
    assert export.verification.max_score_difference < 1e-4


def test_a_predictor_reads_files_as_the_model_takes_them(tmp_path):
    exported(DEEP, tmp_path / "export", format="stablehlo", platforms=("cpu",), any_size=True)
    values = np.random.default_rng(0).integers(0, 65536, (70, 90)).astype(np.uint16)
    predictor = stillbox.load(tmp_path / "export")
    drawn = predictor.predict(values, **EVERY_DETECTION)
    same = predictor.predict(values[..., None], **EVERY_DETECTION)
    assert drawn.image.shape == (70, 90, 3)
    assert np.array_equal(drawn.image[..., 0], (values / 257).astype(np.uint8))
    assert np.array_equal(drawn.boxes, same.boxes)


@pytest.mark.parametrize("input_type", ENCODED)
@pytest.mark.parametrize("kind", [FOUR, DEEP], ids=str)
def test_image_files_are_no_input_of_such_images(kind, input_type):
    settings = ExportSettings(format=DECODES[0], input_type=input_type)
    with refused(Parameter("input_type"), str(kind)):
        settings.for_images(kind)
    assert settings.for_images(GRAY) == settings


def test_models_of_integers_for_the_edge_tpu_take_8_bits():
    settings = ExportSettings(format="tflite", postprocess="detection_op", quantize="int8")
    with refused(Parameter("postprocess"), "16 bits"):
        settings.for_images(DEEP)
    assert settings.for_images(FOUR) == settings
