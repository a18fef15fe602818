"""The records and how they are read."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from stillbox.experiment.schema.ranges import *


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
    num_epochs: NonNegativeInt = 0
    """Passes over the records; 0: no limit."""
    sample_1_of_n: PositiveInt = 1
    """Use every n-th record only."""
    crowds: Literal["train", "ignore", "drop"] = "train"
    """Crowd boxes are ordinary targets as in the original, targets of weight 0, or no targets, so
    that their anchors are background. In evaluation they are always crowds."""
    annotations: InputPath = ""
    """COCO JSON whose boxes, areas and crowds are the ground truth of evaluation, instead of the
    records'; images are matched by their id. Empty: the records'."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Both sets of records and how they are read."""

    train: Records = field(default_factory=Records)
    """Records to train on."""
    evaluation: Records = field(default_factory=lambda: Records(shuffle=False))
    """Records to score on."""
    seed: Seed = 0
    """Order and augmentation are a function of (seed, epoch, record)."""
    workers: Annotated[int | None, Range(0, 1024), MACHINE] = None
    """Threads that decode and augment; no result depends on it. None: one for each processor of the
    process, at most 32. 0: in the caller's thread."""
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
