"""MobileNet v1 as slim names it."""

from stillbox.checkpoints.name_tables.rules import DEPTHWISE_KERNEL, LayerName

ROOT = "FeatureExtractor/MobilenetV1"

LAYERS = (
    LayerName(r"backbone\.conv_0", "{root}/Conv2d_0"),
    LayerName(
        r"backbone\.conv_(\d+)_depthwise", "{root}/Conv2d_{0}_depthwise", kernel=DEPTHWISE_KERNEL
    ),
    LayerName(r"backbone\.conv_(\d+)_pointwise", "{root}/Conv2d_{0}_pointwise"),
)

# The layer that the pyramid makes first out of its coarsest one.
COARSE = ("Conv2d_{}", 14)


def tap_name(tap: str) -> str:
    """`conv_13_pointwise` is called `Conv2d_13_pointwise`."""
    return tap.replace("conv_", "Conv2d_", 1)
