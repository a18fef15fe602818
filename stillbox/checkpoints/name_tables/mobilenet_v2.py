"""MobileNet v2 as slim names it."""

from stillbox.checkpoints.name_tables.rules import DEPTHWISE_KERNEL, LayerName

ROOT = "FeatureExtractor/MobilenetV2"

_BLOCK = r"backbone\.block_(\d+)_"
LAYERS = (
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

COARSE = ("Conv2d_{}", 20)


def tap_name(tap: str) -> str:
    """Layers are counted from 1: the root, 17 blocks, the last convolution."""
    if tap == "conv_1":
        return "layer_19"
    block, _, part = tap.removeprefix("block_").partition("_")
    return f"layer_{int(block) + 2}" + ("/expansion_output" if part == "expand" else "")
