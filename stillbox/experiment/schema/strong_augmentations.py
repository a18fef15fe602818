"""Augmentations that change an image so much that training often ends without them.

Large-scale jitter, mosaic, mixup, the random affine map and copy-paste. Mosaic, mixup and the map
have the defaults of YOLOX (arXiv:2107.08430), the first has them from the configs of
arXiv:2012.07177.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from stillbox.experiment.schema.crop_augmentations import Augmentation
from stillbox.experiment.schema.ranges import (
    ColorValue,
    Fraction,
    Items,
    NonNegative,
    NonNegativeInt,
    Positive,
    Range,
    Rgb,
)

_Side = Annotated[int, Range(1, 8192)]
"""A side of a picture that is put together from others; four times as much must fit."""
_Scale = Annotated[float, Range(1e-3, 4)]
_Color = Annotated[tuple[ColorValue, ...], Rgb]
_GRAY = (114.0, 114.0, 114.0)


@dataclass(frozen=True, kw_only=True)
class StrongAugmentation(Augmentation):
    """Base of the augmentations that can end before training does; not one itself.

    A box stays if a part of it is inside the result, with its class and its weight. An image that
    is left without boxes stays too, as background.
    """

    skip_last_steps: NonNegativeInt = 0
    """Steps at the end of training that leave this augmentation out; 0: none. Training ends
    after `train.steps` or `data.train.num_epochs`, whichever comes first."""
    clip_boxes: bool = True
    """Clip the boxes that stay to the result."""
    min_box_side: NonNegative = 0.0
    """A box stays only if its height and its width are above this, in pixels of the result."""


@dataclass(frozen=True, kw_only=True)
class MixingAugmentation(StrongAugmentation):
    """Base of the augmentations that need other records of the training set; not one itself.

    Called as `(sample, config, rng, partners)`, where `partners` is an
    `inputs.augment.common.Partners`. Other records come as they are stored.
    """

    others: ClassVar[int] = 1
    """Other records that an image is combined with."""


@dataclass(frozen=True, kw_only=True)
class LargeScaleJitter(StrongAugmentation, kind="large_scale_jitter"):
    """Scales at random, then cuts a square at a random place or pads to it (mmdet, LSJ).

    The long side becomes a random factor times `output_size`, bilinearly and without antialiasing.
    What is shorter than `output_size` is padded at the bottom and right.
    """

    output_size: _Side = 1024
    """Side of the result, in pixels."""
    min_scale: _Scale = 0.1
    """Least length of the long side, relative to `output_size`."""
    max_scale: _Scale = 2.0
    """Greatest length of the long side, relative to `output_size`."""
    pad_color: _Color = (123.675, 116.28, 103.53)
    """Red, green and blue of the padding, in 0..255; the default is 0 after the usual
    normalisation of pixels."""
    min_box_side: NonNegative = 0.01
    """A box stays only if its height and its width are above this, in pixels of the result."""


@dataclass(frozen=True, kw_only=True)
class RandomAffine(StrongAugmentation, kind="random_affine"):
    """Scales, rotates, shears and shifts the image about its upper left corner (YOLOX, mmdet).

    Boxes become the bounding boxes of their four corners.
    """

    max_rotation: Annotated[float, Range(0, 180)] = 10.0
    """Greatest angle in both directions, in degrees."""
    min_scale: Positive = 0.1
    """Least factor on lengths."""
    max_scale: Positive = 2.0
    """Greatest factor on lengths."""
    max_shear: Annotated[float, Range(0, 89)] = 2.0
    """Greatest angle that each axis leans in both directions, in degrees."""
    max_shift: Fraction = 0.1
    """Greatest shift in both directions, as a share of the result's height and width."""
    output_size: Annotated[
        tuple[_Side, ...],
        Items(lengths=(0, 2), fix="give height and width, or none for those of the image"),
    ] = ()
    """Height and width of the result in pixels, which begins at the image's upper left corner;
    empty: as the image has them. Behind a mosaic, the size of one of its pictures."""
    pad_color: _Color = _GRAY
    """Red, green and blue of what lies outside the image, in 0..255."""


@dataclass(frozen=True, kw_only=True)
class Mosaic(MixingAugmentation, kind="mosaic"):
    """Puts the image and three others around a random point of a canvas (YOLOv4, YOLOX, mmdet).

    The image lies at the upper left of the point, the others at the upper right, the lower left
    and the lower right. The canvas is `2 * height` by `2 * width`; `random_affine` with an
    `output_size` of `[height, width]` cuts it. The boxes of the image come first, then the boxes
    of the others in this order.
    """

    others = 3
    height: _Side = 640
    """Rows that each of the four is fitted into, the aspect ratio kept, in pixels."""
    width: _Side = 640
    """Columns that each of the four is fitted into, likewise."""
    min_center: Annotated[float, Range(0, 2)] = 0.5
    """Least row and column of the point, relative to `height` and `width`."""
    max_center: Annotated[float, Range(0, 2)] = 1.5
    """Greatest row and column of the point, likewise."""
    probability: Fraction = 1.0
    """How often."""
    pad_color: _Color = _GRAY
    """Red, green and blue of the canvas, in 0..255."""


@dataclass(frozen=True, kw_only=True)
class MixUp(MixingAugmentation, kind="mixup"):
    """Takes the mean of the image and another one, and the boxes of both (YOLOX, mmdet).

    The other image is fitted into `height` by `width`, padded, scaled and mirrored at random, and
    cut at a random place or padded to the size of the first. Its boxes follow the boxes of the
    first; no box changes its weight.
    """

    height: _Side = 640
    """Rows that the other image is fitted into, the aspect ratio kept, in pixels."""
    width: _Side = 640
    """Columns that the other image is fitted into, likewise."""
    min_scale: _Scale = 0.8
    """Least factor on its size after that."""
    max_scale: _Scale = 1.6
    """Greatest factor on its size after that."""
    flip_probability: Fraction = 0.5
    """How often the other image is mirrored."""
    probability: Fraction = 1.0
    """How often two images are mixed."""
    pad_color: _Color = _GRAY
    """Red, green and blue of the padding, in 0..255."""


@dataclass(frozen=True, kw_only=True)
class CopyPaste(MixingAugmentation, kind="copy_paste"):
    """Pastes objects of another image into this one, as the rectangles of their boxes.

    One of the classes of the other image is drawn for each object, each as likely, then one of the
    class's boxes. An object comes with its size in pixels times a random factor, perhaps mirrored.
    Its middle comes to a random place; what reaches beyond the image is cut off. It is pasted on
    top and may cover a part of other objects. The boxes of these objects do not change. Ignored
    boxes are not taken, nor boxes that another box covers too much of. As in arXiv:2012.07177, but
    with boxes in place of masks.
    """

    max_objects: Annotated[int, Range(1, 100)] = 3
    """Most objects; each number from 1 on is as likely."""
    max_covered: Fraction = 0.3
    """Greatest share of any box, pasted ones included, that an object may cover at its place. After
    10 places that cover more, the object is left out."""
    min_scale: _Scale = 0.8
    """Least factor on the height and width of an object."""
    max_scale: _Scale = 1.25
    """Greatest factor on the height and width of an object."""
    flip_probability: Fraction = 0.5
    """How often an object is mirrored."""
    probability: Fraction = 0.5
    """How often an image gets objects."""
