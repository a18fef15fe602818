"""ResNet with the stride inside its first blocks (arXiv:1512.03385)."""

import jax

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.backbones.residual import BlockGroup, BlockOptions, residual_group
from stillbox.models.layers import Conv2d
from stillbox.models.layers.pooling import max_pool
from stillbox.models.layers.space_to_depth import SpaceToDepthConv2d
from stillbox.models.layers.stochastic import fold_key
from stillbox.models.parts import BuildOptions, Part, layers_in_use
from stillbox.models.rematerialization import rematerialized

_STEM_CHANNELS = 64
# Blocks of the four groups: basic ones for the depths in `_BASIC`, otherwise bottlenecks.
_BLOCKS = {
    10: (1, 1, 1, 1),
    14: (1, 1, 1, 1),
    18: (2, 2, 2, 2),
    26: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
_BASIC = (10, 18, 34)
# Levels of the groups; the drop connect rate grows in proportion.
_FIRST_LEVEL, _LAST_LEVEL = 2, 5


@implements(schema.ResNet)
class ResNetBackbone(Part):
    """The 7x7 convolution `stem` and the groups `group_1` to `group_4` of blocks `block_{b}`."""

    def __init__(self, config: schema.ResNet, taps: tuple[str, ...], options: BuildOptions) -> None:
        built, self.names = layers_in_use(config, taps)
        self.taps, self.pool_padding = taps, config.pool_padding
        stem = SpaceToDepthConv2d if config.space_to_depth_stem else Conv2d
        layers = options.layer_arguments() | {"padding": "symmetric"}
        self.stem = stem(3, _STEM_CHANNELS, 7, 2, config.conv, **layers)
        channels = _STEM_CHANNELS
        widths = {"stem": channels}
        for index, name in enumerate(built[1:]):
            group = _group(config, channels, index, options)
            setattr(self, name, group)
            channels = widths[name] = group.channels
        self.channels = tuple(widths[tap] for tap in taps)

    def __call__(
        self, x: jax.Array, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[jax.Array, ...]:
        """Maps normalised pixels `[B, H, W, 3]` to the taps, in their order."""
        stem, x = self._halve_twice(x, train=train)
        outputs = {"stem": stem}
        for number, name in enumerate(self.names[1:], start=1):
            group = getattr(self, name)
            x = outputs[name] = group(x, train=train, dropout_key=fold_key(dropout_key, number))
        return tuple(outputs[tap] for tap in self.taps)

    @rematerialized
    def _halve_twice(self, x: jax.Array, *, train: bool) -> tuple[jax.Array, jax.Array]:
        stem = self.stem(x, train=train)
        return stem, max_pool(stem, 3, 2, padding=self.pool_padding)


def _group(config: schema.ResNet, inputs: int, index: int, options: BuildOptions) -> BlockGroup:
    """Returns group `index`, counted from 0."""
    shared = BlockOptions(
        conv=config.conv,
        build=options,
        zero_last_scale=config.zero_last_scale,
        drop_connect_rate=config.drop_connect_rate * (index + _FIRST_LEVEL) / _LAST_LEVEL,
        drop_block=config.drop_block,
    )
    return residual_group(
        "residual" if config.depth in _BASIC else "bottleneck",
        inputs,
        _STEM_CHANNELS * 2**index,
        _BLOCKS[config.depth][index],
        shared,
        stride=config.group_strides[index],
        project=config.project_first_block,
    )
