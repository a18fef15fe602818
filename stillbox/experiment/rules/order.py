"""The rule about least and greatest values."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from stillbox.experiment.rules.rule import Broken, rule
from stillbox.experiment.schema import ConvolutionalHead, SsdAnchors
from stillbox.experiment.values import Value


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
