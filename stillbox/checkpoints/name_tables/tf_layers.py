"""What Google's detectors for TPUs put around their backbones.

Sources: SSD ResNet-34 fact sheet 2, TPU detection fact sheet 9.
"""

from functools import partial

from stillbox.checkpoints.name_tables import nas_fpn, retinanet_fpn, retinanet_head
from stillbox.checkpoints.name_tables.rules import TF_LAYERS, Family, LayerName, fixed
from stillbox.experiment import schema

_layer = partial(LayerName, spelling=TF_LAYERS)
# The backbone's last map is level 3, and the first layers behind it are called block 7.
_FIRST_LEVEL, _FIRST_BLOCK = 3, 7
_MOST_MAPS = 10

_EXTRA_LAYERS = tuple(
    _layer(rf"neck\.extra_{extra}_(\dx\d)", f"ssd/block{block}-conv{{0}}")
    for extra, block in enumerate(range(_FIRST_BLOCK, _FIRST_BLOCK + _MOST_MAPS), start=1)
)
_PREDICTORS = tuple(
    _layer(rf"head\.map_{index}\.{ours}", f"ssd/{theirs}_net/{theirs}-{index + _FIRST_LEVEL}")
    for index in range(_MOST_MAPS)
    for ours, theirs in (("class_", "class"), ("box", "box"))
)

FAMILY = Family(
    necks={
        schema.SsdLayers: fixed(_EXTRA_LAYERS),
        schema.RetinaNetFpn: fixed(retinanet_fpn.LAYERS),
        schema.NasFpn: nas_fpn.layers,
    },
    heads={
        schema.ConvolutionalHead: fixed(_PREDICTORS),
        schema.WeightSharedHead: retinanet_head.layers,
    },
)
