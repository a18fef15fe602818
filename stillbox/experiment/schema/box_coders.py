"""Box coders: the form in which a box is written relative to its anchor, and how to compute it.

The original has them in `object_detection/box_coders`.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from stillbox.experiment.schema.ranges import Count, NonNegative, Positive
from stillbox.experiment.variants import RegisteredConfig, implements

if TYPE_CHECKING:
    from jax import Array
    from jax.typing import ArrayLike

    from stillbox.boxes.coders import BoxCodec


class BoxCoder(RegisteredConfig):
    """The form in which a box is written relative to its anchor.

    Called as `(config, input_size)`; returns a `boxes.coders.BoxCodec`.
    """

    @property
    def code_size(self) -> int:
        """Numbers for each box."""
        return 4


@dataclass(frozen=True, kw_only=True)
class FasterRcnnBoxCoder(BoxCoder, kind="faster_rcnn"):
    """Centre offsets over anchor size and logarithms of size ratios, each times a scale."""

    y_scale: Positive = 10.0
    """Factor on the vertical offset."""
    x_scale: Positive = 10.0
    """Factor on the horizontal offset."""
    height_scale: Positive = 5.0
    """Factor on the logarithm of the height ratio."""
    width_scale: Positive = 5.0
    """Factor on the logarithm of the width ratio."""
    inclusive_edges: Literal["none", "decode", "both"] = "none"
    """Where the last row and column of pixels count as part of a box, so that it is one pixel of
    the network input higher and wider than the difference of its edges: nowhere, in decoding, or in
    encoding too. With `decode` targets and detections differ by a part of a pixel, as in the
    original."""
    max_log_ratio: NonNegative = 0.0
    """Decoding clips logarithms of ratios to this, so that no box becomes infinite; 0: no limit.
    The original's is log(1000 / 16) = 4.135."""


@implements(FasterRcnnBoxCoder)
def _faster_rcnn(config: FasterRcnnBoxCoder, input_size: tuple[int, int]) -> "BoxCodec":
    from stillbox.boxes import coders

    scales = config.y_scale, config.x_scale, config.height_scale, config.width_scale
    pixel = 1 / input_size[0], 1 / input_size[1]
    return coders.BoxCodec(
        encode=partial(
            coders.encode_faster_rcnn,
            scales=scales,
            pixel=pixel if config.inclusive_edges == "both" else None,
        ),
        decode=partial(
            coders.decode_faster_rcnn,
            scales=scales,
            pixel=None if config.inclusive_edges == "none" else pixel,
            max_log_ratio=config.max_log_ratio,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class MeanStddevBoxCoder(BoxCoder, kind="mean_stddev"):
    """Distances of the four edges from the edges of the anchor."""

    stddev: Positive = 0.01
    """Distance that a code of 1 stands for, as a share of the network input."""


@implements(MeanStddevBoxCoder)
def _mean_stddev(config: MeanStddevBoxCoder, input_size: tuple[int, int]) -> "BoxCodec":
    from stillbox.boxes import coders

    return coders.BoxCodec(
        partial(coders.encode_mean_stddev, stddev=config.stddev),
        partial(coders.decode_mean_stddev, stddev=config.stddev),
    )


@dataclass(frozen=True, kw_only=True)
class SquareBoxCoder(BoxCoder, kind="square"):
    """Centre and side of the square of a box's area: three codes; every decoded box is square."""

    y_scale: Positive = 10.0
    """Factor on the vertical offset over the side of the anchor's square."""
    x_scale: Positive = 10.0
    """Factor on the horizontal offset."""
    length_scale: Positive = 5.0
    """Factor on the logarithm of the ratio of the sides."""

    @property
    def code_size(self) -> int:
        """Numbers for each box."""
        return 3


@implements(SquareBoxCoder)
def _square(config: SquareBoxCoder, input_size: tuple[int, int]) -> "BoxCodec":
    from stillbox.boxes import coders

    scales = config.y_scale, config.x_scale, config.length_scale
    return coders.BoxCodec(
        partial(coders.encode_square, scales=scales), partial(coders.decode_square, scales=scales)
    )


@dataclass(frozen=True, kw_only=True)
class DistanceBoxCoder(BoxCoder, kind="distances"):
    """Distances of the four edges from the centre of the anchor (arXiv:1904.01355)."""

    units_in_anchor: Positive = 8.0
    """Units of distance in the side of an anchor. With anchors of eight strides, 8 makes the stride
    the unit."""


@implements(DistanceBoxCoder)
def _distances(config: DistanceBoxCoder, input_size: tuple[int, int]) -> "BoxCodec":
    from stillbox.boxes import coders

    units = config.units_in_anchor
    return coders.BoxCodec(
        partial(coders.encode_distances, units=units), partial(coders.decode_distances, units=units)
    )


@dataclass(frozen=True, kw_only=True)
class DistributionBoxCoder(DistanceBoxCoder, kind="distribution"):
    """The same distances, each the mean of a predicted distribution (arXiv:2006.04388).

    A distance has `longest` + 1 logits, for the distances 0 to `longest`.
    """

    longest: Count = 16
    """Greatest distance."""

    @property
    def code_size(self) -> int:
        """Numbers for each box."""
        return 4 * (self.longest + 1)


@implements(DistributionBoxCoder)
def _distribution(config: DistributionBoxCoder, input_size: tuple[int, int]) -> "BoxCodec":
    from stillbox.boxes import coders
    from stillbox.boxes.distributions import mean_distances

    units, longest = config.units_in_anchor, config.longest

    def decode(logits: "ArrayLike", anchors: "ArrayLike") -> "Array":
        distances = mean_distances(logits, bins=longest + 1)
        return coders.decode_distances(distances, anchors, units=units)

    return coders.BoxCodec(partial(coders.encode_distances, units=units, longest=longest), decode)
