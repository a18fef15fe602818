"""The tasks of a benchmark, to write an export or to measure one runtime, each in its own process.

A runtime that ends its process does not end the table.
"""

import contextlib
import gc
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import packages_distributions, version
from multiprocessing import Pipe
from pathlib import Path
from typing import IO

import jax

from stillbox.checkpoints.importer import load_weights
from stillbox.checkpoints.trained import TrainedModel, load_trained
from stillbox.devices.process import keep_freed_memory
from stillbox.errors import UserError
from stillbox.evaluation.evaluator import ImageProgress
from stillbox.evaluation.results import ImageResult
from stillbox.evaluation.runtimes import State
from stillbox.evaluation.scoring import open_evaluation
from stillbox.experiment.imports import import_parts
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import Changes
from stillbox.exporting.backend import RUNTIME_PACKAGES, ExportBackend
from stillbox.exporting.export import export_model
from stillbox.exporting.onnx.format import import_openvino
from stillbox.exporting.settings import ExportSettings, Format
from stillbox.extras import NotInstalledError
from stillbox.predicting.backend import Backend, Pixels
from stillbox.predicting.checkpoint_backend import CheckpointBackend
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.scoring import score_backend
from stillbox.records.parallel import how_it_ended, start_process
from stillbox.references import Command
from stillbox.system import Connection, fewer_processors, peak_bytes, resident_bytes

# Limits of the time and least number of the measured images: large detectors take a second for an
# image.
_MOST_SECONDS, _LEAST_RUNS = 60.0, 20

# An export has other files too: its experiment, a page for browsers, a model without suppression.
_READ: dict[Format, tuple[str, ...]] = {
    # With the signature `tpu` there is no folder around it.
    "saved_model": ("saved_model", "saved_model.pb", "variables"),
    "frozen_graph": ("frozen_inference_graph.pb",),
    "stablehlo": ("model.stablehlo",),
    "tflite": ("model.tflite",),
    "onnx": ("model.onnx",),
}


@dataclass(frozen=True, kw_only=True)
class CheckpointSource:
    """Where a model's weights are."""

    path: Path
    """A model directory, one of its checkpoints or a packed model; a file of weights otherwise."""
    step: int | None = None
    """Of the checkpoint; None for a file of weights."""
    experiment: Experiment | None = None
    """The detector that a file of weights is for; None: the one stored with the model."""
    overrides: Changes = field(default_factory=dict)
    """Changes of the stored experiment."""

    def load(self) -> TrainedModel:
        """Loads the model.

        Raises:
            UserError: there is no such model, or its weights do not fit.
        """
        if self.experiment is not None:
            return load_weights(self.experiment, str(self.path)).named_by_config()
        assert self.step is not None
        model = load_trained(self.path, step=self.step, overrides=self.overrides)
        return model.named_by_config()


@dataclass(frozen=True, kw_only=True)
class ExportTask:
    """Writes an export."""

    source: CheckpointSource
    folder: Path
    """The folder appears when the export has been compared with its checkpoint."""
    settings: ExportSettings
    images: Sequence[Pixels]
    """`[h, w, C]` each: compared, and calibrated, on these."""

    def perform(self, progress: ImageProgress) -> None:
        """Writes the export.

        Raises:
            UserError: see `export_model`.
        """
        del progress  # the exporter has stages, and no count
        export_model(self.source.load(), self.folder, self.settings, self.images)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The figures of one runtime; for their meaning see `RuntimeRow`."""

    version: str
    """Of the runtime, and the device if that is no CPU."""
    bytes: int
    load_seconds: float
    memory_bytes: int | None
    seconds: Sequence[float]
    """Of each measured image, from pixels to detections."""
    resizing: Sequence[float]
    """The part of each before the runtime."""
    scores: dict[str, float | None]
    """Empty if there is nothing to score on."""
    results: Sequence[ImageResult]
    """Detections in the images of the evaluation set, or else in the task's images."""


@dataclass(frozen=True, kw_only=True)
class MeasureTask:
    """Measures a checkpoint, or an export in one of its runtimes."""

    source: CheckpointSource | Path
    """The checkpoint, or the folder of the export."""
    runtime: str
    images: Sequence[Pixels]
    """`[h, w, C]` each: measured on these."""
    experiment: Experiment | None
    """Names the records to score; None: there are none."""
    warmup: int
    repeats: int

    def perform(self, progress: ImageProgress) -> Measured:
        """Measures the model; `progress` is called with the number of finished images.

        Raises:
            UserError: the runtime is not installed or refuses the model, or the experiment's
                records cannot be scored.
        """
        package, _ = RUNTIME_PACKAGES[self.runtime]
        # openvino is not imported by its name, because its telemetry would send a report.
        import_openvino() if package == "openvino" else import_module(package)
        before, began = resident_bytes(), time.perf_counter()
        backend = self._open()
        _refuse_batches(backend)
        _detect(backend, self.images[0])
        loading = time.perf_counter() - began
        taken = list(self._latencies(backend, progress))
        peak = peak_bytes()
        scores, results = self._detections(backend, progress)
        return Measured(
            version=_version(package),
            bytes=model_bytes(backend),
            load_seconds=loading,
            memory_bytes=None if before is None else max(peak - before, 0),
            seconds=[whole for whole, _ in taken],
            resizing=[part for _, part in taken],
            scores=scores,
            results=results,
        )

    def _open(self) -> Backend:
        if isinstance(self.source, Path):
            return ExportBackend(self.source, self.runtime)
        return CheckpointBackend(self.source.load())

    def _latencies(
        self, backend: Backend, progress: ImageProgress
    ) -> Iterator[tuple[float, float]]:
        """Yields the seconds of each measured image, and of them those before the runtime."""
        # Loaded objects stay, and garbage collections skip them.
        gc.collect()
        gc.freeze()
        # Runtimes that take any size prepare each new one.
        for number in range(max(self.warmup, len(self.images))):
            _detect(backend, self.images[number % len(self.images)])
        end = time.perf_counter() + _MOST_SECONDS
        for number in range(self.repeats):
            began = time.perf_counter()
            if began > end and number >= _LEAST_RUNS:
                return
            prepared = backend.prepare(self.images[number % len(self.images)])
            resized = time.perf_counter()
            backend.run([prepared])
            yield time.perf_counter() - began, resized - began
            progress(number + 1, self.repeats)

    def _detections(
        self, backend: Backend, progress: ImageProgress
    ) -> tuple[dict[str, float | None], Sequence[ImageResult]]:
        """Returns scores, none without an evaluation set, and the detections in each image."""
        if self.experiment is None:
            results = [_result(backend, *numbered) for numbered in enumerate(self.images)]
            return {}, results
        dataset = open_evaluation(self.experiment)
        scored = score_backend(backend, self.experiment, dataset, progress)
        return scored.scores.summary, scored.results


def _detect(backend: Backend, image: Pixels) -> None:
    backend.run([backend.prepare(image)])


def _result(backend: Backend, number: int, image: Pixels) -> ImageResult:
    (detections,) = Predictor(backend).run([backend.prepare(image)])
    return ImageResult(
        image_id=str(number),
        boxes=detections.boxes,
        scores=detections.scores,
        class_ids=detections.class_ids,
    )


def _refuse_batches(backend: Backend) -> None:
    sizes = backend.batch_sizes
    if sizes is not None and 1 not in sizes:
        problem = f"the export takes batches of {sizes[0]}, and a latency is that of one image"
        fix = f"{Command('export', batch_size='0')} writes one for any number of images"
        raise UserError(problem, where=backend.source, fix=fix)


def model_bytes(backend: Backend) -> int:
    """Returns the size of weights, or of the files of an export that its runtime reads."""
    if isinstance(backend, CheckpointBackend):
        model = backend.model
        return sum(
            array.nbytes for group in (model.params, model.stats) for array in group.values()
        )
    assert isinstance(backend, ExportBackend)
    return artefact_bytes(backend.folder, backend.manifest.settings.format)


def artefact_bytes(folder: Path, form: Format) -> int:
    """Returns the size of the files that a runtime reads, without others of an export."""
    roots = [folder / name for name in _READ[form]]
    parts = [part for root in roots for part in (root, *root.rglob("*"))]
    return sum(part.stat().st_size for part in parts if part.is_file())


def _version(package: str) -> str:
    """Returns the version of a runtime; with the device for jax, unless it is a CPU."""
    distributions = packages_distributions().get(package, [package])
    device = jax.devices()[0]
    on = f" on {device.device_kind}" if package == "jax" and device.platform != "cpu" else ""
    return version(distributions[0]) + on


Task = ExportTask | MeasureTask


class TaskError(Exception):
    """A task has no result. The text is a sentence with the remedy; `state` is for the row."""

    def __init__(self, text: str, state: State = "failed") -> None:
        self.state = state
        super().__init__(text)


def run_apart(
    task: Task, progress: ImageProgress, *, imports: tuple[str, ...] = (), threads: int = 0
) -> Measured | None:
    """Performs a task in a new process and returns its result.

    Args:
        imports: files and modules of parts, as for `import_parts`.
        threads: processors that the process may use; 0: as many as this process.

    Raises:
        UserError: the task raises it.
        TaskError: a package is missing, the task fails, or its process ends before it is done.
    """
    ours, theirs = Pipe()
    # Runtimes write to the streams of the process, past Python's.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log, ours:
        with theirs, fewer_processors(threads):
            process = start_process(__name__, theirs, log=log)
        try:
            with contextlib.suppress(EOFError, OSError):  # it has ended
                ours.send(imports)
                ours.send(task)
                return _received(ours, progress)
            raise TaskError(_end(process.wait(), log))
        finally:
            process.kill()
            process.wait()


def _received(connection: Connection, progress: ImageProgress) -> Measured | None:
    while True:
        kind, content = connection.recv()
        if kind == "progress":
            progress(*content)
        elif kind == "result":
            result: Measured | None = content
            return result
        elif kind == "refused":
            raise content
        else:
            raise TaskError(content, kind)


def _end(code: int, log: IO[str]) -> str:
    """Returns a sentence about a process that ended before it had a result."""
    log.seek(0)
    last = next((line.strip() for line in reversed(log.readlines()) if line.strip()), "")
    how = f"its process {how_it_ended(code)}"
    return f"{how}; its last line: {last}" if last else how


def one_line(error: UserError) -> str:
    """Returns an error of the user as one line, its remedy behind it."""
    text = ": ".join(filter(None, (error.where, error.what)))
    return " ".join(f"{text}; {error.fix}".split() if error.fix else text.split())


def _serve(connection: Connection) -> None:
    """Performs the task that comes through a connection, and answers."""
    # Loading is measured: a cached program would take no time.
    jax.config.update("jax_enable_compilation_cache", False)
    keep_freed_memory()
    try:
        # The task may hold an experiment with parts of the user's.
        import_parts(connection.recv())
        task: Task = connection.recv()
        result = task.perform(lambda *done: connection.send(("progress", done)))
        connection.send(("result", result))
    except NotInstalledError as error:
        connection.send(("not installed", error.fix))
    except UserError as error:
        connection.send(("refused", error))
    # The runtimes' exceptions differ.
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        connection.send(("failed", text))


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
