"""MobileDet (arXiv:2004.14525; `object_detection/models/ssd_mobiledet_feature_extractor.py`)."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

import jax
import numpy as np

from stillbox.experiment import schema
from stillbox.experiment.schema.layers import Activation
from stillbox.experiment.variants import implements
from stillbox.models.backbones.mobilenet_v3 import Block, Gate, MobileNetwork
from stillbox.models.parts import BuildOptions

_SQUEEZE = 0.25
# The deviation of a normal distribution that is cut at two deviations.
_CUT_DEVIATION = 0.87962566103423978


class _Layer(NamedTuple):
    """A block before its channels are known."""

    form: Literal["inverted", "fused", "tucker"]
    expansion: float
    """Channels of the widest layer per channel of the input; in a Tucker block of the output."""
    size: int = 3
    reduction: float = 0.0
    """Channels of the first layer of a Tucker block per channel of its input."""


class _Stage(NamedTuple):
    """Blocks of one width; the first has no shortcut."""

    channels: int
    """Before the multiplier."""
    blocks: tuple[_Layer, ...]


def _ibn(expansion: int, size: int = 3) -> _Layer:
    return _Layer("inverted", expansion, size)


def _fused(expansion: int, size: int = 3) -> _Layer:
    return _Layer("fused", expansion, size)


def _tucker(reduction: float, expansion: float) -> _Layer:
    return _Layer("tucker", expansion, 3, reduction)


# Strides of the seven stages of every network.
_STRIDES = (1, 2, 2, 2, 1, 2, 1)
_CPU = (
    _Stage(8, (_ibn(1),)),
    _Stage(16, (_ibn(4),)),
    _Stage(32, (_ibn(8), _ibn(4), _ibn(4), _ibn(4))),
    _Stage(72, (_ibn(8, 5), _ibn(8), _ibn(4, 5), _ibn(4))),
    _Stage(72, (_ibn(8), _ibn(8), _ibn(8), _ibn(8))),
    _Stage(104, (_ibn(8, 5), _ibn(4, 5), _ibn(4, 5), _ibn(4))),
    _Stage(144, (_ibn(8),)),
)
_GPU = (
    _Stage(16, (_tucker(0.25, 0.25),)),
    _Stage(32, (_fused(8), *[_tucker(0.25, 0.25)] * 3)),
    _Stage(64, (_fused(8), _fused(8), _fused(8), _fused(4))),
    _Stage(128, (_fused(8), _fused(4), _fused(4), _fused(4))),
    _Stage(128, (_fused(8), _fused(8), _fused(8), _fused(8))),
    _Stage(128, (_fused(4), _fused(4), _fused(4), _fused(4))),
    _Stage(384, (_ibn(8),)),
)
_DSP = (
    _Stage(24, (_ibn(1),)),
    _Stage(32, (_fused(4), _fused(4), _ibn(4), _tucker(0.25, 0.75))),
    _Stage(64, (_fused(8), _ibn(4), _fused(4), _fused(4))),
    _Stage(120, (_fused(8), _ibn(4), _ibn(8), _ibn(8))),
    _Stage(144, (_fused(8), _ibn(8), _ibn(8), _ibn(8))),
    _Stage(160, (_ibn(4), _ibn(4), _fused(4), _tucker(0.75, 0.75))),
    _Stage(240, (_ibn(8),)),
)
_EDGETPU = (
    _Stage(16, (_tucker(0.25, 0.75),)),
    _Stage(16, (_fused(8), _fused(4), _fused(8), _fused(4))),
    _Stage(40, (_fused(8, 5), _fused(4), _fused(4), _fused(4))),
    _Stage(72, (_ibn(8), _ibn(8), _fused(4), _fused(4))),
    _Stage(96, (_ibn(8, 5), _ibn(8, 5), _ibn(8), _ibn(8))),
    _Stage(120, (_ibn(8, 5), _ibn(8), _ibn(4, 5), _ibn(8))),
    _Stage(384, (_ibn(8, 5),)),
)
# The fused block of the stage with 160 channels.
_FUSED = 19
# Channels of the first convolution, the stages, and whether blocks have gates.
_NETWORKS: dict[type, tuple[int, tuple[_Stage, ...], bool]] = {
    schema.MobileDetCpu: (16, _CPU, True),
    schema.MobileDetGpu: (32, _GPU, False),
    schema.MobileDetDsp: (32, _DSP, False),
    schema.MobileDetEdgeTpu: (32, _EDGETPU, False),
}


@implements(schema.MobileDetCpu)
@implements(schema.MobileDetGpu)
@implements(schema.MobileDetDsp)
@implements(schema.MobileDetEdgeTpu)
def mobiledet(
    config: schema.MobileDet, taps: tuple[str, ...], options: BuildOptions
) -> MobileNetwork:
    """Returns layers `conv_0`, `block_0`, `block_1`, ..."""
    depthwise = partial(_depthwise, config)
    return MobileNetwork(config, taps, mobiledet_blocks(config), 0, depthwise, options)


def mobiledet_blocks(config: schema.MobileDet) -> tuple[Block, ...]:
    """Returns all blocks of a network in their order."""
    root, stages, gated = _NETWORKS[type(config)]
    # The original's float32: 240 * 0.35 is less than 84 there, and becomes 80.
    multiplier = float(np.float32(config.depth_multiplier))
    stages = tuple(stage._replace(channels=_scaled(stage.channels, multiplier)) for stage in stages)
    blocks = list(_blocks(_scaled(root, multiplier), stages, config.conv.activation, gated=gated))
    if isinstance(config, schema.MobileDetDsp) and not config.fused_shortcut:
        blocks[_FUSED] = blocks[_FUSED]._replace(shortcut=False)
    return tuple(blocks)


def _blocks(
    inputs: int, stages: tuple[_Stage, ...], activation: Activation, *, gated: bool
) -> Iterator[Block]:
    """Yields the blocks of stages with final channels; `inputs` belongs to the first block."""
    for stage, stride in zip(stages, _STRIDES, strict=True):
        for index, layer in enumerate(stage.blocks):
            tucker = layer.form == "tucker"
            widened = stage.channels if tucker else inputs
            wide = _scaled(widened, layer.expansion)
            yield Block(
                inputs=inputs,
                wide=wide,
                channels=stage.channels,
                activation=activation,
                size=layer.size,
                stride=1 if index else stride,
                form=layer.form,
                reduced=_scaled(inputs, layer.reduction) if tucker else 0,
                gate=Gate(_scaled(wide, _SQUEEZE), activation, jax.nn.sigmoid) if gated else None,
                shortcut=index > 0,
            )
            inputs = stage.channels


def _scaled(channels: int, factor: float) -> int:
    """Rounds to the nearest multiple of 8, at least 8."""
    return max(8, int(channels * factor / 8 + 0.5) * 8)


def _depthwise(config: schema.MobileDet, size: int) -> schema.ConvHyperparams:
    """Returns He's initialiser for the size of a kernel, since each channel has one input."""
    he = schema.TruncatedNormal(stddev=math.sqrt(2) / size / _CUT_DEVIATION)
    return replace(config.conv, initializer=config.depthwise_initializer or he)
