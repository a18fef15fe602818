"""JPEG files that are decoded after crops and mirroring: the same pixels, less work."""

import cv2
import numpy as np
import pytest
from PIL import Image

from stillbox.experiment import schema
from stillbox.inputs.augment import apply_augmentations
from stillbox.inputs.decode import ImageError, decode_image, read_jpeg_header, upper_rows
from stillbox.inputs.sample import Sample, StoredImage, StoredSample
from tests.inputs.helpers import picture, saved

SIZE = (150, 203)
NOISE = np.random.default_rng(0).normal(0, 20, (*SIZE, 3))
ROUGH = (picture(*SIZE) + NOISE).clip(0, 255).astype(np.uint8)
SAMPLINGS = {
    name: getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{name}")
    for name in ("411", "420", "422", "440", "444")
}


def encoded(*options):
    return cv2.imencode(".jpg", ROUGH, list(options))[1].tobytes()


def gray():
    return saved(Image.fromarray(ROUGH[..., 0]), "JPEG")


FILES = {
    **{name: encoded(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, kind) for name, kind in SAMPLINGS.items()},
    "gray": gray(),
    "progressive": encoded(cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
    "restarts": encoded(cv2.IMWRITE_JPEG_RST_INTERVAL, 2),
    "CMYK": saved(Image.fromarray(ROUGH).convert("CMYK"), "JPEG"),
    "EXIF": saved(Image.fromarray(ROUGH), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"),
}


@pytest.mark.parametrize("name", FILES)
def test_windows_are_those_of_the_whole_image(name, capfd):
    image, whole = StoredImage.read(FILES[name]), decode_image(FILES[name])
    assert image.size == SIZE
    for y, x, height, width in ((0, 0, *SIZE), (0, 5, 1, 9), (3, 0, 30, 203), (40, 100, 57, 3)):
        window = image.crop(y, x, height, width)
        expected = whole[y : y + height, x : x + width]
        np.testing.assert_array_equal(window.pixels(), expected)
        np.testing.assert_array_equal(window.mirror().pixels(), expected[:, ::-1])
    # libjpeg reports what it finds superfluous.
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_number_of_rows(name):
    header, whole = read_jpeg_header(FILES[name]), decode_image(FILES[name])
    divided = 0
    for rows in range(1, SIZE[0] + 1):
        part = upper_rows(FILES[name], header, rows)
        divided += part is not FILES[name]
        np.testing.assert_array_equal(decode_image(part)[:rows], whole[:rows])
    assert divided == SIZE[0] - 8 - 32 - 1


def test_what_has_more_than_one_scan_is_decoded_whole():
    for name in ("progressive", "restarts"):
        assert not read_jpeg_header(FILES[name]).divisible
    followed = FILES["420"] + b"\0"
    assert not read_jpeg_header(followed).divisible
    assert read_jpeg_header(FILES["420"]).divisible


@pytest.mark.parametrize("cut", [0, 2, 20, 200, 600])
def test_what_is_no_whole_header_is_none(cut):
    assert read_jpeg_header(FILES["420"][:cut]) is None
    assert StoredImage.read(saved(Image.fromarray(ROUGH), "PNG")) is None


def test_a_truncated_file_is_found_also_by_a_crop_above_the_end():
    image = StoredImage.read(FILES["420"][:-500]).crop(0, 0, 10, 10)
    with pytest.raises(ImageError, match="truncated"):
        image.pixels()


def test_crops_and_mirroring_in_any_order():
    image, whole = StoredImage.read(FILES["444"]), decode_image(FILES["444"])
    image, whole = image.mirror().crop(10, 20, 100, 150), whole[:, ::-1][10:110, 20:170]
    image, whole = image.crop(5, 6, 70, 80), whole[5:75, 6:86]
    image, whole = image.mirror().crop(1, 2, 60, 50), whole[:, ::-1][1:61, 2:52]
    np.testing.assert_array_equal(image.pixels(), whole)


@pytest.mark.parametrize(
    "augmentations",
    [
        (schema.RandomHorizontalFlip(probability=1), schema.SsdRandomCrop()),
        (schema.SsdRandomCropFixedAspectRatio(), schema.RandomHorizontalFlip()),
        (schema.RandomCropImage(), schema.RandomRotation90(probability=1), schema.SsdRandomCrop()),
        (schema.RandomAdjustContrast(), schema.RandomHorizontalFlip(probability=1)),
    ],
)
def test_augmentations_make_the_same_sample(augmentations):
    boxes = np.float32([[0.1, 0.2, 0.6, 0.9], [0.5, 0.1, 0.9, 0.3]])
    rest = boxes, np.int32([1, 2]), np.float32([1, 1])
    stored = StoredSample(np.empty((0, 0, 3), np.uint8), *rest, StoredImage.read(FILES["420"]))
    for seed in range(5):
        one, other = (
            apply_augmentations(augmentations, sample, np.random.default_rng(seed))
            for sample in (stored, Sample(decode_image(FILES["420"]), *rest))
        )
        assert one.size == other.size
        one = one.decoded()
        for name in ("image", "boxes", "class_ids", "weights"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("by", ["OpenCV", "Pillow"])
def test_reduced_decoding_averages_squares(factor, by, monkeypatch):
    # Without subsampling of colours, whose means are others.
    data = saved(Image.fromarray(picture(160, 240)), "JPEG", quality=100, subsampling=0)
    means = decode_image(data).reshape(160 // factor, factor, 240 // factor, factor, 3).mean((1, 3))
    if by == "Pillow":
        monkeypatch.setattr(cv2, "imdecode", lambda *_: None)
    # Rounding, and the highest frequencies, which the transform leaves out.
    difference = abs(decode_image(data, reduction=factor) - means)
    assert difference.mean() < 0.5
    assert difference.max() < 4


@pytest.mark.parametrize("by", ["OpenCV", "Pillow"])
def test_reduced_sizes_are_rounded_up(by, monkeypatch):
    if by == "Pillow":
        monkeypatch.setattr(cv2, "imdecode", lambda *_: None)
    for name in ("420", "progressive", "CMYK"):
        shapes = [decode_image(FILES[name], reduction=factor).shape for factor in (2, 4, 8)]
        assert shapes == [(75, 102, 3), (38, 51, 3), (19, 26, 3)]
