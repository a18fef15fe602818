"""What becomes of every key of the dictionary, found by reading dictionaries that give it.

Nothing is looked up: a dictionary with the key and the same one without it go through the reader,
and what differs is the answer.
"""

import functools
import re
from dataclasses import dataclass, field

from stillbox.errors import UserError
from stillbox.experiment.params_dict.dialects import OTHER_DEFAULTS, REPEATED
from stillbox.experiment.params_dict.foreign import TYPES
from stillbox.experiment.params_dict.keys import KEYS
from stillbox.experiment.params_dict.merging import spell
from stillbox.experiment.params_dict.reader import ParamsReading, read_layers
from stillbox.experiment.params_dict.templates import tree_of
from stillbox.experiment.values import Plain, differences

Layer = dict[str, Plain]
"""Dotted path -> value."""

_SPINENET: Layer = {
    "architecture.backbone": "spinenet",
    "architecture.multilevel_features": "identity",
}
BASES: tuple[Layer, ...] = (
    {},
    {"architecture.multilevel_features": "nasfpn"},
    {"architecture.multilevel_features": "nasfpn", "nasfpn.block_fn": "bottleneck"},
    _SPINENET,
    {**_SPINENET, "architecture.backbone": "spinenet_mbconv"},
    {"train.learning_rate.type": "cosine", "train.optimizer.type": "adam"},
    {
        "train.checkpoint.path": "model.ckpt",
        "eval.val_json_file": "val.json",
        "eval.eval_file_pattern": "val-*",
    },
    {"dropblock.dropblock_keep_prob": 0.9, "dropblock.dropblock_size": 7},
    {"resnet.dropblock.dropblock_keep_prob": 0.9, "resnet.dropblock.dropblock_size": 7},
    {
        "architecture.multilevel_features": "nasfpn",
        "nasfpn.dropblock.dropblock_keep_prob": 0.9,
        "nasfpn.dropblock.dropblock_size": 7,
    },
    {"retinanet_parser.use_autoaugment": True},
)
"""Sound dictionaries that differ in what they use; the first one is the defaults."""

# Values that are among those that a key may have; any other value of its type is as good as the
# next.
_VALUES: dict[str, tuple[Plain, ...]] = {
    "type": tuple(TYPES),
    "architecture.parser": ("maskrcnn_parser",),
    "architecture.backbone": ("spinenet", "spinenet_mbconv", "efficientnet"),
    "architecture.multilevel_features": ("nasfpn", "identity"),
    "architecture.space_to_depth_block_size": (2, 4),
    "train.space_to_depth_block_size": (2,),
    "train.optimizer.type": ("adam", "adadelta", "adagrad", "rmsprop", "lars"),
    "train.learning_rate.type": ("cosine",),
    "train.learning_rate.learning_rate_levels": ((0.01, 0.002),),
    "train.learning_rate.learning_rate_steps": ((16000, 21000),),
    "train.checkpoint.prefix": ("resnet50/", "resnet101/"),
    "train.regularization_variable_regex": (r".*(kernel|bias):0$", r"resnet50.*kernel:0$"),
    "train.input_partition_dims": ((1, 2, 1, 1),),
    "train.train_dataset_type": ("sstable",),
    "eval.eval_dataset_type": ("sstable",),
    "eval.type": ("box_and_mask", "lvis_box"),
    "batch_norm_activation.activation": ("swish", "relu6", "gelu"),
    "resnet.activation": ("swish",),
    "spinenet.activation": ("swish",),
    "nasfpn.activation": ("swish",),
    "retinanet_head.activation": ("swish",),
    "resnet.resnet_depth": (101,),
    "spinenet.model_id": ("49S", "96", "143", "143l", "190", "50"),
    "spinenet.block_specs": ('[[3, "residual", [0, 1], true]]', "[3]"),
    "spinenet_mbconv.model_id": ("49S", "49XS", "190"),
    "nasfpn.block_fn": ("bottleneck",),
    "anchor.aspect_ratios": ((1.0, 3.0),),
    "retinanet_parser.output_size": ((512, 384), (512,)),
    "retinanet_parser.aug_policy": ("v0", "v1", "v2", "v3", "test", "v4"),
    "retinanet_parser.autoaugment_policy_name": ("v1",),
    "retinanet_head.anchors_per_location": (6,),
    "postprocess.nms_version": ("v2", "batched", "v3"),
}


@dataclass
class Fate:
    """What becomes of one key."""

    honoured: dict[str, None] = field(default_factory=dict)
    """Paths in the experiment that follow it, in the order in which they were found."""
    ignored: dict[str, None] = field(default_factory=dict)
    """What the reader says where it takes the key without effect."""
    refused: dict[str, str] = field(default_factory=dict)
    """Value -> why it is refused."""


@functools.cache
def fates() -> dict[str, Fate]:
    """Returns the fate of every key."""
    found = {path: Fate() for path in KEYS}
    for path, fate in found.items():
        taken: set[str] = set()
        for base in BASES:
            taken |= {
                spell(value) for value in values_to_try(path) if _probe(fate, base, path, value)
            }
            if fate.honoured:
                break
        fate.refused = {value: why for value, why in fate.refused.items() if value not in taken}
    return found


def values_to_try(path: str) -> tuple[Plain, ...]:
    """Returns values of a key other than its default."""
    key = KEYS[path]
    if path in _VALUES:
        return _VALUES[path]
    if key.kind == "flag":
        # What is not given may follow a key whose default is either of them.
        return (True, False) if key.default is None else (not key.default,)
    if key.kind == "text":
        return ("probe",)
    if key.kind == "real":
        return (float(key.default or 0) + 0.25,)
    return (5 if key.default is None else key.default + 1,)


def _probe(fate: Fate, base: Layer, path: str, value: Plain) -> bool:
    """Enters what becomes of one value; says whether it is taken."""
    copies = next((copies for copies in REPEATED.values() if path in copies), (path,))
    before = _read(base)
    if isinstance(before, UserError):
        raise before
    # What was repeated in 2020 is refused where the copies differ.
    after = _read(base | dict.fromkeys(copies, value))
    if isinstance(after, UserError):
        fate.refused.setdefault(spell(value), _reason(after, path, value))
        return False
    changed = differences(before.experiment, after.experiment)
    places = dict.fromkeys(place for place, _, _ in changed)
    fate.honoured |= places
    if not places:
        fate.ignored |= dict.fromkeys(_new_notes(before, after))
    return True


def _new_notes(before: ParamsReading, after: ParamsReading) -> list[str]:
    """Returns what the reader said of one of two dictionaries alone, without places."""
    first, second = (
        [re.sub(r"^probe: ", "", text) for text in reading.notes if OTHER_DEFAULTS not in text]
        for reading in (before, after)
    )
    without = [f"without it: {text}" for text in first if text not in second]
    return [text for text in second if text not in first] + without


def _read(layer: Layer) -> ParamsReading | UserError:
    return _read_cached(tuple(layer.items()))


@functools.lru_cache(maxsize=4096)
def _read_cached(items: tuple[tuple[str, Plain], ...]) -> ParamsReading | UserError:
    try:
        return read_layers([tree_of(dict(items), "probe")])
    except UserError as error:
        return error


def _reason(error: UserError, path: str, value: Plain) -> str:
    """Returns why, without the key and its value, which stand beside it anyway."""
    first = error.what.partition("\n")[0]
    return re.sub(rf"^{re.escape(path)}( = {re.escape(spell(value))})?(: | )", "", first)
