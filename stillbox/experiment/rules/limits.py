"""The limits of single fields, which annotations declare (`schema/ranges.py`).

A number outside its range breaks one, and so do a least value above the greatest, a list of another
length, and text that cannot be used.
"""

import dataclasses
import math
import re
from collections.abc import Iterator

from stillbox.experiment import schema
from stillbox.experiment.rules.rule import join_path
from stillbox.experiment.values import Value, field_marks, sections_of
from stillbox.findings import Finding
from stillbox.printing import count_text

_GREATEST = 2**63 - 1
# Paths have at most 4096 characters; expressions are the longest texts.
_LONGEST = 10_000
# NUL ends a path, and a surrogate is half a character. Escapes can spell both.
_UNUSABLE = re.compile("[\0\ud800-\udfff]")


class Excess(Finding):
    """A number, list or text so large that no other rule may count with it."""


def check_limits(experiment: schema.Experiment) -> Iterator[Finding]:
    """Finds numbers outside their range, lists and texts that are too long, odd characters."""
    for path, section in sections_of(experiment):
        ranges = field_marks(section.__class__, schema.Range)
        items = field_marks(section.__class__, schema.Items)
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            inner = join_path(path, field.name)
            if isinstance(value, tuple):
                wrong = _check_length(len(value), inner, items.get(field.name, schema.Items()))
                if wrong is not None:
                    yield wrong
                if isinstance(wrong, Excess):
                    continue
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, int | float) and not isinstance(item, bool):
                    yield from _check_number(item, inner, ranges.get(field.name))
                elif isinstance(item, str):
                    yield from _check_text(item, inner)
        yield from _check_order(section, path)


def _check_length(length: int, path: str, allowed: schema.Items) -> Finding | None:
    if length > allowed.most:
        most = f"give at most {allowed.most:,}"
        return Excess("error", path, f"{path} has {length:,} items", most)
    if allowed.lengths and length not in allowed.lengths:
        return Finding("error", path, f"{path} has {count_text(length, 'number')}", allowed.fix)
    if length < allowed.least:
        name = path.rpartition(".")[2].replace("_", " ")
        return Finding("error", path, f"no {name}", allowed.fix)
    return None


def _check_number(number: float, path: str, allowed: schema.Range | None) -> Iterator[Finding]:
    # Rules can count with a share of 7.
    kind = Excess if allowed and abs(number) > max(allowed.high, 1000) else Finding
    # The text format can spell inf and nan.
    if isinstance(number, float) and not math.isfinite(number):
        yield Excess("error", path, f"{path} is {number}", "give a finite number")
    # YAML has whole numbers of any length, arrays have not.
    elif isinstance(number, int) and abs(number) > _GREATEST:
        problem = f"{path} is a number of {int(math.log10(abs(number))) + 1} digits"
        yield Excess("error", path, problem, "give one that fits into 64 bits")
    elif allowed is not None and number < allowed.low:
        yield kind("error", path, f"{path} is {number}", f"give a value {allowed.least}")
    elif allowed is not None and number > allowed.high:
        yield kind("error", path, f"{path} is {number}", f"give a value {allowed.greatest}")


def _check_text(text: str, path: str) -> Iterator[Finding]:
    if len(text) > _LONGEST:
        problem = f"{path} is a text of {len(text):,} characters"
        yield Excess("error", path, problem, f"give at most {_LONGEST:,}")
    elif _UNUSABLE.search(text):
        problem = f"{path} holds a character that neither files nor names have: {text!r}"
        yield Finding("error", path, problem, "take it out")


def _check_order(section: Value, path: str) -> Iterator[Finding]:
    """Finds least values that are above the greatest."""
    values = {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}
    for least, low in values.items():
        name = least.removeprefix("min_")
        high = values.get(f"max_{name}")
        if name == least or not _is_above(low, high):
            continue
        # Explicit scales replace the range; a max_depth of 0 is no limit.
        if isinstance(section, schema.SsdAnchors) and section.scales:
            continue
        if isinstance(section, schema.ConvolutionalHead) and section.max_depth == 0:
            continue
        problem = f"min_{name} {_spell(low)} is above max_{name} {_spell(high)}"
        yield Finding("error", join_path(path, least), problem, f"lower it, or raise max_{name}")


def _is_above(low: Value, high: Value) -> bool:
    if low is None or high is None:
        return False
    if isinstance(low, tuple):
        return any(map(_is_above, low, high))
    return bool(low > high)


def _spell(value: Value) -> str:
    return str(list(value) if isinstance(value, tuple) else value)
