"""ResNet as Google's detectors for TPUs name it, and as torchvision does."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from stillbox.checkpoints.name_tables import tf_layers
from stillbox.checkpoints.name_tables.rules import (
    TF_LAYERS,
    TORCH,
    BackboneNames,
    Context,
    Family,
    LayerName,
    Shapes,
)

_KERNEL = re.compile(
    r"backbone\.(?:stem|group_(?P<group>\d+)\.block_(?P<block>\d+)\."
    r"(?:shortcut|conv_(?P<conv>\d+)))\.kernel"
)
_BEHIND = "layer behind the last that this model uses"
_LOGITS = "classifier's logits"


class _Place(NamedTuple):
    """Where a convolution stands; all counts from 1, and 0 for what there is only one of."""

    group: int
    block: int
    conv: int


def _convolutions(shapes: Shapes) -> Iterator[tuple[_Place, str]]:
    """Yields the convolutions' paths."""
    for path in shapes:
        match = _KERNEL.fullmatch(path)
        if match:
            place = _Place(*(int(match[name] or 0) for name in _Place._fields))
            yield place, re.escape(path.removesuffix(".kernel"))


def _numbered(context: Context) -> tuple[LayerName, ...]:
    """Numbers the layers as the original made them, which a place's order is.

    The stem is 0; in a block the shortcut comes first, where there is one. So the numbers depend on
    depth and strides (SSD ResNet-34 fact sheet 7).
    """
    rules = []
    for index, (_, pattern) in enumerate(sorted(_convolutions(context.shapes))):
        number = f"_{index}" if index else ""
        rules.append(
            LayerName(
                pattern,
                f"{{root}}conv2d{number}",
                norm=f"{{root}}batch_normalization{number}",
                spelling=TF_LAYERS,
            )
        )
    return tuple(rules)


def _dotted(context: Context) -> tuple[LayerName, ...]:
    rules = []
    for place, pattern in _convolutions(context.shapes):
        # Blocks are counted from 0 there.
        scope = f"layer{place.group}.{place.block - 1}."
        if not place.group:
            conv, norm = "conv1", "bn1"
        elif not place.conv:
            conv, norm = scope + "downsample.0", scope + "downsample.1"
        else:
            conv, norm = scope + f"conv{place.conv}", scope + f"bn{place.conv}"
        rules.append(LayerName(pattern, "{root}" + conv, norm="{root}" + norm, spelling=TORCH))
    return tuple(rules)


# Classifiers' checkpoints have no root, or this one; the detector's has its own.
_ROOTS = ("", "resnet/")
TF1 = BackboneNames(
    spelling=TF_LAYERS,
    roots={
        "classification": (*_ROOTS, "resnet{depth}/"),
        "detection": ("resnet{depth}/", *_ROOTS),
    },
    layers=_numbered,
    family=tf_layers.FAMILY,
    trained_with={"pool_padding": "same"},
    unwanted={
        r"(.*/)?dense/(kernel|bias)": _LOGITS,
        r"(.*/)?(conv2d|batch_normalization)_\d+/.*": _BEHIND,
    },
)
TORCHVISION = BackboneNames(
    spelling=TORCH,
    roots={"classification": ("",), "detection": ("",)},
    layers=_dotted,
    family=Family(),
    any_root=True,
    trained_with={"pool_padding": "symmetric"},
    unwanted={
        r"(.*\.)?num_batches_tracked": "count of batches, which nothing here uses",
        r"(.*\.)?fc\.(weight|bias)": _LOGITS,
        r"(.*\.)?layer\d+\..*": _BEHIND,
        r"optimizer\..*": "optimizer slot",
    },
)
