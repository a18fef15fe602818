"""JPEG compression."""

from dataclasses import replace
from typing import cast

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs.augment.draws import is_skipped, random_integer
from stillbox.inputs.sample import Sample


@implements(schema.RandomJpegQuality)
def random_jpeg_quality(sample: Sample, config: schema.RandomJpegQuality, rng: Generator) -> Sample:
    """Compresses the image with a quality in `min_quality .. max_quality - 1` and decodes it again.

    float32 values are cut to whole numbers first, and uint8 is handed on. With probability
    `random_coef` the image stays as it is.
    """
    if is_skipped(rng, config.random_coef):
        return sample
    quality = random_integer(rng, config.min_quality, config.max_quality)
    pixels = sample.image.clip(0, 255).astype(np.uint8)
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    _, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])
    image = cast(NDArray[np.uint8], cv2.imdecode(data, cv2.IMREAD_COLOR_RGB))
    return replace(sample, image=image)
