"""Box coders by their schema classes; the family in `schema` says how they are called."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from jax import Array
from jax.typing import ArrayLike

from stillbox.boxes import coders
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of, implements

Coding = Callable[[ArrayLike, ArrayLike], Array]


class BoxCodec(NamedTuple):
    """Encodes boxes relative to their anchors, and decodes them."""

    encode: Coding
    """From boxes `[..., 4]` and anchors `[..., 4]` to codes `[..., code_size]`."""
    decode: Coding
    """From codes `[..., code_size]` and anchors `[..., 4]` to boxes `[..., 4]`."""


def build_box_coder(config: schema.BoxCoder, input_size: tuple[int, int]) -> BoxCodec:
    """Returns the coder of a configuration.

    Args:
        config: the coder.
        input_size: height and width of the network input, in pixels. Boxes are normalised to it,
            and some coders need the size of a pixel.
    """
    coder: BoxCodec = implementation_of(config)(config, input_size)
    return coder


@implements(schema.FasterRcnnBoxCoder)
def _faster_rcnn(config: schema.FasterRcnnBoxCoder, input_size: tuple[int, int]) -> BoxCodec:
    scales = config.y_scale, config.x_scale, config.height_scale, config.width_scale
    pixel = 1 / input_size[0], 1 / input_size[1]
    return BoxCodec(
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


@implements(schema.MeanStddevBoxCoder)
def _mean_stddev(config: schema.MeanStddevBoxCoder, input_size: Any) -> BoxCodec:  # noqa: ANN401
    return BoxCodec(
        partial(coders.encode_mean_stddev, stddev=config.stddev),
        partial(coders.decode_mean_stddev, stddev=config.stddev),
    )


@implements(schema.SquareBoxCoder)
def _square(config: schema.SquareBoxCoder, input_size: Any) -> BoxCodec:  # noqa: ANN401
    scales = config.y_scale, config.x_scale, config.length_scale
    return BoxCodec(
        partial(coders.encode_square, scales=scales), partial(coders.decode_square, scales=scales)
    )
