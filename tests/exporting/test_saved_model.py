"""SavedModel by TensorFlow's own loader; resizing and decoding are the same as in training."""

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

import stillbox
from stillbox.checkpoints.tf2 import OBJECT_GRAPH, VARIABLE
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.exporting.export import export_model
from stillbox.exporting.saved_model.format import FOLDER, load, model_folder
from stillbox.exporting.saved_model.graph import Graph
from stillbox.exporting.saved_model.messages import DType
from stillbox.exporting.saved_model.pixels import add_preprocessing, decode_image
from stillbox.exporting.settings import ExportSettings
from stillbox.inputs import decode
from stillbox.inputs.resize import resize_image
from stillbox.records.wire import serialize_features
from tests.exporting.programs import OUTPUTS, assert_verified
from tests.small import EVERY_DETECTION

tf = pytest.importorskip("tensorflow")
saved_model_pb2 = pytest.importorskip("tensorflow.core.protobuf.saved_model_pb2")

# One worker imports TensorFlow and makes what these tests share.
pytestmark = [pytest.mark.proof, pytest.mark.xdist_group("tensorflow")]

TYPES = {
    "detection_api": dict.fromkeys(OUTPUTS["detection_api"], tf.float32),
    "tpu": dict.fromkeys(OUTPUTS["tpu"], tf.float32)
    | {"num_detections": tf.int32, "detection_classes": tf.int32},
}


def exported(model, images, folder, **settings):
    settings = ExportSettings(format="saved_model", **settings)
    return export_model(model, folder, settings, images)


@pytest.fixture(scope="module")
def free(model, images, tmp_path_factory):
    """Pixels of any size in, with the outputs of the Object Detection API."""
    return exported(model, images, tmp_path_factory.mktemp("export") / "free")


@pytest.fixture(scope="module")
def encoded(model, images, tmp_path_factory):
    """Any number of image files in, with the outputs of the TPU page."""
    folder = tmp_path_factory.mktemp("export") / "encoded"
    settings = {"input_type": "encoded_image_string_tensor", "batch_size": 0, "signature": "tpu"}
    return exported(model, images, folder, **settings)


@pytest.fixture(scope="module")
def examples(model, images, tmp_path_factory):
    """Two serialised tf.Examples in."""
    folder = tmp_path_factory.mktemp("export") / "examples"
    settings = {"input_type": "tf_example", "batch_size": 2, "max_detections": 7}
    return exported(model, images, folder, platforms=("cpu",), **settings)


def messages_of(export):
    """The content of the file by TensorFlow's own reader."""
    folder = model_folder(export.folder, export.manifest.settings)
    return saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())


def signature(export):
    folder = model_folder(export.folder, export.manifest.settings)
    loaded = tf.saved_model.load(str(folder))
    return loaded, loaded.signatures["serving_default"]


def test_the_artefact_equals_its_checkpoint(free, encoded, images):
    for export in (free, encoded):
        assert_verified(export, images)


def test_names_types_and_shapes_of_the_object_detection_api(free):
    _, serving = signature(free)
    _, inputs = serving.structured_input_signature
    assert inputs == {"input_tensor": tf.TensorSpec((1, None, None, 3), tf.uint8, "input_tensor")}
    outputs = serving.structured_outputs
    assert {name: spec.dtype for name, spec in outputs.items()} == TYPES["detection_api"]
    assert outputs["detection_boxes"].shape[2] == 4
    assert outputs["num_detections"].shape == (1,)


def test_the_loaded_model_is_a_function(free, encoded, images):
    files = [cv2.imencode(".png", images[0])[1].tobytes()]
    for export, given in ((free, images[0][None]), (encoded, files)):
        loaded, serving = signature(export)
        tensor = tf.convert_to_tensor(given)
        (name,) = serving.structured_input_signature[1]
        expected, arrays = serving(**{name: tensor}), loaded(tensor)
        assert arrays.keys() == expected.keys()
        for key, array in expected.items():
            np.testing.assert_array_equal(arrays[key], array)


def test_names_and_types_of_the_tpu_page(encoded):
    _, serving = signature(encoded)
    _, inputs = serving.structured_input_signature
    assert inputs == {"input": tf.TensorSpec((None,), tf.string, "input")}
    types = {name: spec.dtype for name, spec in serving.structured_outputs.items()}
    assert types == TYPES["tpu"]


def test_a_frozen_graph_has_the_tensors_of_the_tpu_page(encoded):
    graph = messages_of(encoded).meta_graphs[0].graph_def
    names = {"NumDetections", "DetectionBoxes", "DetectionClasses", "DetectionScores", "ImageInfo"}
    assert names <= {node.name for node in graph.node}


def test_files_of_different_sizes_make_one_batch(encoded, checkpoint, images):
    _, serving = signature(encoded)
    files = [cv2.imencode(".png", image[..., ::-1])[1].tobytes() for image in images[:2]]
    outputs = serving(input=tf.constant(files))
    assert images[0].shape != images[1].shape
    for row, image in enumerate(images[:2]):
        wanted = checkpoint.predict(image, **EVERY_DETECTION)
        np.testing.assert_allclose(outputs["detection_scores"][row], wanted.scores, atol=1e-5)
        height, width = image.shape[:2]
        expected = [[height, width], [64, 64], [64 / height, 64 / width], [0, 0]]
        np.testing.assert_allclose(outputs["image_info"][row], expected, rtol=1e-6)
        scale = np.array([height, width, height, width]) / 64
        np.testing.assert_allclose(outputs["detection_boxes"][row] * scale, wanted.boxes, atol=1e-2)


@pytest.mark.parametrize(
    "settings",
    [
        {"input_type": "float_image_tensor", "image_size": (48, 80), "input_name": "pixels"},
        {"input_type": "raw_image_tensor", "signature": "tpu", "float_count": True},
    ],
)
def test_other_inputs_equal_the_checkpoint(model, images, tmp_path, settings):
    result = exported(model, images, tmp_path / "out", platforms=("cpu",), **settings)
    assert result.verification.detections > 10
    _, serving = signature(result)
    outputs = serving.structured_outputs
    if "input_name" in settings:
        assert serving.structured_input_signature[1]["pixels"].shape == (1, 48, 80, 3)
    if "float_count" in settings:
        assert outputs["num_detections"].dtype == tf.float32


def test_examples_equal_the_checkpoint(examples):
    assert examples.verification.detections > 10
    _, serving = signature(examples)
    assert serving.structured_outputs["detection_scores"].shape == (2, 7)


@pytest.mark.slow
def test_tensorflows_own_command_runs_it(free, images, tmp_path):
    np.save(tmp_path / "image.npy", images[0][None])
    tool = str(Path(sys.executable).with_name("saved_model_cli"))
    folder = ["--dir", str(free.folder / FOLDER), "--tag_set", "serve"]
    named = ["--signature_def", "serving_default"]
    inputs = ["--inputs", f"input_tensor={tmp_path / 'image.npy'}", "--outdir", str(tmp_path)]
    subprocess.run([tool, "run", *folder, *named, *inputs], check=True, capture_output=True)
    run = load(free.folder, free.manifest)
    expected = run(images[0][None])["detection_scores"]
    np.testing.assert_allclose(np.load(tmp_path / "detection_scores.npy"), expected, atol=1e-6)


def test_weights_are_variables_outside_the_graph(free, model):
    reader = tf.train.load_checkpoint(str(free.folder / FOLDER / "variables/variables"))
    keys = reader.get_variable_to_shape_map().keys() - {OBJECT_GRAPH}
    held = {key.removesuffix(VARIABLE): reader.get_tensor(key) for key in keys}
    weights = model.params | model.stats
    assert held.keys() == weights.keys()
    for path, array in weights.items():
        np.testing.assert_array_equal(held[path], array)
    assert (free.folder / FOLDER / "variables/variables.index").is_file()


def test_weights_are_read_from_it_again(free, model):
    again = stillbox.api.load_model(model.experiment, weights=str(free.folder / FOLDER))
    for path, array in (model.params | model.stats).items():
        np.testing.assert_array_equal((again.params | again.stats)[path], array)


def test_a_session_of_tensorflow_1_runs_and_saves_it(free, images, tmp_path):
    expected = load(free.folder, free.manifest)(images[0][None])
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(free.folder / FOLDER))
        serving = meta.signature_def["serving_default"]
        names = {name: info.name for name, info in serving.outputs.items()}
        arrays = session.run(names, {serving.inputs["input_tensor"].name: images[0][None]})
        saver = tf.compat.v1.train.Saver(saver_def=meta.saver_def)
        saver.save(session, str(tmp_path / "again"), write_meta_graph=False)
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array)
    files = free.folder / FOLDER / "variables/variables", tmp_path / "again"
    kept, saved = (
        tf.train.load_checkpoint(str(file)).get_variable_to_shape_map() for file in files
    )
    assert kept.pop(OBJECT_GRAPH) == []
    assert kept == saved


def test_the_manifest_names_the_least_tensorflow(free):
    assert free.manifest.needs == {"tensorflow": ">=2.20"}
    assert free.manifest.known_bad == ("tensorflow<2.20",)


def test_an_example_without_an_image_is_refused_by_tensorflow(examples):
    run = load(examples.folder, examples.manifest)
    with pytest.raises(tf.errors.InvalidArgumentError, match="image/encoded"):
        run(np.array([serialize_features({"image/key": [b"a"]})] * 2, object))


def test_an_unknown_platform_is_refused(model, images, tmp_path):
    with pytest.raises(UserError, match="no platform 'abacus'"):
        exported(model, images, tmp_path / "out", platforms=("abacus",))
    assert not (tmp_path / "out").exists()


def test_a_damaged_model_is_named(free, tmp_path):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "saved_model.pb").write_bytes(b"nothing")
    with pytest.raises(UserError, match="refuses the model") as caught:
        load(tmp_path, free.manifest)
    assert "tensorflow>=2.20" in caught.value.fix


def run_nodes(dtype, shape, build):
    """A function of TensorFlow of the nodes that `build` makes of a placeholder."""
    graph = Graph()
    value = graph.node("Placeholder", [], [dtype], name="value", dtype=dtype, shape=shape)[0]
    names = [node.name for node in build(value)]
    proto = tf.compat.v1.GraphDef.FromString(graph.message())
    wrapped = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(proto, name=""), [])
    return wrapped.prune(["value:0"], names)


def resized_images(resizer, dtype=DType.UINT8):
    """A function from images `[B, h, w, 3]` to what `add_preprocessing` returns."""
    kind = "image_tensor" if dtype is DType.UINT8 else "float_image_tensor"
    shape = None, None, None, 3
    return run_nodes(dtype, shape, lambda value: add_preprocessing(value, kind, resizer))


@pytest.fixture(scope="module")
def decoded():
    """A function from an image file to its pixels."""
    return run_nodes(DType.STRING, (), lambda value: [decode_image(value)])


METHODS = ("bilinear", "nearest", "bicubic", "area", "bilinear_antialias", "bilinear_half_pixel")
# Sums of float32 in another order, for the two methods that have sums of many terms.
TOLERANCE = {"area": 0.01, "bicubic": 1e-3}
RESIZERS = [
    *(schema.FixedShapeResizer(height=40, width=50, method=method) for method in METHODS),
    *(
        schema.KeepAspectRatioResizer(
            min_dimension=30, max_dimension=44, method=method, pad_value=(1.0, 2.0, 3.0)
        )
        for method in METHODS
    ),
    *(
        schema.ConditionalShapeResizer(
            condition=condition, threshold=60, method=method, canvas=(190, 190)
        )
        for condition in ("greater", "smaller")
        for method in METHODS[:4]
    ),
    schema.ScaleJitterResizer(height=50, width=70, multiple=32, pad_value=(9.0, 8.0, 7.0)),
    schema.IdentityResizer(canvas=(130, 140), pad_value=(5.0, 5.0, 5.0)),
    schema.PadToMultipleResizer(multiple=32, canvas=(160, 160)),
]


@pytest.mark.parametrize("size", [(37, 61), (101, 33), (64, 64)])
@pytest.mark.parametrize("resizer", RESIZERS, ids=lambda r: f"{r.kind}-{getattr(r, 'method', '')}")
def test_pixels_equal_those_of_training(resizer, size):
    image = np.random.default_rng(1).integers(0, 256, (*size, 3)).astype(np.uint8)
    expected, true_size = resize_image(image, resizer)
    pixels, true_sizes, sizes = resized_images(resizer)(tf.constant(image[None]))
    assert tuple(true_sizes.numpy()[0]) == true_size
    assert tuple(sizes.numpy()[0]) == size
    tolerance = TOLERANCE.get(getattr(resizer, "method", ""), 0)
    np.testing.assert_allclose(pixels.numpy()[0], expected, rtol=0, atol=tolerance)


def test_floats_are_rounded_as_the_files_were():
    image = np.random.default_rng(1).integers(0, 256, (37, 61, 3)).astype(np.float32)
    resizer = schema.FixedShapeResizer(height=20, width=30, method="bilinear_antialias")
    pixels, *_ = resized_images(resizer, DType.FLOAT)(tf.constant(image[None]))
    np.testing.assert_array_equal(pixels[0], resize_image(image.astype(np.uint8), resizer)[0])


def test_an_image_that_does_not_fit_fails():
    resize = resized_images(schema.IdentityResizer(canvas=(32, 32)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not fit the canvas 32x32"):
        resize(tf.zeros((1, 33, 20, 3), tf.uint8))


def test_one_function_serves_every_size():
    resizer = schema.FixedShapeResizer(height=20, width=30, method="bilinear_antialias")
    resize = resized_images(resizer)
    for size in ((10, 10), (41, 20), (300, 20)):
        assert resize(tf.zeros((2, *size, 3), tf.uint8))[0].shape == (2, 20, 30, 3)


@pytest.mark.parametrize("kind", [".jpg", ".png"])
def test_files_decode_to_the_pixels_of_training(decoded, images, kind):
    content = cv2.imencode(kind, images[0][..., ::-1])[1].tobytes()
    np.testing.assert_array_equal(decoded(tf.constant(content))[0], decode.decode_image(content))


def test_grey_and_transparent_files_have_three_channels(decoded, images):
    grey = cv2.cvtColor(images[0], cv2.COLOR_RGB2GRAY)
    transparent = np.dstack([images[0][..., ::-1], grey])
    for picture, kind in ((grey, ".jpg"), (grey, ".png"), (transparent, ".png")):
        content = cv2.imencode(kind, picture)[1].tobytes()
        wanted = decode.decode_image(content)
        np.testing.assert_array_equal(decoded(tf.constant(content))[0], wanted)
