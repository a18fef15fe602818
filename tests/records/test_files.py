"""A folder appears whole or not at all, has one writer, and leaves nothing after a kill."""

import errno
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from stillbox.checkpoints.files import replacing
from stillbox.errors import UserError
from stillbox.predicting.files import write_list
from stillbox.records.files import make_folder, new_folder, not_written, partial_folder, write_whole
from stillbox.records.tfrecord import sharded_writer, tfrecord_writer
from tests.helpers import refused


def test_a_file_replaces_an_older_one_and_a_failure_leaves_nothing_behind(tmp_path):
    for content in (b"old", b"new"):
        path = write_whole(tmp_path / "deep" / "a.json", content)
    assert path.read_bytes() == b"new"
    assert names(path.parent) == ["a.json"]
    with pytest.raises(UserError, match=r"deep: cannot be written: .*directory"):
        write_whole(tmp_path / "deep", b"content")
    assert names(tmp_path) == ["deep"]


@pytest.mark.parametrize("write", ["file", "records", "predictions", "checkpoint"])
def test_a_pipe_is_no_older_file_and_stays(tmp_path, write):
    """A device stays as well: a page written to /dev/null took its place."""
    path = tmp_path / "out"
    os.mkfifo(path)
    (tmp_path / "lines").write_text("{}\n")
    # Callers name the files of checkpoints.
    kind = OSError if write == "checkpoint" else UserError
    with pytest.raises(kind, match="it is a device, a pipe or a socket"):
        if write == "file":
            write_whole(path, b"content")
        elif write == "predictions":
            write_list(tmp_path / "lines", path)
        elif write == "checkpoint":
            with replacing(path) as unfinished:
                unfinished.write_bytes(b"content")
        else:
            with tfrecord_writer(path) as append:
                append(b"content")
    assert path.is_fifo()
    assert names(tmp_path) == ["lines", "out"]


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
    # The limit belongs to a file: what is free on the disk says nothing.
    assert refused.value.what.endswith("; it needs 5 MiB")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("free", "names_left", "says"),
    [
        (10, 5, "; it needs 5 MiB; 40 KiB are free in {}"),
        (1221, 5, "; it needs 5 MiB; 5 MiB are free in {}, of which a quota or the file system"),
        (10**6, 5, "; it needs 5 MiB; 3.81 GiB are free in {}, of which a quota or the file sys"),
        (10**6, 0, "; it needs 5 MiB; {} can hold no more files (inodes), whatever their size"),
    ],
)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_lack_of_room_is_not_reported_for_a_disk_with_room(
    tmp_path, monkeypatch, free, names_left, says, number
):
    disk = SimpleNamespace(
        f_bavail=free, f_bfree=free, f_blocks=10**7, f_frsize=4096, f_files=9, f_favail=names_left
    )
    monkeypatch.setattr(os, "statvfs", lambda folder: disk)
    error = OSError(number, os.strerror(number))
    said = not_written(tmp_path / "a", error, "it needs 5 MiB", 5_000_000).what
    assert said.startswith(f"cannot be written: {os.strerror(number)}{says.format(tmp_path)}")


@pytest.mark.parametrize("shards", [1, 2])
def test_without_room_records_are_named_and_leave_nothing(tmp_path, shards):
    writer = (
        tfrecord_writer(tmp_path / "train.record")
        if shards == 1
        else sharded_writer(tmp_path, "train", shards)
    )
    with files_up_to(100_000), pytest.raises(UserError) as refused, writer as write:
        for _ in range(10):
            write(b"x" * 30_000)
    assert refused.value.where.startswith(f"{tmp_path}/train")
    assert "cannot be written: File too large; the records so far took " in refused.value.what
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("records", [True, False])
def test_an_error_of_another_file_is_not_blamed_on_records_or_folder(tmp_path, records):
    writer = sharded_writer(tmp_path, "train", 2) if records else new_folder(tmp_path / "out")
    with pytest.raises(FileNotFoundError) as failed, writer:
        Path(tmp_path / "absent.jpg").read_bytes()
    assert failed.value.errno == errno.ENOENT
    assert failed.value.filename == str(tmp_path / "absent.jpg")


WRITE = """
import signal, sys
from pathlib import Path
from stillbox.records import files
from stillbox.records.files import new_folder
target, moment = Path(sys.argv[1]), sys.argv[2]
if moment == "between":
    files.exchange_names = lambda one, other: False  # as on other systems than Linux
    rename = Path.rename
    def halfway(self, other):
        if self.name.endswith("-partial"):
            print("there", flush=True); signal.pause()
        return rename(self, other)
    Path.rename = halfway
with new_folder(target) as folder:
    (folder / "half").write_text("half")
    if moment == "inside":
        print("there", flush=True); signal.pause()
"""


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


@pytest.fixture
def writer(tmp_path):
    """Starts a process that writes `out` up to a moment; it is killed at the end."""
    started = []

    def start(moment):
        command = [sys.executable, "-c", WRITE, str(tmp_path / "out"), moment]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == b"there\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def write(target, content="new"):
    with new_folder(target) as folder:
        (folder / content).write_text(content)


def test_a_folder_replaces_an_older_one_which_stays_after_an_error(tmp_path):
    out = tmp_path / "deep" / "out"
    for content in ("old", "new"):
        write(out, content)
    with pytest.raises(RuntimeError), new_folder(out) as folder:
        (folder / "newer").touch()
        raise RuntimeError
    assert names(tmp_path / "deep") == ["out"]
    assert names(out) == ["new"]


def test_a_refusal_under_the_lock_leaves_nothing(tmp_path):
    def refuse():
        raise UserError("there is an export already")

    with pytest.raises(UserError, match="already"), new_folder(tmp_path / "out", refuse):
        pass
    assert names(tmp_path) == []


def test_there_is_one_writer_and_a_killed_one_leaves_nothing(tmp_path, writer):
    process = writer("inside")
    with pytest.raises(UserError) as caught:
        write(tmp_path / "out")
    assert str(caught.value).startswith(f"{tmp_path}/out: another process is writing it")
    # A live process owns the leftover of another target.
    write(tmp_path / "other")
    assert names(tmp_path) == [".out.stillbox-partial", "other"]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert names(tmp_path / ".out.stillbox-partial") == ["half"]
    write(tmp_path / "out")
    assert names(tmp_path) == ["other", "out"]
    assert names(tmp_path / "out") == ["new"]


def test_another_target_clears_the_leftover_of_a_killed_writer(tmp_path, writer):
    process = writer("inside")
    process.kill()
    process.wait()
    write(tmp_path / "other")
    assert names(tmp_path) == ["other"]


def test_a_writer_that_is_killed_between_two_renames_loses_nothing(tmp_path, writer):
    write(tmp_path / "out", "old")
    process = writer("between")
    assert names(tmp_path) == [".out.stillbox-old", ".out.stillbox-partial"]
    write(tmp_path / "other")  # touches neither while the process lives
    assert names(tmp_path) == [".out.stillbox-old", ".out.stillbox-partial", "other"]
    process.kill()
    process.wait()
    write(tmp_path / "other")
    assert names(tmp_path) == ["other", "out"]
    assert names(tmp_path / "out") == ["old"]


def test_files_of_others_stay_in_a_folder_that_is_replaced(tmp_path):
    out = tmp_path / "out"
    write(out, "own")
    (out / "sub").mkdir()
    (out / "sub" / "diary").write_text("mine")
    (out / "link").symlink_to("diary")
    with new_folder(out, written=lambda folder: {"own"}) as folder:
        (folder / "new").touch()
    assert names(out) == ["link", "new", "sub"]
    assert (out / "sub" / "diary").read_text() == "mine"
    assert names(tmp_path) == ["out"]
    for name in ("sub/diary", "sub"):
        with (
            pytest.raises(UserError, match="diary would be replaced, and this program did not"),
            new_folder(out, written=lambda folder: {"new"}) as folder,
        ):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("theirs")
        assert (out / "sub" / "diary").read_text() == "mine"
        assert names(out) == ["link", "new", "sub"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems exchange no names")
def test_a_folder_has_its_name_at_every_moment(tmp_path, monkeypatch):
    write(tmp_path / "out", "old")
    monkeypatch.delattr(Path, "rename")
    write(tmp_path / "out", "new")
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["new"]


def test_a_link_is_not_written_through(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "diary").touch()
    (tmp_path / ".out.stillbox-partial").symlink_to(precious)
    with pytest.raises(OSError, match=r"out\.stillbox-partial"):
        write(tmp_path / "out")
    write(tmp_path / "other")
    assert names(precious) == ["diary"]


def test_the_current_folder_is_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for target in (".", "..", str(tmp_path)):
        with pytest.raises(UserError, match="current folder or one above it"):
            write(Path(target))
    write(Path("out"))
    assert names(tmp_path / "here") == ["out"]


class OfTensorFlowError(Exception):
    """An error of a writer that has no number."""


FULL = "No space left on device"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, FULL),
        OSError(errno.ENOSPC, FULL, "/tmp/some/file"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OfTensorFlowError(f"variables/variables.data-00000-of-00001; {FULL}"),
    ],
)
def test_a_full_disk_names_the_folder(tmp_path, error):
    with pytest.raises(UserError) as caught, new_folder(tmp_path / "out") as folder:
        (folder / "model").write_bytes(bytes(5000))
        raise error
    assert caught.value.where == str(tmp_path / "out")
    assert "cannot be written: " in caught.value.what
    assert "; 5 KiB were written; " in caught.value.what
    assert names(tmp_path) == []


def test_messages_name_the_target_and_not_the_hidden_folder(tmp_path):
    with pytest.raises(UserError) as caught, new_folder(tmp_path / "out") as folder:
        raise UserError(f"{folder} is full", where=f"{folder}/train", fix="make room")
    assert str(caught.value) == f"{tmp_path}/out/train: {tmp_path}/out is full\n  fix: make room"


def test_a_file_system_without_locks_is_used_without_a_lock(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with partial_folder(tmp_path / "out") as folder:
        (folder / "half").touch()
        write(tmp_path / "other")
        # Nothing tells a leftover from the folder of a live process: neither is touched.
        with pytest.raises(UserError, match="stillbox-partial: this disk has no locks"):
            write(tmp_path / "out")
        assert names(folder) == ["half"]
    assert names(tmp_path) == ["other"]


def test_a_url_is_no_folder_for_results():
    folder = Path("s3://bucket/scores")
    with refused("s3://bucket/scores"):
        make_folder(folder, below=folder)
