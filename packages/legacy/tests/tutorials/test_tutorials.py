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

from packages.legacy.tests.tutorials.archives import (
    FPNLITE,
    LABELS,
    archive,
    configured,
    interpreted,
)
from packages.legacy.tests.tutorials.conftest import photographs
from tests.small import needs_shared

text_format = pytest.importorskip("google.protobuf.text_format")
pytestmark = [needs_shared, pytest.mark.usefixtures("shared_programs"), pytest.mark.proof]

COMMAS = "".join(
    f'item {{\n    name: "{name}",\n    id: {number},\n    display_name: "{name}"\n}}\n'
    for number, name in enumerate(("Platelets", "RBC", "WBC"), start=1)
)
"""As Roboflow writes it."""
LAST = "detection_scores", "detection_boxes", "detection_classes", "num_detections"


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
    repeated = again.postprocess(again.predict(tensor, shapes), shapes)
    np.testing.assert_array_equal(repeated["detection_scores"], detections["detection_scores"])
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


@pytest.mark.slow
def test_roboflow(here, research, python, imported):
    """Roboflow's notebook for TF2: records and label map of its export, a config by `re.sub`."""
    for part, count in (("train", 16), ("valid", 4)):
        photographs(here / part, count)
        (here / part / "cells_label_map.pbtxt").write_text(COMMAS)
        python(
            f"python {research}/generate_tfrecord.py -x {part} -l {part}/cells_label_map.pbtxt "
            f"-o {part}/cells.tfrecord"
        )
    archive(here / "models/research/deploy", FPNLITE, tf2=True)
    deploy = here / "models/research/deploy"

    from object_detection.utils import config_util, label_map_util

    label_map = label_map_util.load_labelmap("train/cells_label_map.pbtxt")
    categories = label_map_util.convert_label_map_to_categories(
        label_map, max_num_classes=90, use_display_name=True
    )
    num_classes = len(label_map_util.create_category_index(categories).keys())
    s = (deploy / "pipeline.config").read_text()
    s = re.sub(
        'fine_tune_checkpoint: ".*?"', f'fine_tune_checkpoint: "{deploy}/checkpoint/ckpt-0"', s
    )
    for part in ("train", "valid"):
        s = re.sub('input_path: "PATH.*?"', f'input_path: "{part}/cells.tfrecord"', s, count=1)
    s = re.sub('label_map_path: ".*?"', 'label_map_path: "train/cells_label_map.pbtxt"', s)
    s = re.sub("batch_size: [0-9]+", "batch_size: 4", s)
    s = re.sub("num_steps: [0-9]+", "num_steps: 2", s)
    s = re.sub("num_classes: [0-9]+", f"num_classes: {num_classes}", s)
    s = re.sub(
        'fine_tune_checkpoint_type: "classification"', 'fine_tune_checkpoint_type: "detection"', s
    )
    (here / "pipeline_file.config").write_text(s)
    api = f"{research}/object_detection"
    python(
        f"python {api}/model_main_tf2.py --pipeline_config_path=pipeline_file.config "
        "--model_dir=training/ --alsologtostderr --num_train_steps=2 "
        "--sample_1_of_n_eval_examples=1 --num_eval_steps=4"
    )
    python(
        f"python {api}/exporter_main_v2.py --trained_checkpoint_dir training/ "
        "--output_directory inference_graph --pipeline_config_path pipeline_file.config"
    )
    assert (here / "inference_graph/saved_model/saved_model.pb").is_file()

    from object_detection.builders import model_builder

    configs = config_util.get_configs_from_pipeline_file("pipeline_file.config")
    detection_model = model_builder.build(model_config=configs["model"], is_training=False)
    last = max((here / "training").glob("*.index"))
    detection_model.restore(str(last).replace(".index", "")).expect_partial()
    image = cv2.imread(str(next((here / "valid").glob("*.jpg"))))
    tensor, shapes = detection_model.preprocess(image[None].astype(np.float32))
    detections = detection_model.postprocess(detection_model.predict(tensor, shapes), shapes)
    assert set(detections) == set(LAST)


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
    """Runs `running_pets.md` with photographs that are named after breeds."""
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
