"""The lock of a model directory."""

import errno
import os
import subprocess
import sys

import pytest

from stillbox.checkpoints import lock
from stillbox.checkpoints.lock import DirectoryLock
from stillbox.errors import UserError


def test_a_second_writer_is_refused_with_the_id_of_the_first(tmp_path):
    held = DirectoryLock(tmp_path)
    with pytest.raises(UserError) as caught:
        DirectoryLock(tmp_path)
    assert caught.value.what == f"process {os.getpid()} is writing into this directory"
    assert caught.value.where == str(tmp_path)
    held.release()


def test_a_released_lock_can_be_taken(tmp_path):
    DirectoryLock(tmp_path).release()
    held = DirectoryLock(tmp_path)
    held.release()
    held.release()  # once more does no harm


def test_a_lock_is_released_by_garbage_collection(tmp_path):
    DirectoryLock(tmp_path)  # forgotten at once
    DirectoryLock(tmp_path).release()


def test_the_lock_of_a_killed_process_is_released(tmp_path):
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from stillbox.checkpoints.lock import DirectoryLock\n"
        f"held = DirectoryLock(Path({str(tmp_path)!r})); print('held', flush=True)\n"
        "signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match=f"process {process.pid} is writing"):
            DirectoryLock(tmp_path)
        process.kill()
    DirectoryLock(tmp_path).release()


def test_a_file_system_without_locks_is_used_without_a_lock(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    DirectoryLock(tmp_path).release()


def test_a_full_disk_is_locked_without_the_number_of_the_process(tmp_path, monkeypatch):
    def fail(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        held = DirectoryLock(tmp_path)
    with pytest.raises(UserError, match="another process is writing into this directory"):
        DirectoryLock(tmp_path)
    held.release()
