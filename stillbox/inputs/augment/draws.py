"""Random numbers with the distributions of the original's operations."""

from numpy.random import Generator


def uniform(rng: Generator, low: float, high: float) -> float:
    """Returns a number in `[low, high)`."""
    return low + float(rng.random()) * (high - low)


def random_integer(rng: Generator, low: int, high: int) -> int:
    """Returns one of `low, ..., high - 1`, uniformly; `low` if the range is empty.

    The original fails on an empty range.
    """
    return low + int(rng.random() * max(high - low, 1))


def is_skipped(rng: Generator, random_coef: float) -> bool:
    """Returns whether an operation skips this image, with probability `random_coef`."""
    return float(rng.random()) < random_coef
