"""Fits a recipe to a data set and a machine: batch, length, weights, evaluations, norms."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from stillbox.checking.advice.training import settling_decays
from stillbox.checking.dataset_stats import DatasetStats
from stillbox.checking.memory_verdict import Machine, fits_for_certain
from stillbox.checking.planning_weights import first_weights, gentle_rates, given_weights
from stillbox.evaluation.limit_audit import images_combined
from stillbox.experiment.resolve import Resolved, overridden, read_config
from stillbox.experiment.rules.missing import CHECKPOINT
from stillbox.experiment.run_length import with_batch
from stillbox.experiment.schema import CopyPaste, Experiment
from stillbox.experiment.updating import Changes, merged
from stillbox.experiment.values import to_plain
from stillbox.printing import count_text
from stillbox.records.class_counts import describe_rare, rare_class
from stillbox.references import Parameter
from stillbox.training.length import set_length

# Below 8 images the statistics of batch norm are noise (arXiv:1803.08494); the largest published
# rates of the linear rule that need no more than the usual warm-up are for 64.
_BATCHES, _LEAST_BATCH = (64, 32, 16, 8, 4, 2, 1), 8
# Small ones update more often in the same time: on BCCD, 520 steps of 8 images had an AP of .544
# where 260 steps of 16 had .448 (docs/training.md).
_CPU_BATCH = 8
# Steps of an epoch that a batch should leave.
_STEPS_OF_AN_EPOCH = 8
# Images up to which a run has so many epochs: few images need many passes, and COCO's 118,000 have
# 12 epochs in most published runs.
_EPOCHS = ((500, 80), (2000, 50), (10_000, 30), (50_000, 18))
_MOST_IMAGES_EPOCHS = 12
# Pasted objects raised the AP of 1 to 30 images of BCCD by .01 to .06 (docs/training.md).
_FEW_IMAGES = 50
# Fewer steps do not warm batch norm up.
_LEAST_STEPS = 300
_EVALUATIONS = 10


@dataclass(frozen=True)
class Choice:
    """A value and the reason for it."""

    value: str
    reason: str


def choose_batch(experiment: Experiment, stats: DatasetStats, machine: Machine) -> Choice:
    """Returns the largest usual batch that suits the data and fits the machine for certain."""
    most = min(_BATCHES[0], stats.images // _STEPS_OF_AN_EPOCH)
    reason = f"at least {_STEPS_OF_AN_EPOCH} steps an epoch, and as large as usual"
    if most < _LEAST_BATCH:
        most, reason = _LEAST_BATCH, "batch norm needs as many images"
    if machine.platform == "cpu" and most > _CPU_BATCH:
        most, reason = _CPU_BATCH, "more steps in the same time; larger ones are no faster on a CPU"
    # Every device gets as many images.
    every = [size * machine.devices for size in _BATCHES]
    *larger, size = [size for size in every if size <= most] or [machine.devices]
    for larger_size in larger:
        if fits_for_certain(with_batch(experiment, larger_size), machine):
            return Choice(str(larger_size), reason)
        reason = f"{larger_size} may need more memory than there is"
    return Choice(str(size), reason)


def choose_epochs(stats: DatasetStats, batch_size: int) -> Choice:
    """Returns the number of passes over the training images."""
    epochs = next((n for most, n in _EPOCHS if stats.images <= most), _MOST_IMAGES_EPOCHS)
    least = -(-_LEAST_STEPS * batch_size // stats.images)
    if least > epochs:
        return Choice(str(least), f"{_LEAST_STEPS} steps, the least that settles batch norm")
    images = count_text(stats.images, "image")
    return Choice(str(epochs), f"usual for {images}; {Parameter('epochs')} changes it")


def choose_repeats(stats: DatasetStats) -> Choice | None:
    """Returns the threshold of repeat factors for data with a rare class; None: it has none.

    The threshold is the share of the images that the median class is in.
    """
    rare = rare_class(stats.class_counts)
    if rare is None:
        return None
    typical = median(count.images for count in stats.class_counts if count.images)
    if rare.images >= typical:
        return None
    often = math.sqrt(typical / rare.images)
    reason = f"{describe_rare(stats.class_counts)}; its images have a factor of {often:.1f}"
    return Choice(f"{typical / stats.images:.3g}", reason)


def evaluate_every(steps: int, stats: DatasetStats, batch_size: int) -> int:
    """Returns the steps between two evaluations: at most ten in a run, at least one epoch apart."""
    return max(steps // _EVALUATIONS, -(-stats.images // batch_size))


@dataclass(frozen=True)
class Fitting:
    """A recipe that is fitted to a data set and a machine."""

    read: Resolved
    """With the fields of the data."""
    overrides: Changes
    data: DatasetStats
    machine: Machine
    say: Callable[[str], None]

    @cached_property
    def stats(self) -> DatasetStats:
        """The data set with a tile as an image, where images are cut into tiles."""
        return self.data.of_samples(self._overridden.data.tiles)

    def plan(self, steps: int | None, epochs: float | None, *, is_timed: bool) -> Resolved:
        """Returns the recipe with weights, batch, length and evaluations; see `plan_run`.

        `is_timed`: the length that is picked is replaced by `lengthened`.
        """
        weights = self._weights()
        classes = [count.name for count in self.data.class_counts]
        rates = gentle_rates(self._overridden, weights, classes, self.say)
        started = {**weights, **rates, **self._pasted_objects()}
        scaled = with_batch(self.read.experiment, self._batch())
        read = read_config(scaled, merged(started, self.overrides))
        if steps is None and epochs is None and "train.steps" not in self.overrides:
            length = choose_epochs(self.stats, read.experiment.train.batch_size)
            if not is_timed:
                self.say(f"{count_text(int(length.value), 'epoch')}: {length.reason}")
            epochs = float(length.value)
        measured = set_length(read, self.overrides, steps=steps, epochs=epochs).experiment
        last = self._last(measured)
        return set_length(read_config(measured, merged(last, self.overrides)))

    def _weights(self) -> Changes:
        experiment = self._overridden
        if CHECKPOINT in self.overrides:
            return given_weights(experiment.train.fine_tune.checkpoint, self.say)
        return first_weights(experiment, self.say)

    def _pasted_objects(self) -> Changes:
        """Returns the change that shows the objects of few images in other places."""
        field, augmentations = "train.augmentations", self._overridden.train.augmentations
        given = any(path.startswith(field) for path in self.overrides)
        pastes = any(isinstance(each, CopyPaste) for each in augmentations)
        if self.data.images > _FEW_IMAGES or given or pastes:
            return {}
        self.say(f"{field}: copy_paste too, which helps with at most {_FEW_IMAGES} images")
        return {field: to_plain((CopyPaste(), *augmentations))}

    def _batch(self) -> int:
        experiment = self._overridden
        if "train.batch_size" in self.overrides:
            return experiment.train.batch_size
        batch = choose_batch(experiment, self.stats, self.machine)
        self.say(f"batch {batch.value}: {batch.reason}")
        return int(batch.value)

    @cached_property
    def _overridden(self) -> Experiment:
        return overridden(self.read, "", self.overrides).experiment

    def _last(self, measured: Experiment) -> Changes:
        """Returns what follows from the length of the run."""
        train, scored = measured.train, measured.data.evaluation.paths
        every = evaluate_every(train.steps or 1, self.stats, train.batch_size)
        return {
            "train.evaluate_every": every if scored else 0,
            "train.checkpoint_every": every,
            **_settled_norms(measured, self.say),
            **mixed_boxes(measured, self.stats),
            **self._repeats(),
        }

    def _repeats(self) -> Changes:
        field, threshold = "data.train.repeat_threshold", choose_repeats(self.data)
        if field in self.overrides or threshold is None:
            return {}
        self.say(f"{field}={threshold.value}: {threshold.reason}")
        return {field: float(threshold.value)}


def lengthened(
    planned: Resolved, overrides: Changes, steps: int, say: Callable[[str], None]
) -> Resolved:
    """Returns what `plan_run` has planned with another length, and with what follows from it.

    The arguments are as in `plan_run`.
    """
    longer = set_length(planned, overrides, steps=steps).experiment
    train = planned.experiment.train
    intervals = {"evaluate_every": train.evaluate_every, "checkpoint_every": train.checkpoint_every}
    changes = {
        f"train.{name}": -(-every * steps // train.steps)
        for name, every in intervals.items()
        if train.steps
    }
    return set_length(
        read_config(longer, merged({**changes, **_settled_norms(longer, say)}, overrides))
    )


def _settled_norms(experiment: Experiment, say: Callable[[str], None]) -> Changes:
    """Returns the decays that let the statistics of batch norm settle in a short run."""
    changes = settling_decays(experiment)
    if changes:
        say(f"batch norm settles within the run: {listed(changes)}")
    return changes


def listed(changes: Changes) -> str:
    """Returns changes to numbers as a phrase."""
    return ", ".join(f"{path}={value:g}" for path, value in changes.items())


def mixed_boxes(experiment: Experiment, stats: DatasetStats) -> Changes:
    """Returns the change that has room for the boxes of images that others are mixed into."""
    images = images_combined(experiment.train.augmentations)
    return {"data.train.max_boxes": stats.max_boxes * images} if images > 1 else {}
