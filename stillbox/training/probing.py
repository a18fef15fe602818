"""What the parts of a run take, measured before it, and the steps for which there is time.

Some steps on a state that is thrown away, and a part of an evaluation, are timed as the run will
take them. Their programs are in the cache of compiled programs when the run begins.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from statistics import fmean

import jax

from stillbox.checkpoints.remote_directory import ModelPlace
from stillbox.devices import job
from stillbox.devices.announcing import announcing
from stillbox.devices.compiling import saved_by_cache
from stillbox.devices.mesh import build_mesh
from stillbox.evaluation.program import score_program
from stillbox.evaluation.scoring import open_evaluation, score_dataset
from stillbox.experiment import schema
from stillbox.inputs.loader import DevicePrefetcher
from stillbox.training.loop import Run
from stillbox.training.preparing import compile_step, open_data
from stillbox.training.program import train_programs
from stillbox.training.reporting import Stopwatch
from stillbox.training.state import arrays_to_score

# Shares of the time of a run: for the measured steps, and for evaluations at most.
_MEASURING, _EVALUATING = 0.03, 0.1
_LEAST_MEASURED, _MOST_MEASURED = 4, 100
_SCORED_IMAGES = 32


@dataclass(frozen=True)
class Costs:
    """The seconds that the parts of a run take."""

    start: float
    """All before the first step and before the first evaluation, with programs from the cache."""
    compilation: float
    """Of a train step that is not in the cache."""
    step: float
    evaluation: float
    """0: there are no records to score."""

    def seconds(self, steps: int, evaluations: int) -> float:
        """Returns the seconds of a run."""
        return self.start + steps * self.step + evaluations * self.evaluation

    def most_evaluations(self, seconds: float) -> int:
        """Returns the number of evaluations in a tenth of the time; a run has at least one."""
        return max(1, int(_EVALUATING * seconds / max(self.evaluation, 1e-3)))

    def steps_in(self, seconds: float, evaluations: Callable[[int], int]) -> int:
        """Returns the greatest number of steps for which there is time; 0: for none.

        `evaluations` returns the number of evaluations in a run of so many steps.
        """
        most = max(0, int(seconds / self.step))
        return bisect_right(
            range(1, most + 1), seconds, key=lambda steps: self.seconds(steps, evaluations(steps))
        )


def measure(experiment: schema.Experiment, place: ModelPlace, seconds: float) -> Costs:
    """Returns the costs of a run that is to take so many seconds, the same in all processes.

    Nothing is written.

    Raises:
        UserError: as `loop.train`.
    """
    with announcing(lambda: "measuring some steps and an evaluation"):
        costs = _Probe(experiment, place).measure(seconds)
    return Costs(**job.broadcast(asdict(costs)))


def compile_ahead(experiment: schema.Experiment) -> None:
    """Compiles the train step of an experiment into the cache of compiled programs."""
    train = experiment.train
    mesh = build_mesh(train.batch_size, experiment.devices, parts=train.accumulation_steps)
    for compilation in list(map(compile_step, train_programs(experiment, mesh))):
        compilation.result()


class _Probe(Run):
    """The beginning of a run, without results."""

    def __init__(self, experiment: schema.Experiment, place: ModelPlace) -> None:
        super().__init__(experiment, place, open_data(experiment), None, 0.0)

    def measure(self, seconds: float) -> Costs:
        """Returns the costs of a run that is to take so many seconds."""
        with saved_by_cache() as saved:
            preparing = Stopwatch()
            self.prepare()
            prepared, compiling = preparing.seconds, Stopwatch()
            programs = self._wait_for_programs()
            waited = compiling.seconds
        # Programs of an earlier run, beside which there are small ones.
        compilation = waited + sum(sorted(saved)[-len(programs) :])
        del self._start, self._teacher  # the first step donates the buffers of the start
        batches = self._loader.iterate()
        with DevicePrefetcher(batches, self._programs[0].put_batch) as prefetcher:
            first, step = self._measure_steps(prefetcher, seconds)
        before, evaluation = self._measure_evaluation()
        return Costs(prepared + first + before, compilation, step, evaluation)

    def _measure_steps(self, batches: DevicePrefetcher, seconds: float) -> tuple[float, float]:
        """Returns the seconds of the first step, and of one among many."""
        times = self._timed_steps(batches)
        first = next(times)
        # Batches of the first steps were made while XLA compiled.
        early = list(islice(times, self._experiment.data.batches_ahead + 2))
        some = list(islice(times, _LEAST_MEASURED))
        # The same in all processes, which take each step together.
        more = int(job.broadcast(_MEASURING * seconds / fmean(some or early or [first])))
        some += islice(times, min(more, _MOST_MEASURED))
        return first, fmean(some or early or [first])

    def _timed_steps(self, batches: DevicePrefetcher) -> Iterator[float]:
        """Takes steps; yields the seconds of each, with the wait for its batch."""
        while True:
            stopwatch = Stopwatch()
            batch = next(batches, None)
            if batch is None:
                return
            step = self._step_of[batch.input_size]
            self._state, metrics = step(self._state, batch, *self._taught_by)
            jax.block_until_ready(metrics)
            yield stopwatch.seconds

    def _measure_evaluation(self) -> tuple[float, float]:
        """Returns the seconds before the first evaluation, and of one that has its program."""
        experiment, settings = self._experiment, self._experiment.evaluation
        if not experiment.data.evaluation.paths:
            return 0.0, 0.0
        dataset, program = open_evaluation(experiment), score_program(experiment)
        total = len(dataset.source)
        images = min(settings.max_examples or total, total)
        scored = min(images, _SCORED_IMAGES)
        arrays = arrays_to_score(self._state, use_ema=settings.use_ema)
        tracing = Stopwatch()
        program.bind(*arrays)
        before, _ = tracing.seconds, program.compiled
        scoring = Stopwatch()
        score_dataset(
            program.bind(*arrays),
            replace(experiment, evaluation=replace(settings, max_examples=scored)),
            dataset,
            trained=self._loader.dataset.label_map,
        )
        return before, scoring.seconds * images / scored
