"""`stillbox evaluate`: score a model directory, or a config with weights from a file."""

import argparse
from pathlib import Path

from stillbox.cli.arguments import add_processes, add_profile, warn
from stillbox.cli.running import (
    add_model,
    batch_profiler,
    model_arguments,
    progress_bar,
    say_next_with_model,
    score_checkpoints,
)
from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError

_ALL = "all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_model(parser, f"best, latest, a number, or {_ALL}")
    parser.add_argument(
        "--output",
        type=Path,
        help="folder of the report (default: DIR/evaluation, or evaluation for a CONFIG)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the report of another model in --output"
    )
    add_profile(parser, "batches", "the report's folder")
    add_processes(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the scores and writes the report."""
    if arguments.step == _ALL and not arguments.weights:
        return _run_all(arguments)

    from stillbox.api import evaluate
    from stillbox.checkpoints.packed import results_folder
    from stillbox.evaluation.scores import scores_table, threshold_text

    output = arguments.output or (None if not arguments.weights else Path("evaluation"))
    traced = output or (results_folder(Path(arguments.config)) or Path()) / "evaluation"
    profiler = batch_profiler(arguments.profile, traced, "evaluate", say_aside)
    with progress_bar("images") as progress, profiler:
        scored = evaluate(
            **model_arguments(arguments),
            output=output,
            overwrite=arguments.overwrite,
            progress=progress,
            observer=profiler,
            say=say_aside,
        )
    for warning in scored.warnings:
        warn(warning)
    settings = scored.experiment.evaluation
    table = scores_table(
        scored.result.scores,
        per_category=settings.per_category,
        all_metrics=settings.all_metrics_per_category,
    )
    print(table)
    best = threshold_text(scored.result.analysis.overall)
    folder = scored.report.parent
    print(f"{best}; of each class: {folder}/report.json and csv/classes.csv")
    print(f"report: {scored.report}")
    say_next_with_model(arguments, "predict", "IMAGES")
    return 0


def _run_all(arguments: argparse.Namespace) -> int:
    """Scores every checkpoint without scores; prints a table of all checkpoints."""
    from stillbox.checkpoints.model_directory import ModelDirectory
    from stillbox.evaluation.history import HISTORY, read_history
    from stillbox.evaluation.scores import steps_table
    from stillbox.experiment.resolve import with_overrides
    from stillbox.training.watching import WatchPolicy

    if arguments.overwrite:
        raise UserError(
            "--step all adds to the scores that are there", where="--overwrite", fix="leave it out"
        )
    directory = Path(arguments.config)
    stored = ModelDirectory.open(directory).read_experiment(say_aside)
    experiment = with_overrides(stored, arguments.overrides)
    output = arguments.output or directory / "evaluation"
    patience = WatchPolicy(existing=True)
    score_checkpoints(experiment, directory, output, patience, arguments.profile, say=say_aside)
    evaluations = read_history(output / HISTORY).evaluations
    print(steps_table(evaluations, experiment.evaluation.best_metric))
    say_next_with_model(arguments, "predict", "IMAGES")
    return 0
