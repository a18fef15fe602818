"""SSD's extra layers: named after the last tap, and after their own channel count."""

from stillbox.checkpoints.name_tables.rules import LayerName

LAYERS = (
    LayerName(r"neck\.extra_(\d+)_1x1", "{root}/{tap}_1_Conv2d_{0}_1x1_{channels}"),
    LayerName(r"neck\.extra_(\d+)_3x3", "{root}/{tap}_2_Conv2d_{0}_3x3_s2_{channels}"),
)
