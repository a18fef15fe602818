"""Settings of an export: format, input, signature."""

from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

from stillbox.errors import UserError, nearest
from stillbox.experiment.schema import Resizer
from stillbox.image_kind import ImageKind
from stillbox.inputs.resize import misfit, resized_size
from stillbox.references import Parameter

Format = Literal["saved_model", "frozen_graph", "stablehlo", "tflite", "onnx"]
FORMATS: tuple[Format, ...] = get_args(Format)

InputType = Literal[
    "image_tensor",
    "float_image_tensor",
    "raw_image_tensor",
    "encoded_image_string_tensor",
    "tf_example",
]
INPUT_TYPES: tuple[InputType, ...] = get_args(InputType)
ENCODED: tuple[InputType, ...] = ("encoded_image_string_tensor", "tf_example")
"""Inputs of strings; only TensorFlow's formats can decode them."""
DECODES: tuple[Format, ...] = ("saved_model", "frozen_graph")
"""TensorFlow's formats."""

FASTEST = "fastest"
"""Stands for the runtime that takes the least time, see `backend.fastest_backend`."""

LONGEST_SIDE = 2**14
"""Longest side of input images, in pixels; such an image takes 800 MB."""
_MOST = {"batch_size": (0, 2**12), "max_detections": (1, 2**20)}

Platform = Literal["cpu", "cuda", "rocm", "tpu"]

Signature = Literal["detection_api", "tpu"]

Postprocess = Literal["built_in", "detection_op", "frigate_ssd", "frigate_yolonas"]
FRIGATE = ("frigate_ssd", "frigate_yolonas")
"""One output, as Frigate's OpenVINO and ONNX detectors read it, see `onnx.frigate`."""

Quantize = Literal["none", "int8", "float16", "dynamic"]

_OF_ONE_FORMAT: dict[tuple[str, str], Format] = {
    **{("quantize", kind): "tflite" for kind in ("int8", "float16", "dynamic")},
    ("postprocess", "detection_op"): "tflite",
    **{("postprocess", layout): "onnx" for layout in FRIGATE},
}
"""Values of settings that one format alone has."""


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """Input, outputs and format of an artefact."""

    format: Format = "saved_model"
    signature: Signature = "detection_api"
    """Names, types and units of the outputs, see `experiment.schema.Export`."""
    input_type: InputType = "image_tensor"
    """`image_tensor`: uint8 `[B, h, w, C]`; `float_image_tensor`: the same as float32 in 0..255;
    `raw_image_tensor`: float32 `[B, H, W, C]`, already resized and normalised by the caller;
    `encoded_image_string_tensor`: JPEG or PNG files `[B]`; `tf_example`: serialised tf.Examples
    `[B]` with `image/encoded`."""
    input_name: str = ""
    """Name of the input; empty: the signature's own, `input_tensor` or `input`; for a frozen graph,
    the input type."""
    batch_size: int = 1
    """B; 0: any."""
    image_size: tuple[int, int] | None = None
    """Height and width h, w of the images of `image_tensor` and `float_image_tensor`; None: any
    for SavedModel, frozen graph and ONNX; for TFLite and StableHLO see `with_sizes`."""
    any_size: bool = False
    """Let StableHLO take images of any size too. XLA compiles the program anew for each size."""
    image_info: bool = True
    """Add the output `image_info` (signature `tpu` only)."""
    normalized_coordinates: bool = False
    """Boxes in 0..1 of the original image instead of pixels of the network input (signature `tpu`;
    always so in the other)."""
    float_count: bool = False
    """`num_detections` as float32 (signature `tpu`; always so in the other)."""
    float_classes: bool = False
    """`detection_classes` as float32 (signature `tpu`; always so in the other)."""
    max_detections: int | None = None
    """K; None: the model's."""
    quantize: Quantize = "none"
    """Numbers of a TFLite model. `int8`: weights and activations as 8 bit integers, calibrated on
    images; `dynamic`: weights as 8 bit integers, activations rounded by the runtime, image by
    image; `float16`: weights as half floats, activations as floats."""
    output_names: tuple[str, ...] = ()
    """Names of boxes, classes, scores and count in the signature of a TFLite model; empty:
    `detection_boxes` and so on."""
    postprocess: Postprocess = "built_in"
    """How a TFLite model ends: in built-in operations, or in the custom operation
    `TFLite_Detection_PostProcess`. With that one and `int8` the whole network computes with
    integers, for the Edge TPU."""
    raw: bool = False
    """Add to an ONNX artefact what compilers for chips want, see `onnx.raw`."""
    platforms: tuple[str, ...] = ("cpu", "cuda", "tpu")
    """Platforms that the program in a SavedModel or StableHLO artefact is lowered for."""

    @property
    def input(self) -> str:
        """The input's name."""
        if self.format == "frozen_graph":
            return self.input_name or self.input_type
        return self.input_name or ("input" if self.signature == "tpu" else "input_tensor")

    @property
    def input_dtype(self) -> str:
        """The pixels' type, `uint8` or `float32`."""
        return "uint8" if self.input_type == "image_tensor" else "float32"

    def takes(self, size: tuple[int, int], resizer: Resizer) -> bool:
        """Returns whether the artefact can detect in an image of a height and width.

        The image fits the canvas, or the client resizes it to another `image_size` first.
        """
        return self.image_size not in (None, resizer.input_size) or misfit(size, resizer) is None

    def for_images(self, kind: ImageKind) -> Self:
        """Returns the settings with an input that holds images of a kind.

        Images of more than 8 bits are floats in 0..255 in place of uint8.

        Raises:
            UserError: no decoder of TensorFlow, or no model of integers, has such an input.
        """
        deep = kind.bits > 8
        if self.input_type in ENCODED and (deep or kind.channels == 4):
            problem = f"the decoders of TensorFlow return no images of {kind}"
            fix = f"use {Parameter('input_type', 'float_image_tensor')}"
            raise UserError(problem, where=Parameter("input_type"), fix=fix)
        if not deep or self.input_type != "image_tensor":
            return self
        if self.postprocess == "detection_op" and self.quantize == "int8":
            problem = f"a model of integers for the Edge TPU takes uint8 images, not {kind}"
            fix = f"use {Parameter('postprocess', 'built_in')}"
            raise UserError(problem, where=Parameter("postprocess"), fix=fix)
        return replace(self, input_type="float_image_tensor")

    def with_sizes(self, resizer: Resizer) -> Self:
        """Returns the settings with the format's default image size where none is given.

        The default is the size of the network input, if the resizer keeps images of that size.

        Raises:
            UserError: the resizer changes them, and the artefact needs a size.
        """
        size = resizer.input_size
        kept = resized_size(size, resizer) == size
        if self.input_type == "raw_image_tensor" and not kept:
            raise UserError(
                "the size of the image inside the network input would be unknown: the resizer "
                "leaves room beside images of any shape",
                where=Parameter("input_type"),
                fix="use image_tensor or float_image_tensor",
            )
        frigate = self.postprocess in FRIGATE
        if self.postprocess == "frigate_ssd" and size[0] != size[1]:
            problem = "Frigate's OpenVINO detector takes an ssd for square images alone"
            fix = f"use {Parameter('postprocess')} frigate_yolonas"
            raise UserError(problem, where=Parameter("postprocess"), fix=fix)
        one_size = self.format == "stablehlo" and not self.any_size
        fixed = self.format == "tflite" or frigate or one_size
        takes_images = self.input_type in ("image_tensor", "float_image_tensor")
        if self.image_size is not None or not (fixed and takes_images):
            return self
        if kept:
            return replace(self, image_size=size)
        if frigate:
            problem = "Frigate stretches images to the network input, and this resizer pads them"
            fix = "train with a resizer of kind fixed_shape"
            raise UserError(problem, where=Parameter("postprocess"), fix=fix)
        if self.format == "stablehlo":
            return replace(self, any_size=True)
        problem = "a TensorFlow Lite model takes images of one size, and this resizer makes many"
        fix = "give one, such as " + ",".join(map(str, resized_size((3, 4), resizer)))
        raise UserError(problem, where=Parameter("image_size"), fix=fix)

    def checked(self) -> Self:
        """Returns the settings if they are consistent.

        Raises:
            UserError: an unknown word, or something that the format does not support.
        """
        _check_word(self.format, FORMATS, "format")
        _check_word(self.input_type, INPUT_TYPES, "input_type")
        _check_word(self.signature, get_args(Signature), "signature")
        _check_word(self.quantize, get_args(Quantize), "quantize")
        _check_word(self.postprocess, get_args(Postprocess), "postprocess")
        for platform in self.platforms:
            _check_word(platform, get_args(Platform), "platforms", "platform ")
        self._check_numbers()
        self._check_format()
        if self.any_size and (self.format == "tflite" or self.image_size is not None):
            problem = "this artefact takes images of one size"
            fix = f"leave {Parameter('any_size')} out; a TFLite model takes one size"
            raise UserError(problem, where=Parameter("any_size"), fix=fix)
        if self.format == "tflite":
            self._check_tflite()
        if self.input_type in (*ENCODED, "raw_image_tensor") and self.image_size is not None:
            return replace(self, image_size=None)
        return self

    def _check_format(self) -> None:
        if self.input_type in ENCODED and self.format not in DECODES:
            problem = f"{self.format} artefacts take pixels and cannot decode image files"
            tensor = Parameter("input_type", "image_tensor")
            fix = f"use {tensor}, or {Parameter('format', 'saved_model')}"
            raise UserError(problem, where=Parameter("input_type"), fix=fix)
        for (name, value), form in _OF_ONE_FORMAT.items():
            if getattr(self, name) == value and self.format != form:
                problem = f"{self.format} artefacts have no {value}"
                fix = f"use {Parameter('format', form)}, or leave {Parameter(name)} out"
                raise UserError(problem, where=Parameter(name), fix=fix)
        if self.raw and self.format != "onnx":
            fix = f"use {Parameter('format', 'onnx')}"
            raise UserError("compilers for chips read ONNX", where=Parameter("raw"), fix=fix)
        if self.postprocess in FRIGATE:
            self._check_frigate()
        names = self.output_names
        if names and (self.format != "tflite" or len(names) != 4 or len(set(names)) < 4):
            problem = f"{self.format} artefacts have no outputs named {', '.join(names)}"
            fix = "give four different names to a TFLite model, or none"
            raise UserError(problem, where="output_names", fix=fix)

    def _check_frigate(self) -> None:
        wanted = {"signature": "detection_api", "input_type": "image_tensor", "batch_size": 1}
        for name, value in wanted.items():
            if getattr(self, name) != value:
                problem = f"Frigate gives one uint8 image and reads its own layout: no other {name}"
                raise UserError(problem, where=Parameter(name), fix="leave it out")

    def _check_numbers(self) -> None:
        for name, (least, most) in _MOST.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                fix = f"give a number from {least} to {most:,}"
                raise UserError(f"{value} is out of range", where=Parameter(name), fix=fix)
        size = self.image_size
        if size is not None and not (
            len(size) == 2 and all(0 < side <= LONGEST_SIDE for side in size)
        ):
            fix = f"give two numbers from 1 to {LONGEST_SIDE:,}, such as 640,640"
            raise UserError(
                f"{size} is not a height and a width", where=Parameter("image_size"), fix=fix
            )

    def _check_tflite(self) -> None:
        if self.signature != "detection_api":
            problem = "a TensorFlow Lite model has the outputs that MediaPipe expects and no others"
            raise UserError(
                problem,
                where=Parameter("signature"),
                fix=f"use {Parameter('signature')} detection_api",
            )
        if self.batch_size != 1:
            problem = "a TensorFlow Lite model takes one image at a time"
            raise UserError(
                problem, where=Parameter("batch_size"), fix=f"use {Parameter('batch_size', '1')}"
            )
        edge = self.postprocess == "detection_op" and self.quantize == "int8"
        if edge and self.input_type != "image_tensor":
            problem = "a model of integers for the Edge TPU takes uint8 images"
            fix = (
                f"use {Parameter('input_type', 'image_tensor')}, which "
                f"{Parameter('input', 'uint8')} is another word for"
            )
            raise UserError(problem, where=Parameter("input_type"), fix=fix)


def _check_word(word: str, words: tuple[str, ...], name: str, noun: str = "") -> None:
    if word not in words:
        where, fix = Parameter(name), nearest(word, words)
        raise UserError(f"there is no {noun}{word!r}", where=where, fix=fix)
