"""From annotated images to a set of TFRecord shards, its label map, and a report.

The shards get their names all together at the end: a conversion that is killed leaves none.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from stillbox.errors import UserError
from stillbox.printing import json_text, printable_line
from stillbox.records.annotated import AnnotatedImage
from stillbox.records.conversion_job import (
    ConversionJob,
    ConversionOptions,
    ConvertedImage,
    Engine,
    convert_image,
)
from stillbox.records.files import write_whole
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import ordered_map
from stillbox.records.problems import ConversionLog, Problem
from stillbox.records.tfrecord import shard_files, sharded_writer

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
    settings: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    """The most frequent first."""

    def to_text(self) -> str:
        """Returns counts, boxes by class, and problems with their first cases, in lines."""
        counts = [
            ("images", f"{self.images_found:,}", f"{self.images_written:,}"),
            ("  without a box", "", f"{self.images_without_boxes:,}"),
            ("boxes", f"{self.boxes_found:,}", f"{self.boxes_written:,}"),
            ("shards", "", f"{len(self.files):,}"),
        ]
        lines = [f"Set {self.name!r}", f"  {'':15} {'found':>11} {'written':>11}"]
        lines += [f"  {what:15} {found:>11} {written:>11}" for what, found, written in counts]
        lines += ["Boxes written"]
        lines += [
            f"  {boxes:11,}  {printable_line(name)}" for name, boxes in self.boxes_per_class.items()
        ]
        if self.problems:
            lines += ["Special or wrong"]
        for problem in self.problems:
            more = problem.count - len(problem.examples)
            lines += [f"  {problem}", *(f"    {case}" for case in problem.examples)]
            lines += [f"    ... and {more:,} more"] if more else []
        return "\n".join(lines) + "\n"


@contextmanager
def convert_on_threads(
    job: ConversionJob, items: Sequence[AnnotatedImage]
) -> Iterator[Iterator[ConvertedImage]]:
    """The engine that uses the threads of this process."""
    options = job.options
    names, overwrite = options.shard_names, options.overwrite
    with sharded_writer(
        job.output, job.name, job.shards, names=names, overwrite=overwrite
    ) as write:

        def outcomes() -> Iterator[ConvertedImage]:
            converted = ordered_map(partial(convert_image, job), items, options.workers)
            for payload, outcome in converted:
                if payload is not None:
                    write(payload)
                yield outcome

        yield outcomes()


def convert(
    items: Sequence[AnnotatedImage],
    label_map: LabelMap,
    output: str | Path,
    name: str,
    *,
    options: ConversionOptions,
    log: ConversionLog,
    on_image: Callable[[int, int], None] = lambda done, total: None,
    engine: Engine = convert_on_threads,
) -> ConversionReport:
    """Writes a set: shards, `label_map.pbtxt`, `<name>.report.json` and `<name>.report.txt`.

    The sets of a data set, such as `train`, share the folder `output`. `log` has the policies and
    the problems of the annotation reader. `on_image` is called after each image with the numbers of
    images done and in all. All engines write the same bytes.

    Raises:
        UserError: no image could be used, the folder holds another label map or a set of this name,
            or a policy is `fail`.
    """
    output = Path(output)
    check_label_map(output, label_map)
    report = ConversionReport(
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
    per_class: Counter[int] = Counter()
    job = ConversionJob(
        label_map=label_map,
        output=output,
        name=name,
        shards=options.shards or max(1, min(_MOST_SHARDS, -(-len(items) // _IMAGES_PER_SHARD))),
        options=options,
        bad_records=log.bad_records,
        bad_boxes=log.bad_boxes,
    )
    with engine(job, items) as outcomes:
        for done, (class_ids, problems) in enumerate(outcomes, start=1):
            on_image(done, len(items))
            log.extend(problems)
            if class_ids is None:
                continue
            report.images_written += 1
            report.images_without_boxes += not class_ids
            report.boxes_written += len(class_ids)
            per_class.update(class_ids)
        if not report.images_written:
            raise _nothing_written(log, name)
        write_whole(output / LABEL_MAP_NAME, label_map.to_text().encode())
    report.files = [file.name for file in shard_files(output, name)]
    report.boxes_per_class = {item.name: per_class[item.id] for item in label_map}
    report.problems = list(log)
    content = json_text(asdict(report)) + "\n"
    write_whole(output / f"{name}.report.json", content.encode())
    write_whole(output / f"{name}.report.txt", report.to_text().encode())
    return report


def check_label_map(output: Path, label_map: LabelMap) -> None:
    """Refuses to put sets with different classes into one folder, where they would be mixed up."""
    path = output / LABEL_MAP_NAME
    if path.is_file() and LabelMap.from_file(path) != label_map:
        raise UserError(
            "the output folder holds a label map with other classes or ids",
            where=str(path),
            fix=f"use its ids with --label-map {path}, or choose another --output",
        )


def _nothing_written(log: ConversionLog, name: str) -> UserError:
    reasons = "; ".join(f"{p.reason} ({p.count}), first {p.examples[0]}" for p in log)
    return UserError(
        f"no image of the set {name!r} could be used: {reasons or 'the annotations name none'}",
        fix="see that the image folder and the annotations belong together",
    )
