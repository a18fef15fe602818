"""ResNet v1 as slim names it."""

from stillbox.checkpoints.name_tables.rules import LayerName

ROOT = "FeatureExtractor/resnet_v1_{depth}"

_UNIT = r"backbone\.block_(\d+)\.unit_(\d+)\."
_SCOPE = "{root}/block{0}/unit_{1}/bottleneck_v1"
LAYERS = (
    LayerName(r"backbone\.root", "{root}/conv1"),
    LayerName(_UNIT + "shortcut", _SCOPE + "/shortcut"),
    LayerName(_UNIT + r"conv_(\d)", _SCOPE + "/conv{2}"),
)

COARSE = ("block{}", 5)


def tap_name(tap: str) -> str:
    """`block_4` is called `block4`."""
    return tap.replace("_", "")
