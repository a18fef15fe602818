"""ResNet of Google's classifiers and detectors for TPUs, and of torchvision."""

import re

from stillbox.checkpoints.name_tables.numbering import Layer, number_layers
from stillbox.checkpoints.name_tables.rules import (
    TF_LAYERS,
    TORCH,
    BackboneTable,
    Context,
    LayerRule,
    register_backbone,
)
from stillbox.experiment import schema

_KERNEL = re.compile(
    r"(backbone\.(?:stem|group_(\d+)\.block_(\d+)\.(?:shortcut|conv_(\d+))))\.kernel"
)


def _numbered(context: Context) -> tuple[LayerRule, ...]:
    """Numbers the layers in order: stem, then block by block, a block's shortcut first.

    The numbers depend on depth and strides, because not every block has a shortcut.
    """
    matches = filter(None, map(_KERNEL.fullmatch, context.shapes))
    layers = [Layer(tuple(int(n or 0) for n in m.groups()[1:]), "", m[1]) for m in matches]
    return number_layers(layers, context.shapes)


_LOGITS = "classifier's logits"
_UNUSED = "layer behind the last that this model uses"
# Classifiers' checkpoints have no root, or this one; detectors' have one with the depth.
_ROOTS = ("", "resnet/")
_DETECTOR_ROOT = "resnet{depth}/"
_BLOCK = r"backbone\.group_(\d+)\.block_(\d+)\."
# torchvision counts blocks from 0.
_SCOPE = "{root}layer{0}.{1:-1}."

register_backbone(
    schema.ResNet,
    BackboneTable(
        convention=TF_LAYERS,
        roots={
            "classification": (*_ROOTS, _DETECTOR_ROOT),
            "detection": (_DETECTOR_ROOT, *_ROOTS),
        },
        rules=_numbered,
        codebase="tpu_detection",
        expected={"backbone.pool_padding": "same"},
        ignored={
            r"(.*/)?dense/(kernel|bias)": _LOGITS,
            r"(.*/)?(conv2d|batch_normalization)_\d+/.*": _UNUSED,
        },
    ),
    BackboneTable(
        convention=TORCH,
        roots={"classification": ("",), "detection": ("",)},
        rules=(
            LayerRule(r"backbone\.stem", "{root}conv1", norm="{root}bn1"),
            LayerRule(_BLOCK + "shortcut", _SCOPE + "downsample.0", norm=_SCOPE + "downsample.1"),
            LayerRule(_BLOCK + r"conv_(\d+)", _SCOPE + "conv{2}", norm=_SCOPE + "bn{2}"),
        ),
        any_prefix=True,
        expected={"backbone.pool_padding": "symmetric"},
        ignored={
            r"(.*\.)?num_batches_tracked": "count of batches, which nothing here uses",
            r"(.*\.)?fc\.(weight|bias)": _LOGITS,
            r"(.*\.)?layer\d+\..*": _UNUSED,
            r"optimizer\..*": "optimizer slot",
        },
    ),
)
