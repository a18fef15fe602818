"""`ssd_efficientnet-b*_bifpn_keras`: the feature extractors of EfficientDet."""

import dataclasses
import re
from typing import Any, Literal, NamedTuple

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.layers import of_a_replica, read_hyperparams
from stillbox.experiment.pipeline_config.section import MessageSection
from stillbox.experiment.schema import (
    EFFICIENTNET_SIZES,
    BiFpn,
    EfficientNet,
    PixelNormalization,
)

EFFICIENTDETS = tuple(f"ssd_efficientnet-{size}_bifpn_keras" for size in EFFICIENTNET_SIZES)
"""Values of `feature_extractor.type`."""

# Of ImageNet.
_PIXELS = PixelNormalization(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
_UNSUPPORTED = {
    "depth_multiplier": 1.0,
    "use_explicit_padding": False,
    "use_depthwise": False,
    "override_base_feature_extractor_hyperparams": False,
}

_COMBINE_METHODS = ("fast_attention", "weighted_sum", "sum")
_REFUSED_METHODS = {
    "attention": "its softmax runs over an axis of length 1 in the original, so that it is 'sum'"
}


class _Pyramid(NamedTuple):
    num_repeats: int
    depth: int
    combine: Literal["fast_attention", "sum"] = "fast_attention"


# Where a config has no `bifpn`, by the size of the backbone.
_PYRAMIDS = {
    "b0": _Pyramid(3, 64),
    "b1": _Pyramid(4, 88),
    "b2": _Pyramid(5, 112),
    "b3": _Pyramid(6, 160),
    "b4": _Pyramid(7, 224),
    "b5": _Pyramid(7, 288),
    "b6": _Pyramid(8, 384, "sum"),
    "b7": _Pyramid(8, 384, "sum"),
}


class EfficientDetParts(NamedTuple):
    """The parts that one `feature_extractor` describes."""

    backbone: EfficientNet
    neck: BiFpn
    pixels: PixelNormalization


def read_efficientdet(section: MessageSection, kind: str) -> EfficientDetParts:
    """Reads `feature_extractor` of a `type` in `EFFICIENTDETS`.

    Raises:
        UserError: a field that the original refuses, or a pyramid without sums.
    """
    for name, only in _UNSUPPORTED.items():
        if section.value(name) != only:
            raise UserError(
                f"an EfficientNet has no {name}",
                where=section.where(name),
                fix=f"leave it at {str(only).lower()}",
            )
    size = re.findall(r"b\d", kind)[0]
    backbone = EFFICIENTNET_SIZES[size]
    # The original builds the whole network, and its checkpoints contain it.
    backbone = dataclasses.replace(
        backbone, conv=of_a_replica(backbone.conv), last_layer=backbone.layers[-1]
    )
    return EfficientDetParts(backbone, _read_bifpn(section, _PYRAMIDS[size]), _PIXELS)


def _read_bifpn(section: MessageSection, default: _Pyramid) -> BiFpn:
    path, least = "model.neck", section.value("min_depth", "model.neck.depth")
    conv = read_hyperparams(section.child("conv_hyperparams"), f"{path}.conv", keras=True)
    values: dict[str, Any] = default._asdict()
    if section.has("bifpn"):
        bifpn = section.child("bifpn")
        values = bifpn.fill(path, "min_level", "max_level", num_repeats="num_iterations")
        values["depth"] = bifpn.value("num_filters", f"{path}.depth")
        values["combine"] = bifpn.choose(
            "combine_method", _COMBINE_METHODS, f"{path}.combine", reasons=_REFUSED_METHODS
        )
        for name, ours in (("num_iterations", "num_repeats"), ("num_filters", "depth")):
            if values[ours] < 1:
                bifpn.refuse(name, "a BiFPN without it has no feature maps", "set it to 1 or more")
    values["depth"] = max(values["depth"], least)
    # Both kernels of its separable convolutions are penalised.
    return BiFpn(conv=dataclasses.replace(conv, regularize_depthwise=True), **values)
