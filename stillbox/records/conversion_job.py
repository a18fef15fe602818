"""The conversion of one image, and the interface of the engines that convert a set."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stillbox.records.annotated import AnnotatedImage, to_example
from stillbox.records.boxes_policy import apply_box_policy, format_box
from stillbox.records.example import Example
from stillbox.records.image_files import Exif, prepare_image
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import (
    BadRecordError,
    BoxPolicy,
    ConversionLog,
    Problem,
    RecordPolicy,
)
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import ShardNames


@dataclass(frozen=True, kw_only=True)
class ConversionOptions:
    """How a set is written."""

    shards: int = 0
    """Files; 0 chooses one for every 1,000 images, at most 100."""
    shard_names: ShardNames = "record"
    exif: Exif = "auto"
    skip_images_without_boxes: bool = False
    overwrite: bool = False
    workers: int = 0
    """Threads that read and check images; 0 takes one for each core, at most 8."""


@dataclass(frozen=True, kw_only=True)
class ConversionJob:
    """The arguments of a conversion apart from the images. It can be pickled."""

    label_map: LabelMap
    output: Path
    """Folder of the shards."""
    name: str
    """The set, as `train`."""
    shards: int
    """Files among which the records take turns."""
    options: ConversionOptions
    bad_records: RecordPolicy
    bad_boxes: BoxPolicy


class ConvertedImage(NamedTuple):
    """The result of converting one image."""

    class_ids: list[int] | None
    """Classes of its boxes; None if the image is left out."""
    problems: list[Problem]


Engine = Callable[
    [ConversionJob, Sequence[AnnotatedImage]], AbstractContextManager[Iterator[ConvertedImage]]
]
"""Returns a context that yields the outcome of each image, in order. The shards get their names at
its end, unless there was an exception."""


def convert_image(job: ConversionJob, item: AnnotatedImage) -> tuple[bytes | None, ConvertedImage]:
    """Returns the record of an image, or None if it is left out, and its outcome.

    Raises:
        UserError: a policy is `fail`.
    """
    # One log per image, merged in order, so that the report does not depend on the scheduling.
    log = ConversionLog(job.bad_records, job.bad_boxes)
    example = _prepare(item, job.options, log)
    if example is None:
        return None, ConvertedImage(None, list(log))
    return serialize_example(example, job.label_map), ConvertedImage(
        example.class_ids.tolist(), list(log)
    )


def _prepare(
    item: AnnotatedImage, options: ConversionOptions, log: ConversionLog
) -> Example | None:
    """Returns the finished example of an image, or None if it is left out."""
    try:
        image = prepare_image(item.content(), (item.height, item.width), options.exif)
    except FileNotFoundError:
        log.bad_record("image file is missing", item.where, str(item.path))
        return None
    except OSError as error:
        log.bad_record("image file cannot be opened", item.where, str(error))
        return None
    except BadRecordError as error:
        log.bad_record(error.reason, item.where, error.detail)
        return None
    except ValueError as error:  # a name that no file can have
        log.bad_record("image file cannot be opened", item.where, str(error))
        return None
    for what, detail, outcome in image.notes:
        log.add(what, item.where, detail, action=outcome)
    example = to_example(item, image, log)
    example, problems = apply_box_policy(
        example, item.unknown, log.bad_boxes, pixels_possible=False
    )
    for problem in problems:
        # In the annotation's own pixels, as they stand in its file.
        detail = problem.detail
        if problem.box not in item.unknown:
            detail = format_box(item.pixel_boxes[problem.box])
            if item.width and not item.relative:
                detail += f" in {item.width} x {item.height}"
        where = f"{item.where}, box {problem.box}"
        log.bad_box(problem.reason, where, detail, action=f"box {problem.action}")
    if not len(example.boxes):
        if len(item.pixel_boxes):
            log.add("no box of the image is usable", item.where, action="background")
        if options.skip_images_without_boxes:
            log.add("image without a box", item.where, action="image left out")
            return None
    return example
