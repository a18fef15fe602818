"""Images of more than 8 bits in records with all of their bits, and what images hold."""

import io

import cv2
import numpy as np
import pytest
from PIL import Image

from stillbox.image_kind import ImageKind
from stillbox.inputs.decode import decode_image
from stillbox.records.conversion import ConversionOptions
from stillbox.records.converted import image_kind_of
from stillbox.records.folder import convert_folder
from stillbox.records.folder_content import FolderOptions
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


def folder_of(root, *pixels):
    """A folder of YOLO with an image of each of some arrays."""
    (root / "images").mkdir(parents=True)
    (root / "labels").mkdir()
    (root / "classes.txt").write_text("disc\n")
    for number, each in enumerate(pixels):
        (root / f"images/{number}.png").write_bytes(file(each))
        (root / f"labels/{number}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    return root


@pytest.mark.parametrize(
    ("pixels", "keep_bits", "kind"),
    [
        ([TWELVE, TWELVE >> 3, SIXTEEN[..., 0] >> 8], True, (1, 12)),
        ([TWELVE, TWELVE >> 3], False, (1, 8)),
        ([SIXTEEN, SIXTEEN[::-1]], True, (4, 16)),
        ([SIXTEEN, SIXTEEN[..., :3]], True, (3, 16)),
    ],
)
def test_a_conversion_says_what_all_its_images_hold(pixels, keep_bits, kind, tmp_path):
    root = folder_of(tmp_path / "data", *pixels)
    options = ConversionOptions(keep_bits=keep_bits)
    reading = FolderOptions(validation_share=0.5)
    converted = convert_folder(root, tmp_path / "out", reading, options=options)
    assert converted.image_kind == kind
    again = convert_folder(root, tmp_path / "out", reading, options=options)
    assert (again.image_kind, again.reused) == (kind, True)
    assert image_kind_of(tmp_path / "out") == kind
