"""What notebooks import from `object_detection` beside messages, label maps and drawing."""

import contextlib
import importlib

import numpy as np
import pytest

from stillbox.cli.main import build_parser
from stillbox.errors import UserError
from stillbox.records.record_file import RecordFile
from stillbox_legacy.tutorials import label_map_util
from stillbox_legacy.tutorials.absent import REPLACEMENTS
from stillbox_legacy.tutorials.folder import _PROGRAMS

pytest.importorskip("google.protobuf")

# By module, what notebooks and scripts of the field take from it.
IMPORTED = {
    "utils.ops": "reframe_box_masks_to_image_masks",
    "utils.label_map_util": "load_labelmap convert_label_map_to_categories create_category_index "
    "create_category_index_from_labelmap get_label_map_dict get_max_label_map_index",
    "utils.visualization_utils": "visualize_boxes_and_labels_on_image_array STANDARD_COLORS "
    "draw_bounding_box_on_image_array draw_bounding_boxes_on_image_array "
    "draw_bounding_box_on_image draw_mask_on_image_array draw_keypoints_on_image_array "
    "encode_image_array_as_png_str save_image_array_as_png",
    "utils.config_util": "get_configs_from_pipeline_file create_pipeline_proto_from_configs "
    "save_pipeline_config merge_external_params_with_configs get_number_of_classes "
    "create_configs_from_pipeline_proto",
    "utils.dataset_util": "int64_feature bytes_feature float_list_feature bytes_list_feature "
    "int64_list_feature read_examples_list recursive_parse_xml_to_dict",
    "utils.np_box_ops": "area intersection iou ioa",
    "core.standard_fields": "InputDataFields DetectionResultFields BoxListFields TfExampleFields",
    "metrics.coco_evaluation": "CocoDetectionEvaluator",
    "dataset_tools.tf_record_creation_util": "open_sharded_output_tfrecords",
    "builders.model_builder": "build",
    "protos.pipeline_pb2": "TrainEvalPipelineConfig",
    "protos.string_int_label_map_pb2": "StringIntLabelMap StringIntLabelMapItem",
}


@pytest.mark.parametrize("module", IMPORTED)
def test_what_notebooks_import_is_there(imported, module):
    loaded = importlib.import_module(f"object_detection.{module}")
    assert all(hasattr(loaded, name) for name in IMPORTED[module].split())


def test_scripts_in_the_folder_of_the_api_import_utils(research, monkeypatch):
    """EdjeElectronics' `Object_detection_image.py` runs in `object_detection`."""
    monkeypatch.syspath_prepend(str(research / "object_detection"))
    imported = importlib.import_module("utils.label_map_util")
    assert imported.load_labelmap is label_map_util.load_labelmap


@pytest.mark.parametrize("module", REPLACEMENTS)
def test_a_module_that_is_not_there_names_the_line_to_write(imported, module):
    loaded = importlib.import_module(f"object_detection.{module}")
    assert not hasattr(loaded, "__path__")
    with pytest.raises(UserError, match=r"needs the model of TensorFlow(.|\n)*fix: \w+"):
        _ = loaded.anything


# Boxes of 4 and 2 square units; the second pair shares 1, the third nothing.
ONES = [[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 1.0, 2.0]]
OTHERS = [[0.0, 0.0, 2.0, 2.0], [0.0, 1.0, 2.0, 3.0], [5.0, 5.0, 6.0, 6.0]]


def test_overlaps_of_boxes(imported):
    from object_detection.utils import np_box_ops

    ones, others = np.array(ONES), np.array(OTHERS)
    np.testing.assert_array_equal(np_box_ops.area(ones), [4, 2])
    np.testing.assert_array_equal(np_box_ops.intersection(ones, others), [[4, 2, 0], [2, 1, 0]])
    np.testing.assert_allclose(np_box_ops.iou(ones, others), [[1, 2 / 6, 0], [2 / 4, 1 / 5, 0]])
    # The share of the second boxes.
    np.testing.assert_allclose(np_box_ops.ioa(ones, others), [[1, 2 / 4, 0], [2 / 4, 1 / 4, 0]])


def test_masks_of_boxes_become_masks_of_the_image(imported):
    from object_detection.utils import ops as utils_ops

    # Notebooks patch it.
    utils_ops.tf = None
    masks = np.array([[[0.0, 1.0], [2.0, 3.0]]], np.float32)
    whole = utils_ops.reframe_box_masks_to_image_masks(masks, np.array([[0.0, 0, 1, 1]]), 3, 3)
    np.testing.assert_allclose(whole[0], [[0, 0.5, 1], [1, 1.5, 2], [2, 2.5, 3]])
    # The box is the upper half: its rows are at 0 and 1, and the third lies outside.
    half = utils_ops.reframe_box_masks_to_image_masks(
        masks, np.array([[0.0, 0, 0.5, 1]]), 3, 2, resize_method="nearest"
    )
    np.testing.assert_array_equal(half[0], [[0, 1], [2, 3], [0, 0]])
    nothing = utils_ops.reframe_box_masks_to_image_masks(masks[:0], np.zeros((0, 4)), 3, 2)
    assert nothing.shape == (0, 3, 2)


def test_a_notebook_scores_its_boxes(imported):
    from object_detection.core import standard_fields as fields
    from object_detection.metrics import coco_evaluation

    truth, result = fields.InputDataFields, fields.DetectionResultFields
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    evaluator = coco_evaluation.CocoDetectionEvaluator(
        categories, include_metrics_per_category=True
    )
    box = np.array([[100.0, 100.0, 200.0, 200.0]])
    for image, class_id in (("image1", 1), ("image2", 2)):
        evaluator.add_single_ground_truth_image_info(
            image,
            {truth.groundtruth_boxes: box, truth.groundtruth_classes: np.array([class_id])},
        )
        evaluator.add_single_detected_image_info(
            image,
            {
                # The dog is not found.
                result.detection_boxes: box + 300 * (class_id - 1),
                result.detection_scores: np.array([0.8]),
                result.detection_classes: np.array([class_id]),
            },
        )
    metrics = evaluator.evaluate()
    assert metrics["DetectionBoxes_Precision/mAP"] == pytest.approx(0.5)
    assert metrics["DetectionBoxes_Recall/AR@100 (large)"] == pytest.approx(0.5)
    assert metrics["DetectionBoxes_Precision/mAP (small)"] == -1
    assert metrics["DetectionBoxes_PerformanceByCategory/mAP/cat"] == pytest.approx(1)
    assert metrics["DetectionBoxes_PerformanceByCategory/mAP/dog"] == 0
    with pytest.raises(ValueError, match="image3"):
        evaluator.add_single_detected_image_info("image3", {})


def test_records_in_shards(imported, tmp_path):
    from object_detection.dataset_tools import tf_record_creation_util

    base = str(tmp_path / "train.record")
    with contextlib.ExitStack() as stack:
        outputs = tf_record_creation_util.open_sharded_output_tfrecords(stack, base, 2)
        for number in range(5):
            outputs[number % 2].write(b"%d" % number)
    files = [RecordFile(f"{base}-0000{shard}-of-00002") for shard in range(2)]
    assert [[file.read(i) for i in range(len(file))] for file in files] == [
        [b"0", b"2", b"4"],
        [b"1", b"3"],
    ]


def test_a_label_map_of_roboflow_has_commas(tmp_path):
    path = tmp_path / "cells_label_map.pbtxt"
    path.write_text('item {\n    name: "RBC",\n    id: 1,\n    display_name: "RBC"\n}\n')
    label_map = label_map_util.load_labelmap(str(path))
    categories = label_map_util.convert_label_map_to_categories(
        label_map, max_num_classes=90, use_display_name=True
    )
    assert label_map_util.create_category_index(categories) == {1: {"id": 1, "name": "RBC"}}


# Command lines of tutorials, courses and repositories of the field, from their texts.
LINES = """
model_main_tf2.py --pipeline_config_path=p --model_dir=m --alsologtostderr --num_train_steps=9 --sample_1_of_n_eval_examples=1 --num_eval_steps=500
model_main_tf2.py --pipeline_config_path=p --model_dir=m --checkpoint_every_n=100 --num_workers=3 --alsologtostderr
model_main_tf2.py --pipeline_config_path=p --model_dir=m --checkpoint_dir=m --eval_timeout=5 --alsologtostderr
model_main_tf2.py --pipeline_config_path=p --model_dir=m --use_tpu --tpu_name=x --eval_on_train_data=False --record_summaries=true
model_main.py --pipeline_config_path=p --model_dir=m --alsologtostderr --num_train_steps=9 --num_eval_steps=5
model_main.py --model_dir=m --pipeline_config_path=p --checkpoint_dir=m --run_once=True --eval_training_data=False
train.py --logtostderr --train_dir=training/ --pipeline_config_path=p
legacy/train.py --logtostderr --train_dir=t --pipeline_config_path=p --num_clones=2 --ps_tasks=1
legacy/train.py --train_dir=t --train_config_path=a --model_config_path=b --input_config_path=c
eval.py --logtostderr --pipeline_config_path=p --checkpoint_dir=training/ --eval_dir=eval/
exporter_main_v2.py --trained_checkpoint_dir m --output_directory o --pipeline_config_path p
exporter_main_v2.py --input_type=float_image_tensor --pipeline_config_path=p --trained_checkpoint_dir=m --output_directory=o
export_inference_graph.py --input_type image_tensor --pipeline_config_path p --trained_checkpoint_prefix training/model.ckpt-10856 --output_directory g
export_inference_graph.py --input_type=image_tensor --pipeline_config_path=p --output_directory=o --trained_checkpoint_prefix=x --input_shape=1,300,300,3 --write_inference_graph
export_tflite_graph_tf2.py --pipeline_config_path p --trained_checkpoint_dir m --output_directory o
export_tflite_ssd_graph.py --pipeline_config_path=p --trained_checkpoint_prefix=m --output_directory=o --add_postprocessing_op=true --max_detections=10
dataset_tools/create_coco_tf_record.py --logtostderr --train_image_dir=a --val_image_dir=b --test_image_dir=c --train_annotations_file=d --val_annotations_file=e --testdev_annotations_file=f --output_dir=g
dataset_tools/create_pascal_tf_record.py --data_dir=VOCdevkit --year=VOC2012 --set=train --output_path=p --annotations_dir=Annotations
dataset_tools/create_pet_tf_record.py --label_map_path=l --data_dir=d --output_dir=o --faces_only=True
generate_tfrecord.py --csv_input=data/train_labels.csv --output_path=data/train.record
generate_tfrecord.py --csv_input=images/train_labels.csv --image_dir=images/train --output_path=r
generate_tfrecord.py --label=ship --csv_input=a.csv --output_path=b --img_path=c
generate_tfrecord.py -x images/train -l annotations/label_map.pbtxt -o annotations/train.record
xml_to_csv.py -i images/train -o train_labels.csv
create_tfrecord.py --csv_input=a.csv --labelmap=l.txt --image_dir=images/train --output_path=r
partition_dataset.py -x -i images -r 0.1
partition_dataset.py -i images -o out --ratio 0.1 --xml
"""  # noqa: E501


def test_command_lines_of_the_field_are_taken(capsys):
    refused = []
    for line in LINES.strip().splitlines():
        script, *flags = line.split()
        verb, *fixed = _PROGRAMS.get(script, (script.removesuffix(".py"),))
        try:
            build_parser(verb).parse_args([verb, *fixed, *flags])
        except SystemExit:
            refused.append((line, capsys.readouterr().err))
    assert not refused
