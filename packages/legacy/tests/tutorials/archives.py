"""Stand-ins for the archives of pretrained models that tutorials download.

Each has a config of the same kind with a network of 64 pixels, and a checkpoint of random weights.
"""

import cv2
import numpy as np
import pytest

from stillbox.checkpoints.names import object_paths, reference_names
from stillbox.checkpoints.tf1 import write_tf1_checkpoint
from stillbox.checkpoints.tf2 import write_tf2_checkpoint
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from stillbox_legacy.tutorials.protos import load_module
from tests.small import SHARED

text_format = pytest.importorskip("google.protobuf.text_format")

CONFIGS = SHARED / "configs" / "pipeline"
FPNLITE = "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8"
LABELS = "".join(
    f"item {{ \n\tname:'{name}'\n\tid:{number}\n}}\n"
    for number, name in enumerate(("RBC", "WBC", "Platelets"), start=1)
)


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
    return [interpreter.get_tensor(output["index"]) for output in interpreter.get_output_details()]


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
