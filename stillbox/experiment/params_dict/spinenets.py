"""`spinenet` and `spinenet_mbconv` (TPU detection fact sheet 3.5)."""

import json
from dataclasses import replace
from typing import Any

from stillbox.errors import UserError
from stillbox.experiment.params_dict.layers import VARIANCE_SCALING, read_conv
from stillbox.experiment.params_dict.reading import Reading
from stillbox.experiment.schema import SpineBlock, SpineNet, SpineNetMbConv
from stillbox.experiment.schema.spinenet import SPINENET_MBCONV_SIZES, SPINENET_SIZES

_PATH = "model.backbone"
# What 2020 spelt out, by our names.
_SIZES = {
    "endpoints_depth": "endpoints_num_filters",
    "filter_scale": "filter_size_scale",
    "resample_alpha": "resample_alpha",
    "repeats": "block_repeats",
}
_KINDS = ("residual", "bottleneck")


def read_spinenet(reading: Reading) -> SpineNet:
    """Reads `spinenet`: a member of the family by its name, and what 2020 spelt out."""
    fields = [f"{_PATH}.{name}" for name in _SIZES]
    size = SPINENET_SIZES[reading.choose("spinenet.model_id", SPINENET_SIZES, *fields)]
    old = reading.fill("spinenet", _PATH, blocks="block_specs", **_SIZES)
    given = {name: value for name, value in old.items() if value is not None}
    if "blocks" in given:
        given["blocks"] = _read_blocks(reading, given["blocks"])
    return replace(size, **given, **_read_common(reading, "spinenet"))


def read_spinenet_mbconv(reading: Reading) -> SpineNetMbConv:
    """Reads `spinenet_mbconv`."""
    fields = [f"{_PATH}.{name}" for name in ("endpoints_depth", "filter_scale")]
    model = reading.choose("spinenet_mbconv.model_id", SPINENET_MBCONV_SIZES, *fields)
    return replace(
        SPINENET_MBCONV_SIZES[model],
        **reading.fill("spinenet_mbconv", _PATH, se_ratio="se_ratio"),
        **_read_common(reading, "spinenet_mbconv"),
    )


def _read_common(reading: Reading, section: str) -> dict[str, Any]:
    rate = reading.take(f"{section}.init_drop_connect_rate", f"{_PATH}.drop_connect_rate")
    return {
        "drop_connect_rate": rate or 0.0,
        "conv": read_conv(reading, section, _PATH, initializer=VARIANCE_SCALING),
        **reading.fill("architecture", _PATH, min_level="min_level", max_level="max_level"),
    }


def _read_blocks(reading: Reading, text: str) -> tuple[SpineBlock, ...]:
    """Reads an architecture of one's own: a JSON list of level, kind, inputs, is output."""
    try:
        blocks = tuple(
            SpineBlock(level=level, block=kind, inputs=tuple(inputs), output=output)
            for level, kind, inputs, output in json.loads(text)
        )
        sound = all(_is_block(block) for block in blocks)
    except (ValueError, TypeError):
        sound = False
    if not sound:
        raise UserError(
            "spinenet.block_specs is no list of blocks in JSON",
            where=reading.params.where("spinenet.block_specs"),
            fix=f"[[level, kind, [input, input], is_output], ...], kind {' or '.join(_KINDS)}",
        )
    return blocks


def _is_block(block: SpineBlock) -> bool:
    numbers = (block.level, *block.inputs)
    return (
        all(type(number) is int for number in numbers)
        and len(block.inputs) == 2
        and block.block in _KINDS
        and isinstance(block.output, bool)
    )
