"""The pooling pyramid: one layer at most, outside the backbone's scope."""

from stillbox.checkpoints.name_tables.rules import LayerName

LAYERS = (LayerName(r"neck\.base", "FeatureExtractor/Base_Conv2d_1x1_{channels}"),)
