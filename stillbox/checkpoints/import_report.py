"""What an import of weights did with every array."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stillbox.errors import nearest

_SHOWN = 5
_INDENT = "\n                    "
# An entry of every object-based TF2 checkpoint.
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


class Mismatch(NamedTuple):
    """An array that the file holds in another shape."""

    path: str
    name: str
    wanted: tuple[int, ...]
    found: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}: {list(self.found)} in the file, {list(self.wanted)} wanted"


@dataclass(frozen=True)
class ImportReport:
    """Results of an import. Paths are those of our detector, names those in the file."""

    path: str
    """What the weights were read from."""
    loaded: Mapping[str, str]
    """Name in the file by path."""
    skipped: Mapping[str, str]
    """Reason by name, for all in the file that was not wanted."""
    missing: Mapping[str, str]
    """Name that was searched for by path."""
    mismatched: tuple[Mismatch, ...]
    """Found under the right name, with another shape."""
    notes: tuple[str, ...] = ()

    @property
    def wanted(self) -> int:
        """Number of the detector's arrays that were to be replaced."""
        return len(self.loaded) + len(self.missing) + len(self.mismatched)

    @property
    def loaded_share(self) -> float:
        """Share of the wanted arrays that were replaced, 0 to 1."""
        return len(self.loaded) / self.wanted if self.wanted else 0.0

    def summary(self) -> str:
        """Returns the counts in one line."""
        return (
            f"{len(self.loaded)} of {self.wanted} wanted arrays loaded, {len(self.missing)} "
            f"missing, {len(self.mismatched)} of another shape, {len(self.skipped)} not wanted"
        )

    def render(self) -> str:
        """Returns the report as a few lines of text."""
        reasons = Counter(self.skipped.values()).most_common()
        lines = [
            f"weights from {self.path}",
            f"  loaded       {len(self.loaded):4d} of {self.wanted} wanted arrays",
            f"  missing      {_enumerate(self.missing.values())}",
            f"  other shape  {_enumerate(map(str, self.mismatched))}",
            f"  not wanted   {len(self.skipped):4d}"
            + "".join(f"{_INDENT}{count:4d} {reason}" for reason, count in reasons),
        ]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])


def _enumerate(items: Iterable[str]) -> str:
    items = sorted(items)
    rest = [f"and {len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
    return f"{len(items):4d}" + "".join(_INDENT + item for item in items[:_SHOWN] + rest)


def explain_failure(
    report: ImportReport,
    held: Iterable[str],
    found_by_scope: Mapping[str, int],
    unnamed: Sequence[str],
) -> str:
    """Returns likely causes why weights do not fit, with their remedies.

    Args:
        report: of the attempt.
        held: all names in the file.
        found_by_scope: number of arrays that the file has under the names of each scope.
        unnamed: parts of the detector that no name table is registered for.
    """
    held = sorted(held)
    advice = []
    if unnamed:
        advice.append(f"no names in other frameworks are known for {', '.join(unnamed)}")
    if _OBJECT_GRAPH in held:
        advice.append("this is an object-based TF2 checkpoint; give one of TF1, or an .npz")
    scope = max(found_by_scope, key=lambda scope: found_by_scope[scope])
    if found_by_scope[scope] > report.wanted / 2 > len(report.loaded) + len(report.mismatched):
        advice.append(
            f"the file holds {found_by_scope[scope]} names of a {scope} checkpoint: "
            f"--set train.fine_tune.scope={scope}"
        )
    if report.mismatched:
        advice.append(
            f"{len(report.mismatched)} shapes differ ({report.mismatched[0]}): is it the same "
            "architecture, with the same depth and depth_multiplier?"
        )
    if report.missing:
        name = min(report.missing.values())
        advice.append(f"{name!r} was looked for; {nearest(name, held[:20])}")
    return "; ".join(advice)
