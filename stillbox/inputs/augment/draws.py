"""Random numbers as the original's operations draw them."""

from numpy.random import Generator


def uniform(rng: Generator, low: float, high: float) -> float:
    """Returns a number in `[low, high)`."""
    return low + float(rng.random()) * (high - low)


def whole_number(rng: Generator, low: int, high: int) -> int:
    """Returns one of `low, ..., high - 1`, each as likely; `low` where that leaves none.

    A range without room for a choice (least and greatest value alike) stops the original.
    """
    return low + int(rng.random() * max(high - low, 1))


def is_left_alone(rng: Generator, random_coef: float) -> bool:
    """Says whether an operation passes this image by: `random_coef` is the probability of it."""
    return float(rng.random()) < random_coef
