"""Channel counts that accelerators like."""

_DIVISOR = 8


def divisible(depth: float, least: int = _DIVISOR) -> int:
    """Rounds to the nearest multiple of 8, but never down by more than a tenth.

    Args:
        depth: channels times a multiplier.
        least: returned instead of anything below it.
    """
    rounded = max(least, int(depth + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
    return rounded + _DIVISOR if rounded < 0.9 * depth else rounded
