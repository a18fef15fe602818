"""MobileNet v1 as slim names it."""

from stillbox.checkpoints.name_tables.rules import LayerName

ROOT = "FeatureExtractor/MobilenetV1"

LAYERS = (
    LayerName(r"backbone\.conv_0", ROOT + "/Conv2d_0"),
    LayerName(
        r"backbone\.conv_(\d+)_depthwise", ROOT + "/Conv2d_{0}_depthwise", "depthwise_weights"
    ),
    LayerName(r"backbone\.conv_(\d+)_pointwise", ROOT + "/Conv2d_{0}_pointwise"),
)
