"""Changes of pixel values: colours, functions of values, patches, JPEG compression.

Colours (brightness, contrast, hue, saturation, gray) take values in 0..255, compute in float32,
clip to 0..255 unless configured not to, and return float32. Without clipping, values outside that
range are treated as by TensorFlow's operations. `normalize_image`, `subtract_channel_mean` and
`adjust_gamma` do not clip, as in the original, and are deterministic.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import cv2
import numpy as np
from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.image_kind import per_channel
from stillbox.inputs.augment.common import is_skipped, mean_color, random_integer, uniform
from stillbox.inputs.channels import with_channels
from stillbox.inputs.decode import FloatPixels
from stillbox.inputs.sample import Bytes, Pixels, Sample

# The weights of `tf.image.rgb_to_grayscale`, for each channel of the result.
_GRAY_WEIGHTS = np.tile(np.array([0.2989, 0.5870, 0.1140], np.float32), (3, 1))

_BRIGHTNESS = schema.RandomAdjustBrightness(max_delta=32 / 255)
_SATURATION = schema.RandomAdjustSaturation(min_factor=0.5, max_factor=1.5)
_HUE = schema.RandomAdjustHue(max_turn=0.2)
_CONTRAST = schema.RandomAdjustContrast(min_factor=0.5, max_factor=1.5)


@implements(schema.RandomAdjustBrightness)
def random_adjust_brightness(
    sample: Sample, config: schema.RandomAdjustBrightness, rng: Generator
) -> Sample:
    """Adds one number, uniform in `-max_delta .. max_delta` times 255."""
    delta = uniform(rng, -config.max_delta, config.max_delta)
    return replace(sample, image=adjust_brightness(sample.image, delta, clip=config.clip))


@implements(schema.RandomAdjustContrast)
def random_adjust_contrast(
    sample: Sample, config: schema.RandomAdjustContrast, rng: Generator
) -> Sample:
    """Multiplies the distance of every value from the mean of its channel by one factor."""
    factor = uniform(rng, config.min_factor, config.max_factor)
    return replace(sample, image=adjust_contrast(sample.image, factor, clip=config.clip))


@implements(schema.RandomAdjustHue)
def random_adjust_hue(sample: Sample, config: schema.RandomAdjustHue, rng: Generator) -> Sample:
    """Turns all hues by one angle, uniform in `-max_turn .. max_turn` of a full turn."""
    turn = uniform(rng, -config.max_turn, config.max_turn)
    return replace(sample, image=adjust_hue(sample.image, turn, clip=config.clip))


@implements(schema.RandomAdjustSaturation)
def random_adjust_saturation(
    sample: Sample, config: schema.RandomAdjustSaturation, rng: Generator
) -> Sample:
    """Multiplies all saturations by one factor; they end at 1."""
    factor = uniform(rng, config.min_factor, config.max_factor)
    return replace(sample, image=adjust_saturation(sample.image, factor, clip=config.clip))


@implements(schema.RandomDistortColor)
def random_distort_color(
    sample: Sample, config: schema.RandomDistortColor, rng: Generator
) -> Sample:
    """Applies all four in one of two orders."""
    sample = random_adjust_brightness(sample, _BRIGHTNESS, rng)
    if config.ordering == 1:
        sample = random_adjust_contrast(sample, _CONTRAST, rng)
    sample = random_adjust_saturation(sample, _SATURATION, rng)
    sample = random_adjust_hue(sample, _HUE, rng)
    if config.ordering == 0:
        sample = random_adjust_contrast(sample, _CONTRAST, rng)
    return sample


@implements(schema.RandomRgbToGray)
def random_rgb_to_gray(sample: Sample, config: schema.RandomRgbToGray, rng: Generator) -> Sample:
    """Makes the image gray with the given probability; 0 never does."""
    return sample if rng.random() >= config.probability else _gray(sample)


@implements(schema.RgbToGray)
def rgb_to_gray(sample: Sample, config: schema.RgbToGray, rng: Generator) -> Sample:
    """Makes every image gray, in three equal channels; the original leaves one channel."""
    return _gray(sample)


def _gray(sample: Sample) -> Sample:
    def gray(colors: FloatPixels) -> FloatPixels:
        return cast(FloatPixels, cv2.transform(colors, _GRAY_WEIGHTS))

    return replace(sample, image=_of_colors(as_float(sample.image), gray))


def _of_colors(image: FloatPixels, change: Callable[[FloatPixels], FloatPixels]) -> FloatPixels:
    """Changes R, G and B; a fourth channel stays, and so does brightness, which has no colour."""
    if image.shape[2] == 1:
        return image
    colors = change(image[..., :3])
    return colors if image.shape[2] == 3 else np.dstack([colors, image[..., 3:]])


def adjust_brightness(image: Pixels, delta: float, *, clip: bool) -> FloatPixels:
    """Adds `255 * delta` to all values."""
    return _finished(as_float(image) + np.float32(255 * delta), clip)


def adjust_contrast(image: Pixels, factor: float, *, clip: bool) -> FloatPixels:
    """Multiplies the distance of every value from the mean of its channel by `factor`."""
    scale = np.float32(factor)
    offset = mean_color(image) * (1 - scale)
    # Whole rows at a time: numpy is slow at broadcasting three numbers.
    pixels = as_float(image)
    pixels *= scale
    rows = pixels.reshape(pixels.shape[0], -1)
    rows += np.tile(offset, pixels.shape[1])
    return _finished(pixels, clip)


def adjust_hue(image: Pixels, turn: float, *, clip: bool) -> FloatPixels:
    """Turns all hues by `turn` of a full turn; a pixel's least and greatest values stay."""
    degrees = np.float32(360 * turn)

    def change(hsv: FloatPixels) -> None:
        hue = hsv[..., 0]
        hue += degrees
        # Not the modulo, which is several times slower: at most one turn is needed.
        hue[hue < 0] += 360
        hue[hue >= 360] -= 360

    pixels = as_float(image)
    # OpenCV's saturation has no sign: negative values would be mirrored. A number that is added to
    # all channels does not change the hue.
    below = min(float(pixels.min()), 0.0)
    if below:
        pixels -= np.float32(below)
    result = _in_hsv(pixels, change)
    if below:
        result += np.float32(below)
    return _finished(result, clip)


def adjust_saturation(image: Pixels, factor: float, *, clip: bool) -> FloatPixels:
    """Multiplies all saturations by `factor` and clips them to 0..1.

    As in TensorFlow, a pixel with a channel below 0 has a saturation above 1, and one without a
    channel above 0 becomes gray.
    """
    scale = np.float32(factor)

    def change(hsv: FloatPixels) -> None:
        saturation = hsv[..., 1]
        saturation *= scale
        np.clip(saturation, 0, 1, out=saturation)
        saturation[hsv[..., 2] <= 0] = 0

    return _finished(_in_hsv(as_float(image), change), clip)


def as_float(image: Pixels) -> FloatPixels:
    """Returns a float32 copy."""
    return image.astype(np.float32)


def _finished(image: FloatPixels, clip: bool) -> FloatPixels:
    return np.clip(image, 0, 255, out=image) if clip else image


def _in_hsv(pixels: FloatPixels, change: Callable[[FloatPixels], None]) -> FloatPixels:
    """Changes hue (0..360), saturation (0..1) and value (0..1) in place and returns the pixels."""

    def changed(colors: FloatPixels) -> FloatPixels:
        colors /= 255
        hsv = cast(FloatPixels, cv2.cvtColor(colors, cv2.COLOR_RGB2HSV))
        change(hsv)
        result = cast(FloatPixels, cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB))
        result *= 255
        return result

    return _of_colors(pixels, changed)


@implements(schema.RandomPixelValueScale)
def random_pixel_value_scale(
    sample: Sample, config: schema.RandomPixelValueScale, rng: Generator
) -> Sample:
    """Multiplies every value of every channel by a factor of its own; clips to 0..255."""
    low, high = config.min_factor, config.max_factor
    image = rng.random(sample.image.shape, np.float32)
    image *= np.float32(high - low)
    image += np.float32(low)
    image *= sample.image
    return replace(sample, image=np.clip(image, 0, 255, out=image))


@implements(schema.AdjustGamma)
def adjust_gamma(sample: Sample, config: schema.AdjustGamma, rng: Generator) -> Sample:
    """Returns `255 * gain * (value / 255) ** gamma`; negative values count as 0."""
    shares = as_float(sample.image)
    np.maximum(shares, 0, out=shares)
    shares /= 255
    shares **= np.float32(config.gamma)
    shares *= np.float32(255 * config.gain)
    return replace(sample, image=shares)


@implements(schema.NormalizeImage)
def normalize_image(sample: Sample, config: schema.NormalizeImage, rng: Generator) -> Sample:
    """Maps `original_min .. original_max` linearly to `target_min .. target_max`."""
    source = config.original_max - config.original_min
    scale = (config.target_max - config.target_min) / source
    image = as_float(sample.image)
    image -= np.float32(config.original_min)
    image *= np.float32(scale)
    image += np.float32(config.target_min)
    return replace(sample, image=image)


@implements(schema.SubtractChannelMean)
def subtract_channel_mean(
    sample: Sample, config: schema.SubtractChannelMean, rng: Generator
) -> Sample:
    """Subtracts one number from each channel."""
    image = as_float(sample.image)
    rows = image.reshape(image.shape[0], -1)
    means = per_channel(config.means, image.shape[2])
    rows -= np.tile(np.array(means, np.float32), image.shape[1])
    return replace(sample, image=image)


@implements(schema.RandomBlackPatches)
def random_black_patches(
    sample: Sample, config: schema.RandomBlackPatches, rng: Generator
) -> Sample:
    """Covers the image with up to `max_patches` black squares, each with its probability.

    The first row is uniform between 0 and `(1 - size_ratio)` of the height, the first column
    likewise, both cut to whole pixels. Boxes under a patch stay.
    """
    height, width = sample.image.shape[:2]
    side = int(min(height, width) * config.size_ratio)
    draws = rng.random((config.max_patches, 3))
    image = sample.image.copy()
    for chance, y_share, x_share in draws:
        if chance < config.probability:
            y = int(y_share * (1 - config.size_ratio) * height)
            x = int(x_share * (1 - config.size_ratio) * width)
            image[y : y + side, x : x + side] = 0
    return replace(sample, image=image)


@implements(schema.RandomPatchGaussian)
def random_patch_gaussian(
    sample: Sample, config: schema.RandomPatchGaussian, rng: Generator
) -> Sample:
    """Adds noise to a square around a random pixel and clips it to 0..255 (arXiv:1906.02611).

    The square may stick out of the image; where its side is even, it begins one pixel earlier.
    With probability `random_coef` the image stays as it is.
    """
    if is_skipped(rng, config.random_coef):
        return sample
    height, width = sample.image.shape[:2]
    side = random_integer(rng, config.min_patch_size, config.max_patch_size)
    stddev = uniform(rng, config.min_stddev, config.max_stddev)
    y, x = (random_integer(rng, 0, length) - side // 2 for length in (height, width))
    image = as_float(sample.image)
    patch = image[max(y, 0) : y + side, max(x, 0) : x + side]
    noise = rng.standard_normal(patch.shape, np.float32)
    np.clip(patch + noise * np.float32(255 * stddev), 0, 255, out=patch)
    return replace(sample, image=image)


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
    colors = np.ascontiguousarray(pixels[..., 2::-1])
    _, data = cv2.imencode(".jpg", colors, [cv2.IMWRITE_JPEG_QUALITY, quality])
    flags = cv2.IMREAD_GRAYSCALE if pixels.shape[2] == 1 else cv2.IMREAD_COLOR_RGB
    image = with_channels(cast(Bytes, cv2.imdecode(data, flags)))
    return replace(sample, image=np.dstack([image, pixels[..., 3:]]))
