"""From the parameter dictionary of RetinaNet on TPU to an experiment."""

import dataclasses
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stillbox.errors import UserError, nearest
from stillbox.experiment.params_dict.inputs import read_augmentations, read_data
from stillbox.experiment.params_dict.keys import names_in
from stillbox.experiment.params_dict.merging import Params, read_layer
from stillbox.experiment.params_dict.model import read_model
from stillbox.experiment.params_dict.old_keys import OldKeys, fold, rename
from stillbox.experiment.params_dict.other_models import FIX, SECTIONS, TYPES, refuse_type
from stillbox.experiment.params_dict.restrictions import check_restriction
from stillbox.experiment.params_dict.section import KeySection
from stillbox.experiment.params_dict.training import (
    read_devices,
    read_evaluation,
    read_training,
)
from stillbox.experiment.reading import Reading
from stillbox.experiment.schema import Experiment, Export, Training
from stillbox.experiment.sections import ReadLog
from stillbox.textformat.yaml_tree import Node

_EXPERIMENT = {"recipe", *(field.name for field in dataclasses.fields(Experiment))}
_DICTIONARY = {*names_in(""), *SECTIONS} - _EXPERIMENT
_TRAIN = {*names_in("train")} - {field.name for field in dataclasses.fields(Training)}


@dataclass(frozen=True, kw_only=True)
class ParamsReading(Reading):
    """An experiment, how it was read, and the dictionary itself."""

    params: Params
    """The merged dictionary with today's keys."""


def is_dictionary(root: Node) -> bool:
    """Says whether YAML is a parameter dictionary, even of another model, and no experiment.

    Both have a section `train`; if there is nothing else, its names decide.
    """
    if not isinstance(root.value, dict):
        return False
    names = set(root.value)
    if names & (_EXPERIMENT - {"train"}):
        return False
    if names & _DICTIONARY:
        return True
    train = root.value.get("train")
    return train is not None and isinstance(train.value, dict) and bool(set(train.value) & _TRAIN)


def read_layers(
    layers: Iterable[Node],
    *,
    name: str = "retinanet",
    model: str = "retinanet",
    restrictions: Iterable[str] = (),
    used: Collection[str] = (),
) -> ParamsReading:
    """Reads layers of a dictionary, a later one over an earlier one, over the defaults.

    Args:
        layers: trees of names and values, such as a file and an option.
        name: the experiment's name.
        model: the model whose defaults are meant; only `retinanet` is supported.
        restrictions: relations that must hold, see `restrictions.check_restriction`.
        used: keys that the caller reads itself; they leave no note.

    Raises:
        UserError: an unknown name, a value of the wrong type, a contradiction, or something that
            stillbox does not have.
    """
    _check_type(model, "--model", "--model")
    params, old, log = Params(), OldKeys(), ReadLog()
    for layer in layers:
        _check_sections(layer)
        params = params.over(rename(read_layer(layer), old))
    for text in restrictions:
        check_restriction(text, params.value, params.where)
    params = fold(params, old)
    root = KeySection(params, log)
    experiment = _read(root, name)
    root.finish(used)
    return ParamsReading(
        experiment=experiment,
        origins=log.origins,
        warnings=(*old.warnings(), *log.warnings),
        notes=(*old.notes(), *log.notes),
        params=params,
    )


def _read(root: KeySection, name: str) -> Experiment:
    _check_type(root.value("type"), "type", root.where("type"))
    root.choose("architecture.parser", ("retinanet_parser",))
    model = read_model(root)
    return Experiment(
        name=name,
        data=read_data(root),
        model=model,
        train=read_training(root, model, read_augmentations(root)),
        evaluation=read_evaluation(root),
        devices=read_devices(root),
        export=Export(signature="tpu"),
    )


def _check_type(value: str, what: str, where: str | None) -> None:
    if value in TYPES:
        raise refuse_type(value, where or what, f"{what} {value}")
    if value != "retinanet":
        close = nearest(value, ("retinanet",))
        guess = f"{close} " if close.startswith("did you mean") else ""
        raise UserError(f"{what} {value!r} is unknown", where=where, fix=f"{guess}{FIX}")


def _check_sections(layer: Node) -> None:
    """Refuses dictionaries of other models before any of their keys is reported as unknown."""
    if not isinstance(layer.value, dict):
        return
    content = layer.value
    kind, architecture = content.get("type"), content.get("architecture")
    if kind is not None and isinstance(kind.value, str):
        _check_type(kind.value, "type", kind.where)
    if architecture is not None and isinstance(architecture.value, dict):
        parser = architecture.value.get("parser")
        if parser is not None and isinstance(parser.value, str) and parser.value in SECTIONS:
            model = SECTIONS[parser.value]
            what = f"architecture.parser {parser.value} is of {model}"
            raise refuse_type(model, parser.where, what)
    for name, node in content.items():
        if name in SECTIONS:
            raise refuse_type(SECTIONS[name], node.where, f"{name} belongs to {SECTIONS[name]}")
