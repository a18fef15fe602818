"""Measures a checkpoint and its exports in every runtime that is installed, one after the other."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from stillbox.checkpoints.packed import results_folder
from stillbox.devices.announcing import announcing
from stillbox.devices.process import own_processors
from stillbox.errors import UserError
from stillbox.evaluation import runtimes
from stillbox.evaluation.evaluator import ImageProgress
from stillbox.evaluation.html_page import html_page
from stillbox.evaluation.results import ImageResult, iou_matrix
from stillbox.evaluation.scoring import cut_short, open_evaluation
from stillbox.experiment.imports import imports_of
from stillbox.experiment.resolve import changed
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import NO_CHANGES, Changes
from stillbox.exporting.backend import runtimes_of
from stillbox.exporting.benchmarking import subjects, tasks
from stillbox.exporting.benchmarking.tasks import Task, TaskError, one_line, run_apart
from stillbox.exporting.images import COMPARED, calibration_images, spread_images
from stillbox.exporting.manifest import is_export
from stillbox.image_kind import ImageKind
from stillbox.inputs.channels import of_kind
from stillbox.inputs.dataset import Dataset
from stillbox.predicting.backend import Pixels
from stillbox.predicting.images import read_image
from stillbox.printing import count_text
from stillbox.records.file_list import claim_files
from stillbox.records.files import make_folder, write_whole
from stillbox.records.scenes import draw_images
from stillbox.references import Parameter

Watch = Callable[[str], AbstractContextManager[ImageProgress]]
"""Shows the progress of the named activity while it is entered."""

_MEASURED = 16
# Share of the processors that others may keep busy without a note.
_BUSY = 0.5
# Least IoU of a detection of the checkpoint and the export's detection in its place.
_LEAST_OVERLAP = 0.5


class _Run:
    """One benchmark, with the rows so far."""

    def __init__(
        self,
        subject: subjects.Subject,
        settings: subjects.BenchmarkSettings,
        images: Sequence[Pixels],
        folder: Path,
        progress: Watch,
        say: Callable[[str], None],
    ) -> None:
        self.subject, self.settings, self.folder = subject, settings, folder
        self._progress, self._say = progress, say
        self._rows: list[runtimes.RuntimeRow] = []
        self._notes = list(subject.notes)
        self._machine = subjects.machine_facts(settings.threads)
        if float(self._machine.get(subjects.LOAD, 0)) > _BUSY * own_processors():
            self._notes.append(
                "other programs kept this machine busy: measure again when it is idle"
            )
        experiment = subject.experiment
        if settings.limit:
            experiment = changed(experiment, {"evaluation.max_examples": settings.limit})
        self._dataset = self._open(experiment)
        self._scored = experiment if self._dataset is not None and settings.scored else None
        self._given = images
        self._images = images or _measured_images(
            self._dataset, subject.experiment.model.image_kind
        )
        if not images and self._dataset is None:
            self._notes.append(f"measured on drawn scenes; {Parameter('images')} gives photographs")
        self._reference: Sequence[ImageResult] = ()
        self._count = 0

    def _open(self, experiment: Experiment) -> Dataset | None:
        """Returns the evaluation set; None, with a note, if it cannot be used."""
        try:
            dataset = open_evaluation(experiment)
        except UserError as error:
            if self.settings.scored:
                self._notes.append(f"nothing is scored: {one_line(error)}")
            return None
        if self.settings.scored:
            self._notes += cut_short(experiment.evaluation, dataset)
        return dataset

    def perform(self) -> None:
        """Measures the checkpoint and all exports."""
        if self.subject.checkpoint is not None:
            self._measure_checkpoint(self.subject.checkpoint)
        for name in self.settings.formats:
            variant = subjects.VARIANTS[name]
            existing = [export for export in self.subject.exports if export.variant == variant]
            for export in existing:
                self._measure_export(export.name, variant, export.folder)
            if not existing and self.subject.makes:
                self._measure_export(name, variant, None)
        for export in self.subject.exports:
            if export.variant not in subjects.VARIANTS.values():
                formats = ", ".join(subjects.VARIANTS)
                self._notes.append(f"{export.folder} is not measured: it is none of {formats}")

    def _measure_checkpoint(self, source: tasks.CheckpointSource) -> None:
        # A refusal is valid for all exports that would be made.
        measure = self._row if self.subject.exports else self._measure
        self._rows.append(measure(runtimes.CHECKPOINT, "jax", source))

    def _measure_export(self, name: str, variant: subjects.Variant, folder: Path | None) -> None:
        """Adds a row for each runtime of an export, which is written first if there is none."""
        missing = {
            runtime: subjects.how_to_install(runtime) for runtime in runtimes_of(variant.format)
        }
        problem = None
        if folder is None and not all(missing.values()):
            folder = self.folder / name
            problem = self._write(name, variant, folder)
        for runtime, command in missing.items():
            row = runtimes.RuntimeRow(name=name, runtime=runtime)
            if command:
                self._rows.append(replace(row, state="not installed", message=command))
            elif problem is not None:
                self._rows.append(replace(row, state=problem.state, message=str(problem)))
            else:
                assert folder is not None
                self._rows.append(self._row(name, runtime, folder))

    def _write(self, name: str, variant: subjects.Variant, folder: Path) -> TaskError | None:
        """Writes an export; returns why there is none."""
        source = self.subject.checkpoint
        assert source is not None
        try:
            images = self._images[:COMPARED]
            if variant.quantize != "none":
                images = calibration_images(self.subject.experiment, self._given)
            if is_export(folder):
                fix = f"remove it, or give another folder with {Parameter('exports')}"
                problem = "an export of another checkpoint is there"
                raise UserError(problem, where=str(folder), fix=fix)
            settings = subjects.export_settings(
                variant, self.subject.experiment, self.settings.image_size
            )
            task = tasks.ExportTask(source=source, folder=folder, settings=settings, images=images)
            self._say(f"{name}: exporting")
            with announcing(lambda: f"{name}: exporting"):
                self._run(task, lambda done, total: None)
        except UserError as error:
            return TaskError(one_line(error))
        except TaskError as error:
            return error
        return None

    def _row(
        self, name: str, runtime: str, source: tasks.CheckpointSource | Path
    ) -> runtimes.RuntimeRow:
        try:
            return self._measure(name, runtime, source)
        except UserError as error:
            return runtimes.RuntimeRow(
                name=name, runtime=runtime, state="failed", message=one_line(error)
            )

    def _measure(
        self, name: str, runtime: str, source: tasks.CheckpointSource | Path
    ) -> runtimes.RuntimeRow:
        task = tasks.MeasureTask(
            source=source,
            runtime=runtime,
            images=self._images,
            experiment=self._scored,
            warmup=self.settings.warmup,
            repeats=self.settings.repeats,
        )
        row = runtimes.RuntimeRow(name=name, runtime=runtime)
        try:
            with self._progress(f"{name}, {runtime}") as progress:
                measured = self._run(task, progress)
        except TaskError as error:
            return replace(row, state=error.state, message=str(error))
        assert measured is not None
        return self._compared(with_figures(row, measured), measured)

    def _run(self, task: Task, progress: ImageProgress) -> tasks.Measured | None:
        imports = imports_of(self.subject.experiment)
        return run_apart(task, progress, imports=imports, threads=self.settings.threads)

    def _compared(self, row: runtimes.RuntimeRow, measured: tasks.Measured) -> runtimes.RuntimeRow:
        """Returns the row with its differences to the checkpoint, and keeps the checkpoint's."""
        self._count = len(measured.results)
        if len(measured.seconds) < self.settings.repeats:
            images = count_text(len(measured.seconds), "image")
            problem = f"{row.name} in {row.runtime}: {images} in a minute"
            self._notes.append(f"{problem}, of {self.settings.repeats}")
        if row.name == runtimes.CHECKPOINT:
            self._reference = measured.results
        elif self._reference:
            return compare(row, self._reference, measured.results, self.settings.min_score)
        return row

    def table(self, *notes: str) -> runtimes.RuntimeTable:
        """Returns the rows so far."""
        precision = self.subject.experiment.evaluation.precision
        if precision != "float32":
            notes = (*notes, f"the checkpoint computes in {precision}, exports in float32")
        return runtimes.RuntimeTable(
            model=self.subject.name,
            images=self._count,
            scored=self._scored is not None,
            machine=self._machine,
            min_score=self.settings.min_score,
            rows=tuple(self._rows),
            notes=(*self._notes, *notes),
        )


def _measured_images(dataset: Dataset | None, kind: ImageKind) -> Sequence[Pixels]:
    """Returns images of the evaluation set, or drawn scenes if there is none."""
    if dataset is not None and (images := spread_images(dataset, _MEASURED)):
        return images
    return [of_kind(image, kind) for image in draw_images(_MEASURED)]


def with_figures(row: runtimes.RuntimeRow, measured: tasks.Measured) -> runtimes.RuntimeRow:
    """Returns a row with the measured figures."""
    median, late = np.percentile(measured.seconds, (50, 99)).tolist()
    return replace(
        row,
        runtime=f"{row.runtime} {measured.version}",
        bytes=measured.bytes,
        load_seconds=measured.load_seconds,
        memory_bytes=measured.memory_bytes,
        p50_ms=median * 1000,
        p99_ms=late * 1000,
        resizing_ms=float(np.median(measured.resizing)) * 1000,
        images_per_second=len(measured.seconds) / sum(measured.seconds),
        runs=len(measured.seconds),
        scores=measured.scores,
    )


def compare(
    row: runtimes.RuntimeRow,
    checkpoint: Sequence[ImageResult],
    artefact: Sequence[ImageResult],
    min_score: float,
) -> runtimes.RuntimeRow:
    """Returns a row with the largest differences of an artefact to its checkpoint.

    Each detection of the checkpoint of at least `min_score`, the best score first, is paired with
    the artefact's detection of its class that overlaps it most and has no pair yet.
    """
    pairs = [
        pair
        for theirs, mine in zip(checkpoint, artefact, strict=True)
        for pair in _pairs(theirs.at_least(min_score), mine)
    ]
    paired = [pair for pair in pairs if pair is not None]
    return replace(
        row,
        compared=len(pairs),
        found=len(paired),
        box_difference=max((box for box, _ in paired), default=None),
        score_difference=max((score for _, score in paired), default=None),
    )


def _pairs(theirs: ImageResult, mine: ImageResult) -> Iterator[tuple[float, float] | None]:
    """Yields the differences of boxes and scores of each of their detections; None: not found."""
    overlaps = iou_matrix(theirs.boxes, mine.boxes)
    overlaps[theirs.class_ids[:, None] != mine.class_ids] = 0.0
    for row, overlap in enumerate(overlaps):
        if not len(overlap) or overlap.max() < _LEAST_OVERLAP:
            yield None
            continue
        column = int(overlap.argmax())
        overlaps[:, column] = 0.0
        yield (
            float(np.abs(theirs.boxes[row] - mine.boxes[column]).max()),
            float(abs(theirs.scores[row] - mine.scores[column])),
        )


PAGE = "benchmark.html"


class Benchmark(NamedTuple):
    """A finished benchmark, or one that Ctrl-C ended."""

    table: runtimes.RuntimeTable
    page: Path
    interrupted: bool


def benchmark(
    source: str | Path | Experiment,
    *,
    weights: str | Path | None = None,
    step: int | Literal["best", "latest"] = "best",
    overrides: Changes = NO_CHANGES,
    settings: subjects.BenchmarkSettings | None = None,
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
    settings = (settings or subjects.BenchmarkSettings()).checked()
    subject = subjects.find_subject(
        source, weights=weights, step=step, overrides=overrides, kept=kept
    )
    for export in subject.exports:
        say(f"{export.folder}: an export, a program that runs with your rights")
    kind = subject.experiment.model.image_kind
    pixels = [read_image(file, kind)[0] for file in images]
    results = results_folder(source, weights)
    folder = Path(output) if output else (results or Path()) / runtimes.FOLDER
    # Before the measuring, which can take minutes.
    make_folder(folder, below=results or folder)
    claim_files(folder, (runtimes.BENCHMARK, PAGE))
    with tempfile.TemporaryDirectory(prefix="stillbox-benchmark-") as scratch:
        run = _Run(subject, settings, pixels, kept or Path(scratch), progress, say)
        interrupted = False
        try:
            run.perform()
        except KeyboardInterrupt:
            interrupted = True
    return _write(
        run.table(*["stopped before all was measured"] * interrupted), folder, interrupted
    )


def _write(table: runtimes.RuntimeTable, folder: Path, interrupted: bool) -> Benchmark:
    write_whole(folder / runtimes.BENCHMARK, table.to_json().encode(), below=folder)
    page = html_page("Runtimes", table.model, [runtimes.runtime_section(table)])
    return Benchmark(table, write_whole(folder / PAGE, page.encode(), below=folder), interrupted)
