"""`resnet`, `spinenet` and `spinenet_mbconv` (TPU detection fact sheet 3.1 and 3.5)."""

from stillbox.experiment.params_dict.blocks import BACKBONES
from stillbox.experiment.params_dict.layers import VARIANCE_SCALING, read_conv, read_drop_block
from stillbox.experiment.params_dict.reading import Reading
from stillbox.experiment.params_dict.spinenets import read_spinenet, read_spinenet_mbconv
from stillbox.experiment.schema import Backbone, ResNet

_CHOICE, _PATH = "architecture.backbone", "model.backbone"
_STEM = "architecture.space_to_depth_block_size"


def read_backbone(reading: Reading) -> Backbone:
    """Reads the backbone that the dictionary chooses."""
    kind = reading.choose(_CHOICE, BACKBONES, f"{_PATH}.kind")
    if kind == "spinenet":
        return read_spinenet(reading)
    return read_spinenet_mbconv(reading) if kind == "spinenet_mbconv" else _read_resnet(reading)


def _read_resnet(reading: Reading) -> ResNet:
    block = reading.take(_STEM, f"{_PATH}.space_to_depth_stem")
    if block not in (1, 2):
        reading.refuse(_STEM, "the stem is computed over blocks of 2 pixels, or of 1", f"{_STEM}=2")
    rate = reading.take("resnet.init_drop_connect_rate", f"{_PATH}.drop_connect_rate")
    return ResNet(
        space_to_depth_stem=block == 2,
        project_first_block=True,
        zero_last_scale=False,
        drop_connect_rate=rate or 0.0,
        drop_block=read_drop_block(reading, "resnet", f"{_PATH}.drop_block"),
        conv=read_conv(reading, "resnet", _PATH, initializer=VARIANCE_SCALING),
        **reading.fill("resnet", _PATH, depth="resnet_depth"),
    )
