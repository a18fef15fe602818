"""The result of a check: how serious it is, which field it concerns, what is wrong and the remedy.

Rules of experiments, `stillbox check`, the memory forecast and compilation all return findings.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
Origins = Mapping[str, str]
"""Dotted path of each field that is set -> file:line or option that sets it."""


@dataclass(frozen=True)
class Finding:
    """One result of a check."""

    severity: Severity
    """`error`: training would stop, or refuse to start."""
    path: str
    """Dotted path of the field concerned; a registered rule gives it relative to its section."""
    what: str
    """One sentence with the values."""
    fix: str = ""
    """The remedy; a note needs none."""


AnyFinding = TypeVar("AnyFinding", bound=Finding)


def by_severity(findings: Iterable[AnyFinding]) -> list[AnyFinding]:
    """Returns findings with errors first and notes last, otherwise in their order."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
