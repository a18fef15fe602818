"""Converts annotated images to a set of TFRecord shards, its label map, and a report.

An engine applies a function to all images, on threads or on several machines. This process writes
the records. All shards get their names at the end: a conversion that is killed leaves none.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from stillbox.errors import UserError
from stillbox.image_kind import RGB_8, ImageKind, common_kind
from stillbox.printing import json_text
from stillbox.records.annotations import AnnotatedImage, to_example
from stillbox.records.class_counts import ClassCount, ClassCounter, class_table
from stillbox.records.example import Example, apply_box_policy, format_box
from stillbox.records.file_list import claim_files, refuse_others
from stillbox.records.files import write_whole
from stillbox.records.image_files import (
    MAX_IMAGE_BYTES,
    Exif,
    PreparedImage,
    brightest_in,
    may_be_deep,
    prepare_image,
)
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import OrderedMap, ordered_map
from stillbox.records.pixels import NO_DEEP, Brightest
from stillbox.records.problems import (
    BadRecordError,
    BoxPolicy,
    ConversionLog,
    Problem,
    RecordPolicy,
)
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import ShardNames, shard_files, sharded_writer
from stillbox.references import Parameter
from stillbox.untrusted import open_untrusted


@dataclass(frozen=True, kw_only=True)
class ConversionOptions:
    """How a set is written."""

    shards: int = 0
    """Files; 0 chooses one for every 1,000 images, at most 100."""
    shard_names: ShardNames = "record"
    exif: Exif = "auto"
    skip_images_without_boxes: bool = False
    keep_bits: bool = False
    """Keep all bits of images with more than 8."""
    overwrite: bool = False


@dataclass(frozen=True, kw_only=True)
class ConversionJob:
    """The arguments of a conversion apart from the images. It can be pickled."""

    label_map: LabelMap
    options: ConversionOptions
    bad_records: RecordPolicy
    bad_boxes: BoxPolicy
    brightest: Brightest = NO_DEEP
    """The brightest pixels of the images; see `brightest_of`."""
    labels: bool = True
    """Write the ids of classes beside their texts."""


class ConvertedImage(NamedTuple):
    """The result of converting one image."""

    record: bytes | None
    """None if the image is left out."""
    class_ids: list[int]
    """Classes of its boxes."""
    problems: list[Problem]
    kind: ImageKind = RGB_8
    """See `PreparedImage`."""


def convert_image(job: ConversionJob, item: AnnotatedImage) -> ConvertedImage:
    """Returns the record of an image, with its problems.

    Raises:
        UserError: a policy is `fail`.
    """
    # One log per image, merged in order: the report does not depend on the scheduling.
    log = ConversionLog(job.bad_records, job.bad_boxes)
    image = _prepare(item, job, log)
    example = None if image is None else _example(item, image, job, log)
    if image is None or example is None:
        return ConvertedImage(None, [], list(log))
    record = serialize_example(example, job.label_map, labels=job.labels)
    return ConvertedImage(record, example.class_ids.tolist(), list(log), image.kind)


def _prepare(item: AnnotatedImage, job: ConversionJob, log: ConversionLog) -> PreparedImage | None:
    options, claimed = job.options, (item.height, item.width)
    try:
        return prepare_image(
            item.content(), claimed, options.exif, job.brightest, keep_bits=options.keep_bits
        )
    except FileNotFoundError:
        log.bad_record("image file is missing", item.where, str(item.path))
    except BadRecordError as error:
        log.bad_record(error.reason, item.where, error.detail)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        log.bad_record("image file cannot be opened", item.where, str(error))
    return None


def _example(
    item: AnnotatedImage, image: PreparedImage, job: ConversionJob, log: ConversionLog
) -> Example | None:
    """Returns the example of an image; None if it is left out."""
    for note, detail, outcome in image.notes:
        log.add(note, item.where, detail, action=outcome)
    example = to_example(item, image, log)
    example, problems = apply_box_policy(
        example, item.unknown, log.bad_boxes, pixels_possible=False
    )
    for problem in problems:
        # In the annotation's own pixels, as in its file.
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
        if job.options.skip_images_without_boxes:
            log.add("image without a box", item.where, action="image left out")
            return None
    return example


# By name, so that they need not be opened. One with another content is scaled by itself.
_NEVER_DEEP = (
    *(".jpg", ".jpeg", ".jpe", ".jfif"),
    *(".bmp", ".gif", ".webp", ".avif", ".heic", ".heif"),
)
_START = 32


def brightest_of(items: Sequence[AnnotatedImage], engine: OrderedMap = ordered_map) -> Brightest:
    """Returns the brightest pixels of the deep images, those that cannot be read left out.

    Of other files the first bytes are read at most.
    """
    brightest = NO_DEEP
    possible = [item for item in items if item.path.suffix.lower() not in _NEVER_DEEP]
    for in_image in engine(_brightest, possible):
        brightest = brightest.joined(in_image)
    return brightest


def _brightest(item: AnnotatedImage) -> Brightest:
    try:
        if item.stored is None:
            with open_untrusted(item.path, most=MAX_IMAGE_BYTES) as file:
                if not may_be_deep(file.read(_START)):
                    return NO_DEEP
        return brightest_in(item.content())
    except (OSError, ValueError):  # reported when it is converted
        return NO_DEEP


LABEL_MAP_NAME = "label_map.pbtxt"
_IMAGES_PER_SHARD = 1000
_MOST_SHARDS = 100


@dataclass(kw_only=True)
class ConversionReport:
    """The number of images and boxes in the annotations (found) and in the records (written)."""

    name: str
    files: list[str] = field(default_factory=list)
    """Shards, in order."""
    images_found: int = 0
    images_written: int = 0
    images_without_boxes: int = 0
    """Background images among the records."""
    boxes_found: int = 0
    boxes_written: int = 0
    boxes_per_class: dict[str, int] = field(default_factory=dict)
    """Boxes written, in the order of the ids; classes without any included."""
    images_per_class: dict[str, int] = field(default_factory=dict)
    """Images written with a box of the class, likewise."""
    image_kind: ImageKind = RGB_8
    """Channels and bits of all images."""
    settings: dict[str, object] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    """The most frequent first."""

    def count(self, class_ids: Sequence[int]) -> None:
        """Counts a record with boxes of these classes."""
        self.images_written += 1
        self.images_without_boxes += not class_ids
        self.boxes_written += len(class_ids)

    @property
    def class_counts(self) -> tuple[ClassCount, ...]:
        """Boxes and images of each class, in the order of the ids."""
        images = self.images_per_class
        return tuple(
            ClassCount(name, boxes, images[name]) for name, boxes in self.boxes_per_class.items()
        )

    def to_text(self) -> str:
        """Returns counts, boxes by class, and problems with their first cases, in lines."""
        counts = [
            ("images", f"{self.images_found:,}", f"{self.images_written:,}"),
            ("  without a box", "", f"{self.images_without_boxes:,}"),
            ("boxes", f"{self.boxes_found:,}", f"{self.boxes_written:,}"),
            ("shards", "", f"{len(self.files):,}"),
        ]
        lines = [f"Set {self.name!r}", f"  {'':15} {'found':>11} {'written':>11}"]
        lines += [f"  {title:15} {read:>11} {written:>11}" for title, read, written in counts]
        lines += ["Boxes written", *class_table(self.class_counts)]
        if self.problems:
            lines += ["Special or wrong"]
        for problem in self.problems:
            more = problem.count - len(problem.examples)
            lines += [f"  {problem}", *(f"    {case}" for case in problem.examples)]
            lines += [f"    ... and {more:,} more"] if more else []
        return "\n".join(lines) + "\n"


def convert(
    items: Sequence[AnnotatedImage],
    label_map: LabelMap,
    output: str | Path,
    name: str,
    *,
    options: ConversionOptions,
    log: ConversionLog,
    on_image: Callable[[int, int], None] = lambda done, total: None,
    engine: OrderedMap = ordered_map,
    brightest: Brightest | None = None,
    need_boxes: bool = True,
) -> ConversionReport:
    """Writes a set: shards, `label_map.pbtxt`, `<name>.report.json` and `<name>.report.txt`.

    The sets of a data set, such as `train`, share the folder `output`. `log` has the policies and
    the problems of the annotation reader. `on_image` gets the numbers of images done and in all.
    `brightest` is of all sets of the data; None takes `items`. All engines write the same bytes.

    Raises:
        UserError: no image or, with `need_boxes`, no box could be used, the folder holds another
            label map or a set of this name, or a policy is `fail`.
    """
    output = Path(output)
    check_label_map(output, label_map)
    reports = [f"{name}.report.{kind}" for kind in ("json", "txt", "html")]
    refuse_others(output, reports)
    report = _empty_report(items, name, options, log)
    classes = ClassCounter()
    kinds: set[ImageKind] = set()
    job = ConversionJob(
        label_map=label_map,
        options=options,
        bad_records=log.bad_records,
        bad_boxes=log.bad_boxes,
        brightest=brightest or brightest_of(items, engine),
    )
    shards = options.shards or max(1, min(_MOST_SHARDS, -(-len(items) // _IMAGES_PER_SHARD)))
    names, overwrite = options.shard_names, options.overwrite
    with sharded_writer(output, name, shards, names=names, overwrite=overwrite) as write:
        converted = engine(partial(convert_image, job), items)
        for done, (record, class_ids, problems, kind) in enumerate(converted, start=1):
            on_image(done, len(items))
            log.extend(problems)
            if record is None:
                continue
            write(record)
            report.count(class_ids)
            classes.add(class_ids)
            kinds.add(kind)
        if not report.images_written:
            raise _nothing_written(log, name)
        if need_boxes and not report.boxes_written:
            raise no_boxes(f"set {name!r}", log)
        claim_files(output, reports)
        keep_label_map(output, label_map)
    report.files = [file.name for file in shard_files(output, name)]
    report.boxes_per_class = {item.name: classes.boxes[item.id] for item in label_map}
    report.images_per_class = {item.name: classes.images[item.id] for item in label_map}
    report.image_kind = common_kind(kinds)
    report.problems = list(log)
    write_whole(output / f"{name}.report.json", f"{json_text(asdict(report))}\n".encode())
    write_whole(output / f"{name}.report.txt", report.to_text().encode())
    return report


def _empty_report(
    items: Sequence[AnnotatedImage], name: str, options: ConversionOptions, log: ConversionLog
) -> ConversionReport:
    """Returns the report of a set before its first record is written."""
    return ConversionReport(
        name=name,
        images_found=len(items),
        boxes_found=sum(len(item.pixel_boxes) for item in items),
        settings={
            "bad_records": log.bad_records,
            "bad_boxes": log.bad_boxes,
            "exif": options.exif,
            "skip_images_without_boxes": options.skip_images_without_boxes,
        },
    )


def check_label_map(output: Path, label_map: LabelMap) -> None:
    """Refuses to put sets with different classes into one folder, where they would be mixed up."""
    path = output / LABEL_MAP_NAME
    if path.is_file() and LabelMap.from_file(path) != label_map:
        problem = "the output folder holds a label map with other classes or ids"
        fix = f"choose another {Parameter('output')}, or give {path} as the label map"
        raise UserError(problem, where=str(path), fix=fix)


def keep_label_map(output: Path, label_map: LabelMap) -> Path:
    """Writes the label map of a folder, unless it has the same classes in a file already."""
    check_label_map(output, label_map)
    path = output / LABEL_MAP_NAME
    return path if path.is_file() else write_whole(path, label_map.to_text().encode())


def no_boxes(of: str, problems: Iterable[Problem]) -> UserError:
    """Returns the error for annotations without a usable box, with their problems."""
    reasons = "; ".join(f"{problem}: {problem.examples[0]}" for problem in problems)
    problem = f"the annotations ({of}) have no box that can be used: {reasons or 'there is none'}"
    return UserError(problem, fix="see that the annotations belong to the images and have boxes")


def _nothing_written(log: ConversionLog, name: str) -> UserError:
    reasons = "; ".join(f"{p.reason} ({p.count}), first {p.examples[0]}" for p in log)
    problem = (
        f"no image of the set {name!r} could be used: {reasons or 'the annotations name none'}"
    )
    return UserError(problem, fix="see that the image folder and the annotations belong together")
