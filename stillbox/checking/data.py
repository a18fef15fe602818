"""Checks a set of records before training, and reads its boxes as the network input has them.

A check reads the whole set and decodes every image. It finds, for example, classes missing in the
label map, ids above the number of classes, files without records, unusable boxes, boxes in another
unit, and images that occur twice.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from stillbox.checking.data_tally import Tally
from stillbox.checking.findings import (
    RecordFinding,
    Unbroken,
    count_severity,
    finding_of,
    render_findings,
    render_totals,
)
from stillbox.experiment.schema import FixedShapeResizer, Resizer, Tiles
from stillbox.findings import SEVERITIES, Severity, by_severity
from stillbox.inputs.resize import misfit, resized_size
from stillbox.inputs.tiles import windows_of
from stillbox.printing import count_text
from stillbox.records.example import Example
from stillbox.records.image_files import ImageInfo, inspect_image
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import ordered_map
from stillbox.records.problems import BadRecordError
from stillbox.records.source import ExampleSource, spread_indices
from stillbox.records.tfrecord import crc32c
from stillbox.records.tile_grid import visible_boxes
from stillbox.references import Wording, python_words

_SETS_SHOWN = 4


@dataclass(frozen=True)
class DataCheck:
    """The state of a set of records."""

    total: int
    """Records in the files."""
    records: int
    """Records that were checked."""
    boxes: int
    """Boxes that can be used."""
    most_boxes: int
    """Most boxes in one image, or in one tile."""
    images: int
    """Images that were decoded."""
    tiles: int
    """Tiles of these images; as many as images if they are not cut."""
    oversized: int
    """Boxes that fit into no tile."""
    classes: int
    """Classes with a box."""
    sets: tuple[str, ...]
    """Names of the record files, without the numbers of shards."""
    findings: tuple[RecordFinding, ...]
    """Errors first."""

    @property
    def sound(self) -> bool:
        """Whether no finding is an error or a warning."""
        return not self.count("error") and not self.count("warning")

    def count(self, severity: Severity) -> int:
        """Returns the number of findings with a severity."""
        return count_severity(self.findings, severity)

    def summary(self) -> list[str]:
        """Returns the result in sentences, one a line."""
        return [
            f"{count_text(self.records, 'record')} with {count_text(self.boxes, 'usable box')}, at "
            f"most {self.most_boxes} in an image.",
            f"Looked at: {count_text(self.images, 'image')}, decoded whole; each box in pixels of "
            f"its image; {count_text(self.classes, 'class')}; boxes and images that occur twice, "
            f"in {count_text(len(self.sets), 'set')} ({_listed(self.sets)}).",
            self._verdict(),
        ]

    def _verdict(self) -> str:
        errors = sum(finding.count for finding in self.findings if finding.severity == "error")
        if errors:
            return f"The data is not sound: {count_text(errors, 'error')}."
        if warnings := self.count("warning"):
            number = f"{warnings} warnings" if warnings > 1 else "warning"
            return f"Nothing stops training; see the {number} above."
        return "The data is sound."

    def to_dict(self) -> dict[str, object]:
        """Returns plain values, for JSON."""
        findings = [
            {
                "severity": finding.severity,
                "reason": finding.what,
                "outcome": finding.outcome,
                "count": finding.count,
                "examples": finding.examples,
                "fix": finding.fix,
            }
            for finding in self.findings
        ]
        counts = {f"{severity}s": self.count(severity) for severity in SEVERITIES}
        return {"sound": self.sound, **counts, **vars(self), "findings": findings}

    def render(self, wording: Wording = python_words) -> RenderableType:
        """Returns the findings as a terminal shows them."""
        listed = render_findings(self.findings, wording=wording)
        return Group(listed, render_totals(self.findings))

    def render_summary(self) -> RenderableType:
        """Returns the result as a terminal shows it."""
        return Group(*(Unbroken(Text(line)) for line in self.summary()))


def check_records(
    paths: Sequence[str],
    label_map: LabelMap | None = None,
    *,
    use_display_name: bool = False,
    num_classes: int = 0,
    tiles: Tiles | None = None,
    workers: int = 0,
    sample: int = 0,
    on_record: Callable[[int, int], None] = lambda done, total: None,
) -> DataCheck:
    """Reads every record and decodes every image.

    Args:
        use_display_name: match class texts against display names.
        num_classes: greatest id that the model has a class for; 0: not known.
        tiles: what images are cut into; a batch then has room for the boxes of a tile.
        workers: threads; 0: one for each core, at most 8.
        sample: most records to check, spread over the set; 0: all.
        on_record: called after each record with the numbers of records done and in all.

    Raises:
        UserError: there are no records.
    """
    source = ExampleSource(
        paths, label_map, use_display_name=use_display_name, bad_records="drop", bad_boxes="fix"
    )
    tally = Tally(source, label_map, num_classes, tiles)
    # Records are read in order and decoded on threads, so the examples are the first cases.
    indices = spread_indices(len(source), sample)
    examples = ((index, source.example(index)) for index in indices)
    for done, (index, result) in enumerate(ordered_map(_inspect, examples, workers), start=1):
        if isinstance(result, BadRecordError):
            source.reject(index, result.reason, result.detail)
        elif result is not None:
            tally.add(index, *result)
        on_record(done, len(indices))
    findings = map(finding_of, tally.finish(whole=len(indices) == len(source)))
    return DataCheck(
        total=len(source),
        records=len(indices),
        boxes=tally.boxes,
        most_boxes=tally.most_boxes,
        images=tally.images,
        tiles=tally.tiles,
        oversized=tally.oversized,
        classes=len(tally.class_boxes),
        sets=source.sets,
        findings=tuple(by_severity(sorted(findings, key=lambda finding: -finding.count))),
    )


def _inspect(
    numbered: tuple[int, Example | None],
) -> tuple[int, tuple[Example, ImageInfo, int] | BadRecordError | None]:
    """Decodes the image of an example and returns the example with a checksum in its place."""
    index, example = numbered
    if example is None:
        return index, None
    try:
        info = inspect_image(example.encoded)
    except BadRecordError as error:
        return index, error
    # The two checksums tell images apart as well as a hash of 64 bits, in a quarter of its time.
    checksum = zlib.crc32(example.encoded) << 32 | crc32c(example.encoded)
    return index, (replace(example, encoded=b""), info, checksum)


def _listed(names: Sequence[str]) -> str:
    # A name with blanks could make a line of a terminal of its own.
    names = ["_".join(name.split()) for name in names]
    return ", ".join(names[:_SETS_SHOWN]) + ", ..." * (len(names) > _SETS_SHOWN)


Float32Array = NDArray[np.float32]


def coco_sizes(areas: NDArray[np.floating]) -> dict[str, NDArray[np.bool_]]:
    """Returns which areas, `[N]` in square pixels, are small, medium and large in COCO's terms."""
    small, large = areas < 32**2, areas >= 96**2
    return {"small": small, "medium": ~small & ~large, "large": large}


@dataclass(frozen=True)
class TruthBoxes:
    """N boxes of I images, or tiles, that count in training, before augmentation."""

    boxes: Float32Array
    """`[N, 4]`, normalised to the network input, padding included."""
    class_ids: NDArray[np.int32]
    """`[N]`, label map ids."""
    starts: NDArray[np.int64]
    """`[I + 1]`, where the boxes of each image begin and end."""
    records: int
    """Records that were read."""
    left_out: int
    """Records without a usable image, or with one too large for the canvas."""


def read_truth(
    source: ExampleSource,
    resizer: Resizer,
    *,
    tiles: Tiles | None = None,
    limit: int = 0,
    ignore_crowds: bool = False,
    on_record: Callable[[int, int], None] = lambda done, total: None,
) -> TruthBoxes:
    """Reads boxes and resizes them as the images would be; no image is decoded.

    Args:
        tiles: what images are cut into; a box is one of every tile that shows enough of it.
        limit: most records to read, spread over the set; 0: all.
        ignore_crowds: leave crowd boxes out, as `data.train.crowds` does except for `train`.
        on_record: called with the numbers of records done and in all.
    """
    indices = spread_indices(len(source), limit)
    boxes, class_ids, left_out = [np.zeros((0, 4), np.float32)], [np.zeros(0, np.int32)], 0
    lengths = []
    results = ordered_map(lambda index: _resized(source.example(index), resizer, tiles), indices)
    for done, result in enumerate(results, start=1):
        on_record(done, len(indices))
        if result is None:
            left_out += 1
            continue
        example, views = result
        counts = example.weights > 0
        if ignore_crowds:
            counts &= ~example.is_crowd
        for shown, resized in views:
            boxes.append(resized[counts[shown]])
            class_ids.append(example.class_ids[shown][counts[shown]])
            lengths.append(len(boxes[-1]))
    starts = np.cumsum([0, *lengths])
    return TruthBoxes(
        np.concatenate(boxes), np.concatenate(class_ids), starts, len(indices), left_out
    )


_View = tuple[NDArray[np.bool_], Float32Array]
"""Which boxes of an image are in a view, and these boxes relative to the network input."""


def _resized(
    example: Example | None, resizer: Resizer, tiles: Tiles | None
) -> tuple[Example, list[_View]] | None:
    """Returns an example with its image or its tiles; None: it is not usable."""
    if example is None:
        return None
    every = np.ones(len(example.boxes), np.bool_)
    if tiles is None and isinstance(resizer, FixedShapeResizer):
        return example, [(every, example.boxes)]  # the image fills the network input
    try:
        facts = inspect_image(example.encoded, whole=False)
    except BadRecordError:
        return None
    size = (facts.height, facts.width)
    if tiles is None:
        return (
            None
            if misfit(size, resizer)
            else (example, [(every, _placed(example.boxes, size, resizer))])
        )
    views = []
    for window in windows_of(tiles, size):
        part = (window[2] - window[0], window[3] - window[1])
        seen = visible_boxes(example.boxes * np.array(size * 2, np.float64), window)
        if not misfit(part, resizer):
            views.append((seen.kept, _placed(seen.boxes, part, resizer)))
    return example, views


def _placed(boxes: Float32Array, size: tuple[int, int], resizer: Resizer) -> Float32Array:
    """Returns boxes of an image, in the upper left corner of the network input; see `_View`."""
    if isinstance(resizer, FixedShapeResizer):
        return boxes
    share = np.divide(resized_size(size, resizer), resizer.input_size).astype(np.float32)
    return boxes * np.tile(share, 2)
