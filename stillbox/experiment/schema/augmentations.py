"""What is done to a training image before it is resized (fact sheet 1.4)."""

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class RandomHorizontalFlip:
    """Mirrors image and boxes."""

    kind: ClassVar[str] = "random_horizontal_flip"
    probability: float = 0.5
    """How often."""


@dataclass(frozen=True, kw_only=True)
class RandomCropImage:
    """Cuts a random window that covers enough of some object (fact sheet 1.4)."""

    kind: ClassVar[str] = "random_crop_image"
    min_object_covered: float = 1.0
    """Share of at least one box that the window holds."""
    min_aspect_ratio: float = 0.75
    """Least width over height of the window."""
    max_aspect_ratio: float = 1.33
    """Greatest width over height of the window."""
    min_area: float = 0.1
    """Least area of the window, as a share of the image's."""
    max_area: float = 1.0
    """Greatest area of the window, as a share of the image's."""
    overlap_thresh: float = 0.3
    """A box stays if at least this share of it lies inside the window."""
    clip_boxes: bool = True
    """Clip the boxes that stay to the window."""
    random_coef: float = 0.0
    """Probability of leaving the image as it is."""


def _ssd_operations() -> tuple[RandomCropImage, ...]:
    return tuple(
        RandomCropImage(
            min_object_covered=overlap,
            min_aspect_ratio=0.5,
            max_aspect_ratio=2.0,
            min_area=0.1,
            max_area=1.0,
            overlap_thresh=overlap,
            random_coef=0.15,
        )
        for overlap in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    )


@dataclass(frozen=True, kw_only=True)
class SsdRandomCrop:
    """Chooses one of several crops uniformly."""

    kind: ClassVar[str] = "ssd_random_crop"
    operations: tuple[RandomCropImage, ...] = field(default_factory=_ssd_operations)
    """The crops to choose from; the default is the original's seven."""


Augmentation = RandomHorizontalFlip | RandomCropImage | SsdRandomCrop
