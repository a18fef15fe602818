"""From annotated images to a set of TFRecord shards, its label map, and a report.

The shards get their names all together at the end: a conversion that is killed leaves none.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from stillbox.errors import UserError
from stillbox.records.annotated import AnnotatedImage, to_example
from stillbox.records.boxes_policy import apply_box_policy, shown_box
from stillbox.records.conversion_report import ConversionReport, write_text
from stillbox.records.example import Example
from stillbox.records.image_files import Exif, prepare_image
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import ordered_map
from stillbox.records.problems import BadRecordError, ProblemLog, Verdicts
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import ShardedWriter, ShardNames

LABEL_MAP_NAME = "label_map.pbtxt"
_IMAGES_PER_SHARD = 1000
_MOST_SHARDS = 100


@dataclass(frozen=True, kw_only=True)
class ConversionOptions:
    """How a set is written."""

    shards: int = 0
    """Files; 0 chooses one for every 1,000 images, at most 100."""
    shard_names: ShardNames = "record"
    """What the files are called."""
    exif: Exif = "auto"
    """What a rotation tag in an image means for its boxes."""
    skip_images_without_boxes: bool = False
    """Leave background images out. Kept, they teach what is no object."""
    overwrite: bool = False
    """Replace an older set of the same name."""
    workers: int = 0
    """Threads that read and check images; 0 takes one for each core, at most 8."""


def convert(
    items: Sequence[AnnotatedImage],
    label_map: LabelMap,
    output: str | Path,
    name: str,
    *,
    options: ConversionOptions,
    verdicts: Verdicts,
    on_image: Callable[[int, int], None] = lambda done, total: None,
) -> ConversionReport:
    """Writes a set: shards, `label_map.pbtxt`, `<name>.report.json` and `<name>.report.txt`.

    Args:
        items: the images, in the order in which they become records.
        label_map: classes of the set.
        output: folder, shared by the sets of one data set.
        name: the set, as `train`.
        options: see there.
        verdicts: the policies, with what the annotation reader has found so far.
        on_image: called after each image with how many are done and how many there are.

    Raises:
        UserError: no image could be used, the folder holds another label map or a set of this name,
            or a policy says `fail`.
    """
    output = Path(output)
    _check_label_map(output, label_map)
    report = ConversionReport(
        name=name,
        images_found=len(items),
        boxes_found=sum(len(item.pixel_boxes) for item in items),
    )
    report.settings = {
        "bad_records": verdicts.bad_records,
        "bad_boxes": verdicts.bad_boxes,
        **{k: v for k, v in asdict(options).items() if k in ("exif", "skip_images_without_boxes")},
    }
    per_class: Counter[int] = Counter()

    def prepare(item: AnnotatedImage) -> tuple[Example | None, bytes, ProblemLog]:
        # A log for each image, put together in order: the report does not depend on the threads.
        own = Verdicts(verdicts.bad_records, verdicts.bad_boxes)
        example = _prepare(item, options, own)
        payload = b"" if example is None else serialize_example(example, label_map)
        return example, payload, own.problems

    with ShardedWriter(
        output,
        name,
        _shards(options, len(items)),
        names=options.shard_names,
        overwrite=options.overwrite,
    ) as writer:
        prepared = ordered_map(prepare, items, options.workers)
        for done, (example, payload, problems) in enumerate(prepared, start=1):
            on_image(done, len(items))
            verdicts.problems.extend(problems)
            if example is None:
                continue
            writer.write(payload)
            report.images_without_boxes += not len(example.boxes)
            report.boxes_written += len(example.boxes)
            per_class.update(example.class_ids.tolist())
        if not writer.records:
            raise _nothing_written(verdicts, name)
        write_text(output / LABEL_MAP_NAME, label_map.to_text())
    report.images_written = writer.records
    report.files = [file.name for file in writer.files]
    report.boxes_per_class = {item.name: per_class[item.id] for item in label_map}
    report.problems = verdicts.problems.to_list()
    report.write(output, verdicts.problems)
    return report


def _prepare(
    item: AnnotatedImage, options: ConversionOptions, verdicts: Verdicts
) -> Example | None:
    """Returns the finished example of an image, or None where it is left out."""
    try:
        data = item.path.read_bytes()
        image = prepare_image(data, (item.height, item.width), options.exif)
    except FileNotFoundError:
        verdicts.bad_record("image file is missing", item.where, str(item.path))
        return None
    except OSError as error:
        verdicts.bad_record("image file cannot be opened", item.where, str(error))
        return None
    except BadRecordError as error:
        verdicts.bad_record(error.reason, item.where, error.detail)
        return None
    for what, detail, outcome in image.notes:
        verdicts.problems.add(what, item.where, detail, action=outcome)
    example = to_example(item, image, verdicts.problems)
    example, problems = apply_box_policy(
        example, item.unknown, verdicts.bad_boxes, pixels_possible=False
    )
    for problem in problems:
        # In the annotation's own pixels, as a person finds it there.
        said = problem.detail
        if problem.box not in item.unknown:
            said = shown_box(item.pixel_boxes[problem.box]) + f" in {item.width} x {item.height}"
        where = f"{item.where}, box {problem.box}"
        verdicts.bad_box(problem.reason, where, said, action=f"box {problem.action}")
    if not len(example.boxes):
        if len(item.pixel_boxes):
            verdicts.problems.add("no box of the image is usable", item.where, action="background")
        if options.skip_images_without_boxes:
            verdicts.problems.add("image without a box", item.where, action="image left out")
            return None
    return example


def _shards(options: ConversionOptions, images: int) -> int:
    return options.shards or max(1, min(_MOST_SHARDS, -(-images // _IMAGES_PER_SHARD)))


def _check_label_map(output: Path, label_map: LabelMap) -> None:
    """Refuses to put sets with different classes into one folder, where they would be mixed up."""
    path = output / LABEL_MAP_NAME
    if path.is_file() and LabelMap.from_file(path) != label_map:
        raise UserError(
            "the output folder holds a label map with other classes or ids",
            where=str(path),
            fix=f"use its ids with --label-map {path}, or choose another --output",
        )


def _nothing_written(verdicts: Verdicts, name: str) -> UserError:
    reasons = "; ".join(
        f"{problem.reason} ({problem.count}), first {problem.examples[0]}"
        for problem in verdicts.problems
    )
    return UserError(
        f"no image of the set {name!r} could be used: {reasons or 'the annotations name none'}",
        fix="see that the image folder and the annotations belong together",
    )
