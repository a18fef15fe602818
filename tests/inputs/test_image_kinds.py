"""Images of 1 and 4 channels and of more bits: decoded, resized, augmented and batched.

What is done to brightness is what is done to three equal colours, and what is done to four channels
is done to each of them; so an image of RGB is the reference.
"""

import io

import cv2
import numpy as np
import pytest
from PIL import Image

from stillbox.experiment import schema
from stillbox.image_kind import ImageKind, common_kind, per_channel
from stillbox.inputs.augment import apply_augmentations
from stillbox.inputs.channels import for_people, of_kind
from stillbox.inputs.decode import ImageError, decode_image
from stillbox.inputs.interpolation import METHODS
from stillbox.inputs.loader import EvalLoader
from stillbox.inputs.resize import resize_image
from stillbox.inputs.sample import Sample, StoredImage
from tests.inputs.helpers import dataset, example, jpeg, picture

GRAY, FOUR, DEEP = ImageKind(1), ImageKind(4), ImageKind(3, 16)
NOISE = np.random.default_rng(0)
EIGHT = NOISE.integers(0, 256, (9, 11), np.uint8)
TWELVE = NOISE.integers(0, 4096, (9, 11)).astype(np.uint16)
SIXTEEN = NOISE.integers(0, 65536, (9, 11, 4)).astype(np.uint16)


def png(pixels, suffix=".png"):
    """The file of an array, gray or RGB with perhaps a fourth channel."""
    order = [2, 1, 0, 3][: pixels.shape[2]] if pixels.ndim == 3 else ...
    return cv2.imencode(suffix, pixels[..., order] if pixels.ndim == 3 else pixels)[1].tobytes()


def test_gray_files_are_brightness():
    for data in (png(EIGHT), png(EIGHT, ".tiff"), png(EIGHT, ".bmp")):
        assert np.array_equal(decode_image(data, kind=GRAY), EIGHT[..., None])
    stream = io.BytesIO()
    Image.fromarray(np.dstack([EIGHT, EIGHT // 2]), "LA").save(stream, "PNG")
    assert np.array_equal(decode_image(stream.getvalue(), kind=GRAY), EIGHT[..., None])


def test_a_gray_jpeg_has_the_values_of_its_equal_colours():
    stream = io.BytesIO()
    Image.fromarray(picture(40, 60)[..., 0]).save(stream, "JPEG")
    data = stream.getvalue()
    assert np.array_equal(decode_image(data, kind=GRAY), decode_image(data)[..., :1])
    stored = StoredImage.read(data, GRAY).crop(3, 5, 20, 30).mirror()
    whole = decode_image(data, kind=GRAY)[3:23, 5:35]
    assert np.array_equal(stored.pixels(), whole[:, ::-1])
    assert stored.reduced(2).pixels.shape[2] == 1


def test_colours_become_their_brightness():
    colors = picture(40, 60)
    wanted = colors @ [0.299, 0.587, 0.114]
    assert np.abs(decode_image(png(colors), kind=GRAY)[..., 0] - wanted).max() <= 1
    # The file of a photograph loses some of its colours.
    assert np.abs(decode_image(jpeg(colors), kind=GRAY)[..., 0] - wanted).max() <= 6


def test_the_fourth_channel_is_kept_and_never_made_up():
    four = NOISE.integers(0, 256, (9, 11, 4), np.uint8)
    assert np.array_equal(decode_image(png(four), kind=FOUR), four)
    for data in (png(four[..., :3]), png(EIGHT), png(TWELVE), jpeg(picture(9, 11))):
        with pytest.raises(ImageError):
            decode_image(data, kind=FOUR)


@pytest.mark.parametrize("suffix", [".png", ".tiff"])
def test_white_of_all_bits_is_255(suffix):
    for channels, bits, values in (
        (1, 12, TWELVE), (1, 16, SIXTEEN[..., 0]), (3, 16, SIXTEEN[..., :3]), (4, 16, SIXTEEN),
    ):  # fmt: skip
        decoded = decode_image(png(values, suffix), kind=ImageKind(channels, bits))
        wanted = values.reshape(9, 11, channels) * (255 / (2**bits - 1))
        assert decoded.dtype == np.float32
        np.testing.assert_allclose(decoded, wanted, rtol=1e-6)


def test_files_of_eight_bits_have_the_same_white():
    colors = picture(9, 11)
    assert np.array_equal(decode_image(png(colors), kind=DEEP), colors)
    assert np.array_equal(decode_image(png(EIGHT), kind=ImageKind(1, 12))[..., 0], EIGHT)


def test_values_beyond_white_are_refused():
    with pytest.raises(ImageError, match="4095"):
        decode_image(png(SIXTEEN[..., 0]), kind=ImageKind(1, 12))


def test_deep_gray_of_eight_bits_is_as_three_channels_have_it():
    data = png(TWELVE)
    assert np.array_equal(decode_image(data, kind=GRAY), decode_image(data)[..., :1])


def test_a_large_deep_file_is_whole():
    # Files above 128 KiB are read by Pillow, which takes the upper bytes of colours.
    large = np.random.default_rng(1).integers(0, 65536, (300, 300, 3)).astype(np.uint16)
    np.testing.assert_allclose(decode_image(png(large), kind=DEEP), large / 257, rtol=1e-6)


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_each_channel_is_resized_alone(method, dtype):
    rgb = picture(40, 60).astype(dtype)
    resizer = schema.FixedShapeResizer(height=24, width=90, method=method)
    wanted, _ = resize_image(rgb, resizer)
    gray, _ = resize_image(np.ascontiguousarray(rgb[..., 1:2]), resizer)
    four, _ = resize_image(np.dstack([rgb, rgb[..., 1]]), resizer)
    np.testing.assert_allclose(gray, wanted[..., 1:2], atol=1e-4)
    np.testing.assert_allclose(four, wanted[..., [0, 1, 2, 1]], atol=1e-4)


def test_padding_follows_the_channels():
    resizer = schema.KeepAspectRatioResizer(
        min_dimension=20, max_dimension=40, pad_value=(30.0, 60.0, 90.0)
    )
    for channels, wanted in ((1, [60]), (3, [30, 60, 90]), (4, [30, 60, 90, 60])):
        out, shown = resize_image(np.zeros((30, 30, channels), np.uint8), resizer)
        assert shown == (20, 20)
        assert out[-1, -1].tolist() == wanted


AUGMENTATIONS = [
    schema.RandomHorizontalFlip(probability=1.0),
    schema.RandomVerticalFlip(probability=1.0),
    schema.RandomRotation90(probability=1.0),
    schema.RandomCropImage(),
    schema.RandomPadImage(),
    schema.SsdRandomCrop(),
    schema.RandomImageScale(),
    schema.RandomAdjustBrightness(),
    schema.RandomAdjustContrast(),
    schema.RandomAdjustSaturation(),
    schema.RandomAdjustHue(),
    schema.RandomDistortColor(),
    schema.RandomRgbToGray(probability=1.0),
    schema.SubtractChannelMean(means=(7.0, 7.0, 7.0)),
    schema.RandomAffine(),
    schema.LargeScaleJitter(output_size=48, pad_color=(114.0,) * 3),
    schema.RandomBlackPatches(),
]


class Alone:
    """Other records: the sample itself."""

    def __init__(self, sample):
        self.sample = sample

    def draw(self, rng, *, with_boxes=False):
        return self.sample


def augmented(image, augmentation):
    boxes = np.array([[0.1, 0.2, 0.7, 0.8]], np.float32)
    sample = Sample(image, boxes, np.array([1], np.int32), np.ones(1, np.float32))
    rng = np.random.default_rng(3)
    return apply_augmentations([augmentation], sample, rng, Alone(sample))


@pytest.mark.parametrize("augmentation", AUGMENTATIONS, ids=lambda each: each.kind)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_brightness_is_changed_as_three_equal_colours(augmentation, dtype):
    gray = picture(40, 60)[..., :1].astype(dtype)
    wanted = augmented(np.repeat(gray, 3, axis=2), augmentation)
    result = augmented(gray, augmentation)
    assert result.image.dtype == wanted.image.dtype or augmentation.kind == "random_rgb_to_gray"
    np.testing.assert_allclose(result.image, wanted.image[..., :1], atol=3e-2)
    assert np.array_equal(result.boxes, wanted.boxes)


@pytest.mark.parametrize("augmentation", AUGMENTATIONS, ids=lambda each: each.kind)
def test_colours_are_changed_beside_a_fourth_channel(augmentation):
    rgb = picture(40, 60)
    four = augmented(np.dstack([rgb, rgb[..., 1]]), augmentation)
    np.testing.assert_allclose(four.image[..., :3], augmented(rgb, augmentation).image, atol=1e-3)
    assert four.image.shape[2] == 4


@pytest.mark.parametrize("kind", ["mosaic", "mixup"])
@pytest.mark.parametrize("channels", [1, 4])
def test_records_of_other_channels_are_mixed(kind, channels):
    config = {"mosaic": schema.Mosaic, "mixup": schema.MixUp}[kind](
        height=32, width=48, probability=1.0
    )
    image = np.repeat(picture(40, 60)[..., :1], channels, axis=2)
    wanted = augmented(np.repeat(image[..., :1], 3, axis=2), config)
    result = augmented(image, config)
    assert result.image.shape[2] == channels
    assert np.array_equal(result.image[..., 0], wanted.image[..., 0])


def test_jpeg_compression_takes_brightness_and_leaves_a_fourth_channel():
    config = schema.RandomJpegQuality(min_quality=60, max_quality=61)
    rgb = picture(40, 60)
    assert augmented(rgb[..., :1], config).image.shape == (40, 60, 1)
    four = augmented(np.dstack([rgb, rgb[..., 1]]), config).image
    assert np.array_equal(four[..., 3], rgb[..., 1])
    assert np.array_equal(four[..., :3], augmented(rgb, config).image)


@pytest.mark.parametrize("kind", [GRAY, FOUR, ImageKind(1, 16)], ids=str)
def test_batches_have_the_channels_of_the_model(kind, tmp_path):
    values = {1: SIXTEEN[..., 0], 4: SIXTEEN}[kind.channels]
    values = values if kind.bits == 16 else (values >> 8).astype(np.uint8)
    model = schema.OneStage(
        num_classes=4,
        resizer=schema.FixedShapeResizer(height=16, width=16),
        pixels=schema.PixelNormalization(channels=kind.channels, bits=kind.bits),
    )
    data = dataset(tmp_path, [example(0, size=(9, 11), encoded=png(values))], model=model)
    (batch,) = EvalLoader(data, batch_size=1)
    assert batch.images.shape == (1, 16, 16, kind.channels)
    assert batch.images.max() > 200


def test_numbers_of_colours_serve_other_channels():
    assert per_channel((10.0, 20.0, 60.0), 1) == (30.0,)
    assert per_channel((10.0, 20.0, 60.0), 4) == (10.0, 20.0, 60.0, 30.0)
    assert per_channel((5.0,), 3) == (5.0, 5.0, 5.0)


def test_people_see_gray_and_no_fourth_channel():
    rgb = picture(8, 9)
    assert for_people(rgb) is rgb
    assert np.array_equal(for_people(of_kind(rgb, FOUR)), rgb)
    gray = for_people(of_kind(rgb, ImageKind(1, 16)))
    assert gray.dtype == np.uint8
    assert np.abs(gray - rgb.mean(axis=2, keepdims=True)).max() <= 1


def test_images_that_differ_in_their_channels_are_rgb():
    assert common_kind([GRAY, ImageKind(1, 12)]) == (1, 12)
    assert common_kind([GRAY, FOUR]) == (3, 8)
