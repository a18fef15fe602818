"""The family of all augmentations."""

from stillbox.experiment.variants import Variant


class Augmentation(Variant):
    """A change of a training image and its boxes, before the image is resized."""
