"""The report of an import of weights: what was done with every array, and why."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stillbox.checkpoints.names import EMA, NameMap
from stillbox.errors import nearest
from stillbox.experiment import schema
from stillbox.printing import count_text
from stillbox.references import Setting

_SHOWN = 5
_INDENT = "\n                    "
# TF1's optimizers keep these beside a variable, TF2's behind its path.
_SLOTS = r"(.*/)?(Momentum|RMSProp|Adam|Adagrad|Adadelta|Ftrl)(_\d+)?|.*/\.OPTIMIZER_SLOT/.*"
# Variables that belong to training, not to the model.
_COUNTERS = r"(.*/)?(global_step|beta[12]_power|learning_rate)|step|save_counter|optimizer/.*"
# Advice for weights with other heads or classes than the model's.
_FRESH_HEADS = (
    f"with other classes {Setting('train.fine_tune.load_heads', False)} starts heads from "
    "fresh values"
)
_SAME_CLASSES = "give a config with the classes that the weights were trained for"
_TRAIN_FIRST = "train a detector from it first, and give the weights of that"


class Mismatch(NamedTuple):
    """An array that the file holds in another shape."""

    path: str
    name: str
    wanted: tuple[int, ...]
    held: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}: {list(self.held)} in the file, {list(self.wanted)} wanted"


@dataclass(frozen=True)
class ImportReport:
    """Results of an import. Paths are of our detector, names are of the file."""

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
    without_statistics: tuple[str, ...] = ()
    """Paths of loaded batch norms that have no measured mean and variance of their input."""
    notes: tuple[str, ...] = ()
    departure: str = ""
    """The first layer apart from heads that is missing or different in a graph."""

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
        notes = (*self.notes, *filter(None, [_about_graph(self.departure)]))
        return "\n".join(lines + [f"  note: {note}" for note in notes])


def _about_graph(departure: str) -> str:
    return departure and f"the graph is of another model: {departure}"


def _enumerate(items: Iterable[str]) -> str:
    items = sorted(items)
    rest = [f"and {len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
    return f"{len(items):4d}" + "".join(_INDENT + item for item in items[:_SHOWN] + rest)


def explain_failure(
    report: ImportReport,
    held: Iterable[str],
    found_by_scope: Mapping[str, int],
    unnamed: Sequence[str],
    heads: Collection[str],
    *,
    for_training: bool,
) -> str:
    """Returns likely causes why weights do not fit, with their remedies.

    `found_by_scope` counts the arrays of the file that have names of each scope. `unnamed` are
    parts of the detector without a name table, `heads` are parts with shapes that depend on the
    classes. Only `for_training` can fields of `train.fine_tune` help.
    """
    if report.departure:
        return f"{_about_graph(report.departure)}; is it of this architecture and depth_multiplier?"
    held = sorted(held)
    advice = []
    if unnamed:
        advice.append(f"no names in other frameworks are known for {', '.join(unnamed)}")
    scope = max(found_by_scope, key=lambda scope: found_by_scope[scope])
    if found_by_scope[scope] > report.wanted / 2 > len(report.loaded) + len(report.mismatched):
        advice.append(
            f"the file holds {found_by_scope[scope]} names of a {scope} checkpoint: "
            + (f"{Setting('train.fine_tune.scope', scope)}" if for_training else _TRAIN_FIRST)
        )
    if report.mismatched and all(
        mismatch.path.partition(".")[0] in heads for mismatch in report.mismatched
    ):
        advice.append(
            f"{len(report.mismatched)} shapes of heads differ ({report.mismatched[0]}): "
            + (_FRESH_HEADS if for_training else _SAME_CLASSES)
        )
    elif report.mismatched:
        advice.append(
            f"{len(report.mismatched)} shapes differ ({report.mismatched[0]}): is it the same "
            "architecture, with the same depth and depth_multiplier?"
        )
    if report.missing and not advice:
        name = min(report.missing.values())
        advice.append(f"{name!r} was looked for; {nearest(name, held[:20])}")
    return "; ".join(advice)


def explain_rest(
    held: Iterable[str],
    used: Collection[str],
    paths: Iterable[str],
    left_out: Collection[str],
    name_map: NameMap,
) -> dict[str, str]:
    """Returns the reason by name, of every array that was not read."""
    known = {name: path for path, name in name_map.names.items()} | {path: path for path in paths}
    ignored = name_map.table.ignored
    return {
        name: "train.fine_tune.skip matches it"
        if known.get(name) in left_out
        else _reason(name, known, used, ignored)
        for name in held
        if name not in used
    }


def _reason(
    name: str, paths: Mapping[str, str], used: Collection[str], ignored: Mapping[str, str]
) -> str:
    *_, last = name.split("/")
    if name + EMA in used:
        return "its moving average was taken"
    if name.endswith(EMA):
        return "moving average"
    if re.fullmatch(_SLOTS, name):
        return "optimizer slot"
    if re.fullmatch(_COUNTERS, name):
        return "training counter"
    if "/Logits/" in name:
        return "classifier's logits"
    if name in paths:
        part = paths[name].partition(".")[0]
        return f"{part} not asked for"
    if last == "gamma" and name.replace("gamma", "beta") in paths:
        return "gamma, but this model's batch norm has no scale"
    reasons = (reason for pattern, reason in ignored.items() if re.fullmatch(pattern, name))
    return next(reasons, "no such parameter in this model")


def notes_on_parts(
    name_map: NameMap,
    loaded: Mapping[str, str],
    mismatched: Collection[Mismatch],
    model: schema.Model,
) -> tuple[str, ...]:
    """Notes a network or class head that differs from the one that the weights are of."""
    return _network_notes(name_map, loaded, mismatched, model) + _head_notes(mismatched, model)


def _network_notes(
    name_map: NameMap,
    loaded: Mapping[str, str],
    mismatched: Iterable[Mismatch],
    model: schema.Model,
) -> tuple[str, ...]:
    named = [path for path, name in loaded.items() if name_map.names.get(path) == name]
    parts = {path.partition(".")[0] for path in named}
    misfits = sum(mismatch.path.startswith("backbone.") for mismatch in mismatched)
    misfit = (
        f"{count_text(misfits, 'array')} of the backbone of another shape: is it the same "
        "architecture?"
    )
    return (misfit,) * bool(misfits and parts) + tuple(
        f"{name_map.table.convention.library}'s weights of this {part} want {field}: {value}, "
        f"and it is {actual}: {Setting(f'model.{part}.{field}', value)}"
        for part, field, value, actual in _unexpected(name_map, model)
        if part in parts
    )


def _unexpected(name_map: NameMap, model: schema.Model) -> Iterator[tuple[str, str, str, str]]:
    """Yields part, field, expected value and the model's where these two differ."""
    for path, value in name_map.table.expected.items():
        part, _, field = path.partition(".")
        actual = getattr(model.parts.get(part), field, value)
        if actual != value:
            yield part, field, value, actual


def _head_notes(mismatched: Iterable[Mismatch], model: schema.Model) -> tuple[str, ...]:
    logits = model.class_logits
    for mismatch in mismatched:
        if mismatch.path.endswith(".class_.bias"):
            boxes = max(1, mismatch.wanted[0] // logits)
            return (
                f"the class head in the file has {mismatch.held[0] / boxes:g} logits a box, "
                f"this model's has {logits}: heads of another shape keep their fresh weights",
            )
    return ()
