"""A storage that is away for a while: training goes on, and nothing is lost."""

import time
import uuid

import numpy as np
import pytest

from stillbox import object_storage
from stillbox.checkpoints import remote_directory
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.remote_directory import model_place
from stillbox.errors import UserError
from stillbox.object_storage import ObjectFolder
from tests.buckets import FAULTS, FaultyFileSystem
from tests.helpers import refused

FILES = {"experiment": "name: x", "label_map": "", "versions": {}}
METHODS = ("find", "info", "cat_file", "pipe_file", "put_file", "rm_file", "get_file")


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(object_storage, "_PAUSES", (0.01, 0.01))
    monkeypatch.setattr(remote_directory, "_RENEWED_SECONDS", 0.05)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    FAULTS.clear()


@pytest.fixture
def bucket():
    return ObjectFolder(f"faulty://{uuid.uuid4().hex}")


@pytest.fixture
def away(monkeypatch):
    """The function that takes the storage away for some seconds from now."""
    until = [0.0]

    def spoil(method):
        call = getattr(FaultyFileSystem, method)

        def spoilt(self, *arguments, **options):
            if time.monotonic() < until[0]:
                raise ConnectionError("the storage is away")
            return call(self, *arguments, **options)

        monkeypatch.setattr(FaultyFileSystem, method, spoilt)

    for method in METHODS:
        spoil(method)

    def go(seconds):
        until[0] = time.monotonic() + seconds

    return go


def writing(place, keep=3):
    return ModelDirectory.create(place.folder, **FILES, keep=keep, remote=place.remote)


def save(directory, step):
    arrays = {"params": {"x": np.full(3, step)}}
    directory.save(step, arrays, {"step": step}, wait=False)


def test_training_goes_on_while_the_storage_is_away_and_all_results_arrive(bucket, away):
    with model_place(bucket.url, step="latest", writes=True) as place:
        directory = writing(place)
        save(directory, 1)
        directory.close()
        directory = writing(place)
        away(1.0)
        began = time.monotonic()
        for step in (2, 3, 4, 5):
            save(directory, step)
            directory.mark_best(step, "AP", step / 10)
        directory.wait()
        assert time.monotonic() - began < 0.9
        assert directory.steps()[-4:] == (2, 3, 4, 5)
        directory.close()
    with model_place(bucket.url, step="latest") as copy:
        read_back = ModelDirectory.open(copy.folder)
        assert read_back.best().step == 5
        assert read_back.checkpoint().read("params")["x"].tolist() == [5, 5, 5]
        assert copy.steps() == (3, 4, 5)


def test_a_checkpoint_is_removed_only_after_newer_ones_have_arrived(bucket, away, monkeypatch):
    monkeypatch.setenv("STILLBOX_STORAGE_SECONDS", "0")
    with pytest.raises(UserError, match="the storage is away"):  # noqa: SIM117
        with model_place(bucket.url, step="latest", writes=True) as place:
            directory = writing(place, keep=1)
            save(directory, 1)
            directory.wait()
            directory._end_uploads(wait=True)
            away(1.0)
            for step in (2, 3):
                save(directory, step)
            directory.close()
    time.sleep(1.0)
    with model_place(bucket.url, step="latest") as copy:
        assert copy.steps() == (1,)


def test_a_storage_that_stays_away_ends_the_run_with_the_folder_of_its_results(
    bucket, away, monkeypatch, tmp_path
):
    monkeypatch.setenv("STILLBOX_STORAGE_SECONDS", "1")
    began = time.monotonic()
    with pytest.raises(UserError, match="all results are in") as refusal:  # noqa: SIM117
        with model_place(bucket.url, step="latest", writes=True) as place:
            directory = writing(place)
            save(directory, 1)
            directory.wait()
            directory._end_uploads(wait=True)
            away(60.0)
            for step in range(2, 200):
                save(directory, step)
                time.sleep(0.05)
    assert 0.5 < time.monotonic() - began < 8.0
    (kept,) = (tmp_path / "cache").glob("stillbox/model_directories/*")
    assert str(kept) in refusal.value.fix
    assert max(ModelDirectory.open(kept).steps()) > 2


def test_an_error_of_the_run_does_not_wait_for_a_storage_that_is_away(bucket, away):
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with model_place(bucket.url, step="latest", writes=True) as place:
            (place.folder / "metrics.jsonl").write_text("{}\n")
            away(60.0)
            raise KeyboardInterrupt
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("method", METHODS)
def test_every_call_is_repeated(bucket, away, tmp_path, method):
    bucket.write("a", b"one")
    (source := tmp_path / "source").write_bytes(b"two")
    bucket.patience = 20.0
    away(0.2)
    calls = {
        "find": lambda: list(bucket.list()),
        "info": lambda: bucket.find("a"),
        "cat_file": lambda: bucket.read("a"),
        "pipe_file": lambda: bucket.write("b", b""),
        "put_file": lambda: bucket.upload(source, "b"),
        "rm_file": lambda: bucket.remove("a"),
        "get_file": lambda: bucket.download("a", tmp_path / "target"),
    }
    calls[method]()


@pytest.mark.parametrize(
    "error", [PermissionError("no"), RuntimeError("Unable to locate credentials")]
)
def test_what_no_repetition_changes_is_said_at_once(bucket, error):
    bucket.patience = 60.0
    FAULTS.append(("cat_file", error))
    began = time.monotonic()
    with pytest.raises(UserError):
        bucket.read("a")
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize("text", ["ten", "-1", "1e3", "9" * 5000, ""])
def test_the_setting_is_a_number_of_seconds(bucket, monkeypatch, text):
    monkeypatch.setenv("STILLBOX_STORAGE_SECONDS", text)
    with refused("STILLBOX_STORAGE_SECONDS"), model_place(bucket.url, writes=True):
        pass
