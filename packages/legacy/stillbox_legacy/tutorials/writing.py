"""Writes annotated images as records, into one file or a set of shards."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from stillbox.errors import UserError, nearest
from stillbox.printing import count_text
from stillbox.records.annotations import AnnotatedImage
from stillbox.records.conversion import ConversionJob, ConversionOptions, convert_image
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import ordered_map
from stillbox.records.problems import ConversionLog

Writer = AbstractContextManager[Callable[[bytes], None]]
"""Yields a function that appends a record; the files appear at its end."""


class Written(NamedTuple):
    """The numbers of images and boxes in the records."""

    images: int
    boxes: int

    def __str__(self) -> str:
        return f"{count_text(self.images, 'image')}, {count_text(self.boxes, 'box')}"


def write_records(
    items: Sequence[AnnotatedImage],
    label_map: LabelMap,
    writer: Writer,
    log: ConversionLog,
    *,
    keep_empty: bool = False,
    labels: bool = True,
) -> Written:
    """Writes the images that have a file and a usable box, as the originals do.

    Args:
        items: the images.
        label_map: the classes.
        writer: see `tfrecord_writer` and `sharded_writer`.
        log: gets what is left out, and why.
        keep_empty: write the images without a box too.
        labels: write the ids of classes beside their texts.

    Raises:
        UserError: a class is not in the label map, or no image can be used.
    """
    refuse_unknown(items, label_map)
    boxes = 0
    images = 0
    job = ConversionJob(
        label_map=label_map,
        options=ConversionOptions(skip_images_without_boxes=not keep_empty),
        bad_records=log.bad_records,
        bad_boxes=log.bad_boxes,
        labels=labels,
    )
    with writer as write:
        for record, class_ids, problems, _ in ordered_map(partial(convert_image, job), items):
            log.extend(problems)
            if record is not None:
                write(record)
                images += 1
                boxes += len(class_ids)
        if not images:
            raise UserError(
                "no image can be used: " + ("; ".join(log.lines()) or "none has a box"),
                fix="see that images and annotations belong together",
            )
    return Written(images, boxes)


def refuse_unknown(items: Sequence[AnnotatedImage], label_map: LabelMap) -> None:
    """Refuses annotations with classes that the label map lacks, where the originals stop too.

    Raises:
        UserError: there is one.
    """
    for item in items:
        for name in item.unknown.values():
            raise UserError(
                f"the label map ({label_map.where}) has no class {name}",
                where=item.where,
                fix=nearest(name.strip("'\""), [item.name for item in label_map]),
            )
