"""TFLite models that end in the operation `TFLite_Detection_PostProcess`.

Frigate, pycoral and the mobile clients of the Object Detection API expect it, and the compiler of
the Edge TPU leaves it to the CPU. It decodes boxes and suppresses, in float32; before it come box
encodings and scores of all anchors. The original is TensorFlow's `lite/kernels/
detection_postprocess.cc`; the options are as in `export_tflite_ssd_graph_lib.py` of the Object
Detection API.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.devices.process import own_processors
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.tflite.conversion import INPUT, resize_images
from stillbox.exporting.tflite.quantization import Range, operations_of
from stillbox.inputs.resize import resized_size
from stillbox.models.one_stage.detector import OneStageDetector, class_scores, decode_boxes
from stillbox.models.postprocessing import convert_logits
from stillbox.models.variables import bind_detector
from stillbox.references import Parameter

if TYPE_CHECKING:
    from ai_edge_litert import schema_py_generated as flat

NAME = "TFLite_Detection_PostProcess"
_LEAST_SIDE = 1e-9
"""Of a box in sides of the image; the operation takes its exponential."""
_LEAST_SCORE = 1 / 512
"""A lower score is rounded to 0 of 256."""
_SAME_RANGE = ("CONCATENATION", "RESHAPE", "LOGISTIC")
_SHOWN = 100
"""Anchors of an image with encodings that have to fit into the range."""
_WHERE = f"{Parameter('postprocess', 'detection_op')}"
_BUILT_IN = f"use {Parameter('postprocess')} built_in"


def check_fit(program: ExportProgram) -> schema.OneStage:
    """Returns the configuration of a detector that the operation fits.

    Raises:
        UserError: it decodes, scores or suppresses otherwise, or its images leave room in the
            network input; the message names the first such field.
    """
    model = program.description
    if not isinstance(model, schema.OneStage):
        problem = (
            f"{NAME} decodes the boxes of anchors, and a model of kind {model.kind} has others"
        )
        raise UserError(problem, where=_WHERE, fix=_BUILT_IN)
    scores, nms = model.postprocessing, model.postprocessing.nms
    plain: dict[str, tuple[object, object]] = {
        "postprocessing.calibration": (scores.calibration, None),
        "postprocessing.nms.soft_sigma": (nms.soft_sigma, 0.0),
        "postprocessing.nms.drop_at_threshold": (nms.drop_at_threshold, False),
        "postprocessing.nms.max_candidates_per_class": (nms.max_candidates_per_class, 0),
        "postprocessing.nms.max_candidates_per_level": (nms.max_candidates_per_level, 0),
        "postprocessing.nms.combined": (nms.combined, False),
    }
    for field, (value, wanted) in plain.items():
        if value != wanted:
            problem = f"{NAME} has no {field.rpartition('.')[2]}, which is {value} in this model"
            raise UserError(problem, where=f"model.{field}", fix=_BUILT_IN)
    if isinstance(model.head, schema.AtssHead):
        problem = f"{NAME} multiplies no scores by the centerness that the head atss predicts"
        raise UserError(problem, where="model.head", fix=_BUILT_IN)
    if nms.empty_boxes == "drop":
        problem = f"{NAME} keeps boxes without area, which this model drops"
        raise UserError(problem, where="model.postprocessing.nms.empty_boxes", fix=_BUILT_IN)
    if program.settings.quantize == "int8":
        _check_decoding(model)
        _check_norms(model)
    size = program.image_size or program.input_size
    if resized_size(size, model.resizer) != program.input_size:
        problem = (
            f"an image of {size[0]}x{size[1]} does not fill the network input, as {NAME} expects"
        )
        raise UserError(problem, where=Parameter("image_size"), fix=_BUILT_IN)
    return model


def _foreign_decoding(model: schema.OneStage) -> tuple[str, object] | None:
    """Returns the first field, with its value, that the operation's own decoding does not support.

    The network then decodes the boxes: see `raw_predictions`. None: the operation decodes them.
    """
    coder = model.box_coder
    if not isinstance(coder, schema.FasterRcnnBoxCoder):
        return "box_coder.kind", coder.kind
    if coder.inclusive_edges != "none":
        return "box_coder.inclusive_edges", coder.inclusive_edges
    if coder.max_log_ratio:
        return "box_coder.max_log_ratio", coder.max_log_ratio
    if (limits := model.postprocessing.box_encodings_clip) is not None:
        return "postprocessing.box_encodings_clip", limits
    return None


def _check_decoding(model: schema.OneStage) -> None:
    if (foreign := _foreign_decoding(model)) is not None:
        field, value = foreign
        raise UserError(
            f"with {field.rpartition('.')[2]} {value} the network decodes the boxes before {NAME}, "
            "which 8-bit integers are too coarse for",
            where=f"model.{field}",
            fix=f"export it with {Parameter('quantize', 'none')}, or {_BUILT_IN}",
        )


def _check_norms(model: schema.OneStage) -> None:
    for name, conv in model.convolutions().items():
        if conv.group_norm is not None:
            raise UserError(
                "group norm measures every image anew, and cannot be folded into kernels of "
                "integers as batch norm is",
                where=f"model.{name}.group_norm",
                fix=f"export it with {Parameter('quantize', 'none')}, or train it with batch_norm",
            )


def raw_predictions(program: ExportProgram) -> Callable[[jax.Array], tuple[jax.Array, ...]]:
    """Returns images `[1, h, w, C]` -> encodings `[1, A, 4]` and scores `[1, A, slots]`.

    Boxes that the operation does not decode are decoded here, and encoded relative to the whole
    image, which is then every box's anchor.
    """
    model = check_fit(program)

    def predict(images: jax.Array) -> tuple[jax.Array, ...]:
        if program.settings.image_size is not None:
            images = resize_images(images, model.resizer, program.image_kind)
        detector = _detector(program)
        predictions = detector(images.astype(jnp.float32), train=False)
        encodings = predictions.box_encodings
        with jax.named_scope("postprocess"):
            if _foreign_decoding(model):
                boxes = decode_boxes(encodings, detector.anchors, model)
                sides = jnp.maximum(boxes[..., 2:] - boxes[..., :2], _LEAST_SIDE)
                centers = (boxes[..., :2] + boxes[..., 2:]) / 2
                encodings = jnp.concatenate([centers, jnp.log(sides)], axis=-1)
            scores = convert_logits(predictions.class_logits, model.postprocessing)
        return encodings, scores

    return predict


def of_normalized_pixels(program: ExportProgram) -> tuple[ExportProgram, int, float]:
    """Returns the program of images that are normalised already, and how: `(x - zero) / scale`.

    A quantised input of uint8 is normalised by its zero point and scale, in which the mean is a
    whole number: half a level from 127.5, as in the originals.

    Raises:
        UserError: the normalisation differs by channel.
    """
    model = check_fit(program)
    means, scales = set(model.pixels.mean), set(model.pixels.std)
    if len(means) > 1 or len(scales) > 1:
        raise UserError(
            "uint8 images of an integer model have one mean and one scale, and this model's pixels "
            "are normalised channel by channel",
            where="model.pixels",
            fix=f"export it with {Parameter('quantize', 'none')}, or train one with a mean and std "
            "of 127.5",
        )
    identity = dataclasses.replace(model.pixels, mean=(0.0,), std=(1.0,))
    plain = dataclasses.replace(model, pixels=identity)
    experiment = dataclasses.replace(program.model.experiment, model=plain)
    settings = dataclasses.replace(
        program.settings, input_type="float_image_tensor", image_size=None, max_detections=None
    )
    trained = dataclasses.replace(program.model, experiment=experiment)
    return ExportProgram(trained, settings), round(means.pop()), scales.pop()


def measured_ranges(
    content: bytes, images: Sequence[np.ndarray], model: schema.OneStage
) -> dict[str, Range]:
    """Returns the ranges of the operation's inputs, by the tensors that have to share them.

    The quantiser averages the extremes of images, which cuts off the best scores. Here the range of
    logits ends at the greatest one, and begins where the integer of a score becomes 0. The range of
    encodings is taken from the anchors with the best scores. `content` is from `raw_predictions`.
    """
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(model_content=content, num_threads=own_processors()).get_signature_runner()
    edges, logits = [0.0], [0.0]
    for image in images:
        outputs = run(**{INPUT: image})
        encodings, scores = outputs["output_0"][0], class_scores(outputs["output_1"][0], model)
        best = np.asarray(scores).max(axis=1)
        shown = encodings[np.argsort(best)[-_SHOWN:]]
        edges += [float(shown.min()), float(shown.max())]
        most = min(float(best.max()), 1 - _LEAST_SCORE)
        logits.append(float(np.log(most / (1 - most))))
    least = float(np.log(_LEAST_SCORE / (1 - _LEAST_SCORE)))
    ranges = {"output_0": (min(edges), max(edges)), "output_1": (least, max(logits))}
    return {name: ranges[output] for output, name in _sharing(content)}


def joined_ranges(content: bytes, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """Returns known ranges by tensor; the ranges of an input of the operation are joined."""
    joined: dict[str, Range] = {}
    pairs = list(_sharing(content))
    for output in {output for output, _ in pairs}:
        names = [name for result, name in pairs if result == output]
        known = [ranges[name] for name in names if name in ranges]
        low, high = min(pair[0] for pair in known), max(pair[1] for pair in known)
        joined.update(dict.fromkeys(names, (low, high)))
    return {**ranges, **joined}


def _sharing(content: bytes) -> Iterator[tuple[str, str]]:
    """Yields an output and a tensor, for every tensor that has to have its range."""
    from ai_edge_litert.tools import flatbuffer_utils

    model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
    (graph,), (signature,) = model.subgraphs, model.signatureDefs
    makers = {index: pair for pair in operations_of(model) for index in pair[1].outputs}
    for output in signature.outputs:
        waiting = [output.tensorIndex]
        while waiting:
            index = waiting.pop()
            kind, operation = makers.get(index, ("", None))
            if kind != "LOGISTIC":  # its result always has 1/256 as unit
                yield output.name.decode(), graph.tensors[index].name.decode()
            if operation is not None and kind in _SAME_RANGE:
                waiting += list(operation.inputs)[: None if kind == "CONCATENATION" else 1]


def append(content: bytes, program: ExportProgram, pixels: tuple[int, float] | None) -> bytes:
    """Returns a model of `raw_predictions` with the operation behind it.

    Args:
        content: a model with the outputs `output_0`, encodings, and `output_1`, scores.
        pixels: zero point and scale of a uint8 input, if the model takes normalised pixels and
            quantises them; None: its input stays.
    """
    from ai_edge_litert import schema_py_generated as flat
    from ai_edge_litert.tools import flatbuffer_utils

    model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
    for held in model.buffers:
        if held.data is not None:  # an array is not copied byte by byte
            held.data = np.frombuffer(held.data, np.uint8)
    (graph,), (signature,) = model.subgraphs, model.signatureDefs
    tensors = {entry.name.decode(): entry.tensorIndex for entry in signature.outputs}
    if pixels is not None:
        _take_bytes(graph.tensors[signature.inputs[0].tensorIndex], *pixels)
    most = check_fit(program).max_detections
    shapes = (1, most, 4), (1, most), (1, most), (1,)
    operation = flat.OperatorT()
    operation.opcodeIndex = len(model.operatorCodes)
    anchors = _anchors(program)
    operation.inputs = [
        tensors["output_0"],
        tensors["output_1"],
        _add_tensor(model, "anchors", anchors.shape, anchors.tobytes()),
    ]
    operation.outputs = [
        _add_tensor(model, f"output_{index}", shape) for index, shape in enumerate(shapes)
    ]
    operation.customOptions = np.frombuffer(_options(program), np.uint8)
    graph.operators.append(operation)
    model.operatorCodes.append(_code())
    graph.outputs = operation.outputs
    signature.outputs = [
        _output(f"output_{index}", tensor) for index, tensor in enumerate(operation.outputs)
    ]
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


def _detector(program: ExportProgram) -> OneStageDetector:
    weights = jax.tree.map(jnp.asarray, program.weights)
    detector = bind_detector(program.detector.graph, weights["params"], weights["stats"])
    assert isinstance(detector, OneStageDetector)
    return detector


def _anchors(program: ExportProgram) -> np.ndarray:
    """Returns the anchors as centre y, centre x, height and width, `[A, 4]` float32."""
    anchors = np.asarray(_detector(program).anchors, np.float32)
    if _foreign_decoding(check_fit(program)):
        return np.tile(np.array([0, 0, 1, 1], np.float32), (len(anchors), 1))
    low, high = np.split(anchors, 2, axis=1)
    return np.concatenate([(low + high) / 2, high - low], axis=1)


def _options(program: ExportProgram) -> bytes:
    """Returns the options of the operation, a map of flexbuffers."""
    from flatbuffers import flexbuffers

    model = check_fit(program)
    coder, nms = model.box_coder, model.postprocessing.nms
    if _foreign_decoding(model) or not isinstance(coder, schema.FasterRcnnBoxCoder):
        coder = schema.FasterRcnnBoxCoder(y_scale=1, x_scale=1, height_scale=1, width_scale=1)
    options = {
        "max_detections": nms.max_total,
        "max_classes_per_detection": 1,
        "detections_per_class": nms.max_per_class,
        "use_regular_nms": not nms.class_agnostic,
        "nms_score_threshold": nms.score_threshold,
        "nms_iou_threshold": nms.iou_threshold,
        "num_classes": model.num_classes,
        "y_scale": coder.y_scale,
        "x_scale": coder.x_scale,
        "h_scale": coder.height_scale,
        "w_scale": coder.width_scale,
    }
    return bytes(flexbuffers.Dumps(options))


def _take_bytes(tensor: "flat.TensorT", zero: int, scale: float) -> None:
    from ai_edge_litert import schema_py_generated as flat

    tensor.type = flat.TensorType.UINT8
    tensor.quantization = flat.QuantizationParametersT()
    tensor.quantization.scale = np.array([1 / scale], np.float32)
    tensor.quantization.zeroPoint = np.array([zero], np.int64)


def _add_tensor(
    model: "flat.ModelT", name: str, shape: tuple[int, ...], data: bytes | None = None
) -> int:
    """Adds a float32 tensor, with `data` a constant, and returns its number."""
    from ai_edge_litert import schema_py_generated as flat

    tensor = flat.TensorT()
    tensor.name, tensor.type = name, flat.TensorType.FLOAT32
    tensor.shape = np.array(shape, np.int32)
    tensor.buffer = 0  # the empty one
    if data is not None:
        buffer = flat.BufferT()
        buffer.data = np.frombuffer(data, np.uint8)
        tensor.buffer = len(model.buffers)
        model.buffers.append(buffer)
    (graph,) = model.subgraphs
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1


def _code() -> "flat.OperatorCodeT":
    from ai_edge_litert import schema_py_generated as flat

    code = flat.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = flat.BuiltinOperator.CUSTOM
    code.customCode, code.version = NAME, 1
    return code


def _output(name: str, tensor: int) -> "flat.TensorMapT":
    from ai_edge_litert import schema_py_generated as flat

    entry = flat.TensorMapT()
    entry.name, entry.tensorIndex = name, tensor
    return entry
