"""Types of what checks find: problems of records with their severity and fix, and advice."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from stillbox.experiment.schema import Experiment, Loss, Postprocessing, RoIHead
from stillbox.records import example as rules
from stillbox.records.problems import Problem

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

_CONVERT_AGAIN = "convert the data again; data.bad_boxes=fix does the same at every start"
_OPTIONS = "train with data.bad_records=drop, or write these records again"
TOO_MANY_BOXES = "more boxes than a batch has room for"
# Every other problem is an error: it stops training, or loses labels silently.
_MILDER: dict[str, tuple[Severity, str]] = {
    rules.INVERTED: ("warning", _CONVERT_AGAIN),
    rules.OUTSIDE: ("warning", _CONVERT_AGAIN),
    rules.WHOLLY_OUTSIDE: ("warning", _CONVERT_AGAIN),
    rules.NO_AREA: ("warning", _CONVERT_AGAIN),
    rules.NOT_A_NUMBER: ("warning", _CONVERT_AGAIN),
    "optional column of wrong length": ("warning", "write these records again"),
    "class text and label differ": ("warning", "see that records and label map belong together"),
    "file without a record": ("warning", "remove the file, or write it again"),
    "incomplete set of shards": ("warning", "name all shards, as name@10 or name-?????-of-00010"),
    "size is not the image's": ("warning", "boxes are normalised, so training is not affected"),
    "EXIF orientation": ("warning", "images are used as stored: see that the boxes fit that"),
    "image id occurs twice": ("warning", "see whether an image was written twice"),
    "neither JPEG nor PNG": ("warning", "convert the images; other programs refuse them"),
    "CMYK image": ("warning", "convert the data again with `stillbox data convert`"),
    TOO_MANY_BOXES: ("warning", "raise max_boxes (max_number_of_boxes)"),
    "image without a box": ("note", ""),
    "class without a box": ("note", ""),
}
_FIXES = {
    rules.UNKNOWN_CLASS: "give the label map that belongs to the records, or see use_display_name",
    rules.IN_PIXELS: "divide the coordinates by the image size: convert the data again",
    "class texts need a label map": "give one with --label-map",
    "class id above num_classes": "raise model.num_classes to the label map's greatest id, or set "
    "model.class_slots=contiguous",
    "no box in any record": "see that the records hold image/object/bbox lists",
}


@dataclass(frozen=True)
class Finding:
    """All cases of one problem."""

    severity: Severity
    """`error`: training would stop, or train on wrong labels."""
    reason: str
    outcome: str
    """What reading does about it under the usual policies."""
    count: int
    examples: tuple[str, ...]
    """The first cases: file, record, detail."""
    fix: str


def finding_of(problem: Problem) -> Finding:
    """Returns a problem with its severity and its fix."""
    reason = problem.reason
    severity, fix = _MILDER.get(reason, ("error", _FIXES.get(reason, _OPTIONS)))
    return Finding(severity, reason, problem.action, problem.count, tuple(problem.examples), fix)


@dataclass(frozen=True)
class Advice:
    """A problem of an experiment, or a fact about it."""

    severity: Severity
    """`error`: training would refuse to start."""
    path: str
    """Dotted path of the field; its origin is printed."""
    what: str
    """The problem, with the values."""
    fix: str = ""


class Scoring(NamedTuple):
    """What classes are learned by and detections are made by, in a model of either kind."""

    path: str
    """The section that has `postprocessing`."""
    postprocessing: Postprocessing
    loss_path: str
    loss: Loss | RoIHead
    """The section that has losses of classes and boxes, their weights and the miner."""


Origins = Mapping[str, str]
"""Dotted path of each field that is set -> its place in a file or option."""
Findings = Iterator[Advice]
Check = Callable[[Experiment, Origins], Findings]
PartCheck = Callable[[Experiment, Any, Origins], Findings]
"""A check of an experiment with a part of its model."""
PartOf = Callable[[Experiment], Any]
"""From an experiment to the part that checks look at; None: it has no such part."""
