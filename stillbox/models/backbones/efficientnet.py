"""EfficientNet (arXiv:1905.11946; `official/vision/image_classification/efficientnet`), and Lite.

Its blocks are inverted residuals with squeezed gates (arXiv:1801.04381, arXiv:1709.01507).
EfficientNet-Lite has no gates (`tpu/models/official/efficientnet/lite`).
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.backbones.mobilenet_v3 import Gate, SqueezeAndExcite, hard_sigmoid
from stillbox.models.layers import Conv2d, DepthwiseConv2d
from stillbox.models.layers.quantization import FakeQuant
from stillbox.models.layers.stochastic import drop_connect, fold_key
from stillbox.models.parts import (
    BuildOptions,
    FeatureMap,
    Part,
    layers_in_use,
    make_divisible,
    rounded,
)
from stillbox.models.paths import Named
from stillbox.models.rematerialization import rematerialized


@dataclass(frozen=True)
class MbConvSpec:
    """Sizes of one block."""

    inputs: int
    """Channels of the input."""
    channels: int
    """Channels of the output."""
    stride: int = 1
    size: int = 3
    """Side of the depthwise kernel."""
    expansion: int = 6
    """Channels of the depthwise convolution per channel of the input."""
    se_ratio: float = 0.0
    """Share of the input's channels to which the gate squeezes; 0: there is no gate."""
    drop_connect_rate: float = 0.0
    """Probability of dropping all but the shortcut in training."""
    gate: Literal["sigmoid", "hard_sigmoid"] = "sigmoid"
    gate_activation: schema.Activation = "swish"
    """Between the two convolutions of the gate."""


class MbConv(Part):
    """`expand`, `depthwise`, a gate of `squeeze` and `excite`, `project`, beside a shortcut.

    An expansion of 1 has no `expand`. The gate is computed from the mean over the map; its
    convolutions have biases. The shortcut exists if shapes agree.

    Args:
        spec: sizes.
        conv: hyperparameters; the last convolution is not activated.
        layers: keyword arguments of all layers.
        depthwise: hyperparameters of the depthwise convolution, if others.
    """

    def __init__(
        self,
        spec: MbConvSpec,
        conv: schema.ConvHyperparams,
        layers: dict[str, Any],
        *,
        depthwise: schema.ConvHyperparams | None = None,
    ) -> None:
        wide = spec.inputs * spec.expansion
        widens = spec.expansion > 1
        self.expand = Conv2d(spec.inputs, wide, 1, 1, conv, **layers) if widens else None
        self.depthwise = DepthwiseConv2d(wide, spec.size, spec.stride, depthwise or conv, **layers)
        gate = None
        if spec.se_ratio > 0:
            function = jax.nn.sigmoid if spec.gate == "sigmoid" else hard_sigmoid
            narrow = max(int(spec.inputs * spec.se_ratio), 1)
            sizes = Gate(narrow, spec.gate_activation, function)
            gate = SqueezeAndExcite(wide, sizes, conv, layers)
        self.gate = gate
        linear = replace(conv, activation="none")
        self.project = Conv2d(wide, spec.channels, 1, 1, linear, **layers)
        self.residual = spec.inputs == spec.channels and spec.stride == 1
        quantization = layers.get("quantization") if self.residual else None
        self.shortcut_sum = None if quantization is None else FakeQuant(quantization)
        self.channels, self.rate = spec.channels, spec.drop_connect_rate

    @rematerialized
    def __call__(
        self, x: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> FeatureMap:
        """Maps `[B, H, W, C]` to `[B, ceil(H / stride), ceil(W / stride), channels]`."""
        y = x if self.expand is None else self.expand(x, train=train)
        y = self.depthwise(y, train=train)
        if self.gate is not None:
            y = self.gate(y, train=train)
        y = self.project(y, train=train)
        if not self.residual:
            return y
        if train and self.rate:
            y = drop_connect(y, self.rate, dropout_key)
        with jax.named_scope(self.project.scope_beside("shortcut_sum")):
            return rounded(self.shortcut_sum, x + y, train=train)


_STEM_CHANNELS = 32


class _Stack(NamedTuple):
    expansion: int
    size: int
    stride: int
    channels: int


# Table 1 of the paper.
_STACKS = (
    _Stack(1, 3, 1, 16),
    _Stack(6, 3, 2, 24),
    _Stack(6, 5, 2, 40),
    _Stack(6, 3, 2, 80),
    _Stack(6, 5, 1, 112),
    _Stack(6, 5, 2, 192),
    _Stack(6, 3, 1, 320),
)


@implements(schema.EfficientNetLite)
@implements(schema.EfficientNet)
class EfficientNetBackbone(Part):
    """The 3x3 convolution `stem`, then blocks `stack_{s}_block_{b}`."""

    def __init__(
        self, config: schema.EfficientNet, taps: tuple[str, ...], options: BuildOptions
    ) -> None:
        def width(channels: int) -> int:
            return make_divisible(channels * config.width_coefficient)

        built, self.names = layers_in_use(config, taps)
        layers, counts, blocks = options.layer_arguments(), config.count_blocks(), {}
        channels = width(_STEM_CHANNELS) if config.scales_stem else _STEM_CHANNELS
        self.stem = Conv2d(options.image_channels, channels, 3, 2, config.conv, **layers)
        widths = {"stem": channels}
        places = [(stack, block) for stack, count in enumerate(counts) for block in range(count)]
        for number, (name, (stack, block)) in enumerate(zip(built[1:], places, strict=False)):
            expansion, size, stride, depth = _STACKS[stack]
            spec = MbConvSpec(
                inputs=channels,
                channels=(channels := width(depth)),
                stride=1 if block else stride,
                size=size,
                expansion=expansion,
                se_ratio=config.se_ratio,
                drop_connect_rate=config.drop_connect_rate * number / len(places),
            )
            blocks[name] = MbConv(spec, config.conv, layers)
            widths[name] = channels
        self.blocks = Named("{}", blocks)
        self.taps = taps
        self.channels = tuple(widths[tap] for tap in taps)

    def __call__(
        self, x: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps normalised pixels `[B, H, W, C]` to the taps, in their order."""
        outputs = {"stem": (x := self.stem(x, train=train))}
        for number, name in enumerate(self.names[1:]):
            key = fold_key(dropout_key, number)
            x = outputs[name] = self.blocks[name](x, train=train, dropout_key=key)
        return tuple(outputs[tap] for tap in self.taps)
