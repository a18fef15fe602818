"""The peers of `ssd_resnet34.py`: train steps in PyTorch, one for each line of the input.

    TORCH_PYTHON benchmarks/torch_ssd.py INPUTS.npz --threads 2

Two networks: SSD ResNet-34 written plainly, and torchvision's `ssd300_vgg16` as it is.
`ssd_resnet34.py` starts it and writes the inputs, which have two arrays more than `Inputs` needs:
`classes` `[B, A]` and `codes` `[B, A, 4]`, the targets of SSD ResNet-34.
"""

import torch
from torch import Tensor, nn
from torch_peer import LAYOUT, Inputs, Loss, own_loss, run_peers, torchvision_detection
from torch_resnet34 import SsdResnet34, multibox_loss


def ssd_resnet34(_: Inputs) -> tuple[nn.Module, Loss]:
    """Returns the network and its loss, on given targets."""
    network = SsdResnet34().to(memory_format=LAYOUT)

    def loss(inputs: Inputs) -> Tensor:
        logits, codes = network(inputs.images.contiguous(memory_format=LAYOUT))
        classes, true_codes = inputs.arrays["classes"].long(), inputs.arrays["codes"]
        with torch.autocast("cpu", enabled=False):
            return multibox_loss(logits, codes, classes, true_codes)

    return network, loss


def ssd300_vgg16(_: Inputs) -> tuple[nn.Module, Loss]:
    """Returns torchvision's network with its 91 slots and its own loss."""
    return own_loss(torchvision_detection().ssd300_vgg16(weights=None, weights_backbone=None))


if __name__ == "__main__":
    networks = {"PyTorch ssd_resnet34": ssd_resnet34, "torchvision ssd300_vgg16": ssd300_vgg16}
    run_peers(networks, weight_decay=5e-4)
