"""What verbs share: progress, arguments that select a model, training, scoring, traces.

Progress is a bar on a terminal and lines elsewhere.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stillbox.cli.arguments import (
    add_bool,
    add_overrides,
    import_words,
    parse_step,
    resolve_config,
    say_next,
    show_remarks,
    warn,
)
from stillbox.cli.overrides import set_words
from stillbox.devices.announcing import announcing, say_aside
from stillbox.errors import UserError, nearest
from stillbox.experiment.resolve import Resolved
from stillbox.experiment.schema import Experiment
from stillbox.printing import printable_output, size_text
from stillbox.training.progress import PrintableConsole, StatusLine, duration_text


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a callback of (done, total) that updates a bar on standard error.

    Without a terminal, long work prints a line with its progress from time to time.
    """
    if not PrintableConsole(stderr=True).is_terminal:
        with _progress_lines(name) as report:
            yield report
        return
    line, began = StatusLine(name), time.monotonic()

    def show(done: int, total: int) -> None:
        rate = done / max(time.monotonic() - began, 1e-3)
        eta = f"ETA {duration_text((total - done) / rate)}" if rate else ""
        line.done, line.total, line.rest = done, total, (eta, f"{rate:.1f}/s")

    # The line has streams of its own, which take colours from what is printed.
    with line.live(PrintableConsole(stderr=True)), printable_output():
        yield show


@contextmanager
def _progress_lines(name: str) -> Iterator[Callable[[int, int], None]]:
    # Emptied by each report: what does not move is not repeated.
    so_far, began = [""], time.monotonic()

    def update(done: int, total: int) -> None:
        rate = done / max(time.monotonic() - began, 1e-3)
        so_far[0] = f"{name}: {done} of {total}, {rate:.1f}/s"

    def describe() -> str:
        text, so_far[0] = so_far[0], ""
        return text

    stream = sys.stderr
    with announcing(describe, say=lambda line: print(line, file=stream, flush=True)):
        yield update


def add_model(
    parser: argparse.ArgumentParser,
    steps: str,
    *,
    exports: bool = True,
    runtime: str | None = "the format's own",
) -> None:
    """Adds DIR|CONFIG, --weights, --step, --set, and --runtime.

    Args:
        parser: of the verb.
        steps: values of --step, for the help.
        exports: whether the verb accepts exports.
        runtime: the default runtime of exports, for the help; None: they run in none or in all.
    """
    parser.add_argument(
        "config",
        metavar="DIR|EXPORT|CONFIG" if exports else "DIR|CONFIG",
        help="a model directory,"
        + (" the folder of an export," if exports else "")
        + " one of its checkpoints, a packed model, or a config for --weights",
    )
    add_weights(parser, "weights for CONFIG")
    parser.add_argument("--step", help=f"checkpoint of DIR: {steps} (default: best)")
    if exports and runtime:
        about = "runtime of EXPORT, such as openvino for ONNX, or fastest, which measures those "
        about += f"that are installed (default: {runtime})"
        parser.add_argument("--runtime", default="", metavar="NAME", help=about)
    add_overrides(parser)


def add_weights(parser: argparse.ArgumentParser, about: str) -> None:
    """Adds --weights, which are `about`, and --download."""
    parser.add_argument(
        "--weights",
        metavar="NAME_OR_FILE",
        help=f"{about}: a name of `stillbox weights list`, or a TF1 or TF2 checkpoint, .npz, "
        ".safetensors, .pth, .pt, .pb, .tflite, model.json of TensorFlow.js, packed model or "
        "model directory",
    )
    add_bool(
        parser, "--download", "download the weights of that name if they are not on this machine"
    )


def fetch_weights(weights: str | None, *, download: bool) -> None:
    """Downloads known weights that are not here, if that is allowed.

    Raises:
        UserError: it is not allowed, there is nothing to download, or nothing has that name.
    """
    from stillbox.experiment.known_weights import known_weights

    row = known_weights().get(weights or "")
    if row is None:
        if download:
            problem = (
                f"there are no weights {weights!r} to download"
                if weights
                else "no weights are named"
            )
            fix = nearest(weights, known_weights()) if weights else "give --weights NAME"
            raise UserError(problem, where="--download", fix=fix)
        return
    # Imported here: most models are directories.
    from stillbox.checkpoints.pretrained import find_weights, get_weights, how_to_get

    if not Path(row.name).exists() and find_weights(row.name) is None:
        if not download:
            size = sum(file.bytes for file in row.files)
            problem = f"the weights {row.name} are not on this machine"
            fix = f"add --download to fetch them ({size_text(size)}), or {how_to_get(row)}"
            raise UserError(problem, where="--weights", fix=fix)
        with progress_bar(row.name) as progress:
            get_weights(row.name, progress=progress)


def model_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of `stillbox.load` and its siblings that select a model.

    Warnings about a config go to standard error.

    Raises:
        UserError: --weights and --step are both given, or --step is no step.
    """
    if arguments.weights and arguments.step:
        fix = "leave --step out, or give the model directory in place of CONFIG and --weights"
        raise UserError("a weights file has no steps to choose from", where="--step", fix=fix)
    fetch_weights(arguments.weights, download=arguments.download)
    common = {"weights": arguments.weights}
    if getattr(arguments, "runtime", ""):
        common["runtime"] = arguments.runtime
    if arguments.weights:
        return {"source": resolve_config(arguments).experiment, **common}
    step = parse_step(arguments.step or "best")
    return {"source": arguments.config, "step": step, "overrides": arguments.overrides, **common}


def say_next_with_model(arguments: argparse.Namespace, verb: str, *words: str) -> None:
    """Prints what can follow with the same model, with the options that select it."""
    selected = [arguments.config]
    for name in ("weights", "step", "runtime"):
        value = getattr(arguments, name, None)
        # A verb for all checkpoints is followed by one for the best.
        selected += [f"--{name}", str(value)] if value and value != "all" else []
    selected += [word for value in arguments.imports for word in ("--import", value)]
    selected += set_words(arguments.overrides)
    say_next(verb, *selected, *words)


if TYPE_CHECKING:
    from stillbox.checking.time_limit import TimeLimit
    from stillbox.checkpoints.remote_directory import ModelPlace
    from stillbox.evaluation.scores import Scores
    from stillbox.profiling.profiler import StepProfiler
    from stillbox.training.watching import WatchPolicy


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
        say: called with the place of the trace.
    """
    from stillbox.profiling.profiler import StepProfiler
    from stillbox.profiling.steps import ProfileSteps

    return StepProfiler(ProfileSteps.parse(profile), directory, say=say, name=name)


def training_place(
    path: "Path | ModelPlace", engine: str = "local"
) -> AbstractContextManager["ModelPlace"]:
    """Opens a model directory, or a URL, for the process that trains into it.

    The workers of Ray open it themselves.
    """
    # Imported here: --help and errors in the arguments need no jax.
    from stillbox.checkpoints.remote_directory import model_place
    from stillbox.devices.job import is_main_process

    return model_place(path, step="latest", writes=engine == "local" and is_main_process())


def run_training(
    resolved: Resolved,
    model_directory: "Path | ModelPlace",
    *,
    profile: str = "0,0",
    engine: Mapping[str, Any] | None = None,
    limit: "TimeLimit | None" = None,
    hint: bool = False,
) -> int:
    """Trains, prints the reason of the end, and returns the exit code.

    Args:
        resolved: the experiment.
        model_directory: folder of all results.
        profile: first and last step of a trace, `0,0` for none.
        engine: `engine`, `workers`, `resources` and `tpu_slice` of `stillbox.train`; None: none
            but this process.
        limit: as of `train_planned`; likewise `hint`.

    Returns:
        128 plus the signal's number if a signal ended the run early, otherwise 0.
    """
    # Imported here: --help and errors in the arguments need no jax.
    from stillbox.api import train_planned
    from stillbox.devices.setup import prepare_process
    from stillbox.experiment.rules import check_trainable
    from stillbox.profiling.steps import ProfileSteps
    from stillbox.scaling.ray_scale import find_workers

    steps = ProfileSteps.parse(profile)
    check_trainable(resolved.experiment, resolved.origins)
    with training_place(model_directory, (engine or {}).get("engine", "local")) as place:
        show_findings(resolved, place.folder)
        prepare_process()
        outcome = train_planned(
            resolved,
            place,
            limit,
            on_ray=find_workers(**engine) if engine else None,
            profile=steps,
            hint=hint,
            say=say_aside,
            on_warning=warn,
        )
    print(f"{outcome.reason}; {place}, {outcome.seconds:.0f} s")
    if outcome.interrupted:
        return 128 + outcome.interrupted
    scored = resolved.experiment.data.evaluation.paths
    words = ("evaluate", str(place)) if scored else ("predict", str(place), "IMAGES")
    say_next(*words, *import_words(resolved.experiment))
    return 0


def show_findings(resolved: Resolved, model_directory: Path) -> None:
    """Prints the worst of what `stillbox check` finds in an experiment that is to be trained.

    Notes come from the reader. They are printed before the directory has a run, and for the
    experiment of the directory itself: some of its settings are not taken.
    """
    from stillbox.checking.config import LimitFinding, check_experiment
    from stillbox.checkpoints.checkpoint import EXPERIMENT
    from stillbox.checkpoints.model_directory import is_model_directory
    from stillbox.evaluation.limits import limit_lines

    # A disk may not answer.
    with announcing(lambda: "checking the experiment and its records"):
        check = check_experiment(resolved, memory=False)
    stored = str(model_directory / EXPERIMENT)
    worst, others = list[str](), list(resolved.warnings)
    for finding in check.findings:
        text = f"{finding.origin}: {finding.what}"
        # What the reader warns of is among the findings too.
        known = {text, text.removeprefix(f"{resolved.source}: ")} & {*resolved.warnings}
        if finding.severity != "note" and not known and not isinstance(finding, LimitFinding):
            place = worst if finding.severity == "error" else others
            place.append(finding.describe({}))
    show_remarks(
        resolved,
        [*worst, *others],
        notes=resolved.source == stored or not is_model_directory(model_directory),
        also_in=stored,
    )
    for line in limit_lines(check.limits):
        say_aside(line)


def score_checkpoints(
    experiment: Experiment,
    checkpoints: Path,
    output: Path,
    patience: "WatchPolicy",
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
