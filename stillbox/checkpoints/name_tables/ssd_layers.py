"""SSD's extra layers: named after the last tap, and after their own channel count."""

from stillbox.checkpoints.name_tables.rules import DEPTHWISE_KERNEL, LayerName

_HALVED = "{root}/{tap}_2_Conv2d_{0}_3x3_s2_{channels}"
LAYERS = (
    LayerName(r"neck\.extra_(\d+)_1x1", "{root}/{tap}_1_Conv2d_{0}_1x1_{channels}"),
    LayerName(r"neck\.extra_(\d+)_3x3", _HALVED),
    LayerName(
        r"neck\.extra_(\d+)_depthwise",
        _HALVED + "_depthwise",
        kernel=DEPTHWISE_KERNEL,
        counted=r"neck.extra_\1_3x3",
    ),
)
