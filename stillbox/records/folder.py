"""Converts a folder of annotated images in any known format to records, label map and report."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from stillbox.errors import UserError
from stillbox.printing import count_text
from stillbox.records.annotations import AnnotatedImage
from stillbox.records.box_numbers import BoxNumbers
from stillbox.records.conversion import (
    LABEL_MAP_NAME,
    ConversionOptions,
    ConversionReport,
    brightest_of,
    convert,
    no_boxes,
)
from stillbox.records.converted import (
    PAGE_NAME,
    REPORT_NAME,
    ConvertedFolder,
    conversion_key,
    former_conversion,
    write_conversion,
    written_files,
)
from stillbox.records.data_folder import DataFolder, Split
from stillbox.records.files import new_folder
from stillbox.records.formats.registry import FolderContents, Recognised, recognise
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import OrderedMap, ordered_map
from stillbox.records.pixels import Brightest
from stillbox.records.problems import BoxPolicy, ConversionLog, Problem, RecordPolicy
from stillbox.records.review import Stated, report_without_annotation, review
from stillbox.records.splits import (
    assign_splits,
    fingerprints,
    report_duplicates,
    report_similar_classes,
)
from stillbox.records.unread import report_unread
from stillbox.references import Parameter


@dataclass(frozen=True, kw_only=True)
class ConversionView:
    """The content of a conversion, for a page that shows it."""

    title: str
    """Name of the format for people."""
    folder: str
    """The folder as it was given."""
    split: str
    """The origin of the split."""
    label_map: LabelMap
    items: Sequence[AnnotatedImage]
    """Boxes as they were read, before any is repaired or dropped."""
    splits: Sequence[str | None]
    """The set of each item, as `train`; None: the image is left out."""
    problems: Sequence[Problem]
    options: ConversionOptions
    brightest: Brightest
    """The brightest pixels of all items."""


PageWriter = Callable[[ConversionView, Path], None]
"""Writes the page of a conversion into a file."""


_SETS: tuple[Split, ...] = ("train", "val", "test")

StageProgress = Callable[[str, int, int], None]
"""Called with what is done (`reading`, `comparing`, `train`, ...), images done and in all."""


def convert_folder(
    folder: Path | str,
    output: Path | str,
    *,
    validation_share: float = 0.2,
    seed: int = 0,
    format: str = "",
    label_map: LabelMap | None = None,
    options: ConversionOptions | None = None,
    engine: OrderedMap = ordered_map,
    bad_records: RecordPolicy = "drop",
    bad_boxes: BoxPolicy = "fix",
    box_numbers: str = "",
    on_image: StageProgress = lambda stage, done, total: None,
    write_page: PageWriter | None = None,
) -> ConvertedFolder:
    """Converts a folder of annotated images; the format is recognised by content.

    The split is the one that the folder states, or else a share of the images by a hash of their
    content and `seed`. `output` appears when it is complete. An existing conversion is reused if
    neither the folder nor an option has changed.

    Args:
        validation_share: share of the images that validate, if the folder states no split.
        format: the format, if the folder has several.
        label_map: the classes and ids; by default as the annotations have them.
        options: `overwrite` replaces a conversion of something else.
        engine: reads the images; the result is the same with all.
        box_numbers: unit and layout of the boxes, as `pixels:corners`; by default recognised.
        write_page: writes `conversion.html`, which shows what was read.

    Raises:
        UserError: the format is unknown, ambiguous or not convertible, nothing is usable, `output`
            holds something else, or a policy is `fail`.
    """
    if not 0 < validation_share < 1:
        problem, fix = (
            f"{validation_share:g} is no share of the images",
            "give a number such as 0.2",
        )
        raise UserError(problem, where=Parameter("validation_share"), fix=fix)
    output, options = Path(output), options or ConversionOptions()
    chosen = BoxNumbers.from_name(box_numbers) if box_numbers else None
    data = DataFolder(folder, without=[output])
    log = ConversionLog(bad_records, bad_boxes)
    settings = {
        **asdict(replace(options, overwrite=False)),
        "workers": 0,  # part of the key of every conversion so far
        "validation_share": validation_share,
        "seed": seed,
        "format": format,
        "label_map": label_map.to_text() if label_map else "",
        "box_numbers": box_numbers,
        "policies": [bad_records, bad_boxes],
    }
    key = conversion_key(data, settings)
    former = former_conversion(output, key, overwrite=options.overwrite)
    if former is not None:
        return former
    on_image("reading", 0, 0)
    recognised = recognise(data, format)
    reading = _read(data, recognised, log)
    stated, label_map = reading.with_ids(label_map)
    stated = review(stated, data, reading.numbers, log, chosen)
    report_without_annotation([image.item for image in stated], data, log)
    items = [image.item for image in stated]
    splits, origin = _split(stated, data, validation_share, seed, engine, log, on_image)
    report_similar_classes([item.name for item in label_map], log)
    items = _own_names(items, splits, data, log)

    def check() -> object:
        return former_conversion(output, key, overwrite=options.overwrite)

    brightest = brightest_of(items, engine)
    with new_folder(output, check, written=written_files) as unfinished:
        reports = {
            name: convert(
                [item for item, split in zip(items, splits, strict=True) if split == name],
                label_map,
                unfinished,
                name,
                options=options,
                log=ConversionLog(bad_records, bad_boxes),
                on_image=partial(on_image, name),
                engine=engine,
                brightest=brightest,
                need_boxes=False,
            )
            for name in _SETS
            if name in splits
        }
        if not any(report.boxes_written for report in reports.values()):
            raise no_boxes(recognised.format.title, [*log, *_problems_of(reports)])
        converted = _converted(output, recognised, label_map, reports, log, origin, options)
        if write_page is not None:
            view = ConversionView(
                title=recognised.format.title,
                folder=str(data.shown),
                split=origin,
                label_map=label_map,
                items=items,
                splits=splits,
                problems=[*log, *_problems_of(reports)],
                options=options,
                brightest=brightest,
            )
            write_page(view, unfinished / PAGE_NAME)
            converted = replace(converted, page=output / PAGE_NAME)
        write_conversion(unfinished, key, converted, reports, log)
    return converted


def _problems_of(reports: Mapping[Split, ConversionReport]) -> list[Problem]:
    return [problem for report in reports.values() for problem in report.problems]


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
    share: float,
    seed: int,
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
    splits, origin = assign_splits(
        items, [image.split for image in stated], prints, share, seed, log
    )
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


def _converted(
    output: Path,
    recognised: Recognised,
    label_map: LabelMap,
    reports: dict[Split, ConversionReport],
    log: ConversionLog,
    origin: str,
    options: ConversionOptions,
) -> ConvertedFolder:
    def pattern(name: Split) -> str:
        if name not in reports:
            return ""
        # `name@10` rather than a pattern: the folder's own name may have brackets.
        shards = f"@{len(reports[name].files)}"
        tfrecord = options.shard_names == "tfrecord"
        return str(output / (f"{name}{shards}.tfrecord" if tfrecord else f"{name}.record{shards}"))

    def images(name: Split) -> int:
        return reports[name].images_written if name in reports else 0

    problems = [*log, *_problems_of(reports)]
    return ConvertedFolder(
        format=recognised.format.name,
        title=recognised.format.title,
        train=pattern("train"),
        validation=pattern("val"),
        test=pattern("test"),
        label_map=output / LABEL_MAP_NAME,
        classes=tuple(item.name for item in label_map),
        train_images=images("train"),
        validation_images=images("val"),
        test_images=images("test"),
        boxes=sum(report.boxes_written for report in reports.values()),
        without_boxes=tuple(name for name, report in reports.items() if not report.boxes_written),
        split=origin,
        problems=tuple(f"{problem}: {problem.examples[0]}" for problem in problems),
        report=output / REPORT_NAME,
    )
