"""The outputs of either signature as an ONNX graph: those of `ExportProgram.outputs`."""

import numpy as np

from stillbox.exporting.onnx.graph import FLOAT, INT32, Graph, Info, Operand
from stillbox.exporting.onnx.nms import Picked
from stillbox.exporting.onnx.pixels import Resized
from stillbox.exporting.program import ExportProgram

_ZERO = np.array(0, np.float32)

_Outputs = dict[str, tuple[str, int, tuple[int, ...]]]
"""Tensor, type, and shape without the batch axis, by name."""


def add_outputs(
    graph: Graph, program: ExportProgram, found: Picked, raw: tuple[str, str], sizes: Resized
) -> dict[str, Info]:
    """Writes the outputs of the signature into a graph, under their names and in their order.

    Args:
        graph: nodes are appended to it.
        program: the detector.
        found: the detections.
        raw: names of the boxes `[B, A, 4]` and of the scores of all slots `[B, A, slots]`.
        sizes: of the images.

    Returns:
        Types, and shapes without the batch axis, by name.
    """
    ids = np.array(program.model.slots().ids, np.int64)
    class_ids = graph.op("Gather", ids, found.classes)
    if program.settings.signature == "tpu":
        outputs = _tpu_outputs(graph, program, found, class_ids, sizes)
    else:
        outputs = _detection_api_outputs(graph, program, found, class_ids, raw)
    for name, (tensor, kind, _) in outputs.items():
        graph.op("Cast", tensor, to=kind, name=name)
    return {name: (kind, shape) for name, (_, kind, shape) in outputs.items()}


def _detection_api_outputs(
    graph: Graph, program: ExportProgram, found: Picked, class_ids: str, raw: tuple[str, str]
) -> _Outputs:
    boxes, scores = raw
    at = graph.op("Unsqueeze", found.anchors, np.array([2]))
    rows = graph.op("GatherND", scores, at, batch_dims=1)
    real = graph.op("Unsqueeze", found.real, np.array([2]))
    most = program.description.postprocessing.nms.max_total
    anchors = len(program.anchors)
    slots = program.description.num_classes + program.description.background_class
    slot_scores = graph.op("Where", real, rows, _ZERO)
    return {
        "detection_anchor_indices": (found.anchors, FLOAT, (most,)),
        "detection_boxes": (found.boxes, FLOAT, (most, 4)),
        "detection_classes": (class_ids, FLOAT, (most,)),
        "detection_multiclass_scores": (slot_scores, FLOAT, (most, slots)),
        "detection_scores": (found.scores, FLOAT, (most,)),
        "num_detections": (found.counts, FLOAT, ()),
        "raw_detection_boxes": (boxes, FLOAT, (anchors, 4)),
        "raw_detection_scores": (scores, FLOAT, (anchors, slots)),
    }


def _tpu_outputs(
    graph: Graph, program: ExportProgram, found: Picked, class_ids: str, sizes: Resized
) -> _Outputs:
    settings = program.settings
    nms = program.description.postprocessing.nms
    whole = np.array(program.input_size, np.float32)
    frame = sizes.true_size if nms.change_coordinate_frame else whole
    boxes = graph.op("Mul", found.boxes, graph.op("Concat", frame, frame, axis=0))
    if settings.normalized_coordinates:
        true = graph.op("Concat", sizes.true_size, sizes.true_size, axis=0)
        boxes = graph.op("Div", boxes, true)
    count_type = FLOAT if settings.float_count else INT32
    class_type = FLOAT if settings.float_classes else INT32
    outputs: _Outputs = {
        "num_detections": (found.counts, count_type, ()),
        "detection_boxes": (boxes, FLOAT, (nms.max_total, 4)),
        "detection_classes": (class_ids, class_type, (nms.max_total,)),
        "detection_scores": (found.scores, FLOAT, (nms.max_total,)),
    }
    if settings.image_info:
        outputs["image_info"] = (_image_info(graph, whole, found, sizes), FLOAT, (4, 2))
    return outputs


def _image_info(graph: Graph, whole: np.ndarray, found: Picked, sizes: Resized) -> str:
    scale = graph.op("Div", sizes.true_size, sizes.original_size)
    rows: list[Operand] = [sizes.original_size, whole, scale, np.zeros(2, np.float32)]
    info = graph.op("Reshape", graph.op("Concat", *rows, axis=0), np.array([4, 2]))
    batch = graph.op("Shape", found.counts)
    return graph.op("Expand", info, graph.op("Concat", batch, np.array([4, 2]), axis=0))
