"""The training loop, from an experiment to a model directory."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.devices.mesh import data_mesh, put_batch, put_everywhere
from stillbox.devices.setup import versions
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.rules import check_trainable
from stillbox.experiment.yaml_config import to_yaml
from stillbox.inputs.dataset import Dataset, open_dataset
from stillbox.inputs.loader import TrainLoader
from stillbox.inputs.prefetch import DevicePrefetcher
from stillbox.models.variables import split_detector
from stillbox.training.guard import MetricsGuard
from stillbox.training.periodic import PeriodicEvaluation, draw_inputs
from stillbox.training.progress import RunProgress
from stillbox.training.signals import StopRequest
from stillbox.training.start import start_run
from stillbox.training.step import make_train_step
from stillbox.training.summaries import Summaries


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
    """Wall clock from call to end."""
    seconds_to_first_step: float = 0.0
    """Wall clock from call to the end of the first step."""


def train(
    experiment: schema.Experiment, model_directory: Path, origins: Mapping[str, str] | None = None
) -> Outcome:
    """Trains `experiment` and keeps everything that it produces in `model_directory`.

    Raises:
        UserError: experiment, data or directory cannot be used; nothing has been written then.
        NonFiniteLossError: the loss is not a number; the last checkpoint is good.
    """
    began = time.monotonic()
    check_trainable(experiment, origins or {})
    settings = experiment.train

    # ---- data: first, because it is most often wrong and quickest to look at --------------------
    dataset = open_dataset(experiment.data, experiment.data.train, experiment.model)
    mesh = data_mesh(settings.batch_size)
    loader = TrainLoader(
        dataset,
        augmentations=settings.augmentations,
        batch_size=settings.batch_size,
        seed=experiment.data.seed,
        shuffle=experiment.data.train.shuffle,
        workers=experiment.data.workers,
        prefetch=experiment.data.prefetch,
    )

    # ---- model and state: resume, fine-tune or scratch ------------------------------------------
    started = start_run(experiment, model_directory, dataset)
    graph, _, _ = split_detector(started.detector)
    first = int(started.state.step)
    stop_at = min(filter(None, (settings.steps, loader.steps)), default=None)
    state = put_everywhere(started.state, mesh)
    evaluation = PeriodicEvaluation(
        experiment, graph, started.detector.anchors, dataset.label_map, stop_at
    )
    directory = ModelDirectory.create(
        model_directory,
        experiment=to_yaml(experiment),
        label_map=dataset.label_map.to_text(),
        versions=versions(),
        keep=settings.keep_checkpoints,
    )
    if (directory.latest_step() or 0) != first:
        directory.close()
        raise UserError(
            "another run wrote a checkpoint while this one was starting",
            where=str(model_directory),
            fix="run this again",
        )
    summaries = Summaries(model_directory, from_step=first)
    guard = MetricsGuard(lambda records: _name_records(dataset, records))
    outcome = partial(_outcome, began=began)

    with (
        closing(directory),
        closing(summaries),
        RunProgress(first, stop_at) as progress,
        StopRequest() as stop,
    ):
        progress.say(started.decision)
        progress.say(
            f"{len(dataset)} training images, batch {settings.batch_size} on {mesh.size} "
            f"{jax.devices()[0].platform} device(s), "
            f"{sum(state.params[path].size for path in started.trained):,} trained parameters"
        )
        scores = evaluation.catch_up(first, state, directory, summaries, progress)
        if stop_at is not None and first >= stop_at:
            return outcome(first, f"step {first} of {stop_at} is done, nothing is left", scores)
        if why := evaluation.exhausted(summaries):
            return outcome(first, f"stopped early at step {first} already: {why}", scores)

        # ---- compile: one program, before the first image is waited for -------------------------
        progress.doing("compiling the train step")
        step_function = make_train_step(
            graph, started.detector.anchors, experiment.model, settings, started.trained
        )
        example = put_batch(loader.empty_batch(), mesh)
        compiled = jax.jit(step_function, donate_argnums=0).lower(state, example).compile()
        progress.say(_describe_program(compiled))
        del example, started  # their buffers are given away by the first step

        # ---- steps ------------------------------------------------------------------------------
        batches = DevicePrefetcher(
            loader.iterate(first, stop_at), lambda batch: put_batch(batch, mesh), depth=2
        )
        clock = _Clock(settings.batch_size)
        step, reason, first_step_seconds = first, f"finished at step {stop_at}", 0.0
        interrupted = 0
        with closing(batches), jax.transfer_guard("disallow"):
            for batch in batches:
                state, metrics = compiled(state, batch)
                guard.push(step + 1, metrics, batch.records)
                step += 1
                if step == first + 1:
                    jax.block_until_ready(metrics)
                    first_step_seconds = time.monotonic() - began
                    inputs = draw_inputs(batch, dataset)
                    summaries.image(step, "train_input_images", inputs)
                # Looked at once: a signal that comes after this line ends the next step.
                asked = stop.signal
                must_save = (
                    step % settings.checkpoint_every == 0
                    or step == stop_at
                    or evaluation.due(step)
                    or asked is not None
                )
                seen = guard.pop(leave=0 if must_save else 1)
                for number, values in seen:
                    progress.at(number)
                    if number % settings.log_every == 0 or number == stop_at:
                        values |= clock.rates(seen[-1][0] - first, batches)
                        summaries.metrics(number, values)
                        progress.metrics(number, values)
                if must_save:
                    metadata = _metadata(experiment, dataset, step)
                    directory.save(step, state._asdict(), metadata, wait=False)
                if asked is not None and step != stop_at:
                    reason = f"stopped by {asked.name} after step {step}; run again to go on"
                    interrupted = int(asked)
                    break
                if evaluation.due(step):
                    with clock.paused():
                        scores = evaluation.run(step, state, directory, summaries, progress)
                    if why := evaluation.exhausted(summaries):
                        reason = f"stopped early: {why}"
                        break
        progress.say(reason)
        progress.say(loader.stats.summary())
        for line in dataset.source.problems.lines():
            progress.say(line)
        return outcome(step, reason, scores, interrupted, first_step_seconds)


def _outcome(
    step: int,
    reason: str,
    scores: Mapping[str, float | None] | None,
    interrupted: int = 0,
    first_step_seconds: float = 0.0,
    *,
    began: float,
) -> Outcome:
    return Outcome(
        step=step,
        reason=reason,
        scores=scores,
        interrupted=interrupted,
        seconds=time.monotonic() - began,
        seconds_to_first_step=first_step_seconds,
    )


def _name_records(dataset: Dataset, records: np.ndarray) -> list[str]:
    return [dataset.describe(int(record)) for record in records if record >= 0]


def _metadata(experiment: schema.Experiment, dataset: Dataset, step: int) -> dict[str, Any]:
    return {
        "step": step,
        "loader": {"next_step": step, "seed": experiment.data.seed, "records": len(dataset)},
    }


def _describe_program(compiled: Any) -> str:  # noqa: ANN401
    memory = compiled.memory_analysis()
    if memory is None:
        return "compiled"
    peak = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    return f"compiled; the step needs {peak / 2**20:,.0f} MiB on each device"


class _Clock:
    """Images per second since the last line, pauses left out."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._steps, self._at, self._waited = 0, time.monotonic(), 0.0
        self._rates: dict[str, float] = {}

    def rates(self, steps: int, batches: DevicePrefetcher) -> dict[str, float]:
        if steps == self._steps:  # fetched together with the line before: the same figures
            return self._rates
        seconds = max(time.monotonic() - self._at, 1e-9)
        self._rates = {
            "images_per_second": (steps - self._steps) * self._batch_size / seconds,
            "waiting_for_data": min((batches.wait_seconds - self._waited) / seconds, 1.0),
        }
        self._steps, self._at, self._waited = steps, time.monotonic(), batches.wait_seconds
        return self._rates

    @contextmanager
    def paused(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._at += time.monotonic() - began
