import errno
import os
import resource
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from stillbox.errors import UserError
from stillbox.records.files import not_written, write_whole
from stillbox.records.tfrecord import sharded_writer, tfrecord_writer


def test_a_file_replaces_an_older_one_and_makes_its_folder(tmp_path):
    for content in (b"old", b"new"):
        path = write_whole(tmp_path / "deep" / "a.json", content)
    assert path.read_bytes() == b"new"
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_a_failure_leaves_nothing_behind(tmp_path):
    (tmp_path / "a.json").mkdir()
    with pytest.raises(UserError, match=r"a\.json: cannot be written: .*directory"):
        write_whole(tmp_path / "a.json", b"content")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@contextmanager
def files_up_to(size):
    """Lets no file grow beyond so many bytes: a disk without room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_without_room_a_file_says_what_it_needs_and_leaves_nothing(tmp_path):
    with files_up_to(1000), pytest.raises(UserError) as refused:
        write_whole(tmp_path / "report.html", b"x" * 5_000_000)
    assert str(refused.value).startswith(f"{tmp_path}/report.html: cannot be written: File too la")
    # The limit is that of a file: what is free on the disk says nothing.
    assert refused.value.what.endswith("; it needs 5 MiB")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("free", "names_left", "says"),
    [
        (10, 5, "; it needs 5 MiB; 40 KiB are free in {}"),
        (1221, 5, "; it needs 5 MiB; 5 MiB are free in {}, of which a quota or the file system"),
        (
            10**6,
            5,
            "; it needs 5 MiB; 3.81 GiB are free in {}, of which a quota or the file system",
        ),
        (10**6, 0, "; it needs 5 MiB; {} can hold no more files (inodes), whatever their size"),
    ],
)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_lack_of_room_is_not_said_of_a_disk_that_has_room(
    tmp_path, monkeypatch, free, names_left, says, number
):
    disk = SimpleNamespace(f_bavail=free, f_frsize=4096, f_files=9, f_favail=names_left)
    monkeypatch.setattr(os, "statvfs", lambda folder: disk)
    error = OSError(number, os.strerror(number))
    said = not_written(tmp_path / "a", error, "it needs 5 MiB", 5_000_000).what
    assert said.startswith(f"cannot be written: {os.strerror(number)}{says.format(tmp_path)}")


def write_one(folder):
    return tfrecord_writer(folder / "train.record")


def write_two(folder):
    return sharded_writer(folder, "train", 2)


@pytest.mark.parametrize("writer", [write_one, write_two])
def test_without_room_records_are_named_and_leave_nothing(tmp_path, writer):
    with files_up_to(100_000), pytest.raises(UserError) as refused, writer(tmp_path) as write:
        for _ in range(10):
            write(b"x" * 30_000)
    assert refused.value.where.startswith(f"{tmp_path}/train")
    assert "cannot be written: File too large; the records so far took " in refused.value.what
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_another_file_is_not_blamed_on_the_records(tmp_path):
    with pytest.raises(FileNotFoundError) as failed, write_two(tmp_path):
        Path(tmp_path / "absent.jpg").read_bytes()
    assert failed.value.errno == errno.ENOENT
    assert failed.value.filename == str(tmp_path / "absent.jpg")
