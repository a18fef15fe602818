"""What an export is to be: format, input, signature."""

from dataclasses import dataclass, replace
from typing import Literal, Self

from stillbox.errors import UserError, nearest

Format = Literal["saved_model", "stablehlo", "tflite", "onnx"]
FORMATS: tuple[Format, ...] = ("saved_model", "stablehlo", "tflite", "onnx")

InputType = Literal[
    "image_tensor",
    "float_image_tensor",
    "raw_image_tensor",
    "encoded_image_string_tensor",
    "tf_example",
]
INPUT_TYPES: tuple[InputType, ...] = (
    "image_tensor",
    "float_image_tensor",
    "raw_image_tensor",
    "encoded_image_string_tensor",
    "tf_example",
)
ENCODED: tuple[InputType, ...] = ("encoded_image_string_tensor", "tf_example")
"""Inputs of text; only a SavedModel can decode them."""

Signature = Literal["detection_api", "tpu"]


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """What an artefact takes and returns."""

    format: Format = "saved_model"
    """Which kind of artefact."""
    signature: Signature = "detection_api"
    """Names, types and units of the outputs, see `experiment.schema.Export`."""
    input_type: InputType = "image_tensor"
    """`image_tensor`: uint8 `[B, h, w, 3]`; `float_image_tensor`: the same as float32 in 0..255;
    `raw_image_tensor`: float32 `[B, H, W, 3]`, already resized and normalised by the caller;
    `encoded_image_string_tensor`: JPEG or PNG files `[B]`; `tf_example`: serialised tf.Examples
    `[B]` with `image/encoded`."""
    input_name: str = ""
    """Name of the input; empty: the signature's own, `input_tensor` or `input`."""
    batch_size: int = 1
    """B; 0: any."""
    image_size: tuple[int, int] | None = None
    """Height and width h, w of the images that `image_tensor` and `float_image_tensor` take; None:
    any for SavedModel and ONNX, the network input's for TFLite and StableHLO."""
    any_size: bool = False
    """Let StableHLO take images of any size too. XLA compiles the program anew for each size."""
    image_info: bool = True
    """Add the output `image_info` (signature `tpu` only)."""
    normalized_coordinates: bool = False
    """Boxes in 0..1 of the original image instead of pixels of the network input (signature `tpu`;
    the other's always are)."""
    float_count: bool = False
    """`num_detections` as float32 (signature `tpu`; the other's always is)."""
    float_classes: bool = False
    """`detection_classes` as float32 (signature `tpu`; the other's always is)."""
    max_detections: int | None = None
    """K; None: `model.postprocessing.nms.max_total`."""
    quantize: Literal["none", "int8"] = "none"
    """`int8`: weights and activations of a TFLite model as 8 bit integers, calibrated on images."""
    platforms: tuple[str, ...] = ("cpu", "cuda", "tpu")
    """What the program in a SavedModel or StableHLO artefact is lowered for."""

    @property
    def input(self) -> str:
        """The input's name."""
        return self.input_name or ("input" if self.signature == "tpu" else "input_tensor")

    def with_sizes(self, network_input: tuple[int, int]) -> Self:
        """Returns the settings with the image size that the format has unless another is given."""
        fixed = self.format == "tflite" or (self.format == "stablehlo" and not self.any_size)
        takes_images = self.input_type in ("image_tensor", "float_image_tensor")
        if self.image_size is not None or not (fixed and takes_images):
            return self
        return replace(self, image_size=network_input)

    def checked(self) -> Self:
        """Returns the settings if they go together.

        Raises:
            UserError: an unknown word, or something that the format cannot do.
        """
        _one_of(self.format, FORMATS, "--format")
        _one_of(self.input_type, INPUT_TYPES, "--input-type")
        if self.input_type in ENCODED and self.format != "saved_model":
            raise UserError(
                f"a {self.format} artefact takes pixels and cannot decode image files",
                where="--input-type",
                fix="use --input-type image_tensor, or --format saved_model",
            )
        if self.quantize != "none" and self.format != "tflite":
            raise UserError(
                f"a {self.format} artefact is not quantised",
                where="--quantize",
                fix="use --format tflite, or leave --quantize out",
            )
        if self.any_size and (self.format == "tflite" or self.image_size is not None):
            raise UserError(
                "images have one size here, and not any",
                where="--any-size",
                fix="leave --any-size out; a TFLite model takes one size",
            )
        if self.input_type in (*ENCODED, "raw_image_tensor") and self.image_size is not None:
            return replace(self, image_size=None)
        return self


def _one_of(word: str, words: tuple[str, ...], where: str) -> None:
    if word not in words:
        raise UserError(f"there is no {word!r}", where=where, fix=nearest(word, words))
