"""Cells that call TensorFlow itself, on what the programs of the folder write.

Sources: `object_detection/colab_tutorials/{inference_tf2_colab,object_detection_tutorial,
convert_odt_model_to_TFLite}.ipynb`; `plot_object_detection_{checkpoint,saved_model}.py` of
L. Vladimirov; `Object_detection_image.py` and `TFLite_detection_image.py` of EdjeElectronics;
`generate_tfrecord.py` of D. Tran.
"""

import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from packages.legacy.tests.tutorials.archives import archive
from stillbox.records.record_file import RecordFile
from stillbox.records.wire import parse_features
from tests.small import SHARED, needs_shared

tf = pytest.importorskip("tensorflow")
pytestmark = [
    needs_shared,
    pytest.mark.proof,
    pytest.mark.usefixtures("shared_programs"),
    pytest.mark.xdist_group("tensorflow"),
]
FLAGS = "--input_type image_tensor --pipeline_config_path zoo/pipeline.config"


@pytest.fixture(scope="module")
def image():
    """A photograph, as RGB."""
    path = min((SHARED / "data/bccd/JPEGImages").glob("*.jpg"))
    return cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)


def labelled_archive(folder, name, *, tf2):
    """Returns an archive with a config that names a label map."""
    archive(folder, name, tf2=tf2)
    config, labels = folder / "pipeline.config", folder / "label_map.pbtxt"
    text = config.read_text()
    count = int(re.search(r"num_classes: (\d+)", text)[1])
    items = (
        f'item {{ id: {class_id} name: "class {class_id}" }}\n' for class_id in range(1, count + 1)
    )
    labels.write_text("".join(items))
    config.write_text(re.sub('label_map_path: ".*?"', f'label_map_path: "{labels}"', text))


@pytest.fixture
def zoo(here, research):
    """An archive of TF2, in the working directory."""
    labelled_archive(here / "zoo", "ssd_mobilenet_v2_pets_keras", tf2=True)
    return here


def built():
    from object_detection.builders import model_builder
    from object_detection.utils import config_util

    configs = config_util.get_configs_from_pipeline_file("zoo/pipeline.config")
    return model_builder.build(model_config=configs["model"], is_training=False)


def restored(image):
    """Detections of the weights that our own `restore` reads."""
    model = built().restore("zoo/checkpoint/ckpt-0")
    tensor, shapes = model.preprocess(image[None].astype(np.float32))
    return model.postprocess(model.predict(tensor, shapes), shapes)


def test_a_checkpoint_is_restored_and_run_in_a_function(zoo, imported, image):
    expected = restored(image)
    detection_model = built()
    ckpt = tf.compat.v2.train.Checkpoint(model=detection_model)
    ckpt.restore("zoo/checkpoint/ckpt-0").expect_partial()

    @tf.function
    def detect_fn(image):
        image, shapes = detection_model.preprocess(image)
        prediction_dict = detection_model.predict(image, shapes)
        detections = detection_model.postprocess(prediction_dict, shapes)
        return detections, prediction_dict, tf.reshape(shapes, [-1])

    input_tensor = tf.convert_to_tensor(np.expand_dims(image, 0), dtype=tf.float32)
    detections, _, shapes = detect_fn(input_tensor)
    assert shapes.numpy().tolist() == [64, 64, 3]
    assert detections["num_detections"].numpy()[0] > 0
    for name, values in detections.items():
        np.testing.assert_array_equal(values.numpy(), expected[name], err_msg=name)


def test_a_saved_model_is_called_as_by_the_notebooks(zoo, research, python, imported, image):
    python(
        f"python {research}/object_detection/exporter_main_v2.py {FLAGS} "
        "--trained_checkpoint_dir zoo/checkpoint --output_directory exported"
    )
    expected = restored(image)
    model = tf.saved_model.load("exported/saved_model")
    model_fn = model.signatures["serving_default"]
    # The others are the variables.
    given = [tensor.dtype for tensor in model_fn.inputs if tensor.dtype != tf.resource]
    assert given == [tf.uint8]
    assert model_fn.output_dtypes["detection_boxes"] == tf.float32
    assert model_fn.output_shapes["detection_scores"].as_list()[1] == 10
    input_tensor = tf.convert_to_tensor(image)[tf.newaxis, ...]
    output_dict = dict(model_fn(input_tensor))
    for called in (model(input_tensor), model(np.expand_dims(image, 0))):
        for name, values in called.items():
            np.testing.assert_array_equal(values, output_dict[name], err_msg=name)
    num_detections = int(output_dict.pop("num_detections")[0])
    output_dict = {key: value[0, :num_detections].numpy() for key, value in output_dict.items()}
    np.testing.assert_allclose(
        output_dict["detection_boxes"], expected["detection_boxes"][0, :num_detections], atol=1e-5
    )
    np.testing.assert_allclose(
        output_dict["detection_scores"], expected["detection_scores"][0, :num_detections], atol=1e-5
    )
    classes = output_dict["detection_classes"].astype(np.int64)
    np.testing.assert_array_equal(classes, 1 + expected["detection_classes"][0, :num_detections])


def test_a_frozen_graph_is_opened_and_run(here, research, python, image):
    labelled_archive(here / "zoo", "ssd_mobilenet_v1_pets", tf2=False)
    python(
        f"python {research}/object_detection/export_inference_graph.py {FLAGS} "
        "--trained_checkpoint_prefix zoo/model.ckpt --output_directory inference_graph"
    )
    detection_graph = tf.Graph()
    with detection_graph.as_default():
        od_graph_def = tf.compat.v1.GraphDef()
        with tf.io.gfile.GFile("inference_graph/frozen_inference_graph.pb", "rb") as fid:
            od_graph_def.ParseFromString(fid.read())
            tf.import_graph_def(od_graph_def, name="")
    with detection_graph.as_default(), tf.compat.v1.Session(graph=detection_graph) as sess:
        ops = tf.compat.v1.get_default_graph().get_operations()
        all_tensor_names = {output.name for op in ops for output in op.outputs}
        tensor_dict = {}
        for key in (
            *("num_detections", "detection_boxes", "detection_scores", "detection_classes"),
            "detection_masks",
        ):
            if f"{key}:0" in all_tensor_names:
                tensor_dict[key] = detection_graph.get_tensor_by_name(f"{key}:0")
        image_tensor = detection_graph.get_tensor_by_name("image_tensor:0")
        outputs = sess.run(tensor_dict, feed_dict={image_tensor: np.expand_dims(image, axis=0)})
    assert set(outputs) == set(tensor_dict)
    assert "detection_masks" not in outputs
    # The SavedModel beside it is the same network.
    saved = tf.saved_model.load("inference_graph/saved_model").signatures["serving_default"]
    expected = saved(inputs=tf.convert_to_tensor(image[None]))
    assert outputs["num_detections"][0] > 0
    for name, values in outputs.items():
        np.testing.assert_allclose(values, expected[name], atol=1e-5, err_msg=name)


def detected(content, image):
    """`TFLite_detection_image.py`, from the model to boxes, classes and scores."""
    interpreter = tf.lite.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    input_details, output_details = (
        interpreter.get_input_details(),
        interpreter.get_output_details(),
    )
    height, width = input_details[0]["shape"][1], input_details[0]["shape"][2]
    input_data = np.expand_dims(cv2.resize(image, (width, height)), axis=0)
    if input_details[0]["dtype"] == np.float32:
        input_data = (np.float32(input_data) - 127.5) / 127.5
    if "StatefulPartitionedCall" in output_details[0]["name"]:
        boxes_idx, classes_idx, scores_idx = 1, 3, 0
    else:
        boxes_idx, classes_idx, scores_idx = 0, 1, 2
    interpreter.set_tensor(input_details[0]["index"], input_data)
    interpreter.invoke()
    return [
        interpreter.get_tensor(output_details[index]["index"])[0]
        for index in (boxes_idx, classes_idx, scores_idx)
    ]


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_tensorflow_converts_what_the_folder_exports(zoo, research, python, image):
    pytest.importorskip("litert_converter")
    python(
        f"python {research}/object_detection/export_tflite_graph_tf2.py "
        "--trained_checkpoint_dir zoo/checkpoint --output_directory tflite "
        "--pipeline_config_path zoo/pipeline.config"
    )
    converter = tf.lite.TFLiteConverter.from_saved_model("tflite/saved_model")
    floats = detected(converter.convert(), image)
    boxes, classes, scores = floats
    assert (boxes.shape, classes.shape, scores.shape) == ((10, 4), (10,), (10,))
    assert (np.diff(scores) <= 0).all()
    assert 0 < scores[0] <= 1
    # The file that stillbox converted itself finds the same.
    own_file = detected(Path("tflite/model.tflite").read_bytes(), image)
    for ours, theirs in zip(own_file, floats, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    smaller = detected(converter.convert(), image)
    np.testing.assert_allclose(smaller[2], scores, atol=0.05)


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
def test_masks_are_reframed_as_by_crop_and_resize(imported, method):
    from object_detection.utils import ops as utils_ops

    rng = np.random.default_rng(0)
    masks = rng.random((3, 5, 4), np.float32)
    boxes = np.array([[0.1, 0.2, 0.6, 0.9], [0, 0, 1, 1], [0.3, 0.3, 0.35, 0.8]], np.float32)
    low, size = boxes[:, None, :2], boxes[:, None, 2:] - boxes[:, None, :2]
    reverse = ((np.array([[0.0, 0.0], [1.0, 1.0]]) - low) / size).reshape(3, 4)
    expected = tf.image.crop_and_resize(masks[..., None], reverse, range(3), [9, 7], method=method)
    reframed = utils_ops.reframe_box_masks_to_image_masks(
        tf.convert_to_tensor(masks), boxes, 9, 7, resize_method=method
    )
    np.testing.assert_allclose(reframed, expected[..., 0], atol=1e-5)


def test_records_of_a_notebook_of_its_own(imported, labelled):
    from object_detection.utils import dataset_util

    content = (labelled / "images/all/img_0.jpg").read_bytes()
    tf_example = tf.train.Example(
        features=tf.train.Features(
            feature={
                "image/height": dataset_util.int64_feature(64),
                "image/encoded": dataset_util.bytes_feature(content),
                "image/object/bbox/xmin": dataset_util.float_list_feature([0.25]),
                "image/object/class/text": dataset_util.bytes_list_feature([b"cat"]),
                "image/object/class/label": dataset_util.int64_list_feature([1]),
            }
        )
    )
    with tf.io.TFRecordWriter("own.record") as writer:
        writer.write(tf_example.SerializeToString())
    features = parse_features(RecordFile("own.record").read(0))
    assert list(features["image/object/class/text"]) == [b"cat"]
    assert list(features["image/object/class/label"]) == [1]
    assert list(features["image/encoded"]) == [content]
