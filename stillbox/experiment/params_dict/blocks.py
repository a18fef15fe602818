"""Which parts of a dictionary are in use: it describes every backbone and every neck at once."""

from stillbox.experiment.params_dict.merging import Params

BACKBONES = ("resnet", "spinenet", "spinenet_mbconv")
"""Values of `architecture.backbone`, and the sections that describe them."""
NECKS = ("fpn", "nasfpn")
"""Values of `architecture.multilevel_features` with a section; `identity` has none."""
BLOCKS = (*BACKBONES, *NECKS)
"""All sections that are only in use where something chooses them."""


def used_blocks(params: Params) -> tuple[str, ...]:
    """Returns the sections of the blocks that the model consists of, from input to output."""
    chosen = (
        params.value("architecture.backbone"),
        params.value("architecture.multilevel_features"),
    )
    return (*(name for name in BLOCKS if name in chosen), "retinanet_head")
