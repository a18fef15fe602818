"""ONNX: one file from images to detections, and one that ends before suppression."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stillbox.exporting.manifest import Written
from stillbox.exporting.onnx.graph import FLOAT, IR_VERSION, OPSET, UINT8, Graph
from stillbox.exporting.onnx.network import add_network
from stillbox.exporting.onnx.nms import add_suppression
from stillbox.exporting.onnx.outputs import add_outputs
from stillbox.exporting.onnx.pixels import Resized, add_preprocessing
from stillbox.exporting.program import ExportProgram
from stillbox.extras import import_extra

FILE, RAW_FILE = "model.onnx", "model_raw.onnx"
_PIXELS, _RAW_BOXES, _RAW_SCORES = "pixels", "raw_detection_boxes", "raw_detection_scores"


def write(program: ExportProgram, folder: Path, calibration: Sequence[np.ndarray]) -> Written:
    """Writes both files.

    Raises:
        UserError: onnx is not installed, or the model has an operation that ONNX cannot hold.
    """
    del calibration  # nothing is quantised
    onnx = import_extra("onnx", "onnx")
    onnx.save(_whole_model(program), folder / FILE)
    onnx.save(_raw_model(program), folder / RAW_FILE)
    return Written(
        files={
            FILE: "ONNX: images to detections, for onnxruntime and OpenVINO",
            RAW_FILE: "ONNX: resized images to boxes and scores before suppression, for TensorRT",
        },
        needs={
            "onnxruntime": ">=1.16",
            "openvino": ">=2024.6",
            "onnx": f"opset {OPSET}, IR version {IR_VERSION}",
        },
        written_with={"onnx": onnx.__version__},
    )


def _whole_model(program: ExportProgram) -> Any:  # noqa: ANN401
    settings, size, graph = program.settings, program.image_size, Graph()
    uint8 = settings.input_dtype == "uint8"
    if settings.input_type == "raw_image_tensor":
        sides = np.array(size, np.float32)
        resized = Resized(settings.input, sides, sides)
    else:
        resizer = program.description.resizer
        resized = add_preprocessing(graph, resizer, settings.input, size, uint8=uint8)
    boxes, scores = add_network(graph, program, resized.pixels)
    class_scores = _without_background(graph, program, scores)
    anchors = len(program.anchors)
    found = add_suppression(
        graph, program.description, anchors, boxes, class_scores, resized.true_size
    )
    outputs = add_outputs(graph, program, found, (boxes, scores), resized)
    shape = _batch(program), *(size or ("height", "width")), 3
    return graph.model(
        {settings.input: (UINT8 if uint8 else FLOAT, shape)},
        {name: (kind, (_batch(program), *rest)) for name, (kind, rest) in outputs.items()},
        program.model.source,
    )


def _raw_model(program: ExportProgram) -> Any:  # noqa: ANN401
    graph = Graph()
    boxes, scores = add_network(graph, program, _PIXELS)
    graph.op("Identity", boxes, name=_RAW_BOXES)
    graph.op("Identity", _without_background(graph, program, scores), name=_RAW_SCORES)
    batch, anchors = _batch(program), len(program.anchors)
    return graph.model(
        {_PIXELS: (FLOAT, (batch, *program.input_size, 3))},
        {
            _RAW_BOXES: (FLOAT, (batch, anchors, 4)),
            _RAW_SCORES: (FLOAT, (batch, anchors, program.description.num_classes)),
        },
        program.model.source,
    )


def _batch(program: ExportProgram) -> int | str:
    return program.settings.batch_size or "batch"


def _without_background(graph: Graph, program: ExportProgram, scores: str) -> str:
    model = program.description
    if not model.background_class:
        return scores
    ends = np.array([1]), np.array([model.num_classes + 1])
    return graph.op("Slice", scores, *ends, np.array([2]))
