"""The family of all augmentations."""

from stillbox.experiment.variants import Variant


class Augmentation(Variant):
    """A change of a training image and its boxes, before the image is resized.

    Called as `(sample, config, rng)`; returns the new `inputs.sample.Sample` and leaves the given
    one unchanged.
    """
