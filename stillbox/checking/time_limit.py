"""The minutes that a run may take, from the call to the last score, as a number of steps.

The number is fixed once, before the first step, and belongs to the run's experiment: a run that is
resumed takes the steps that are left.
"""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax

from stillbox.checking.fitting import lengthened
from stillbox.checking.planning import has_run
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.remote_directory import ModelPlace
from stillbox.devices import job
from stillbox.errors import UserError
from stillbox.experiment.resolve import Resolved
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import Changes
from stillbox.experiment.values import differences
from stillbox.printing import count_text
from stillbox.references import Parameter
from stillbox.training.length import refuse_lengths, set_length
from stillbox.training.probing import Costs, compile_ahead, measure
from stillbox.training.progress import duration_text

Say = Callable[[str], None]
Evaluations = Callable[[int], int]
"""Returns the number of evaluations in a run of so many steps."""

_MOST_MINUTES = 2**31
_LEAST_STEPS = 10
# Steps between two evaluations of a planned run: a model is not scored before it has learnt.
_LEAST_APART = 25
# The rest is for what is not measured: the last checkpoint, the end of the process.
_SHARE = 0.98
_EVERY = "train.evaluate_every"
# Fields that no program of a step depends on.
_OF_THE_LOOP = ("train.steps", "train.checkpoint_every", _EVERY)


@dataclass(frozen=True, kw_only=True)
class TimeLimit:
    """Minutes of the wall clock for the whole of a run."""

    minutes: float
    began: float
    """`time.monotonic()` of the call."""
    overrides: Changes
    """Changes of fields, which a length does not change."""
    is_planned: bool
    """Whether `plan_run` has fitted a recipe to the data, so that the run is `lengthened`."""

    def fit(self, planned: Resolved, place: ModelPlace, say: Say) -> Resolved:
        """Returns the run with the steps and the evaluations for which there is time.

        A run that exists in the place keeps its own.

        Raises:
            UserError: there is no time for some steps, or see `loop.train`.
        """
        if has_run(place.folder):
            return self._as_begun(planned, place, say)
        costs = measure(planned.experiment, place, 60 * self.minutes)
        evaluations = self._evaluations(planned.experiment, costs)
        steps = self._fitting_steps(planned, costs, evaluations)
        fitted = self._with_steps(planned, steps, say)
        number = evaluations(steps)
        say(
            f"{self.minutes:g} minutes: {count_text(steps, 'step')} of {costs.step:.2g} s and "
            f"{count_text(number, 'evaluation')} of {costs.evaluation:.2g} s, measured; "
            f"{duration_text(time.monotonic() - self.began)} has gone by"
        )
        every = fitted.experiment.train.evaluate_every
        if number and every and -(-steps // every) > number:
            return _with_evaluations(fitted, -(-steps // number))
        return fitted

    def _fitting_steps(self, planned: Resolved, costs: Costs, evaluations: Evaluations) -> int:
        """Returns the steps for which there is time, with another compilation where it is needed.

        The step is compiled once more where there is no cache, or where the length changes it. The
        second time is known only if the same program serves other lengths.
        """

        def of(steps: int) -> Experiment:
            return self._with_steps(planned, steps, lambda line: None).experiment

        is_cached = bool(jax.config.values["jax_compilation_cache_dir"])
        steps = self._steps(costs, evaluations, is_cached=is_cached)
        if not is_cached or not _other_program(planned.experiment, of(steps)):
            return steps
        steps = self._steps(costs, evaluations, is_cached=False)
        if _other_program(of(steps), of(steps - 1)):
            return steps
        compile_ahead(of(steps))
        again = self._steps(costs, evaluations, is_cached=True)
        return steps if _other_program(of(steps), of(again)) else again

    def _as_begun(self, planned: Resolved, place: ModelPlace, say: Say) -> Resolved:
        stored = ModelDirectory.open(place.folder).read_experiment().train
        if not stored.steps:
            return planned
        say(f"the run in {place} keeps the {count_text(stored.steps, 'step')} that it began with")
        begun = self._with_steps(planned, stored.steps, say)
        return (
            begun if _EVERY in self.overrides else _with_evaluations(begun, stored.evaluate_every)
        )

    def _with_steps(self, planned: Resolved, steps: int, say: Say) -> Resolved:
        if self.is_planned:
            return lengthened(planned, self.overrides, steps, say)
        return set_length(planned, self.overrides, steps=steps)

    def _evaluations(self, experiment: Experiment, costs: Costs) -> Evaluations:
        """Returns the number of evaluations by steps.

        It is as in the experiment, with a tenth of the time as the limit: of a planned run the
        number, unless the run is very short, and of any other the steps between two.
        """
        train, seconds = experiment.train, 60 * self.minutes
        given = _EVERY in self.overrides
        most = sys.maxsize if given else costs.most_evaluations(seconds)
        if not experiment.data.evaluation.paths:
            return lambda steps: 0
        if not train.evaluate_every:
            return lambda steps: 1
        if self.is_planned and not given and train.steps:
            planned = -(-train.steps // train.evaluate_every)
            return lambda steps: min(planned, max(1, steps // _LEAST_APART), most)
        return lambda steps: min(-(-steps // train.evaluate_every), most)

    def _steps(self, costs: Costs, evaluations: Evaluations, *, is_cached: bool) -> int:
        """Returns the steps for which there is time, the same in all processes.

        Raises:
            UserError: they are too few.
        """
        gone = job.broadcast(time.monotonic() - self.began)
        gone += 0 if is_cached else costs.compilation
        steps = costs.steps_in(_SHARE * 60 * self.minutes - gone, evaluations)
        if steps < _LEAST_STEPS:
            needed = gone + costs.seconds(_LEAST_STEPS, evaluations(_LEAST_STEPS))
            least = math.ceil(needed / _SHARE / 6) / 10
            raise UserError(
                f"{self.minutes:g} minutes are too few for {count_text(_LEAST_STEPS, 'step')} of "
                f"{costs.step:.2g} s, an evaluation and the start",
                where=Parameter("minutes"),
                fix=f"give at least {Parameter('minutes', f'{least:g}')}",
            )
        return steps


def time_limit(
    minutes: float | None,
    began: float,
    *,
    steps: int | None,
    epochs: float | None,
    overrides: Changes,
    is_planned: bool,
    on_ray: bool,
) -> TimeLimit | None:
    """Returns the limit of so many minutes; None: there is none.

    For the other arguments see `TimeLimit` and `set_length`.

    Args:
        on_ray: whether workers of Ray train, which is not measured.

    Raises:
        UserError: the minutes are no time, or the length is given twice.
    """
    if minutes is None:
        return None
    refuse_lengths(overrides, steps=steps, epochs=epochs, minutes=minutes)
    where = Parameter("minutes")
    if not 0 < minutes < _MOST_MINUTES:
        problem = f"a run of {minutes:g} minutes is none"
        raise UserError(problem, where=where, fix=f"for example {Parameter('minutes', '15')}")
    if on_ray:
        problem = "the steps of workers of Ray are not measured before a run"
        raise UserError(problem, where=where, fix=f"give {Parameter('steps')}")
    return TimeLimit(minutes=minutes, began=began, overrides=overrides, is_planned=is_planned)


def _with_evaluations(run: Resolved, every: int) -> Resolved:
    train = replace(run.experiment.train, evaluate_every=every)
    return replace(run, experiment=replace(run.experiment, train=train))


def _other_program(first: Experiment, second: Experiment) -> bool:
    """Whether the train steps of two experiments are different programs."""
    return any(
        not path.startswith(_OF_THE_LOOP) and not path.endswith(".skip_last_steps")
        for path, _, _ in differences(first, second)
    )
