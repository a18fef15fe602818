"""Inception ResNet v2 (arXiv:1602.07261) with the maps of all layers aligned.

The original is `slim/nets/inception_resnet_v2.py` with `align_feature_maps`, and Keras's network
behind `object_detection/models/keras_models/inception_resnet_v2.py`: convolutions and poolings have
SAME padding, also those that the paper leaves without padding.
"""

from typing import NamedTuple

import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.backbones.inception import (
    BlockSpec,
    Branch,
    Config,
    InceptionBlock,
    Layer,
    LayeredBackbone,
    Step,
    width_of,
)
from stillbox.models.layers import Conv2d
from stillbox.models.layers.hyperparams import ACTIVATIONS
from stillbox.models.parts import BuildOptions, FeatureMap, Part
from stillbox.models.paths import Named
from stillbox.models.rematerialization import rematerialized

# Size, stride and depth of the convolutions in front of the blocks.
_FRONT = {
    "conv_1a": (3, 2, 32),
    "conv_2a": (3, 1, 32),
    "conv_2b": (3, 1, 64),
    "conv_3b": (1, 1, 80),
    "conv_4a": (3, 1, 192),
}


class ResidualSpec(NamedTuple):
    """Branches: their joined outputs are projected, scaled, and added to the input."""

    steps: tuple[tuple[Step, ...], ...]
    """The convolutions of each branch."""
    scale: float


_MIXED_5B = BlockSpec(
    (
        (Step("", 1, 1, 96),),
        (Step("0a", 1, 1, 48), Step("0b", 5, 5, 64)),
        (Step("0a", 1, 1, 64), Step("0b", 3, 3, 96), Step("0c", 3, 3, 96)),
    ),
    (Step("0b", 1, 1, 64),),
    average=True,
)
_MIXED_6A = BlockSpec(
    (
        (Step("1a", 3, 3, 384),),
        (Step("0a", 1, 1, 256), Step("0b", 3, 3, 256), Step("1a", 3, 3, 384)),
    ),
)
MIXED_7A = BlockSpec(
    (
        (Step("0a", 1, 1, 256), Step("1a", 3, 3, 384)),
        (Step("0a", 1, 1, 256), Step("1a", 3, 3, 288)),
        (Step("0a", 1, 1, 256), Step("0b", 3, 3, 288), Step("1a", 3, 3, 320)),
    ),
)
BLOCK_35 = ResidualSpec(
    (
        (Step("", 1, 1, 32),),
        (Step("0a", 1, 1, 32), Step("0b", 3, 3, 32)),
        (Step("0a", 1, 1, 32), Step("0b", 3, 3, 48), Step("0c", 3, 3, 64)),
    ),
    0.17,
)
BLOCK_17 = ResidualSpec(
    ((Step("", 1, 1, 192),), (Step("0a", 1, 1, 128), Step("0b", 1, 7, 160), Step("0c", 7, 1, 192))),
    0.10,
)
BLOCK_8 = ResidualSpec(
    ((Step("", 1, 1, 192),), (Step("0a", 1, 1, 192), Step("0b", 1, 3, 224), Step("0c", 3, 1, 256))),
    0.20,
)


_BLOCKS: dict[str, BlockSpec | ResidualSpec] = {
    "mixed_5b": _MIXED_5B,
    **{f"block35_{number}": BLOCK_35 for number in range(1, 11)},
    "mixed_6a": _MIXED_6A,
    **{f"block17_{number}": BLOCK_17 for number in range(1, 21)},
    "mixed_7a": MIXED_7A,
    **{f"block8_{number}": BLOCK_8 for number in range(1, 11)},
}


def branches_of(name: str) -> tuple[tuple[Step, ...], ...]:
    """Returns the convolutions of each branch of a layer such as `mixed_5b` or `block35_1`."""
    return _BLOCKS[name].steps


@implements(schema.InceptionResNetV2)
def inception_resnet_v2(
    config: schema.InceptionResNetV2, taps: tuple[str, ...], options: BuildOptions
) -> LayeredBackbone:
    """Returns `conv_1a` to `conv_4a`, `mixed_5b` and ten blocks, `mixed_6a` and twenty.

    With an output stride of 8, `mixed_6a` has no stride, and the blocks behind it are dilated.
    """
    atrous = config.output_stride == 8

    def build(name: str, inputs: int) -> Layer | None:
        if name in _FRONT:
            size, stride, depth = _FRONT[name]
            width = width_of(depth, config)
            return Conv2d(inputs, width, size, stride, config.conv, **options.layer_arguments())
        spec = _BLOCKS.get(name)
        if isinstance(spec, BlockSpec):
            return InceptionBlock(spec, config, inputs, options, stride=1 if atrous else 2)
        if spec is None:
            return None
        dilation = 2 if atrous and spec is BLOCK_17 else 1
        return ResidualBlock(spec, config, inputs, options, dilation=dilation)

    return LayeredBackbone(config, taps, build, options.image_channels)


class ResidualBlock(Part):
    """Branches `branch_0`, ... side by side, `up` to the input's channels, scaled and added.

    Args:
        spec: widths and scale.
        config: depth multiplier, least depth and hyperparameters.
        inputs: channels of input and output.
        options: that all layers share.
        dilation: of the branches' kernels.
        last: the sum is neither scaled nor activated.
    """

    def __init__(
        self,
        spec: ResidualSpec,
        config: Config,
        inputs: int,
        options: BuildOptions,
        *,
        dilation: int = 1,
        last: bool = False,
    ) -> None:
        branches = {
            index: Branch(steps, config, inputs, options, dilation=dilation)
            for index, steps in enumerate(spec.steps)
        }
        self.branches, self.channels = Named("branch_{}", branches), inputs
        channels = sum(branch.channels for branch in branches.values())
        arguments = options.layer_arguments()
        self.up = Conv2d(channels, inputs, 1, 1, config.conv.without_norm(), **arguments)
        self.scale = 1.0 if last else spec.scale
        self.activation = "none" if last else config.conv.activation

    @rematerialized
    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps `[B, H, W, C]` to the same shape."""
        outputs = [branch(x, train=train) for branch in self.branches.values()]
        joined = jnp.concatenate(outputs, axis=-1)
        added = (self.up(joined, train=train) * self.scale).astype(x.dtype)
        return ACTIVATIONS[self.activation](x + added)
