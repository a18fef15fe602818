"""MobileNet v3 (arXiv:1905.02244) and MobileNet for Edge TPUs (`slim/nets/mobilenet`)."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.backbones.mobile_blocks import Block, Gate, MobileNetwork, hard_sigmoid
from stillbox.models.parts import BuildOptions, make_divisible


class _Row(NamedTuple):
    """A block before the multipliers."""

    expansion: float
    channels: int
    size: int = 3
    stride: int = 1
    gated: bool = False
    early: bool = False
    """It has relu whatever is configured."""
    fused: bool = False
    shortcut: bool = True


_LARGE = (
    _Row(1, 16, early=True),
    _Row(4, 24, stride=2, early=True),
    _Row(3, 24, early=True),
    _Row(3, 40, 5, 2, gated=True, early=True),
    *[_Row(3, 40, 5, gated=True, early=True)] * 2,
    _Row(6, 80, stride=2),
    _Row(200 / 80, 80),
    *[_Row(184 / 80, 80)] * 2,
    *[_Row(6, 112, gated=True)] * 2,
    _Row(6, 160, 5, 2, gated=True),
    *[_Row(6, 160, 5, gated=True)] * 2,
)
_SMALL = (
    _Row(1, 16, stride=2, gated=True, early=True),
    _Row(72 / 16, 24, stride=2, early=True),
    _Row(88 / 24, 24, early=True),
    _Row(4, 40, 5, 2, gated=True),
    *[_Row(6, 40, 5, gated=True)] * 2,
    *[_Row(3, 48, 5, gated=True)] * 2,
    _Row(6, 96, 5, 2, gated=True),
    *[_Row(6, 96, 5, gated=True)] * 2,
)
_EDGETPU = (
    _Row(1, 16, fused=True),
    _Row(8, 32, stride=2, fused=True),
    *[_Row(4, 32, fused=True)] * 3,
    _Row(8, 48, stride=2, fused=True),
    *[_Row(4, 48, fused=True)] * 3,
    _Row(8, 96, stride=2),
    *[_Row(4, 96)] * 3,
    _Row(8, 96, shortcut=False),
    *[_Row(4, 96)] * 3,
    _Row(8, 160, 5, 2),
    *[_Row(4, 160, 5)] * 3,
    _Row(8, 192),
)
_SQUEEZE = 4


class MobileNetV3Network(MobileNetwork):
    """Builds a size of MobileNet v3 from its table.

    Args:
        config: see the schema.
        taps: as for all backbones.
        options: likewise.
        rows: the table of blocks.
        last: channels of the last convolution before the multipliers.
    """

    def __init__(
        self,
        config: schema.MobileNetV3,
        taps: tuple[str, ...],
        options: BuildOptions,
        rows: Sequence[_Row],
        last: int,
    ) -> None:
        strided = max(index for index, row in enumerate(rows) if row.stride == 2)

        def thinner(channels: int) -> int:
            return round(channels * config.end_multiplier)

        rows = [
            row._replace(
                channels=thinner(row.channels) if index >= strided else row.channels,
                size=3 if config.minimalistic else row.size,
                gated=row.gated and not config.minimalistic,
            )
            for index, row in enumerate(rows)
        ]
        blocks = tuple(_blocks(rows, 16, config))
        width = _width(thinner(last), config)
        super().__init__(config, taps, blocks, width, lambda _: config.conv, options)


@implements(schema.MobileNetV3Large)
class MobileNetV3LargeBackbone(MobileNetV3Network):
    """15 blocks."""

    def __init__(
        self, config: schema.MobileNetV3Large, taps: tuple[str, ...], options: BuildOptions
    ) -> None:
        super().__init__(config, taps, options, _LARGE, 960)


@implements(schema.MobileNetV3Small)
class MobileNetV3SmallBackbone(MobileNetV3Network):
    """11 blocks."""

    def __init__(
        self, config: schema.MobileNetV3Small, taps: tuple[str, ...], options: BuildOptions
    ) -> None:
        super().__init__(config, taps, options, _SMALL, 576)


@implements(schema.MobileNetEdgeTpu)
class MobileNetEdgeTpuBackbone(MobileNetwork):
    """22 blocks, of which the first nine are fused."""

    def __init__(
        self, config: schema.MobileNetEdgeTpu, taps: tuple[str, ...], options: BuildOptions
    ) -> None:
        blocks = tuple(_blocks(_EDGETPU, 32, config))
        super().__init__(config, taps, blocks, 0, lambda _: config.conv, options)


def _blocks(
    rows: Sequence[_Row], root: int, config: schema.MobileNetV3 | schema.MobileNetEdgeTpu
) -> Iterator[Block]:
    """Yields the blocks with their channels; `root` is that of the first convolution."""
    inputs = _width(root, config)
    for row in rows:
        wide = max(inputs, make_divisible(inputs * row.expansion))
        channels = _width(row.channels, config)
        gate = Gate(make_divisible(wide / _SQUEEZE), "relu", hard_sigmoid) if row.gated else None
        yield Block(
            inputs=inputs,
            wide=wide,
            channels=channels,
            activation="relu" if row.early else config.conv.activation,
            size=row.size,
            stride=row.stride,
            form="fused" if row.fused else "inverted",
            gate=gate,
            shortcut=row.shortcut,
        )
        inputs = channels


def _width(depth: int, config: schema.MobileNetV3 | schema.MobileNetEdgeTpu) -> int:
    return make_divisible(depth * config.depth_multiplier, config.min_depth)
