"""Experiments of TensorFlow Model Garden's RetinaNet as a dialect of experiments."""

from stillbox.experiment.model_garden.keys import EXPERIMENTS
from stillbox.experiment.model_garden.reader import (
    GardenReading,
    is_experiment,
    read_garden,
    read_garden_layers,
    resolved_text,
)

__all__ = [
    "EXPERIMENTS",
    "GardenReading",
    "is_experiment",
    "read_garden",
    "read_garden_layers",
    "resolved_text",
]
