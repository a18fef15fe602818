import io
import sys
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from PIL import Image

from stillbox.inputs.decode import ImageError, decode_image
from stillbox.records import image_files
from stillbox.records.image_files import inspect_image, prepare_image
from stillbox.records.problems import BadRecordError
from tests.records.builders import image_bytes


def pixels(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("JPEG", "RGB"), ("JPEG", "L"), ("PNG", "RGB"), ("PNG", "L"), ("PNG", "P"), ("PNG", "1"),
     ("PNG", "RGBA"), ("PNG", "LA"), ("PNG", "I;16")],
)  # fmt: skip
def test_jpeg_and_png_are_copied_byte_for_byte(kind, mode):
    data = image_bytes(40, 60, kind, mode)
    image = prepare_image(data, (40, 60))
    assert image.encoded is data
    assert (image.height, image.width) == (40, 60)
    # and every one of them is something that OpenCV makes three channels of
    assert cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR).shape == (40, 60, 3)


@pytest.mark.parametrize(
    ("kind", "mode", "what"),
    [
        ("JPEG", "L", ["grayscale image"]),
        ("PNG", "RGBA", ["image with transparency"]),
        ("PNG", "LA", ["grayscale image", "image with transparency"]),
        ("PNG", "I;16", ["image with 16 bits per channel"]),
        ("JPEG", "RGB", []),
    ],
)
def test_special_formats_are_noted(kind, mode, what):
    notes = prepare_image(image_bytes(40, 60, kind, mode), (40, 60)).notes
    assert [note[0] for note in notes] == what
    assert all(outcome.startswith("kept") for _, _, outcome in notes)


def test_cmyk_becomes_an_rgb_jpeg_that_looks_the_same():
    data = image_bytes(mode="CMYK")
    image = prepare_image(data, (40, 60))
    assert inspect_image(image.encoded).mode == "RGB"
    assert image.notes == (("CMYK image", "JPEG", "re-encoded as RGB JPEG"),)
    assert np.abs(pixels(image.encoded) - pixels(data)).max() < 12


@pytest.mark.parametrize(
    ("kind", "target"), [("BMP", "PNG"), ("GIF", "PNG"), ("TIFF", "PNG"), ("WEBP", "JPEG")]
)
def test_other_formats_are_re_encoded(kind, target):
    data = image_bytes(kind=kind)
    image = prepare_image(data, (40, 60))
    assert inspect_image(image.encoded).format == target
    assert image.notes[0][0] == f"{kind} image"
    assert np.abs(pixels(image.encoded) - pixels(data)).max() < (1 if target == "PNG" else 12)


# A stored 40 x 60 image with orientation 6 is shown as 60 x 40, turned clockwise by a quarter.
@pytest.mark.parametrize(
    ("claimed", "exif", "turned", "why"),
    [
        ((60, 40), "auto", True, "annotation has the rotated size"),
        ((40, 60), "auto", False, "annotation has the stored size"),
        ((0, 0), "auto", True, "annotation has neither size"),
        ((60, 40), "stored", False, "as asked for"),
        ((40, 60), "upright", True, "as asked for"),
    ],
)
def test_exif_rotation_follows_the_annotation(claimed, exif, turned, why):
    data = image_bytes(40, 60, orientation=6)
    image = prepare_image(data, claimed, exif)
    ((what, detail, outcome),) = image.notes
    assert (what, detail) == (f"EXIF orientation ({why})", "orientation 6")
    if not turned:
        assert image.encoded is data
        assert outcome == "kept as stored, tag ignored"
        return
    assert outcome == "turned upright and re-encoded"
    assert (image.height, image.width) == (60, 40)
    assert inspect_image(image.encoded).orientation == 1
    # Dark was left; a quarter clockwise, left is up.
    shown = pixels(image.encoded)
    assert shown[0].mean() < 20
    assert shown[-1].mean() > 235


def test_a_rotation_that_keeps_the_size_is_taken_upright():
    image = prepare_image(image_bytes(40, 60, orientation=3), (40, 60))
    assert image.notes[0][0] == "EXIF orientation (size does not decide)"
    assert pixels(image.encoded)[:, 0].mean() > 235  # half a turn: bright is left


def test_a_png_may_carry_a_rotation_too():
    image = prepare_image(image_bytes(40, 60, "PNG", orientation=8), (60, 40))
    assert inspect_image(image.encoded).format == "PNG"
    assert (image.height, image.width) == (60, 40)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_truncated_images_are_refused(kind, share):
    random = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(random).save(buffer, kind)
    data = buffer.getvalue()
    with pytest.raises(BadRecordError, match="unreadable image"):
        prepare_image(data[: int(share * len(data))], (40, 60))


@pytest.mark.parametrize("data", [b"", b"hello", b"GIF89a", b"\xff\xd8\xff\xd9", b"<svg/>"])
def test_other_files_are_refused_with_their_first_bytes(data):
    with pytest.raises(BadRecordError, match="unreadable image: no known format; it starts with"):
        inspect_image(data)


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40)


def test_heic_names_the_package_that_it_needs(monkeypatch):
    registered = []
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    image_files._pillow_reads_heif.cache_clear()
    with pytest.raises(BadRecordError, match="HEIC image, which needs the package pillow-heif"):
        inspect_image(HEIC)
    with pytest.raises(ImageError, match="pillow-heif"):
        decode_image(HEIC)
    opener = SimpleNamespace(register_heif_opener=lambda: registered.append(1))
    monkeypatch.setitem(sys.modules, "pillow_heif", opener)
    image_files._pillow_reads_heif.cache_clear()
    with pytest.raises(BadRecordError, match="no known format"):  # of Pillow, which was asked
        inspect_image(HEIC)
    assert registered == [1]
    image_files._pillow_reads_heif.cache_clear()


def test_inspecting_the_header_does_not_decode():
    data = image_bytes()[:-20]
    facts = inspect_image(data, whole=False)
    assert (facts.height, facts.width, facts.format, facts.mode) == (40, 60, "JPEG", "RGB")
    with pytest.raises(BadRecordError):
        inspect_image(data)


def test_a_small_file_of_a_huge_image_is_refused_by_its_header():
    with pytest.raises(BadRecordError, match="17 bytes claim to have 8000 x 8000"):
        prepare_image(b"P6 8000 8000 255\n", (0, 0))
