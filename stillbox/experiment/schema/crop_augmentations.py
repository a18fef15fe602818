"""The family of all augmentations, and those by random windows, some padded afterwards."""

from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from stillbox.experiment.schema.ranges import (
    ColorValue,
    Count,
    Draws,
    Fraction,
    Items,
    PadColor,
    Positive,
    PositiveFraction,
    Range,
    Real,
    Side,
    SizeRatio,
)
from stillbox.experiment.variants import RegisteredConfig

_Crop = TypeVar("_Crop")
_Operations = Annotated[
    tuple[_Crop, ...], Items(least=1, fix="leave them out for the usual ones, or give at least one")
]


class Augmentation(RegisteredConfig):
    """A change of a training image and its boxes, before the image is resized.

    Called as `(sample, config, rng)`; returns the new `inputs.sample.Sample` and leaves the given
    one unchanged.
    """


@dataclass(frozen=True, kw_only=True)
class RandomCropImage(Augmentation, kind="random_crop_image"):
    """Crops a random window that covers enough of some object (`core/preprocessor.py`)."""

    min_object_covered: Fraction = 1.0
    """Share of at least one box that the window holds."""
    min_aspect_ratio: Positive = 0.75
    """Least width over height of the window."""
    max_aspect_ratio: Real = 1.33
    """Greatest width over height of the window."""
    min_area: Fraction = 0.1
    """Least area of the window, as a share of the image's."""
    max_area: PositiveFraction = 1.0
    """Greatest area of the window, as a share of the image's."""
    overlap_thresh: Fraction = 0.3
    """A box stays if at least this share of it lies inside the window."""
    clip_boxes: bool = True
    """Clip the boxes that stay to the window."""
    random_coef: Fraction = 0.0
    """Probability of leaving the image as it is."""


@dataclass(frozen=True, kw_only=True)
class RandomCropPadImage(RandomCropImage, kind="random_crop_pad_image"):
    """Cuts a random window and pads it, to a size relative to the image before the cut."""

    min_padded_size_ratio: Annotated[tuple[Positive, ...], SizeRatio] = (1.0, 1.0)
    """Least height and width after padding, relative to those before the cut."""
    max_padded_size_ratio: Annotated[tuple[Positive, ...], SizeRatio] = (2.0, 2.0)
    """Greatest height and width after padding (excluded), relative to those before the cut."""
    pad_color: Annotated[tuple[ColorValue, ...], PadColor] = ()
    """Red, green and blue of the padding, in 0..255; empty: the mean colour of the window."""


@dataclass(frozen=True, kw_only=True)
class RandomCropToAspectRatio(Augmentation, kind="random_crop_to_aspect_ratio"):
    """Cuts the largest window of an aspect ratio, at a random place."""

    aspect_ratio: Positive = 1.0
    """Width over height of the window."""
    overlap_thresh: Fraction = 0.3
    """A box stays if at least this share of it lies inside the window."""
    clip_boxes: bool = True
    """Clip the boxes that stay to the window."""


_OVERLAPS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


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
        for overlap in _OVERLAPS
    )


def _ssd_pad_operations() -> tuple[RandomCropPadImage, ...]:
    # Six, not seven: the original leaves out the set without a constraint.
    return tuple(
        RandomCropPadImage(
            min_object_covered=overlap,
            min_aspect_ratio=0.5,
            max_aspect_ratio=2.0,
            min_area=0.1,
            max_area=1.0,
            overlap_thresh=overlap,
            random_coef=0.15,
        )
        for overlap in _OVERLAPS[1:]
    )


@dataclass(frozen=True, kw_only=True)
class SsdRandomCrop(Augmentation, kind="ssd_random_crop"):
    """Chooses one of several crops uniformly."""

    operations: _Operations[RandomCropImage] = field(default_factory=_ssd_operations)
    """The crops to choose from; the default is the original's seven."""


@dataclass(frozen=True, kw_only=True)
class SsdRandomCropPad(Augmentation, kind="ssd_random_crop_pad"):
    """Chooses one of several crops with padding uniformly."""

    operations: _Operations[RandomCropPadImage] = field(default_factory=_ssd_pad_operations)
    """The crops to choose from; the default is the original's six."""


@dataclass(frozen=True, kw_only=True)
class SsdIouCrop(Augmentation, kind="ssd_iou_crop"):
    """Cuts a window that overlaps every box enough (MLPerf SSD, `SSDCropping`).

    The crop of MLPerf's SSD. `ssd_random_crop`, of the Object Detection API, is content with one
    box. A draw ends with the whole image, or with a window if one of its candidates is valid.
    """

    whole_image_probability: Fraction = 1 / 7
    """How often a draw takes the whole image."""
    min_ious: tuple[Annotated[float, Range(-1, 1)], ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    """The IoU of every box with the window is above one of these, each as likely in a draw; a
    negative one asks for nothing."""
    min_side: PositiveFraction = 0.3
    """Least height and width of the window, as a share of the image's."""
    max_side: PositiveFraction = 1.0
    """Greatest height and width of the window, as a share of the image's."""
    max_aspect_ratio: Real = 2.0
    """Each side of the window is less than so many times the other, both as shares of the
    image's."""
    candidates: Draws = 50
    """Windows that a draw tries; the last valid one is taken. MLPerf allows 50 and 1."""
    max_draws: Draws = 100
    """Draws without success after which the whole image is taken. With the usual fields fewer than
    one image in a million comes so far, whatever its boxes: (6/7) ** 100 is 2e-7."""
    resize_to: Annotated[
        tuple[Side, ...],
        Items(
            lengths=(0, 2), fix="give height and width, or none to leave the size to model.resizer"
        ),
    ] = (300, 300)
    """Height and width that the window is resized to, bilinearly between its corners and without
    antialiasing (TensorFlow's crop_and_resize), the whole image too. Empty: whole pixels are cut,
    and `model.resizer` does the rest."""


@dataclass(frozen=True, kw_only=True)
class FixedAspectCrop:
    """A random window of a given aspect ratio."""

    min_object_covered: Fraction = 1.0
    """Share of at least one box that the window holds."""
    min_area: Fraction = 0.1
    """Least area of the window, as a share of the image's."""
    max_area: PositiveFraction = 1.0
    """Greatest area of the window, as a share of the image's."""
    overlap_thresh: Fraction = 0.3
    """A box stays if at least this share of it lies inside the window."""
    clip_boxes: bool = True
    """Clip the boxes that stay to the window."""
    random_coef: Fraction = 0.0
    """Probability of leaving the image as it is."""


def _fixed_operations() -> tuple[FixedAspectCrop, ...]:
    return tuple(
        FixedAspectCrop(min_object_covered=overlap, overlap_thresh=overlap, random_coef=0.15)
        for overlap in _OVERLAPS
    )


@dataclass(frozen=True, kw_only=True)
class SsdRandomCropFixedAspectRatio(Augmentation, kind="ssd_random_crop_fixed_aspect_ratio"):
    """Chooses one of several crops of one aspect ratio, then cuts to exactly that ratio."""

    operations: _Operations[FixedAspectCrop] = field(default_factory=_fixed_operations)
    """The crops to choose from; the default is the original's seven."""
    aspect_ratio: Positive = 1.0
    """Width over height of the result."""


@dataclass(frozen=True, kw_only=True)
class SsdRandomCropPadFixedAspectRatio(Augmentation, kind="ssd_random_crop_pad_fixed_aspect_ratio"):
    """Chooses one of several crops, then pads with black to exactly one aspect ratio."""

    operations: _Operations[RandomCropImage] = field(default_factory=_ssd_operations)
    """The crops to choose from; the default is the original's seven."""
    aspect_ratio: Positive = 1.0
    """Width over height of the result."""
    min_padded_size_ratio: Annotated[tuple[Positive, ...], SizeRatio] = (1.0, 1.0)
    """Least height and width after padding, relative to the window's."""
    max_padded_size_ratio: Annotated[tuple[Positive, ...], SizeRatio] = (2.0, 2.0)
    """Greatest height and width after padding, relative to the window's."""


@dataclass(frozen=True, kw_only=True)
class RandomSquareCropByScale(Augmentation, kind="random_square_crop_by_scale"):
    """Cuts a square; its side is a share of the image's long one. Black where it sticks out."""

    max_border: Side = 128
    """Distance in pixels that the square's centre keeps from the edges, halved until the image
    has room for it."""
    min_scale: Positive = 0.6
    """Least side of the square, relative to the image's long side."""
    max_scale: Real = 1.3
    """Greatest side of the square, relative to the image's long side."""
    num_scales: Count = 8
    """How many sides there are from least to greatest, evenly spaced."""


@dataclass(frozen=True, kw_only=True)
class RandomScaleCropAndPadToSquare(Augmentation, kind="random_scale_crop_and_pad_to_square"):
    """Scales at random, then cuts or pads with black to a square (EfficientDet's way)."""

    output_size: Side = 512
    """Side of the result, in pixels."""
    min_scale: Positive = 0.1
    """Least length of the long side, relative to `output_size`."""
    max_scale: Real = 2.0
    """Greatest length of the long side, relative to `output_size`."""
