"""Image files that are built to take long."""

import io
import struct
import subprocess
import sys
import time
import zlib
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from stillbox.inputs.decode import ImageError, decode_image
from stillbox.predicting.images import read_image
from stillbox.records import image_files
from stillbox.records.costly_images import costly
from stillbox.records.image_files import inspect_image, prepare_image
from stillbox.records.problems import BadRecordError
from tests.helpers import refused
from tests.records.builders import image_bytes
from tests.small import SHARED, needs_shared


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
    ("kind", "mode", "noted"),
    [
        ("JPEG", "L", ["grayscale image"]),
        ("PNG", "RGBA", ["image with transparency"]),
        ("PNG", "LA", ["grayscale image", "image with transparency"]),
        ("PNG", "I;16", ["image with 16 bits per channel"]),
        ("JPEG", "RGB", []),
    ],
)
def test_special_formats_are_noted(kind, mode, noted):
    notes = prepare_image(image_bytes(40, 60, kind, mode), (40, 60)).notes
    assert [note[0] for note in notes] == noted
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


@pytest.mark.parametrize(("kind", "claimed"), [("TIFF", (40, 60)), ("PNG", (60, 40))])
def test_the_upper_8_of_16_bits_are_re_encoded(kind, claimed):
    values = np.arange(2400, dtype=np.uint16).reshape(40, 60) * 27
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    Image.fromarray(values).save(buffer, kind, **({"exif": exif} if kind == "PNG" else {}))
    expected = values >> 8 if kind == "TIFF" else np.rot90(values >> 8, -1)
    computed = pixels(prepare_image(buffer.getvalue(), claimed).encoded)
    np.testing.assert_array_equal(computed, np.repeat(expected[..., None], 3, axis=2))


TIFF_START = b"MM\0*\0\0\0\x08"


@pytest.mark.parametrize(
    "exif",
    [
        b"rubbish of a camera",
        TIFF_START[:6],
        TIFF_START + bytes.fromhex("0001 0112000200000004") + b"abc\0\0\0\0\0",
    ],
    ids=["no TIFF", "cut off", "letters"],
)
def test_damaged_exif_data_leave_an_image_as_it_is(exif):
    data = with_chunks(chunk(b"eXIf", exif))
    assert prepare_image(data, (64, 64)).encoded is data
    assert inspect_image(data).orientation == 1
    # Pillow decodes larger files.
    large = with_chunks(chunk(b"eXIf", exif) + chunk(b"prIV", bytes(2**17)))
    assert (decode_image(large, apply_exif=True) == decode_image(data)).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_although_another_tag_is_damaged(orientation):
    numbers = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    image, exif = Image.fromarray(numbers), Image.Exif()
    exif[0x0112] = orientation
    image.info["exif"] = exif.tobytes()
    expected = np.asarray(ImageOps.exif_transpose(image))
    # An orientation, and a place of other tags that is none.
    tags = struct.pack(">HHHIHHHHII", 2, 0x0112, 3, 1, orientation, 0, 0x8769, 3, 1, 0x008F0000)
    file = io.BytesIO()
    image.save(file, "PNG", exif=TIFF_START + tags + bytes(4))
    prepared = prepare_image(file.getvalue(), (0, 0))
    np.testing.assert_array_equal(pixels(prepared.encoded), expected)
    assert orientation == 1 or inspect_image(prepared.encoded).orientation == 1


def test_bytes_behind_a_png_file_are_not_taken_for_its_chunks():
    assert costly(photograph(kind="PNG") + bytes(2**16)) == ""


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
    ((note, detail, outcome),) = image.notes
    assert (note, detail) == (f"EXIF orientation ({why})", "orientation 6")
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


def test_a_rotation_that_keeps_the_size_or_is_of_a_png_is_taken_upright():
    image = prepare_image(image_bytes(40, 60, orientation=3), (40, 60))
    assert image.notes[0][0] == "EXIF orientation (size does not decide)"
    assert pixels(image.encoded)[:, 0].mean() > 235  # half a turn: bright is left
    image = prepare_image(image_bytes(40, 60, "PNG", orientation=8), (60, 40))
    assert inspect_image(image.encoded).format == "PNG"
    assert (image.height, image.width) == (60, 40)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_truncated_images_are_refused(kind, share):
    data = photograph(40, 60, kind)
    with pytest.raises(BadRecordError, match="unreadable image"):
        prepare_image(data[: int(share * len(data))], (40, 60))


@pytest.mark.parametrize("data", [b"hello", b"GIF89a", b"\xff\xd8\xff\xd9", b"<svg/>"])
def test_other_files_are_refused_with_their_first_bytes(data):
    with pytest.raises(BadRecordError, match="unreadable image: no known format; it starts with"):
        inspect_image(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (b"\n<!DOCTYPE html><html></html>", "an HTML page"),
        (b"PK\3\4\0\0", "an archive: unpack it"),
    ],
)
def test_files_that_came_in_place_of_an_image_are_named(data, reason):
    with pytest.raises(BadRecordError, match=f"unreadable image: {reason}"):
        inspect_image(data)


def test_no_image_file_is_run_as_a_program(monkeypatch):
    for start in ("check_call", "Popen"):
        monkeypatch.setattr(subprocess, start, lambda *_, **__: pytest.fail("a program starts"))
    # Ghostscript runs such a file.
    data = photograph(kind="EPS")
    with pytest.raises(ImageError, match="JPEG, PNG, BMP"):
        decode_image(data)
    for whole in (False, True):
        with pytest.raises(BadRecordError, match="JPEG, PNG, BMP"):
            inspect_image(data, whole=whole)


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40)


def test_heic_names_the_package_that_it_needs(monkeypatch):
    registered = []
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    image_files._pillow_reads_heif.cache_clear()
    with pytest.raises(BadRecordError, match="HEIC"):
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
    with pytest.raises(BadRecordError, match="8000 x 8000"):
        prepare_image(b"P6 8000 8000 255\n", (0, 0))


END = b"\xff\xd9"
IMAGE_END = struct.pack(">I4sI", 0, b"IEND", zlib.crc32(b"IEND"))


def segment(marker, content):
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def scan(parts=(1,), first=1, last=63, bits=0):
    chosen = b"".join(bytes([part, 0]) for part in parts)
    return segment(0xDA, bytes([len(parts)]) + chosen + bytes([first, last, bits]))


def progressive(height, width, scans, between=b"", each=b""):
    """A gray file; each scan says of all blocks that they stay as they are."""
    blocks = -(-height // 8) * -(-width // 8)
    # One code a table: DC 0; a run of 2^14 + 14 bits of blocks.
    tables = segment(0xC4, b"\x00\x01" + b"\0" * 15 + b"\x00")
    tables += segment(0xC4, b"\x10\x01" + b"\0" * 15 + b"\xe0")
    frame = struct.pack(">BHHB", 8, height, width, 1) + b"\x01\x11\x00"
    head = b"\xff\xd8" + segment(0xDB, b"\0" + b"\x01" * 64) + segment(0xC2, frame) + tables
    start = scan(first=0, last=0) + b"\0" * (blocks // 8 + 1)
    run = each + scan() + b"\x7f\xfe" * (blocks // 32767 + 1)
    return head + between + start + run * scans + END


def photograph(height=64, width=64, kind="JPEG", **options):
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def chunk(kind, content=b""):
    crc = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)


def with_chunks(chunks, *, behind=False):
    data = photograph(kind="PNG")
    at = data.index(IMAGE_END) if behind else 33
    return data[:at] + chunks + data[at:]


THUMBNAIL = photograph(quality=50)
COSTLY = {
    "scans": progressive(1024, 1024, 1000),
    "scans behind a thumbnail": progressive(1024, 1024, 500, segment(0xE1, THUMBNAIL)),
    "scans behind restarts and rubbish": progressive(
        1024, 1024, 500, each=b"\xff\xd3\xff\x00\x12\xff\x01\xff\xff"
    ),
    "scans of a large image": progressive(5656, 5656, 20),
    "empty scans": progressive(1024, 1024, 0)[:-2] + scan() * 500 + END,
    "sequential scans": photograph(1024, 1024, quality=1)[:-2] + scan(last=63, first=0) * 500 + END,
    "texts": with_chunks(chunk(b"tEXt", b"a\0b") * 2000),
    "texts behind": with_chunks(chunk(b"tEXt", b"a\0b") * 2000, behind=True),
    "bitmap of runs": b"BM" + b"\0" * 28 + b"\x01\0\0\0" + b"\0" * 2**22,
    "unknown chunks": with_chunks(chunk(b"abCd") * 2000),
}


@pytest.mark.parametrize("name", COSTLY)
def test_every_decoder_refuses_it_at_once(name, tmp_path):
    data = COSTLY[name]
    began = time.process_time()
    with pytest.raises(ImageError, match=r"scans or more|chunks beside|by runs"):
        decode_image(data)
    for read in (inspect_image, lambda data: prepare_image(data, (0, 0))):
        with pytest.raises(BadRecordError, match="unreadable image"):
            read(data)
    with pytest.raises(BadRecordError):
        inspect_image(data, whole=False)
    (tmp_path / "a.jpg").write_bytes(data)
    with refused("a.jpg"):
        read_image(tmp_path / "a.jpg")
    assert time.process_time() - began < 0.2


USUAL = {
    "progressive": photograph(512, 512, quality=95, progressive=True),
    "progressive, a blank page": progressive(3000, 3000, 40),
    "small, with many scans": progressive(16, 16, 90),
    "with a thumbnail": b"\xff\xd8" + segment(0xE1, COSTLY["scans"][:60000]) + THUMBNAIL[2:],
    "restarts": photograph(256, 256, restart_marker_blocks=1),
    "rubbish behind the end": THUMBNAIL + COSTLY["scans"],
    "png of many pieces": with_chunks(chunk(b"tEXt", b"a\0b") * 30),
}


@pytest.mark.parametrize("name", USUAL)
def test_what_encoders_write_is_decoded(name):
    assert costly(USUAL[name]) == ""
    assert decode_image(USUAL[name]).shape[2] == 3


def test_a_gif_without_an_end_is_read_in_the_time_of_its_bytes():
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 5600, 5600, 0) + b"\x02" + b"\x01\x4c" * 100_000
    screen = struct.pack("<HHBBB", 5600, 5600, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    began = time.process_time()
    with pytest.raises(ImageError, match="truncated"):
        decode_image(b"GIF89a" + screen + frame + b"\0;")
    assert time.process_time() - began < 0.5


def test_a_gif_with_transparency_is_decoded_as_it_is_converted():
    data = photograph(kind="GIF", transparency=3)
    assert np.array_equal(decode_image(data), decode_image(prepare_image(data, (0, 0)).encoded))


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
def test_texts_of_a_png_file_are_not_unpacked(kind):
    text = {b"zTXt": b"a\0\0", b"iTXt": b"a\0\1\0\0\0", b"iCCP": b"a\0\0"}[kind]
    data = with_chunks(chunk(kind, text + zlib.compress(bytes(2**20), 9)) * 400)
    began = time.process_time()
    assert np.array_equal(decode_image(data), decode_image(photograph(kind="PNG")))
    assert time.process_time() - began < 0.2


def test_data_behind_the_rows_of_a_png_file_are_not_unpacked():
    row = b"\0" + b"\x07" * 64 * 3
    packer = zlib.compressobj()
    packed = packer.compress(row * 64) + packer.flush(zlib.Z_FULL_FLUSH)
    # Blocks behind a full flush can be repeated.
    packed += (packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)) * 500
    data = photograph(kind="PNG")[:33] + chunk(b"IDAT", packed) + IMAGE_END
    began = time.process_time()
    assert (decode_image(data) == 7).all()
    assert time.process_time() - began < 0.2


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "I;16"])
def test_large_png_files_have_the_pixels_that_opencv_finds(mode, monkeypatch):
    numbers = np.random.default_rng(0).integers(0, 256, (64, 64, 4), np.uint8)
    image = Image.fromarray(numbers, "RGBA")
    image = (
        Image.fromarray(numbers[..., :2].copy().view(np.uint16)[..., 0])
        if mode == "I;16"
        else image.convert(mode)
    )
    file = io.BytesIO()
    image.save(file, "PNG", **({"transparency": 3} if mode == "P" else {}))
    # And one of 16 bits in each of three channels.
    deep = np.random.default_rng(0).integers(0, 2**16, (64, 64, 3), np.uint16)
    files = (file.getvalue(), cv2.imencode(".png", deep)[1].tobytes())
    by_opencv = [decode_image(data) for data in files]
    monkeypatch.setattr("stillbox.inputs.decode._MANY_BYTES", 0)
    for data, expected in zip(files, by_opencv, strict=True):
        assert np.array_equal(decode_image(data), expected)


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_a_file_that_is_cut_off_anywhere_is_no_error(cut):
    for data in (progressive(16, 16, 3), with_chunks(chunk(b"tEXt", b"a"))):
        costly(data[:cut])


@pytest.mark.proof
@needs_shared
def test_real_photographs_are_all_read():
    files = list((SHARED / "data").rglob("*.jp*g"))
    assert len(files) > 600
    assert [file for file in files if costly(file.read_bytes())] == []
