"""The history of a run: the lines of `metrics.jsonl` in a model directory."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError
from stillbox.untrusted import read_untrusted

# A line of training has some hundred bytes.
_MOST_BYTES = 2**30
HISTORY = "metrics.jsonl"
"""Name of the file in a model directory."""

Series = tuple[NDArray[np.int64], NDArray[np.float64]]
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


def read_history(path: str | Path) -> History:
    """Reads a history file; an absent file is an empty history.

    Later lines replace earlier ones of the same step, as after a run was resumed.

    Raises:
        UserError: a line other than the last is no JSON object with a step.
    """
    path = Path(path)
    if not path.is_file():
        return History()
    texts = read_untrusted(path, most=_MOST_BYTES).decode().splitlines()
    training: dict[int, Mapping[str, float]] = {}
    evaluations: dict[int, Mapping[str, float | None]] = {}
    for number, text in enumerate(texts, start=1):
        line = _parse(text)
        if line is None:
            # A run that was killed may have left half of its last line.
            if number == len(texts):
                break
            what = "the line is no JSON object with a step"
            raise UserError(what, where=f"{path}:{number}", fix="remove the line")
        if "evaluation" in line:
            evaluations[line["step"]] = line["evaluation"]
        else:
            training[line["step"]] = line
    return History(
        training=tuple(training[step] for step in sorted(training)),
        evaluations=tuple(sorted(evaluations.items())),
    )


def _parse(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("step"), int) else None


def _series(points: list[tuple[int, float | None]]) -> Series:
    present = [(step, value) for step, value in points if value is not None and np.isfinite(value)]
    steps = np.array([step for step, _ in present], np.int64)
    return steps, np.array([value for _, value in present], np.float64)
