"""The convolutional box predictor."""

from dataclasses import replace

from stillbox.checkpoints.name_tables.rules import DEPTHWISE_KERNEL, Context, LayerName

_LAYERS = (
    LayerName(r"head\.map_(\d+)\.box", "BoxPredictor_{0}/BoxEncodingPredictor"),
    LayerName(r"head\.map_(\d+)\.class_", "BoxPredictor_{0}/ClassPredictor"),
    LayerName(
        r"head\.map_(\d+)\.box_depthwise",
        "BoxPredictor_{0}/BoxEncodingPredictor_depthwise",
        kernel=DEPTHWISE_KERNEL,
    ),
    LayerName(
        r"head\.map_(\d+)\.class_depthwise",
        "BoxPredictor_{0}/ClassPredictor_depthwise",
        kernel=DEPTHWISE_KERNEL,
    ),
    LayerName(r"head\.map_(\d+)\.before_(\d+)", "BoxPredictor_{0}/Conv2d_{1}_1x1_{channels}"),
)
# With one feature map only, the original opens no scope for it.
_SINGLE_MAP_LAYERS = tuple(
    replace(rule, template=rule.template.removeprefix("BoxPredictor_{0}/")) for rule in _LAYERS
)


def layers(context: Context) -> tuple[LayerName, ...]:
    """Returns the rules."""
    return _LAYERS if "head.map_1.box.kernel" in context.shapes else _SINGLE_MAP_LAYERS
