"""Inception v2 (arXiv:1502.03167) and v3 (arXiv:1512.00567).

The originals are `slim/nets/inception_v2.py` and `slim/nets/inception_v3.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d, SeparableConv2d
from stillbox.models.layers.lowering.windows import Padding
from stillbox.models.layers.resampling import average_pool, max_pool
from stillbox.models.parts import BuildOptions, FeatureMap, Part, layers_in_use, widened
from stillbox.models.paths import Named
from stillbox.models.rematerialization import rematerialized

Config = (
    schema.InceptionV2
    | schema.InceptionV2BlockHead
    | schema.InceptionV3
    | schema.InceptionResNetV2
    | schema.InceptionResNetV2BlockHead
)
"""What configures blocks: depth multiplier, least depth and hyperparameters."""

# slim draws these kernels with deviations of its own, whatever the hyperparameters say.
_FIRST, _IN_FRONT, _BEHIND_POOLING = 1.0, 0.09, 0.1


class Step(NamedTuple):
    """A convolution of a branch."""

    place: str
    """In slim's names; `1a` strides."""
    rows: int
    columns: int
    depth: int
    """Before the multiplier."""
    stddev: float | None = None
    """Of its fresh kernel; None: as configured."""
    beside: bool = False
    """Read the map of the convolution in front too, and join the results of the two."""

    @property
    def name(self) -> str:
        """Name of the layer, such as `conv_0a_1x1`."""
        return "_".join(filter(None, ("conv", self.place, f"{self.rows}x{self.columns}")))


def width_of(depth: int, config: Config) -> int:
    """Returns the channels of a layer from those before the multiplier."""
    return widened(depth, config.depth_multiplier, config.min_depth)


class Branch(Part):
    """Convolutions one after the other, such as `conv_0a_1x1`.

    Args:
        steps: the convolutions.
        config: depth multiplier, least depth and hyperparameters.
        inputs: channels of the input.
        options: that all layers share.
        stride: of a `1a`.
        padding: of a `1a`.
        dilation: of all kernels.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        config: Config,
        inputs: int,
        options: BuildOptions,
        *,
        stride: int = 2,
        padding: Padding = "same",
        dilation: int = 1,
    ) -> None:
        plain, layers = options.layer_arguments(), {}
        self.beside, self.channels, before = steps[-1].beside, inputs, inputs
        for step in steps:
            conv, strided = config.conv, step.place == "1a"
            if step.stddev is not None:
                conv = _drawn(conv, step.stddev)
            before = before if step.beside else self.channels
            layers[step.name] = Conv2d(
                before,
                width_of(step.depth, config),
                (step.rows, step.columns),
                stride if strided else 1,
                conv,
                dilation=dilation,
                **(plain | {"padding": padding} if strided else plain),
            )
            self.channels = layers[step.name].channels
        if self.beside:
            self.channels *= 2
        self.layers = Named("{}", layers)

    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps `[B, H, W, C]` to the size of the block's output."""
        layers = [*self.layers.values()]
        count = len(layers) - 2 if self.beside else len(layers)
        for layer in layers[:count]:
            x = layer(x, train=train)
        if not self.beside:
            return x
        return jnp.concatenate([layer(x, train=train) for layer in layers[count:]], axis=-1)


class BlockSpec(NamedTuple):
    """Branches side by side, and a pooling beside them."""

    branches: tuple[tuple[Step, ...], ...]
    behind: tuple[Step, ...] = ()
    """The branch that reads the pooling; empty: the pooling is strided like the branches."""
    average: bool = False
    """The pooling is a mean instead of a maximum."""

    @property
    def steps(self) -> tuple[tuple[Step, ...], ...]:
        """The convolutions of each branch."""
        return (*self.branches, self.behind) if self.behind else self.branches


class InceptionBlock(Part):
    """Branches `branch_0`, `branch_1`, ... side by side; the last one may read a pooling.

    Args:
        spec: the branches.
        config: depth multiplier, least depth and hyperparameters.
        inputs: channels of the input.
        options: that all layers share.
        stride: of the last convolution of each branch, and of the pooling, in strided blocks.
        padding: likewise.
    """

    def __init__(
        self,
        spec: BlockSpec,
        config: Config,
        inputs: int,
        options: BuildOptions,
        *,
        stride: int = 2,
        padding: Padding = "same",
    ) -> None:
        self.average, self.padding = spec.average, padding
        self.stride = 1 if spec.behind else stride
        self.pools_first = bool(spec.behind)
        branches = {
            index: Branch(steps, config, inputs, options, stride=stride, padding=padding)
            for index, steps in enumerate(spec.steps)
        }
        self.branches = Named("branch_{}", branches)
        channels = sum(branch.channels for branch in branches.values())
        self.channels = channels if spec.behind else channels + inputs

    @rematerialized
    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps `[B, H, W, C]` to the size of a 3x3 pooling of the stride, `channels` deep."""
        if self.average:
            pooled = average_pool(x, 3)
        else:
            pooled = max_pool(x, 3, self.stride, padding=self.padding)
        sources = [x] * len(self.branches)
        if self.pools_first:
            sources[-1] = pooled
        pairs = zip(self.branches.values(), sources, strict=True)
        outputs = [branch(source, train=train) for branch, source in pairs]
        return jnp.concatenate(outputs if self.pools_first else [*outputs, pooled], axis=-1)


class Layer(Protocol):
    """A convolution or a block."""

    channels: int
    """Of the output."""

    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Returns the map of the layer."""


class LayeredBackbone(Part):
    """Layers one after the other, some of which are poolings.

    Args:
        config: names the layers.
        taps: names of the layers with the outputs to return.
        build: returns a layer from its name and its input channels; None: a pooling.
        image_channels: of the input.
        padding: of the poolings.
    """

    def __init__(
        self,
        config: schema.Backbone,
        taps: tuple[str, ...],
        build: Callable[[str, int], Layer | None],
        image_channels: int,
        padding: Padding = "same",
    ) -> None:
        built, self.names = layers_in_use(config, taps)
        self.taps, self.padding = taps, padding
        channels, widths = image_channels, {}
        layers: dict[str, Layer | None] = {}
        for name in built:
            layer = layers[name] = build(name, channels)
            channels = widths[name] = channels if layer is None else layer.channels
        self.layers = Named("{}", layers)
        self.channels = tuple(widths[tap] for tap in taps)

    def __call__(
        self, x: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps normalised pixels `[B, H, W, C]` to the taps, in their order."""
        outputs = {}
        for name in self.names:
            x = outputs[name] = self._apply(x, name, train=train)
        return tuple(outputs[tap] for tap in self.taps)

    @rematerialized
    def _apply(self, x: FeatureMap, name: str, *, train: bool) -> FeatureMap:
        layer = self.layers[name]
        return max_pool(x, 3, 2, padding=self.padding) if layer is None else layer(x, train=train)


@implements(schema.InceptionV2)
def inception_v2(
    config: schema.InceptionV2, taps: tuple[str, ...], options: BuildOptions
) -> LayeredBackbone:
    """Returns convolutions `conv_1a`, `conv_2b`, `conv_2c` and blocks `mixed_3b` to `mixed_5c`."""

    def build(name: str, inputs: int) -> Layer | None:
        if name in V2_BLOCKS:
            return InceptionBlock(V2_BLOCKS[name], config, inputs, options)
        return _convolution(name, config, inputs, options) if name in _DEPTHS else None

    return LayeredBackbone(config, taps, build, options.image_channels)


def _drawn(conv: schema.ConvHyperparams, stddev: float) -> schema.ConvHyperparams:
    return replace(conv, initializer=schema.TruncatedNormal(stddev=stddev))


def _convolution(
    name: str, config: schema.InceptionV2, inputs: int, options: BuildOptions
) -> SeparableConv2d | Conv2d:
    """Returns a convolution in front of the blocks."""
    width, layers = width_of(_DEPTHS[name], config), options.layer_arguments()
    if name == "conv_1a":
        filters = min(width // inputs, _MOST_FILTERS)
        conv = _drawn(config.conv, _FIRST)
        return SeparableConv2d(inputs, width, 7, 2, conv, multiplier=filters, **layers)
    if name == "conv_2b":
        return Conv2d(inputs, width, 1, 1, _drawn(config.conv, _BEHIND_POOLING), **layers)
    return Conv2d(inputs, width, 3, 1, config.conv, **layers)


# Depths before the multiplier, and the filters of each colour in the first convolution at most.
_DEPTHS = {"conv_1a": 64, "conv_2b": 64, "conv_2c": 192}
_MOST_FILTERS = 8


def _v2(
    branches: tuple[tuple[int, ...], ...], pooled: int = 0, *, average: bool = True
) -> BlockSpec:
    """Returns a block from depths: a 1x1 and then 3x3 in a branch, and a 1x1 behind the pooling."""
    steps = tuple(_v2_branch(depths, strided=not pooled) for depths in branches)
    behind = (Step("0b", 1, 1, pooled, _BEHIND_POOLING),) if pooled else ()
    return BlockSpec(steps, behind, average=average and bool(pooled))


def _v2_branch(depths: tuple[int, ...], *, strided: bool) -> tuple[Step, ...]:
    if len(depths) == 1:
        return (Step("0a", 1, 1, depths[0]),)
    first, *inner, last = depths
    middle = (Step("0b", 3, 3, depth) for depth in inner)
    place = "1a" if strided else "0c" if inner else "0b"
    return (Step("0a", 1, 1, first, _IN_FRONT), *middle, Step(place, 3, 3, last))


V2_BLOCKS = {
    "mixed_3b": _v2(((64,), (64, 64), (64, 96, 96)), 32),
    "mixed_3c": _v2(((64,), (64, 96), (64, 96, 96)), 64),
    "mixed_4a": _v2(((128, 160), (64, 96, 96))),
    "mixed_4b": _v2(((224,), (64, 96), (96, 128, 128)), 128),
    "mixed_4c": _v2(((192,), (96, 128), (96, 128, 128)), 128),
    "mixed_4d": _v2(((160,), (128, 160), (128, 160, 160)), 96),
    "mixed_4e": _v2(((96,), (128, 192), (160, 192, 192)), 96),
    "mixed_5a": _v2(((128, 192), (192, 256, 256))),
    "mixed_5b": _v2(((352,), (192, 320), (160, 224, 224)), 128),
    "mixed_5c": _v2(((352,), (192, 320), (192, 224, 224)), 128, average=False),
}


# Size, stride, depth and padding of the convolutions in front of the blocks.
_FRONT = {
    "conv_1a": (3, 2, 32, "valid"),
    "conv_2a": (3, 1, 32, "valid"),
    "conv_2b": (3, 1, 64, "same"),
    "conv_3b": (1, 1, 80, "valid"),
    "conv_4a": (3, 1, 192, "valid"),
}


def _five(pooled: int) -> BlockSpec:
    """A block with branches that see 1, 5 and 5 pixels."""
    return BlockSpec(
        (
            (Step("0a", 1, 1, 64),),
            (Step("0a", 1, 1, 48), Step("0b", 5, 5, 64)),
            (Step("0a", 1, 1, 64), Step("0b", 3, 3, 96), Step("0c", 3, 3, 96)),
        ),
        (Step("0b", 1, 1, pooled),),
        average=True,
    )


def _six(inner: int) -> BlockSpec:
    """A block with branches that see 1, 7 and 13 pixels by rows and columns of kernels."""
    long = (
        Step("0b", 7, 1, inner),
        Step("0c", 1, 7, inner),
        Step("0d", 7, 1, inner),
        Step("0e", 1, 7, 192),
    )
    return BlockSpec(
        (
            (Step("0a", 1, 1, 192),),
            (Step("0a", 1, 1, inner), Step("0b", 1, 7, inner), Step("0c", 7, 1, 192)),
            (Step("0a", 1, 1, inner), *long),
        ),
        (Step("0b", 1, 1, 192),),
        average=True,
    )


_SEVEN = BlockSpec(
    (
        (Step("0a", 1, 1, 320),),
        (Step("0a", 1, 1, 384), Step("0b", 1, 3, 384), Step("0c", 3, 1, 384, beside=True)),
        (
            Step("0a", 1, 1, 448),
            Step("0b", 3, 3, 384),
            Step("0c", 1, 3, 384),
            Step("0d", 3, 1, 384, beside=True),
        ),
    ),
    (Step("0b", 1, 1, 192),),
    average=True,
)
_V3_BLOCKS = {
    "mixed_5b": _five(32),
    "mixed_5c": _five(64),
    "mixed_5d": _five(64),
    "mixed_6a": BlockSpec(
        (
            (Step("1a", 3, 3, 384),),
            (Step("0a", 1, 1, 64), Step("0b", 3, 3, 96), Step("1a", 3, 3, 96)),
        ),
    ),
    "mixed_6b": _six(128),
    "mixed_6c": _six(160),
    "mixed_6d": _six(160),
    "mixed_6e": _six(192),
    "mixed_7a": BlockSpec(
        (
            (Step("0a", 1, 1, 192), Step("1a", 3, 3, 320)),
            (
                Step("0a", 1, 1, 192),
                Step("0b", 1, 7, 192),
                Step("0c", 7, 1, 192),
                Step("1a", 3, 3, 192),
            ),
        ),
    ),
    "mixed_7b": _SEVEN,
    "mixed_7c": _SEVEN,
}


@implements(schema.InceptionV3)
def inception_v3(
    config: schema.InceptionV3, taps: tuple[str, ...], options: BuildOptions
) -> LayeredBackbone:
    """Returns convolutions `conv_1a` to `conv_4a` and blocks `mixed_5b` to `mixed_7c`."""

    def build(name: str, inputs: int) -> Layer | None:
        if name in _V3_BLOCKS:
            return InceptionBlock(_V3_BLOCKS[name], config, inputs, options, padding="valid")
        if name not in _FRONT:
            return None
        size, stride, depth, padding = _FRONT[name]
        layers, width = options.layer_arguments() | {"padding": padding}, width_of(depth, config)
        return Conv2d(inputs, width, size, stride, config.conv, **layers)

    return LayeredBackbone(config, taps, build, options.image_channels, "valid")
