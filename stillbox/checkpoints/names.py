"""What the original calls a detector's parameters in its TF1 checkpoints (fact sheet 3.2, 3.3).

The names are data, in `name_tables`; this file only puts the tables of a model's parts together.
"""

from collections.abc import Mapping
from typing import Literal, Protocol

from stillbox.checkpoints.name_tables import convolutional_head, mobilenet_v1, ssd_layers
from stillbox.checkpoints.name_tables.rules import VARIABLES, LayerName
from stillbox.experiment import schema

Scope = Literal["classification", "detection"]
Shapes = Mapping[str, tuple[int, ...]]


class HasShape(Protocol):
    """An array, or what stands for one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of every axis."""
        ...


_BACKBONES = {schema.MobileNetV1: (mobilenet_v1.ROOT, mobilenet_v1.LAYERS)}
_NECKS = {schema.SsdLayers: ssd_layers.LAYERS}
_HEADS = {
    schema.ConvolutionalHead: (convolutional_head.LAYERS, convolutional_head.SINGLE_MAP_LAYERS)
}
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
    fields = {"root": _BACKBONES[type(model.backbone)][0], "tap": _scope_of_last_tap(model)}
    rules = _rules(model, single_map="head.map_1.box.kernel" not in shapes)
    names = {}
    for path in shapes:
        name = _name(path, shapes, rules, fields)
        if name and scope == "detection":
            names[path] = name
        elif name and name.startswith(_DETECTION_ROOT) and path.startswith("backbone."):
            names[path] = name.removeprefix(_DETECTION_ROOT)
    return names


def _rules(model: schema.Model, *, single_map: bool) -> tuple[LayerName, ...]:
    head = _HEADS[type(model.head)][single_map]
    return _BACKBONES[type(model.backbone)][1] + _NECKS[type(model.neck)] + head


def _name(
    path: str, shapes: Shapes, rules: tuple[LayerName, ...], fields: Mapping[str, object]
) -> str | None:
    layer, variable = _split(path)
    kernel = shapes.get(f"{layer}.kernel", (0,))
    for rule in rules:
        scope = rule.format_scope(layer, {**fields, "channels": kernel[-1]})
        if scope and (variable == "kernel" or variable in VARIABLES):
            return f"{scope}/{rule.kernel if variable == 'kernel' else VARIABLES[variable]}"
    return None


def _split(path: str) -> tuple[str, str]:
    """Splits `neck.extra_2_1x1.norm.mean` into `neck.extra_2_1x1` and `norm.mean`."""
    layer, _, variable = path.rpartition(".")
    if layer.endswith(".norm"):
        return layer.removesuffix(".norm"), f"norm.{variable}"
    return layer, variable


def _scope_of_last_tap(model: schema.Model) -> str:
    """`conv_13_pointwise` is called `Conv2d_13_pointwise`."""
    return model.neck.taps[-1].replace("conv_", "Conv2d_", 1)
