"""Is a set of records sound? Everything is read, every image decoded, before training pays for it.

The rows of fact sheet 7 about data (6, 7, 8, 10, 14) are looked for here: classes that the label
map does not know, ids beyond the number of classes, more boxes than a batch has room for, files
without records, boxes no one can train on.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from stillbox.checking.data_findings import SEVERITIES, TOO_MANY_BOXES, Finding, finding_of
from stillbox.records.example import Example
from stillbox.records.image_files import ImageInfo, inspect_image
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import ordered_map
from stillbox.records.problems import BadRecordError, ProblemLog
from stillbox.records.source import ExampleSource


@dataclass(frozen=True)
class DataCheck:
    """The state of a set of records."""

    total: int
    """Records in the files."""
    records: int
    """Records that were looked at."""
    boxes: int
    """Boxes that can be used."""
    max_boxes: int
    """Room for boxes in a batch."""
    most_boxes: int
    """Most boxes in one image."""
    truncated_boxes: int
    """Boxes beyond `max_boxes` of their image."""
    findings: tuple[Finding, ...]
    """Errors first."""

    @property
    def sound(self) -> bool:
        """Whether there is no error."""
        return all(finding.severity != "error" for finding in self.findings)

    def summary(self) -> list[str]:
        """Returns what is to be said in any case, one sentence a line."""
        share = 100 * self.truncated_boxes / max(1, self.boxes)
        errors = sum(finding.count for finding in self.findings if finding.severity == "error")
        return [
            f"{self.records:,} records with {self.boxes:,} usable boxes, at most {self.most_boxes} "
            "in an image.",
            f"With room for {self.max_boxes} boxes, {self.truncated_boxes:,} ({share:.2f} %) are "
            "cut off.",
            "The data is sound." if self.sound else f"The data is not sound: {errors:,} errors.",
        ]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        return {"sound": self.sound, **asdict(self)}

    def table(self) -> Table:
        """Returns the findings as a table."""
        table = Table(title="Findings", title_justify="left", show_lines=True)
        table.add_column("")
        table.add_column("count", justify="right")
        table.add_column("what")
        table.add_column("first cases", overflow="fold")
        colours = {"error": "bold red", "warning": "yellow", "note": "cyan"}
        for finding in self.findings:
            words = [finding.reason, finding.outcome, finding.fix and f"fix: {finding.fix}"]
            table.add_row(
                Text(finding.severity, colours[finding.severity]),
                f"{finding.count:,}",
                Text("\n".join(filter(None, words))),
                Text("\n".join(finding.examples)),
            )
        return table


def check_records(
    paths: Sequence[str],
    label_map: LabelMap | None = None,
    *,
    use_display_name: bool = False,
    max_boxes: int = 100,
    num_classes: int = 0,
    workers: int = 0,
    sample: int = 0,
    on_record: Callable[[int, int], None] = lambda done, total: None,
) -> DataCheck:
    """Reads every record and decodes every image.

    Args:
        paths: files and patterns.
        label_map: the classes.
        use_display_name: match class texts against display names.
        max_boxes: room for boxes in a batch; what is beyond it is counted.
        num_classes: greatest id that the model has a class for; 0 where that is not known yet.
        workers: threads; 0 takes one for each core, at most 8.
        sample: look at no more than so many records, from all over the set; 0 looks at all.
        on_record: called after each record with how many are done and how many there are.

    Raises:
        UserError: there is nothing to check.
    """
    source = ExampleSource(
        paths, label_map, use_display_name=use_display_name, bad_records="drop", bad_boxes="fix"
    )
    tally = _Tally(source, label_map, max_boxes, num_classes)
    # Read in order here and decoded on threads: the first cases shown are the first in the set.
    count = min(sample or len(source), len(source))
    indices = np.linspace(0, len(source) - 1, count).round().astype(int).tolist()
    examples = ((index, source.example(index)) for index in indices)
    for done, (index, seen) in enumerate(ordered_map(_look, examples, workers), start=1):
        if isinstance(seen, _Seen):
            tally.add(index, seen)
        elif seen is not None:
            source.reject(index, seen.reason, seen.detail)
        on_record(done, len(indices))
    tally.finish()
    findings = [finding_of(problem) for log in (source.problems, tally.log) for problem in log]
    findings.sort(key=lambda finding: (SEVERITIES.index(finding.severity), -finding.count))
    return DataCheck(
        len(source),
        len(indices),
        tally.boxes,
        max_boxes,
        tally.most_boxes,
        tally.truncated,
        tuple(findings),
    )


@dataclass(frozen=True)
class _Seen:
    """What is kept of a record: not its image."""

    image_id: str
    claimed: tuple[int, int]
    facts: ImageInfo
    class_ids: np.ndarray


def _look(numbered: tuple[int, Example | None]) -> tuple[int, _Seen | BadRecordError | None]:
    index, example = numbered
    if example is None:
        return index, None
    try:
        facts = inspect_image(example.encoded)
    except BadRecordError as error:
        return index, error
    claimed = (example.height, example.width)
    return index, _Seen(example.image_id, claimed, facts, example.class_ids)


class _Tally:
    """What the records say taken together."""

    def __init__(
        self, source: ExampleSource, label_map: LabelMap | None, max_boxes: int, num_classes: int
    ) -> None:
        self.source, self.label_map = source, label_map
        self.max_boxes, self.num_classes = max_boxes, num_classes
        self.log = ProblemLog()
        self.boxes = self.most_boxes = self.truncated = 0
        self.class_ids: set[int] = set()
        self.image_ids: dict[str, int] = {}

    def add(self, index: int, seen: _Seen) -> None:
        where = self.source.location(index)
        self._add_image(where, seen)
        former = self.image_ids.setdefault(seen.image_id, index)
        if former != index:
            said = f"{seen.image_id!r} is also {self.source.location(former)}"
            self.log.add("image id occurs twice", where, said)
        count = len(seen.class_ids)
        self.boxes += count
        self.most_boxes = max(self.most_boxes, count)
        if count > self.max_boxes:
            self.truncated += count - self.max_boxes
            self.log.add(
                TOO_MANY_BOXES, where, f"{count} boxes", action=f"{self.max_boxes} are used"
            )
        if not count:
            self.log.add("image without a box", where, action="used as background")
        self.class_ids.update(seen.class_ids.tolist())
        beyond = seen.class_ids[seen.class_ids > self.num_classes] if self.num_classes else ()
        for class_id in beyond:
            self.log.add("class id above num_classes", where, f"{class_id} > {self.num_classes}")

    def _add_image(self, where: str, seen: _Seen) -> None:
        facts = seen.facts
        if min(seen.claimed) > 0 and seen.claimed != (facts.height, facts.width):
            said = f"record {seen.claimed[1]} x {seen.claimed[0]}"
            said += f", image {facts.width} x {facts.height}"
            self.log.add("size is not the image's", where, said, action="the image's is used")
        if facts.orientation != 1:
            self.log.add("EXIF orientation", where, str(facts.orientation), action="ignored")
        if facts.mode == "CMYK":
            self.log.add("CMYK image", where)
        if facts.format not in ("JPEG", "MPO", "PNG"):
            self.log.add("neither JPEG nor PNG", where, facts.format)

    def finish(self) -> None:
        if not self.boxes:
            self.log.add("no box in any record", self.source.files[0].path.name)
        for item in self.label_map or ():
            if item.id not in self.class_ids:
                self.log.add("class without a box", f"id {item.id}", item.display_name or item.name)
