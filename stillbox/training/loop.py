"""The training loop, from an experiment to a model directory."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

import jax

from stillbox.checkpoints.files import DirectoryLock
from stillbox.checkpoints.model_directory import ModelDirectory, locked_directory
from stillbox.checkpoints.remote_directory import ModelPlace
from stillbox.devices import job
from stillbox.devices.announcing import StallReporter, announcing, waiting_for
from stillbox.devices.compiling import Compilation
from stillbox.devices.mesh import build_mesh
from stillbox.devices.process import input_threads, keep_freed_memory
from stillbox.devices.setup import PeakMemory, versions
from stillbox.errors import UserError
from stillbox.evaluation.free_memory import refuse_program_shortage
from stillbox.experiment import schema
from stillbox.experiment.rules import check_trainable, frozen_fresh_statistics
from stillbox.experiment.yaml_config import store_paths, to_yaml
from stillbox.inputs.dataset import Dataset
from stillbox.inputs.loader import DevicePrefetcher, TrainLoader, open_train_loader
from stillbox.printing import count_text, sides_text, size_text
from stillbox.profiling.profiler import StepProfiler
from stillbox.profiling.steps import ProfileSteps, refuse_steps_beyond_the_end
from stillbox.training.distillation import TEACHER, open_teacher, without_teacher
from stillbox.training.loggers import Logger, require_loggers
from stillbox.training.periodic import PeriodicEvaluation, draw_inputs
from stillbox.training.program import TrainProgram, train_programs
from stillbox.training.progress import RunProgress
from stillbox.training.reporting import StepReport, Waits, forecast
from stillbox.training.signals import StopRequest
from stillbox.training.start import (
    Start,
    find_previous,
    recorded_teacher,
    replicas_before,
    require_weights,
    start_run,
)
from stillbox.training.step import MetricsGuard, TrainState
from stillbox.training.summaries import Summaries

_SHARED = "give all processes a --model-dir that they share, on a network disk for example"
_OTHERS = "the other processes (the slow one reports the reason)"


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    """Updates done."""
    reason: str
    """Why it ended, one sentence."""
    scores: Mapping[str, float | None] | None
    """Scores of the last evaluation, if there was one."""
    interrupted: int = 0
    """Number of the signal that ended it early, 0 if none."""
    seconds: float = 0.0
    """Wall-clock time from call to end."""
    seconds_to_first_step: float = 0.0
    """Wall-clock time from call to the end of the first step."""
    images: int = 0
    """Images of its steps, repeated ones included."""
    images_per_second: float = 0.0
    """Images per second of training, without start, compilation and evaluations."""
    peak_memory: PeakMemory | None = None
    """Greatest memory use; None if there was no step to do."""


def train(
    experiment: schema.Experiment,
    model_directory: Path | ModelPlace,
    origins: Mapping[str, str] | None = None,
    *,
    profile: ProfileSteps | None = None,
    loggers: Sequence[Logger] = (),
) -> Outcome:
    """Trains an experiment into a new folder, or goes on with the run in it.

    Args:
        origins: where fields were given, for messages.
        profile: steps of this run that are traced.
        loggers: besides those of the experiment, in the first process.

    Raises:
        UserError: experiment, data or directory cannot be used; nothing has been written then.
        NonFiniteLossError: the loss is not a number; the last checkpoint is good.
        RunInterrupted: a signal came during compilation or evaluation.
    """
    began = time.monotonic()
    check_trainable(experiment, origins or {})
    require_loggers(experiment.train)

    # ---- data: first, because it is most often wrong and fastest to check -----------------------
    loader = _open_data(experiment)
    place = (
        model_directory if isinstance(model_directory, ModelPlace) else ModelPlace(model_directory)
    )
    with locked_directory(place.folder, writes=job.is_main_process()) as lock:
        return _train(experiment, place, loader, lock, profile, loggers, began)


def _train(
    experiment: schema.Experiment,
    place: ModelPlace,
    loader: TrainLoader,
    lock: DirectoryLock | None,
    profile: ProfileSteps | None,
    loggers: Sequence[Logger],
    began: float,
) -> Outcome:
    """Trains on opened data, in a directory that is locked if it exists."""
    settings, dataset, model_directory = experiment.train, loader.dataset, place.folder
    stop_at = min(filter(None, (settings.steps, loader.steps)), default=None)
    refuse_steps_beyond_the_end(profile, model_directory, stop_at)

    # ---- run to resume, evaluation: refused before anything is compiled -------------------------
    with place.reading():
        previous = find_previous(experiment, place, dataset)
    first = previous.step if previous else 0
    job.require_same("model directory", f"step {first}", fix=_SHARED)
    job.require_same(
        "experiment",
        to_yaml(store_paths(experiment, model_directory)),
        fix="give all processes the same",
    )
    finished = stop_at is not None and first >= stop_at
    # A finished run needs no teacher, whose folder may be gone.
    learning = without_teacher(experiment) if finished else experiment
    teacher = open_teacher(learning, recorded_teacher(previous))
    job.require_same(
        "teacher", str(teacher and teacher.identity), fix="give all processes the same"
    )
    evaluation = PeriodicEvaluation(experiment, dataset.label_map, stop_at)
    if previous is None:
        require_weights(experiment)

    # ---- programs: XLA compiles while the weights are read --------------------------------------
    parts = settings.accumulation_steps
    mesh = build_mesh(settings.batch_size, experiment.devices, parts=parts)
    programs = train_programs(learning, mesh, teacher)
    program, compilations = programs[0], [] if finished else list(map(_compile, programs))

    # ---- model and state: resume, fine-tune or from scratch -------------------------------------
    with place.reading(), announcing(lambda: "building the model and reading its weights"):
        start = start_run(experiment, model_directory, previous)
    state, taught_by = program.put_state(start.state), program.put_teacher(teacher)
    identity = evaluation.identity | ({TEACHER: teacher.identity} if teacher else {})
    guard = MetricsGuard(lambda rows: [dataset.describe(int(row)) for row in rows if row >= 0])

    with (
        closing(_open_directory(place, experiment, dataset, first, lock)) as directory,
        Summaries(
            model_directory, from_step=first, experiment=experiment, loggers=loggers
        ) as summaries,
        RunProgress(first, stop_at, quiet=not job.is_main_process()) as progress,
        StopRequest() as stop,
        ExitStack() as opened,
    ):
        for line in _describe_run(experiment, place, dataset, start, programs):
            progress.say(line)
        if teacher is not None:
            progress.say(f"learning from {teacher.source} too")
        scores = evaluation.catch_up(first, state, directory, summaries, progress, stop)
        if finished:
            reason = f"step {first} of {stop_at} is done, nothing is left"
            return Outcome(first, reason, scores, seconds=time.monotonic() - began)
        if why := evaluation.exhausted(summaries):
            reason = f"stopped early at step {first} already: {why}"
            return Outcome(first, reason, scores, seconds=time.monotonic() - began)

        # Another thread makes the first batches while XLA compiles.
        shared = jax.process_count() > 1
        batches = opened.enter_context(
            DevicePrefetcher(
                loader.iterate(first, stop_at),
                program.put_batch,
                stopped=lambda: stop.signal is not None and not shared,
            )
        )
        progress.doing("compiling the train step")
        with stop.ends("compiling the train step"):
            steps = [compilation.result() for compilation in compilations]
        progress.say(_describe_memory(steps))
        compiled = dict(zip((one.input_size for one in programs), steps, strict=True))
        del start, teacher  # the first step donates the buffers of the start

        # ---- steps ------------------------------------------------------------------------------
        waits = Waits(jax.process_count())
        report = StepReport(
            settings,
            loader,
            waits,
            first=first,
            stop_at=stop_at,
            progress=progress,
            summaries=summaries,
        )
        report.begin(forecast(steps, program.mesh.size, settings.precision, parts))
        profiler = StepProfiler(profile, model_directory, first, progress.say, report.paused)

        def save(step: int, state: TrainState) -> None:
            metadata = identity | _metadata(experiment, dataset, step, program.replicas)
            with jax.transfer_guard("allow"):
                directory.save(step, job.replicated_tree(state._asdict()), metadata, wait=False)

        # A stop requested of one process stops all of them after the same step.
        gathering = job.AsyncAllGather(2)
        step, reason, first_step_seconds = first, f"finished at step {stop_at}", 0.0
        interrupted = 0
        stalls, next_batch = StallReporter(), f"the next batch, from {dataset.source.where}"
        waiting_for_others = partial(stalls.waiting, _OTHERS) if shared else nullcontext
        with batches, profiler, stalls, jax.transfer_guard("disallow"):
            for batch in profiler.mark(stalls.over(batches, next_batch)):
                # -- dispatch: the device works while the host goes on --
                state, metrics = compiled[batch.input_size](state, batch, *taught_by)
                profiler.dispatched(metrics)
                guard.push(step + 1, metrics, batch.records)
                step += 1
                if step == first + 1:
                    jax.block_until_ready(metrics)
                    first_step_seconds = time.monotonic() - began
                    inputs = draw_inputs(batch, dataset)
                    summaries.image(step, "train_input_images", inputs)

                # -- agree with the other processes on a stop --
                # The signal is read once: a later one ends the next step.
                gathering.start(int(stop.signal or 0), batches.wait_seconds)
                with waiting_for_others():
                    heard = gathering.results()
                asked = int(heard[..., 0].max(initial=0))
                waits.add(heard[..., 1])

                # -- metrics, checkpoint --
                must_save = (
                    step % settings.checkpoint_every == 0
                    or step == stop_at
                    or evaluation.due(step)
                    or asked > 0
                )
                with waiting_for_others():
                    # The first step is reported at once, because the loop waits for it anyway.
                    done = guard.pop(leave=0 if must_save or step == first + 1 else 1)
                report.steps(done)
                if must_save:
                    save(step, state)

                # -- stop or evaluate --
                if asked and step != stop_at:
                    name = Signals(asked).name
                    reason = f"stopped by {name} after step {step}; run again to go on"
                    interrupted = asked
                    break
                if evaluation.due(step):
                    with report.paused():
                        scores = evaluation.run(step, state, directory, summaries, progress, stop)
                    if why := evaluation.exhausted(summaries):
                        reason = f"stopped early: {why}"
                        break
            if batches.starved and stop.signal is not None:
                # The storage of the records does not answer; the finished steps are kept.
                report.steps(guard.pop(leave=0))
                directory.wait()
                if step not in (first, directory.latest_step()):
                    save(step, state)
                name, interrupted = stop.signal.name, int(stop.signal)
                reason = (
                    f"stopped by {name} after step {step}, without a next batch; run again to go on"
                )

        # ---- end --------------------------------------------------------------------------------
        seconds = time.monotonic() - began
        totals = report.end(step, seconds)
        return Outcome(
            step=step,
            reason=reason,
            scores=scores,
            interrupted=interrupted,
            seconds=seconds,
            seconds_to_first_step=first_step_seconds,
            images=totals.images,
            images_per_second=totals.images_per_second,
            peak_memory=totals.peak_memory,
        )


def _open_data(experiment: schema.Experiment) -> TrainLoader:
    data = experiment.data
    with waiting_for("the training records, and their index"):
        return open_train_loader(
            experiment,
            workers=input_threads(data.workers, data.processes),
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            prepare=keep_freed_memory,
        )


def _compile(program: TrainProgram) -> Compilation:
    with announcing(lambda: "tracing the train step"):
        return Compilation(program.lower(), "the train step")


def _describe_memory(steps: Sequence[jax.stages.Compiled]) -> str:
    """Returns a line with the memory of the largest step."""
    analyses = [found for step in steps if (found := step.memory_analysis()) is not None]
    if not analyses:
        return "compiled"
    # The programs of all input sizes run one after the other, and share their memory.
    refuse_program_shortage(
        max(one.temp_size_in_bytes for one in analyses),
        "the compiled train step",
        where="train.batch_size",
        fix="raise train.accumulation_steps, lower train.batch_size or the size of model.resizer, "
        "or end other programs; on a CPU, bfloat16 takes as much memory as float32",
    )
    peak = max(one.temp_size_in_bytes + one.argument_size_in_bytes for one in analyses)
    return f"compiled; the step needs {size_text(peak)} on each device"


def _open_directory(
    place: ModelPlace,
    experiment: schema.Experiment,
    dataset: Dataset,
    first: int,
    lock: DirectoryLock | None,
) -> ModelDirectory:
    """Creates or opens the model directory, whose newest checkpoint is that of step `first`."""
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
        what = "another run wrote a checkpoint while this one was starting"
        raise UserError(what, where=str(place), fix="run this again")
    return directory


def _describe_run(
    experiment: schema.Experiment,
    place: ModelPlace,
    dataset: Dataset,
    start: Start,
    programs: Sequence[TrainProgram],
) -> Iterator[str]:
    yield start.decision.replace(str(place.folder), str(place))
    weightless = frozen_fresh_statistics(experiment)
    if weightless is not None and not int(start.state.step):
        yield f"warning: {weightless.describe({})}"
    program, count = programs[0], jax.process_count()
    mesh = program.mesh
    parameters = sum(start.state.params[path].size for path in start.trainable)
    parts = experiment.train.accumulation_steps
    pieces = f" in {parts} micro-batches" if parts > 1 else ""
    yield (
        f"{count_text(len(dataset), 'training image')}, "
        f"batch {experiment.train.batch_size}{pieces} on "
        f"{count_text(mesh.size, mesh.devices.flat[0].platform + ' device')}"
        f"{f' of {count} processes' * (count > 1)}, {parameters:,} trainable parameters"
    )
    if len(programs) > 1:
        sizes = ", ".join(sides_text(one.input_size) for one in programs)
        yield f"input sizes {sizes}: one of them for each step, each compiled once"
    before = replicas_before(place.folder, int(start.state.step), experiment)
    if before not in (None, program.replicas):
        yield (
            f"warning: {count_text(before, 'replica')} before, now {program.replicas}; --set "
            f"devices.replicas={before} keeps what a step computes"
        )
    if dataset.cache is not None:
        yield dataset.cache.promise()


def _metadata(
    experiment: schema.Experiment, dataset: Dataset, step: int, replicas: int
) -> dict[str, Any]:
    return {
        "step": step,
        "replicas": replicas,
        "loader": {
            "next_step": step,
            "seed": experiment.data.seed,
            "records": len(dataset),
            "files": dataset.source.fingerprint(),
        },
    }
