import os
import socket
from pathlib import Path

import pytest

from stillbox.errors import UserError
from stillbox.untrusted import open_untrusted, read_untrusted


def refused(path, said, most=100, **options):
    for reader in (open_untrusted, read_untrusted):
        with pytest.raises(UserError, match=said) as caught:
            reader(path, most=most, where="--x", fix="give another", **options)
        assert (caught.value.where, caught.value.fix) == ("--x", "give another")


def test_what_is_no_regular_file_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for name, target in {"zero": "/dev/zero", "to_pipe": "pipe", "self": "self"}.items():
        Path(name).symlink_to(target)
    refused("pipe", "pipe is a pipe, not a regular file")
    refused("to_pipe", "to_pipe is a pipe")
    refused("/dev/zero", "is a device")
    refused("zero", "zero is a device")
    refused(tmp_path, "is a folder")
    refused("self", "cannot read self: Too many")
    refused("none", "cannot read none: No such file")
    refused("a\0b", "cannot read .*null")
    refused("a" * 300, "File name too long")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
        refused("socket", "is a socket")


def test_a_file_that_becomes_a_pipe_before_it_is_opened_does_not_block(tmp_path, monkeypatch):
    path, opened = tmp_path / "file", os.open
    path.write_bytes(b"a")

    def swap(name, flags):
        path.unlink()
        os.mkfifo(path)
        return opened(name, flags)

    with monkeypatch.context() as patch, pytest.raises(UserError, match="is a pipe"):
        patch.setattr(os, "open", swap)
        open_untrusted(path, most=None)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_a_file_that_says_nothing_of_its_size_is_refused():
    refused("/proc/self/status", "does not say how large it is")
    refused("/proc/self/mem", "cannot read|does not say")


def test_size_is_bounded_before_anything_is_read(tmp_path):
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 20 * 2**30)
    refused(path, "has 21,474,836,480 bytes; such a file has 100 at most")
    with open_untrusted(path, most=None) as file:
        assert file.read(3) == b"\0\0\0"
    path.write_bytes(b"a" * 100)
    assert read_untrusted(path, most=100) == b"a" * 100
    path.write_bytes(b"")
    assert read_untrusted(path, most=0) == b""


def test_a_file_that_grows_is_read_as_it_was_opened(tmp_path, monkeypatch):
    path, fstat = tmp_path / "log", os.fstat
    path.write_bytes(b"a" * 90)

    def grow(descriptor):
        status = fstat(descriptor)
        with path.open("ab") as file:
            file.write(b"b" * 1000)
        return status

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", grow)
        found = read_untrusted(path, most=100)
    assert found in (b"a" * 90, b"a" * 90 + b"b" * 10)


def test_links_may_not_lead_out_of_the_folder(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "inner"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "file").write_bytes(b"a")
    links = {"down": "file", "out": "../inner/file", "absolute": outside / "file", "dir": outside}
    for name, target in links.items():
        (inside / name).symlink_to(target)
    assert read_untrusted(inside / "down", most=9, inside=inside) == b"a"
    assert read_untrusted(inside / "out", most=9) == b"a"
    for name in ("out", "absolute", "dir/file", "../inner/file"):
        refused(inside / name, "leads out of", inside=inside)
    # The folder itself may be a link.
    (tmp_path / "alias").symlink_to(inside)
    assert read_untrusted(inside / "file", most=9, inside=tmp_path / "alias") == b"a"


def test_no_descriptor_is_left_open(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    (tmp_path / "large").write_bytes(b"a" * 101)
    refused(tmp_path / "large", "has 101 bytes")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
