"""The training loop, from an experiment to a model directory."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

import jax

from stillbox.boxes.structures import Batch
from stillbox.checkpoints.files import DirectoryLock
from stillbox.checkpoints.model_directory import locked_directory
from stillbox.checkpoints.remote_directory import ModelPlace
from stillbox.devices import job
from stillbox.devices.announcing import StallReporter, announcing
from stillbox.devices.mesh import build_mesh
from stillbox.devices.setup import PeakMemory
from stillbox.experiment import schema
from stillbox.experiment.rules import check_trainable
from stillbox.experiment.yaml_config import store_paths, to_yaml
from stillbox.inputs.loader import DevicePrefetcher, TrainLoader
from stillbox.profiling.profiler import StepProfiler
from stillbox.profiling.steps import ProfileSteps, refuse_steps_beyond_the_end
from stillbox.references import Parameter
from stillbox.training.distillation import TEACHER, open_teacher, without_teacher
from stillbox.training.guard import MetricsGuard
from stillbox.training.loggers import Logger, require_loggers
from stillbox.training.observing import Checkpoints, Moment, RunContext, StopAtSignal
from stillbox.training.periodic import EvaluatedSteps, PeriodicEvaluation, draw_inputs
from stillbox.training.preparing import (
    check_memory,
    compile_step,
    describe_run,
    metadata_of,
    open_data,
    open_directory,
)
from stillbox.training.program import train_programs
from stillbox.training.progress import RunProgress
from stillbox.training.reporting import StepReport, Waits, forecast
from stillbox.training.signals import StopRequest
from stillbox.training.start import find_previous, recorded_teacher, require_weights, start_run
from stillbox.training.summaries import Summaries

_SHARED = (
    f"give all processes a {Parameter('model_dir')} that they share, on a network disk for example"
)
_SAME = "give all processes the same"
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
    hint: bool = False,
) -> Outcome:
    """Trains an experiment into a new folder, or goes on with the run in it.

    Args:
        origins: where fields were given, for messages.
        profile: steps of this run that are traced.
        loggers: added to the experiment's loggers, in the first process.
        hint: say how many steps some numbers of minutes would be.

    Raises:
        UserError: experiment, data or directory cannot be used; nothing has been written then.
        NonFiniteLossError: the loss is not a number; the last checkpoint is good.
        RunInterrupted: a signal came during compilation or evaluation.
    """
    began = time.monotonic()
    check_trainable(experiment, origins or {})
    require_loggers(experiment.train)

    # ---- data: first, because it is most often wrong and fastest to check -----------------------
    loader = open_data(experiment)
    place = (
        model_directory if isinstance(model_directory, ModelPlace) else ModelPlace(model_directory)
    )
    with locked_directory(place.folder, writes=job.is_main_process()) as lock:
        run = Run(experiment, place, loader, profile, began, hint=hint)
        run.prepare()
        with run.opened(lock, loggers):
            run.steps()
            return run.finish()


class Run:
    """A run: `prepare`, then, in `opened`, `steps` and `finish`.

    Args:
        place: folder of the results, locked if it exists.
        profile: steps of this run that are traced.
        began: `time.monotonic()` of the call.
        hint: as of `train`.
    """

    def __init__(
        self,
        experiment: schema.Experiment,
        place: ModelPlace,
        loader: TrainLoader,
        profile: ProfileSteps | None,
        began: float,
        *,
        hint: bool = False,
    ) -> None:
        self._experiment, self._place, self._loader = experiment, place, loader
        self._profile, self._began, self._hint = profile, began, hint
        self._stop_at = min(filter(None, (experiment.train.steps, loader.steps)), default=None)
        self._first_step_seconds = 0.0
        self._report: StepReport | None = None
        self._stopping = StopAtSignal(self._stop_at)
        self._stalls = StallReporter()

    def prepare(self) -> None:
        """Refuses what cannot be trained, starts the compilation and makes the first state."""
        experiment, place, dataset = self._experiment, self._place, self._loader.dataset
        refuse_steps_beyond_the_end(self._profile, place.folder, self._stop_at)

        # ---- run to resume, evaluation: refused before anything is compiled ---------------------
        with place.reading():
            previous = find_previous(experiment, place, dataset)
        self._first = self._step = previous.step if previous else 0
        job.require_same("model directory", f"step {self._first}", fix=_SHARED)
        job.require_same("experiment", to_yaml(store_paths(experiment, place.folder)), fix=_SAME)
        self._finished = self._stop_at is not None and self._first >= self._stop_at
        # A finished run needs no teacher, and the teacher's folder may be gone.
        learning = without_teacher(experiment) if self._finished else experiment
        teacher = self._teacher = open_teacher(learning, recorded_teacher(previous))
        job.require_same("teacher", str(teacher and teacher.identity), fix=_SAME)
        self._evaluation = PeriodicEvaluation(experiment, dataset.label_map, self._stop_at)
        if previous is None:
            require_weights(experiment)

        # ---- programs: XLA compiles while the weights are read ----------------------------------
        train = experiment.train
        mesh = build_mesh(train.batch_size, experiment.devices, parts=train.accumulation_steps)
        self._programs = train_programs(learning, mesh, teacher)
        program = self._programs[0]
        self._compilations = [] if self._finished else list(map(compile_step, self._programs))

        # ---- model and state: resume, fine-tune or from scratch ---------------------------------
        with place.reading(), announcing(lambda: "building the model and reading its weights"):
            self._start = start_run(experiment, program.trainable, place.folder, previous)
        self._state = program.put_state(self._start.state)
        self._taught_by = program.put_teacher(teacher)
        self._identity = self._evaluation.identity | (
            {TEACHER: teacher.identity} if teacher else {}
        )
        self._guard = MetricsGuard(
            lambda rows: [dataset.describe(int(row)) for row in rows if row >= 0]
        )

    @contextmanager
    def opened(self, lock: DirectoryLock | None, loggers: Sequence[Logger]) -> Iterator[None]:
        """Opens the model directory and the log, and catches signals."""
        experiment, place, first = self._experiment, self._place, self._first
        dataset = self._loader.dataset
        with (
            closing(open_directory(place, experiment, dataset, first, lock)) as directory,
            Summaries(
                place.folder, from_step=first, experiment=experiment, loggers=loggers
            ) as summaries,
            RunProgress(first, self._stop_at, quiet=not job.is_main_process()) as progress,
            StopRequest() as stop,
        ):
            self._open = RunContext(directory, summaries, progress, stop)
            yield

    def steps(self) -> None:
        """Takes the steps that are left, and shows each to the observers."""
        self._introduce()
        if over := self._over():
            self._reason = over
            return
        self._reason = f"finished at step {self._stop_at}"
        # Another thread makes the first batches while XLA compiles.
        with self._prefetched() as batches:
            self._observe(self._compile())
            del self._start, self._teacher  # the first step donates the buffers of the start
            next_batch = f"the next batch, from {self._loader.dataset.source.where}"
            with self._profiler, self._stalls, jax.transfer_guard("disallow"):
                for batch in self._profiler.mark(self._stalls.over(batches, next_batch)):
                    self._dispatch(batch)
                    asked = self._agree(batches.wait_seconds)
                    if reason := self._show(asked):
                        self._reason = reason
                        break
                if batches.starved and self._open.stop.signal is not None:
                    self._keep_finished_steps(self._open.stop.signal)

    def finish(self) -> Outcome:
        """Reports and returns the end of the run."""
        seconds = time.monotonic() - self._began
        scores = self._evaluation.scores
        if self._report is None:  # no step was left
            return Outcome(self._first, self._reason, scores, seconds=seconds)
        totals = self._report.end(self._step, seconds)
        for sentence in self._evaluation.unfound:
            self._open.progress.say(f"warning: {sentence}")
        return Outcome(
            step=self._step,
            reason=self._reason,
            scores=scores,
            interrupted=self._stopping.signal,
            seconds=seconds,
            seconds_to_first_step=self._first_step_seconds,
            images=totals.images,
            images_per_second=totals.images_per_second,
            peak_memory=totals.peak_memory,
        )

    def _introduce(self) -> None:
        """Describes the run, and makes up for a missed evaluation."""
        say, dataset = self._open.progress.say, self._loader.dataset
        lines = describe_run(self._experiment, self._place, dataset, self._start, self._programs)
        for line in lines:
            say(line)
        if self._teacher is not None:
            say(f"learning from {self._teacher.source} too")
        self._evaluation.catch_up(self._first, self._state, self._open)

    def _over(self) -> str:
        """Returns why no step is left; empty if one is."""
        first = self._first
        if self._finished:
            return f"step {first} of {self._stop_at} is done, nothing is left"
        why = self._evaluation.exhausted(self._open.summaries)
        return f"stopped early at step {first} already: {why}" if why else ""

    def _prefetched(self) -> DevicePrefetcher:
        stop, shared = self._open.stop, jax.process_count() > 1
        return DevicePrefetcher(
            self._loader.iterate(self._first, self._stop_at),
            self._programs[0].put_batch,
            stopped=lambda: stop.signal is not None and not shared,
        )

    def _compile(self) -> list[jax.stages.Compiled]:
        """Waits for the steps, one for each input size."""
        doing = "compiling the train step"
        self._open.progress.doing(doing)
        with self._open.stop.ends(doing):
            compiled = self._wait_for_programs()
        self._open.progress.say(check_memory(compiled))
        return compiled

    def _wait_for_programs(self) -> list[jax.stages.Compiled]:
        compiled = [compilation.result() for compilation in self._compilations]
        sizes = (program.input_size for program in self._programs)
        self._step_of = dict(zip(sizes, compiled, strict=True))
        return compiled

    def _observe(self, compiled: Sequence[jax.stages.Compiled]) -> None:
        """Makes the observers, in the order in which they look at a step."""
        settings, context, program = self._experiment.train, self._open, self._programs[0]
        dataset = self._loader.dataset
        self._waits = Waits(jax.process_count())
        self._report = report = StepReport(
            settings,
            self._loader,
            self._waits,
            first=self._first,
            stop_at=self._stop_at,
            progress=context.progress,
            summaries=context.summaries,
            began=self._began if self._hint else None,
        )
        parts = settings.accumulation_steps
        report.begin(forecast(compiled, program.mesh.size, settings.precision, parts))
        self._profiler = StepProfiler(
            self._profile, self._place.folder, self._first, context.progress.say, report.paused
        )
        self._checkpoints = Checkpoints(
            context.directory,
            settings.checkpoint_every,
            self._stop_at,
            lambda step: (
                self._identity | metadata_of(self._experiment, dataset, step, program.replicas)
            ),
        )
        evaluated = EvaluatedSteps(self._evaluation, context, report.paused)
        self._observers = (report, self._checkpoints, self._stopping, evaluated)
        # A stop requested of one process stops all of them after the same step.
        self._gathering = job.AsyncAllGather(2)

    def _dispatch(self, batch: Batch) -> None:
        """Starts a step; the device works while the host goes on."""
        step = self._step_of[batch.input_size]
        self._state, metrics = step(self._state, batch, *self._taught_by)
        self._profiler.dispatched(metrics)
        self._guard.push(self._step + 1, metrics, batch.records)
        self._step += 1
        if self._step == self._first + 1:
            jax.block_until_ready(metrics)
            self._first_step_seconds = time.monotonic() - self._began
            inputs = draw_inputs(batch, self._loader.dataset)
            self._open.summaries.image(self._step, "train_input_images", inputs)

    def _agree(self, waited: float) -> int:
        """Returns the signal that asks the processes to stop, the same in all; 0: none.

        `waited` are the seconds of this process without a batch.
        """
        # The signal is read once: a later one ends the next step.
        self._gathering.start(int(self._open.stop.signal or 0), waited)
        with self._waiting_for_others():
            heard = self._gathering.results()
        self._waits.add(heard[..., 1])
        return int(heard[..., 0].max(initial=0))

    def _show(self, asked: int) -> str:
        """Shows a step to the observers; returns why the run ends, empty if it goes on."""
        step = self._step
        kept = asked > 0 or any(observer.due(step) for observer in self._observers)
        with self._waiting_for_others():
            # The first step is reported at once, because the loop waits for it anyway.
            metrics = self._guard.pop(leave=0 if kept or step == self._first + 1 else 1)
        moment = Moment(step, self._state, metrics, kept, asked)
        return next(filter(None, (observer.after(moment) for observer in self._observers)), "")

    def _waiting_for_others(self) -> AbstractContextManager[object]:
        return self._stalls.waiting(_OTHERS) if jax.process_count() > 1 else nullcontext()

    def _keep_finished_steps(self, number: Signals) -> None:
        """Saves the steps so far: the storage of the records does not answer."""
        assert self._report is not None
        self._report.steps(self._guard.pop(leave=0))
        directory, step = self._open.directory, self._step
        directory.wait()
        if step not in (self._first, directory.latest_step()):
            self._checkpoints.save(step, self._state)
        self._reason = self._stopping.end(number, step, ", without a next batch")
