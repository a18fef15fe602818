"""A learnt policy of augmentations."""

from dataclasses import dataclass
from typing import Literal

from stillbox.experiment.schema.augmentations.base import Augmentation


@dataclass(frozen=True, kw_only=True)
class AutoAugment(Augmentation, kind="autoaugment"):
    """One row of a learnt policy, drawn for each image: operations on pixels and boxes.

    Detection's AutoAugment (arXiv:1906.11172). Its shifts and patches are in pixels, so it belongs
    before whatever changes the image's size; it hands on whole numbers in 0..255.
    """

    policy: Literal["v0", "v1", "v2", "v3", "test"] = "v0"
    """Which policy: `v0` is the paper's with 5 rows, `v1` has 20, `v2` and `v3` have 15 each, and
    `test` does the same to every image."""
    contrast: Literal["original", "mean"] = "original"
    """What contrast is about: `original` is the published code's gray, a pixel count divided by
    256 and cut to 255, thus white for all but tiny images; `mean` is the image's mean gray. Only
    `v2` and `v3` ever change contrast."""
