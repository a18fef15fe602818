"""Numbers outside their range, least values above the greatest, and text that is none."""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

from stillbox.experiment.rules.rule import Broken, rule
from stillbox.experiment.schema import ConvolutionalHead, Experiment, Items, Range, SsdAnchors
from stillbox.experiment.values import Value, field_marks, sections_of

_GREATEST = 2**63 - 1
# Paths have at most 4096 characters; expressions are the longest texts.
_LONGEST = 10_000
# NUL ends a path, and a surrogate is half a character. Escapes can spell both.
_UNUSABLE = re.compile("[\0\ud800-\udfff]")


class Excess(Broken):
    """A number, list or text so large that no other rule may count with it."""


def check_limits(experiment: Experiment) -> Iterator[Broken]:
    """Finds numbers outside their range, lists and texts that are too long, odd characters."""
    for path, section in sections_of(experiment):
        ranges = field_marks(section.__class__, Range)
        items = field_marks(section.__class__, Items)
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            inner = f"{path}.{field.name}" if path else field.name
            most = items.get(field.name, Items()).most
            if isinstance(value, tuple) and len(value) > most:
                yield Excess(inner, f"{inner} has {len(value):,} items", f"give at most {most:,}")
                continue
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, int | float) and not isinstance(item, bool):
                    yield from _check_number(item, inner, ranges.get(field.name))
                elif isinstance(item, str):
                    yield from _check_text(item, inner)


def _check_number(number: float, path: str, allowed: Range | None) -> Iterator[Broken]:
    # Rules can count with a share of 7.
    broken = Excess if allowed and abs(number) > max(allowed.high, 1000) else Broken
    # The text format can spell inf and nan.
    if isinstance(number, float) and not math.isfinite(number):
        yield Excess(path, f"{path} is {number}", "give a finite number")
    # YAML has whole numbers of any length, arrays have not.
    elif isinstance(number, int) and abs(number) > _GREATEST:
        what = f"{path} is a number of {int(math.log10(abs(number))) + 1} digits"
        yield Excess(path, what, "give one that fits into 64 bits")
    elif allowed is not None and number < allowed.low:
        yield broken(path, f"{path} is {number}", f"give a value {allowed.least}")
    elif allowed is not None and number > allowed.high:
        yield broken(path, f"{path} is {number}", f"give a value {allowed.greatest}")


def _check_text(text: str, path: str) -> Iterator[Broken]:
    if len(text) > _LONGEST:
        what = f"{path} is a text of {len(text):,} characters"
        yield Excess(path, what, f"give at most {_LONGEST:,}")
    elif _UNUSABLE.search(text):
        what = f"{path} holds a character that neither files nor names have: {text!r}"
        yield Broken(path, what, "take it out")


@rule(object)
def ranges_are_ordered(section: Any) -> Iterator[Broken]:  # noqa: ANN401
    """A least value is no greater than the greatest."""
    for field in dataclasses.fields(section):
        name = field.name.removeprefix("min_")
        low, high = getattr(section, field.name), getattr(section, f"max_{name}", None)
        if name == field.name or not _is_above(low, high):
            continue
        # Explicit scales replace the range; a max_depth of 0 is no limit.
        if isinstance(section, SsdAnchors) and section.scales:
            continue
        if isinstance(section, ConvolutionalHead) and section.max_depth == 0:
            continue
        yield Broken(
            f"min_{name}",
            f"min_{name} {_spell(low)} is above max_{name} {_spell(high)}",
            f"lower it, or raise max_{name}",
        )


def _is_above(low: Value, high: Value) -> bool:
    if low is None or high is None:
        return False
    if isinstance(low, tuple):
        return any(map(_is_above, low, high))
    return bool(low > high)


def _spell(value: Value) -> str:
    return str(list(value) if isinstance(value, tuple) else value)
