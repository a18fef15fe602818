"""Changes of a training image and its boxes, before the image is resized."""

from stillbox.experiment.schema.augmentations.base import *
from stillbox.experiment.schema.augmentations.crops import *
from stillbox.experiment.schema.augmentations.geometry import *
from stillbox.experiment.schema.augmentations.pixels import *
