"""`stillbox evaluate`: score a model directory, or a config with weights from a file."""

import argparse
import sys
from pathlib import Path

from stillbox.cli.arguments import add_processes, add_profile
from stillbox.cli.bars import progress_bar
from stillbox.cli.models import add_model, model_arguments
from stillbox.cli.running import batch_profiler, say_aside

_ALL = "all"


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "evaluate", help="score a model and write a report", description=__doc__
    )
    add_model(parser, f"best, latest, a number, or {_ALL}")
    parser.add_argument(
        "--output",
        type=Path,
        help="folder of the report (default: DIR/evaluation, or evaluation for a CONFIG)",
    )
    add_profile(parser, "batches", "the report's folder")
    add_processes(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the scores and writes the report."""
    if arguments.step == _ALL and not arguments.weights:
        return _run_all(arguments)

    from stillbox.api import evaluate
    from stillbox.evaluation.table import scores_table

    output = arguments.output or (None if not arguments.weights else Path("evaluation"))
    traced = output or Path(arguments.config) / "evaluation"
    profiler = batch_profiler(arguments.profile, traced, "evaluate", say_aside)
    with progress_bar("images") as progress, profiler:
        scored = evaluate(
            **model_arguments(arguments),
            output=output,
            progress=progress,
            observer=profiler,
            say=say_aside,
        )
    for warning in scored.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    scores = scored.result.scores
    settings = scored.experiment.evaluation
    print(
        scores_table(
            scores,
            per_category=settings.per_category,
            all_metrics=settings.all_metrics_per_category,
        )
    )
    print(f"report: {scored.report}")
    return 0


def _run_all(arguments: argparse.Namespace) -> int:
    """Scores every checkpoint that is not scored yet; prints a table of all of them."""
    from stillbox.checkpoints.model_directory import ModelDirectory
    from stillbox.devices.setup import prepare_process
    from stillbox.evaluation.history import HISTORY, read_history
    from stillbox.evaluation.table import steps_table
    from stillbox.experiment.resolve import with_overrides
    from stillbox.experiment.yaml_config import from_yaml
    from stillbox.training.watching import CheckpointWatcher, Patience

    prepare_process()
    directory = Path(arguments.config)
    stored = from_yaml(ModelDirectory.open(directory).experiment, str(directory))
    experiment = with_overrides(stored, arguments.overrides)
    output = arguments.output or directory / "evaluation"
    profiler = batch_profiler(arguments.profile, output, "evaluate", say_aside)
    with progress_bar("images") as progress, profiler:
        CheckpointWatcher(
            experiment,
            directory,
            output,
            Patience(existing=True),
            say_aside,
            progress=progress,
            observer=profiler,
        ).run()
    evaluations = read_history(output / HISTORY).evaluations
    print(steps_table(evaluations, experiment.evaluation.best_metric))
    return 0
