"""Measures a model in every runtime, and writes the table as JSON and as a page."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, NamedTuple

from stillbox.checkpoints.packed import results_folder
from stillbox.evaluation.html_page import html_page
from stillbox.evaluation.runtimes import BENCHMARK, FOLDER, RuntimeTable, runtime_section
from stillbox.experiment.schema import Experiment
from stillbox.exporting.benchmarking.runner import Watch, run_benchmark
from stillbox.exporting.benchmarking.subjects import BenchmarkSettings, find_subject
from stillbox.predicting.images import read_image
from stillbox.records.files import make_folder, write_whole

PAGE = "benchmark.html"
"""Name of the page in its folder."""


class Benchmark(NamedTuple):
    """A finished benchmark, or one that Ctrl-C ended."""

    table: RuntimeTable
    page: Path
    interrupted: bool


def benchmark(
    source: str | Path | Experiment,
    *,
    weights: str | Path | None = None,
    step: int | Literal["best", "latest"] = "best",
    overrides: Sequence[str] = (),
    settings: BenchmarkSettings | None = None,
    images: Sequence[str | Path] = (),
    exports: str | Path | None = None,
    output: str | Path | None = None,
    progress: Watch = lambda name: nullcontext(lambda done, total: None),
    say: Callable[[str], None] = lambda line: None,
) -> Benchmark:
    """Measures a model in every runtime that is installed, each in a process of its own.

    Writes `benchmark.json`, which the report of `stillbox.evaluate` shows too, and the page
    `benchmark.html`.

    Args:
        source: a model directory, a packed model, the folder of an export, a folder of exports, or
            a config for `weights`.
        weights: see `stillbox.load`; likewise `step` and `overrides`.
        settings: formats, images and repetitions.
        images: image files to measure and calibrate on; default: records of the evaluation and of
            training.
        exports: folder of exports of the model, which are programs that run with the user's
            rights; those that it lacks are written there. Default: all are written elsewhere and
            removed.
        output: folder of the table; default: `benchmark` in the model directory, or where there is
            none in the working directory.
        progress: shows the images that are done with what its argument names, as a context.
        say: called with a line for each export that is written, and for those that are run.

    Raises:
        UserError: the settings are wrong, or there is no such model. A runtime that is missing or
            fails is a row of the table.
    """
    kept = Path(exports) if exports else None
    settings = (settings or BenchmarkSettings()).checked()
    subject = find_subject(source, weights=weights, step=step, overrides=overrides, kept=kept)
    for export in subject.exports:
        say(f"{export.folder}: an export, a program that runs with your rights")
    pixels = [read_image(file)[0] for file in images]
    found = None if weights or isinstance(source, Experiment) else results_folder(Path(source))
    folder = Path(output) if output else (found or Path()) / FOLDER
    # Before the measuring, which can take minutes.
    make_folder(folder, below=found or folder)
    table, interrupted = run_benchmark(
        subject, settings, images=pixels, kept=kept, progress=progress, say=say
    )
    write_whole(folder / BENCHMARK, table.to_json().encode(), below=folder)
    page = html_page("Runtimes", table.model, [runtime_section(table)])
    return Benchmark(table, write_whole(folder / PAGE, page.encode(), below=folder), interrupted)
