"""Refuses numbers outside the range of their field."""

import dataclasses
import math
from collections.abc import Iterator

from stillbox.experiment.rules.rule import Broken
from stillbox.experiment.schema import Experiment, Range
from stillbox.experiment.values import field_ranges, sections_of

_GREATEST = 2**63 - 1


def check_limits(experiment: Experiment) -> Iterator[Broken]:
    """Finds numbers outside their range."""
    for path, section in sections_of(experiment):
        ranges = field_ranges(section.__class__)
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            inner = f"{path}.{field.name}" if path else field.name
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, int | float) and not isinstance(item, bool):
                    yield from _check_number(item, inner, ranges.get(field.name))


def _check_number(number: float, path: str, allowed: Range | None) -> Iterator[Broken]:
    # The text format can spell inf and nan.
    if isinstance(number, float) and not math.isfinite(number):
        yield Broken(path, f"{path} is {number}", "give a finite number")
    # YAML has whole numbers of any length, arrays have not.
    elif isinstance(number, int) and abs(number) > _GREATEST:
        what = f"{path} is a number of {len(str(number))} digits"
        yield Broken(path, what, "give one that fits into 64 bits")
    elif allowed is not None and not allowed.low <= number <= allowed.high:
        yield Broken(path, f"{path} is {number}", f"give a value {allowed}")
