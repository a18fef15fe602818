"""The history of a run: the lines of `metrics.jsonl` in a model directory."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from stillbox.devices.announcing import say_aside
from stillbox.evaluation.results import FloatArray, IntArray
from stillbox.untrusted import open_untrusted

# A line of training has some hundred bytes, one of an evaluation a few thousand.
_MOST_BYTES, _LONGEST_LINE = 2**30, 2**20
HISTORY = "metrics.jsonl"

Series = tuple[IntArray, FloatArray]
"""Steps and values, both `[S]`."""


@dataclass(frozen=True, kw_only=True)
class History:
    """The log of a run, by step."""

    training: tuple[Mapping[str, float], ...] = ()
    """One mapping for each log line, `step` among its keys."""
    evaluations: tuple[tuple[int, Mapping[str, float | None]], ...] = ()
    """Step and scores of each evaluation."""

    def series(self, name: str) -> Series:
        """Returns the finite values of a training metric."""
        return _series([(int(line["step"]), line.get(name)) for line in self.training])

    def evaluation_series(self, name: str) -> Series:
        """Returns the values of a score without those that are `None`."""
        return _series([(step, scores.get(name)) for step, scores in self.evaluations])


def read_history(path: str | Path, say: Callable[[str], None] = say_aside) -> History:
    """Reads a history file; an absent file is an empty history.

    Later lines replace earlier ones of the same step, as after a run was resumed. Damaged lines are
    left out. An incomplete last line, which a killed process leaves, is left out without a note.

    `say` is called with a note that names the damaged lines.

    Raises:
        UserError: it is no regular file, or too large.
    """
    path = Path(path)
    if not os.path.lexists(path):
        return History()
    training: dict[int, Mapping[str, float]] = {}
    evaluations: dict[int, Mapping[str, float | None]] = {}
    damaged: list[int] = []
    fix = "move it away: a new one is begun"
    with open_untrusted(path, most=_MOST_BYTES, fix=fix, inside=path.parent) as file:
        for number, text in enumerate(_lines(file), start=1):
            line = _parse(text)
            if line is None:
                damaged += [number] * (text.endswith(b"\n") and not text.isspace())
            elif "evaluation" in line:
                evaluations[line["step"]] = line["evaluation"]
            else:
                training[line["step"]] = line
    if damaged:
        more = f" and {len(damaged) - 1} more of its lines" * (len(damaged) > 1)
        say(f"warning: {path}:{damaged[0]}{more}: damaged, and left out of the history")
    return History(
        training=tuple(training[step] for step in sorted(training)),
        evaluations=tuple(sorted(evaluations.items())),
    )


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of a file; one that is too long as an empty object, which no line is."""
    while text := file.readline(_LONGEST_LINE):
        if len(text) < _LONGEST_LINE or text.endswith(b"\n"):
            yield text
            continue
        while text and not text.endswith(b"\n"):
            text = file.readline(_LONGEST_LINE)
        yield b"{}\n"


def _parse(text: bytes) -> dict[str, Any] | None:
    """Returns a line with numbers of sensible sizes; None if it is none."""
    try:
        line = json.loads(text)
        step = line["step"]
        if type(step) is not int or not 0 <= step < 2**63:
            return None
        missing = {type(None)} if "evaluation" in line else set()
        values = line["evaluation"] if missing else line
        if not {type(value) for value in values.values()} <= {int, float, *missing}:
            return None
        for value in values.values():
            float(value or 0)
    # Bytes, depth, other types, an integer beyond all floats.
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    return dict(line)


def _series(points: list[tuple[int, float | None]]) -> Series:
    present = [(step, value) for step, value in points if value is not None and np.isfinite(value)]
    steps = np.array([step for step, _ in present], np.int64)
    return steps, np.array([value for _, value in present], np.float64)
