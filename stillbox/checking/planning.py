"""Picks an experiment for a folder of images and reports why: recipe, batch, length."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from stillbox.checking.advice.training import settling_decays
from stillbox.checking.config import images_combined
from stillbox.checking.memory_verdict import Machine, fits_for_certain
from stillbox.checking.planning_records import (
    DatasetStats,
    FolderRecords,
    read_dataset_stats,
    records_of,
    refuse_other_source,
    write_source,
)
from stillbox.checkpoints.checkpoint import EXPERIMENT
from stillbox.checkpoints.model_directory import ModelDirectory, is_model_directory
from stillbox.checkpoints.pretrained import find_weights
from stillbox.devices.job import is_main_process, main_process_first
from stillbox.errors import UserError
from stillbox.experiment.known_weights import KnownWeights, known_weights
from stillbox.experiment.reading import Reading
from stillbox.experiment.resolve import Resolved, is_recipe, overridden, read_config, read_written
from stillbox.experiment.rules.missing import CHECKPOINT
from stillbox.experiment.run_length import with_batch
from stillbox.experiment.schema import Experiment, Records
from stillbox.experiment.updating import NO_CHANGES, Changes, merged
from stillbox.experiment.values import differences
from stillbox.experiment.yaml_config import place_paths, read_stored
from stillbox.printing import count_text
from stillbox.records.files import refuse_links
from stillbox.references import Parameter
from stillbox.training.length import set_length
from stillbox.training.start import another_directory

SMALL, SSD, PYRAMID, LARGE = (
    "gfl_mobile",
    "ssd_mobilenet_v1_bccd",
    "ssd_mobilenet_v1_fpn_640x640",
    "ssd_resnet50_v1_fpn_640x640",
)
# Measured: docs/training.md.
_GAIN = "after 520 steps on BCCD, ImageNet weights had AP .544, random ones .392"
# 13 pixels at 320x320: not two cells of the finest feature map of the small recipe.
_LEAST_SIDE = 0.04
# A ResNet-50 needs many images before it is better than a MobileNet, and an accelerator.
_MANY_IMAGES = 5000
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
# Fewer steps do not warm batch norm up.
_LEAST_STEPS = 300
_EVALUATIONS = 10


@dataclass(frozen=True)
class Choice:
    """A value and the reason for it."""

    value: str
    reason: str


def choose_recipe(stats: DatasetStats, machine: Machine) -> Choice:
    """Returns the name of the recipe for a data set on a machine."""
    if stats.small_side < _LEAST_SIDE:
        side = f"one box in ten is smaller than {100 * _LEAST_SIDE:.0f} % of the image"
        return Choice(PYRAMID, f"{side}, which needs an input of 640 x 640 and a feature pyramid")
    if machine.platform == "cpu":
        large = "the boxes are large enough"
        if not _has_weights(SMALL) and _has_weights(SSD):
            # AP .457 on BCCD from these weights, .392 for the other from random ones.
            return Choice(SSD, f"{large} for 300 x 300, and weights for it are on this machine")
        return Choice(SMALL, f"{large} for 320 x 320, and it learns most in minutes on a CPU")
    if stats.images >= _MANY_IMAGES:
        return Choice(LARGE, f"{count_text(stats.images, 'image')}: enough for a ResNet-50")
    return Choice(PYRAMID, f"{count_text(stats.images, 'image')}: few for a ResNet-50")


def _recipe_for_weights(chosen: Choice, overrides: Changes) -> Choice:
    """Returns a recipe that takes the known weights of the overrides, the chosen one if it does.

    Raises:
        UserError: no recipe takes them.
    """
    row = _weights_of(overrides)
    if row is None or chosen.value in row.recipes:
        return chosen
    if row.fits(read_config(chosen.value).experiment.model):
        return chosen
    if not row.recipes:
        problem = f"no recipe takes the weights {row.name}"
        fix = "give the pipeline.config of their archive as the config"
        raise UserError(problem, where=CHECKPOINT, fix=fix)
    return Choice(row.recipes[0], f"the weights {row.name} are for it")


def _weights_of(overrides: Changes) -> KnownWeights | None:
    """Returns the known weights that overrides name."""
    return known_weights().get(str(overrides.get(CHECKPOINT)))


def _has_weights(recipe: str) -> bool:
    """Whether weights that the recipe starts from are installed or downloaded."""
    rows = [row for row in known_weights().values() if recipe in row.recipes]
    return any(find_weights(row.name) is not None for row in rows)


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


def evaluate_every(steps: int, stats: DatasetStats, batch_size: int) -> int:
    """Returns the steps between two evaluations: at most ten in a run, at least one epoch apart."""
    return max(steps // _EVALUATIONS, -(-stats.images // batch_size))


_RECORDS_FOLDER = "data"
# Differences of a model that a message names.
_SHOWN = 5


def plan_run(
    config: str | Path | Experiment | None,
    data: str | Path,
    model_directory: Path,
    *,
    machine: Machine,
    overrides: Changes = NO_CHANGES,
    steps: int | None = None,
    epochs: float | None = None,
    say: Callable[[str], None] = lambda line: None,
    on_image: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Resolved:
    """Returns the experiment that trains on a folder; a run that exists keeps its own.

    Records go into the model directory. The batch and length of a recipe are fitted to the data and
    the machine. In any other config only the data is replaced: paths, label map, number of classes
    and of boxes.

    Args:
        config: what to train; None: a recipe for the data and the machine.
        data: a folder of annotated images, or of records with a label map.
        overrides: as for `resolve`; they win.
        steps: see `set_length`; likewise `epochs`.
        say: called with what was picked and why.

    Raises:
        UserError: the folder cannot be used, the experiment contradicts itself, or the model
            directory holds a run of another model or on other data.
    """
    if has_run(model_directory):
        say(f"the experiment is that of the run in {model_directory}")
        refuse_other_source(Path(data), model_directory)
        if config is not None:
            _refuse_other_model(config, overrides, model_directory)
        return plan_resumed(model_directory, overrides=overrides, steps=steps, epochs=epochs)
    # Before the conversion of a folder, which may take an hour.
    written = read_written(config) if config is not None else None
    _refuse_misspelt(written, overrides)
    records = _convert(Path(data), model_directory, on_image)
    for line in records.said:
        say(line)
    stats = read_dataset_stats(Records(paths=records.train, label_map=records.label_map))
    say(stats.describe())
    chosen = _data_changes(records, stats)
    if written is None:
        recipe = _recipe_for_weights(choose_recipe(stats, machine), overrides)
        say(f"recipe {recipe.value}: {recipe.reason}")
        written = read_written(recipe.value)
    if config is None or is_recipe(config):
        fitting = _Fitting(overridden(*written, chosen), overrides, stats, machine, say)
        return fitting.plan(steps, epochs)
    read = overridden(*written, merged(chosen, overrides))
    mixed = {**chosen, **_mixed_boxes(read.experiment, stats)}
    read = overridden(*written, merged(mixed, overrides))
    return set_length(read, overrides, steps=steps, epochs=epochs)


def _convert(
    data: Path, model_directory: Path, on_image: Callable[[str, int, int], None]
) -> FolderRecords:
    converted = model_directory / _RECORDS_FOLDER
    refuse_links(converted, below=model_directory)
    # The other processes of a job use what the first one has converted.
    with main_process_first():
        records = records_of(data, converted, on_image)
    if is_main_process():
        write_source(data, model_directory)
    return records


def has_run(model_directory: Path) -> bool:
    """Whether the model directory has a checkpoint that can be resumed from."""
    return is_model_directory(model_directory) and bool(
        ModelDirectory.open(model_directory).steps()
    )


def plan_resumed(
    model_directory: Path,
    *,
    overrides: Changes = NO_CHANGES,
    steps: int | None = None,
    epochs: float | None = None,
) -> Resolved:
    """Returns the experiment of the run in a model directory; for the arguments see `plan_run`.

    Raises:
        UserError: it is damaged, or contradicts itself with its overrides.
    """
    stored_at = str(model_directory / EXPERIMENT)
    resumed = overridden(_stored(model_directory), stored_at, overrides)
    return set_length(resumed, overrides, steps=steps, epochs=epochs)


def _stored(model_directory: Path) -> Reading:
    stored_at = str(model_directory / EXPERIMENT)
    stored = read_stored(ModelDirectory.open(model_directory).experiment, stored_at)
    return replace(stored, experiment=place_paths(stored.experiment, model_directory))


def _refuse_other_model(
    config: str | Path | Experiment, overrides: Changes, model_directory: Path
) -> None:
    """Refuses a config of another model than the run's, except for what is fitted to the data."""
    stored = _stored(model_directory).experiment
    fitted: Changes = {"model.num_classes": stored.model.num_classes}
    weights = known_weights().get(stored.train.fine_tune.checkpoint)
    if weights and is_recipe(config):
        # The run was planned with their settings.
        fitted = {**fitted, **weights.settings}
    given = read_config(config, merged(fitted, overrides)).experiment
    changes = [
        f"model.{path}: {before!r} -> {now!r}"
        for path, before, now in differences(stored.model, given.model)
        if not path.endswith("batch_norm.decay")
    ]
    if changes:
        lines = [f"name: {stored.name!r} -> {given.name!r}"] * (stored.name != given.name)
        more = len(changes) - _SHOWN
        lines += changes[:_SHOWN] + [f"and {more} more"] * (more > 0)
        problem = "the model directory holds a run of another model:\n    " + "\n    ".join(lines)
        fix = f"leave the config out to resume the run, {another_directory(model_directory)}"
        raise UserError(problem, where=str(model_directory), fix=fix)


def _refuse_misspelt(written: tuple[Reading, str] | None, overrides: Changes) -> None:
    """Applies overrides to what is written, or else to recipes until one has their fields."""
    row, faults = _weights_of(overrides), []
    recipes = (SMALL, SSD, PYRAMID, LARGE, *(row.recipes if row else ()))
    for candidate in (written,) if written else map(read_written, recipes):
        try:
            overridden(*candidate, overrides)
        except UserError as error:
            faults.append(error)
        else:
            return
    raise faults[0]


@dataclass(frozen=True)
class _Fitting:
    """A recipe that is fitted to a data set and a machine."""

    read: Resolved
    """With the fields of the data."""
    overrides: Changes
    stats: DatasetStats
    machine: Machine
    say: Callable[[str], None]

    def plan(self, steps: int | None, epochs: float | None) -> Resolved:
        """Returns the recipe with weights, batch, length and evaluations; see `plan_run`."""
        weights = self._weights()
        scaled = with_batch(self.read.experiment, self._batch())
        read = read_config(scaled, self.overrides)
        if steps is None and epochs is None and "train.steps" not in self.overrides:
            length = choose_epochs(self.stats, read.experiment.train.batch_size)
            self.say(f"{count_text(int(length.value), 'epoch')}: {length.reason}")
            epochs = float(length.value)
        measured = set_length(read, self.overrides, steps=steps, epochs=epochs).experiment
        last = {**weights, **self._last(measured)}
        return set_length(read_config(measured, merged(last, self.overrides)))

    def _weights(self) -> Changes:
        experiment = self._overridden()
        if CHECKPOINT in self.overrides:
            return _given_weights(experiment.train.fine_tune.checkpoint, self.say)
        return first_weights(experiment, self.say)

    def _batch(self) -> int:
        experiment = self._overridden()
        if "train.batch_size" in self.overrides:
            return experiment.train.batch_size
        batch = choose_batch(experiment, self.stats, self.machine)
        self.say(f"batch {batch.value}: {batch.reason}")
        return int(batch.value)

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
            **_mixed_boxes(measured, self.stats),
        }


def _settled_norms(experiment: Experiment, say: Callable[[str], None]) -> Changes:
    """Returns the decays that let the statistics of batch norm settle in a short run."""
    changes = settling_decays(experiment)
    if changes:
        decays = ", ".join(f"{path}={decay:g}" for path, decay in changes.items())
        say(f"batch norm settles within the run: {decays}")
    return changes


def _data_changes(records: FolderRecords, stats: DatasetStats) -> Changes:
    return {
        "data.train.paths": records.train,
        "data.evaluation.paths": records.validation,
        "data.train.label_map": records.label_map,
        "data.evaluation.label_map": records.label_map if records.validation else "",
        "data.train.max_boxes": stats.max_boxes,
        "data.evaluation.max_boxes": stats.max_boxes,
        "model.num_classes": stats.classes,
    }


def _mixed_boxes(experiment: Experiment, stats: DatasetStats) -> Changes:
    """Returns the change that has room for the boxes of images that others are mixed into."""
    images = images_combined(experiment.train.augmentations)
    return {"data.train.max_boxes": stats.max_boxes * images} if images > 1 else {}


def _given_weights(checkpoint: str, say: Callable[[str], None]) -> Changes:
    """Returns the changes that belong to the weights that were asked for."""
    say(f"weights to start from: {checkpoint or 'random ones'}, as given")
    row = known_weights().get(checkpoint)
    return row.changes() if row else {CHECKPOINT: checkpoint}


def first_weights(experiment: Experiment, say: Callable[[str], None]) -> Changes:
    """Returns the changes for weights on this machine; if there are none, says which to get."""
    checkpoint = experiment.train.fine_tune.checkpoint
    if checkpoint and Path(checkpoint).exists():
        say(f"weights to start from: {checkpoint}")
        return {}
    rows = known_weights().values()
    fitting = [row for row in rows if row.fits(experiment.model) and not row.folded]
    fitting.sort(key=lambda row: experiment.name not in row.recipes)
    for row in fitting:
        if find_weights(row.name) is not None:
            say(f"weights to start from: {row.name}, {row.about}")
            return row.changes()
    remedy = f"; `stillbox weights get {fitting[0].name}` gets some" if fitting else ""
    if experiment.name == SMALL:
        remedy += f" ({_GAIN})"
    say(
        "warning: random weights to start from, which need more images and more steps: none that "
        f"fit are on this machine{remedy}"
    )
    return {CHECKPOINT: ""}
