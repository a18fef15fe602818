"""Reads the parameter dictionary of RetinaNet on TPU, of 2020 or later, as an experiment.

A key of 2020 that has another name now is renamed. One that was repeated, such as `min_level` in
six sections, is checked as it was then and becomes the one key that is left. A key of each block
that all blocks share now moves there if the blocks agree, and else stays with its block.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from stillbox.errors import UserError, nearest
from stillbox.experiment.params_dict.keras_dialect import TOP, note_either
from stillbox.experiment.params_dict.keys import BLOCKS, NORM, OLD, names_in
from stillbox.experiment.params_dict.merging import (
    FIX,
    SECTIONS,
    TYPES,
    GivenValue,
    Params,
    read_layer,
    refuse_type,
    spell,
)
from stillbox.experiment.params_dict.model import read_model
from stillbox.experiment.params_dict.section import KeySection
from stillbox.experiment.params_dict.training import (
    read_augmentations,
    read_data,
    read_devices,
    read_evaluation,
    read_training,
)
from stillbox.experiment.reading import Reading, ReadTracker
from stillbox.experiment.schema import Experiment, Export, Training
from stillbox.references import Parameter
from stillbox.textformat.yaml_tree import Node

RENAMED = {
    "train.space_to_depth_block_size": "architecture.space_to_depth_block_size",
    "retinanet_head.retinanet_head_num_convs": "retinanet_head.num_convs",
    "retinanet_head.retinanet_head_num_filters": "retinanet_head.num_filters",
}
"""Name of 2020 -> name of today."""
_WITH_LEVELS = ("anchor", "retinanet_head", "postprocess", "fpn", "nasfpn", "spinenet")
REPEATED: Mapping[str, tuple[str, ...]] = {
    "architecture.min_level": tuple(f"{section}.min_level" for section in _WITH_LEVELS),
    "architecture.max_level": tuple(f"{section}.max_level" for section in _WITH_LEVELS),
    "architecture.num_classes": (
        "retinanet_head.num_classes",
        "retinanet_loss.num_classes",
        "postprocess.num_classes",
    ),
    "architecture.use_bfloat16": ("retinanet_parser.use_bfloat16",),
}
"""The one key of today -> its places in 2020; the others are compared with the first."""
_POLICY, _USED, _NAME = (
    f"retinanet_parser.{name}"
    for name in ("aug_policy", "use_autoaugment", "autoaugment_policy_name")
)
OTHER_DEFAULTS = (
    "keys of 2020 are read, and keys that are not given have the defaults of the last version; "
    "2020 had others for train.frozen_variable_prefix (the stem and the first group of a ResNet), "
    "eval.eval_samples (5000) and spinenet (drop connect, swish, batch norm)"
)
"""Note about dictionaries of 2020."""


class OldKeys:
    """The keys of 2020 that are given."""

    def __init__(self) -> None:
        self._places: dict[str, dict[str, str]] = {}

    def add(self, path: str, today: str, where: str) -> None:
        """Enters a key, today's key for it, and where it is given."""
        self._places.setdefault(today, {})[path] = where

    def warnings(self) -> Iterator[str]:
        """Yields a warning for each key of today that is given under names of 2020."""
        for today, places in self._places.items():
            shown = ", ".join([*places][:3])
            more = f" and {len(places) - 3} more" if len(places) > 3 else ""
            where = next(iter(places.values()))
            yield f"{where}: {shown}{more}: of the dictionary of 2020; today's is {today}"

    def notes(self) -> Iterator[str]:
        """Yields the note about dictionaries of 2020, if this is one."""
        for places in [*self._places.values()][:1]:
            yield f"{next(iter(places.values()))}: {OTHER_DEFAULTS}"


def rename(layer: Mapping[str, GivenValue], old: OldKeys) -> dict[str, GivenValue]:
    """Returns a layer with today's names, and enters the renamed keys into `old`.

    Raises:
        UserError: a value is given under both names, and they differ.
    """
    result = {path: entry for path, entry in layer.items() if path not in RENAMED}
    for path in [path for path in layer if path in RENAMED]:
        today = RENAMED[path]
        _check_same(path, layer[path], today, layer.get(today))
        old.add(path, today, layer[path].where)
        result[today] = layer[path]
    return result


def fold(params: Params, old: OldKeys) -> Params:
    """Replaces keys of 2020 by keys of today, as far as they can express the same.

    Moved keys are entered into `old`.

    Raises:
        UserError: keys that must agree do not.
    """
    return _Folding(params, old).run()


def _check_same(path: str, entry: GivenValue, other: str, beside: GivenValue | None) -> None:
    if beside is not None and beside.value != entry.value:
        problem = f"{path} and {other} are one thing, and have two values ({beside.where})"
        raise UserError(problem, where=entry.where, fix=f"keep {other}")


class _Folding:
    def __init__(self, params: Params, old: OldKeys) -> None:
        self._params, self._old = params, old
        self._given = dict(params.given)
        self._blocks = params.used_blocks()

    def run(self) -> Params:
        for today, copies in REPEATED.items():
            self._repeated(today, [path for path in copies if self._is_used(path)])
        self._policy()
        for name in NORM:
            self._shared(f"batch_norm_activation.{name}", self._blocks, f"batch_norm.{name}")
        self._shared("batch_norm_activation.activation", self._active(), "activation")
        dropping = [block for block in self._blocks if block in ("resnet", "nasfpn")]
        for name in ("dropblock_keep_prob", "dropblock_size"):
            self._shared(f"dropblock.{name}", dropping, f"dropblock.{name}")
        return Params(self._given)

    def _is_used(self, path: str) -> bool:
        section = path.partition(".")[0]
        return section not in BLOCKS or section in self._blocks

    def _active(self) -> list[str]:
        """Returns the blocks with the common activation; a plain pyramid has a fixed one."""
        has_activation = self._params.value("nasfpn.activation") is not None
        return [
            block for block in self._blocks if block not in ("fpn", *["nasfpn"] * has_activation)
        ]

    def _repeated(self, today: str, copies: list[str]) -> None:
        given = [path for path in copies if path in self._given]
        if not given:
            return
        first, *others = copies
        # Version 2020 itself had no such key; older ones do.
        pairs = [(first, path) for path in others if path != "postprocess.num_classes"]
        if today in self._given or not others:
            pairs.append((today, first))
        pairs += [(first, path) for path in given if path == "postprocess.num_classes"]
        for left, right in pairs:
            self._check_equal(left, right, today)
        for path in given:
            self._old.add(path, today, self._params.given[path].where)
            self._given[today] = self._given.pop(path)

    def _check_equal(self, left: str, right: str, today: str) -> None:
        where = self._params.where
        # A copy that is not given follows the one key.
        keys = [path if path in self._given else today for path in (left, right)]
        values = dict(zip((left, right), map(self._params.value, keys), strict=True))
        if values[left] != values[right]:
            texts = (
                f"{path} is {spell(value)} ({where(path) or 'the default'})"
                for path, value in values.items()
            )
            problem = f"{' and '.join(texts)}, but {left} == {right} is required"
            fix = f"give {today} alone, for all of them"
            raise UserError(problem, where=where(left) or where(right), fix=fix)

    def _policy(self) -> None:
        """Moves the two keys of 2020 for the AutoAugment policy into one."""
        if _USED not in self._given:
            return
        used = self._given.pop(_USED)
        policy = GivenValue("", used.where)
        if used.value:
            policy = self._given.pop(_NAME, GivenValue("v0", used.where))
            self._old.add(_NAME, _POLICY, policy.where)
        self._old.add(_USED, _POLICY, used.where)
        if self._params.value(_POLICY):
            _check_same(_USED, policy, _POLICY, self._params.given[_POLICY])
        self._given[_POLICY] = policy

    def _shared(self, today: str, blocks: Iterable[str], name: str) -> None:
        paths = [f"{block}.{name}" for block in blocks]
        given = [path for path in paths if path in OLD and path in self._given]
        for path in given:
            self._old.add(path, today, self._given[path].where)
        values = {self._params.value(path if path in given else today) for path in paths}
        if given and len(values) == 1:
            self._given[today] = self._given[given[0]]
            for path in given:
                del self._given[path]


_EXPERIMENT = {"recipe", *(field.name for field in dataclasses.fields(Experiment))}
_DICTIONARY = {*names_in(""), *SECTIONS, *TOP} - _EXPERIMENT
_TRAIN = {*names_in("train")} - {field.name for field in dataclasses.fields(Training)}


@dataclass(frozen=True, kw_only=True)
class ParamsReading(Reading):
    """An experiment, how it was read, and the dictionary itself."""

    params: Params
    """The merged dictionary with today's keys."""


def is_dictionary(root: Node) -> bool:
    """Returns whether YAML is a parameter dictionary, even of another model, and no experiment.

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
    used: Collection[str] = (),
) -> ParamsReading:
    """Reads layers of a dictionary, merged into the defaults one after the other.

    Args:
        layers: trees of names and values, such as a file and an option.
        name: the experiment's name.
        model: the model that brings the defaults; only `retinanet` is supported.
        used: keys that the caller reads itself; they leave no note.

    Raises:
        UserError: an unknown name, a value of the wrong type, a contradiction, or something that
            stillbox does not have.
    """
    _check_type(model, "model", str(Parameter("model")))
    params, old, log = Params(), OldKeys(), ReadTracker()
    for layer in layers:
        _check_sections(layer)
        params = params.over(rename(read_layer(layer), old))
    either = note_either({path: (entry.value, entry.where) for path, entry in params.given.items()})
    params = fold(params, old)
    root = KeySection(params, log)
    experiment = _read(root, name)
    root.finish(used)
    return ParamsReading(
        experiment=experiment,
        origins=log.origins,
        warnings=(*old.warnings(), *log.warnings),
        notes=(*old.notes(), *log.notes, *either),
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


def _check_type(value: str, key: str, where: str | None) -> None:
    if value in TYPES:
        raise refuse_type(value, where or key, f"{key} {value}")
    if value != "retinanet":
        close = nearest(value, ("retinanet",))
        guess = f"{close} " if close.startswith("did you mean") else ""
        raise UserError(f"{key} {value!r} is unknown", where=where, fix=f"{guess}{FIX}")


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
            entry = f"architecture.parser {parser.value} is of {model}"
            raise refuse_type(model, parser.where, entry)
    for name, node in content.items():
        if name in SECTIONS:
            raise refuse_type(SECTIONS[name], node.where, f"{name} belongs to {SECTIONS[name]}")
