"""Artefacts of every format, of detectors of full size, on photographs, in their runtimes."""

import dataclasses
from importlib.util import find_spec

import jax
import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import stillbox
from stillbox.api import load_model
from stillbox.checkpoints.trained import TrainedModel
from stillbox.cli.overrides import changes_of
from stillbox.experiment.resolve import changed, resolve
from stillbox.exporting.backend import ExportBackend
from stillbox.exporting.export import export_model
from stillbox.exporting.settings import ExportSettings
from stillbox.exporting.verification import verify
from stillbox.models.build import build_detector
from stillbox.models.layers.quantization import set_training_step
from stillbox.models.variables import bind_detector, read_statistics, split_detector
from stillbox.predicting.checkpoint_backend import CheckpointBackend
from stillbox.predicting.images import read_image
from stillbox.predicting.predictor import Predictor
from tests.exporting.programs import RUNTIMES
from tests.small import EVERY_DETECTION, SHARED, needs_shared

# Found and not imported: imports here would stay in the process of every other test.
ABSENT = [
    package
    for package in ("ai_edge_litert", "ai_edge_quantizer", "onnx", "onnxruntime", "openvino")
    if find_spec(package) is None
]

pytestmark = [
    pytest.mark.proof,
    pytest.mark.slow,
    needs_shared,
    pytest.mark.skipif(bool(ABSENT), reason=f"not installed: {', '.join(ABSENT)}"),
]

PHOTOGRAPHS = SHARED / "data/tiny_coco"
CALIBRATED_ON = sorted((PHOTOGRAPHS / "train2017").glob("*.jpg"))
# As in tests/proofs/test_published.py.
SSD = {
    "config": "ssd_mobilenet_v1_300x300",
    "weights": str(SHARED / "weights/ssd_mobilenet_v1_0.75_coco_folded.npz"),
    "overrides": [
        "data.evaluation.label_map=coco",
        "model.backbone.depth_multiplier=0.75",
        "model.neck.depth_multiplier=0.75",
        "model.anchors.aspect_ratios=[1, 2, 0.5, 3, 0.33333]",
        "model.resizer.method=bilinear_antialias",
    ],
}
UNTRAINED = {
    "ssd_resnet34": ["model.postprocessing.nms.score_threshold=0.013"],
    "retinanet": [
        "model.backbone.depth=18",
        "model.resizer.height=256",
        "model.resizer.width=256",
        # Larger than at the beginning of a training: equal scores have no order.
        "model.head.predictor_initializer.stddev=0.05",
        "model.postprocessing.nms.score_threshold=0.01",
    ],
}

PREDICTIONS = ("proposals.box", "proposals.class", "box_predictor")


def saved_model(*values):
    """Parameters of a SavedModel, which only TensorFlow loads."""
    absent = find_spec("tensorflow") is None
    mark = pytest.mark.skipif(absent, reason="not installed: tensorflow")
    return pytest.param("saved_model", *values, marks=mark)


def photographs(count):
    files = sorted((PHOTOGRAPHS / "val2017").iterdir())[:count]
    return [read_image(file)[0] for file in files]


@pytest.fixture(scope="module")
def ssd():
    """The COCO SSD."""
    return load_model(SSD["config"], weights=SSD["weights"], overrides=changes_of(SSD["overrides"]))


@pytest.fixture(scope="module")
def onnx_ssd(ssd, tmp_path_factory):
    """The COCO SSD as ONNX."""
    folder = tmp_path_factory.mktemp("onnx") / "ssd"
    return export_model(ssd, folder, ExportSettings(format="onnx"), photographs(4))


def untrained(recipe, overrides):
    """A detector with the weights at the beginning of a training."""
    experiment = resolve(recipe, changes_of(overrides)).experiment
    _, params, stats = split_detector(build_detector(experiment.model))
    return TrainedModel(experiment, None, params, stats, "untrained").named_by_config()


def average_precision(predictor):
    """AP and AP50 by COCO's own code."""
    truth = COCO(str(PHOTOGRAPHS / "annotations/instances_val2017.json"))
    results = []
    for image in truth.dataset["images"]:
        detections = predictor.predict(
            PHOTOGRAPHS / "val2017" / image["file_name"], **EVERY_DETECTION
        )
        results += [{**entry, "image_id": image["id"]} for entry in detections.to_coco(image["id"])]
    scores = COCOeval(truth, truth.loadRes(results), "bbox")
    scores.evaluate()
    scores.accumulate()
    scores.summarize()
    return scores.stats[:2]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_published_weights_keep_their_ap_as_onnx(onnx_ssd, runtime):
    ap, ap50 = average_precision(stillbox.load(onnx_ssd.folder, runtime=runtime))
    assert ap == pytest.approx(0.222, abs=0.003)
    assert ap50 == pytest.approx(0.384, abs=0.003)


@pytest.mark.parametrize(
    "form, settings",
    [
        ("stablehlo", {}),
        saved_model({}),
        saved_model({"input_type": "encoded_image_string_tensor", "signature": "tpu"}),
        ("tflite", {}),
    ],
    ids=["stablehlo", "pixels", "files", "tflite"],
)
def test_published_weights_keep_their_ap(ssd, form, settings, tmp_path):
    settings = ExportSettings(format=form, **settings)
    result = export_model(ssd, tmp_path / "out", settings, photographs(4))
    assert result.verification.detections >= 400  # 100 in each of the four photographs
    ap, ap50 = average_precision(stillbox.load(result.folder))
    assert ap == pytest.approx(0.222, abs=0.003)
    assert ap50 == pytest.approx(0.384, abs=0.003)


@pytest.mark.parametrize(
    ("quantize", "options"),
    [
        ("int8", {}),
        ("none", {"postprocess": "detection_op"}),
        ("int8", {"postprocess": "detection_op"}),
    ],
)
def test_tflite_keeps_the_ap_within_a_hundredth(ssd, quantize, options, tmp_path):
    images = [read_image(file)[0] for file in CALIBRATED_ON]
    settings = ExportSettings(format="tflite", quantize=quantize, **options)
    result = export_model(ssd, tmp_path / "out", settings, images)
    ap, ap50 = average_precision(stillbox.load(result.folder))
    assert ap == pytest.approx(0.222, abs=0.01)
    assert ap50 == pytest.approx(0.384, abs=0.01)
    if quantize == "int8":
        assert (result.folder / "model.tflite").stat().st_size < 8e6


def measured(model, files):
    """The model as after training for integers at a rate of 0: with ranges measured on images."""
    changes = {"train.quantization": {"delay": 0}, "model.freeze_batch_norm": True}
    experiment = changed(model.experiment, changes)
    quantization = experiment.train.quantization
    graph, _, fresh = split_detector(build_detector(experiment.model, quantization=quantization))

    @jax.jit
    def measure(params, stats, images, step):
        detector = bind_detector(graph, params, stats)
        set_training_step(detector, step)
        detector(images, train=True)
        return read_statistics(detector)

    backend, stats = CheckpointBackend(model), fresh | model.stats
    for step, file in enumerate(files):
        pixels = backend.prepare(read_image(file)[0]).pixels
        stats = measure(model.params, stats, pixels[None], np.int32(step))
    return dataclasses.replace(model, experiment=experiment, stats=stats)


def test_simulated_integers_and_real_ones_keep_the_ap(ssd, tmp_path):
    model = measured(ssd, CALIBRATED_ON)
    ap, ap50 = average_precision(Predictor(CheckpointBackend(model)))
    assert ap == pytest.approx(0.222, abs=0.01)
    settings = ExportSettings(format="tflite", quantize="int8")
    result = export_model(model, tmp_path / "out", settings, [])
    integers, integers50 = average_precision(stillbox.load(result.folder))
    print(f"AP {ap:.4f} and {integers:.4f}, AP50 {ap50:.4f} and {integers50:.4f}")
    assert integers == pytest.approx(ap, abs=0.01)
    assert integers50 == pytest.approx(ap50, abs=0.01)


@pytest.fixture(scope="module")
def two_stages():
    """Faster R-CNN on small images, with kernels that make results depend on the image."""
    model = untrained(
        "faster_rcnn_inception_v2_coco",
        [
            "data.evaluation.label_map=coco",
            "model.resizer.min_dimension=192",
            "model.resizer.max_dimension=256",
            "model.proposals.anchors.base_height=64",
            "model.proposals.anchors.base_width=64",
        ],
    )
    rng = np.random.default_rng(0)

    def drawn(path, array):
        if array.ndim < 2:
            return array
        inputs = array.shape[:2] if "depthwise" in path else array.shape[:-1]
        gain = 0.5 if path.startswith(PREDICTIONS) else 2.0
        return rng.normal(0, np.sqrt(gain / np.prod(inputs)), array.shape).astype(np.float32)

    params = {path: drawn(path, np.asarray(array)) for path, array in model.params.items()}
    return dataclasses.replace(model, params=params)


@pytest.mark.parametrize("form", ["onnx", saved_model(), "stablehlo"])
def test_a_detector_of_two_stages_equals_its_checkpoint(two_stages, form, tmp_path):
    result = export_model(two_stages, tmp_path / "out", ExportSettings(format=form), photographs(3))
    assert result.verification.detections > 600  # 300 in each of the three photographs


@pytest.mark.parametrize("form", ["onnx", saved_model(), "tflite", "stablehlo"])
@pytest.mark.parametrize("recipe", UNTRAINED)
def test_other_detectors_equal_their_checkpoint(recipe, form, tmp_path):
    model, images = untrained(recipe, UNTRAINED[recipe]), photographs(3)
    result = export_model(model, tmp_path / "out", ExportSettings(format=form), images)
    assert result.verification.detections > 100
    if form == "onnx":
        artefact = ExportBackend(result.folder, "openvino")
        assert verify(artefact, CheckpointBackend(model), images).detections > 100
