"""Refuses numbers outside the range of their field."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from stillbox.experiment.rules.rule import Broken
from stillbox.experiment.schema import Experiment, Range
from stillbox.experiment.values import field_ranges

_GREATEST = 2**63 - 1


def check_limits(experiment: Experiment) -> Iterator[Broken]:
    """Finds numbers outside their range."""
    yield from _check_section(experiment, "")


def _check_section(section: Any, path: str) -> Iterator[Broken]:  # noqa: ANN401
    ranges = field_ranges(section.__class__)
    for field in dataclasses.fields(section):
        inner = f"{path}.{field.name}" if path else field.name
        value = getattr(section, field.name)
        items = value if isinstance(value, tuple) else (value,)
        for index, item in enumerate(items):
            if dataclasses.is_dataclass(item):
                # A list of numbers has one origin; a list of sections has one for each.
                place = f"{inner}.{index}" if isinstance(value, tuple) else inner
                yield from _check_section(item, place)
            elif isinstance(item, int | float) and not isinstance(item, bool):
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
