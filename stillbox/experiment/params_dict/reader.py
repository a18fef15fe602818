"""From the parameter dictionary of RetinaNet on TPU to an experiment."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stillbox.errors import UserError, nearest
from stillbox.experiment import reading as core
from stillbox.experiment.params_dict.devices import read_devices
from stillbox.experiment.params_dict.dialects import OldKeys, fold, rename
from stillbox.experiment.params_dict.evaluation import read_evaluation
from stillbox.experiment.params_dict.foreign import FIX, SECTIONS, TYPES, refuse_type
from stillbox.experiment.params_dict.inputs import read_augmentations, read_data
from stillbox.experiment.params_dict.merging import Params, read_layer
from stillbox.experiment.params_dict.model import read_model
from stillbox.experiment.params_dict.reading import Reading
from stillbox.experiment.params_dict.restrictions import check_restriction
from stillbox.experiment.params_dict.training import read_training
from stillbox.experiment.schema import Experiment, Export
from stillbox.experiment.values import Node


@dataclass(frozen=True, kw_only=True)
class ParamsReading(core.Reading):
    """An experiment, how it was read, and the dictionary itself."""

    params: Params
    """The merged dictionary with today's keys."""


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
        model: whose defaults are meant; there are those of `retinanet`.
        restrictions: what must hold of the dictionary, see `restrictions.check_restriction`.
        used: keys that the caller follows itself, so that nothing is said of their having no
            effect.

    Raises:
        UserError: an unknown name, a value of the wrong type, a contradiction, or something that
            stillbox does not have.
    """
    _check_type(model, "--model", "--model")
    params, old = Params(), OldKeys()
    for layer in layers:
        _check_sections(layer)
        params = params.over(rename(read_layer(layer), old))
    for text in restrictions:
        check_restriction(text, params.value, params.where)
    reading = Reading(fold(params, old))
    experiment = _read(reading, name)
    reading.finish(used)
    return ParamsReading(
        experiment=experiment,
        origins=reading.origins,
        warnings=(*old.warnings(), *reading.warnings),
        notes=(*old.notes(), *reading.notes),
        params=reading.params,
    )


def _read(reading: Reading, name: str) -> Experiment:
    _check_type(reading.take("type"), "type", reading.params.where("type"))
    reading.choose("architecture.parser", ("retinanet_parser",))
    model = read_model(reading)
    return Experiment(
        name=name,
        data=read_data(reading),
        model=model,
        train=read_training(reading, model, read_augmentations(reading)),
        evaluation=read_evaluation(reading),
        devices=read_devices(reading),
        export=Export(signature="tpu"),
    )


def _check_type(value: str, what: str, where: str | None) -> None:
    if value in TYPES:
        raise refuse_type(value, where or what, f"{what} {value}")
    if value != "retinanet":
        close = nearest(value, ("retinanet",))
        guess = f"{close} " if close.startswith("did you mean") else ""
        raise UserError(f"{what} {value!r} is not known", where=where, fix=f"{guess}{FIX}")


def _check_sections(layer: Node) -> None:
    """Refuses dictionaries of other models before any of their keys is called unknown."""
    if not isinstance(layer.value, dict):
        return
    content = layer.value
    parser = content["architecture"] if "architecture" in content else Node({}, layer.where)
    kind = content.get("type")
    if kind is not None and isinstance(kind.value, str):
        _check_type(kind.value, "type", kind.where)
    named = parser.value.get("parser") if isinstance(parser.value, dict) else None
    if named is not None and isinstance(named.value, str) and named.value in SECTIONS:
        model = SECTIONS[named.value]
        raise refuse_type(model, named.where, f"architecture.parser {named.value} is of {model}")
    for name, node in content.items():
        if name in SECTIONS:
            raise refuse_type(SECTIONS[name], node.where, f"{name} belongs to {SECTIONS[name]}")
