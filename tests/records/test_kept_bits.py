"""Images of more than 8 bits in records with all of their bits, and what images hold."""

import io

import cv2
import numpy as np
import pytest
from PIL import Image

from stillbox.image_kind import ImageKind
from stillbox.inputs.decode import decode_image
from stillbox.records.image_files import brightest_in, prepare_image
from stillbox.records.pixels import Brightest

NOISE = np.random.default_rng(0)
SIXTEEN = NOISE.integers(0, 65536, (40, 60, 4)).astype(np.uint16)
TWELVE = (SIXTEEN[..., 0] >> 4).astype(np.uint16)
NONE = 0, 0


def file(pixels, suffix=".png"):
    return cv2.imencode(suffix, pixels)[1].tobytes()


def prepared(data, **options):
    return prepare_image(data, NONE, **options)


def test_png_stays_byte_for_byte():
    for pixels in (TWELVE, SIXTEEN[..., 0], SIXTEEN[..., :3], SIXTEEN):
        data = file(pixels)
        assert prepared(data, keep_bits=True).encoded is data


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_tiff_becomes_png_with_the_same_values(channels):
    pixels = SIXTEEN[..., :channels]
    image = prepared(file(pixels, ".tiff"), keep_bits=True)
    assert image.kind == ImageKind(channels, 16)
    decoded = cv2.imdecode(np.frombuffer(image.encoded, np.uint8), cv2.IMREAD_UNCHANGED)
    assert np.array_equal(decoded.reshape(pixels.shape), pixels)


def test_the_brightest_pixel_of_the_set_gives_the_bits():
    dark = file(TWELVE >> 3)
    assert prepared(dark, keep_bits=True).kind == ImageKind(1, 10)
    of_set = brightest_in(file(TWELVE))
    image = prepared(dark, brightest=of_set, keep_bits=True)
    assert image.kind == ImageKind(1, 12)
    # The upper 8 bits are what a conversion to 8 bits has.
    eight = prepared(dark, brightest=of_set)
    decoded = decode_image(image.encoded, kind=image.kind)
    assert np.array_equal((TWELVE >> 3 >> 4), decode_image(eight.encoded)[..., 0])
    assert np.abs(decoded[..., 0] - decode_image(eight.encoded)[..., 0]).max() < 1


def test_floats_have_8_bits():
    stream = io.BytesIO()
    Image.fromarray(TWELVE.astype(np.float32) / 4095).save(stream, "TIFF")
    image = prepared(stream.getvalue(), brightest=Brightest(4095), keep_bits=True)
    assert image.kind == ImageKind(1, 8)


def test_a_fourth_channel_counts_if_it_is_not_the_same_everywhere():
    four = (SIXTEEN >> 8).astype(np.uint8)
    assert prepared(file(four)).kind == ImageKind(4, 8)
    four[..., 3] = 255
    assert prepared(file(four)).kind == ImageKind(3, 8)
    assert prepared(file(four[..., 0])).kind == ImageKind(1, 8)


def test_a_fourth_channel_of_tiff_is_kept():
    four = (SIXTEEN >> 8).astype(np.uint8)
    image = prepared(file(four, ".tiff"))
    assert image.kind == ImageKind(4, 8)
    assert np.array_equal(decode_image(image.encoded, kind=image.kind)[..., 3], four[..., 3])
