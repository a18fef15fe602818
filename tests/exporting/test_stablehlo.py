"""StableHLO: every input and both signatures, through the artefact alone."""

import numpy as np
import pytest

import stillbox
from stillbox.errors import UserError
from stillbox.exporting.export import export_model
from stillbox.exporting.manifest import Manifest
from stillbox.exporting.settings import ExportSettings
from stillbox.exporting.stablehlo import FILE, load
from tests.exporting.programs import OUTPUTS
from tests.small import EVERY_DETECTION


def exported(model, images, folder, **settings):
    settings = ExportSettings(format="stablehlo", platforms=("cpu",), **settings)
    return export_model(model, folder, settings, images)


@pytest.fixture(scope="module")
def free(model, images, tmp_path_factory):
    """An artefact of the Object Detection API's signature that takes images of any size."""
    return exported(model, images, tmp_path_factory.mktemp("export") / "free", any_size=True)


@pytest.fixture(scope="module")
def tpu(model, images, tmp_path_factory):
    """An artefact of the TPU page's signature, for any number of images of one size."""
    folder = tmp_path_factory.mktemp("export") / "tpu"
    return exported(model, images, folder, signature="tpu", batch_size=0, image_size=(48, 80))


def test_the_artefact_equals_its_checkpoint(free, images):
    assert free.verification.images == len(images) + 2
    assert free.verification.detections > 10
    assert free.verification.max_box_difference < 1e-3
    assert free.verification.max_score_difference < 1e-5


def test_a_predictor_runs_it_like_its_checkpoint(free, checkpoint, images, blank):
    predictor = stillbox.load(free.folder)
    assert predictor.class_names == checkpoint.class_names
    for image in (*images, blank):
        got, wanted = (
            predictor.predict(image, **EVERY_DETECTION),
            checkpoint.predict(image, **EVERY_DETECTION),
        )
        np.testing.assert_allclose(got.scores, wanted.scores, atol=1e-5)
        np.testing.assert_allclose(got.boxes, wanted.boxes, atol=1e-2)
        assert got.names == wanted.names


def test_outputs_of_the_object_detection_api(free, images):
    run = load(free.folder, free.manifest)
    outputs = run(images[0][None])
    assert sorted(outputs) == sorted(OUTPUTS["detection_api"])
    assert {array.dtype for array in outputs.values()} == {np.dtype(np.float32)}
    count = int(outputs["num_detections"][0])
    assert outputs["detection_boxes"][0, :count].max() <= 1
    assert outputs["detection_classes"][0, :count].min() >= 1
    # A detection's scores are those of the anchor that it names.
    anchor = int(outputs["detection_anchor_indices"][0, 0])
    scores = outputs["raw_detection_scores"][0, anchor]
    np.testing.assert_array_equal(outputs["detection_multiclass_scores"][0, 0], scores)
    class_id = int(outputs["detection_classes"][0, 0])
    assert scores[class_id] == outputs["detection_scores"][0, 0]


def test_outputs_of_the_tpu_page(tpu, images):
    run = load(tpu.folder, tpu.manifest)
    pair = np.stack([np.full((48, 80, 3), value, np.uint8) for value in (0, 200)])
    outputs = run(pair)
    assert sorted(outputs) == sorted(OUTPUTS["tpu"])
    assert outputs["num_detections"].dtype == outputs["detection_classes"].dtype == np.int32
    # Original size, network input, scale, offset: 48 x 80 is resized to 64 x 64.
    np.testing.assert_allclose(
        outputs["image_info"][1], [[48, 80], [64, 64], [64 / 48, 64 / 80], [0, 0]], rtol=1e-6
    )
    count = int(outputs["num_detections"][0])
    assert 2 < outputs["detection_boxes"][0, :count].max() <= 64


@pytest.mark.parametrize(
    "settings",
    [
        {"input_type": "float_image_tensor", "signature": "tpu", "normalized_coordinates": True},
        {"input_type": "raw_image_tensor", "batch_size": 2, "max_detections": 7},
    ],
)
def test_other_inputs_equal_the_checkpoint(model, images, tmp_path, settings):
    result = exported(model, images, tmp_path / "out", **settings)
    assert result.verification.detections > 10
    if "max_detections" in settings:
        assert len(stillbox.load(result.folder).predict(images[0], **EVERY_DETECTION)) == 7


def test_an_unreadable_file_is_named(free, tmp_path):
    (tmp_path / FILE).write_bytes(b"nothing")
    with pytest.raises(UserError, match="refuses the model") as caught:
        load(tmp_path, Manifest.read(free.folder))
    assert ">=" in caught.value.fix


def test_another_runtime_is_refused(free):
    with pytest.raises(UserError, match="openvino does not run stablehlo"):
        stillbox.load(free.folder, runtime="openvino").predict(np.zeros((8, 8, 3), np.uint8))
