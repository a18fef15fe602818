"""`fpn`, `nasfpn` and `identity` (TPU detection fact sheet 3.2 and 3.4)."""

from dataclasses import replace
from typing import Any

from stillbox.experiment.params_dict.layers import (
    GLOROT_UNIFORM,
    VARIANCE_SCALING,
    read_conv,
    read_drop_block,
)
from stillbox.experiment.params_dict.reading import Reading
from stillbox.experiment.schema import Identity, NasFpn, Neck, RetinaNetFpn

_CHOICE, _PATH = "architecture.multilevel_features", "model.neck"


def read_neck(reading: Reading) -> Neck:
    """Reads the neck that the dictionary chooses."""
    kind = reading.choose(_CHOICE, ("fpn", "nasfpn", "identity"), f"{_PATH}.kind")
    backbone = reading.params.value("architecture.backbone")
    if backbone != "resnet" and kind != "identity":
        reading.refuse(
            _CHOICE,
            f"{backbone} makes all levels itself",
            f"{_CHOICE}=identity",
        )
    levels = reading.fill("architecture", _PATH, min_level="min_level", max_level="max_level")
    if kind == "identity":
        return Identity(**levels)
    return _read_fpn(reading, levels) if kind == "fpn" else _read_nas_fpn(reading, levels)


def _read_fpn(reading: Reading, levels: dict[str, Any]) -> RetinaNetFpn:
    norm = reading.take("fpn.use_batch_norm", f"{_PATH}.conv.batch_norm")
    conv = read_conv(reading, "fpn", _PATH, initializer=GLOROT_UNIFORM, biased=True, norm=norm)
    return RetinaNetFpn(
        # Between the two coarsest levels stands a ReLU, whatever the others activate with.
        conv=replace(conv, activation="relu"),
        **levels,
        **reading.fill("fpn", _PATH, depth="fpn_feat_dims", depthwise="use_separable_conv"),
    )


def _read_nas_fpn(reading: Reading, levels: dict[str, Any]) -> NasFpn:
    block = reading.choose("nasfpn.block_fn", ("conv", "bottleneck"), f"{_PATH}.block")
    rate, inner = 0.0, None
    if block == "bottleneck":
        rate = reading.take("nasfpn.init_drop_connect_rate", f"{_PATH}.drop_connect_rate") or 0.0
        # Its blocks are those of ResNet, down to their initialiser.
        inner = read_conv(reading, "nasfpn", _PATH, initializer=VARIANCE_SCALING)
    return NasFpn(
        block=block,
        drop_connect_rate=rate,
        drop_block=read_drop_block(reading, "nasfpn", f"{_PATH}.drop_block"),
        conv=read_conv(reading, "nasfpn", _PATH, initializer=GLOROT_UNIFORM, biased=True),
        block_conv=inner,
        **levels,
        **reading.fill(
            "nasfpn",
            _PATH,
            depth="fpn_feat_dims",
            num_repeats="num_repeats",
            depthwise="use_separable_conv",
            sum_only="use_sum_for_combination",
        ),
    )
