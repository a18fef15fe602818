"""The peer of `ssd_resnet34.py --recipe ssd_mobilenet_v1_300x300`: the same network in PyTorch.

    TORCH_PYTHON benchmarks/torch_ssd_mobilenet.py INPUTS.npz --threads 2

`ssd_resnet34.py` starts it and writes the inputs. The recipe has the same layers, shapes,
parameters and FLOPs; PyTorch pads alike on both sides, where TensorFlow does not.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_peer import Inputs, Loss, loss_on_targets, run_peers
from torch_resnet34 import by_anchor

SLOTS = 91
# Class and box channels are `anchors` times as many.
ANCHORS = (3, 6, 6, 6, 6, 6)
# Stride and channels of each depthwise and pointwise pair; the eleventh gives the first map.
PAIRS = (
    (1, 64), (2, 128), (1, 128), (2, 256), (1, 256), (2, 512), (1, 512),
    (1, 512), (1, 512), (1, 512), (1, 512), (2, 1024), (1, 1024),
)  # fmt: skip
FIRST_MAP = 11
EXTRAS = (512, 256, 256, 128)
ALPHA, GAMMA = 0.75, 2.0


def convolution(
    inputs: int, channels: int, size: int, stride: int = 1, groups: int = 1
) -> nn.Module:
    """Returns a convolution with its norm and ReLU6."""
    return nn.Sequential(
        nn.Conv2d(inputs, channels, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels, eps=0.001, momentum=0.03),
        nn.ReLU6(inplace=True),
    )


class SsdMobileNet(nn.Module):
    """SSD with MobileNet v1, four extra maps of half the side each, and 1x1 predictors."""

    def __init__(self) -> None:
        super().__init__()
        blocks, width = [convolution(3, 32, 3, 2)], 32
        for stride, channels in PAIRS:
            depthwise = convolution(width, width, 3, stride, groups=width)
            blocks.append(nn.Sequential(depthwise, convolution(width, channels, 1)))
            width = channels
        first, second = blocks[: FIRST_MAP + 1], blocks[FIRST_MAP + 1 :]
        stages = [nn.Sequential(*first), nn.Sequential(*second)]
        widths = [PAIRS[FIRST_MAP - 1][1], width]
        for channels in EXTRAS:
            squeeze = convolution(widths[-1], channels // 2, 1)
            stages.append(nn.Sequential(squeeze, convolution(channels // 2, channels, 3, 2)))
            widths.append(channels)
        self.stages = nn.ModuleList(stages)
        pairs = list(zip(widths, ANCHORS, strict=True))
        self.class_heads = nn.ModuleList(nn.Conv2d(c, a * SLOTS, 1) for c, a in pairs)
        self.box_heads = nn.ModuleList(nn.Conv2d(c, a * 4, 1) for c, a in pairs)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Maps pixels `[B, 3, 300, 300]` in 0..255 to logits `[B, A, 91]` and codes `[B, A, 4]`."""
        x, maps = images * (2 / 255) - 1, []
        for stage in self.stages:
            maps.append(x := stage(x))
        logits = [head(x) for head, x in zip(self.class_heads, maps, strict=True)]
        codes = [head(x) for head, x in zip(self.box_heads, maps, strict=True)]
        return by_anchor(logits, SLOTS), by_anchor(codes, 4)


def focal_loss(logits: Tensor, codes: Tensor, classes: Tensor, true_codes: Tensor) -> Tensor:
    """Sigmoid focal loss and smooth L1, by the matches of each image.

    Args:
        logits: `[B, A, 91]`.
        codes: `[B, A, 4]`.
        classes: `[B, A]` int64, 0 for the background; its targets are all 0.
        true_codes: `[B, A, 4]`.
    """
    positive = classes > 0
    matches = positive.sum(1).clamp(min=1)
    targets = functional.one_hot(classes, SLOTS).to(logits.dtype)
    targets[..., 0] = 0
    entropy = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    chances = torch.sigmoid(logits)
    missed = chances + targets - 2 * chances * targets
    weights = (1 - ALPHA) + (2 * ALPHA - 1) * targets
    focal = (weights * missed**GAMMA * entropy).sum((1, 2))
    offsets = functional.smooth_l1_loss(codes, true_codes, reduction="none").mean(2)
    return ((focal + (offsets * positive).sum(1)) / matches).mean()


def ssd_mobilenet(_: Inputs) -> tuple[nn.Module, Loss]:
    """Returns the network and its loss, on given targets."""
    return loss_on_targets(SsdMobileNet(), focal_loss)


if __name__ == "__main__":
    run_peers({"PyTorch ssd_mobilenet_v1_300x300": ssd_mobilenet}, weight_decay=4e-5)
