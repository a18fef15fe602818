"""`tflite_model_maker` 0.4.3, its part for object detection."""

from stillbox_legacy.model_maker.tflite_model_maker import config, model_spec, object_detector
from stillbox_legacy.model_maker.tflite_model_maker.config import ExportFormat

__all__ = ["ExportFormat", "config", "model_spec", "object_detector"]
