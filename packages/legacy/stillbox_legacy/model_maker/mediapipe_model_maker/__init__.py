"""`mediapipe_model_maker` 0.2.1.4, its part for object detection."""

from stillbox_legacy.model_maker import quantization
from stillbox_legacy.model_maker.mediapipe_model_maker import object_detector

__all__ = ["object_detector", "quantization"]
