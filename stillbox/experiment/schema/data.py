"""The records, how they are read, and how an image becomes the network input.

Every resizer (`core/preprocessor.py`) has an `input_size`: height and width of the network input
in pixels. Where it does not follow from the other fields, `canvas` gives it.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, Self

from stillbox.experiment.schema.ranges import (
    MACHINE,
    Boxes,
    ColorValue,
    Fraction,
    InputPath,
    Items,
    NonNegativeInt,
    Outside,
    PerClass,
    Positive,
    PositiveInt,
    Range,
    Rgb,
    Seed,
    Side,
)
from stillbox.experiment.variants import RegisteredConfig

ResizeMethod = Literal[
    "bilinear", "nearest", "bicubic", "area", "bilinear_antialias", "bilinear_half_pixel"
]


class Resizer(RegisteredConfig):
    """From an image of any size to the network input.

    Called as `(config, size)`, height and width of an image in pixels; returns those that it has
    inside the network input.
    """

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the network input, in pixels."""
        raise NotImplementedError

    @property
    def pad_value(self) -> tuple[float, ...]:
        """Colour of the padding, one number for each channel, in 0..255."""
        return (0.0, 0.0, 0.0)

    @property
    def method(self) -> ResizeMethod | None:
        """Interpolation; None for a resizer that leaves every image at its size."""
        return None

    align_corners: ClassVar[bool] = False
    """Whether the corner pixels of image and result coincide."""

    def with_height(self, height: int) -> Self | None:
        """Returns the resizer with a network input of another height, the width in proportion.

        `height` is in pixels. None: the width is no whole number, or images keep their sizes.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class FixedShapeResizer(Resizer, kind="fixed_shape"):
    """Stretches every image to one shape; the aspect ratio is not kept."""

    height: Side = 300
    """Rows of the network input, in pixels."""
    width: Side = 300
    """Columns of the network input, in pixels."""
    method: ResizeMethod = "bilinear"
    """Interpolation. `bilinear` is TF1's form without half-pixel centres, `bilinear_half_pixel`
    OpenCV's and PyTorch's with them, `bilinear_antialias` the triangle filter that Pillow, TF2 and
    JAX shrink images with."""

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the network input, in pixels."""
        return self.height, self.width

    def with_height(self, height: int) -> Self | None:
        """Returns the resizer with a network input of another height; see `Resizer`."""
        width, rest = divmod(self.width * height, max(self.height, 1))
        return None if rest else replace(self, height=height, width=width)


@dataclass(frozen=True, kw_only=True)
class KeepAspectRatioResizer(Resizer, kind="keep_aspect_ratio"):
    """Scales the short side to `min_dimension` unless the long one would pass `max_dimension`.

    The result is padded at the bottom and right to `max_dimension` squared, always: an unpadded
    image has no fixed shape. The padding is masked and changes no result.
    """

    min_dimension: Side = 600
    """Length that the short side aims for, in pixels."""
    max_dimension: Side = 1024
    """Length that the long side may not pass, and the side of the padded canvas, in pixels."""
    method: ResizeMethod = "bilinear"
    """Interpolation, as for the fixed shape."""
    pad_value: Annotated[tuple[ColorValue, ...], Rgb] = (0.0, 0.0, 0.0)
    """Colour of the padding, one number for each channel, in 0..255."""

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the network input, in pixels."""
        return self.max_dimension, self.max_dimension

    def with_height(self, height: int) -> Self:
        """Returns the resizer with another `max_dimension`, `min_dimension` in proportion."""
        short = round(self.min_dimension * height / max(self.max_dimension, 1))
        return replace(self, min_dimension=max(short, 1), max_dimension=height)


@dataclass(frozen=True, kw_only=True)
class CanvasResizer(Resizer):
    """Base of the resizers without a fixed shape, which pad to a canvas; not a resizer itself.

    An image that does not fit is a bad record: it is never shrunk silently.
    """

    canvas: Annotated[tuple[Side, ...], Items(lengths=(0, 2), fix="give height and width")] = ()
    """Height and width of the network input, in pixels. It must be given: the original has as many
    input shapes as there are image sizes."""
    pad_value: Annotated[tuple[ColorValue, ...], Rgb] = (0.0, 0.0, 0.0)
    """Colour of the padding, one number for each channel, in 0..255."""

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the network input, in pixels."""
        # Rules about sizes run beside the one that demands a canvas.
        return (self.canvas[0], self.canvas[1]) if len(self.canvas) == 2 else (0, 0)


@dataclass(frozen=True, kw_only=True)
class IdentityResizer(CanvasResizer, kind="identity"):
    """Leaves every image at its size and pads it at the bottom and right to `canvas`."""


@dataclass(frozen=True, kw_only=True)
class ConditionalShapeResizer(CanvasResizer, kind="conditional_shape"):
    """Shrinks large images or enlarges small ones, the aspect ratio kept, and pads to `canvas`.

    Sizes are cut to whole pixels, and the corner pixels of image and result coincide
    (`align_corners`), as in the original.
    """

    condition: Literal["greater", "smaller"] = "greater"
    """`greater`: a long side above `threshold` becomes `threshold`; `smaller`: a short side below
    `threshold` becomes `threshold`. Other images keep their size."""
    threshold: Side = 300
    """Length of a side, in pixels."""
    method: ResizeMethod = "bilinear"
    """Interpolation."""
    align_corners = True


@dataclass(frozen=True, kw_only=True)
class PadToMultipleResizer(CanvasResizer, kind="pad_to_multiple"):
    """Leaves every image at its size and pads it at the bottom and right to `canvas`.

    The original pads to the next multiple; here the one canvas is a multiple.
    """

    multiple: Side = 1
    """What height and width of the canvas are a multiple of, in pixels."""


@dataclass(frozen=True, kw_only=True)
class ScaleJitterResizer(Resizer, kind="scale_jitter"):
    """Fits every image into `height` by `width`, the aspect ratio kept; training draws the scale.

    In training the frame that the image is fitted into is drawn anew for every image and epoch:
    `height` and `width` times a number between `min_scale` and `max_scale`. Of what is then larger
    than `height` by `width`, a part at a drawn place is kept; what is smaller is padded at the
    bottom and right. Boxes end one pixel before the bottom and right edges of `height` by `width`,
    and those that nothing is left of are dropped. Everywhere else the scale is 1
    (`tpu/models/official/detection/utils/input_utils.py`).
    """

    height: Side = 640
    """Rows that the image is fitted into, in pixels."""
    width: Side = 640
    """Columns that the image is fitted into, in pixels."""
    min_scale: Positive = 1.0
    """Least number that height and width are multiplied by, in training."""
    max_scale: Positive = 1.0
    """Greatest number that height and width are multiplied by, in training."""
    multiple: Side = 1
    """Pad height and width of the network input to a multiple of this, in pixels."""
    method: ResizeMethod = "bilinear"
    """Interpolation, as for the fixed shape."""
    pad_value: Annotated[tuple[ColorValue, ...], Rgb] = (0.0, 0.0, 0.0)
    """Colour of the padding, one number for each channel, in 0..255."""

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the network input, in pixels."""
        # Rules about sizes run beside the one that demands a multiple of at least 1.
        multiple = max(self.multiple, 1)
        return self.height + -self.height % multiple, self.width + -self.width % multiple

    def with_height(self, height: int) -> Self | None:
        """Returns the resizer with another `height`, before padding; see `Resizer`."""
        width, rest = divmod(self.width * height, max(self.height, 1))
        return None if rest else replace(self, height=height, width=width)


@dataclass(frozen=True, kw_only=True)
class Records:
    """A set of TFRecord shards with its label map."""

    paths: Annotated[tuple[InputPath, ...], PerClass] = ()
    """TFRecord files or glob patterns; `?????` and `name@100` shard patterns are understood."""
    label_map: InputPath = ""
    """Label map (`.pbtxt`) that gives every class name its id; COCO's is built in as `coco`."""
    use_display_name: bool = False
    """Match the records' class text against `display_name` instead of `name`."""
    max_boxes: Boxes = 100
    """The N of `Batch`: boxes beyond it are cut off, and the share of them is reported."""
    shuffle: bool = True
    """A fresh global permutation every epoch."""
    repeat_threshold: Fraction = 0.0
    """Repeat-factor sampling of LVIS (arXiv:1908.03195): training draws images with a class that
    less than this share of the images (or tiles) has more often, by sqrt(threshold / share) of
    their rarest class. An epoch keeps its length: other images make room. 0: each once an epoch."""
    num_epochs: NonNegativeInt = 0
    """Passes over the records, or over their tiles; 0: no limit."""
    sample_1_of_n: PositiveInt = 1
    """Use every n-th record only."""
    crowds: Literal["train", "ignore", "drop"] = "train"
    """Crowd boxes are ordinary targets as in the original, targets of weight 0, or no targets, so
    that their anchors are background. In evaluation they are always crowds."""
    annotations: InputPath = ""
    """COCO JSON with the boxes, areas and crowds that evaluation takes as its ground truth, instead
    of the records'; images are matched by their id. Empty: the records'."""


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """Overlapping square tiles that stored images are cut into, for small objects in large images.

    Each tile is an image of the network: the resizer takes it to the network input. An image that
    fits into one tile is not cut. Training draws every tile once an epoch. Scores, predictions and
    servers merge the detections in all tiles to detections in the whole image.
    """

    side: Annotated[int, Range(32, 16_384)] = 640
    """Side of a tile, in pixels of the stored image."""
    overlap: Annotated[float, Range(0, 0.9)] = 0.2
    """Least share of a tile's side that its neighbour covers too."""
    whole_image: bool = False
    """Train and detect in the whole image too, for objects that fit into no tile."""
    merge: Literal["nms", "wbf"] = "nms"
    """Of the boxes of one object in several tiles, `nms` keeps the best; `wbf` averages them with
    their scores as weights."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """The two sets of records and how they are read."""

    train: Records = field(default_factory=Records)
    """Records to train on."""
    evaluation: Records = field(default_factory=lambda: Records(shuffle=False))
    """Records to score on."""
    tiles: Tiles | None = None
    """Cut images into tiles, each of which is a sample of training. None: images are whole."""
    seed: Seed = 0
    """Order and augmentation are a function of (seed, epoch, record), or its tile."""
    workers: Annotated[int | None, Range(0, 1024), MACHINE] = None
    """Threads that decode and augment, over all `processes`; no result depends on it. None: one for
    each processor of the process, at most 32 in one process. 0: in the caller's thread."""
    processes: Annotated[int, Range(0, 256), MACHINE] = 0
    """Processes that make the batches of training; no result depends on it. 0: the process of
    training does; its threads make 1,200 images a second of 300 pixels at most, however many
    processors there are. Each needs some 200 MB. Scoring is not changed."""
    prefetch: Annotated[int, Range(0, 100_000), MACHINE] = 2
    """Batches that are prepared ahead."""
    bad_records: Literal["fail", "drop"] = "fail"
    """On an unreadable record or image: stop and name it, or skip and count it."""
    bad_boxes: Literal["fix", "drop", "fail"] = "fix"
    """On a box that is inverted, outside, degenerate or of an unknown class: `fix` clips and swaps
    edges and drops the rest; every case is counted."""
    # The cache takes free memory only, whoever asks for it.
    cache_images: Annotated[bool, Outside(stored=True)] = False
    """Keep decoded images in memory, as far as memory allows."""
    pixels: Literal["float32", "uint8"] = "float32"
    """Type of the images of training on their way to the device. `uint8` rounds resized pixels and
    padding to whole numbers of 0..255: a quarter of the bytes. Scoring is not changed."""
    reduced_decoding: bool = False
    """Decode JPEG files of training at 1/2, 1/4 or 1/8 of their size where the resizer shrinks what
    is left after crops at least as much: faster, with means of pixels in place of single ones.
    Augmentations other than horizontal flips and crops, methods of resizing other than `bilinear`
    and `bilinear_antialias`, and `cache_images` need whole images. Scoring is not changed."""
    repeat_first_batch: bool = False
    """Train every step on the first batch, to measure the speed of a step without decoding and
    augmentation. The model is of no use afterwards."""

    @property
    def batches_ahead(self) -> int:
        """Batches that are requested before they are needed; each process has one to go on with."""
        return max(self.prefetch, 2 * self.processes)
