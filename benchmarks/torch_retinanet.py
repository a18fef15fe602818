"""The peers of `retinanet.py` in PyTorch: torchvision's two RetinaNets.

    TORCH_PYTHON benchmarks/torch_retinanet.py INPUTS.npz --threads 2

`retinanet.py` starts it and writes the inputs.
"""

from functools import partial

from torch import nn
from torch_peer import Inputs, Loss, own_loss, run_peers, torchvision_detection

_NAMES = ("retinanet_resnet50_fpn", "retinanet_resnet50_fpn_v2")


def retinanet(name: str, inputs: Inputs) -> tuple[nn.Module, Loss]:
    """Returns a network of torchvision from scratch, and its own loss.

    Without weights its backbone is trained as a whole, with batch norm by the batch's statistics:
    the frozen batch norm belongs to weights from ImageNet.
    """
    side = inputs.images.shape[-1]
    network = getattr(torchvision_detection(), name)(
        weights=None,
        weights_backbone=None,
        num_classes=inputs.slots,
        min_size=side,
        max_size=side,
    )
    return own_loss(network)


if __name__ == "__main__":
    run_peers(
        {f"torchvision {name}": partial(retinanet, name) for name in _NAMES}, weight_decay=1e-4
    )
