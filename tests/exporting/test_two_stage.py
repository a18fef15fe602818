"""Detectors of two stages in every format: both suppressions and the crops are part of it."""

import dataclasses

import cv2
import numpy as np
import pytest

from stillbox.checkpoints.trained import TrainedModel
from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.exporting.backend import ExportBackend, find_loader
from stillbox.exporting.export import export_model
from stillbox.exporting.settings import ExportSettings
from stillbox.exporting.tflite.metadata import operators
from stillbox.exporting.verification import verify
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from stillbox.predicting.checkpoint_backend import CheckpointBackend
from stillbox.records.label_map import LabelMap
from tests.exporting.programs import expected
from tests.models.two_stage.small import small_words

# One worker imports TensorFlow.
pytestmark = pytest.mark.xdist_group("tensorflow")

MASKED = (
    "model.resizer={kind: keep_aspect_ratio, min_dimension: 48, max_dimension: 64}",
    "model.mask_padding=true",
    "model.proposals.max_proposals=8",
    "model.boxes.postprocessing.nms={max_per_class: 3, max_total: 5}",
)


def drawn(*overrides):
    """The small detector with kernels that make its results depend on the image."""
    experiment = resolve("demo_scenes", changes_of(small_words(*overrides))).experiment
    _, params, stats = split_detector(build_detector(experiment.model))
    rng = np.random.default_rng(0)

    def kernel(path, shape):
        inputs = shape[:2] if "depthwise" in path else shape[:-1]
        return rng.normal(0, np.sqrt(2 / np.prod(inputs)), shape).astype(np.float32)

    params = {
        path: kernel(path, array.shape) if array.ndim > 1 else np.asarray(array)
        for path, array in params.items()
    }
    names = "".join(f'item {{ id: {class_id} name: "n{class_id}" }}' for class_id in range(1, 7))
    return TrainedModel(experiment, LabelMap.from_text(names), params, stats, "drawn")


@pytest.fixture(scope="module")
def pictures():
    """Two pictures of coloured squares, 36 x 48 and 48 x 40."""
    rng = np.random.default_rng(1)
    sizes = ((9, 12), (12, 10))
    return [
        cv2.resize(rng.integers(0, 255, (*size, 3), np.uint8), None, fx=4, fy=4) for size in sizes
    ]


def test_onnx_has_all_outputs_for_any_number_of_images(pictures, tmp_path):
    pytest.importorskip("onnxruntime")
    model = drawn(*MASKED)
    settings = ExportSettings(format="onnx", batch_size=0)
    result = export_model(model, tmp_path / "out", settings, pictures)
    assert result.verification.detections == 10
    # Nothing ends before the first suppression.
    assert not (result.folder / "model_raw.onnx").exists()
    pair = np.stack([pictures[0], pictures[0][:, ::-1]])
    got = find_loader("onnx")(result.folder, result.manifest)(pair)
    wanted = expected(model, settings, pair)
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(got[name], array, atol=1e-5, err_msg=name)
    # As in the original: one box for each proposal, of its best class, inside the image.
    assert got["raw_detection_boxes"].shape == (2, 8, 4)
    assert got["raw_detection_boxes"].min() >= 0
    assert got["raw_detection_boxes"].max() <= 1
    assert got["raw_detection_scores"].shape == (2, 8, 7)


def test_tflite_has_built_in_operations_alone(pictures, tmp_path):
    pytest.importorskip("litert_converter")
    model = drawn(*MASKED[2:])
    result = export_model(model, tmp_path / "out", ExportSettings(format="tflite"), pictures)
    assert result.verification.detections == 10
    assert result.verification.max_score_difference < 1e-5
    names = operators((result.folder / "model.tflite").read_bytes())
    assert not {name for name in names if name in ("CUSTOM", "WHILE") or "STABLEHLO" in name}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["stablehlo", "saved_model", "onnx", "tflite"])
@pytest.mark.parametrize(
    "overrides",
    [
        ["model.boxes.share_boxes=true", "model.boxes.crop={kind: roi_align, size: 3}"],
        ["model.boxes=null"],
        MASKED,
    ],
    ids=["shared", "proposals", "masked"],
)
def test_other_detectors_equal_their_checkpoint(form, overrides, pictures, tmp_path):
    if form == "saved_model":
        pytest.importorskip("tensorflow")
    fixed = (48, 64) if form == "tflite" else None
    model = drawn(*overrides)
    settings = ExportSettings(format=form, image_size=fixed, max_detections=4, platforms=("cpu",))
    result = export_model(model, tmp_path / "out", settings, pictures)
    assert result.verification.detections == 8
    if form == "onnx":
        artefact = ExportBackend(result.folder, "openvino")
        experiment = model.experiment
        limited = dataclasses.replace(experiment, model=experiment.model.with_max_detections(4))
        checkpoint = CheckpointBackend(dataclasses.replace(model, experiment=limited))
        assert verify(artefact, checkpoint, pictures).detections >= 8


FRAMED = schema.KeepAspectRatioResizer(min_dimension=600, max_dimension=1024)


def test_a_resizer_to_many_sizes_takes_images_of_any_size():
    # A square of 1024 would become one of 600, and the canvas does not show the size of the image.
    assert ExportSettings(format="stablehlo").with_sizes(FRAMED).any_size
    padded = dataclasses.replace(FRAMED, min_dimension=1024)
    fixed = ExportSettings(format="stablehlo").with_sizes(padded)
    assert (fixed.any_size, fixed.image_size) == (False, (1024, 1024))


@pytest.mark.parametrize(
    ("settings", "message", "fix"),
    [
        ({"format": "tflite"}, "images of one size, and this resizer makes many", "600,800"),
        ({"input_type": "raw_image_tensor"}, "size of the image .* unknown", "float_image_tensor"),
    ],
)
def test_formats_with_one_size_refuse_it(settings, message, fix):
    with pytest.raises(UserError, match=message) as caught:
        ExportSettings(**settings).with_sizes(FRAMED)
    assert fix in caught.value.fix
