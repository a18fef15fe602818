"""Files of model directories: durable writing, the lock, and checksums that name what changed."""

import errno
import json
import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest

from stillbox.checkpoints.checkpoint import Checkpoint
from stillbox.checkpoints.files import (
    Checksums,
    DirectoryLock,
    list_folder,
    read_manifest,
    remove_folder,
    replace_durably,
    write_manifest,
)
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.errors import UserError
from tests.checkpoints.detectors import age, reseal
from tests.helpers import refused


def test_replacing_leaves_nothing_but_the_file(tmp_path):
    replace_durably(tmp_path / "a.yaml", "old")
    replace_durably(tmp_path / "a.yaml", "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.yaml"]
    assert (tmp_path / "a.yaml").read_text() == "new"


def test_a_long_folder_is_listed_in_part_and_removed_whole(tmp_path):
    (tmp_path / "7" / "inner").mkdir(parents=True)
    (tmp_path / "7" / "inner" / "file").touch()
    remove_folder(tmp_path / "7")
    assert list(tmp_path.iterdir()) == []
    for number in range(5):
        (tmp_path / f"file{number}").touch()
    (tmp_path / "a folder").mkdir()
    assert list_folder(tmp_path, limit=2) == "a folder/, file0 and 4 more"


def test_a_second_writer_is_refused_with_the_id_of_the_first(tmp_path):
    held = DirectoryLock(tmp_path)
    with pytest.raises(UserError) as caught:
        DirectoryLock(tmp_path)
    assert caught.value.what == f"process {os.getpid()} is writing into this directory"
    assert caught.value.where == str(tmp_path)
    held.release()
    held.release()  # once more does no harm
    DirectoryLock(tmp_path)  # forgotten at once, and released by garbage collection
    DirectoryLock(tmp_path).release()


def test_the_lock_of_a_killed_process_is_released(tmp_path):
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from stillbox.checkpoints.files import DirectoryLock\n"
        f"held = DirectoryLock(Path({str(tmp_path)!r})); print('held', flush=True)\n"
        "signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        with refused(tmp_path, process.pid):
            DirectoryLock(tmp_path)
        process.kill()
    DirectoryLock(tmp_path).release()


def test_a_file_system_without_locks_is_used_without_a_lock(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
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


STEPS = (10, 20)


@pytest.fixture
def directory(tmp_path):
    """Checkpoints; their sections have the same names, shapes and sizes of file."""
    made = ModelDirectory.create(
        tmp_path / "run", experiment="name: cells\n", label_map="item {}\n", versions={"jax": "1"}
    )
    for step in STEPS:
        arrays = {"head.kernel": np.full(50, step, np.float32)}
        average = {"head.kernel": np.full(50, step + 1, np.float32)}
        made.save(step, {"params": arrays, "stats": {}, "ema": average}, {"step": step})
    made.close()
    return made.path


def load(directory, step=20):
    """Reads all that evaluation and resuming read."""
    checkpoint = ModelDirectory.open(directory).checkpoint(step)
    arrays = {name: checkpoint.read(name) for name in checkpoint.sections}
    return checkpoint.experiment, checkpoint.label_map, checkpoint.metadata, arrays


def edit(text):
    def change(folder, name):
        path = folder / name
        path.write_bytes(path.read_bytes().replace(*text))

    return change


def of_another_step(folder, name):
    shutil.copy(folder.with_name("10") / name, folder / name)


def of_another_section(folder, name):
    shutil.copy(folder / "ema.npz", folder / name)


def removed(folder, name):
    (folder / name).unlink()


def sparse(folder, name):
    os.truncate(folder / name, 2**34)


def outwards(folder, name):
    other = folder.parent.parent / "other"
    (folder / name).rename(other)
    (folder / name).symlink_to(other)


def pipe(folder, name):
    removed(folder, name)
    os.mkfifo(folder / name)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("params.npz", of_another_step),
        ("params.npz", of_another_section),
        ("params.npz", removed),
        ("params.npz", sparse),
        ("params.npz", pipe),
        ("ema.npz", outwards),
        ("ema.npz", of_another_step),
        ("stats.npz", of_another_section),
        ("experiment.yaml", edit((b"cells", b"celts"))),
        ("experiment.yaml", removed),
        ("label_map.pbtxt", edit((b"item", b"itm "))),
        ("label_map.pbtxt", outwards),
        ("versions.json", edit((b"1", b"2"))),
        ("versions.json", removed),
        ("versions.json", pipe),
        ("checkpoint.json", edit((b'"step": 20', b'"step": 21'))),
        ("checkpoint.json", edit((b'"params": 1', b'"params": 0'))),
        ("checkpoint.json", of_another_step),
        ("checkpoint.json", pipe),
    ],
)
def test_a_changed_file_of_a_checkpoint_is_named(directory, name, change):
    folder = directory / "checkpoints" / "20"
    load(directory)
    change(folder, name)
    with pytest.raises(UserError) as caught:
        load(directory)
    message = str(caught.value)
    assert str(folder) in message
    # All of `checkpoint.json` is sound, but of another step.
    assert name in message or (name, change) == ("checkpoint.json", of_another_step)
    assert caught.value.fix
    load(directory, 10)


def test_a_mark_of_the_best_without_a_checksum_is_read(directory):
    (directory / "best.json").write_text('{"step": 10, "metric": "AP", "value": 1}')
    assert ModelDirectory.open(directory).best() == (10, "AP", 1.0)


def test_no_flipped_bit_passes(directory):
    folder, random_places = directory / "checkpoints" / "20", random.Random(0)
    before = repr(load(directory))
    for path in sorted(folder.iterdir()):
        sound = path.read_bytes()
        for _ in range(12):
            damaged = bytearray(sound)
            damaged[random_places.randrange(len(sound))] ^= 1 << random_places.randrange(8)
            path.write_bytes(damaged)
            try:
                # A space of JSON may become another one, and the name of the checksum none.
                assert repr(load(directory)) == before
                assert path.name == "checkpoint.json"
            except UserError as error:
                assert str(folder) in str(error)
        path.write_bytes(sound)


def test_a_folder_under_another_name_than_its_step_is_no_checkpoint(directory):
    checkpoints = directory / "checkpoints"
    for name in ("007", "\u0663", "7" * 200):
        (checkpoints / name).mkdir()
    assert ModelDirectory.open(directory).steps() == STEPS
    (checkpoints / "20").rename(checkpoints / "30")
    with refused("run/checkpoints/30", 20):
        load(directory, 30)


def test_a_checkpoint_without_checksums_or_beside_an_edited_copy_is_read(directory):
    folder = directory / "checkpoints" / "20"
    before = repr(load(directory))
    (directory / "experiment.yaml").write_text("name: other\n")
    assert repr(load(directory)) == before
    age(folder)
    assert repr(load(directory)) == before
    assert {state for _, state in Checkpoint(folder).checksums.states()} == {"unknown"}


@pytest.mark.parametrize(
    "listed",
    [
        *([], "x", 1, {"": {}}, {"a": None}, {"a": {"bytes": 1}}, {"a": {"bytes": True}}),
        {"../20/params.npz": {"bytes": 1, "sha256": 64 * "0"}},
        {"/etc/passwd": {"bytes": 1, "sha256": 64 * "0"}},
        {"a\0": {"bytes": 1, "sha256": 64 * "0"}},
        {"a": {"bytes": 1, "sha256": 64 * "x"}},
        {"a": {"bytes": 1, "sha256": ["0"]}},
    ],
)
def test_a_list_that_names_no_files_of_the_folder_is_refused(directory, listed):
    folder = directory / "checkpoints" / "20"
    content = read_manifest(folder / "checkpoint.json", problem="", fix="") | {"checksums": listed}
    (folder / "checkpoint.json").write_bytes(write_manifest(content))
    with refused("run/checkpoints/20/checkpoint.json"):
        load(directory)


def test_states_tell_what_is_wrong_with_each_file(directory):
    folder = directory / "checkpoints" / "20"
    of_another_step(folder, "params.npz")
    removed(folder, "stats.npz")
    (folder / "deep").mkdir()
    (folder / "deep" / "notes.txt").touch()
    # The first to be looked at would be refused.
    content = json.loads((folder / "checkpoint.json").read_text())["checksums"]
    states = dict(Checksums.parse(content, folder, "checkpoint.json").states())
    assert states == {
        "deep/notes.txt": "unknown",
        "ema.npz": "ok",
        "experiment.yaml": "ok",
        "label_map.pbtxt": "ok",
        "params.npz": "changed",
        "stats.npz": "missing",
        "versions.json": "ok",
    }


@pytest.mark.parametrize("text", ["[]", "null", "[" * 200_000, "9" * 5000, '{"a": 1', "\xff", ""])
def test_a_manifest_that_is_no_json_object_is_refused(tmp_path, text):
    path = tmp_path / "checkpoint.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match="is damaged"):
        read_manifest(path, problem="", fix="")


def test_a_section_that_has_no_checksum_beside_others_is_refused(directory):
    folder = directory / "checkpoints" / "20"
    hidden = (folder / "ema.npz").rename(directory / "ema.npz")
    reseal(folder)
    hidden.rename(folder / "ema.npz")
    with refused("run/checkpoints/20/ema.npz"):
        load(directory)


def test_a_damaged_mark_of_the_best_is_refused_with_its_remedy(directory):
    mark = '{"step": %s, "metric": %s, "value": %s}'
    for text in (
        *("[]", "{}", "\xff", "[" * 200_000, mark[:-1] % (20, '"AP"', '1, "sha256": "0"}')),
        *(mark % (step, '"AP"', 1) for step in ('"20"', "true")),
        mark % (20, "[]", 1),
        *(mark % (20, '"AP"', value) for value in ('"high"', "1" + 400 * "0")),
    ):
        (directory / "best.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(UserError, match=r"best\.json.* (damaged|written)\n  fix: delete it"):
            ModelDirectory.open(directory).best()
