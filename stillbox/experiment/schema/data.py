"""The records, how they are read, and what is done to an image on its way in."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal


@dataclass(frozen=True, kw_only=True)
class Records:
    """A set of TFRecord shards with its label map."""

    paths: tuple[str, ...] = ()
    """TFRecord files or glob patterns; `?????` and `name@100` shard patterns are understood."""
    label_map: str = ""
    """Label map (`.pbtxt`) that gives every class name its id."""
    use_display_name: bool = False
    """Match the records' class text against `display_name` instead of `name`."""
    max_boxes: int = 100
    """The N of `Batch`: boxes beyond it are cut off, and the share of them is reported."""
    shuffle: bool = True
    """A fresh global permutation every epoch."""
    num_epochs: int = 0
    """Stop after this many passes; 0 goes on as long as training does."""
    sample_1_of_n: int = 1
    """Use every n-th record only."""
    crowds: Literal["train", "ignore"] = "train"
    """Crowd boxes as ordinary targets, as the original does, or with weight 0."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Both sets of records and the policies that hold for them."""

    train: Records = field(default_factory=Records)
    """What the model learns from."""
    evaluation: Records = field(default_factory=lambda: Records(shuffle=False))
    """What it is scored on."""
    seed: int = 0
    """Order and augmentation are a function of (seed, epoch, record)."""
    workers: int = 2
    """Threads that decode and augment; no result depends on it. 0: in the caller's thread."""
    prefetch: int = 2
    """Batches that are ready before they are asked for."""
    bad_records: Literal["fail", "drop"] = "fail"
    """An unreadable record or image: stop and name it, or leave it out and count it."""
    bad_boxes: Literal["fix", "drop", "fail"] = "fix"
    """A box that is inverted, outside, degenerate or of an unknown class. `fix` clips and swaps
    what can be mended and drops the rest; every case is counted."""
    cache_images: bool = False
    """Keep decoded images in memory, as far as memory allows."""


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
