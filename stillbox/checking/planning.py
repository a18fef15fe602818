"""Picks an experiment for a folder of images and reports why: recipe, batch, length."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from stillbox.checking.candidates import (
    BATCH,
    RECIPES,
    SMALL,
    Time,
    candidates,
    choose,
    reason,
    recipes_alone,
)
from stillbox.checking.dataset_stats import DatasetStats, read_dataset_stats, room_in_tiles
from stillbox.checking.fitted_limits import COCO_RULE, fitted_limits, is_fitted
from stillbox.checking.fitting import Fitting, choose_epochs, listed, mixed_boxes
from stillbox.checking.machine_speed import measured_speed
from stillbox.checking.memory_verdict import Machine
from stillbox.checking.planning_records import (
    FolderRecords,
    records_of,
    refuse_other_source,
    write_source,
)
from stillbox.checking.planning_weights import (
    faster_start,
    has_weights,
    network_of_model,
    recipes_for_weights,
    refuse_other_model,
    weights_of,
)
from stillbox.checkpoints.checkpoint import EXPERIMENT
from stillbox.checkpoints.model_directory import ModelDirectory, is_model_directory
from stillbox.devices.job import is_main_process, main_process_first
from stillbox.errors import UserError
from stillbox.experiment.known_weights import known_weights
from stillbox.experiment.reading import Reading
from stillbox.experiment.resolve import Resolved, is_recipe, overridden, read_config, read_written
from stillbox.experiment.rules.missing import CHECKPOINT
from stillbox.experiment.schema import Experiment, Model, Records
from stillbox.experiment.updating import NO_CHANGES, Changes, merged
from stillbox.experiment.values import differences
from stillbox.experiment.yaml_config import place_paths, read_stored
from stillbox.image_kind import RGB_8
from stillbox.records.class_counts import short_table
from stillbox.records.files import refuse_links
from stillbox.records.label_map import LabelMap, required_classes
from stillbox.training.length import set_length
from stillbox.training.start import another_directory

_RECORDS_FOLDER, _PIXELS = "data", "model.pixels"
# What begins the paths of the fields that an input is chosen by.
_INPUT_FIELDS = ("model.resizer", "data.tiles")
# The part of the minutes that is left for steps, beside compilation and scores.
_OF_THE_MINUTES = 0.75
# A run without minutes may take as long as the usual length of the cheapest network, or so many.
_USUAL_MINUTES, _NO_LIMIT = 15, 10**12
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
    minutes: float | None = None,
    say: Callable[[str], None] = lambda line: None,
    on_image: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Resolved:
    """Returns the experiment that trains on a folder; a run that exists keeps its own.

    Records go into the model directory. The batch and length of a recipe are fitted to the data and
    the machine. In any other config only the data is replaced: paths, label map, number of classes
    and of boxes.

    Args:
        config: what to train; None: a recipe and an input for the data, the machine and the time.
        data: a folder of annotated images, or of records with a label map.
        overrides: as for `resolve`; they win.
        steps: see `set_length`; likewise `epochs`.
        minutes: that the command may take in all; the experiment is chosen for them.
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
    if written is not None:
        refuse_other_model(overridden(*written, overrides).experiment, overrides)
    records = _convert(Path(data), model_directory, on_image, _keeps_bits(config, overrides))
    for line in records.said:
        say(line)
    pixels = _pixels(records, config, overrides, say)
    train = Records(paths=records.train, label_map=records.label_map)
    stats = read_dataset_stats(train)
    say(stats.describe())
    for line in short_table(stats.class_counts):
        say(line)
    network = NO_CHANGES
    if written is None:
        length = _given_steps(overrides) if steps is None else steps
        time = _time(stats, machine, length, epochs, minutes)
        recipe, network = _network(stats, time, overrides, say)
        written = read_written(recipe)
    experiment = overridden(*written, merged(network, overrides)).experiment
    if experiment.data.tiles is not None:
        stats = replace(stats, max_boxes=room_in_tiles(train, experiment.data.tiles))
    chosen = merged(network, {**_data_changes(records, stats, experiment.model), **pixels})
    read = overridden(*written, merged(chosen, overrides))
    chosen = merged(chosen, _limits(read.experiment, stats, overrides, say))
    if config is None or is_recipe(config):
        fitting = Fitting(overridden(*written, chosen), overrides, stats, machine, say)
        return fitting.plan(steps, epochs, is_timed=minutes is not None)
    read = overridden(*written, merged(chosen, overrides))
    mixed = {**chosen, **mixed_boxes(read.experiment, stats)}
    read = overridden(*written, merged(mixed, overrides))
    return set_length(read, overrides, steps=steps, epochs=epochs)


def _limits(
    experiment: Experiment, stats: DatasetStats, overrides: Changes, say: Callable[[str], None]
) -> Changes:
    """Returns the limits with room for the fullest image, or tile."""
    fitted = fitted_limits(experiment.model, stats.max_boxes, overrides)
    if fitted:
        say(f"room for the fullest image: {listed(fitted)}; {COCO_RULE}")
    return fitted


def _network(
    stats: DatasetStats, time: Time, overrides: Changes, say: Callable[[str], None]
) -> tuple[str, Changes]:
    """Returns a recipe and its changes for a data set, and says why."""
    trained = network_of_model(overrides)
    if trained is not None:
        say(f"recipe {trained[0]}: the model {overrides[CHECKPOINT]} is of it")
        return trained
    fitting = recipes_for_weights(overrides, say)
    there = {recipe for recipe in RECIPES if recipe in (fitting or ()) or has_weights(recipe)}
    among = candidates(stats, time, has_weights=there.__contains__)
    if any(path.startswith(_INPUT_FIELDS) for path in overrides):
        among = recipes_alone(among)
    if fitting is not None:
        say(f"recipe {fitting[0]}: the weights {overrides[CHECKPOINT]} are for it")
        among = [candidate for candidate in among if candidate.recipe in fitting]
        if not among:
            return fitting[0], NO_CHANGES
    chosen = choose(among)
    say(f"candidates at {time.speed / 1e9:,.0f} GFLOP/s of training, as measured:")
    for candidate in among:
        mark = "->" if candidate is chosen else "  "
        say(f"{mark} {candidate.describe()}")
    say(f"recipe {chosen.recipe}: {reason(chosen, among)}")
    if faster := faster_start(chosen.recipe, overrides):
        say(faster)
    return chosen.recipe, chosen.changes


def _given_steps(overrides: Changes) -> int | None:
    """Returns the steps of a run that overrides set; None: they set none, or no limit."""
    field = "train.steps"
    if field not in overrides:
        return None
    read = overridden(*read_written(SMALL), {field: overrides[field]})
    return read.experiment.train.steps or None


def _time(
    stats: DatasetStats,
    machine: Machine,
    steps: int | None,
    epochs: float | None,
    minutes: float | None,
) -> Time:
    def usual_steps(samples: int) -> int:
        if steps is not None:
            return steps
        passes = epochs or float(choose_epochs(replace(stats, images=samples), BATCH).value)
        return max(1, round(passes * samples / BATCH))

    speed = measured_speed(machine)
    if minutes is not None:
        return Time(speed, _OF_THE_MINUTES * 60 * minutes, lambda samples: _NO_LIMIT)
    usual = Time(speed, _NO_LIMIT, usual_steps).seconds_of(usual_steps(stats.images))
    return Time(speed, max(60 * _USUAL_MINUTES, usual), usual_steps)


def _convert(
    data: Path, model_directory: Path, on_image: Callable[[str, int, int], None], keep_bits: bool
) -> FolderRecords:
    converted = model_directory / _RECORDS_FOLDER
    refuse_links(converted, below=model_directory)
    # The other processes of a job use what the first one has converted.
    with main_process_first():
        records = records_of(data, converted, on_image, keep_bits=keep_bits)
    if is_main_process():
        write_source(data, model_directory)
    return records


def _keeps_bits(config: str | Path | Experiment | None, overrides: Changes) -> bool:
    """Returns whether images of more than 8 bits are converted with all of them.

    They are for recipes, unless an override says that images have 8, and for other configs if these
    say that images have more.
    """
    if config is None or is_recipe(config):
        pixels = overrides.get(_PIXELS, {})
        bits = pixels.get("bits") if isinstance(pixels, dict) else None
        return overrides.get(f"{_PIXELS}.bits", bits) != RGB_8.bits
    return read_config(config, overrides).experiment.model.image_kind.bits > RGB_8.bits


def _pixels(
    records: FolderRecords,
    config: str | Path | Experiment | None,
    overrides: Changes,
    say: Callable[[str], None],
) -> Changes:
    """Returns the changes of a recipe for images that are not RGB of 8 bits."""
    kind = records.image_kind
    if config is not None and not is_recipe(config):
        return NO_CHANGES
    changes = {
        path: value
        for path, value in kind.settings.items()
        if not {_PIXELS, path} & overrides.keys()
    }
    if changes:
        say(f"the images have {kind}: {listed(changes)}")
    return changes


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
    if is_recipe(config):
        fitted = {**fitted, **stored.model.image_kind.settings}
    if weights and is_recipe(config):
        # The run was planned with their settings.
        fitted = {**fitted, **weights.settings}
    given = read_config(config, merged(fitted, overrides)).experiment
    changes = [
        f"model.{path}: {before!r} -> {now!r}"
        for path, before, now in differences(stored.model, given.model)
        if not is_fitted(path)
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
    row, faults = weights_of(overrides), []
    recipes = (*RECIPES, *(row.recipes if row else ()))
    for candidate in (written,) if written else map(read_written, recipes):
        try:
            overridden(*candidate, overrides)
        except UserError as error:
            faults.append(error)
        else:
            return
    raise faults[0]


def _data_changes(records: FolderRecords, stats: DatasetStats, model: Model) -> Changes:
    label_map = LabelMap.from_file(records.label_map)
    return {
        "data.train.paths": records.train,
        "data.evaluation.paths": records.validation,
        "data.train.label_map": records.label_map,
        "data.evaluation.label_map": records.label_map if records.validation else "",
        "data.train.max_boxes": stats.max_boxes,
        "data.evaluation.max_boxes": stats.max_boxes,
        "model.num_classes": required_classes(label_map, model.class_slots),
    }
