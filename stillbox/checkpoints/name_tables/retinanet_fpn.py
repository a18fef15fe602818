"""RetinaNet's feature pyramid; a batch norm belongs to the level, not to a convolution."""

from functools import partial

from stillbox.checkpoints.name_tables.rules import TF_LAYERS, LayerName

_layer = partial(LayerName, spelling=TF_LAYERS)
LAYERS = (
    _layer(r"neck\.lateral_(\d+)", "fpn/l{0}"),
    _layer(r"neck\.output_(\d+)", "fpn/post_hoc_d{0}"),
    _layer(r"neck\.coarse_(\d+)", "fpn/p{0}"),
    _layer(r"neck", "fpn", norm="fpn/p{norm}-bn"),
)
