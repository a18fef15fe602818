"""The parts of a run's start: data, compilation, model directory, and what is said of them."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from stillbox.checkpoints.files import DirectoryLock
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.remote_directory import ModelPlace
from stillbox.devices import job
from stillbox.devices.announcing import announcing, waiting_for
from stillbox.devices.compiling import Compilation
from stillbox.devices.free_memory import refuse_program_shortage
from stillbox.devices.process import input_threads, keep_freed_memory
from stillbox.devices.setup import versions
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.rules import frozen_fresh_statistics
from stillbox.experiment.yaml_config import store_paths, to_yaml
from stillbox.inputs.dataset import Dataset
from stillbox.inputs.loader import TrainLoader, open_train_loader
from stillbox.printing import count_text, sides_text, size_text
from stillbox.references import Setting
from stillbox.training.program import TrainProgram
from stillbox.training.start import Start, replicas_before


def open_data(experiment: schema.Experiment) -> TrainLoader:
    """Opens the training records for this process."""
    data = experiment.data
    with waiting_for("the training records, and their index"):
        return open_train_loader(
            experiment,
            workers=input_threads(data.workers, data.processes),
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            prepare=keep_freed_memory,
        )


def compile_step(program: TrainProgram) -> Compilation:
    """Traces a train step, and compiles it in another thread."""
    with announcing(lambda: "tracing the train step"):
        return Compilation(program.lower(), "the train step")


def check_memory(steps: Sequence[jax.stages.Compiled]) -> str:
    """Returns a line with the memory of the largest step.

    Raises:
        UserError: it needs more memory than is free.
    """
    analyses = [analysis for step in steps if (analysis := step.memory_analysis()) is not None]
    if not analyses:
        return "compiled"
    # The programs of all input sizes run one after the other, and share their memory.
    refuse_program_shortage(
        max(analysis.temp_size_in_bytes for analysis in analyses),
        "the compiled train step",
        where="train.batch_size",
        fix="raise train.accumulation_steps, lower train.batch_size or the size of model.resizer, "
        "or end other programs; on a CPU, bfloat16 takes as much memory as float32",
    )
    peak = max(
        analysis.temp_size_in_bytes + analysis.argument_size_in_bytes for analysis in analyses
    )
    return f"compiled; the step needs {size_text(peak)} on each device"


def open_directory(
    place: ModelPlace,
    experiment: schema.Experiment,
    dataset: Dataset,
    first: int,
    lock: DirectoryLock | None,
) -> ModelDirectory:
    """Creates or opens the model directory; its newest checkpoint belongs to step `first`."""
    with job.main_process_first():
        directory = ModelDirectory.create(
            place.folder,
            experiment=to_yaml(store_paths(experiment, place.folder)),
            label_map=dataset.label_map.to_text(),
            versions=versions(),
            keep=experiment.train.keep_checkpoints,
            writes=job.is_main_process(),
            lock=lock,
            remote=place.remote,
        )
    if (directory.latest_step() or 0) != first:
        directory.close()
        problem = "another run wrote a checkpoint while this one was starting"
        raise UserError(problem, where=str(place), fix="run this again")
    return directory


def describe_run(
    experiment: schema.Experiment,
    place: ModelPlace,
    dataset: Dataset,
    start: Start,
    programs: Sequence[TrainProgram],
) -> Iterator[str]:
    """Yields the lines about a run before its first step."""
    yield start.decision.replace(str(place.folder), str(place))
    yield from (f"note: {note}" for note in start.notes)
    weightless = frozen_fresh_statistics(experiment)
    if weightless is not None and not int(start.state.step):
        yield f"warning: {weightless.describe({})}"
    program, count = programs[0], jax.process_count()
    mesh = program.mesh
    parameters = sum(start.state.params[path].size for path in program.trainable)
    parts = experiment.train.accumulation_steps
    pieces = f" in {parts} micro-batches" if parts > 1 else ""
    yield (
        f"{_amount_of(dataset)}, "
        f"batch {experiment.train.batch_size}{pieces} on "
        f"{count_text(mesh.size, mesh.devices.flat[0].platform + ' device')}"
        f"{f' of {count} processes' * (count > 1)}, {parameters:,} trainable parameters"
    )
    if len(programs) > 1:
        sizes = ", ".join(sides_text(program.input_size) for program in programs)
        yield f"input sizes {sizes}: one of them for each step, each compiled once"
    before = replicas_before(place.folder, int(start.state.step), experiment)
    if before not in (None, program.replicas):
        yield (
            f"warning: {count_text(before, 'replica')} before, now {program.replicas}; "
            f"{Setting('devices.replicas', before)} keeps what a step computes"
        )
    if dataset.cache is not None:
        yield dataset.cache.promise()


def _amount_of(dataset: Dataset) -> str:
    images = count_text(len(dataset.source), "training image")
    if dataset.tiles is None:
        return images
    return f"{images} in {count_text(len(dataset), 'tile')} of {dataset.tiles.settings.side} pixels"


def metadata_of(
    experiment: schema.Experiment, dataset: Dataset, step: int, replicas: int
) -> dict[str, Any]:
    """Returns what a checkpoint stores beside its arrays."""
    return {
        "step": step,
        "replicas": replicas,
        "loader": {
            "next_step": step,
            "seed": experiment.data.seed,
            "records": len(dataset.source),
            "files": dataset.source.fingerprint(),
        },
    }
