"""Reads an experiment of TensorFlow Model Garden's RetinaNet.

An experiment is a name with defaults in `keys`, and layers of fields over them: files, then one
override (`official/core/train_utils.py`, `parse_configuration`). Names are strict at every
depth.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stillbox.errors import UserError, nearest
from stillbox.experiment.model_garden import MODEL_GARDEN
from stillbox.experiment.params_dict.command_line import read_file, read_text
from stillbox.experiment.params_dict.merging import Names, Params, read_layer, text_of
from stillbox.experiment.reading import Reading, ReadTracker, reads_layers
from stillbox.experiment.schema import Devices, Experiment, Export
from stillbox.references import Command, Parameter
from stillbox.textformat.yaml_tree import Node
from stillbox_legacy.model_garden.keys import EXPERIMENTS, FIELDS
from stillbox_legacy.model_garden.model import read_model
from stillbox_legacy.model_garden.section import CHOICES, MODEL, GardenSection
from stillbox_legacy.model_garden.training import read_data, read_evaluation, read_training

# What only Mask R-CNN and its relatives have, by the section that it is in.
_MASKS = (
    "include_mask",
    "mask_head",
    "mask_roi_aligner",
    "mask_sampler",
    "rpn_head",
    "detection_head",
    "roi_generator",
    "roi_sampler",
    "roi_aligner",
    "mask_crop_size",
    "outer_boxes_scale",
    "mask_weight",
)
_SEVERAL = "is of Mask R-CNN, and this reader has RetinaNet's boxes"


def _foreign(path: str, node: Node) -> UserError | None:
    if path.rpartition(".")[2] not in _MASKS:
        return None
    fix = f"{Parameter('experiment')} is one of {', '.join(EXPERIMENTS)}"
    return UserError(f"{path} {_SEVERAL}", where=node.where, fix=fix)


NAMES = Names(FIELDS, FIELDS, "the experiment", "{task: {losses: {loss_weight: 1.0}}}", _foreign)
"""The names of the language."""


@dataclass(frozen=True, kw_only=True)
class GardenReading(Reading):
    """An experiment, how it was read, and its fields."""

    params: Params


def read_garden(
    *,
    experiment: str,
    config_files: Sequence[str | Path] = (),
    params_override: str = "",
    used: Collection[str] = (),
    name: str = "",
) -> GardenReading:
    """Reads the experiment of a command line in the original's order: files, override.

    Args:
        experiment: its name, one of `EXPERIMENTS`.
        config_files: YAML files, each over the ones before.
        params_override: names and values as one text, or a file.
        used: fields that the caller reads itself.
        name: of the result; empty: the name of the last file, else of the experiment.

    Raises:
        UserError: there is no such experiment or file, or see `read_garden_layers`.
    """
    layers = [read_file(path, f"{Parameter('config_file')}") for path in config_files]
    layers.append(read_text(params_override, f"{Parameter('params_override')}"))
    name = name or (Path(config_files[-1]).stem if config_files else experiment)
    return read_garden_layers(layers, experiment=experiment, name=name, used=used)


@reads_layers(MODEL_GARDEN)
def read_garden_layers(
    layers: Iterable[Node],
    *,
    experiment: str = "",
    name: str = "retinanet",
    used: Collection[str] = (),
) -> GardenReading:
    """Reads layers over the defaults of an experiment, one after the other.

    Args:
        layers: trees of names and values.
        experiment: its name; empty: it follows from the backbone, with a note.
        name: of the result.
        used: fields that the caller reads itself; they leave no note.

    Raises:
        UserError: an unknown name, a value of the wrong type, a contradiction, or something that
            stillbox does not have.
    """
    if experiment and experiment not in EXPERIMENTS:
        fix = f"{nearest(experiment, EXPERIMENTS)}; there is: {', '.join(EXPERIMENTS)}"
        raise UserError(
            f"there is no experiment {experiment!r}", where=Parameter("experiment"), fix=fix
        )
    given = Params({}, FIELDS)
    for layer in layers:
        given = given.over(read_layer(layer, NAMES))
    log = ReadTracker()
    if not experiment:
        experiment = _guess(given)
        log.notes.append(
            f"the file names no experiment: its backbone is that of {experiment}, which has the "
            f"defaults; {Command('model_garden', experiment='NAME', config_file='FILE')} gives "
            "another"
        )
    defaults = EXPERIMENTS[experiment]
    keys = {
        path: replace(key, default=defaults.get(path, key.default)) for path, key in FIELDS.items()
    }
    root = GardenSection(replace(given, keys=keys), log)
    result = Experiment(
        name=name,
        model=read_model(root),
        data=read_data(root),
        train=read_training(root),
        evaluation=read_evaluation(root),
        devices=Devices(),
        export=Export(signature="tpu"),
    )
    root.finish(used)
    return GardenReading(
        experiment=result,
        origins=log.origins,
        warnings=tuple(log.warnings),
        notes=tuple(log.notes),
        params=root.params,
    )


def _guess(params: Params) -> str:
    backbone = params.value(f"{MODEL}.backbone.type")
    if backbone == "spinenet":
        return "retinanet_spinenet_coco"
    mobile = ("spinenet_mobile", "mobilenet", "mobiledet")
    return "retinanet_mobile_coco" if backbone in mobile else "retinanet_resnetfpn_coco"


def resolved_text(params: Params) -> str:
    """Returns YAML that reads back as the same experiment, with the sections that are in use."""
    average = "trainer.optimizer_config.ema."
    averaged = any(path.startswith(average) for path in params.given)

    def is_used(path: str) -> bool:
        for choice in CHOICES:
            rest = path.removeprefix(f"{choice}.")
            kind = params.value(f"{choice}.type")
            if rest != path and rest.partition(".")[0] not in ("type", kind):
                return False
        return averaged or not path.startswith(average)

    return text_of(params, filter(is_used, params.keys))
