"""TensorFlow Lite: built-in operations, the outputs and metadata that MediaPipe asks for."""

import dataclasses
import zipfile
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest

from stillbox.checkpoints.importer import ImportOptions, read_weights
from stillbox.errors import UserError
from stillbox.experiment.resolve import changed
from stillbox.exporting.backend import ExportBackend
from stillbox.exporting.export import export_model
from stillbox.exporting.settings import ExportSettings
from stillbox.exporting.tflite.format import FILE, class_labels, load
from stillbox.exporting.tflite.metadata import LABELS, OUTPUTS, label_ids, operators
from stillbox.models.build import abstract_detector
from stillbox.models.variables import bind_detector
from stillbox.records.label_map import LabelMap
from stillbox.references import Parameter
from tests.exporting.programs import assert_verified
from tests.helpers import refused
from tests.small import EVERY_DETECTION

pytest.importorskip("litert_converter")
interpreter = pytest.importorskip("ai_edge_litert.interpreter")

# One worker imports the converter and makes what these tests share.
pytestmark = pytest.mark.xdist_group("tflite")

MOST = 5


def exported(model, images, folder, **settings):
    settings = ExportSettings(format="tflite", max_detections=MOST, **settings)
    return export_model(model, folder, settings, images)


@pytest.fixture(scope="module")
def export(model, images, tmp_path_factory):
    """A model of bytes of the network input's size."""
    return exported(model, images, tmp_path_factory.mktemp("export") / "tflite")


def test_the_artefact_equals_its_checkpoint(export, images):
    assert_verified(export, images, boxes=1e-2)


def test_outputs_have_names_order_and_shapes_of_the_postprocessing_operation(export):
    runtime = interpreter.Interpreter(str(export.folder / FILE))
    (image,) = runtime.get_input_details()
    assert (image["name"], image["shape"].tolist()) == ("input_tensor", [1, 64, 64, 3])
    assert image["dtype"] == np.uint8
    outputs = runtime.get_output_details()
    assert tuple(output["name"] for output in outputs) == OUTPUTS
    shapes = [output["shape"].tolist() for output in outputs]
    assert shapes == [[1, MOST, 4], [1, MOST], [1, MOST], [1]]
    assert {output["dtype"] for output in outputs} == {np.float32}


def test_all_operations_are_built_in(export):
    names = operators((export.folder / FILE).read_bytes())
    assert {"CONV_2D", "DEPTHWISE_CONV_2D", "GATHER_ND"} <= names
    assert not {name for name in names if name in ("CUSTOM", "WHILE") or "STABLEHLO" in name}


def test_weights_are_there_once(export, model):
    arrays = [*model.params.values(), *model.stats.values()]
    weights = 4 * sum(array.size for array in arrays)
    # The graph itself is as large as the weights of so small a model.
    assert (export.folder / FILE).stat().st_size < weights + 300_000


def raw_outputs(model, params, stats):
    """The outputs of a model with these weights for noise, before suppression."""
    graph, *_ = abstract_detector(model.experiment.model, "float32")
    noise = np.random.default_rng(0).uniform(0, 255, (1, 64, 64, 3)).astype(np.float32)
    return bind_detector(graph, params, stats)(noise, train=False)


def read_back(model, folder):
    """The parameters and moving statistics in an artefact."""
    report, arrays = read_weights(
        model.params | model.stats, model.experiment.model, folder, ImportOptions()
    )
    assert len(arrays) == len(model.params) + len(model.stats)
    assert not report.skipped
    return [{path: arrays[path] for path in variables} for variables in (model.params, model.stats)]


def test_weights_of_the_artefact_are_the_models(export, model):
    ours_all = raw_outputs(model, *read_back(model, export.folder))
    wanted = raw_outputs(model, model.params, model.stats)
    for ours, theirs in zip(ours_all, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


def test_labels_follow_class_indices(export, model):
    names, ids = model.class_names(), model.slots().ids
    with zipfile.ZipFile(export.folder / FILE) as archive:
        labels = archive.read(LABELS).decode().splitlines()
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
    assert labels == [names[class_id] for class_id in ids]
    assert tuple(label_ids((export.folder / FILE).read_bytes(), FILE)) == ids


def test_the_file_names_the_model_without_folders_of_this_machine(export, model):
    content = (export.folder / FILE).read_bytes()
    assert f"/{model.name}" in model.source
    assert model.name.encode() in content
    assert model.source.encode() not in content


def test_outputs_can_have_other_names(model, images, tmp_path):
    """TFLite Model Maker gives these names, and its clients call the signature."""
    names = ("output_3", "output_2", "output_1", "output_0")
    result = exported(model, images, tmp_path / "out", output_names=names, input_name="images")
    runtime = interpreter.Interpreter(str(result.folder / FILE))
    outputs = runtime.get_signature_runner()(images=cv2.resize(images[0], (64, 64))[None])
    shapes = {name: array.shape for name, array in outputs.items()}
    assert shapes == dict(zip(names, [(1, MOST, 4), (1, MOST), (1, MOST), (1,)], strict=True))
    again = ExportBackend(result.folder)
    assert again.manifest.settings.output_names == names
    assert len(again.run([again.prepare(images[0])])[0].scores) == MOST


@pytest.mark.parametrize("names", [("boxes",), ("a", "a", "b", "c")])
def test_wrong_output_names_are_refused(names):
    with refused("output_names"):
        ExportSettings(format="tflite", output_names=names).checked()


def kernel_types(folder):
    runtime = interpreter.Interpreter(str(folder / FILE))
    types = {
        tensor["index"]: np.dtype(tensor["dtype"]).name for tensor in runtime.get_tensor_details()
    }
    operations = runtime._get_ops_details()
    casts = {operation["outputs"][0]: types[operation["inputs"][0]] for operation in operations}
    return {
        casts.get(operation["inputs"][1], types[operation["inputs"][1]])
        for operation in operations
        if operation["op_name"] in ("CONV_2D", "DEPTHWISE_CONV_2D")
    }


@pytest.mark.parametrize(("quantize", "kernels"), [("float16", "float16"), ("dynamic", "int8")])
@pytest.mark.parametrize("postprocess", ["built_in", "detection_op"])
def test_smaller_kernels(model, export, images, tmp_path, quantize, kernels, postprocess):
    settings = {"quantize": quantize, "postprocess": postprocess}
    result = exported(model, [], tmp_path / "out", **settings)
    assert kernel_types(result.folder) == {kernels}
    plain, small = ExportBackend(export.folder), ExportBackend(result.folder)
    for image in images:
        (float_kernels,), (other,) = (
            backend.run([backend.prepare(image)]) for backend in (plain, small)
        )
        np.testing.assert_allclose(other.scores, float_kernels.scores, atol=2e-2)
    assert "CUSTOM" in operators((result.folder / FILE).read_bytes()) or postprocess == "built_in"


def test_unused_ids_have_a_line_too(model):
    items = "".join(f'item {{ id: {class_id} name: "n{class_id}" }}' for class_id in (1, 3))
    items = items.replace("n3", "n3\\nforged")
    sparse = dataclasses.replace(model, label_map=LabelMap.from_text(items))
    unused = ["???"] * (model.experiment.model.num_classes - 3)
    assert class_labels(sparse) == ["n1", "???", "n3 forged", *unused]


def test_classes_of_a_run_are_label_map_ids(export, images):
    run = load(export.folder, export.manifest)
    outputs = run(cv2.resize(images[0], (64, 64))[None])
    assert tuple(outputs) == OUTPUTS
    count = int(outputs["num_detections"][0])
    assert count == MOST
    assert outputs["detection_classes"].min() >= 1
    assert outputs["detection_boxes"].min() >= 0
    assert outputs["detection_boxes"].max() <= 1


def test_threads_get_the_detections_of_their_own_images(export, images):
    run, backend = load(export.folder, export.manifest), ExportBackend(export.folder)
    batches = [np.stack([backend.resized_by_client(image)]) for image in images[:2]]
    wanted = [run(batch)["detection_boxes"] for batch in batches]
    assert not np.array_equal(*wanted)

    def changed(number):
        return sum(
            not np.array_equal(run(batches[number])["detection_boxes"], wanted[number])
            for _ in range(50)
        )

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(changed, (0, 1))) == [0, 0]


@pytest.mark.proof
def test_mediapipes_detector_accepts_it(export, checkpoint, images):
    mediapipe = pytest.importorskip("mediapipe")
    tasks = mediapipe.tasks
    options = tasks.vision.ObjectDetectorOptions(
        tasks.BaseOptions(model_asset_path=str(export.folder / FILE)), max_results=MOST
    )
    image = cv2.resize(images[0], (64, 64))
    with tasks.vision.ObjectDetector.create_from_options(options) as detector:
        picture = mediapipe.Image(mediapipe.ImageFormat.SRGB, image)
        detections = detector.detect(picture).detections
    wanted = list(checkpoint.predict(image, **EVERY_DETECTION))[:MOST]
    assert len(detections) == MOST
    for detection, other in zip(detections, wanted, strict=True):
        (category,) = detection.categories
        assert category.category_name == other.name
        assert category.score == pytest.approx(other.score, abs=1e-5)
        box = detection.bounding_box
        ymin, xmin, ymax, xmax = other.box
        # MediaPipe truncates coordinates.
        got = [box.origin_y, box.origin_x, box.height, box.width]
        np.testing.assert_allclose(got, [ymin, xmin, ymax - ymin, xmax - xmin], atol=1.01)


@pytest.mark.parametrize(
    "settings",
    [
        {"input_type": "float_image_tensor", "input_name": "pixels"},
        {"input_type": "raw_image_tensor"},
        {"image_size": (48, 80)},
        {"input_type": "float_image_tensor", "image_size": (100, 70)},
    ],
)
def test_other_inputs_equal_the_checkpoint(model, images, tmp_path, settings):
    result = exported(model, images, tmp_path / "out", **settings)
    assert result.verification.detections > 5
    runtime = interpreter.Interpreter(str(result.folder / FILE))
    (image,) = runtime.get_input_details()
    size = settings.get("image_size", (64, 64))
    assert image["shape"].tolist() == [1, *size, 3]
    assert image["name"] == settings.get("input_name", "input_tensor")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"signature": "tpu"}, "the outputs that MediaPipe expects"),
        ({"batch_size": 4}, "one image at a time"),
        ({"batch_size": 0}, "one image at a time"),
    ],
)
def test_unsupported_settings_are_refused(model, images, tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        exported(model, images, tmp_path / "out", **settings)


def resized_by(model, method):
    experiment = model.experiment
    resizer = dataclasses.replace(experiment.model.resizer, method=method)
    detector = dataclasses.replace(experiment.model, resizer=resizer)
    return dataclasses.replace(model, experiment=dataclasses.replace(experiment, model=detector))


def test_resizing_like_pillow_needs_no_loops_either(model, images, tmp_path):
    resized = resized_by(model, "bilinear_antialias")
    result = exported(resized, images, tmp_path / "out", image_size=(150, 100))
    assert result.verification.max_score_difference < 1e-5
    names = operators((result.folder / FILE).read_bytes())
    assert "RIGHT_SHIFT" in names
    assert "WHILE" not in names


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bicubic", "area", "nearest"])
def test_other_methods_of_resizing_are_sums_too(method, model, images, tmp_path):
    result = exported(resized_by(model, method), images, tmp_path / "out", image_size=(48, 80))
    assert result.verification.max_score_difference < 1e-4


def test_a_damaged_file_is_named(export, tmp_path):
    content = (export.folder / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(b"\0" * 100 + content[100:])
    with refused("model.tflite", "LiteRT"):
        load(tmp_path, export.manifest)


def test_integers_are_close_to_the_float_model(export, model, images, tmp_path):
    pytest.importorskip("ai_edge_quantizer")
    result = exported(model, images, tmp_path / "out", quantize="int8")
    runtime = interpreter.Interpreter(str(result.folder / FILE))
    kinds = [
        tensor["dtype"] for tensor in runtime.get_tensor_details() if len(tensor["shape"]) == 4
    ]
    assert kinds.count(np.int8) > 10
    run = load(result.folder, result.manifest)
    image = cv2.resize(images[0], (64, 64))[None]
    scores = run(image)["detection_scores"]
    expected = load(export.folder, export.manifest)(image)["detection_scores"]
    np.testing.assert_allclose(scores, expected, atol=0.1)
    read_back(model, result.folder)


def test_integers_need_images(model, tmp_path):
    pytest.importorskip("ai_edge_quantizer")
    with refused(Parameter("quantize"), "int8"):
        exported(model, [], tmp_path / "out", quantize="int8")


def test_integers_of_training_have_its_ranges_and_need_no_images(model, tmp_path):
    pytest.importorskip("ai_edge_quantizer")
    experiment = changed(model.experiment, {"train.quantization": {"delay": 0}})
    _, _, stats = abstract_detector(experiment.model, "float32", experiment.train.quantization)
    ranges = {path: np.float32(path.endswith("max") * 5.1) for path in stats if "quant" in path}
    trained = dataclasses.replace(model, experiment=experiment, stats={**model.stats, **ranges})
    result = exported(trained, [], tmp_path / "out", quantize="int8")
    runtime = interpreter.Interpreter(str(result.folder / FILE))
    results = [
        tensor["quantization"]
        for tensor in runtime.get_tensor_details()
        if tensor["dtype"] == np.int8 and len(tensor["shape"]) == 4 and tensor["quantization"][0]
    ]
    # 256 levels from 0 to 5.1, of the results of 5 convolutions and 4 of the heads; and pixels.
    assert sum(quantization == (pytest.approx(0.02), -128) for quantization in results) == 9
    assert len(results) == 10


def test_integers_have_eight_bits(model, tmp_path):
    bits = {"delay": 0, "activation_bits": 4}
    experiment = changed(model.experiment, {"train.quantization": bits})
    with refused("train.quantization.activation_bits", 4, "int8", 8):
        trained = dataclasses.replace(model, experiment=experiment)
        exported(trained, [], tmp_path / "out", quantize="int8")
