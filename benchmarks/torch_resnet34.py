"""SSD ResNet-34 in plain PyTorch: the peer of our recipe, and its loss.

The same layers with PyTorch's padding, which is alike on both sides where TensorFlow's is not: the
same shapes, parameters and FLOPs.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

SLOTS = 81
# Class and box channels are `anchors` times as many.
ANCHORS = (4, 6, 6, 6, 4, 4)
# Channels of the 1x1 and the 3x3 convolution, stride of the latter; without one it is not padded.
EXTRAS = ((256, 512, 2), (256, 512, 2), (128, 256, 2), (128, 256, 1), (128, 256, 1))
# Blocks, channels, stride.
GROUPS = ((3, 64, 1), (4, 128, 2), (6, 256, 1))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, each normalised, and a shortcut."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.norm_1 = nn.BatchNorm2d(channels)
        self.conv_2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm_2 = nn.BatchNorm2d(channels)
        nn.init.zeros_(self.norm_2.weight)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != channels:
            projection = nn.Conv2d(inputs, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[B, C, H, W]` to the block's channels."""
        y = functional.relu(self.norm_1(self.conv_1(x)))
        return functional.relu(self.norm_2(self.conv_2(y)) + self.shortcut(x))


class SsdResnet34(nn.Module):
    """SSD with ResNet-34 up to its third group, which has stride 1."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([123.675, 116.28, 103.53]).view(3, 1, 1))
        self.register_buffer("std", torch.tensor([58.395, 57.12, 57.375]).view(3, 1, 1))
        self.stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.stem_norm = nn.BatchNorm2d(64)
        blocks, width = [], 64
        for count, channels, stride in GROUPS:
            for number in range(count):
                blocks.append(BasicBlock(width, channels, 1 if number else stride))
                width = channels
        self.blocks = nn.Sequential(*blocks)
        widths, extras = [width], []
        for squeezed, channels, stride in EXTRAS:
            squeeze = nn.Conv2d(widths[-1], squeezed, 1)
            shrink = nn.Conv2d(squeezed, channels, 3, stride, padding=1 if stride > 1 else 0)
            extras.append(nn.Sequential(squeeze, nn.ReLU(), shrink, nn.ReLU()))
            widths.append(channels)
        self.extras = nn.ModuleList(extras)
        pairs = list(zip(widths, ANCHORS, strict=True))
        self.class_heads = nn.ModuleList(nn.Conv2d(c, a * SLOTS, 3, 1, 1) for c, a in pairs)
        self.box_heads = nn.ModuleList(nn.Conv2d(c, a * 4, 3, 1, 1) for c, a in pairs)
        # As the recipe: the stem and the first convolution of group 1, with their norms.
        first = self.blocks[0]
        for frozen in (self.stem, self.stem_norm, first.conv_1, first.norm_1):
            frozen.requires_grad_(False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Maps pixels `[B, 3, 300, 300]` in 0..255 to logits `[B, A, 81]` and codes `[B, A, 4]`."""
        x = functional.relu(self.stem_norm(self.stem((images - self.mean) / self.std)))
        maps = [self.blocks(functional.max_pool2d(x, 3, 2, 1))]
        for extra in self.extras:
            maps.append(extra(maps[-1]))
        logits = [head(x) for head, x in zip(self.class_heads, maps, strict=True)]
        codes = [head(x) for head, x in zip(self.box_heads, maps, strict=True)]
        return by_anchor(logits, SLOTS), by_anchor(codes, 4)


def by_anchor(maps: list[Tensor], values: int) -> Tensor:
    """Joins maps `[B, a * V, H, W]` into `[B, A, V]` in float32."""
    flat = [x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, values) for x in maps]
    return torch.cat(flat, dim=1).float()


def multibox_loss(logits: Tensor, codes: Tensor, classes: Tensor, true_codes: Tensor) -> Tensor:
    """Softmax cross entropy with three negatives for a positive, and smooth L1, per image.

    Args:
        logits: `[B, A, 81]`.
        codes: `[B, A, 4]`.
        classes: `[B, A]` int64, 0 for the background.
        true_codes: `[B, A, 4]`.
    """
    positive = classes > 0
    matches = positive.sum(1, keepdim=True)
    losses = functional.cross_entropy(logits.flatten(0, 1), classes.flatten(), reduction="none")
    losses = losses.view_as(classes)
    rank = losses.detach().masked_fill(positive, -torch.inf).argsort(1, descending=True).argsort(1)
    counted = positive | (rank < 3 * matches)
    offsets = functional.smooth_l1_loss(codes, true_codes, reduction="none").sum(2)
    return ((losses * counted + offsets * positive) / matches.clamp(min=1)).sum(1).mean()
