"""The weight shared convolutional box predictor."""

from stillbox.checkpoints.name_tables.rules import LayerName

_ROOT = "WeightSharedConvolutionalBoxPredictor"
_PER_MAP = "{scope}/BatchNorm/feature_{norm}"


def _tower(ours: str, theirs: str) -> LayerName:
    # A batch norm belongs to the layer, its kernel to the convolution inside.
    pattern = rf"head\.{ours}\.layer_(\d+)(?:\.conv)?"
    return LayerName(pattern, f"{_ROOT}/{theirs}/conv2d_{{0}}", norm=_PER_MAP)


LAYERS = (
    LayerName(r"head\.box", f"{_ROOT}/BoxPredictor"),
    LayerName(r"head\.class_", f"{_ROOT}/ClassPredictor"),
    LayerName(r"head\.projection_(\d+)(?:\.conv)?", f"{_ROOT}/ProjectionLayer/conv2d_{{0}}"),
    _tower("tower", "PredictionTower"),
    _tower("box_tower", "BoxPredictionTower"),
    _tower("class_tower", "ClassPredictionTower"),
)
