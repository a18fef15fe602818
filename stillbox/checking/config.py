"""Checks an experiment and its records before training.

Findings come from the reader of the config, from the rules that refuse an experiment, now or when
training starts, or that `stillbox check` alone applies (`checking/advice`), and from the records,
if they are present.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal

from rich.console import Group, RenderableType
from rich.text import Text

from stillbox.checking import advice  # noqa: F401 (registers its rules)
from stillbox.checking.advice.files import read_label_map
from stillbox.checking.data import DataCheck, check_records
from stillbox.checking.findings import (
    Unbroken,
    count_severity,
    render_findings,
    render_totals,
)
from stillbox.checking.memory_verdict import Machine, memory_advice
from stillbox.errors import UserError
from stillbox.evaluation.ground_truth import SAMPLE
from stillbox.evaluation.limit_audit import audit_records
from stillbox.evaluation.limits import NO_LIMITS, LimitTable, limit_lines
from stillbox.experiment.refusals import ConfigErrors, find_refusals
from stillbox.experiment.resolve import Resolved
from stillbox.experiment.rules import find, find_errors, find_missing
from stillbox.experiment.rules.missing import CHECKPOINT, paths_are_real
from stillbox.experiment.rules.rule import apply_rules
from stillbox.experiment.schema import Experiment, Records
from stillbox.experiment.updating import NO_CHANGES, Changes
from stillbox.findings import (
    SEVERITIES,
    Finding,
    Findings,
    Origins,
    Severity,
    by_severity,
    with_origin,
)
from stillbox.printing import count_text
from stillbox.records.label_map import missing_label_map
from stillbox.records.source import expand
from stillbox.references import Parameter, Setting, Wording, python_words, worded

RecordsToCheck = Literal["present", "all", "none"]

# Read within a second or two.
_SAMPLE = 200


def records_findings(
    experiment: Experiment, which: RecordsToCheck, on_record: Callable[[int, int], None]
) -> Findings:
    """Yields problems of the records of training and evaluation; arguments: `check_config`."""
    unreal = {broken.path for broken in paths_are_real(experiment)}
    data = experiment.data
    for name, records in (("train", data.train), ("evaluation", data.evaluation)):
        path = f"data.{name}.paths"
        if which == "none" or not records.paths or path in unreal:
            continue
        try:
            expand(records.paths)
        except UserError as error:
            if which == "all":
                yield Finding("error", path, str(error))
            else:
                yield Finding("note", path, f"not checked: {error.where}: {error.what}")
            continue
        yield from _check(experiment, name, records, which, on_record)


def _check(
    experiment: Experiment,
    name: str,
    records: Records,
    which: RecordsToCheck,
    on_record: Callable[[int, int], None],
) -> Findings:
    path, model = f"data.{name}.paths", experiment.model
    sample = 0 if which == "all" else _SAMPLE
    try:
        label_map = read_label_map(records)
        check = check_records(
            records.paths,
            label_map,
            use_display_name=records.use_display_name,
            # With contiguous slots every id of the label map has its class.
            num_classes=0 if model.class_slots == "contiguous" else model.num_classes,
            tiles=experiment.data.tiles,
            sample=sample,
            on_record=on_record,
        )
    except UserError as error:
        yield Finding("error", path, str(error))
        return
    if not records.label_map or label_map is not None:
        yield from _problems(check, path)
    else:
        missing = missing_label_map(records.label_map)
        problem = f"there is no label map {records.label_map}"
        yield Finding("warning", f"data.{name}.label_map", problem, missing.fix or "")
    if name == "train":
        yield from _tiles_drawn(check, experiment)
    problem = (
        f"{check.records:,} of {count_text(check.total, 'record')} checked: "
        f"{count_text(check.boxes, 'box')}, at most {check.most_boxes} in an image"
    )
    fix = "" if check.records == check.total else f"{Parameter('records')} checks all of them"
    yield Finding("note", path, problem, fix)


def _problems(check: DataCheck, path: str) -> Findings:
    for finding in check.findings:
        # Notes do not hold for a sample of the records.
        if finding.severity == "note":
            continue
        first = f"; first {finding.examples[0]}" if finding.examples else ""
        count = f"{finding.count:,} x " if finding.count > 1 else ""
        yield Finding(finding.severity, path, f"{count}{finding.what}{first}", finding.fix)


@dataclass(frozen=True)
class LimitFinding(Finding):
    """A limit that costs objects: a row of the table of limits."""


def _limit_findings(limits: LimitTable) -> Findings:
    for row in limits.costly:
        # Without a field there is nothing to change.
        severity: Severity = "warning" if row.path else "note"
        yield LimitFinding(severity, row.path, row.sentence(), row.remedy)


def _tiles_drawn(check: DataCheck, experiment: Experiment) -> Findings:
    """Yields the length of an epoch of tiles, and a warning about boxes larger than a tile."""
    tiles = experiment.data.tiles
    if tiles is None or not check.images:
        return
    # Images that were not checked are assumed to be as large.
    count = round(check.tiles * check.total / check.images)
    steps = -(-count // experiment.train.batch_size)
    problem = (
        f"{count_text(check.total, 'record')} are cut into {count_text(count, 'tile')} of "
        f"{tiles.side} pixels: {count_text(steps, 'step')} an epoch"
    )
    yield Finding("note", "data.tiles", problem)
    if check.oversized and not tiles.whole_image:
        share = 100 * check.oversized / check.boxes
        problem = (
            f"{check.oversized:,} of {count_text(check.boxes, 'box')} ({share:.2g} %) are longer "
            f"than a tile of {tiles.side} pixels, and no tile shows them whole"
        )
        fix = f"{Setting('data.tiles.whole_image', True)}, or take larger tiles"
        yield Finding("warning", "data.tiles.side", problem, fix)


_NOTES_SHOWN = 4
_AWAIT_DATA = ("data.", "train.early_stopping")


@dataclass(frozen=True)
class ConfigCheck:
    """The findings about a config."""

    source: str
    """The file of the config."""
    findings: tuple[Finding, ...]
    """With their origins; errors first, then warnings, then notes."""
    limits: LimitTable = NO_LIMITS
    """Fixed numbers of the program beside the records; those that cost objects are findings too."""

    def with_findings(self, others: Iterable[Finding], origins: Origins) -> "ConfigCheck":
        """Returns the check with findings of another kind of check."""
        located = [with_origin(finding, origins) for finding in others]
        return replace(self, findings=tuple(by_severity([*self.findings, *located])))

    def count(self, severity: Severity) -> int:
        """Returns the number of findings with a severity."""
        return count_severity(self.findings, severity)

    def to_dict(self) -> dict[str, object]:
        """Returns plain values, for JSON."""
        counts = {f"{severity}s": self.count(severity) for severity in SEVERITIES}
        return {**counts, **asdict(self), "limits": self.limits.to_dict()}

    def render(self, *, all_notes: bool = False, wording: Wording = python_words) -> RenderableType:
        """Returns what a terminal shows: one screen, unless all notes are wanted."""
        most_notes = None if all_notes else _NOTES_SHOWN
        listed = [each for each in self.findings if not isinstance(each, LimitFinding)]
        shown = render_findings(listed, source=self.source, most_notes=most_notes, wording=wording)
        lines = (worded(line, wording) for line in limit_lines(self.limits))
        table = [Unbroken(Text(line.lstrip()), len(line) - len(line.lstrip())) for line in lines]
        totals = render_totals(self.findings)
        return Group(Unbroken(Text(self.source)), shown, *table, totals)


def check_config(
    config: str | Path,
    overrides: Changes = NO_CHANGES,
    *,
    records: RecordsToCheck = "present",
    machine: Machine | None = None,
    on_record: Callable[[int, int], None] = lambda done, total: None,
) -> ConfigCheck:
    """Checks a config as `resolve` takes it; a refusal is a finding, and nothing is raised.

    Args:
        machine: the memory that a run has to fit into; None: this machine's, without accelerator.
        records: check some records if they are on this machine (`present`), all of them and expect
            them to be there (`all`), or none (`none`).
        on_record: called with the numbers of records done and in all.
    """
    refusals = find_refusals(config, overrides)
    if refusals.errors or refusals.read is None:
        return ConfigCheck(str(config), tuple(_refusals(refusals, config)))
    return check_experiment(refusals.read, records=records, machine=machine, on_record=on_record)


def check_experiment(
    read: Resolved,
    *,
    records: RecordsToCheck = "present",
    memory: bool = True,
    machine: Machine | None = None,
    on_record: Callable[[int, int], None] = lambda done, total: None,
) -> ConfigCheck:
    """Checks an experiment that is read already; for the arguments see `check_config`.

    With `memory`, the findings include what does not fit into the memory of `machine` or any.
    """
    experiment = read.experiment
    broken = find(experiment)
    # Advice and the estimate assume an experiment without contradictions.
    sound = not count_severity(broken, "error")
    unsorted = [
        *(memory_advice(experiment, machine) if memory and sound else ()),
        *_missing(read),
        *broken,
        *(apply_rules(experiment, "checking", read.origins) if sound else ()),
        *records_findings(experiment, records, on_record),
    ]
    limits = NO_LIMITS
    if sound and records != "none":
        limits = audit_records(experiment, limit=0 if records == "all" else SAMPLE)
    findings = [
        *(with_origin(finding, read.origins) for finding in (*unsorted, *_limit_findings(limits))),
        *(_of_reader(text, "warning", read.source) for text in read.warnings),
        *(_of_reader(text, "note", read.source) for text in read.notes),
    ]
    return ConfigCheck(read.source, tuple(by_severity(dict.fromkeys(findings))), limits)


def _refusals(refusals: ConfigErrors, config: str | Path) -> Findings:
    """Yields what the readers refuse, and broken rules of the sections that were read whole."""
    for error in refusals.errors:
        # The other lines of an error are about the refusals after it.
        problem = error.what.partition("\n")[0]
        yield Finding("error", "", problem, error.fix or "", error.where or str(config))
    sections = {field.name for field in fields(Experiment)}
    if refusals.read is None or not refusals.touched <= sections:
        return
    for broken in find_errors(refusals.read.experiment):
        if broken.path.partition(".")[0] not in refusals.touched:
            yield with_origin(broken, refusals.read.origins)


def _missing(read: Resolved) -> Findings:
    """Yields what is refused when training starts, as warnings where data can mend it."""
    unreal = {(remark.path, remark.problem) for remark in paths_are_real(read.experiment)}
    missing = find_missing(read.experiment)
    for broken in missing:
        # A config is often checked before its data is in place.
        awaits_data = broken.path.startswith(_AWAIT_DATA)
        if (broken.path, broken.what) not in unreal:
            yield replace(broken, severity="warning") if awaits_data else broken
    paths = [
        replace(broken, severity="warning")
        for broken in missing
        if (broken.path, broken.what) in unreal
    ]
    # The checkpoint's remedy names weights that can be had.
    yield from (broken for broken in paths if broken.path == CHECKPOINT)
    if others := [broken for broken in paths if broken.path != CHECKPOINT]:
        yield _joined(others, read)


def _joined(unreal: Sequence[Finding], read: Resolved) -> Finding:
    """Returns one finding about all paths that are none."""
    first, *rest = unreal
    places = ", ".join(
        f"{broken.where(read.origins).removeprefix(f'{read.source}:')} ({broken.path})"
        for broken in rest
    )
    also = f"; the same holds for {places}" if rest else ""
    fields = dict.fromkeys(broken.path for broken in unreal)
    fix = " ".join(f"{Setting(path, 'PATH')}" for path in fields)
    return replace(first, what=first.what + also, fix=fix)


def _of_reader(text: str, severity: Severity, source: str) -> Finding:
    """Returns a message of the reader, which begins with its place in the file."""
    place = re.match(rf"{re.escape(source)}:\d+:\d+(?=: )", text)
    where = place[0] if place else source
    return Finding(severity, "", text.removeprefix(where).removeprefix(": "), origin=where)
