"""TensorFlow Lite (LiteRT): one file of built-in operations for phones, suppression included.

A model has the four outputs of `TFLite_Detection_PostProcess`, and the metadata that MediaPipe's
ObjectDetector requires.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from stillbox.checkpoints.trained import TrainedModel
from stillbox.devices.process import own_processors
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.exporting.backend import Run, input_values, prepare_image, refusal
from stillbox.exporting.manifest import MAX_PROGRAM_BYTES, Manifest, Written
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.tflite import detection_op, metadata
from stillbox.exporting.tflite.conversion import convert_program, converter_version, detect_function
from stillbox.exporting.tflite.edge_tpu import check_operations
from stillbox.exporting.tflite.quantization import (
    BITS,
    Ranges,
    float_program,
    quantize,
    shrink,
    tensor_ranges,
)
from stillbox.extras import import_extra
from stillbox.inputs.resize import misfit
from stillbox.references import Parameter
from stillbox.untrusted import read_untrusted

FILE = "model.tflite"
_UNUSED = "???"


def write(program: ExportProgram, folder: Path, calibration: Sequence[np.ndarray]) -> Written:
    """Writes `model.tflite`.

    It takes one image of one size and returns `detection_boxes` `[1, K, 4]`, `detection_classes`
    `[1, K]` (class indices from 0, the lines of `labels.txt` inside the file), `detection_scores`
    `[1, K]` and `num_detections` `[1]`, all float32, boxes normalised.

    Raises:
        UserError: the extra is not installed, images of the given size do not fit the resizer's
            canvas, or TensorFlow Lite does not have an operation of the model.
    """
    size = program.settings.image_size
    if size and (reason := misfit(size, program.description.resizer)):
        raise UserError(f"the image does not fit: {reason}", where=Parameter("image_size"))
    import_extra("ai_edge_litert", "tflite")
    description = _description(program)
    op = program.settings.postprocess == "detection_op"
    content = (_with_detection_op if op else _built_in)(program, calibration)
    content = metadata.describe(content, program.settings, description)
    (folder / FILE).write_bytes(content)
    ending = f"ends in {detection_op.NAME}" if op else "built-in operations only"
    return Written(
        files={FILE: f"{ending}, with labels and metadata for MediaPipe"},
        needs={"LiteRT or TensorFlow Lite": f">={metadata.least_runtime(content)}"},
        written_with={"jax": jax.__version__, "litert-converter": converter_version()},
    )


def _built_in(program: ExportProgram, calibration: Sequence[np.ndarray]) -> bytes:
    if program.settings.quantize != "int8":
        content = _shrunk(program, convert_program(program, detect_function(program)))
    elif program.quantization is None:
        content = convert_program(program, detect_function(program))
        content = quantize(content, [_model_input(program, image) for image in calibration])
    else:
        plain, ranges = _float_program(program)
        content = convert_program(plain, detect_function(plain))
        # Towers of several maps have batch norms behind one kernel. They stay float.
        whole = isinstance(program.description.parts["head"], schema.ConvolutionalHead)
        parts = ("backbone", "neck", "head") if whole else ("backbone", "neck")
        known = tensor_ranges(content, ranges, parts)
        image = _model_input(plain, _every_value(program))
        content = quantize(content, [image], known, part="network" if whole else "trunk")
    _check_operators(content)
    return content


def _with_detection_op(program: ExportProgram, calibration: Sequence[np.ndarray]) -> bytes:
    """Returns a model that ends in the operation; of integers before it, if quantised."""
    model = detection_op.check_fit(program)
    if program.settings.quantize != "int8":
        content = convert_program(program, detection_op.raw_predictions(program))
        content = _shrunk(program, content)
        _check_operators(content)
        return detection_op.append(content, program, None)
    plain, zero, scale = detection_op.of_normalized_pixels(program)
    trained: Ranges | None = None
    if program.quantization is not None:
        plain, trained = _float_program(plain)
        calibration = [_every_value(program)]
    content = convert_program(plain, detection_op.raw_predictions(plain))
    check_operations(content, quantized=False)
    pixels = [_model_input(program, image).astype(np.float32) for image in calibration]
    images = [(image - np.float32(zero)) / np.float32(scale) for image in pixels]
    if trained is None:
        ranges = detection_op.measured_ranges(content, images, model)
    else:
        known = tensor_ranges(content, trained, ("backbone", "neck", "head"))
        ranges = detection_op.joined_ranges(content, known)
    content = quantize(content, images, ranges, part="model")
    content = detection_op.append(content, program, (zero, scale))
    check_operations(content, quantized=True)
    return content


def _shrunk(program: ExportProgram, content: bytes) -> bytes:
    kind = program.settings.quantize
    return shrink(content, kind) if kind in ("float16", "dynamic") else content


def _float_program(program: ExportProgram) -> tuple[ExportProgram, Ranges]:
    """Returns `float_program` of a detector that was trained with rounding to 8 bits."""
    quantization = program.quantization
    assert quantization is not None
    for name in ("weight_bits", "activation_bits"):
        if (bits := getattr(quantization, name)) != BITS:
            problem = f"training has rounded to {bits} bits, and int8 has {BITS}"
            raise UserError(problem, where=f"train.quantization.{name}", fix="export it in float")
    return float_program(program)


def _every_value(program: ExportProgram) -> np.ndarray:
    """Returns an image with the whole range of pixels, which alone are measured on it."""
    size, kind = program.settings.image_size or program.input_size, program.image_kind
    pixels = np.zeros((*size, kind.channels), kind.dtype)
    pixels[::2] = 255
    return pixels


def load(folder: Path, manifest: Manifest) -> Run:
    """Loads the file into LiteRT.

    The outputs have the names of the signature `detection_api`; `detection_classes` are label map
    ids, as in every other format.

    Raises:
        UserError: LiteRT is not installed, or refuses the file.
    """
    import_extra("ai_edge_litert", "tflite")
    from ai_edge_litert.interpreter import Interpreter

    content = read_untrusted(folder / FILE, most=MAX_PROGRAM_BYTES)
    op = manifest.settings.postprocess == "detection_op"
    # With several threads the operation loses a detection now and then (ai-edge-litert 2.3.0).
    threads = 1 if op else own_processors()
    fix = "install a later ai-edge-litert"
    with refusal("LiteRT", folder / FILE, fix, ValueError, RuntimeError):
        interpreter = Interpreter(model_content=content, num_threads=threads)
        runner = interpreter.get_signature_runner()
    ids = np.array(metadata.label_ids(content, str(folder / FILE)), np.float32)
    # An interpreter serves one thread at a time.
    lock = threading.Lock()

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        with lock:
            named = runner(**{manifest.settings.input: np.asarray(images)})
        names = manifest.settings.output_names or metadata.OUTPUTS
        outputs = {usual: named[name] for usual, name in zip(metadata.OUTPUTS, names, strict=True)}
        indices = np.rint(outputs["detection_classes"]).astype(int)
        if not 0 <= indices.min() <= indices.max() < len(ids):
            problem = f"the model found a class beyond the {len(ids)} of its {metadata.LABEL_IDS}"
            raise UserError(problem, where=str(folder / FILE), fix="export the model again")
        # The custom operation does not clip boxes.
        boxes = np.clip(outputs["detection_boxes"], 0, 1) if op else outputs["detection_boxes"]
        converted = {"detection_boxes": boxes, "detection_classes": ids[indices]}
        return {name: converted.get(name, outputs[name]) for name in metadata.OUTPUTS}

    return run


def class_labels(model: TrainedModel) -> list[str]:
    """Returns the name of every class index, each on one line; `???` for an unused one."""
    names = model.class_names()
    return [" ".join(names.get(class_id, _UNUSED).splitlines()) for class_id in model.slots().ids]


def _description(program: ExportProgram) -> metadata.Description:
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    if program.settings.input_type == "raw_image_tensor":
        mean, std = program.normalization.mean, program.normalization.std
    return metadata.Description(
        name=program.model.name,
        labels=class_labels(program.model),
        label_ids=program.model.slots().ids,
        mean=mean,
        std=std,
        channels=program.image_kind.channels,
    )


def _model_input(program: ExportProgram, image: np.ndarray) -> np.ndarray:
    """Returns an image as input of the model, to calibrate on."""
    model, settings = program.description, program.settings
    prepared = prepare_image(image, settings.image_size or program.input_size, model.resizer)
    return input_values(prepared.pixels[None], settings.input_type, model.normalization)


def _check_operators(content: bytes) -> None:
    foreign = {
        name
        for name in metadata.operators(content)
        if name == "CUSTOM" or name.startswith("STABLEHLO_")
    }
    if foreign:
        problem = (
            f"the model needs {', '.join(sorted(foreign))}, which TensorFlow Lite does not have"
        )
        raise UserError(problem, where=Parameter("format", "tflite"), fix="use another format")
