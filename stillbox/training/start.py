"""The start of a run: resume, fine-tune or from scratch."""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax

from stillbox.checkpoints.checkpoint import Checkpoint
from stillbox.checkpoints.importer import ImportOptions, import_weights
from stillbox.checkpoints.model_directory import CHECKPOINTS, ModelDirectory, is_model_directory
from stillbox.checkpoints.remote_directory import ModelPlace
from stillbox.checkpoints.weights_file import open_weights
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.run_length import depends_on_replicas
from stillbox.experiment.values import Plain, differences
from stillbox.experiment.yaml_config import store_paths
from stillbox.inputs.dataset import Dataset
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from stillbox.printing import count_text
from stillbox.records.label_map import LabelMap
from stillbox.references import Parameter, Setting
from stillbox.training.distillation import TEACHER
from stillbox.training.norm_statistics import MEASURED_IMAGES, measure_norms
from stillbox.training.state import TrainState, create_state

# Fields that may change when a run is resumed: none of them changes what a step computes. Records
# may move to another folder; `_refuse_other_data` compares them.
_FREE_TO_CHANGE = (
    "name",
    "train.steps",
    "train.log_every",
    "train.summary_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.loggers",
    "train.rematerialization",
    "train.evaluate_every",
    "train.early_stopping",
    "train.fine_tune",
    # The weights of the teacher are compared, not their folder.
    "train.distillation.teacher",
    "data.workers",
    "data.processes",
    "data.prefetch",
    "data.cache_images",
    "data.evaluation",
    "data.train.paths",
    "data.train.label_map",
    "evaluation",
    "devices.spatial_partitions",
    "devices.shard",
    # The run warns if the number differs.
    "devices.replicas",
)

# Parts of paths that can change without an edit, and names for them: a schedule follows the number
# of steps, and newer readers of `pipeline.config` set more fields.
_FOLLOWING = {
    "train.optimizer.schedule.": "schedule",
    "train.optimizer.rate_in_accumulator": "update rule",
    ".skip_last_steps": "end of the augmentations",
    "train.ema_warmup": "average",
    "train.ema_from_zero": "average",
}


def another_directory(directory: Path) -> str:
    """Returns the remedy for what does not belong to the run in a directory."""
    quoted = shlex.quote(str(directory))
    return (
        f"or take a new {Parameter('model_dir')}; `{Parameter('weights', f'{quoted}')}` there "
        "begins with the weights of this run"
    )


@dataclass(frozen=True)
class Start:
    """The state before the first step, and its origin."""

    state: TrainState
    decision: str
    notes: tuple[str, ...] = ()
    """What else is to be said of the first weights."""


@dataclass(frozen=True)
class ResumePoint:
    """A run that can be resumed."""

    place: ModelPlace
    directory: ModelDirectory
    step: int
    """The step of the newest checkpoint."""


def find_previous(
    experiment: schema.Experiment, place: ModelPlace, dataset: Dataset
) -> ResumePoint | None:
    """Returns the run to resume, or None if the model directory is new or holds no checkpoint.

    Raises:
        UserError: the directory belongs to a different experiment or to different data.
    """
    directory = place.folder
    store = ModelDirectory.open(directory) if is_model_directory(directory) else None
    latest = store.latest_step() if store else None
    if store is None or latest is None:
        return None
    # Users may edit the copies beside the checkpoints; they are not compared.
    with _way_out(place, latest):
        checkpoint = store.checkpoint(latest)
    _refuse_other_experiment(experiment, checkpoint, directory)
    _refuse_other_data(dataset, checkpoint, directory)
    return ResumePoint(place, store, latest)


def require_weights(experiment: schema.Experiment) -> None:
    """Refuses first weights that are absent or of an unknown kind, before anything is traced."""
    fine_tune = experiment.train.fine_tune
    if fine_tune.checkpoint:
        open_weights(fine_tune.checkpoint, model=experiment.model, scope=fine_tune.scope)


def start_run(
    experiment: schema.Experiment,
    trainable: frozenset[str],
    directory: Path,
    previous: ResumePoint | None,
) -> Start:
    """Chooses the initial weights by the first of three cases that applies. Nothing is written.

    1. The model directory holds a checkpoint: resume from the newest; `fine_tune` has no effect.
    2. `train.fine_tune.checkpoint` is given: fresh weights, then the checkpoint's.
    3. Neither: fresh weights.

    Raises:
        UserError: the checkpoint fits badly or is damaged.
    """
    train = experiment.train
    dtype = jax.numpy.dtype(train.precision)
    detector = build_detector(
        experiment.model, seed=train.seed, dtype=dtype, quantization=train.quantization
    )
    report, measured = None, 0
    if previous is None and train.fine_tune.checkpoint:
        report = import_weights(
            detector,
            experiment.model,
            train.fine_tune.checkpoint,
            ImportOptions.of_training(train.fine_tune),
        )
        measured = measure_norms(detector, experiment, report.without_statistics)
    _, params, stats = split_detector(detector)
    # One program, where each shape would otherwise have its own.
    create = jax.jit(partial(create_state, train=train, trainable=trainable))
    state = create(params, stats, loss=detector.initial_loss_state())

    if previous is not None:  # case 1
        state = TrainState(**_restore(previous, state))
        decision = f"resuming at step {previous.step} from {directory}"
        if train.fine_tune.checkpoint:
            decision += "; train.fine_tune.checkpoint has no effect"
    elif report is not None:  # case 2
        decision = f"fine-tuning from {train.fine_tune.checkpoint}: {report.summary()}"
        if measured:
            decision += (
                f"; {count_text(measured, 'batch norm')} without statistics, measured on "
                f"{MEASURED_IMAGES} training images"
            )
    else:  # case 3
        decision = (
            f"from scratch: {directory} holds no checkpoint and train.fine_tune.checkpoint "
            "is not given"
        )
    return Start(state, decision, report.notes if report else ())


def replicas_before(directory: Path, step: int, experiment: schema.Experiment) -> int | None:
    """Returns the number of replicas that trained a checkpoint, if results depend on it."""
    if not step or not depends_on_replicas(experiment.model):
        return None
    # Older checkpoints do not hold it.
    replicas = ModelDirectory.open(directory).read_metadata(step).get("replicas")
    return replicas if isinstance(replicas, int) else None


def recorded_teacher(previous: ResumePoint | None) -> object:
    """Returns what a run to resume has recorded of its teacher; None without one."""
    return previous and previous.directory.read_metadata(previous.step).get(TEACHER)


def _restore(previous: ResumePoint, state: TrainState) -> dict[str, Any]:
    # Older checkpoints lack sections that were added later; without arrays these have no effect.
    sections = {name: tree for name, tree in state._asdict().items() if jax.tree.leaves(tree)}
    with _way_out(previous.place, previous.step):
        return state._asdict() | previous.directory.restore(previous.step, sections)


@contextmanager
def _way_out(place: ModelPlace, step: int) -> Iterator[None]:
    """Adds the way to continue to the error about a checkpoint that cannot be read."""
    try:
        yield
    except UserError as error:
        older = [other for other in place.steps() if other < step]
        folder = place.folder / CHECKPOINTS / str(step)
        raise UserError(
            f"the newest checkpoint cannot be resumed from: {error.what}",
            where=error.where,
            fix=f"remove {folder} to go on from step {older[-1]}"
            if older
            else f"take a new {Parameter('model_dir')}",
        ) from error


def _refuse_other_data(dataset: Dataset, previous: Checkpoint, directory: Path) -> None:
    """Refuses other records: the position in the data would be meaningless."""
    loader, now = previous.metadata.get("loader"), len(dataset.source)
    stored = loader if isinstance(loader, dict) else {}
    before, files = stored.get("records"), dataset.source.fingerprint()
    if before != now:
        problem = f"the number of training records was {before} and is {now}"
    # Older checkpoints do not hold it.
    elif stored.get("files", files) != files:
        problem = "the training records are in files of other names or sizes"
    elif LabelMap.from_text(previous.label_map, str(previous.folder)) != dataset.label_map:
        problem = "the label map of the training records is another one"
    else:
        return
    problem = f"the model directory holds checkpoints of different data: {problem}"
    begun = "give the records and the label map that it was begun with"
    raise UserError(problem, where=str(directory), fix=f"{begun}, {another_directory(directory)}")


def _refuse_other_experiment(
    experiment: schema.Experiment, previous: Checkpoint, directory: Path
) -> None:
    before = store_paths(previous.read_experiment(), directory)
    changes = [
        change
        for change in differences(before, store_paths(experiment, directory))
        if not change[0].startswith(_FREE_TO_CHANGE)
    ]
    changed = [f"{path}: {old!r} -> {new!r}" for path, old, new in changes]
    if changed:
        raise UserError(
            "the model directory holds checkpoints of a different experiment:\n    "
            + "\n    ".join(changed),
            where=str(directory),
            fix=f"{_undoing(changes)}, {another_directory(directory)}",
        )


def _undoing(changes: list[tuple[str, Plain, Plain]]) -> str:
    kept = [
        next((word for part, word in _FOLLOWING.items() if part in path), None)
        for path, _, _ in changes
    ]
    if None in kept:
        return "undo the changes"
    values = " ".join(f"{Setting(path, json.dumps(old))}" for path, old, _ in changes)
    return f"{values} keeps the {' and the '.join(map(str, dict.fromkeys(kept)))}"
