"""Sends broken images to a server on this machine, and stops at the first fault.

python -m tests.serving.fuzzing http://127.0.0.1:8501 --name MODEL --minutes 10
"""

import argparse
import io
import random
import struct
import time
import zlib
from collections import Counter

import httpx
from PIL import Image

from tests.serving.conftest import b64

_EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
_MAGIC = (
    b"\xff\xd8\xff\xe0\x00\x10JFIF\x00",
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    b"GIF89a",
    b"RIFF\x40\x00\x00\x00WEBPVP8 ",
    b"RIFF\x40\x00\x00\x00WEBPVP8X",
    b"BM",
)


def sound_images():
    """Returns a file of each of many kinds."""
    noise = Image.effect_noise((48, 40), 90)
    color = Image.merge("RGB", [noise, noise.rotate(90), noise.rotate(180)])
    exif = Image.Exif()
    exif[0x0112] = 6
    written = [
        (color, "JPEG", {}),
        (color, "JPEG", {"progressive": True, "exif": exif}),
        (noise, "JPEG", {"quality": 5}),
        (color.convert("CMYK"), "JPEG", {}),
        (color, "PNG", {}),
        (color.convert("RGBA"), "PNG", {"dpi": (72, 72)}),
        (color.quantize(7), "PNG", {"transparency": 3}),
        (noise.convert("I;16"), "PNG", {}),
        (noise.convert("1"), "PNG", {}),
        (color.quantize(9), "GIF", {"save_all": True, "append_images": [color.rotate(9)]}),
        (color, "WEBP", {"quality": 40}),
        (color.convert("RGBA"), "WEBP", {"lossless": True}),
        (color, "WEBP", {"save_all": True, "append_images": [color.rotate(9)]}),
        (color, "BMP", {}),
        (color.quantize(5), "BMP", {}),
    ]
    files = []
    for image, kind, options in written:
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        files.append(buffer.getvalue())
    return files


def broken(rng, files):
    """Returns the bytes of a broken image."""
    if rng.random() < 0.05:
        return rng.choice(_MAGIC) + rng.randbytes(rng.choice((0, 3, 30, 3000)))
    content = bytearray(rng.choice(files))
    for _ in range(rng.choice((1, 1, 2, 5, 30))):
        rng.choice((_set, _set, _edge, _cut, _drop, _repeat, _insert, _splice))(rng, content, files)
    if rng.random() < 0.7 and content.startswith(b"\x89PNG"):
        _mend_png(content)
    return bytes(content[:200_000])


def _at(rng, content):
    # Headers are at the start. Errors there reach more code than errors in pixels.
    return rng.randrange(min(len(content), 64 if rng.random() < 0.5 else len(content)) or 1)


def _set(rng, content, files):
    if content:
        content[_at(rng, content)] = rng.randrange(256)


def _edge(rng, content, files):
    at, kind = _at(rng, content), rng.choice("BHI")
    value = rng.choice(_EDGES) & (256 ** struct.calcsize(kind) - 1)
    part = struct.pack(rng.choice("<>") + kind, value)
    content[at : at + len(part)] = part


def _cut(rng, content, files):
    del content[_at(rng, content) + 1 :]


def _drop(rng, content, files):
    at = _at(rng, content)
    del content[at : at + rng.choice((1, 2, 4, 16, 100))]


def _repeat(rng, content, files):
    at = _at(rng, content)
    content[at:at] = content[at : at + rng.choice((1, 4, 25, 300))] * rng.choice((1, 3, 50))


def _insert(rng, content, files):
    at = _at(rng, content)
    content[at:at] = rng.randbytes(rng.choice((1, 2, 8, 100)))


def _splice(rng, content, files):
    other = rng.choice(files)
    content[_at(rng, content) :] = other[rng.randrange(len(other)) :]


def _mend_png(content):
    """Corrects the checksums, so that the decoder reads the chunks."""
    at = 8
    while at + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, at)
        end = at + 8 + length
        if end + 4 > len(content):
            return
        struct.pack_into(">I", content, end, zlib.crc32(content[at + 4 : end]))
        at = end + 4


def _send(rng, client, name, content):
    way = rng.randrange(6)
    if way == 0:
        return client.post("/detect", files={"image": ("x", content)})
    if way == 1:
        sent = {"instances": [{"b64": b64(content)}]}
        return client.post(f"/v1/models/{name}:predict", json=sent)
    if way == 2:
        tensor = {"name": "input", "datatype": "BYTES", "shape": [1], "data": [b64(content)]}
        return client.post(f"/v2/models/{name}/infer", json={"inputs": [tensor]})
    return client.post(f"/detect?format={('json', 'png', 'jpeg')[way - 3]}", content=content)


def fuzz(address, name, seconds, seed=0):
    """Sends broken images for some seconds.

    Returns:
        How often each status was the answer.
    """
    rng, files = random.Random(seed), sound_images()
    statuses = Counter()
    end = time.monotonic() + seconds
    with httpx.Client(base_url=address, timeout=60) as client:
        while time.monotonic() < end:
            content = broken(rng, files)
            answer = _send(rng, client, name, content)
            statuses[answer.status_code] += 1
            assert answer.status_code in (200, 400, 413), (answer.status_code, content.hex())
    return statuses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--name", required=True)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(fuzz(given.address, given.name, 60 * given.minutes, given.seed))
