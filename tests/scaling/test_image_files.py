"""Patterns over folders and addresses."""

import os
import pickle
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from stillbox.errors import UserError
from stillbox.scaling import image_files
from stillbox.scaling.image_files import ImageFile, list_images
from tests.helpers import refused

FILES = (
    "a.jpg",
    "b.JPG",
    "b2.png",
    "notes.txt",
    ".hidden.jpg",
    "deep/a.jpg",
    "deep/deeper/a.jpg",
    "deep/deeper/c.webp",
    ".cache/a.jpg",
    "odd[1].jpg",
    "plain",
    "run[1]/z.jpg",
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path


ALL = ["a.jpg", "b.JPG", "b2.png", "deep/a.jpg", "deep/deeper/a.jpg", "deep/deeper/c.webp",
       "odd[1].jpg", "run[1]/z.jpg"]  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "names", "others"),
    [
        ("photos", ALL, 2),
        ("photos/", ALL, 2),
        ("photos/**", ALL, 2),
        ("photos/*", ["a.jpg", "b.JPG", "b2.png", "odd[1].jpg"], 2),
        ("photos/*.jpg", ["a.jpg", "odd[1].jpg"], 0),
        (
            "photos/**/*.jpg",
            ["a.jpg", "deep/a.jpg", "deep/deeper/a.jpg", "odd[1].jpg", "run[1]/z.jpg"],
            0,
        ),
        ("photos/**/a.jpg", ["a.jpg", "deep/a.jpg", "deep/deeper/a.jpg"], 0),
        ("photos/*/a.jpg", ["deep/a.jpg"], 0),
        ("photos/.*", [".hidden.jpg"], 0),
        ("photos/b?.png", ["b2.png"], 0),
        ("photos/[!ao]*.*", ["b.JPG", "b2.png", "notes.txt"], 0),
        # A file that is called like a pattern is that file.
        ("photos/odd[1].jpg", ["odd[1].jpg"], 0),
        ("photos/plain", ["plain"], 0),
        ("photos/run[1]/*.jpg", ["run[1]/z.jpg"], 0),
        ("photos/deep/**", ["deep/a.jpg", "deep/deeper/a.jpg", "deep/deeper/c.webp"], 0),
    ],
)
def test_patterns_of_paths(folder, pattern, names, others):
    listing = list_images([pattern])
    assert [image.name for image in listing.images] == [f"photos/{name}" for name in names]
    assert listing.others == others
    assert [image.read().decode() for image in listing.images] == names


def test_absolute_paths_and_addresses(folder, monkeypatch):
    monkeypatch.chdir("/")
    for base in (f"{folder}/photos", f"file://{folder}/photos"):
        listing = list_images([f"{base}/**/a.jpg", f"{base}/a.jpg"])
        assert [image.name for image in listing.images] == [
            f"{base}/{name}" for name in ("a.jpg", "deep/a.jpg", "deep/deeper/a.jpg")
        ]
        # Workers get the files pickled.
        copies = pickle.loads(pickle.dumps(listing.images))
        assert [image.read() for image in copies] == [b"a.jpg", b"deep/a.jpg", b"deep/deeper/a.jpg"]


def test_a_file_system_of_fsspec():
    pytest.importorskip("pyarrow")
    import fsspec

    system = fsspec.filesystem("memory")
    system.pipe({"/bucket/x/1.jpg": b"one", "/bucket/2.jpg": b"two"})
    images = list_images(["memory://bucket/**"]).images
    assert [(image.name, image.read()) for image in images] == [
        ("memory://bucket/2.jpg", b"two"),
        ("memory://bucket/x/1.jpg", b"one"),
    ]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("photos/nothing.jpg", "photos/nothing.jpg: there is no such image file or folder"),
        ("nowhere/**", r"nowhere/\*\*: there is no such image file or folder"),
        ("photos/*.gif", r"photos/\*\.gif: matches no image"),
        ("photos/[z-a].jpg", r"photos/\[z-a\]\.jpg: this is no pattern: bad character range"),
        ("strange://photos/**", "there is no file system for this address"),
    ],
)
def test_patterns_without_a_match_are_refused(folder, pattern, message):
    with pytest.raises(UserError, match=message):
        list_images([pattern])


def test_a_name_that_is_no_text_is_refused(folder):
    (folder / "photos" / os.fsdecode(b"\xff.jpg")).touch()
    with pytest.raises(UserError, match="not UTF-8 text"):
        list_images(["photos"])


def file_of(read):
    stream = SimpleNamespace(read=read)
    system = SimpleNamespace(open_input_stream=lambda path: nullcontext(stream))
    return ImageFile("huge.jpg", system, "huge.jpg")


def test_a_file_is_read_to_its_end_and_not_beyond_the_size_of_an_image(monkeypatch):
    parts = iter([b"on", b"e", b""])
    assert file_of(lambda size: next(parts)).read() == b"one"
    monkeypatch.setattr(image_files, "MAX_IMAGE_BYTES", 2**20)
    with refused("huge.jpg", "1,048,576"):
        file_of(bytes).read()
