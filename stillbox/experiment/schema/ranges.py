"""Types of numbers with a range, for the fields of the schema.

`gamma: NonNegative = 2.0` declares a number of at least 0. `rules/limits.py` reads the range from
the annotation and refuses other values.
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
