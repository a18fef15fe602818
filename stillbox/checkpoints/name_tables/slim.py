"""The parts that the Object Detection API puts around slim's backbones (fact sheet 3.2, 3.3)."""

from stillbox.checkpoints.name_tables import (
    convolutional_head,
    fpn,
    ppn,
    ssd_layers,
    weight_shared_head,
)
from stillbox.checkpoints.name_tables.rules import Family, fixed
from stillbox.experiment import schema

FAMILY = Family(
    necks={
        schema.SsdLayers: fixed(ssd_layers.LAYERS),
        schema.Ppn: fixed(ppn.LAYERS),
        schema.Fpn: lambda context: fpn.layers(*context.backbone.coarse),
    },
    heads={
        schema.ConvolutionalHead: convolutional_head.layers,
        schema.WeightSharedHead: fixed(weight_shared_head.LAYERS),
    },
)
