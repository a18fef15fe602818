"""What the verbs that train have in common."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stillbox.experiment.resolve import Resolved

if TYPE_CHECKING:
    from collections.abc import Callable

    from stillbox.profiling.profiler import StepProfiler


def say(line: str) -> None:
    """Prints a line at once: whoever reads a log wants to know what is waited for."""
    print(line, flush=True)


def say_aside(line: str) -> None:
    """Prints a line at once to standard error, beside what a command answers."""
    # Looked up at each call: a bar on the terminal puts itself in the stream's place.
    print(line, file=sys.stderr, flush=True)


def batch_profiler(
    profile: str, directory: Path, name: str, say: "Callable[[str], None]" = say
) -> "StepProfiler":
    """Returns what marks the batches of a verb that scores or predicts, and traces some of them.

    Args:
        profile: first and last batch of a trace, `0,0` for none.
        directory: where the trace goes.
        name: what the marks are called.
        say: told where the trace lies and what it says.
    """
    from stillbox.profiling.profiler import StepProfiler
    from stillbox.profiling.steps import ProfileSteps

    return StepProfiler(ProfileSteps.parse(profile), directory, say=say, name=name)


def run_training(resolved: Resolved, model_directory: Path, *, profile: str = "0,0") -> int:
    """Trains and says how it ended; returns 128 plus the signal's number where one ended it early.

    Args:
        resolved: what to train.
        model_directory: where everything goes.
        profile: first and last step of a trace, `0,0` for none.
    """
    # Here, so that --help and what is refused before do not wait for jax.
    from stillbox.api import train
    from stillbox.profiling.steps import ProfileSteps

    steps = ProfileSteps.parse(profile)
    outcome = train(resolved.experiment, model_directory, origins=resolved.origins, profile=steps)
    print(f"{outcome.reason}; {model_directory}, {outcome.seconds:.0f} s")
    return 128 + outcome.interrupted if outcome.interrupted else 0
