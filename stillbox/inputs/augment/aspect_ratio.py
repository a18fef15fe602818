"""Crops and pads that end at one aspect ratio, width over height.

The SSD forms crop first, as `ssd_random_crop`, then cut or pad the result.
"""

from dataclasses import asdict, replace

import numpy as np
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.draws import random_integer, uniform
from stillbox.inputs.augment.frames import move_boxes, paste_on_canvas
from stillbox.inputs.augment.random_crop import CropWindow, choose, crop, random_crop_image
from stillbox.inputs.sample import Sample


@implements(schema.RandomCropToAspectRatio)
def random_crop_to_aspect_ratio(
    sample: Sample, config: schema.RandomCropToAspectRatio, rng: Generator
) -> Sample:
    """Cuts the largest window of the aspect ratio, anywhere; it has full height or full width.

    The other side is rounded half to even. Boxes completely outside go, and those of which less
    than `overlap_thresh` is inside.
    """
    height, width = sample.size
    rows, columns = height, width
    if width / height > config.aspect_ratio:
        columns = max(round(height * config.aspect_ratio), 1)
    else:
        rows = min(max(round(width / config.aspect_ratio), 1), height)
    y, x = random_integer(rng, 0, height - rows + 1), random_integer(rng, 0, width - columns + 1)
    window = CropWindow(y, x, rows, min(columns, width))
    return crop(sample, window, config.overlap_thresh, clip=config.clip_boxes)


@implements(schema.SsdRandomCropFixedAspectRatio)
def ssd_random_crop_fixed_aspect_ratio(
    sample: Sample, config: schema.SsdRandomCropFixedAspectRatio, rng: Generator
) -> Sample:
    """Applies one of several crops of this aspect ratio, then cuts to exactly it.

    The second cut changes images whose crop was skipped or found no window: it keeps boxes of which
    0.3 is inside, and clips them.
    """
    ratio = config.aspect_ratio
    chosen = schema.RandomCropImage(
        min_aspect_ratio=ratio,
        max_aspect_ratio=ratio,
        **asdict(choose(config.operations, rng)),
    )
    cropped = random_crop_image(sample, chosen, rng)
    return random_crop_to_aspect_ratio(
        cropped, schema.RandomCropToAspectRatio(aspect_ratio=ratio), rng
    )


@implements(schema.SsdRandomCropPadFixedAspectRatio)
def ssd_random_crop_pad_fixed_aspect_ratio(
    sample: Sample, config: schema.SsdRandomCropPadFixedAspectRatio, rng: Generator
) -> Sample:
    """Applies one of several crops, then pads with black at the bottom and right.

    The smallest canvas of the aspect ratio that holds the window is scaled by a random factor, such
    that its sides are between `min_padded_size_ratio` and `max_padded_size_ratio` times the
    window's, if the aspect ratio allows it; otherwise the upper limit is met.
    """
    cropped = random_crop_image(sample, choose(config.operations, rng), rng)
    size = cropped.image.shape[0], cropped.image.shape[1]
    window, ratio = np.array(size, np.float64), config.aspect_ratio
    smallest = np.maximum(window, [window[1] / ratio, window[0] * ratio])
    most = np.maximum(np.array(config.max_padded_size_ratio) * window, smallest)
    least = np.maximum(np.array(config.min_padded_size_ratio) * window, smallest)
    greatest = (most / smallest).min()
    scale = uniform(rng, min(greatest, (least / smallest).max()), greatest)
    # Rounding must not cut the window itself.
    height, width = np.maximum(np.rint(scale * smallest), window).astype(int).tolist()
    return replace(
        cropped,
        image=paste_on_canvas(cropped.image, (height, width), (0, 0), np.zeros(3, np.float32)),
        boxes=move_boxes(cropped.boxes, size, (0, 0), (height, width)),
    )
