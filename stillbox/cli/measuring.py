"""Scores, speeds and sizes of a model."""

import argparse
import sys
from pathlib import Path

from stillbox.cli.arguments import (
    add_bool,
    add_images,
    add_option,
    add_processes,
    add_profile,
    warn,
)
from stillbox.cli.export import image_size
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
# Options that --step all does not have, and why.
_NOT_OF_ALL = {
    "overwrite": "--step all adds to the scores that are there",
    "runtime": "--step all scores checkpoints, and only an export has a runtime",
    "download": "--step all scores the weights of the model directory",
}


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    """`stillbox evaluate`: score a model directory, or a config with weights from a file."""
    add_model(parser, f"best, latest, a number, or {_ALL}")
    about = "folder of the report (default: DIR/evaluation, or evaluation for a CONFIG)"
    parser.add_argument("--output", type=Path, help=about)
    add_bool(parser, "--overwrite", "replace the report of another model in --output")
    add_profile(parser, "batches", "the report's folder")
    add_processes(parser)


def run_evaluate(arguments: argparse.Namespace) -> int:
    """Prints the scores and writes the report."""
    if arguments.step == _ALL and not arguments.weights:
        return _run_all(arguments)

    from stillbox.api import evaluate
    from stillbox.checkpoints.packed import results_folder
    from stillbox.evaluation.limits import limit_lines
    from stillbox.evaluation.scores import scores_table, threshold_text

    results = results_folder(arguments.config, arguments.weights) or Path()
    traced = arguments.output or results / "evaluation"
    profiler = batch_profiler(arguments.profile, traced, "evaluate", say_aside)
    with progress_bar("images") as progress, profiler:
        scored = evaluate(
            **model_arguments(arguments),
            output=arguments.output,
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
    for line in limit_lines(scored.result.limits):
        print(line)
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
    from stillbox.experiment.resolve import changed
    from stillbox.training.watching import WatchPolicy

    for name, problem in _NOT_OF_ALL.items():
        if getattr(arguments, name):
            raise UserError(problem, where=f"--{name}", fix="leave it out")
    directory = Path(arguments.config)
    stored = ModelDirectory.open(directory).read_experiment(say_aside)
    experiment = changed(stored, arguments.overrides)
    output = arguments.output or directory / "evaluation"
    patience = WatchPolicy(existing=True)
    score_checkpoints(experiment, directory, output, patience, arguments.profile, say=say_aside)
    evaluations = read_history(output / HISTORY).evaluations
    print(steps_table(evaluations, experiment.evaluation.best_metric))
    say_next_with_model(arguments, "predict", "IMAGES")
    return 0


def add_benchmark(parser: argparse.ArgumentParser) -> None:
    """`stillbox benchmark`: measure a model in every format and runtime that is installed.

    One table: size, load time, latency at batch 1, AP on the evaluation set, the largest difference
    to the checkpoint. Each runtime has a process of its own. Ends with 1 if a runtime fails,
    otherwise with 0; Ctrl-C prints what is measured so far.
    """
    add_model(parser, "best, latest or a number", runtime=None)
    about = "of saved_model, tflite, tflite_int8, onnx and stablehlo (default: all)"
    parser.add_argument("--formats", default="", metavar="NAME,NAME", help=about)
    about = (
        "folder of exports of the model, such as DIR/export; those that it lacks are written "
        "there (default: all are written elsewhere, and removed)"
    )
    parser.add_argument("--exports", type=Path, metavar="FOLDER", help=about)
    about = "size of the input of new exports (default: as `stillbox export` writes them)"
    parser.add_argument("--image-size", metavar="HEIGHT,WIDTH", help=about)
    _add_data(parser)
    _add_measuring(parser)
    about = (
        "folder for benchmark.json and benchmark.html (default: DIR/benchmark, or benchmark "
        "for a CONFIG)"
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help=about)
    add_bool(parser, "--json", "print JSON instead of a table")


def _add_data(parser: argparse.ArgumentParser) -> None:
    add_images(
        parser, "measure, and calibrate, on these (default: records of evaluation and of training)"
    )
    add_option(parser, "--limit", 0, "most images of the evaluation set to score; 0: all")
    add_bool(parser, "--no-ap", "score nothing")
    about = "least score of the detections of the checkpoint that others are compared with"
    add_option(parser, "--min-score", 0.3, about, "SCORE")


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--warmup", 10, "images before those that are measured, at least")
    add_option(parser, "--repeats", 200, "images that are measured, in at most a minute")
    add_option(parser, "--threads", 0, "processors that each runtime may use; 0: all")


def run_benchmark(arguments: argparse.Namespace) -> int:
    """Prints the table and writes it."""
    from stillbox.exporting.benchmarking.runner import benchmark
    from stillbox.exporting.benchmarking.subjects import BenchmarkSettings

    settings = BenchmarkSettings(
        formats=tuple(filter(None, arguments.formats.split(","))),
        limit=arguments.limit,
        scored=not arguments.no_ap,
        min_score=arguments.min_score,
        warmup=arguments.warmup,
        repeats=arguments.repeats,
        threads=arguments.threads,
        image_size=image_size(arguments.image_size, "--image-size"),
    )
    measured = benchmark(
        **model_arguments(arguments),
        settings=settings,
        images=arguments.images,
        exports=arguments.exports,
        output=arguments.output,
        progress=progress_bar,
        say=say_aside,
    )
    table = measured.table
    sys.stdout.write(table.to_json() if arguments.json else f"{table.render()}\n")
    say_aside(f"page: {measured.page}")
    if not arguments.weights and not arguments.output:
        say_next_with_model(arguments, "evaluate")
    if measured.interrupted:
        return 130
    return int(any(row.state == "failed" for row in table.rows))
