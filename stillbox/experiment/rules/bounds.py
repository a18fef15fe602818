"""The ends of a range of numbers."""

import math

Range = tuple[float, float]
"""Least and greatest allowed value, both included."""

ANY = math.inf
"""No upper end."""

# The least number above zero makes "above zero" an ordinary closed range.
ABOVE_ZERO = math.ulp(0.0)
# And the greatest below one makes one of "below one".
BELOW_ONE = math.nextafter(1.0, 0.0)
