"""Functions that verbs share: training, scoring, traces, lines of a log."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from stillbox.cli.arguments import say_next, show_remarks, warn
from stillbox.cli.bars import progress_bar
from stillbox.devices.announcing import announcing
from stillbox.experiment.resolve import Resolved
from stillbox.experiment.schema import Experiment

if TYPE_CHECKING:
    from stillbox.evaluation.scores import Scores
    from stillbox.profiling.profiler import StepProfiler
    from stillbox.training.watching import Patience


def say(line: str) -> None:
    """Prints a line to standard output and flushes it, for readers of a log."""
    print(line, flush=True)


def batch_profiler(
    profile: str, directory: Path, name: str, say: Callable[[str], None] = say
) -> "StepProfiler":
    """Returns a profiler for the batches of a verb that scores or predicts.

    Args:
        profile: first and last batch of a trace, `0,0` for none.
        directory: folder of the trace.
        name: of the batches in the trace.
        say: called with the place of the trace and its summary.
    """
    from stillbox.profiling.profiler import StepProfiler
    from stillbox.profiling.steps import ProfileSteps

    return StepProfiler(ProfileSteps.parse(profile), directory, say=say, name=name)


def run_training(resolved: Resolved, model_directory: Path, *, profile: str = "0,0") -> int:
    """Trains, prints the reason of the end, and returns the exit code.

    Args:
        resolved: the experiment.
        model_directory: folder of all results.
        profile: first and last step of a trace, `0,0` for none.

    Returns:
        128 plus the signal's number if a signal ended the run early, otherwise 0.
    """
    # Imported here: --help and errors in the arguments need no jax.
    from stillbox.api import train
    from stillbox.experiment.rules import check_trainable
    from stillbox.profiling.steps import ProfileSteps

    steps = ProfileSteps.parse(profile)
    check_trainable(resolved.experiment, resolved.origins)
    show_findings(resolved, model_directory)
    outcome = train(
        resolved.experiment,
        model_directory,
        origins=resolved.origins,
        profile=steps,
        on_warning=warn,
    )
    print(f"{outcome.reason}; {model_directory}, {outcome.seconds:.0f} s")
    if outcome.interrupted:
        return 128 + outcome.interrupted
    scored = resolved.experiment.data.evaluation.paths
    words = ("evaluate", model_directory) if scored else ("predict", model_directory, "IMAGES")
    say_next(*words)
    return 0


def show_findings(resolved: Resolved, model_directory: Path) -> None:
    """Prints the worst of what `stillbox check` finds in an experiment that is to be trained.

    Notes are those of the reader, and are printed before the directory has a run.
    """
    from stillbox.checking.config import check_experiment
    from stillbox.checkpoints.checkpoint import EXPERIMENT
    from stillbox.checkpoints.model_directory import is_model_directory

    # A disk may not answer.
    with announcing(lambda: "checking the experiment and its records"):
        findings = check_experiment(resolved, memory=False).findings
    worst, others = list[str](), list(resolved.warnings)
    for one in findings:
        text = f"{one.where}: {one.what}"
        # What the reader warns of is among the findings too.
        known = {text, text.removeprefix(f"{resolved.source}: ")} & {*resolved.warnings}
        if one.severity != "note" and not known:
            place = worst if one.severity == "error" else others
            place.append(text + (f"\n  fix: {one.fix}" if one.fix else ""))
    show_remarks(
        resolved,
        [*worst, *others],
        notes=not is_model_directory(model_directory),
        also_in=str(model_directory / EXPERIMENT),
    )


def score_checkpoints(
    experiment: Experiment,
    checkpoints: Path,
    output: Path,
    patience: "Patience",
    profile: str,
    *,
    say: Callable[[str], None] = say,
    on_scores: "Callable[[int, Scores], None]" = lambda step, scores: None,
) -> None:
    """Scores the checkpoints of a model directory, see `CheckpointWatcher`, with a progress bar."""
    from stillbox.devices.setup import prepare_process
    from stillbox.training.watching import CheckpointWatcher

    prepare_process()
    profiler = batch_profiler(profile, output, "evaluate", say)
    with progress_bar("images") as progress, profiler:
        CheckpointWatcher(
            experiment,
            checkpoints,
            output,
            patience,
            say,
            on_scores,
            progress=progress,
            observer=profiler,
        ).run()
