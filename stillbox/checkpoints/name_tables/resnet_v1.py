"""ResNet v1 as slim names it."""

from stillbox.checkpoints.name_tables import slim
from stillbox.checkpoints.name_tables.rules import (
    SLIM,
    BackboneNames,
    LayerName,
    fixed,
    slim_roots,
)

_UNIT = r"backbone\.block_(\d+)\.unit_(\d+)\."
_SCOPE = "{root}/block{0}/unit_{1}/bottleneck_v1"
_LAYERS = (
    LayerName(r"backbone\.root", "{root}/conv1"),
    LayerName(_UNIT + "shortcut", _SCOPE + "/shortcut"),
    LayerName(_UNIT + r"conv_(\d)", _SCOPE + "/conv{2}"),
)


def _tap_name(tap: str) -> str:
    """`block_4` is called `block4`."""
    return tap.replace("_", "")


NAMES = BackboneNames(
    spelling=SLIM,
    roots=slim_roots("resnet_v1_{depth}"),
    layers=fixed(_LAYERS),
    family=slim.FAMILY,
    tap_name=_tap_name,
    coarse=("block{}", 5),
)
