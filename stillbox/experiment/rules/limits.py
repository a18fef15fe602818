"""The range of every number that has one."""

import fnmatch
import math
import re
from collections.abc import Iterator

from stillbox.experiment.rules.bounds import ABOVE_ZERO, ANY, BELOW_ONE
from stillbox.experiment.rules.broken import Broken
from stillbox.experiment.rules.ranges_model import MODEL_RANGES
from stillbox.experiment.rules.ranges_training import TRAINING_RANGES
from stillbox.experiment.schema import Experiment
from stillbox.experiment.values import Plain, to_plain

_GREATEST = 2**63 - 1
# Translated once: some 80 patterns meet some 150 numbers in every check.
_PATTERNS = [
    (re.compile(fnmatch.translate(pattern)), low, high)
    for pattern, (low, high) in (MODEL_RANGES | TRAINING_RANGES).items()
]


def check_limits(experiment: Experiment) -> Iterator[Broken]:
    """Finds numbers outside their range."""
    for path, number in _numbers(to_plain(experiment), ""):
        # The text format can spell inf and nan, and nobody means them.
        if isinstance(number, float) and not math.isfinite(number):
            yield Broken(path, f"{path} is {number}", "give a finite number")
            continue
        # YAML knows whole numbers of any length, arrays do not.
        if isinstance(number, int) and abs(number) > _GREATEST:
            what = f"{path} is a number of {len(str(number))} digits"
            yield Broken(path, what, "give one that fits into 64 bits")
            continue
        for pattern, low, high in _PATTERNS:
            if pattern.fullmatch(path) and not low <= number <= high:
                yield Broken(path, f"{path} is {number}", f"give a value {_spell(low, high)}")


def _numbers(plain: Plain, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(plain, dict):
        for name, value in plain.items():
            yield from _numbers(value, f"{path}.{name}" if path else name)
    elif isinstance(plain, list):
        for index, value in enumerate(plain):
            # A list of numbers has one origin; a list of sections has one for each.
            yield from _numbers(value, f"{path}.{index}" if isinstance(value, dict) else path)
    elif isinstance(plain, int | float) and not isinstance(plain, bool):
        yield path, plain


def _spell(low: float, high: float) -> str:
    least = "above 0" if low == ABOVE_ZERO else f"of at least {low:g}"
    if high == ANY:
        return least
    return f"{least} and {'below 1' if high == BELOW_ONE else f'at most {high:g}'}"
