"""What the original calls a detector's parameters in its TF1 checkpoints (fact sheet 3.2, 3.3).

The names are data, in `name_tables`; this file only puts the tables of a model's parts together.
"""

import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Literal, Protocol

from stillbox.checkpoints.name_tables import (
    convolutional_head,
    fpn,
    mobilenet_v1,
    mobilenet_v2,
    ppn,
    resnet_v1,
    ssd_layers,
    weight_shared_head,
)
from stillbox.checkpoints.name_tables.rules import LayerName, Shapes, variable_name
from stillbox.experiment import schema

Scope = Literal["classification", "detection"]


class HasShape(Protocol):
    """An array, or what stands for one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of every axis."""
        ...


_BACKBONES: dict[type, ModuleType] = {
    schema.MobileNetV1: mobilenet_v1,
    schema.MobileNetV2: mobilenet_v2,
    schema.ResNetV1: resnet_v1,
}
_NORM = re.compile(r"norm(_\d+)?")
_DETECTION_ROOT = "FeatureExtractor/"


def reference_names(
    model: schema.Model, arrays: Mapping[str, HasShape], *, scope: Scope = "detection"
) -> dict[str, str]:
    """Names parameters and moving statistics as the original's checkpoints do.

    Args:
        model: the detector's description.
        arrays: by path in our detector. Only shapes count: some names hold a channel count.
        scope: `classification` gives the names in a classifier's checkpoint, which holds the
            backbone only.

    Returns:
        Name by path, for all paths that have one.
    """
    shapes = {path: tuple(array.shape) for path, array in arrays.items()}
    fields = _fields(model)
    rules = _rules(model, single_map="head.map_1.box.kernel" not in shapes)
    names = {}
    for path in shapes:
        name = _name(path, shapes, rules, fields)
        if name and scope == "detection":
            names[path] = name
        elif name and name.startswith(_DETECTION_ROOT) and path.startswith("backbone."):
            names[path] = name.removeprefix(_DETECTION_ROOT)
    return names


def _fields(model: schema.Model) -> dict[str, str]:
    """Returns what the templates may refer to."""
    tables: Any = _BACKBONES[type(model.backbone)]
    depth = getattr(model.backbone, "depth", None)
    last_tap = model.neck.taps_of(model.backbone)[-1]
    return {"root": tables.ROOT.format(depth=depth), "tap": tables.tap_name(last_tap)}


def _rules(model: schema.Model, *, single_map: bool) -> tuple[LayerName, ...]:
    tables: Any = _BACKBONES[type(model.backbone)]
    necks: dict[type, tuple[LayerName, ...]] = {
        schema.SsdLayers: ssd_layers.LAYERS,
        schema.Ppn: ppn.LAYERS,
        schema.Fpn: fpn.layers(*tables.COARSE),
    }
    own = convolutional_head.SINGLE_MAP_LAYERS if single_map else convolutional_head.LAYERS
    heads: dict[type, tuple[LayerName, ...]] = {
        schema.ConvolutionalHead: own,
        schema.WeightSharedHead: weight_shared_head.LAYERS,
    }
    backbone: tuple[LayerName, ...] = tables.LAYERS
    return backbone + necks[type(model.neck)] + heads[type(model.head)]


def _name(
    path: str, shapes: Shapes, rules: tuple[LayerName, ...], fields: Mapping[str, object]
) -> str | None:
    layer, variable = _split(path)
    for rule in rules:
        scope = rule.format_scope(layer, shapes, fields)
        if scope:
            separable = f"{layer}.depthwise_kernel" in shapes
            name = variable_name(rule, variable, separable=separable)
            return f"{scope}/{name}" if name else None
    return None


def _split(path: str) -> tuple[str, str]:
    """Splits `neck.extra_2_1x1.norm.mean` into `neck.extra_2_1x1` and `norm.mean`."""
    layer, variable = path.rsplit(".", 1)
    owner, _, last = layer.rpartition(".")
    # What a batch norm has belongs to the layer that it finishes.
    return (owner, f"{last}.{variable}") if _NORM.fullmatch(last) else (layer, variable)
