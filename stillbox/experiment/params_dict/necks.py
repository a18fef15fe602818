"""`fpn`, `nasfpn`, `identity` and `retinanet_head`."""

import math
from dataclasses import replace
from typing import Any

from stillbox.experiment.params_dict.keys import NECKS
from stillbox.experiment.params_dict.layers import (
    GLOROT_UNIFORM,
    VARIANCE_SCALING,
    read_conv,
    read_drop_block,
)
from stillbox.experiment.params_dict.section import KeySection
from stillbox.experiment.schema import (
    Identity,
    NasFpn,
    Neck,
    RandomNormal,
    RetinaNetFpn,
    WeightSharedHead,
)

_CHOICE, _PATH, _HEAD = "architecture.multilevel_features", "model.neck", "model.head"


def read_neck(root: KeySection) -> Neck:
    """Reads the neck that the dictionary chooses."""
    kind = root.choose(_CHOICE, (*NECKS, "identity"), f"{_PATH}.kind")
    backbone = root.get("architecture.backbone")
    if backbone != "resnet" and kind != "identity":
        root.refuse(_CHOICE, f"{backbone} makes all levels itself", f"{_CHOICE}=identity")
    levels = root.child("architecture").fill(_PATH, "min_level", "max_level")
    if kind == "identity":
        return Identity(**levels)
    return _read_fpn(root, levels) if kind == "fpn" else _read_nas_fpn(root, levels)


def _read_fpn(root: KeySection, levels: dict[str, Any]) -> RetinaNetFpn:
    norm = root.value("fpn.use_batch_norm", f"{_PATH}.conv.batch_norm")
    conv = read_conv(root, "fpn", _PATH, initializer=GLOROT_UNIFORM, biased=True, norm=norm)
    return RetinaNetFpn(
        # Between the two coarsest levels stands a ReLU, whatever the other activations are.
        conv=replace(conv, activation="relu"),
        **levels,
        **root.child("fpn").fill(_PATH, depth="fpn_feat_dims", depthwise="use_separable_conv"),
    )


def _read_nas_fpn(root: KeySection, levels: dict[str, Any]) -> NasFpn:
    section = root.child("nasfpn")
    block = section.choose("block_fn", ("conv", "bottleneck"), f"{_PATH}.block")
    rate, inner = 0.0, None
    if block == "bottleneck":
        rate = section.value("init_drop_connect_rate", f"{_PATH}.drop_connect_rate") or 0.0
        # Its blocks are those of ResNet, down to their initialiser.
        inner = read_conv(root, "nasfpn", _PATH, initializer=VARIANCE_SCALING)
    return NasFpn(
        block=block,
        drop_connect_rate=rate,
        drop_block=read_drop_block(root, "nasfpn", f"{_PATH}.drop_block"),
        conv=read_conv(root, "nasfpn", _PATH, initializer=GLOROT_UNIFORM, biased=True),
        block_conv=inner,
        **levels,
        **section.fill(
            _PATH,
            "num_repeats",
            depth="fpn_feat_dims",
            depthwise="use_separable_conv",
            sum_only="use_sum_for_combination",
        ),
    )


def read_head(root: KeySection) -> WeightSharedHead:
    """Reads the head. Every score starts at 0.01."""
    section = root.child("retinanet_head")
    separable = section.value("use_separable_conv", f"{_HEAD}.depthwise")
    norm = section.value("use_batch_norm", f"{_HEAD}.conv.batch_norm")
    # Separable convolutions keep TensorFlow's initialiser in all layers.
    initializer = GLOROT_UNIFORM if separable else RandomNormal(stddev=0.01)
    return WeightSharedHead(
        depthwise=separable,
        kernel_size=3,
        class_bias_init=-math.log(99),
        predictor_initializer=None if separable else RandomNormal(stddev=1e-5),
        conv=read_conv(
            root, "retinanet_head", _HEAD, initializer=initializer, biased=True, norm=norm
        ),
        **section.fill(_HEAD, depth="num_filters", layers_before="num_convs"),
    )
