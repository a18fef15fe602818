"""Annotations of the schema's fields: ranges of numbers, and what leads out of the experiment.

`gamma: NonNegative = 2.0` declares a number of at least 0. `rules/limits.py` reads the range from
the annotation and refuses other values.

`label_map: InputPath = ""` declares a file that is read. A field that names a file, a folder, a
service, or an amount of threads or memory is marked as `Outside`. Those of the machine have no
effect in an experiment that is stored with a model: see `yaml_config.from_stored`.
"""

import math
from dataclasses import dataclass
from typing import Annotated

# The least number above zero makes "above zero" a closed range, the greatest below one "below one".
ABOVE_ZERO = math.ulp(0.0)
BELOW_ONE = math.nextafter(1.0, 0.0)


@dataclass(frozen=True)
class Range:
    """Least and greatest allowed value, both included."""

    low: float
    high: float = math.inf

    def __str__(self) -> str:
        least = "above 0" if self.low == ABOVE_ZERO else f"of at least {self.low:g}"
        if self.high == math.inf:
            return least
        greatest = "below 1" if self.high == BELOW_ONE else f"at most {self.high:g}"
        return f"{least} and {greatest}"


@dataclass(frozen=True)
class Outside:
    """Marks a field that leads out of the experiment."""

    stored: bool
    """Whether an experiment that is stored with a model may set it."""


INPUT, MACHINE = Outside(stored=True), Outside(stored=False)
InputPath = Annotated[str, INPUT]
Positive = Annotated[float, Range(ABOVE_ZERO)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
PositiveFraction = Annotated[float, Range(ABOVE_ZERO, 1)]
FractionBelowOne = Annotated[float, Range(0, BELOW_ONE)]
ColorValue = Annotated[float, Range(0, 255)]
PositiveInt = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
Percent = Annotated[int, Range(0, 100)]
