"""MobileNet v2 as slim names it."""

from stillbox.checkpoints.name_tables import slim
from stillbox.checkpoints.name_tables.rules import (
    DEPTHWISE_KERNEL,
    SLIM,
    BackboneNames,
    LayerName,
    fixed,
    slim_roots,
)

_BLOCK = r"backbone\.block_(\d+)_"
_LAYERS = (
    LayerName(r"backbone\.conv_0", "{root}/Conv"),
    LayerName(r"backbone\.conv_1", "{root}/Conv_1"),
    # The first of them has no number.
    LayerName(
        r"backbone\.block_0_depthwise", "{root}/expanded_conv/depthwise", kernel=DEPTHWISE_KERNEL
    ),
    LayerName(r"backbone\.block_0_project", "{root}/expanded_conv/project"),
    LayerName(_BLOCK + "depthwise", "{root}/expanded_conv_{0}/depthwise", kernel=DEPTHWISE_KERNEL),
    LayerName(_BLOCK + "(expand|project)", "{root}/expanded_conv_{0}/{1}"),
)


def _tap_name(tap: str) -> str:
    """Layers are counted from 1: the root, 17 blocks, the last convolution."""
    if tap == "conv_1":
        return "layer_19"
    block, _, part = tap.removeprefix("block_").partition("_")
    return f"layer_{int(block) + 2}" + ("/expansion_output" if part == "expand" else "")


NAMES = BackboneNames(
    spelling=SLIM,
    roots=slim_roots("MobilenetV2"),
    layers=fixed(_LAYERS),
    family=slim.FAMILY,
    tap_name=_tap_name,
    coarse=("Conv2d_{}", 20),
)
