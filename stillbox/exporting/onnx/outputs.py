"""The outputs of either signature as an ONNX graph: those of `ExportProgram.outputs`."""

from typing import NamedTuple

import numpy as np

from stillbox.exporting.onnx.graph import FLOAT, INT32, Graph, Operand
from stillbox.exporting.onnx.nms import Picked
from stillbox.exporting.onnx.pixels import Resized
from stillbox.exporting.program import ExportProgram

_ZERO = np.array(0, np.float32)


class Output(NamedTuple):
    """One output of an artefact."""

    type: int
    """`TensorProto.FLOAT` or `TensorProto.INT32`."""
    shape: tuple[int, ...]
    """Without the images' axis."""


def add_outputs(
    graph: Graph, program: ExportProgram, found: Picked, raw: tuple[str, str], sizes: Resized
) -> dict[str, Output]:
    """Writes the outputs of the signature into a graph, under their names and in their order.

    Args:
        graph: where to.
        program: the detector.
        found: what suppression has left.
        raw: names of the boxes `[B, A, 4]` and of the scores of all slots `[B, A, slots]`.
        sizes: of the images.
    """
    if program.settings.signature == "tpu":
        return _tpu_outputs(graph, program, found, sizes)
    return _detection_api_outputs(graph, program, found, raw)


def _detection_api_outputs(
    graph: Graph, program: ExportProgram, found: Picked, raw: tuple[str, str]
) -> dict[str, Output]:
    boxes, scores = raw
    at = graph.op("Unsqueeze", found.anchors, np.array([2]))
    rows = graph.op("GatherND", scores, at, batch_dims=1)
    real = graph.op("Unsqueeze", found.real, np.array([2]))
    most = program.description.postprocessing.nms.max_total
    anchors = len(program.anchors)
    slots = program.description.num_classes + program.description.background_class
    graph.op("Cast", found.anchors, to=FLOAT, name="detection_anchor_indices")
    graph.op("Identity", found.boxes, name="detection_boxes")
    graph.op("Cast", _class_ids(graph, program, found), to=FLOAT, name="detection_classes")
    graph.op("Where", real, rows, _ZERO, name="detection_multiclass_scores")
    graph.op("Identity", found.scores, name="detection_scores")
    graph.op("Cast", found.found, to=FLOAT, name="num_detections")
    graph.op("Identity", boxes, name="raw_detection_boxes")
    graph.op("Identity", scores, name="raw_detection_scores")
    return {
        "detection_anchor_indices": Output(FLOAT, (most,)),
        "detection_boxes": Output(FLOAT, (most, 4)),
        "detection_classes": Output(FLOAT, (most,)),
        "detection_multiclass_scores": Output(FLOAT, (most, slots)),
        "detection_scores": Output(FLOAT, (most,)),
        "num_detections": Output(FLOAT, ()),
        "raw_detection_boxes": Output(FLOAT, (anchors, 4)),
        "raw_detection_scores": Output(FLOAT, (anchors, slots)),
    }


def _tpu_outputs(
    graph: Graph, program: ExportProgram, found: Picked, sizes: Resized
) -> dict[str, Output]:
    settings = program.settings
    nms = program.description.postprocessing.nms
    whole = np.array(program.input_size, np.float32)
    frame = sizes.true_size if nms.change_coordinate_frame else whole
    boxes = graph.op("Mul", found.boxes, graph.op("Concat", frame, frame, axis=0))
    if settings.normalized_coordinates:
        true = graph.op("Concat", sizes.true_size, sizes.true_size, axis=0)
        boxes = graph.op("Div", boxes, true)
    count, classes = (FLOAT if floats else INT32
                      for floats in (settings.float_count, settings.float_classes))  # fmt: skip
    graph.op("Cast", found.found, to=count, name="num_detections")
    graph.op("Identity", boxes, name="detection_boxes")
    graph.op("Cast", _class_ids(graph, program, found), to=classes, name="detection_classes")
    graph.op("Identity", found.scores, name="detection_scores")
    outputs = {
        "num_detections": Output(count, ()),
        "detection_boxes": Output(FLOAT, (nms.max_total, 4)),
        "detection_classes": Output(classes, (nms.max_total,)),
        "detection_scores": Output(FLOAT, (nms.max_total,)),
    }
    if settings.image_info:
        _add_image_info(graph, whole, found, sizes)
        outputs["image_info"] = Output(FLOAT, (4, 2))
    return outputs


def _add_image_info(graph: Graph, whole: np.ndarray, found: Picked, sizes: Resized) -> None:
    scale = graph.op("Div", sizes.true_size, sizes.original_size)
    rows: list[Operand] = [sizes.original_size, whole, scale, np.zeros(2, np.float32)]
    info = graph.op("Reshape", graph.op("Concat", *rows, axis=0), np.array([4, 2]))
    batch = graph.op("Shape", found.found)
    shape = graph.op("Concat", batch, np.array([4, 2]), axis=0)
    graph.op("Expand", info, shape, name="image_info")


def _class_ids(graph: Graph, program: ExportProgram, found: Picked) -> str:
    return graph.op("Gather", np.array(program.model.slots().ids, np.int64), found.classes)
