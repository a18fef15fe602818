"""From a folder of images to an experiment, with the reasons said."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from stillbox.checking.advice.averages import statistics_arrive
from stillbox.checking.choosing.facts import Facts, read_facts
from stillbox.checking.choosing.records import FolderRecords, records_of
from stillbox.checking.choosing.table import (
    choose_batch,
    choose_epochs,
    choose_recipe,
    evaluate_every,
)
from stillbox.checking.memory.machine import Machine
from stillbox.checkpoints.checkpoint import EXPERIMENT
from stillbox.checkpoints.model_directory import ModelDirectory, is_model_directory
from stillbox.checkpoints.pretrained import find_weights
from stillbox.devices.job import main_process_first
from stillbox.experiment.known_weights import known_weights
from stillbox.experiment.resolve import Resolved, overridden, read_config
from stillbox.experiment.rules.trainable import CHECKPOINT
from stillbox.experiment.run_length import with_batch
from stillbox.experiment.schema import Experiment, Records
from stillbox.experiment.yaml_config import read_stored
from stillbox.records.files import refuse_links
from stillbox.training.length import set_length

Say = Callable[[str], None]

_RECORDS_FOLDER = "data"


def plan_run(
    config: str | Path | Experiment | None,
    data: str | Path,
    model_directory: Path,
    *,
    machine: Machine,
    overrides: Sequence[str] = (),
    steps: int | None = None,
    epochs: float | None = None,
    say: Say = lambda line: None,
    on_image: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Resolved:
    """Returns the experiment that trains on a folder; a run that exists keeps its own.

    Records go into the model directory. With a config only its data is replaced: paths, label map,
    number of classes and of boxes.

    Args:
        config: what to train; None: a recipe, batch and length for the data and the machine.
        data: a folder of annotated images, or of records with a label map.
        model_directory: of the run.
        machine: that it runs on.
        overrides: as for `resolve`; they win.
        steps: see `set_length`; likewise `epochs`.
        say: called with what was picked and why.
        on_image: progress of the conversion.

    Raises:
        UserError: the folder cannot be used, or the experiment contradicts itself.
    """
    own = model_directory / EXPERIMENT
    if is_model_directory(model_directory) and ModelDirectory.open(model_directory).steps():
        say(f"the experiment is that of the run in {model_directory}; {data} is not read again")
        stored = read_stored(ModelDirectory.open(model_directory).experiment, str(own))
        resumed = overridden(stored, overrides, str(own))
        return set_length(resumed, overrides, steps=steps, epochs=epochs)
    converted = model_directory / _RECORDS_FOLDER
    refuse_links(converted, below=model_directory)
    # The other processes of a job use what the first one has converted.
    with main_process_first():
        records = records_of(Path(data), converted, on_image)
    for line in records.said:
        say(line)
    facts = read_facts(Records(paths=records.train, label_map=records.label_map))
    say(facts.describe())
    chosen = _data_overrides(records, facts)
    if config is None:
        return _choose(facts, machine, chosen, overrides, steps, epochs, say)
    read = read_config(config, [*chosen, *overrides])
    return set_length(read, overrides, steps=steps, epochs=epochs)


def _choose(
    facts: Facts,
    machine: Machine,
    chosen: Sequence[str],
    overrides: Sequence[str],
    steps: int | None,
    epochs: float | None,
    say: Say,
) -> Resolved:
    recipe = choose_recipe(facts, machine)
    say(f"recipe {recipe.value}: {recipe.reason}")
    read = read_config(recipe.value, chosen)
    fixed = {override.partition("=")[0].strip() for override in overrides}
    if CHECKPOINT in fixed:
        changed = read_config(read.experiment, overrides).experiment
        weights = _given_weights(changed.train.fine_tune.checkpoint, say)
    else:
        weights = _first_weights(read.experiment, say)
    batch = choose_batch(read.experiment, facts, machine)
    if "train.batch_size" not in fixed:
        say(f"batch {batch.value}: {batch.reason}")
        size = int(batch.value)
    else:
        size = read_config(read.experiment, overrides).experiment.train.batch_size
    scaled = with_batch(read.experiment, size)
    if steps is None and epochs is None and "train.steps" not in fixed:
        length = choose_epochs(facts, size)
        say(f"{length.value} epochs: {length.reason}")
        epochs = float(length.value)
    measured = set_length(read_config(scaled, overrides), overrides, steps=steps, epochs=epochs)
    every = evaluate_every(measured.experiment.train.steps or 1, facts, size)
    last = [
        *weights,
        f"train.evaluate_every={every if measured.experiment.data.evaluation.paths else 0}",
        f"train.checkpoint_every={every}",
    ]
    last += _settled_norms(measured.experiment, say)
    return set_length(read_config(measured.experiment, [*last, *overrides]))


def _settled_norms(experiment: Experiment, say: Say) -> list[str]:
    """Returns the overrides that let the statistics of batch norm settle in a short run."""
    found = statistics_arrive(experiment, {})
    changes = [word for advice in found for word in advice.fix.split() if word != "--set"]
    if changes:
        say(f"batch norm settles within the run: {', '.join(changes)}")
    return changes


def _data_overrides(records: FolderRecords, facts: Facts) -> list[str]:
    return [
        f"data.train.paths={json.dumps(records.train)}",
        f"data.evaluation.paths={json.dumps(records.validation)}",
        f"data.train.label_map={json.dumps(records.label_map)}",
        f"data.evaluation.label_map={json.dumps(records.label_map if records.validation else '')}",
        f"data.train.max_boxes={facts.max_boxes}",
        f"data.evaluation.max_boxes={facts.max_boxes}",
        f"model.num_classes={facts.classes}",
    ]


def _given_weights(checkpoint: str, say: Say) -> list[str]:
    """Returns the overrides that go with weights that are asked for, or with none."""
    say(f"weights to start from: {checkpoint or 'random ones'}, as --set {CHECKPOINT} says")
    row = known_weights().get(checkpoint)
    return list(row.overrides()) if row else [f"{CHECKPOINT}={json.dumps(checkpoint)}"]


def _first_weights(experiment: Experiment, say: Say) -> list[str]:
    """Returns the overrides of weights that are on this machine; says what to get if none are."""
    checkpoint = experiment.train.fine_tune.checkpoint
    if checkpoint and Path(checkpoint).exists():
        say(f"weights to start from: {checkpoint}")
        return []
    fitting = [row for row in known_weights().values() if row.fits(experiment.model)]
    fitting.sort(key=lambda row: experiment.name not in row.recipes)
    for row in fitting:
        if find_weights(row.name) is not None:
            say(f"weights to start from: {row.name}, {row.about}")
            return list(row.overrides())
    what = f"; `stillbox weights get {fitting[0].name}` gets some" if fitting else ""
    say(
        "warning: random weights to start from, which need more images and more steps: none that "
        f"fit are on this machine{what}"
    )
    return [f"{CHECKPOINT}="]
