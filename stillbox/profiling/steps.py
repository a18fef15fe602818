"""The steps of a run that are traced."""

from dataclasses import dataclass
from pathlib import Path

from stillbox import numerals
from stillbox.checkpoints.model_directory import ModelDirectory, is_model_directory
from stillbox.errors import UserError
from stillbox.references import Parameter

_WHERE = str(Parameter("profile"))


@dataclass(frozen=True)
class ProfileSteps:
    """The first and the last step of a trace, counted from 1, the first step of this run.

    Raises:
        UserError: there are no such steps.
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.last:
            problem = f"there are no steps from {self.first} to {self.last}"
            fix = "count from 1 and give the first step first, for example 50,53"
            raise UserError(problem, where=_WHERE, fix=fix)

    @classmethod
    def parse(cls, text: str) -> "ProfileSteps | None":
        """Reads `FIRST,LAST`; `0,0` traces nothing.

        Raises:
            UserError: it is not two numbers, or there are no such steps.
        """
        numbers = [numerals.count(part) for part in text.split(",")]
        if len(numbers) != 2 or None in numbers:
            problem = f"{text!r} is not the first and the last step of a trace"
            fix = f"give both, for example {text},{text}" if text.isdecimal() else "50,53"
            raise UserError(problem, where=_WHERE, fix=fix)
        first, last = (number or 0 for number in numbers)
        return cls(first, last) if first or last else None


def refuse_steps_beyond_the_end(
    steps: ProfileSteps | None, model_directory: Path, stop_at: int | None
) -> None:
    """Refuses a trace of steps beyond the end of a run, `stop_at`; None: it has no end.

    Raises:
        UserError: the run, from the last checkpoint of its directory on, has fewer steps.
    """
    if steps is None or stop_at is None:
        return
    done = 0
    if is_model_directory(model_directory):
        done = ModelDirectory.open(model_directory).latest_step() or 0
    left = max(stop_at - done, 0)
    if steps.last <= left:
        return
    resumed = f", because it resumes at step {done} of {stop_at}" if done else ""
    problem = f"steps {steps.first} to {steps.last} cannot be traced: this run has {left}{resumed}"
    fix = f"{Parameter('profile', f'{max(left - 3, 1)},{left}')}" if left else "raise train.steps"
    raise UserError(problem, where=_WHERE, fix=fix)
