"""Layers of the dictionary, merged with strict names and strict types.

Sections merge, everything else is replaced as a whole (tensorflow/tpu,
`hyperparameters/params_dict.py`, `override_params_dict`). Types and sections of other models are
refused by name. The merged dictionary can be written as text, as the original left `params.yaml`
in its model directory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from stillbox.errors import UserError, nearest
from stillbox.experiment.params_dict.keras_dialect import refuse_own
from stillbox.experiment.params_dict.keys import BLOCKS, FINAL, KEYS, OLD, Key, names_in
from stillbox.experiment.updating import WANTED, convert, describe, refuse
from stillbox.experiment.values import Value
from stillbox.experiment.yaml_config import dump
from stillbox.textformat.yaml_tree import Node

_TWO_STAGES = "a detector of two stages with masks, and stillbox has one-stage detectors of boxes"
_NO_MASKS = "it predicts masks, and stillbox detects boxes"
_WHOLE_IMAGES = "it labels whole images, and stillbox detects boxes"
_PIXELS = "it labels pixels, and stillbox detects boxes"
FIX = "there is: type retinanet, with retinanet_parser, retinanet_head and retinanet_loss"
"""Remedy of all refusals."""

TYPES = {
    "mask_rcnn": f"Mask R-CNN is {_TWO_STAGES}",
    "cascade_mask_rcnn": f"Cascade R-CNN is {_TWO_STAGES}",
    "olnmask": f"the object localisation network is {_TWO_STAGES}",
    "vild": f"ViLD is {_TWO_STAGES}",
    "attribute_mask_rcnn": f"attribute Mask R-CNN is {_TWO_STAGES}",
    "shapemask": f"ShapeMask: {_NO_MASKS}",
    "classification": f"a classifier: {_WHOLE_IMAGES}",
    "segmentation": f"semantic segmentation: {_PIXELS}",
}
"""Values of `type` that belong to other models, and why they are refused."""

_SECTIONS_OF = {
    "mask_rcnn": (
        "maskrcnn_parser",
        "rpn_head",
        "frcnn_head",
        "mrcnn_head",
        "rpn_score_loss",
        "rpn_box_loss",
        "frcnn_class_loss",
        "frcnn_box_loss",
        "roi_proposal",
        "roi_sampling",
        "mask_sampling",
    ),
    "olnmask": ("olnmask_parser", "rpn_center_loss", "frcnn_box_score_loss"),
    "vild": ("vild_parser",),
    "attribute_mask_rcnn": ("attribute_maskrcnn_parser",),
    "shapemask": ("shapemask_parser", "shapemask_head", "shapemask_loss"),
    "classification": ("classification_parser", "classification_head", "classification_loss"),
    "segmentation": ("segmentation_parser", "segmentation_head", "segmentation_loss"),
}
SECTIONS: dict[str, str] = {
    section: model for model, names in _SECTIONS_OF.items() for section in names
}
"""Sections of other models -> the `type` that they belong to."""


def refuse_type(name: str, where: str, entry: str) -> UserError:
    """Returns the refusal of another model, for an entry of the dictionary that names it."""
    return UserError(f"{entry}: {TYPES[name]}", where=where, fix=FIX)


@dataclass(frozen=True)
class GivenValue:
    """A value that is given."""

    value: Value
    where: str
    """file:line:column, or the option that holds it."""


@dataclass(frozen=True)
class Params:
    """The dictionary: the given values, and defaults for the others."""

    given: Mapping[str, GivenValue] = field(default_factory=dict)
    """Dotted path -> value and place of every key that is given."""
    keys: Mapping[str, Key] = field(default_factory=lambda: KEYS)
    """All keys of the language."""

    def value(self, path: str) -> Value:
        """Returns a key's value, its default if none is given."""
        return self.given[path].value if path in self.given else self.keys[path].default

    def where(self, path: str) -> str | None:
        """Returns where a key is given, None for a default."""
        return self.given[path].where if path in self.given else None

    def differs(self, path: str) -> bool:
        """Returns whether a key has another value than its default."""
        return bool(self.value(path) != self.keys[path].default)

    def used_blocks(self) -> tuple[str, ...]:
        """Returns the sections of the blocks of the model, from input to output.

        A dictionary describes every backbone and every neck at once.
        """
        chosen = (
            self.value("architecture.backbone"),
            self.value("architecture.multilevel_features"),
        )
        return (*(name for name in BLOCKS if name in chosen), "retinanet_head")

    def over(self, layer: Mapping[str, GivenValue]) -> "Params":
        """Returns the dictionary with a layer merged into it."""
        return replace(self, given={**self.given, **layer})


def _other_model(name: str, node: Node) -> UserError | None:
    if name not in SECTIONS:
        return refuse_own(name, node.where)
    return refuse_type(SECTIONS[name], node.where, f"{name} belongs to type {SECTIONS[name]}")


@dataclass(frozen=True)
class Names:
    """The names of a language, which has keys in sections, and what messages say about them."""

    keys: Mapping[str, Key]
    current: Mapping[str, Key]
    """Names that are suggested first."""
    whole: str
    """What all of it is called."""
    example: str
    foreign: Callable[[str, Node], UserError | None]
    """The refusal of a path that belongs to another model or program, None for all others."""


DICTIONARY = Names(KEYS, FINAL, "the dictionary", "{train: {total_steps: 1000}}", _other_model)
"""Names of the parameter dictionary."""


def read_layer(tree: Node, names: Names = DICTIONARY) -> dict[str, GivenValue]:
    """Returns what a tree of names and values gives, by dotted path.

    Raises:
        UserError: an unknown name, a value of the wrong type, a section where a value belongs or a
            value where a section belongs.
    """
    if tree.value is None:
        return {}
    if not isinstance(tree.value, dict):
        problem = f"{names.whole} has names and values, not {describe(tree)}"
        raise UserError(problem, where=tree.where, fix=f"for example {names.example}")
    return dict(_walk(tree, "", names))


def _walk(section: Node, path: str, names: Names) -> Iterator[tuple[str, GivenValue]]:
    for name, node in section.value.items():
        inner = f"{path}.{name}" if path else str(name)
        if inner in names.keys:
            yield inner, GivenValue(read_key(names.keys[inner], node, inner), node.where)
        elif not names_in(inner, names.keys):
            raise _unknown(str(name), node, path, names)
        elif isinstance(node.value, dict):
            yield from _walk(node, inner, names)
        # A section is empty if its content is commented out.
        elif node.value is not None:
            problem = f"{inner} is a section and cannot be {describe(node)}"
            fix = f"give what is in it: {', '.join(names_in(inner, names.current))}"
            raise UserError(problem, where=node.where, fix=fix)


def read_key(key: Key, node: Node, path: str) -> Value:
    """Returns a node's value as the type of its key.

    Raises:
        UserError: it is of another type.
    """
    if key.type is object:
        return node.plain()
    if node.value is None:
        if key.default is None:
            return None
        # A shell turns an empty variable into null.
        if key.type is str:
            return ""
    wanted, item_types = WANTED[key.type], get_args(key.type)
    if isinstance(node.value, dict):
        problem = f"{path} is {wanted} and has nothing in it, not a section"
        fix = f"{path}={'' if key.default is None else spell(key.default)}"
        raise UserError(problem, where=node.where, fix=fix)
    if not item_types:
        return convert(key.type, node, path, loose=True)
    if not isinstance(node.value, list):
        refuse(node, path, wanted)
    items = enumerate(node.value)
    return tuple(convert(item_types[0], item, f"{path}.{at}", loose=True) for at, item in items)


def _unknown(name: str, node: Node, path: str, names: Names) -> UserError:
    foreign = names.foreign(f"{path}.{name}" if path else name, node)
    if foreign is not None:
        return foreign
    problem = f"{path or names.whole} has no key {name!r}"
    if "/" in name:
        # `pattern: /data/a,/data/b` is meant as one value, and is two names in YAML.
        fix = f"put the value in quotes, if {name!r} is a part of it"
        return UserError(problem, where=node.where, fix=fix)
    # Names of 2020 are suggested only if no name of today is near.
    guesses = (nearest(name, names_in(path, keys)) for keys in (names.current, names.keys))
    guess = next((guess for guess in guesses if guess.startswith("did you mean")), None)
    elsewhere = [key for key in names.current if key.rpartition(".")[2] == name]
    if guess is None and elsewhere:
        guess = "did you mean " + " or ".join(repr(key) for key in elsewhere[:3]) + "?"
    fix = guess or nearest(name, names_in(path, names.current))
    return UserError(problem, where=node.where, fix=fix)


def spell(value: Value) -> str:
    """Returns a value as the dictionary's YAML writes it, shortly."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(spell(item) for item in value)}]"
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def resolved_text(params: Params) -> str:
    """Returns YAML that reads back as the same experiment.

    All keys of the last version are there, in its order, with their defaults unless they are given;
    behind them, in their sections, the keys of 2020 that it cannot replace.
    """
    unused = {name for name in BLOCKS if name not in params.used_blocks()}
    old = (path for path in OLD if path in params.given and path not in FINAL)
    paths = (*FINAL, *(path for path in old if path.partition(".")[0] not in unused))
    return text_of(params, paths)


def text_of(params: Params, paths: Iterable[str]) -> str:
    """Returns YAML with the values of keys, in their order."""
    tree: dict[str, Any] = {}
    for path in paths:
        *sections, name = path.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        value = params.value(path)
        place[name] = list(value) if isinstance(value, tuple) else value
    return dump(tree)
