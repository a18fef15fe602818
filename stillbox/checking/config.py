"""Checks an experiment and its records before training.

Findings come from the reader of the config, from the rules that refuse an experiment, now or when
training starts, from advice (`checking/advice`), and from the records, if they are present.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from stillbox.checking.advice import advise
from stillbox.checking.advice.files import read_label_map
from stillbox.checking.data import DataCheck, check_records
from stillbox.checking.findings import SEVERITIES, TOO_MANY_BOXES, Advice, Severity
from stillbox.checking.memory_verdict import memory_advice
from stillbox.errors import UserError
from stillbox.experiment.refusals import ConfigErrors, find_refusals
from stillbox.experiment.resolve import Resolved
from stillbox.experiment.rules import Violation, find_broken, find_missing, suspicious_settings
from stillbox.experiment.rules.warnings import CHECKPOINT, paths_are_real
from stillbox.experiment.schema import Experiment, Records
from stillbox.printing import count_text
from stillbox.records.label_map import missing_label_map
from stillbox.records.source import expand

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


_COLOURS: dict[Severity, str] = {"error": "bold red", "warning": "bold yellow", "note": "cyan"}
_NOTES_SHOWN = 4


@dataclass(frozen=True)
class ConfigFinding:
    """A problem of a config, or a fact about it."""

    severity: Severity
    """`error`: it is refused, now or when training starts."""
    where: str
    """file:line:column or option; the field's path if it is not set."""
    what: str
    fix: str = ""
    field: str = ""
    """Dotted path of the field, if any."""


@dataclass(frozen=True)
class ConfigCheck:
    """The findings about a config."""

    source: str
    """Its file."""
    findings: tuple[ConfigFinding, ...]
    """Errors first, then warnings, then notes."""

    def count(self, severity: Severity) -> int:
        """Returns the number of findings with a severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        counts = {f"{severity}s": self.count(severity) for severity in SEVERITIES}
        return {**counts, **asdict(self)}

    def render(self, *, all_notes: bool = False) -> RenderableType:
        """Returns what a terminal shows: one screen, unless all notes are wanted."""
        # Notes come last.
        hidden = 0 if all_notes else max(self.count("note") - _NOTES_SHOWN, 0)
        shown = self.findings[: len(self.findings) - hidden]
        parts: list[RenderableType] = [Text(self.source)]
        # Errors come first.
        numbered = self.count("error") > 1
        for number, finding in enumerate(shown, start=1):
            mark = f"{number}. " if numbered and finding.severity == "error" else ""
            parts.append(_row(finding, self.source, mark))
        if hidden:
            parts.append(
                Text(f"... and {count_text(hidden, 'more note')}; --notes shows all", "dim")
            )
        counts = ((self.count(severity), severity) for severity in SEVERITIES)
        totals = (count_text(number, word) for number, word in counts)
        return Group(*parts, Text(", ".join(totals)))


def _row(finding: ConfigFinding, source: str, mark: str) -> RenderableType:
    # The file is named once, above the findings.
    where = finding.where.removeprefix(f"{source}:")
    head = (finding.severity, _COLOURS[finding.severity])
    rows = [Text.assemble(mark, head, f" {where}: {finding.what}")]
    # Notes stay short, because nothing must be mended.
    if finding.fix and finding.severity != "note":
        rows.append(Text(f"fix: {finding.fix}", "green"))
    return Group(*(_Unbroken(row, 2 + 2 * number) for number, row in enumerate(rows)))


class _Unbroken:
    """An indented text whose words, paths and addresses among them, stay whole on any terminal."""

    def __init__(self, text: Text, indent: int) -> None:
        self._text, self._indent = text, indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width - self._indent, 1)
        # Rich would cut what is longer than a line.
        for line in self._text.divide(_breaks(self._text.plain, width)):
            line.rstrip()
            yield Segment(" " * self._indent)
            yield from line.render(console)
            yield Segment.line()


def _breaks(text: str, width: int) -> Iterator[int]:
    """Yields where lines of whole words begin, but for the first."""
    start = 0
    for word in re.finditer(r"\S+", text):
        if word.end() - start > width and word.start() > start:
            start = word.start()
            yield start


def check_config(
    config: str | Path,
    overrides: Sequence[str] = (),
    *,
    records: RecordsToCheck = "present",
    on_record: Callable[[int, int], None] = lambda done, total: None,
) -> ConfigCheck:
    """Checks a config. Nothing is raised: what is refused is a finding.

    Args:
        config: as for `resolve`.
        overrides: as for `resolve`.
        records: check some records if they are on this machine (`present`), all of them and expect
            them to be there (`all`), or none (`none`).
        on_record: called with the numbers of records done and in all.
    """
    refusals = find_refusals(config, overrides)
    if refusals.errors or refusals.read is None:
        return ConfigCheck(str(config), tuple(_refusals(refusals, config)))
    return check_experiment(refusals.read, records=records, on_record=on_record)


def check_experiment(
    read: Resolved,
    *,
    records: RecordsToCheck = "present",
    memory: bool = True,
    on_record: Callable[[int, int], None] = lambda done, total: None,
) -> ConfigCheck:
    """Checks an experiment that is read already; else as `check_config`.

    With `memory` it says as well what does not fit into the memory of any or of this machine.
    """
    estimated = memory and not find_broken(read.experiment)
    findings = [
        *(
            _finding(advice.severity, advice, read)
            for advice in (memory_advice(read.experiment) if estimated else ())
        ),
        *_refused(read),
        *_advised(read),
        *(
            _finding(advice.severity, advice, read)
            for advice in records_findings(read.experiment, records, on_record)
        ),
        *(_of_reader(text, "warning", read.source) for text in read.warnings),
        *(_of_reader(text, "note", read.source) for text in read.notes),
    ]
    ordered = sorted(
        dict.fromkeys(findings), key=lambda finding: SEVERITIES.index(finding.severity)
    )
    return ConfigCheck(read.source, tuple(ordered))


def _refusals(refusals: ConfigErrors, config: str | Path) -> Iterator[ConfigFinding]:
    """Yields what the readers refuse, and broken rules of sections that they read whole."""
    for error in refusals.errors:
        # Its other lines are about the refusals after it.
        what = error.what.partition("\n")[0]
        yield ConfigFinding("error", error.where or str(config), what, error.fix or "")
    sections = {field.name for field in fields(Experiment)}
    if refusals.read is None or not refusals.touched <= sections:
        return
    for broken in find_broken(refusals.read.experiment):
        if broken.path.partition(".")[0] not in refusals.touched:
            yield _finding("error", broken, refusals.read)


def _refused(read: Resolved) -> list[ConfigFinding]:
    """Returns what the rules refuse, and as warnings what they refuse when training starts."""
    unreal = list(paths_are_real(read.experiment))
    missing = [broken for broken in find_missing(read.experiment) if broken not in unreal]
    findings = [_finding("error", broken, read) for broken in find_broken(read.experiment)]
    # A config is often checked before its data is in place.
    findings += [_finding("warning", broken, read) for broken in missing]
    # The checkpoint's remedy names weights that can be had.
    findings += [
        _finding("warning", broken, read) for broken in unreal if broken.path == CHECKPOINT
    ]
    unreal = [broken for broken in unreal if broken.path != CHECKPOINT]
    if unreal:
        first, *rest = [_finding("warning", broken, read) for broken in unreal]
        places = ", ".join(
            finding.where.removeprefix(f"{read.source}:") + f" ({finding.field})"
            for finding in rest
        )
        also = f"; the same holds for {places}" if rest else ""
        fields = dict.fromkeys(broken.path for broken in unreal)
        fix = " ".join(f"--set {field}=PATH" for field in fields)
        findings.append(replace(first, what=first.what + also, fix=fix))
    return findings


def _finding(severity: Severity, one: Violation | Advice, read: Resolved) -> ConfigFinding:
    where = read.origins.get(one.path, one.path)
    return ConfigFinding(severity, where, one.what, one.fix, one.path)


def _advised(read: Resolved) -> list[ConfigFinding]:
    seldom = [
        ConfigFinding("warning", read.origins.get(path, path), sentence, field=path)
        for path, sentence in suspicious_settings(read.experiment)
    ]
    # Advice assumes an experiment without contradictions.
    if find_broken(read.experiment):
        return seldom
    return seldom + [
        _finding(advice.severity, advice, read) for advice in advise(read.experiment, read.origins)
    ]


def _of_reader(text: str, severity: Severity, source: str) -> ConfigFinding:
    """Returns a message of the reader, which begins with its place in the file."""
    place = re.match(rf"{re.escape(source)}:\d+:\d+(?=: )", text)
    where = place[0] if place else source
    return ConfigFinding(severity, where, text.removeprefix(where).removeprefix(": "))
