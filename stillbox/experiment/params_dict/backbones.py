"""`resnet`, `spinenet` and `spinenet_mbconv`."""

import json
from dataclasses import replace
from typing import Any

from stillbox.errors import UserError
from stillbox.experiment.params_dict.keys import BACKBONES
from stillbox.experiment.params_dict.layers import VARIANCE_SCALING, read_conv, read_drop_block
from stillbox.experiment.params_dict.section import KeySection
from stillbox.experiment.schema import Backbone, ResNet, SpineBlock
from stillbox.experiment.schema.spinenet import SPINENET_MBCONV_SIZES, SPINENET_SIZES

_PATH = "model.backbone"
_STEM = "architecture.space_to_depth_block_size"
# What 2020 gave explicitly: field -> key.
_SIZES = {
    "endpoints_depth": "endpoints_num_filters",
    "filter_scale": "filter_size_scale",
    "resample_alpha": "resample_alpha",
    "repeats": "block_repeats",
}
_KINDS = ("residual", "bottleneck")


def read_backbone(root: KeySection) -> Backbone:
    """Reads the backbone that the dictionary chooses."""
    kind = root.choose("architecture.backbone", BACKBONES, f"{_PATH}.kind")
    section = root.child(kind)
    common: dict[str, Any] = {
        "drop_connect_rate": section.value("init_drop_connect_rate", f"{_PATH}.drop_connect_rate")
        or 0.0,
        "conv": read_conv(root, kind, _PATH, initializer=VARIANCE_SCALING),
    }
    if kind == "resnet":
        return _read_resnet(root, common)
    common |= root.child("architecture").fill(_PATH, "min_level", "max_level")
    if kind == "spinenet":
        return _read_spinenet(section, common)
    fields = [f"{_PATH}.{name}" for name in ("endpoints_depth", "filter_scale")]
    size = SPINENET_MBCONV_SIZES[section.choose("model_id", SPINENET_MBCONV_SIZES, *fields)]
    return replace(size, **section.fill(_PATH, "se_ratio"), **common)


def _read_resnet(root: KeySection, common: dict[str, Any]) -> ResNet:
    block = root.value(_STEM, f"{_PATH}.space_to_depth_stem")
    if block not in (1, 2):
        root.refuse(_STEM, "the stem is computed over blocks of 2 pixels, or of 1", f"{_STEM}=2")
    return ResNet(
        space_to_depth_stem=block == 2,
        project_first_block=True,
        zero_last_scale=False,
        drop_block=read_drop_block(root, "resnet", f"{_PATH}.drop_block"),
        **root.fill(_PATH, depth="resnet.resnet_depth"),
        **common,
    )


def _read_spinenet(section: KeySection, common: dict[str, Any]) -> Backbone:
    """Reads a member of the family by its name, and the numbers that 2020 gave explicitly."""
    fields = [f"{_PATH}.{name}" for name in _SIZES]
    size = SPINENET_SIZES[section.choose("model_id", SPINENET_SIZES, *fields)]
    old = section.fill(_PATH, blocks="block_specs", **_SIZES)
    given = {name: value for name, value in old.items() if value is not None}
    if "blocks" in given:
        given["blocks"] = _read_blocks(section, given["blocks"])
    return replace(size, **given, **common)


def _read_blocks(section: KeySection, text: str) -> tuple[SpineBlock, ...]:
    """Reads a JSON list of blocks: level, kind, inputs, is output."""
    try:
        blocks = tuple(
            SpineBlock(level=level, block=kind, inputs=tuple(inputs), output=output)
            for level, kind, inputs, output in json.loads(text)
        )
        sound = all(_is_block(block) for block in blocks)
    except (ValueError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise UserError(
            "spinenet.block_specs is no list of blocks in JSON",
            where=section.where("block_specs"),
            fix=f"[[level, kind, [input, input], is_output], ...], kind {' or '.join(_KINDS)}",
        )
    return blocks


def _is_block(block: SpineBlock) -> bool:
    return (
        all(type(number) is int for number in (block.level, *block.inputs))
        and len(block.inputs) == 2
        and block.block in _KINDS
        and isinstance(block.output, bool)
    )
