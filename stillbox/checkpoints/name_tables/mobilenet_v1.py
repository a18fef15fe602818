"""MobileNet v1 as slim names it."""

from stillbox.checkpoints.name_tables import slim
from stillbox.checkpoints.name_tables.rules import (
    DEPTHWISE_KERNEL,
    SLIM,
    BackboneNames,
    LayerName,
    fixed,
    slim_roots,
)

_LAYERS = (
    LayerName(r"backbone\.conv_0", "{root}/Conv2d_0"),
    LayerName(
        r"backbone\.conv_(\d+)_depthwise", "{root}/Conv2d_{0}_depthwise", kernel=DEPTHWISE_KERNEL
    ),
    LayerName(r"backbone\.conv_(\d+)_pointwise", "{root}/Conv2d_{0}_pointwise"),
)


def _tap_name(tap: str) -> str:
    """`conv_13_pointwise` is called `Conv2d_13_pointwise`."""
    return tap.replace("conv_", "Conv2d_", 1)


NAMES = BackboneNames(
    spelling=SLIM,
    roots=slim_roots("MobilenetV1"),
    layers=fixed(_LAYERS),
    family=slim.FAMILY,
    tap_name=_tap_name,
    # The layer that the pyramid makes first out of its coarsest one.
    coarse=("Conv2d_{}", 14),
)
