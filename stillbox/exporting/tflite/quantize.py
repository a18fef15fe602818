"""A TFLite model with weights and activations of 8 bits, by the ai-edge-quantizer."""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from stillbox.devices.processors import own_processors
from stillbox.errors import UserError
from stillbox.extras import import_extra

_TRUNK, _HEAD = ".*/(backbone|neck)/.*", ".*/head/.*"
_INPUT = "images"
_OPERATIONS = ("CONV_2D", "DEPTHWISE_CONV_2D", "ADD", "MAX_POOL_2D", "RELU", "PAD")
BITS = 8
"""Of the integers."""


def quantize(
    content: bytes,
    images: Sequence[np.ndarray],
    ranges: Mapping[str, tuple[float, float]] | None = None,
    *,
    whole: bool = False,
) -> bytes:
    """Quantises the network, weights channel by channel.

    Backbone and neck compute with integers, in the measured ranges. The head has integer weights
    and float32 results, since 8 bits are too few for logits and box encodings: the COCO SSD loses
    .07 AP with integers in the head, and .002 without. Decoding and suppression stay float32.

    Args:
        content: of a float32 model.
        images: inputs of the model, each with the batch axis, to measure activations on.
        ranges: known ranges by tensor, which replace measured ones.
        whole: compute the head with integers too, for a detector that was trained so.

    Raises:
        UserError: the quantiser is not installed, or there are no images.
    """
    import_extra("ai_edge_quantizer", "tflite")
    from ai_edge_quantizer import calibrator, qtyping, quantizer

    if not images:
        raise UserError(
            "int8 needs images to measure activations on",
            where="--quantize",
            fix="give some tens of typical images with --images",
        )
    work = quantizer.Quantizer(bytearray(content))
    for name in map(qtyping.TFLOperationName, _OPERATIONS):
        for part in (_TRUNK, _HEAD)[: 1 + whole]:
            work.add_static_config(part, name, activation_num_bits=BITS, weight_num_bits=BITS)
    if not whole:
        work.add_dynamic_config(_HEAD, qtyping.TFLOperationName.CONV_2D, num_bits=BITS)
    samples = [{_INPUT: image} for image in images]
    with warnings.catch_warnings():
        # LiteRT warns that measuring keeps every tensor.
        warnings.filterwarnings("ignore", "(?s).*experimental_preserve_all_tensors")
        measured = work.calibrate(
            {"serving_default": samples},
            num_threads=own_processors(),
            mode=calibrator.CalibrationMode.CALIBRATION_PROFILER_BASED,
        )
        for name, (low, high) in (ranges or {}).items():
            measured[name] = {"min": np.array([low]), "max": np.array([high])}
        return bytes(work.quantize(measured).quantized_model)
