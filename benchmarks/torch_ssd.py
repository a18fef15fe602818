"""The peers of `ssd_resnet34.py`: train steps in PyTorch, one for each line of the input.

    TORCH_PYTHON benchmarks/torch_ssd.py INPUTS.npz --threads 2

Two networks: SSD ResNet-34 written plainly, and torchvision's `ssd300_vgg16` as it is.
`ssd_resnet34.py` starts it and writes the inputs, which have two arrays more than `Inputs` needs:
`classes` `[B, A]` and `codes` `[B, A, 4]`, the targets of SSD ResNet-34.
"""

from torch import nn
from torch_peer import (
    Inputs,
    Loss,
    loss_on_targets,
    own_loss,
    run_peers,
    torchvision_detection,
)
from torch_resnet34 import SsdResnet34, multibox_loss


def ssd_resnet34(_: Inputs) -> tuple[nn.Module, Loss]:
    """Returns the network and its loss, on given targets."""
    return loss_on_targets(SsdResnet34(), multibox_loss)


def ssd300_vgg16(_: Inputs) -> tuple[nn.Module, Loss]:
    """Returns torchvision's network with its 91 slots and its own loss."""
    return own_loss(torchvision_detection().ssd300_vgg16(weights=None, weights_backbone=None))


if __name__ == "__main__":
    networks = {"PyTorch ssd_resnet34": ssd_resnet34, "torchvision ssd300_vgg16": ssd300_vgg16}
    run_peers(networks, weight_decay=5e-4)
