"""Reads a CONFIG of the command line as an experiment; files of other programs are recognised by
name.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from stillbox.errors import UserError, nearest
from stillbox.experiment import rules
from stillbox.experiment.imports import import_entry_points
from stillbox.experiment.known_weights import known_weights
from stillbox.experiment.model_garden import garden_reader, is_garden
from stillbox.experiment.params_dict import is_dictionary, read_layers
from stillbox.experiment.pipeline_config.reader import read_block
from stillbox.experiment.reading import READERS, Reading
from stillbox.experiment.recipes import recipe_names, recipe_path
from stillbox.experiment.run_length import resolve_schedule
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import NO_CHANGES, Changes, apply_changes
from stillbox.experiment.yaml_config import CHECKPOINTS, input_paths, place_paths, read_tree
from stillbox.object_storage import local_path, name_buckets, note_stored_buckets
from stillbox.references import Command, Setting, references
from stillbox.textformat.parser import Block, parse
from stillbox.textformat.yaml_tree import Node, compose, read_text_file

_ANOTHER = "write the experiment as a pipeline.config or as YAML of stillbox: `stillbox recipes`"
_DATA = (
    f"convert the data set, {Command('data convert', help=True)}, and name a recipe as the config"
)
_NO_MODEL = "give the config of a model"
_AUTOML_FIX = "take a recipe of EfficientDet, `stillbox recipes`, and set what differs"
# Names of AutoML's EfficientDet (`hparams_config.py` of google/automl) that no other format has.
_AUTOML = (
    *("var_freeze_expr", "moving_average_decay", "lr_warmup_epoch", "lr_warmup_init"),
    *("fpn_cell_repeats", "box_class_repeats", "fpn_num_filters", "fpn_weight_method"),
    *("anchor_scale", "num_scales", "is_training_bn", "input_rand_hflip", "nms_configs"),
    *("max_instances_per_image", "jitter_min", "jitter_max", "ckpt_var_scope", "skip_mismatch"),
    *("clip_gradients_norm", "autoaugment_policy"),
    *("first_lr_drop_epoch", "second_lr_drop_epoch", "lr_decay_method", "positives_momentum"),
    *("map_freq", "survival_prob", "iou_loss_type", "grad_checkpoint"),
    *("num_classes image_size", "num_classes label_map", "num_classes num_epochs"),
)
# Names at the top, all of which a file has; its content; the remedy. The first that fits counts.
_SIGNATURES: tuple[tuple[frozenset[str], str, str], ...] = tuple(
    (frozenset(names.split()), content, fix)
    for names, content, fix in (
        ("apiVersion kind", "a manifest of Kubernetes", _NO_MODEL),
        ("nc backbone head", "a model of Ultralytics (YOLO)", _ANOTHER),
        ("task mode model", "the arguments of a run of Ultralytics (YOLO)", _ANOTHER),
        ("train names", "a data.yaml of Ultralytics (YOLO)", _DATA),
        ("val names", "a data.yaml of Ultralytics (YOLO)", _DATA),
        ("nc names", "a data.yaml of Ultralytics (YOLO)", _DATA),
        ("images annotations", "annotations of COCO", _DATA),
        ("images categories", "annotations of COCO", _DATA),
        ("MODEL SOLVER", "a config of Detectron2", _ANOTHER),
        ("MODEL DATASETS", "a config of Detectron2", _ANOTHER),
        ("_BASE_", "a config of Detectron2 or PaddleDetection", _ANOTHER),
        ("model_type", "a config of Hugging Face Transformers", _ANOTHER),
        ("architectures", "a config of Hugging Face Transformers", _ANOTHER),
        ("image_processor_type", "a preprocessor of Hugging Face Transformers", _ANOTHER),
        ("TrainReader EvalReader", "a config of PaddleDetection", _ANOTHER),
        ("services", "a file of Docker Compose", _NO_MODEL),
        ("dependencies channels", "an environment of conda", _NO_MODEL),
        ("dependencies name", "an environment of conda", _NO_MODEL),
        ("jobs", "a workflow of GitHub", _NO_MODEL),
        ("cluster_name provider", "a cluster of Ray", _NO_MODEL),
        *((names, "a config of AutoML's EfficientDet", _AUTOML_FIX) for names in _AUTOML),
    )
)


def refuse_python(path: Path) -> None:
    """Refuses a config that is a program.

    Raises:
        UserError: the name is one of Python.
    """
    if path.suffix == ".py":
        problem = "this is a Python program, as configs of MMDetection and Detectron2 are"
        raise UserError(problem, where=str(path), fix=_ANOTHER)


def refuse_others(root: Node) -> None:
    """Refuses YAML or JSON of another program.

    Raises:
        UserError: names the program.
    """
    names = set(root.value) if isinstance(root.value, dict) else set()
    for signature, content, fix in _SIGNATURES:
        if signature <= names:
            raise UserError(
                f"this is {content}, not a config of stillbox", where=root.where, fix=fix
            )


_PIPELINE_SUFFIXES = (".config", ".pbtxt", ".prototxt", ".textproto")
_YAML_SUFFIXES = (".yaml", ".yml")
_SUFFIXES = _PIPELINE_SUFFIXES + _YAML_SUFFIXES
_PIPELINE_SECTION = re.compile(
    r"^[ \t]*+(model|train_config|train_input_reader|eval_config|eval_input_reader|graph_rewriter)"
    r"\s*+:?\s*+[{<][ \t]*+(#.*)?$",
    re.MULTILINE,
)


Tree = Block | Node | None
"""A config as parsed: text format, YAML, or a format that only its own reader parses."""


@dataclass(frozen=True, kw_only=True)
class Resolved(Reading):
    """An experiment that is read, overridden and checked."""

    source: str
    """The file that was read."""


def resolve(config: str | Path, overrides: Changes = NO_CHANGES) -> Resolved:
    """Reads an experiment of any dialect.

    Args:
        config: a recipe's name, a `pipeline.config` in text format, or YAML: an experiment, the
            parameter dictionary of "Object Detection Models on TPU", or an experiment of
            TensorFlow Model Garden.
        overrides: dotted field -> value, see `updating.apply_changes`.

    Raises:
        UserError: there is no such file or recipe, it cannot be read, or it contradicts itself.
    """
    return resolve_reading(*read_written(config), overrides)


def resolve_reading(reading: Reading, source: str, overrides: Changes = NO_CHANGES) -> Resolved:
    """Applies overrides to an experiment that is read already, and checks it.

    Raises:
        UserError: the experiment contradicts itself.
    """
    read = overridden(reading, source, overrides)
    rules.check(read.experiment, read.origins)
    warnings = rules.warnings_about(read.experiment, read.origins)
    return replace(read, warnings=(*read.warnings, *warnings))


def read_experiment(config: str | Path, overrides: Changes = NO_CHANGES) -> Experiment:
    """Reads an experiment of any dialect; arguments and errors as of `resolve`."""
    return resolve(config, overrides).experiment


def changed(experiment: Experiment, changes: Changes) -> Experiment:
    """Returns an experiment with other values, such as `{"train.batch_size": 8}`.

    Args:
        experiment: what is changed.
        changes: dotted field -> value. A new `kind` takes that variant's defaults.

    Raises:
        UserError: an unknown field, a wrong value, or values that contradict each other.
    """
    return resolve_reading(Reading(experiment=experiment, origins={}), "", changes).experiment


def read_config(config: str | Path | Experiment, overrides: Changes = NO_CHANGES) -> Resolved:
    """Reads an experiment without checking it against any rule.

    Only the reader warns. Everything else is as with `resolve`. An experiment
    is taken as it is, with the overrides.

    Raises:
        UserError: there is no such file or recipe, or it cannot be read.
    """
    return overridden(*read_written(config), overrides)


def read_written(config: str | Path | Experiment) -> tuple[Reading, str]:
    """Returns a config as it is written, and its file; arguments and errors as of `read_config`."""
    if isinstance(config, Experiment):
        return Reading(experiment=config, origins={}), ""
    path = find_config(config)
    return _read_named(path), str(path)


def _read_named(path: Path) -> Reading:
    """Reads a config; it names its buckets, unless it is a copy in a model directory."""
    reading, folder = _read(path), path.parent
    copied = (folder / CHECKPOINTS).is_dir() or folder.parent.name == CHECKPOINTS
    for address in input_paths(reading.experiment):
        (note_stored_buckets if copied else name_buckets)(address)
    return reading


def overridden(reading: Reading, source: str, overrides: Changes = NO_CHANGES) -> Resolved:
    """Returns an experiment with overrides, and with the schedule that follows from its steps."""
    # Overrides come before the rules: they can mend a file.
    origins = dict(reading.origins)
    changed = apply_changes(reading.experiment, overrides, origins)
    experiment, shortened = resolve_schedule(changed)
    return Resolved(
        experiment=experiment,
        origins=origins,
        warnings=(*_still_true(reading.warnings, reading, overrides), *shortened),
        notes=_still_true(reading.notes, reading, overrides),
        source=source,
    )


def _still_true(texts: Iterable[str], reading: Reading, overrides: Changes) -> tuple[str, ...]:
    """Leaves out what a reader says of fields that overrides set.

    A text says something of the field at its place in the file, and of the settings that it names.
    """
    places = tuple(
        f"{place}: "
        for field, place in reading.origins.items()
        if any(_overlap(field, path) for path in overrides)
    )

    def concerns(text: str) -> bool:
        named = [setting.path for setting in references(text) if isinstance(setting, Setting)]
        return text.startswith(places) or any(
            _overlap(field, path) for field in named for path in overrides
        )

    return tuple(text for text in texts if not concerns(text))


def _overlap(path: str, other: str) -> bool:
    """Tells whether one of two fields is the other or a part of it."""
    return f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.")


def is_recipe(config: str | Path | Experiment) -> bool:
    """Whether a config is the name of a recipe, and not of a file."""
    if isinstance(config, Experiment) or str(config) not in recipe_names():
        return False
    return not Path(config).is_file()


def classes_of_weights(config: str | Path | Experiment, weights: str | Path) -> Changes:
    """Returns the changes that give a recipe the classes of a detector's weights by name."""
    row = known_weights().get(str(weights))
    if row is None or Path(weights).exists() or not is_recipe(config):
        return NO_CHANGES
    return row.detector_changes()


def find_config(config: str | Path) -> Path:
    """Returns the file of a config or recipe.

    Raises:
        UserError: there is none.
    """
    # A recipe goes before a folder of its name, which is most likely its model directory.
    if is_recipe(config):
        return recipe_path(str(config))
    path = local_path(config)
    if path.is_dir():
        stored = path / "experiment.yaml"
        raise UserError(
            f"{path} is a folder",
            fix=f"give {stored} to take the experiment of this model directory"
            if stored.is_file()
            else "give a config file, or a recipe: " + ", ".join(recipe_names()),
        )
    # What is no regular file is refused by its kind, where it is read.
    if path.exists():
        return path
    if not path.parent.is_dir():
        raise _no_folder(path)
    if path.suffix or len(path.parts) > 1:
        others = [entry.name for entry in _entries(path.parent) if entry.suffix in _SUFFIXES]
        none = f"no config is in {path.parent}; `stillbox recipes` lists those that are built in"
        raise UserError(
            f"there is no file {path}", fix=nearest(path.name, others) if others else none
        )
    problem = f"there is neither a file nor a recipe {str(config)!r}"
    raise UserError(problem, fix=nearest(str(config), recipe_names()))


def _no_folder(path: Path) -> UserError:
    """Names the first folder of a path that is missing."""
    missing = path.parent
    while not missing.parent.is_dir():
        missing = missing.parent
    if missing.exists():
        problem = f"there is no file {path}: {missing} is not a folder"
        return UserError(problem, fix="give the path of a config, or the name of a recipe")
    folders = [entry.name for entry in _entries(missing.parent) if entry.is_dir()]
    close = nearest(missing.name, folders, limit=1)
    fix = close if close.startswith("did you mean") else f"from {Path.cwd()}, is the path right?"
    return UserError(f"there is no file {path}: there is no folder {missing}", fix=fix)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> Reading:
    tree, read = open_config(path)
    return read(tree)


def open_config(path: Path) -> tuple[Tree, Callable[[Tree], Reading]]:
    """Parses a config of any dialect.

    Returns:
        What its reader takes, and the reader.

    Raises:
        UserError: it is no text, or it cannot be parsed.
    """
    text = read_text_file(path, fix="give a config file, or a recipe")
    import_entry_points("stillbox.readers")
    for recognizes, read in reversed(READERS):
        if recognizes(path, text):
            return None, lambda _, read=read: read(text, str(path), path.stem)
    refuse_python(path)
    # `model {` at the end of a line is text format; our YAML never ends a line like that.
    is_pipeline = path.suffix in _PIPELINE_SUFFIXES or (
        path.suffix not in _YAML_SUFFIXES and bool(_PIPELINE_SECTION.search(text))
    )
    if is_pipeline:
        return parse(text, str(path)), lambda block: read_block(block, name=path.stem)
    root = compose(text, str(path))
    if is_garden(root):
        read_garden = garden_reader(root.where)
        return root, lambda tree: read_garden([tree], name=path.stem)
    refuse_others(root)
    if is_dictionary(root):
        return root, lambda tree: read_layers([tree], name=path.stem)

    def read_experiment(tree: Tree) -> Reading:
        assert isinstance(tree, Node)
        reading = read_tree(tree, name=path.stem)
        # The copy in a model directory names files there.
        return replace(reading, experiment=place_paths(reading.experiment, path.parent))

    return root, read_experiment
