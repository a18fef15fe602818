"""ONNX: one file from images to detections, and one that ends before suppression."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from stillbox.devices.processors import own_processors
from stillbox.errors import UserError
from stillbox.exporting.formats import Run, Written
from stillbox.exporting.manifest import Manifest
from stillbox.exporting.onnx.graph import FLOAT, IR_VERSION, OPSET, UINT8, Graph
from stillbox.exporting.onnx.network import add_network
from stillbox.exporting.onnx.nms import add_suppression
from stillbox.exporting.onnx.openvino import load_openvino
from stillbox.exporting.onnx.outputs import add_outputs
from stillbox.exporting.onnx.pixels import Resized, add_preprocessing
from stillbox.exporting.program import ExportProgram

FILE, RAW_FILE = "model.onnx", "model_raw.onnx"
_PIXELS, _RAW_BOXES, _RAW_SCORES = "pixels", "raw_detection_boxes", "raw_detection_scores"


def write(program: ExportProgram, folder: Path, calibration: Sequence[np.ndarray]) -> Written:
    """Writes both files.

    Raises:
        UserError: onnx is not installed, or the model has something that ONNX cannot hold.
    """
    del calibration  # nothing is quantised
    try:
        import onnx
    except ImportError as error:
        raise UserError("onnx is not installed", fix="pip install 'stillbox[onnx]'") from error
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
    settings, graph = program.settings, Graph()
    raw = settings.input_type == "raw_image_tensor"
    size = program.input_size if raw else settings.image_size
    if raw:
        sides = np.array(program.input_size, np.float32)
        resized = Resized(settings.input, sides, sides)
    else:
        whole = settings.input_type == "image_tensor"
        resizer = program.description.resizer
        resized = add_preprocessing(graph, resizer, settings.input, size, whole=whole)
    boxes, scores = add_network(graph, program, resized.pixels)
    class_scores = _without_background(graph, program, scores)
    anchors = len(program.anchors)
    found = add_suppression(
        graph, program.description, anchors, boxes, class_scores, resized.true_size
    )
    outputs = add_outputs(graph, program, found, (boxes, scores), resized)
    kind = UINT8 if settings.input_type == "image_tensor" else FLOAT
    return graph.model(
        {settings.input: (kind, (_batch(program), *(size or ("height", "width")), 3))},
        {name: (one.type, (_batch(program), *one.shape)) for name, one in outputs.items()},
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


def load(folder: Path, manifest: Manifest, runtime: str = "") -> Run:
    """Loads the file into onnxruntime, or into OpenVINO.

    Raises:
        UserError: the runtime is not known or not installed, or refuses the file. What is returned
            raises it for an input that does not fit.
    """
    loaders = {"": _load_onnxruntime, "onnxruntime": _load_onnxruntime, "openvino": load_openvino}
    if runtime not in loaders:
        raise UserError(
            f"{runtime} does not run ONNX", fix="use --runtime onnxruntime or --runtime openvino"
        )
    run = loaders[runtime](folder / FILE, manifest)

    def checked_run(images: Any) -> dict[str, np.ndarray]:  # noqa: ANN401
        try:
            return run(images)
        except Exception as error:  # each runtime has its own
            raise UserError(
                f"the model does not take {images.dtype} {list(images.shape)}: {error}",
                where=str(folder / FILE),
                fix="export.json says what it takes; an image must fit the resizer's canvas",
            ) from error

    return checked_run


def _load_onnxruntime(file: Path, manifest: Manifest) -> Run:
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError(
            "onnxruntime is not installed", fix="pip install 'stillbox[onnx]'"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = own_processors()
    options.log_severity_level = 4  # errors come as exceptions
    try:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise UserError(
            f"onnxruntime {version('onnxruntime')} refuses the model: {error}",
            where=str(file),
            fix=f"it needs onnxruntime {manifest.needs['onnxruntime']}",
        ) from error
    names = [one.name for one in session.get_outputs()]

    def run(images: Any) -> dict[str, np.ndarray]:  # noqa: ANN401
        arrays = session.run(names, {manifest.settings.input: images})
        return dict(zip(names, arrays, strict=True))

    return run
