"""The page of the parameter dictionary: `python -m tools.params_dict`."""

import functools
import re
import sys
from collections.abc import Iterable, Iterator

from stillbox.cli.main import wording_of
from stillbox.errors import UserError
from stillbox.experiment.params_dict.command_line import TEMPLATES, tree_of
from stillbox.experiment.params_dict.keys import BACKBONES, FINAL, KEYS, NECKS, OLD, Key
from stillbox.experiment.params_dict.merging import SECTIONS, TYPES, spell
from stillbox.experiment.params_dict.reader import (
    OTHER_DEFAULTS,
    RENAMED,
    REPEATED,
    ParamsReading,
    read_layers,
)
from stillbox.experiment.values import Value
from stillbox.references import worded
from tools.effects import PROBE, Effect, changed_paths, shorten, table

Layer = dict[str, Value]
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
"""Sound dictionaries with different parts in use; the first one is the defaults."""

# Legal values of keys that do not take any value of their type, and illegal ones.
_VALUES: dict[str, tuple[Value, ...]] = {
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

_HEADER = """\
# The parameter dictionary of "Object Detection Models on TPU"

Made by `python -m tools.params_dict > docs/params_dict.md`, which gives
every key another value than its default and lists what the reader does:

- **honoured**: the experiment changes, in the fields that are named (see [All fields](fields.md));
- **no effect**: the key is accepted with a note and changes nothing, for the reason given;
- **default only**: every other value is refused, with file, line, this reason and a remedy.

A default is always accepted. A YAML file with these names is read as a dictionary wherever a CONFIG
is expected; `--set` then changes the resulting experiment. Names and types are strict at every
depth.

The published settings are built in. `stillbox retinanet --config_file` takes them by the names of
their files, if there is no such file: {templates}.

## What a dictionary does not say

- **Label map.** The records hold numbers. `label_map.pbtxt` beside the training records, which
  `stillbox data convert` writes, gives them names. Without one COCO's are taken where `num_classes`
  is 91, and for any other number `data.train.label_map` has to be set.
- **Classes.** `num_classes` counts the background: 91 becomes `model.num_classes` 90.
- **Devices.** Batch norm takes the statistics of one replica, which is a device's part of the
  batch, unless `use_sync_bn` is true.
- **TPUs.** `use_bfloat16` is true by default. With `use_tpu: false` it is ignored, and so is
  `use_sync_bn`, as in the original.

## What is not as in the original

"""
_MENDED = (
    (
        "a box is decoded as it was encoded",
        "decoding counts edges as pixels",
        "`model.box_coder.inclusive_edges=decode`",
    ),
    (
        "every code of a matched anchor counts",
        "one whose target is exactly 0 does not",
        "`model.loss.skip_zero_codes=true`",
    ),
    (
        "boxes are clipped to the image",
        "to the padded network input",
        "`model.postprocessing.nms.clip_to=input`",
    ),
    ("every image is scored", "the rest of the last batch is lost", ""),
    ("DropBlock reaches all rows", "some are left out where maps are not square", ""),
)
_OLD = """
## Keys of 2020

They are accepted beside today's, one by one, with a warning that names today's key. Keys that are
not given have today's defaults. A `batch_norm`, `dropblock` or `activation` of a block becomes
`batch_norm_activation` and `dropblock` if all blocks in use agree, and else holds for its block
alone.

"""
_OTHER = "see [Other models](#other-models)"
_TYPES: dict[object, str] = {
    bool: "true, false",
    int: "whole number",
    float: "number",
    str: "text",
    tuple[int, ...]: "whole numbers",
    tuple[float, ...]: "numbers",
}


@functools.cache
def effects() -> dict[str, Effect]:
    """Returns the effect of every key."""
    by_key = {path: Effect() for path in KEYS}
    for path, effect in by_key.items():
        for base in BASES:
            for value in _values(path):
                _probe(effect, base, path, value)
            if effect.honoured:
                break
        effect.refused = {
            value: _OTHER if any(reason.endswith(why) for why in TYPES.values()) else reason
            for value, reason in effect.refused.items()
            if value not in effect.accepted
        }
    return by_key


def _values(path: str) -> tuple[Value, ...]:
    """Returns values of a key other than its default."""
    key = KEYS[path]
    if path in _VALUES:
        return _VALUES[path]
    if key.type is bool:
        # A value that is not given may follow another key, with either default.
        return (True, False) if key.default is None else (not key.default,)
    if key.type is str:
        return ("probe",)
    if key.type is float:
        return (float(key.default or 0) + 0.25,)
    return (5 if key.default is None else key.default + 1,)


def _probe(effect: Effect, base: Layer, path: str, value: Value) -> None:
    """Enters the effect of one value."""
    before = _read(tuple(base.items()))
    if isinstance(before, UserError):
        raise before
    # What was repeated in 2020 is refused where the copies differ.
    copies = next((copies for copies in REPEATED.values() if path in copies), (path,))
    after = _read(tuple((base | dict.fromkeys(copies, value)).items()))
    if isinstance(after, UserError):
        effect.refuse(spell(value), after, path)
    else:
        effect.add(spell(value), before, after, changed_paths(before, after), skip=OTHER_DEFAULTS)


@functools.lru_cache(maxsize=4096)
def _read(layer: tuple[tuple[str, Value], ...]) -> ParamsReading | UserError:
    try:
        return read_layers([tree_of(dict(layer), PROBE)])
    except UserError as error:
        return error


def page() -> str:
    """Returns the page, which names options as the command line does."""
    return worded(_page(), wording_of("train"))


def _page() -> str:
    """Returns a Markdown page: one table for each section, one row for each key."""
    templates = ", ".join(f"`{name}.yaml`" for name in TEMPLATES)
    words = [_word(effect) for path, effect in effects().items() if path in FINAL]
    counts = (f"{words.count(word)} {word}" for word in ("honoured", "no effect", "default only"))
    return (
        _HEADER.format(templates=templates)
        + table("here|in the original|to have it so", _MENDED)
        + f"\n## The keys\n\nOf {len(words)} keys: {', '.join(counts)}.\n"
        + "".join(_final())
        + _old()
        + _others()
    )


def _final() -> Iterator[str]:
    sections: dict[str, list[str]] = {}
    for path in FINAL:
        section, _, _ = path.rpartition(".")
        sections.setdefault(section, []).append(path)
    for section, paths in sections.items():
        title = f"`{section}`" if section else "At the top"
        yield f"\n### {title}\n\n{_where_used(section)}"
        yield table("key|type and default||where to, or why", map(_row, paths))


def _where_used(section: str) -> str:
    for blocks, chooser in (
        (BACKBONES, "architecture.backbone"),
        (NECKS, "architecture.multilevel_features"),
    ):
        if section in blocks:
            return f"Without effect unless `{chooser}` is `{section}`.\n\n"
    return ""


def _row(path: str) -> tuple[str, ...]:
    effect = effects()[path]
    return f"`{path.rpartition('.')[2]}`", _type(FINAL[path]), _word(effect), _explain(effect)


def _type(key: Key) -> str:
    shown = spell(key.default)
    return _TYPES[key.type] + (f", `{shown}`" if shown else "")


def _word(effect: Effect) -> str:
    return "default only" if effect.word() == "refused" else effect.word()


def _explain(effect: Effect) -> str:
    parts = []
    if effect.honoured:
        parts.append(shorten(effect.honoured))
    elif effect.ignored:
        reasons = dict.fromkeys(text.removeprefix("without it: ") for text in effect.reasons())
        parts.append("; ".join(text for text in reasons if not re.match(r"architecture\.", text)))
    for reason, values in effect.refused_by_reason().items():
        parts.append(f"{', '.join(f'`{value}`' for value in values)}: {reason}")
    return ". ".join(parts)


def _old() -> str:
    again = " (all copies that are in use must agree)"
    today = {path: f"`{new}`" for path, new in RENAMED.items()}
    today |= {path: f"`{new}`{again}" for new, copies in REPEATED.items() for path in copies}
    rows = (
        (f"`{path}`", _TYPES[key.type], today.get(path) or _explain(effects()[path]))
        for path, key in OLD.items()
    )
    return _OLD + table("key|type|where to, or why", rows)


def _others() -> str:
    def sections(model: str) -> Iterable[str]:
        return (f"`{section}`" for section, owner in SECTIONS.items() if owner == model)

    rows = ((f"`{model}`", ", ".join(sections(model)), why) for model, why in TYPES.items())
    return (
        "\n## Other models\n\nA dictionary of another `type`, or with one of these sections, is "
        "refused:\n\n" + table("`type`|sections|why", rows)
    )


if __name__ == "__main__":
    sys.stdout.write(page())
