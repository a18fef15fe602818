"""Weights of a first layer for images of other channels than a detector's."""

from dataclasses import replace

import numpy as np

from stillbox.experiment import schema
from stillbox.image_kind import per_channel
from stillbox.printing import count_text

Shape = tuple[int, ...]
_DONE = {
    1: "summed over the channels",
    3: "divided among R, G and B",
    4: "its mean for the fourth channel, then all times 3/4",
}


def for_rgb(model: schema.Model) -> schema.Model:
    """Returns a model as it is for images of R, G and B, which most weights are for."""
    if not isinstance(model, schema.OneStage | schema.FasterRcnn) or model.pixels.channels == 3:
        return model
    pixels = model.pixels
    # R, G and B have their own numbers beside a fourth channel.
    rgb = replace(pixels, channels=3, mean=pixels.mean[:3], std=pixels.std[:3])
    return replace(model, pixels=rgb)


def is_first_layer(held: Shape, wanted: Shape) -> bool:
    """Returns whether a kernel `[k, k, C, D]` is a wanted one but for the channels of images."""
    few = len(held) == len(wanted) == 4 and held[2] in (1, 3) and wanted[2] in _DONE
    return few and held[:2] == wanted[:2] and held[3] == wanted[3]


def with_image_channels(kernel: np.ndarray, channels: int) -> np.ndarray:
    """Returns a first kernel for images of so many channels.

    The kernel is multiplied by the channels that it has over those that it gets, so that results
    keep their size. Results for gray images are the same where pixels are normalised by one number.
    """
    columns = per_channel(list(np.moveaxis(kernel, 2, 0)), channels)
    return np.stack(columns, axis=2) * np.float32(kernel.shape[2] / channels)


def note_on_channels(held: Shape, wanted: Shape) -> str:
    """Returns what was done with a first kernel, for the report."""
    return (
        f"the first layer is for images of {count_text(held[2], 'channel')}, and these have "
        f"{wanted[2]}: {_DONE[wanted[2]]}"
    )
