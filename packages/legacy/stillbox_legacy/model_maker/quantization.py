"""Quantisation after training: `QuantizationConfig` of both Model Makers."""

from collections.abc import Callable
from typing import NamedTuple

from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError
from stillbox.exporting.settings import InputType, Quantize
from stillbox_legacy.model_maker.datasets import RecordSet

DEFAULT_QUANTIZATION_STEPS = 500
_FLOATS, _BYTES = ("float32",), ("uint8",)
_OPTIMIZATIONS = ("DEFAULT", "OPTIMIZE_FOR_SIZE", "OPTIMIZE_FOR_LATENCY")
_OPERATIONS = ("TFLITE_BUILTINS", "TFLITE_BUILTINS_INT8", "SELECT_TF_OPS")


class Quantization(NamedTuple):
    """How an export is quantised."""

    quantize: Quantize
    input_type: InputType
    calibration: RecordSet | None = None
    """Images to measure activations on."""
    steps: int = 0
    """How many of them at most."""


FLOAT = Quantization("none", "raw_image_tensor")
"""Floats; images normalised by the client, by mean and std in the metadata."""


class QuantizationConfig:
    """Configuration of the quantisation of a trained detector.

    Types and operations are given as TensorFlow's (`tf.uint8`, `tf.lite.OpsSet...`), as NumPy's
    types or by name.

    Args:
        optimizations: empty: none; anything else is TensorFlow Lite's default.
        representative_data: a data set to measure activations on; makes integers of all.
        quantization_steps: images of it that are used; None: 500.
        inference_input_type: `uint8`, or `float32` for images that the client normalises.
        inference_output_type: without effect: boxes and scores are floats, as in the originals.
        supported_ops: sets of operations; files always have built-in ones alone.
        supported_types: `float16` stores kernels as half floats.
        experimental_new_quantizer: without effect: there is one quantiser.

    Raises:
        UserError: a value has no counterpart.
    """

    def __init__(
        self,
        optimizations: object = None,
        representative_data: object = None,
        quantization_steps: int | None = None,
        inference_input_type: object = None,
        inference_output_type: object = None,
        supported_ops: object = None,
        supported_types: object = None,
        experimental_new_quantizer: object = None,
    ) -> None:
        self.optimizations = ["DEFAULT"] if optimizations is None else _names(optimizations)
        self.representative_data = representative_data
        if representative_data is not None and quantization_steps is None:
            quantization_steps = DEFAULT_QUANTIZATION_STEPS
        self.quantization_steps = quantization_steps
        self.inference_input_type = _only(_names(inference_input_type))
        self.inference_output_type = _only(_names(inference_output_type))
        self.supported_ops = _names(supported_ops)
        self.supported_types = _names(supported_types)
        self.experimental_new_quantizer = experimental_new_quantizer
        _refuse("optimizations", self.optimizations, _OPTIMIZATIONS)
        _refuse("supported_ops", self.supported_ops, _OPERATIONS)
        _refuse("supported_types", self.supported_types, (*_FLOATS, "float16", "int8"))
        _refuse("inference_input_type", [self.inference_input_type], ("", *_FLOATS, *_BYTES))
        outputs = ("", *_FLOATS, *_BYTES, "int8")
        _refuse("inference_output_type", [self.inference_output_type], outputs)

    @classmethod
    def for_dynamic(cls) -> "QuantizationConfig":
        """Weights as 8 bit integers; activations are rounded anew for each image."""
        return cls()

    @classmethod
    def for_int8(
        cls,
        representative_data: object,
        quantization_steps: int | None = DEFAULT_QUANTIZATION_STEPS,
        inference_input_type: object = "uint8",
        inference_output_type: object = "uint8",
        supported_ops: object = "TFLITE_BUILTINS_INT8",
    ) -> "QuantizationConfig":
        """Weights and activations as 8 bit integers, measured on `representative_data`."""
        return cls(
            representative_data=representative_data,
            quantization_steps=quantization_steps,
            inference_input_type=inference_input_type,
            inference_output_type=inference_output_type,
            supported_ops=supported_ops,
        )

    @classmethod
    def for_float16(cls) -> "QuantizationConfig":
        """Kernels as half floats."""
        return cls(supported_types=["float16"])

    def resolve(self, records_of: Callable[[object], RecordSet]) -> Quantization:
        """Returns how an export is quantised.

        Args:
            records_of: returns the records of a data set.

        Raises:
            UserError: integers without images to measure on, or `quantization_steps` below 1.
        """
        data = self.representative_data
        if self.inference_output_type in (*_BYTES, "int8"):
            say_aside(
                f"inference_output_type={self.inference_output_type} has no effect: boxes and "
                "scores are float32"
            )
        if not self.optimizations:
            return FLOAT
        pixels: InputType = FLOAT.input_type
        if self.inference_input_type in _BYTES:
            pixels = "image_tensor"
        if data is None:
            if "int8" in self.supported_types or "TFLITE_BUILTINS_INT8" in self.supported_ops:
                raise UserError(
                    "integers alone need images to measure activations on",
                    where="representative_data",
                    fix="QuantizationConfig.for_int8(train_data)",
                )
            return Quantization(
                "float16" if "float16" in self.supported_types else "dynamic", pixels
            )
        steps = self.quantization_steps or 0
        if steps < 1:
            sentence = f"{steps} images measure nothing"
            raise UserError(sentence, where="quantization_steps", fix="give 1 or more")
        return Quantization("int8", pixels, records_of(data), steps)

    def __repr__(self) -> str:
        fields = (f"{name}={value!r}" for name, value in vars(self).items() if value)
        return f"QuantizationConfig({', '.join(fields)})"


def _names(values: object) -> list[str]:
    """Returns the names of types or enumerated values of TensorFlow and NumPy."""
    if values is None:
        return []
    return [
        value if isinstance(value, str) else str(getattr(value, "name", None) or _type_name(value))
        for value in (values if isinstance(values, list | tuple | set) else [values])
    ]


def _type_name(value: object) -> str:
    return str(getattr(value, "__name__", value))


def _only(names: list[str]) -> str:
    return names[0] if names else ""


def _refuse(field: str, names: list[str], known: tuple[str, ...]) -> None:
    for name in names:
        if name not in known:
            valid = ", ".join(name for name in known if name)
            raise UserError(f"{name} has no counterpart", where=field, fix=f"use {valid}")
