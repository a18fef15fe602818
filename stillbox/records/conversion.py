"""From annotated images to a set of TFRecord shards, its label map, and a report.

The shards get their names all together at the end: a conversion that is killed leaves none.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from stillbox.errors import UserError
from stillbox.records.annotated import AnnotatedImage
from stillbox.records.conversion_job import (
    ConversionJob,
    ConversionOptions,
    Engine,
    Outcome,
    convert_image,
)
from stillbox.records.conversion_report import ConversionReport, write_text
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import ordered_map
from stillbox.records.problems import Verdicts
from stillbox.records.tfrecord import ShardedWriter

LABEL_MAP_NAME = "label_map.pbtxt"
_IMAGES_PER_SHARD = 1000
_MOST_SHARDS = 100


class ThreadedEngine(ShardedWriter):
    """Converts on the threads of this process."""

    def __init__(self, job: ConversionJob, items: Sequence[AnnotatedImage]) -> None:
        self._job, self._items = job, items
        options = job.options
        super().__init__(
            job.output,
            job.name,
            job.shards,
            names=options.shard_names,
            overwrite=options.overwrite,
        )

    def outcomes(self) -> Iterator[Outcome]:
        """Converts the images and yields what became of each, in their order."""
        convert_one = partial(convert_image, self._job)
        for payload, outcome in ordered_map(convert_one, self._items, self._job.options.workers):
            if payload is not None:
                self.write(payload)
            yield outcome


def convert(
    items: Sequence[AnnotatedImage],
    label_map: LabelMap,
    output: str | Path,
    name: str,
    *,
    options: ConversionOptions,
    verdicts: Verdicts,
    on_image: Callable[[int, int], None] = lambda done, total: None,
    engine: Callable[[ConversionJob, Sequence[AnnotatedImage]], Engine] = ThreadedEngine,
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
        engine: what runs it. All write the same bytes.

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
    job = ConversionJob(
        label_map=label_map,
        output=output,
        name=name,
        shards=options.shards or max(1, min(_MOST_SHARDS, -(-len(items) // _IMAGES_PER_SHARD))),
        options=options,
        bad_records=verdicts.bad_records,
        bad_boxes=verdicts.bad_boxes,
    )
    with engine(job, items) as running:
        for done, (class_ids, problems) in enumerate(running.outcomes(), start=1):
            on_image(done, len(items))
            verdicts.problems.extend(problems)
            if class_ids is None:
                continue
            report.images_written += 1
            report.images_without_boxes += not class_ids
            report.boxes_written += len(class_ids)
            per_class.update(class_ids)
        if not report.images_written:
            raise _nothing_written(verdicts, name)
        write_text(output / LABEL_MAP_NAME, label_map.to_text())
    report.files = [file.name for file in running.files]
    report.boxes_per_class = {item.name: per_class[item.id] for item in label_map}
    report.problems = verdicts.problems.to_list()
    report.write(output, verdicts.problems)
    return report


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
