"""Converts a folder of annotated images in any known format to records, label map and report.

A finished conversion is recognised by its settings and files; `former_conversion` tells whether it
can be reused.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from stillbox.errors import UserError
from stillbox.printing import count_text, json_text
from stillbox.records.annotations import AnnotatedImage
from stillbox.records.conversion import LABEL_MAP_NAME, ConversionOptions, ConversionReport, convert
from stillbox.records.data_folder import FINISHED, DataFolder, Split
from stillbox.records.files import new_folder, write_whole
from stillbox.records.formats.registry import FolderContents, Recognised, recognise
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import BoxPolicy, ConversionLog, RecordPolicy
from stillbox.records.splits import (
    assign_splits,
    fingerprints,
    report_duplicates,
    report_similar_classes,
)
from stillbox.untrusted import read_untrusted

# Names of classes take most of it.
_MOST_BYTES = 2**24

REPORT_NAME = "conversion.txt"
_VERSION = "stillbox conversion 3"


@dataclass(frozen=True, kw_only=True)
class ConvertedFolder:
    """A data set that is ready to train on."""

    format: str
    """Name of the format, such as `yolo`."""
    title: str
    """Name of the format for people."""
    train: str
    """The records as in `data.train.paths`, such as `out/train.record@1`."""
    validation: str
    test: str = ""
    """Empty unless the data set has a third part."""
    label_map: Path
    classes: tuple[str, ...]
    """In the order of their ids."""
    train_images: int
    validation_images: int
    test_images: int = 0
    boxes: int
    """Boxes of all sets."""
    split: str
    """The origin of the split."""
    problems: tuple[str, ...]
    """A line for each kind of problem, with its first case."""
    report: Path
    """All of this as text, with the report of each set."""
    reused: bool = False
    """The records existed already, and the folder has not changed since."""


def conversion_key(data: DataFolder, settings: dict[str, object]) -> str:
    """Returns a hash of the settings and of name, size and time of every file."""
    digest = hashlib.sha256(json.dumps([_VERSION, settings], sort_keys=True).encode())
    for file in data.files:
        state = file.stat()
        line = f"{file.relative_to(data.root)}\0{state.st_size}\0{state.st_mtime_ns}\n"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()


def former_conversion(output: Path, key: str, *, overwrite: bool) -> ConvertedFolder | None:
    """Returns the conversion in the output folder if it can be used again.

    Raises:
        UserError: the folder holds something else that is not to be replaced.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    try:
        stored = json.loads(read_untrusted(output / FINISHED, most=_MOST_BYTES))
        files = {FINISHED, *stored["files"]}
        there = {entry.name for entry in output.iterdir()}
        if stored["key"] == key and files <= there:
            return _reused(output, stored["result"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = "the output folder holds files that are no conversion"
        fix = "choose another --output, or empty the folder"
        raise UserError(what, where=str(output), fix=fix) from error
    if not overwrite:
        what = "the output folder holds a conversion of other data or with other options"
        fix = "replace it with --overwrite, or choose another --output"
        raise UserError(what, where=str(output), fix=fix)
    if foreign := sorted(there - files):
        what = f"the output folder holds a file that is not the conversion's: {foreign[0]}"
        raise UserError(what, where=str(output), fix="move it away, or choose another --output")
    return None


def _reused(output: Path, result: dict[str, Any]) -> ConvertedFolder:
    tuples = {name: tuple(map(str, result[name])) for name in ("classes", "problems")}
    paths = {name: output / Path(result[name]).name for name in ("label_map", "report")}
    sets = {
        name: str(output / Path(result[name]).name) if result[name] else ""
        for name in ("train", "validation", "test")
    }
    return ConvertedFolder(**(result | tuples | paths | sets | {"reused": True}))


def write_conversion(
    unfinished: Path,
    key: str,
    converted: ConvertedFolder,
    reports: dict[Split, ConversionReport],
    log: ConversionLog,
) -> None:
    """Writes the report and `conversion.json` into the folder before it gets its name."""
    lines = [f"Format: {converted.title}", f"Split: {converted.split}"]
    lines += ["Special or wrong in the annotations"] if list(log) else []
    for problem in log:
        lines += [f"  {problem}", *(f"    {case}" for case in problem.examples)]
    text = "\n".join(lines) + "\n" + "".join(report.to_text() for report in reports.values())
    write_whole(unfinished / REPORT_NAME, text.encode())
    content = {
        "key": key,
        "files": sorted(entry.name for entry in unfinished.iterdir()),
        "result": asdict(converted),
        "problems": [asdict(problem) for problem in log],
    }
    write_whole(unfinished / FINISHED, f"{json_text(content)}\n".encode())


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
    bad_records: RecordPolicy = "drop",
    bad_boxes: BoxPolicy = "fix",
    on_image: StageProgress = lambda stage, done, total: None,
) -> ConvertedFolder:
    """Converts a folder of annotated images, whose format is recognised by content.

    The split is the one that the folder states, or else a share of the images by a hash of their
    content and `seed`. `output` appears when it is complete. An existing conversion is reused if
    neither the folder nor an option has changed.

    Args:
        validation_share: share of the images that validate, if the folder states no split.
        format: the format, if the folder has several.
        label_map: the classes and ids; by default those of the annotations.
        options: `overwrite` replaces a conversion of something else.

    Raises:
        UserError: the format is unknown, ambiguous or not convertible, nothing is usable, `output`
            holds something else, or a policy is `fail`.
    """
    if not 0 < validation_share < 1:
        what, fix = f"{validation_share:g} is no share of the images", "give a number such as 0.2"
        raise UserError(what, where="--validation-share", fix=fix)
    output, options = Path(output), options or ConversionOptions()
    data = DataFolder(folder, without=[output])
    log = ConversionLog(bad_records, bad_boxes)
    settings = {
        **asdict(replace(options, overwrite=False, workers=0)),
        "validation_share": validation_share,
        "seed": seed,
        "format": format,
        "label_map": label_map.to_text() if label_map else "",
        "policies": [bad_records, bad_boxes],
    }
    key = conversion_key(data, settings)
    former = former_conversion(output, key, overwrite=options.overwrite)
    if former is not None:
        return former
    on_image("reading", 0, 0)
    recognised = recognise(data, format)
    reading = _read(data, recognised, log)
    items, label_map = reading.with_ids(label_map)
    splits, origin = _split(items, reading, data, validation_share, seed, options, log, on_image)
    report_similar_classes([item.name for item in label_map], log)
    items = _own_names(items, splits, data, log)

    def check() -> object:
        return former_conversion(output, key, overwrite=options.overwrite)

    with new_folder(output, check) as unfinished:
        reports = {
            name: convert(
                [item for item, split in zip(items, splits, strict=True) if split == name],
                label_map,
                unfinished,
                name,
                options=options,
                log=ConversionLog(bad_records, bad_boxes),
                on_image=partial(on_image, name),
            )
            for name in _SETS
            if name in splits
        }
        converted = _converted(output, recognised, label_map, reports, log, origin, options)
        write_conversion(unfinished, key, converted, reports, log)
    return converted


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
    if not any(one.names for one in reading.images):
        title, where = recognised.format.title, data.relative(recognised.files[0])
        raise data.behind_links() or UserError(
            f"the annotations ({title}) have no box for any of "
            f"{count_text(max(len(reading.images), len(data.images)), 'image')}",
            where=f"{data.shown}: {where}",
            fix="see that the whole export is in the folder"
            + "".join(f"; {problem}: {problem.examples[0]}" for problem in list(log)[:1]),
        )
    return reading


def _split(
    items: Sequence[AnnotatedImage],
    reading: FolderContents,
    data: DataFolder,
    share: float,
    seed: int,
    options: ConversionOptions,
    log: ConversionLog,
    on_image: StageProgress,
) -> tuple[list[Split | None], str]:
    """Returns the split of each image, and its origin in words; reports images that occur twice."""
    prints = fingerprints(items, workers=options.workers, on_image=partial(on_image, "comparing"))
    if not len(prints.rows):
        raise data.behind_links() or UserError(
            f"of {count_text(len(items), 'image')} of the annotations none is there and can be "
            f"read; the first is {items[0].path.name}",
            where=items[0].where,
            fix="put the images into the folder, with the names that the annotations have",
        )
    stated = [one.split for one in reading.images]
    splits, origin = assign_splits(items, stated, prints, share, seed, log)
    for item, split in zip(items, splits, strict=True):
        if split is None:
            log.add("image in no split", item.where, action="image left out")
    report_duplicates([item.where for item in items], splits, prints, log)
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
    own = []
    for item, s in zip(items, scopes, strict=True):
        long = item.filename
        if item.path.is_relative_to(data.root):
            long = item.path.relative_to(data.root).as_posix()
        filename = long if names[s, item.filename] > 1 else item.filename
        image_id = long if ids[s, item.image_id] > 1 else item.image_id
        if image_id != item.image_id and item.image_id != item.filename:
            action = "the file's path is the id"
            log.add("image id occurs twice in a set", item.where, item.image_id, action=action)
        own.append(replace(item, image_id=image_id, filename=filename))
    return own


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

    problems = [*log, *(problem for report in reports.values() for problem in report.problems)]
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
        split=origin,
        problems=tuple(f"{problem}: {problem.examples[0]}" for problem in problems),
        report=output / REPORT_NAME,
    )
