"""From the description of a box coder to its functions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from jax import Array
from jax.typing import ArrayLike

from stillbox.boxes import coders
from stillbox.experiment import schema

Coding = Callable[[ArrayLike, ArrayLike], Array]


@dataclass(frozen=True)
class BoxCoder:
    """How a box is written relative to its anchor."""

    encode: Coding
    """From boxes `[..., 4]` and anchors `[..., 4]` to codes `[..., code_size]`."""
    decode: Coding
    """From codes `[..., code_size]` and anchors `[..., 4]` to boxes `[..., 4]`."""
    code_size: int
    """Numbers that one box is written as; a head predicts as many."""


def build_box_coder(config: schema.BoxCoder, input_size: tuple[int, int]) -> BoxCoder:
    """Returns the coder that a description stands for.

    Args:
        config: the description.
        input_size: height and width of the network input, in pixels: boxes are normalised to it,
            and some coders know how large a pixel is.
    """
    if isinstance(config, schema.MeanStddevBoxCoder):
        encode, decode = coders.encode_mean_stddev, coders.decode_mean_stddev
        return _bind(encode, decode, config, stddev=config.stddev)
    if isinstance(config, schema.SquareBoxCoder):
        square = config.y_scale, config.x_scale, config.length_scale
        return _bind(coders.encode_square, coders.decode_square, config, scales=square)
    scales = config.y_scale, config.x_scale, config.height_scale, config.width_scale
    pixel = 1 / input_size[0], 1 / input_size[1]
    return BoxCoder(
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
        code_size=config.code_size,
    )


def _bind(
    encode: Callable[..., Array],
    decode: Callable[..., Array],
    config: schema.BoxCoder,
    **settings: float | tuple[float, ...],
) -> BoxCoder:
    return BoxCoder(partial(encode, **settings), partial(decode, **settings), config.code_size)
