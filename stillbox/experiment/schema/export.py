"""The interface of an exported model."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Export:
    """The interface of an exported model."""

    signature: Literal["detection_api", "tpu"] = "detection_api"
    """Names, types and units of the outputs: those of the TensorFlow Object Detection API, all
    float32 with normalised boxes, or those of "Object Detection Models on TPU", with boxes in
    pixels of the network input and an int32 count."""
