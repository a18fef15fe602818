"""Experiments of TensorFlow Model Garden's RetinaNet as a dialect of experiments."""

from stillbox_legacy.model_garden.keys import EXPERIMENTS
from stillbox_legacy.model_garden.reader import (
    GardenReading,
    read_garden,
    read_garden_layers,
    resolved_text,
)

__all__ = [
    "EXPERIMENTS",
    "GardenReading",
    "read_garden",
    "read_garden_layers",
    "resolved_text",
]
