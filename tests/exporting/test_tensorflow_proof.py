"""SavedModel and TensorFlow Lite artefacts of detectors of full size, on photographs."""

import pytest

import stillbox
from stillbox.api import load_model
from stillbox.exporting.export import export_model
from stillbox.exporting.settings import ExportSettings
from stillbox.predicting.images import read_image
from tests.exporting.onnx.test_proof import (
    PHOTOGRAPHS,
    SSD,
    UNTRAINED,
    average_precision,
    photographs,
    untrained,
)
from tests.shared import needs_shared

pytest.importorskip("tensorflow")

pytestmark = [pytest.mark.proof, needs_shared, pytest.mark.xdist_group("tensorflow")]

CALIBRATED_ON = sorted((PHOTOGRAPHS / "train2017").glob("*.jpg"))


@pytest.fixture(scope="module")
def ssd():
    """The COCO SSD."""
    return load_model(SSD["config"], weights=SSD["weights"], overrides=SSD["overrides"])


@pytest.mark.parametrize(
    "settings",
    [
        {"format": "saved_model"},
        {"format": "saved_model", "input_type": "encoded_image_string_tensor", "signature": "tpu"},
        {"format": "tflite"},
    ],
    ids=["pixels", "files", "tflite"],
)
def test_published_weights_keep_their_ap(ssd, settings, tmp_path):
    result = export_model(ssd, tmp_path / "out", ExportSettings(**settings), photographs(4))
    assert result.verification.detections >= 400  # 100 in each of the four photographs
    ap, ap50 = average_precision(stillbox.load(result.folder))
    assert ap == pytest.approx(0.222, abs=0.003)
    assert ap50 == pytest.approx(0.384, abs=0.003)


def test_integers_keep_the_ap_within_a_hundredth(ssd, tmp_path):
    pytest.importorskip("ai_edge_quantizer")
    images = [read_image(file)[0] for file in CALIBRATED_ON]
    settings = ExportSettings(format="tflite", quantize="int8")
    result = export_model(ssd, tmp_path / "out", settings, images)
    ap, ap50 = average_precision(stillbox.load(result.folder))
    assert ap == pytest.approx(0.222, abs=0.01)
    assert ap50 == pytest.approx(0.384, abs=0.01)
    assert (result.folder / "model.tflite").stat().st_size < 8e6


@pytest.mark.parametrize("form", ["saved_model", "tflite"])
@pytest.mark.parametrize("recipe", UNTRAINED)
def test_other_detectors_equal_their_checkpoint(recipe, form, tmp_path):
    model = untrained(recipe, UNTRAINED[recipe])
    result = export_model(model, tmp_path / "out", ExportSettings(format=form), photographs(3))
    assert result.verification.detections > 100
