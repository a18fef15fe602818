"""Is an experiment sound? Everything that can be said of it before anything is spent.

Findings come from everywhere that knows something: what the reader noticed, the rules that refuse,
what training would miss, advice (`checking/advice`), and the records where they are at hand.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from stillbox.checking.advice import COUNSELS, Advice
from stillbox.checking.config_records import RecordsAsked, records_findings
from stillbox.checking.data_findings import SEVERITIES, Severity
from stillbox.errors import UserError
from stillbox.experiment.resolve import Resolved, read_config
from stillbox.experiment.rules import Broken, find_broken, find_missing, seldom_meant
from stillbox.experiment.rules.trainable import paths_are_real

_COLOURS: dict[Severity, str] = {"error": "bold red", "warning": "bold yellow", "note": "cyan"}
_NOTES_SHOWN = 4


@dataclass(frozen=True)
class ConfigFinding:
    """One thing that a person should know about a config."""

    severity: Severity
    """`error`: it is refused, now or when training starts."""
    where: str
    """file:line:column or option; the field's path where nobody set it."""
    what: str
    """What is the matter."""
    fix: str = ""
    """How to mend it."""
    field: str = ""
    """Dotted path of the field, where there is one."""


@dataclass(frozen=True)
class ConfigCheck:
    """All that was found in one config."""

    source: str
    """The file that was read."""
    findings: tuple[ConfigFinding, ...]
    """Errors first, then warnings, then notes."""

    def count(self, severity: Severity) -> int:
        """Returns how many findings have this severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        counts = {f"{severity}s": self.count(severity) for severity in SEVERITIES}
        return {**counts, **asdict(self)}

    def render(self, *, all_notes: bool = False) -> RenderableType:
        """Returns what a terminal shows: one screen, unless all notes are wanted."""
        notes = [finding for finding in self.findings if finding.severity == "note"]
        shown = [finding for finding in self.findings if finding.severity != "note"]
        shown += notes if all_notes else notes[:_NOTES_SHOWN]
        parts: list[RenderableType] = [Text(self.source)]
        parts += [_row(finding, self.source) for finding in shown]
        if hidden := len(self.findings) - len(shown):
            parts.append(Text(f"... and {hidden} more notes: --notes shows them", "dim"))
        counts = (_count(self.count(severity), severity) for severity in SEVERITIES)
        return Group(*parts, Text(", ".join(counts)))


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _row(finding: ConfigFinding, source: str) -> RenderableType:
    # The file is named once, above.
    where = finding.where.removeprefix(f"{source}:")
    head = (finding.severity, _COLOURS[finding.severity])
    rows = [Text.assemble(head, f" {where}: {finding.what}")]
    # Notes stay short: there is nothing that must be mended.
    if finding.fix and finding.severity != "note":
        rows.append(Text(f"fix: {finding.fix}", "green"))
    return Group(*(Padding(row, (0, 0, 0, 2 + 2 * number)) for number, row in enumerate(rows)))


def check_config(
    config: str | Path,
    overrides: Sequence[str] = (),
    *,
    records: RecordsAsked = "present",
    on_record: Callable[[int, int], None] = lambda done, total: None,
) -> ConfigCheck:
    """Looks at a config from all sides. Nothing is raised: what is refused is a finding.

    Args:
        config: as for `resolve`.
        overrides: as for `resolve`.
        records: look at some records where they are on this machine (`present`), at all of them
            wherever they should be (`all`), or at none (`none`).
        on_record: called with how many records are done and how many there are.
    """
    try:
        read = read_config(config, overrides)
    except UserError as error:
        refused = ConfigFinding("error", error.where or str(config), error.what, error.fix or "")
        return ConfigCheck(str(config), (refused,))
    findings = [
        *_refused(read),
        *_advised(read),
        *(
            _finding(advice.severity, advice, read)
            for advice in records_findings(read.experiment, records, on_record)
        ),
        *(_said(text, "warning", read.source) for text in read.warnings),
        *(_said(text, "note", read.source) for text in read.notes),
    ]
    order = {severity: number for number, severity in enumerate(SEVERITIES)}
    ordered = sorted(dict.fromkeys(findings), key=lambda finding: order[finding.severity])
    return ConfigCheck(read.source, tuple(ordered))


def _refused(read: Resolved) -> list[ConfigFinding]:
    """What the rules refuse, and what they would refuse when training starts."""
    unreal = list(paths_are_real(read.experiment))
    missing = [broken for broken in find_missing(read.experiment) if broken not in unreal]
    findings = [_finding("error", broken, read) for broken in find_broken(read.experiment)]
    # A config is often checked before its data is in place: it is no worse for that.
    findings += [_finding("warning", broken, read) for broken in missing]
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


def _finding(severity: Severity, said: Broken | Advice, read: Resolved) -> ConfigFinding:
    where = read.origins.get(said.path, said.path)
    return ConfigFinding(severity, where, said.what, said.fix, said.path)


def _advised(read: Resolved) -> list[ConfigFinding]:
    seldom = [
        ConfigFinding("warning", read.origins.get(path, path), sentence, field=path)
        for path, sentence in seldom_meant(read.experiment)
    ]
    # Advice on an experiment that contradicts itself would be about nothing.
    if find_broken(read.experiment):
        return seldom
    return seldom + [
        _finding(advice.severity, advice, read)
        for counsel in COUNSELS
        for advice in counsel(read.experiment, read.origins)
    ]


def _said(text: str, severity: Severity, source: str) -> ConfigFinding:
    """Takes a sentence of the reader apart, which begins with its place in the file."""
    place = re.match(rf"{re.escape(source)}:\d+:\d+(?=: )", text)
    where = place[0] if place else source
    return ConfigFinding(severity, where, text.removeprefix(where).removeprefix(": "))
