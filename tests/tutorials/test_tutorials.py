"""Tutorials with their own command lines and edits, from photographs to the last artefact.

The archive of a pretrained model that a tutorial downloads is stood in for by a config of the same
kind with a network of 64 pixels, and a checkpoint of random weights. Sources of the commands:
github.com/nicknochnack/TFODCourse; github.com/EdjeElectronics/TensorFlow-Lite-Object-Detection-on-
Android-and-Raspberry-Pi; tensorflow-object-detection-api-tutorial.readthedocs.io (L. Vladimirov);
github.com/TannerGilbert/Tensorflow-Object-Detection-API-Train-Model;
`object_detection/g3doc/running_pets.md`.
"""

import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from stillbox.checkpoints.names import object_paths, reference_names
from stillbox.checkpoints.tf1 import write_tf1_checkpoint
from stillbox.checkpoints.tf2 import write_tf2_checkpoint
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from stillbox.tutorials.protos import load_module
from tests.small import SHARED, needs_shared
from tests.tutorials.conftest import photographs

text_format = pytest.importorskip("google.protobuf.text_format")
pytestmark = [needs_shared, pytest.mark.usefixtures("shared_programs"), pytest.mark.proof]

CONFIGS = SHARED / "configs" / "pipeline"
FPNLITE = "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8"
LABELS = "".join(
    f"item {{ \n\tname:'{name}'\n\tid:{number}\n}}\n"
    for number, name in enumerate(("RBC", "WBC", "Platelets"), start=1)
)
LAST = "detection_scores", "detection_boxes", "detection_classes", "num_detections"


def archive(folder, name, *, tf2):
    """Writes `pipeline.config` and a checkpoint, as they are in an archive of the model zoo."""
    pipeline = load_module("pipeline").TrainEvalPipelineConfig()
    text_format.Merge((CONFIGS / f"{name}.config").read_text(), pipeline)
    if pipeline.model.HasField("ssd"):
        resizer = pipeline.model.ssd.image_resizer.fixed_shape_resizer
        resizer.height = resizer.width = 64
        pipeline.model.ssd.feature_extractor.depth_multiplier = 0.25
        nms = pipeline.model.ssd.post_processing.batch_non_max_suppression
        nms.max_detections_per_class = nms.max_total_detections = 10
    else:
        resizer = pipeline.model.faster_rcnn.image_resizer.keep_aspect_ratio_resizer
        resizer.min_dimension, resizer.max_dimension = 48, 64
        pipeline.model.faster_rcnn.first_stage_max_proposals = 8
        pipeline.model.faster_rcnn.second_stage_batch_size = 8
    pipeline.train_config.fine_tune_checkpoint = "PATH_TO_BE_CONFIGURED"
    folder.mkdir(parents=True)
    text = text_format.MessageToString(pipeline)
    (folder / "pipeline.config").write_text(text)
    model = read_pipeline_config(text, "x", name="x").experiment.model
    _, params, stats = split_detector(build_detector(model))
    arrays = {path: np.asarray(array) for path, array in {**params, **stats}.items()}
    names = (object_paths if tf2 else reference_names)(model, arrays)
    named = {names.get(path, path): array for path, array in arrays.items()}
    if tf2:
        (folder / "checkpoint").mkdir()
        write_tf2_checkpoint(folder / "checkpoint" / "ckpt-0", named)
    else:
        write_tf1_checkpoint(folder / "model.ckpt", named)


def interpreted(path):
    """Runs a TFLite model on a photograph and returns the names of its outputs."""
    pytest.importorskip("ai_edge_litert")
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    (given,) = interpreter.get_input_details()
    image = cv2.imread(str(next((SHARED / "data/bccd/JPEGImages").glob("*.jpg"))))
    pixels = cv2.resize(image, given["shape"][1:3][::-1])[None].astype(given["dtype"])
    interpreter.set_tensor(given["index"], pixels)
    interpreter.invoke()
    return [interpreter.get_tensor(one["index"]) for one in interpreter.get_output_details()]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_nicknochnack(here, research, python, imported):
    """TFODCourse, "2. Training and Detection": TF2, messages, a detector in the notebook."""
    scripts, models = "Tensorflow/scripts", "Tensorflow/workspace/models/my_ssd_mobnet"
    annotations, images = "Tensorflow/workspace/annotations", "Tensorflow/workspace/images"
    pretrained = f"Tensorflow/workspace/pre-trained-models/{FPNLITE}"
    for folder in (scripts, annotations, models):
        Path(folder).mkdir(parents=True)
    archive(Path(pretrained), FPNLITE, tf2=True)
    photographs(Path(images, "train"), 16)
    photographs(Path(images, "test"), 4)
    shutil.copy(research / "generate_tfrecord.py", scripts)
    Path(annotations, "label_map.pbtxt").write_text(LABELS)
    for part in ("train", "test"):
        python(
            f"python {scripts}/generate_tfrecord.py -x {images}/{part} "
            f"-l {annotations}/label_map.pbtxt -o {annotations}/{part}.record"
        )
    shutil.copy(f"{pretrained}/pipeline.config", models)

    from object_detection.protos import pipeline_pb2
    from object_detection.utils import config_util

    path = f"{models}/pipeline.config"
    pipeline_config = pipeline_pb2.TrainEvalPipelineConfig()
    text_format.Merge(Path(path).read_text(), pipeline_config)
    pipeline_config.model.ssd.num_classes = 3
    pipeline_config.train_config.batch_size = 4
    pipeline_config.train_config.fine_tune_checkpoint = f"{pretrained}/checkpoint/ckpt-0"
    pipeline_config.train_config.fine_tune_checkpoint_type = "detection"
    pipeline_config.train_input_reader.label_map_path = f"{annotations}/label_map.pbtxt"
    pipeline_config.train_input_reader.tf_record_input_reader.input_path[:] = [
        f"{annotations}/train.record"
    ]
    pipeline_config.eval_input_reader[0].label_map_path = f"{annotations}/label_map.pbtxt"
    pipeline_config.eval_input_reader[0].tf_record_input_reader.input_path[:] = [
        f"{annotations}/test.record"
    ]
    Path(path).write_text(text_format.MessageToString(pipeline_config))

    api = f"{research}/object_detection"
    flags = f"--model_dir={models} --pipeline_config_path={path}"
    python(f"python {api}/model_main_tf2.py {flags} --num_train_steps=2")
    assert 'model_checkpoint_path: "ckpt-2"' in Path(models, "checkpoint").read_text()
    python(f"python {api}/model_main_tf2.py {flags} --checkpoint_dir={models} --run_once")

    from object_detection.builders import model_builder
    from object_detection.utils import label_map_util, visualization_utils

    configs = config_util.get_configs_from_pipeline_file(path)
    detection_model = model_builder.build(model_config=configs["model"], is_training=False)
    detection_model.restore(f"{models}/ckpt-2").expect_partial()
    image = cv2.imread(str(next(Path(images, "test").glob("*.jpg"))))
    tensor, shapes = detection_model.preprocess(np.expand_dims(image, 0).astype(np.float32))
    detections = detection_model.postprocess(detection_model.predict(tensor, shapes), shapes)
    assert set(detections) == set(LAST)
    count = int(detections["num_detections"][0])
    drawn = visualization_utils.visualize_boxes_and_labels_on_image_array(
        image.copy(),
        detections["detection_boxes"][0, :count],
        detections["detection_classes"][0, :count].astype(np.int64) + 1,
        detections["detection_scores"][0, :count],
        label_map_util.create_category_index_from_labelmap(f"{annotations}/label_map.pbtxt"),
        use_normalized_coordinates=True,
        min_score_thresh=0.0,
    )
    assert count
    assert (drawn != image).any()

    python(
        f"python {api}/exporter_main_v2.py --input_type=image_tensor --pipeline_config_path={path} "
        f"--trained_checkpoint_dir={models} --output_directory={models}/export"
    )
    for file in ("saved_model/saved_model.pb", "pipeline.config", "checkpoint/ckpt-0.index"):
        assert Path(models, "export", file).is_file()
    again = model_builder.build(model_config=configs["model"], is_training=False)
    again.restore(f"{models}/export/checkpoint/ckpt-0")
    found = again.postprocess(again.predict(tensor, shapes), shapes)
    np.testing.assert_array_equal(found["detection_scores"], detections["detection_scores"])
    pytest.importorskip("litert_converter")
    python(
        f"python {api}/export_tflite_graph_tf2.py --pipeline_config_path={path} "
        f"--trained_checkpoint_dir={models} --output_directory={models}/tfliteexport"
    )
    assert Path(models, "tfliteexport/saved_model/saved_model.pb").is_file()
    assert len(interpreted(f"{models}/tfliteexport/model.tflite")) == 4


@pytest.mark.slow
def test_edje_electronics(here, research, python):
    """The Colab of the TFLite guide: a table, a text of labels, a config edited by `re.sub`."""
    photographs(here / "images" / "all")
    (here / "labelmap.txt").write_text("RBC\nWBC\nPlatelets\n")
    python(f"python {research}/train_val_test_split.py")
    python(f"python {research}/create_csv.py")
    for part, name in (("train", "train"), ("validation", "val")):
        python(
            f"python {research}/create_tfrecord.py --csv_input=images/{part}_labels.csv "
            f"--labelmap=labelmap.txt --image_dir=images/{part} --output_path={name}.tfrecord"
        )
    archive(here / "mymodel", FPNLITE, tf2=True)
    s = (here / "mymodel" / "pipeline.config").read_text()
    s = re.sub(
        'fine_tune_checkpoint: ".*?"',
        f'fine_tune_checkpoint: "{here}/mymodel/checkpoint/ckpt-0"',
        s,
    )
    s = s.replace('input_path: "PATH_TO_BE_CONFIGURED', 'input_path: "')
    paths = iter([f"{here}/train.tfrecord", f"{here}/val.tfrecord"])
    s = re.sub(r'input_path: ".*?"', lambda match: f'input_path: "{next(paths)}"', s)
    s = re.sub('label_map_path: ".*?"', f'label_map_path: "{here}/labelmap.pbtxt"', s)
    s = re.sub("batch_size: [0-9]+", "batch_size: 4", s)
    s = re.sub("num_steps: [0-9]+", "num_steps: 2", s)
    s = re.sub("num_classes: [0-9]+", "num_classes: 3", s)
    s = re.sub(
        'fine_tune_checkpoint_type: "classification"', 'fine_tune_checkpoint_type: "detection"', s
    )
    s = re.sub("learning_rate_base: .08", "learning_rate_base: .004", s)
    s = re.sub("warmup_learning_rate: [0-9.]+", "warmup_learning_rate: .0013333", s)
    s = re.sub(
        r"keep_aspect_ratio_resizer {(.|\n)*?}", "fixed_shape_resizer { height: 64 width: 64 }", s
    )
    (here / "pipeline_file.config").write_text(s)
    api = f"{research}/object_detection"
    python(
        f"python {api}/model_main_tf2.py --pipeline_config_path=pipeline_file.config "
        "--model_dir=training/ --alsologtostderr --num_train_steps=2 "
        "--sample_1_of_n_eval_examples=1"
    )
    pytest.importorskip("litert_converter")
    python(
        f"python {api}/export_tflite_graph_tf2.py --trained_checkpoint_dir training "
        "--output_directory custom_model_lite --pipeline_config_path pipeline_file.config"
    )
    assert (here / "custom_model_lite/saved_model/saved_model.pb").is_file()
    assert len(interpreted(here / "custom_model_lite/model.tflite")) == 4


@pytest.mark.slow
def test_sglvladi(here, research, python):
    """tensorflow-object-detection-api-tutorial: a partition, and an export for a client."""
    photographs(here / "images")
    python(f"python {research}/partition_dataset.py -x -i images -r 0.1")
    (here / "annotations").mkdir()
    (here / "annotations/label_map.pbtxt").write_text(LABELS)
    for part in ("train", "test"):
        python(
            f"python {research}/generate_tfrecord.py -x images/{part} "
            f"-l annotations/label_map.pbtxt -o annotations/{part}.record"
        )
    archive(here / "pre-trained-models/ssd", "ssd_mobilenet_v2_pets_keras", tf2=True)
    models = here / "models/my_ssd"
    models.mkdir(parents=True)
    configured(
        here / "pre-trained-models/ssd/pipeline.config",
        models / "pipeline.config",
        here / "pre-trained-models/ssd/checkpoint/ckpt-0",
    )
    for script in ("model_main_tf2.py", "exporter_main_v2.py"):
        shutil.copy(research / "object_detection" / script, here)
    flags = "--model_dir=models/my_ssd --pipeline_config_path=models/my_ssd/pipeline.config"
    python(f"python model_main_tf2.py {flags} --num_train_steps=2")
    python(f"python model_main_tf2.py {flags} --checkpoint_dir=models/my_ssd --eval_timeout=1")
    python(
        "python ./exporter_main_v2.py --input_type image_tensor --pipeline_config_path "
        "./models/my_ssd/pipeline.config --trained_checkpoint_dir ./models/my_ssd/ "
        "--output_directory ./exported-models/my_model"
    )
    for file in ("saved_model/saved_model.pb", "pipeline.config", "checkpoint/ckpt-0.index"):
        assert (here / "exported-models/my_model" / file).is_file()


def configured(
    source,
    target,
    checkpoint,
    train="annotations/train.record",
    test="annotations/test.record",
    labels="annotations/label_map.pbtxt",
):
    """Edits a config by hand, as the tutorials describe line by line."""
    pipeline = load_module("pipeline").TrainEvalPipelineConfig()
    text_format.Merge(source.read_text(), pipeline)
    model = pipeline.model
    getattr(model, model.WhichOneof("model")).num_classes = 3
    pipeline.train_config.batch_size = 4 if model.HasField("ssd") else 1
    pipeline.train_config.num_steps = 2
    pipeline.train_config.fine_tune_checkpoint = str(checkpoint)
    pipeline.train_config.fine_tune_checkpoint_type = "detection"
    pipeline.train_input_reader.label_map_path = labels
    pipeline.train_input_reader.tf_record_input_reader.input_path[:] = [train]
    del pipeline.eval_input_reader[1:]
    reader = (
        pipeline.eval_input_reader[0]
        if pipeline.eval_input_reader
        else pipeline.eval_input_reader.add()
    )
    reader.label_map_path = labels
    reader.tf_record_input_reader.input_path[:] = [test]
    target.write_text(text_format.MessageToString(pipeline))


@pytest.mark.slow
@pytest.mark.parametrize(
    "trainer", ["model_main.py --model_dir=training/", "train.py --train_dir=training/"]
)
def test_gilbert_tanner(here, research, python, trainer):
    """TF1: tables, a checkpoint by its step, a frozen graph. EdjeElectronics' first guide too."""
    photographs(here / "images/train", 16)
    photographs(here / "images/test", 4)
    python(f"python {research}/xml_to_csv.py")
    for part in ("train", "test"):
        python(
            f"python {research}/generate_tfrecord.py --csv_input=images/{part}_labels.csv "
            f"--image_dir=images/{part} --output_path={part}.record"
        )
    (here / "training").mkdir()
    (here / "training/labelmap.pbtxt").write_text(LABELS)
    archive(here / "ssd", "ssd_mobilenet_v1_pets", tf2=False)
    config = here / "training/ssd.config"
    configured(
        here / "ssd/pipeline.config",
        config,
        here / "ssd/model.ckpt",
        "train.record",
        "test.record",
        "training/labelmap.pbtxt",
    )
    api = f"{research}/object_detection"
    python(f"python {api}/{trainer} --logtostderr --pipeline_config_path=training/ssd.config")
    assert (here / "training/model.ckpt-2.index").is_file()
    assert (here / "training/model.ckpt-2.meta").is_file()
    python(
        f"python {api}/export_inference_graph.py --input_type image_tensor --pipeline_config_path "
        "training/ssd.config --trained_checkpoint_prefix training/model.ckpt-2 "
        "--output_directory inference_graph"
    )
    for file in ("frozen_inference_graph.pb", "saved_model/saved_model.pb", "pipeline.config"):
        assert (here / "inference_graph" / file).is_file()
    said = python(
        f"python {api}/export_inference_graph.py --pipeline_config_path training/ssd.config "
        "--trained_checkpoint_prefix training/model.ckpt-9 --output_directory other",
        code=2,
    )
    assert "there is no such checkpoint\n  fix: did you mean 'model.ckpt-2'?" in said
    if trainer.startswith("train"):
        python(
            f"python {api}/eval.py --logtostderr --pipeline_config_path=training/ssd.config "
            "--checkpoint_dir=training/ --eval_dir=eval/ --run_once"
        )
        pytest.importorskip("litert_converter")
        python(
            f"python {api}/export_tflite_ssd_graph.py --pipeline_config_path=training/ssd.config "
            "--trained_checkpoint_prefix=training/model.ckpt-2 --output_directory=TFLite_model "
            "--add_postprocessing_op=true"
        )
        assert len(interpreted(here / "TFLite_model/model.tflite")) == 4


@pytest.mark.slow
def test_pets(here, research, python):
    """`running_pets.md`, of which the names of the photographs are changed to those of breeds."""
    photographs(here / "annotations/xmls")
    (here / "images").mkdir()
    stems = []
    for number, image in enumerate(sorted((here / "annotations/xmls").glob("*.jpg"))):
        stem = f"{('Abyssinian', 'pug', 'samoyed')[number % 3]}_{number}"
        stems.append(stem)
        image.rename(here / "images" / f"{stem}.jpg")
        image.with_suffix(".xml").rename(image.with_name(f"{stem}.xml"))
    (here / "annotations/trainval.txt").write_text("".join(f"{s} 1 1 1\n" for s in stems))
    shutil.copytree(research / "object_detection", here / "object_detection")
    python(
        "python object_detection/dataset_tools/create_pet_tf_record.py "
        "--label_map_path=object_detection/data/pet_label_map.pbtxt "
        f"--data_dir={here} --output_dir={here}"
    )
    assert len(list(here.glob("pet_faces_train.record-*-of-00010"))) == 10
    archive(here / "zoo", "faster_rcnn_resnet50_pets", tf2=False)
    config = here / "faster_rcnn_resnet50_pets.config"
    configured(
        here / "zoo/pipeline.config",
        config,
        here / "zoo/model.ckpt",
        "pet_faces_train.record-?????-of-00010",
        "pet_faces_val.record-*",
        "object_detection/data/pet_label_map.pbtxt",
    )
    text = config.read_text()
    config.write_text(text.replace("num_classes: 3", "num_classes: 37"))
    python(
        f"python object_detection/model_main.py --model_dir={here}/model_dir "
        f"--pipeline_config_path={config.name}"
    )
    python(
        "python object_detection/export_inference_graph.py --input_type image_tensor "
        f"--pipeline_config_path {config.name} "
        "--trained_checkpoint_prefix model_dir/model.ckpt-2 --output_directory exported_graphs"
    )
    assert (here / "exported_graphs/frozen_inference_graph.pb").is_file()
