"""`stillbox benchmark`: measure a model in every format and runtime that is installed.

One table: size, load time, latency at batch 1, AP on the evaluation set, the largest difference to
the checkpoint. Each runtime has a process of its own. Ends with 1 if a runtime fails, otherwise
with 0; Ctrl-C prints what is measured so far.
"""

import argparse
import sys
from pathlib import Path

from stillbox.cli.arguments import add_option
from stillbox.cli.export import image_size
from stillbox.cli.running import add_model, model_arguments, progress_bar, say_next_with_model
from stillbox.devices.announcing import say_aside


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_model(parser, "best, latest or a number", runtimes=False)
    parser.add_argument(
        "--formats",
        default="",
        metavar="NAME,NAME",
        help="of saved_model, tflite, tflite_int8, onnx and stablehlo (default: all)",
    )
    parser.add_argument(
        "--exports",
        type=Path,
        metavar="FOLDER",
        help="folder of exports of the model, such as DIR/export; those that it lacks are written "
        "there (default: all are written elsewhere, and removed)",
    )
    parser.add_argument(
        "--image-size",
        metavar="HEIGHT,WIDTH",
        help="size of the input of new exports (default: as `stillbox export` writes them)",
    )
    _add_data(parser)
    _add_measuring(parser)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="folder for benchmark.json and benchmark.html (default: DIR/benchmark, or benchmark "
        "for a CONFIG)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--images",
        nargs="+",
        default=(),
        type=Path,
        metavar="IMAGE",
        help="measure, and calibrate, on these (default: records of evaluation and of training)",
    )
    add_option(parser, "--limit", 0, "most images of the evaluation set to score; 0: all")
    parser.add_argument("--no-ap", action="store_true", help="score nothing")
    about = "least score of the detections of the checkpoint that others are compared with"
    add_option(parser, "--min-score", 0.3, about, "SCORE")


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--warmup", 10, "images before those that are measured, at least")
    add_option(parser, "--repeats", 200, "images that are measured, in at most a minute")
    add_option(parser, "--threads", 0, "processors that each runtime may use; 0: all")


def run(arguments: argparse.Namespace) -> int:
    """Prints the table and writes it."""
    from stillbox.exporting.benchmarking.benchmark import benchmark
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
