"""Crops and pads that end at one aspect ratio, width over height.

The SSD forms crop first, as `ssd_random_crop` does, and then cut or pad what is left.
"""

from dataclasses import asdict, replace

import numpy as np
from numpy.random import Generator

from stillbox.experiment.schema import (
    RandomCropImage,
    RandomCropToAspectRatio,
    SsdRandomCropFixedAspectRatio,
    SsdRandomCropPadFixedAspectRatio,
)
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.draws import uniform, whole_number
from stillbox.inputs.augment.frames import move_boxes, place
from stillbox.inputs.augment.random_crop import Window, choose, crop, random_crop_image
from stillbox.inputs.sample import Sample


@implements(RandomCropToAspectRatio)
def random_crop_to_aspect_ratio(
    sample: Sample, settings: RandomCropToAspectRatio, rng: Generator
) -> Sample:
    """Cuts the largest window of the aspect ratio, anywhere; it has full height or full width.

    The other side is rounded half to even. Boxes completely outside go, and those of which less
    than `overlap_thresh` is inside.
    """
    height, width = sample.image.shape[:2]
    rows, columns = height, width
    if width / height > settings.aspect_ratio:
        columns = max(round(height * settings.aspect_ratio), 1)
    else:
        rows = min(max(round(width / settings.aspect_ratio), 1), height)
    y, x = whole_number(rng, 0, height - rows + 1), whole_number(rng, 0, width - columns + 1)
    window = Window(y, x, rows, min(columns, width))
    return crop(sample, window, settings.overlap_thresh, clip=settings.clip_boxes)


@implements(SsdRandomCropFixedAspectRatio)
def ssd_random_crop_fixed_aspect_ratio(
    sample: Sample, settings: SsdRandomCropFixedAspectRatio, rng: Generator
) -> Sample:
    """Applies one of several crops of this aspect ratio, then cuts to exactly it.

    The second cut does something after a crop that was passed by or found no window: it keeps
    boxes of which 0.3 is inside, and clips them.
    """
    ratio = settings.aspect_ratio
    chosen = RandomCropImage(
        min_aspect_ratio=ratio,
        max_aspect_ratio=ratio,
        **asdict(choose(settings.operations, rng)),
    )
    cropped = random_crop_image(sample, chosen, rng)
    return random_crop_to_aspect_ratio(cropped, RandomCropToAspectRatio(aspect_ratio=ratio), rng)


@implements(SsdRandomCropPadFixedAspectRatio)
def ssd_random_crop_pad_fixed_aspect_ratio(
    sample: Sample, settings: SsdRandomCropPadFixedAspectRatio, rng: Generator
) -> Sample:
    """Applies one of several crops, then pads with black at the bottom and right.

    The smallest canvas of the aspect ratio that holds the window is scaled by a random factor, such
    that its sides are between `min_padded_size_ratio` and `max_padded_size_ratio` times the
    window's, as far as the aspect ratio allows it; the upper end wins where both cannot be met.
    """
    cropped = random_crop_image(sample, choose(settings.operations, rng), rng)
    size = cropped.image.shape[0], cropped.image.shape[1]
    window, ratio = np.array(size, np.float64), settings.aspect_ratio
    smallest = np.maximum(window, [window[1] / ratio, window[0] * ratio])
    most = np.maximum(np.array(settings.max_padded_size_ratio) * window, smallest)
    least = np.maximum(np.array(settings.min_padded_size_ratio) * window, smallest)
    greatest = (most / smallest).min()
    scale = uniform(rng, min(greatest, (least / smallest).max()), greatest)
    # Rounding may not take away a row of the window itself.
    height, width = np.maximum(np.rint(scale * smallest), window).astype(int).tolist()
    return replace(
        cropped,
        image=place(cropped.image, (height, width), (0, 0), np.zeros(3, np.float32)),
        boxes=move_boxes(cropped.boxes, size, (0, 0), (height, width)),
    )
