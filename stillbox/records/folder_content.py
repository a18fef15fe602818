"""Reads a folder of annotated images in any known format: its images, classes and splits."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from stillbox.errors import UserError
from stillbox.printing import count_text
from stillbox.records.annotations import AnnotatedImage
from stillbox.records.box_numbers import BoxNumbers
from stillbox.records.conversion import brightest_of
from stillbox.records.data_folder import DataFolder, Split, name_split
from stillbox.records.file_kinds import ARCHIVES
from stillbox.records.formats.registry import FolderContents, FolderFormat, Recognised, recognise
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import OrderedMap
from stillbox.records.pixels import Brightest
from stillbox.records.problems import BoxPolicy, ConversionLog, RecordPolicy
from stillbox.records.review import Stated, report_without_annotation, review
from stillbox.records.splits import (
    assign_splits,
    fingerprints,
    report_duplicates,
    report_similar_classes,
)
from stillbox.records.unread import NO_FORMAT, unread_files
from stillbox.references import Parameter

_YAML = (".yaml", ".yml")

StageProgress = Callable[[str, int, int], None]
"""Called with what is done (`reading`, `comparing`, `train`, ...), images done and in all."""


@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """How a folder is read and split.

    Raises:
        UserError: the share is none, or there are no such box numbers.
    """

    format: str = ""
    """The format, if the folder has several."""
    label_map: LabelMap | None = None
    """The classes and ids; None: as the annotations have them."""
    box_numbers: str = ""
    """Unit and layout of the boxes, as `pixels:corners`; by default recognised."""
    bad_records: RecordPolicy = "drop"
    bad_boxes: BoxPolicy = "fix"
    validation_share: float = 0.2
    """Share of the images that validate, if the folder states no split."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.validation_share < 1:
            problem = f"{self.validation_share:g} is no share of the images"
            fix = "give a number such as 0.2"
            raise UserError(problem, where=Parameter("validation_share"), fix=fix)
        self.numbers()

    def numbers(self) -> BoxNumbers | None:
        """Returns the unit and layout of the boxes if they are given."""
        return BoxNumbers.from_name(self.box_numbers) if self.box_numbers else None


@dataclass(frozen=True, kw_only=True)
class FolderContent:
    """The images of a folder as they are converted."""

    format: FolderFormat
    label_map: LabelMap
    items: Sequence[AnnotatedImage]
    """Boxes as they were read, before any is repaired or dropped."""
    splits: Sequence[Split | None]
    """The split of each image; None: the image is left out."""
    origin: str
    """The origin of the splits, in words."""
    brightest: Brightest
    """The brightest pixels of all images."""
    log: ConversionLog

    def of_split(self, name: Split) -> list[AnnotatedImage]:
        """Returns the images of a split."""
        return [item for item, split in zip(self.items, self.splits, strict=True) if split == name]


def read_folder(
    data: DataFolder, options: FolderOptions, engine: OrderedMap, on_image: StageProgress
) -> FolderContent:
    """Recognises the format of a folder, and reads and splits it.

    Raises:
        UserError: the format is unknown, ambiguous or not convertible, nothing is usable, or a
            policy is `fail`.
    """
    on_image("reading", 0, 0)
    log = ConversionLog(options.bad_records, options.bad_boxes)
    recognised = recognise(data, options.format)
    reading = _read(data, recognised, log)
    stated, label_map = reading.with_ids(options.label_map)
    stated = review(stated, data, reading.numbers, log, options.numbers())
    items = [image.item for image in stated]
    report_without_annotation(items, data, log)
    splits, origin = _split(stated, data, options, engine, log, on_image)
    report_similar_classes([item.name for item in label_map], log)
    items = _own_names(items, splits, data, log)
    return FolderContent(
        format=recognised.format,
        label_map=label_map,
        items=items,
        splits=splits,
        origin=origin,
        brightest=brightest_of(items, engine),
        log=log,
    )


def _read(data: DataFolder, recognised: Recognised, log: ConversionLog) -> FolderContents:
    assert recognised.format.read is not None  # `recognise` returns no other
    for link in data.links:
        reason, to = "symbolic link that leads out of the folder", f"to {os.path.realpath(link)}"
        log.add(reason, data.relative(link), to, action="not followed")
    for file in data.special:
        log.add("no regular file", data.relative(file), action="not opened")
    for title, count in recognised.others.items():
        log.add(f"{title}", count_text(count, "file"), action="passed over")
    reading = recognised.format.read(data, recognised.files, log)
    data.forget()
    report_unread(data, recognised, {image.split for image in reading.images}, log)
    if not any(image.names for image in reading.images):
        title, where = recognised.format.title, data.relative(recognised.files[0])
        raise data.behind_links() or UserError(
            f"the annotations ({title}) have no box for any of "
            f"{count_text(max(len(reading.images), len(data.images)), 'image')}",
            where=f"{data.shown}: {where}",
            fix="see that the whole export is in the folder"
            + "".join(f"; {problem}: {problem.examples[0]}" for problem in list(log)[:3]),
        )
    return reading


def _split(
    stated: Sequence[Stated],
    data: DataFolder,
    options: FolderOptions,
    engine: OrderedMap,
    log: ConversionLog,
    on_image: StageProgress,
) -> tuple[list[Split | None], str]:
    """Returns the split of each image, and its origin in words; reports images that occur twice."""
    items = [image.item for image in stated]
    prints = fingerprints(items, engine=engine, on_image=partial(on_image, "comparing"))
    if not len(prints.rows):
        raise data.behind_links() or UserError(
            f"of {count_text(len(items), 'image')} of the annotations none is there and can be "
            f"read; the first is {items[0].path.name}",
            where=items[0].where,
            fix="put the images into the folder, with the names that the annotations have",
        )
    given = [image.split for image in stated]
    share, seed = options.validation_share, options.seed
    splits, origin = assign_splits(items, given, prints, share, seed, log)
    for item, split in zip(items, splits, strict=True):
        if split is None:
            log.add("image in no split", item.where, action="image left out")
    report_duplicates(items, splits, prints, log)
    return splits, origin


def _own_names(
    items: Sequence[AnnotatedImage],
    splits: Sequence[Split | None],
    data: DataFolder,
    log: ConversionLog,
) -> list[AnnotatedImage]:
    """Returns the images with unique file names and ids.

    Those that an annotation file gives stay unless they occur twice in a set, since results are
    joined by them. Each COCO JSON, most often a set, counts from 1.
    """

    def scope(item: AnnotatedImage, split: Split | None) -> Split | None:
        return split if item.image_id != item.filename else None

    scopes = list(map(scope, items, splits))
    names = Counter((s, item.filename) for s, item in zip(scopes, items, strict=True))
    ids = Counter((s, item.image_id) for s, item in zip(scopes, items, strict=True))
    unique = []
    for item, s in zip(items, scopes, strict=True):
        long = item.filename
        if item.path.is_relative_to(data.root):
            long = item.path.relative_to(data.root).as_posix()
        filename = long if names[s, item.filename] > 1 else item.filename
        image_id = long if ids[s, item.image_id] > 1 else item.image_id
        if image_id != item.image_id and item.image_id != item.filename:
            action = "the file's path is the id"
            log.add("image id occurs twice in a set", item.where, item.image_id, action=action)
        unique.append(replace(item, image_id=image_id, filename=filename))
    return unique


def report_unread(
    data: DataFolder, recognised: Recognised, splits: Collection[Split | None], log: ConversionLog
) -> None:
    """Reports the files that could be annotations and that no format has read.

    A file that states a split or the classes stops the conversion: the images of a lost split
    would be divided at random, and a model would be scored on what it was trained on.

    Args:
        recognised: the format that was read, and the files of all formats.
        splits: the splits of the images that were read.

    Raises:
        UserError: such a file cannot be read, or the policy of records is `fail`.
    """
    yamls = {file for file in recognised.files if file.suffix.lower() in _YAML}
    needs_yaml = recognised.format.name == "yolo" and not yamls
    for file, line, reason in unread_files(data, {*recognised.all_files, *data.used}):
        where = data.relative(file) + line
        lost = ""
        if file.suffix.lower() in _YAML and needs_yaml:
            lost = "classes and splits may be"
        elif not data.images_of_stem(file.stem) and _is_lost(file, data, splits):
            lost = "a split is"
        if reason.startswith(NO_FORMAT):
            log.add("file of no format that is read", where, reason, action="not read")
        elif lost:
            problem = f"the file cannot be read, and {lost} lost with it: {reason}"
            fix = "mend the file, or take it out of the folder"
            raise UserError(problem, where=str(data.shown / where), fix=fix)
        elif file.suffix.lower() in ARCHIVES:
            log.add("archive", where, reason, action="not read")
        else:
            log.bad_record("annotation file cannot be read", where, reason)
            data.used.update(data.images_of_stem(file.stem))


def _is_lost(file: Path, data: DataFolder, splits: Collection[Split | None]) -> bool:
    """Tells whether the split that the name of a file states is not among those that were read."""
    split = name_split(file.relative_to(data.root))
    return split is not None and not {split, "val" if split == "test" else split} & {*splits}
