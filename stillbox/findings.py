"""The result of a check: how serious it is, which field it concerns, what is wrong and the remedy.

Rules of experiments, `stillbox check`, the memory forecast and compilation all return findings.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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
    """Dotted path of the field concerned; empty: none."""
    what: str
    """One sentence with the values."""
    fix: str = ""
    """The remedy; a note needs none."""
    origin: str = ""
    """file:line:column or option that sets the field; empty until it is looked up."""

    def where(self, origins: Origins) -> str:
        """Returns where the field is set, or else its path."""
        return self.origin or origins.get(self.path, self.path)

    def describe(self, origins: Origins) -> str:
        """Returns `where: what`, and the remedy in a line below it."""
        fix = f"\n  fix: {self.fix}" if self.fix else ""
        return f"{self.where(origins)}: {self.what}{fix}"


Findings = Iterator[Finding]
AnyFinding = TypeVar("AnyFinding", bound=Finding)


def by_severity(findings: Iterable[AnyFinding]) -> list[AnyFinding]:
    """Returns findings with errors first and notes last, otherwise in their order."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def with_origin(finding: AnyFinding, origins: Origins) -> AnyFinding:
    """Returns a finding with its origin."""
    return replace(finding, origin=finding.where(origins))
