"""The convolutional box predictor."""

from stillbox.checkpoints.name_tables.rules import LayerName

LAYERS = (
    LayerName(r"head\.map_(\d+)\.box", "BoxPredictor_{0}/BoxEncodingPredictor"),
    LayerName(r"head\.map_(\d+)\.class_", "BoxPredictor_{0}/ClassPredictor"),
    LayerName(r"head\.map_(\d+)\.before_(\d+)", "BoxPredictor_{0}/Conv2d_{1}_1x1_{channels}"),
)
# With one feature map only, the original opens no scope for it.
SINGLE_MAP_LAYERS = tuple(
    LayerName(rule.pattern, rule.template.removeprefix("BoxPredictor_{0}/")) for rule in LAYERS
)
