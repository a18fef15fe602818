"""Checks the records of an experiment."""

from collections.abc import Callable, Iterator
from typing import Literal

from stillbox.checking.advice.advice import Advice
from stillbox.checking.advice.files import read_label_map
from stillbox.checking.data import DataCheck, check_records
from stillbox.checking.data_findings import TOO_MANY_BOXES
from stillbox.errors import UserError
from stillbox.experiment.rules.trainable import paths_are_real
from stillbox.experiment.schema import Experiment, Records
from stillbox.printing import count_text
from stillbox.records.label_map import missing_label_map
from stillbox.records.patterns import expand

RecordsToCheck = Literal["present", "all", "none"]

# Read within a second or two.
_SAMPLE = 200


def records_findings(
    experiment: Experiment, which: RecordsToCheck, on_record: Callable[[int, int], None]
) -> Iterator[Advice]:
    """Yields problems of the records of training and evaluation; arguments: `check_config`."""
    unreal = {broken.path for broken in paths_are_real(experiment)}
    for name, records in (
        ("train", experiment.data.train),
        ("evaluation", experiment.data.evaluation),
    ):
        path = f"data.{name}.paths"
        if which == "none" or not records.paths or path in unreal:
            continue
        try:
            expand(records.paths)
        except UserError as error:
            if which == "all":
                yield Advice("error", path, str(error))
            else:
                yield Advice("note", path, f"not checked: {error.where}: {error.what}")
            continue
        yield from _check(experiment, name, records, which, on_record)


def _check(
    experiment: Experiment,
    name: str,
    records: Records,
    which: RecordsToCheck,
    on_record: Callable[[int, int], None],
) -> Iterator[Advice]:
    path, model = f"data.{name}.paths", experiment.model
    sample = 0 if which == "all" else _SAMPLE
    try:
        label_map = read_label_map(records)
        check = check_records(
            records.paths,
            label_map,
            use_display_name=records.use_display_name,
            max_boxes=records.max_boxes,
            # With contiguous slots every id of the label map has its class.
            num_classes=0 if model.class_slots == "contiguous" else model.num_classes,
            sample=sample,
            on_record=on_record,
        )
    except UserError as error:
        yield Advice("error", path, str(error))
        return
    if not records.label_map or label_map is not None:
        yield from _problems(check, path)
    else:
        missing = missing_label_map(records.label_map)
        what = f"there is no label map {records.label_map}"
        yield Advice("warning", f"data.{name}.label_map", what, missing.fix or "")
    yield from _boxes_lost(check, f"data.{name}.max_boxes")
    yield Advice(
        "note",
        path,
        f"{check.records:,} of {count_text(check.total, 'record')} checked: "
        f"{count_text(check.boxes, 'box')}, at most {check.most_boxes} in an image",
        "" if check.records == check.total else "--records checks all of them",
    )


def _problems(check: DataCheck, path: str) -> Iterator[Advice]:
    for finding in check.findings:
        # Notes do not hold for a sample of the records; lost boxes are reported by _boxes_lost.
        if finding.severity == "note" or finding.reason == TOO_MANY_BOXES:
            continue
        first = f"; first {finding.examples[0]}" if finding.examples else ""
        count = f"{finding.count:,} x " if finding.count > 1 else ""
        yield Advice(finding.severity, path, f"{count}{finding.reason}{first}", finding.fix)


def _boxes_lost(check: DataCheck, path: str) -> Iterator[Advice]:
    if not check.truncated_boxes:
        return
    share = 100 * check.truncated_boxes / check.boxes
    yield Advice(
        "warning",
        path,
        f"max_boxes (max_number_of_boxes) {check.max_boxes} is less than the {check.most_boxes} "
        f"boxes of one image: {check.truncated_boxes:,} of {check.boxes:,} boxes ({share:.2g} %) "
        "are lost",
        f"--set {path}={check.most_boxes}",
    )
