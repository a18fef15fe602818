"""What other frameworks call a detector's parameters.

Sources: fact sheet 3.2 and 3.3; SSD ResNet-34 fact sheet 2 and 7.

The names are data, in `name_tables`; this file only puts the tables of a model's parts together.
"""

import re
from collections.abc import Mapping
from typing import Protocol

from stillbox.checkpoints.name_tables import mobilenet_v1, mobilenet_v2, resnet, resnet_v1, spinenet
from stillbox.checkpoints.name_tables.rules import BackboneNames, Context, Scope
from stillbox.experiment import schema


class HasShape(Protocol):
    """An array, or what stands for one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of every axis."""
        ...


BACKBONES: dict[type, tuple[BackboneNames, ...]] = {
    schema.MobileNetV1: (mobilenet_v1.NAMES,),
    schema.MobileNetV2: (mobilenet_v2.NAMES,),
    schema.ResNetV1: (resnet_v1.NAMES,),
    schema.ResNet: (resnet.TF1, resnet.TORCHVISION),
    schema.SpineNet: (spinenet.SPINENET,),
    schema.SpineNetMbConv: (spinenet.MBCONV,),
}
"""Each backbone's tables, that of the original first."""
_NORM = re.compile(r"norm(_\d+)?")


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
    table = BACKBONES[type(model.backbone)][0]
    names = names_under(table.roots[scope][0], table, model, arrays)
    if scope == "detection":
        return names
    return {path: name for path, name in names.items() if path.startswith("backbone.")}


def names_under(
    root: str, table: BackboneNames, model: schema.Model, arrays: Mapping[str, HasShape]
) -> dict[str, str]:
    """Names all arrays after one table.

    Args:
        root: what the table's `{root}` stands for.
        table: of the model's backbone.
        model: the detector's description.
        arrays: by path in our detector.

    Returns:
        Name by path, for all paths that have one.
    """
    shapes = {path: tuple(array.shape) for path, array in arrays.items()}
    context = Context(model, table, shapes)
    family, rules = table.family, table.layers(context)
    for tables, part in ((family.necks, model.neck), (family.heads, model.head)):
        rules += tables[type(part)](context) if type(part) in tables else ()
    last_tap = model.neck.taps_of(model.backbone)[-1]
    root = root.format(depth=getattr(model.backbone, "depth", None))
    fields = {"root": root, "tap": table.tap_name(last_tap)}
    names = {}
    for path in shapes:
        layer, variable = _split(path)
        found = (rule.name_of(layer, variable, shapes, fields) for rule in rules)
        name = next(filter(None, found), None)
        if name:
            names[path] = name
    return names


def _split(path: str) -> tuple[str, str]:
    """Splits `neck.extra_2_1x1.norm.mean` into `neck.extra_2_1x1` and `norm.mean`."""
    layer, variable = path.rsplit(".", 1)
    owner, _, last = layer.rpartition(".")
    # What a batch norm has belongs to the layer that it finishes.
    return (owner, f"{last}.{variable}") if _NORM.fullmatch(last) else (layer, variable)
