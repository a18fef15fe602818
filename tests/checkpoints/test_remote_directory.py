"""Model directories in object storage."""

import json
import uuid

import numpy as np
import pytest

from stillbox import object_storage
from stillbox.api import evaluate, load
from stillbox.api import train as train_anywhere
from stillbox.checkpoints import remote_directory
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.remote_directory import ModelPlace, WriterLease, model_place
from stillbox.errors import UserError
from stillbox.object_storage import ObjectFolder
from stillbox.training.start import find_previous
from tests.buckets import FAULTS
from tests.helpers import refused

pytestmark = pytest.mark.usefixtures("shared_programs")
FILES = {"experiment": "name: x", "label_map": "", "versions": {}}
TAKEN_OVER = "another process has taken over"


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """Waits of parts of a second, and a cache folder of its own."""
    monkeypatch.setattr(object_storage, "_PAUSES", (0.0, 0.0))
    monkeypatch.setattr(remote_directory, "_RENEWED_SECONDS", 0.1)
    monkeypatch.setattr(remote_directory, "_SILENT_SECONDS", 0.5)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    FAULTS.clear()


@pytest.fixture
def bucket():
    return ObjectFolder(f"faulty://{uuid.uuid4().hex}")


def writing(place, keep=3):
    return ModelDirectory.create(place.folder, **FILES, keep=keep, remote=place.remote)


def save(directory, step):
    directory.save(step, {"params": {"x": np.full(3, step)}}, {"step": step})


def save_two(bucket):
    """Leaves the checkpoints 1 and 2 in a bucket."""
    with model_place(bucket.url, step="latest", writes=True) as place:
        directory = writing(place)
        save(directory, 1)
        save(directory, 2)
        directory.close()


def names(bucket):
    return sorted(name for name in bucket.list() if not name.startswith(".writer/"))


def checkpoint_files(*steps):
    files = ("checkpoint.json", "experiment.yaml", "label_map.pbtxt", "params.npz", "versions.json")
    return [f"checkpoints/{step}/{file}" for step in steps for file in files]


ROOT = ["experiment.yaml", "label_map.pbtxt", "versions.json"]


def test_the_objects_are_the_files_of_the_directory(bucket, tmp_path):
    with model_place(bucket.url, step="latest", writes=True) as place:
        directory = writing(place, keep=2)
        for step in (1, 2, 3):
            save(directory, step)
        directory.mark_best(2, "AP", 0.5)
        save(directory, 4)
        save(directory, 5)
        directory.close()
        (place.folder / "metrics.jsonl").write_text("{}\n")
        (place.folder / "link").symlink_to("/etc/passwd")
        assert str(place) == bucket.url
    assert names(bucket) == sorted(
        [*ROOT, *checkpoint_files(2, 4, 5), "best.json", "metrics.jsonl"]
    )
    assert not place.folder.exists()
    with model_place(bucket.url, step="latest") as copy:
        read_back = ModelDirectory.open(copy.folder)
        assert read_back.steps() == (2, 5)
        assert read_back.checkpoint().read("params")["x"].tolist() == [5, 5, 5]
        assert read_back.best().step == 2
    with model_place(bucket.url, step=4) as copy:
        assert ModelDirectory.open(copy.folder).steps() == (2, 4)


def test_checkpoints_of_former_runs_are_removed_too(bucket):
    for steps in ((1, 2), (3,), (4,)):
        with model_place(bucket.url, step="latest", writes=True) as place:
            directory = writing(place, keep=2)
            for step in steps:
                save(directory, step)
            directory.mark_best(1, "AP", 0.5)
            directory.close()
    assert names(bucket) == sorted([*ROOT, *checkpoint_files(1, 3, 4), "best.json"])


def test_a_damaged_newest_checkpoint_is_answered_with_an_older_one_of_the_bucket(bucket):
    save_two(bucket)
    bucket.write("checkpoints/2/label_map.pbtxt", b"damaged")
    with (
        refused("checkpoints/2/label_map.pbtxt", bucket.url),
        model_place(bucket.url, step="latest", writes=True) as place,
        place.reading(),
    ):
        find_previous(None, place, None)


def test_folders_are_places_as_they_are(tmp_path):
    with model_place(tmp_path, writes=True) as place:
        assert place == ModelPlace(tmp_path)
        with model_place(place) as same:
            assert same is place


def test_a_checkpoint_without_its_last_object_does_not_count(bucket):
    save_two(bucket)
    bucket.remove("checkpoints/2/checkpoint.json")
    with model_place(bucket.url, step="latest") as copy:
        assert ModelDirectory.open(copy.folder).steps() == (1,)
    assert "checkpoints/2/params.npz" in names(bucket)
    with model_place(bucket.url, step="latest", writes=True):
        pass
    assert names(bucket) == sorted([*ROOT, *checkpoint_files(1)])


@pytest.mark.parametrize("calls", [1, 3, 5, 7, 9])
def test_after_a_fault_at_any_moment_a_checkpoint_is_complete_or_absent(bucket, monkeypatch, calls):
    upload, done = ObjectFolder.upload, []

    def failing(self, source, name):
        done.append(name)
        if len(done) > calls:
            raise UserError("the storage fails", where=name, fix="look")
        upload(self, source, name)

    monkeypatch.setattr(ObjectFolder, "upload", failing)
    with (
        pytest.raises(UserError, match=r"the storage fails\n  fix: look; all results are in"),
        model_place(bucket.url, step="latest", writes=True) as place,
    ):
        directory = writing(place)
        save(directory, 1)
        save(directory, 2)
        directory.close()
        (place.folder / "metrics.jsonl").write_text("{}\n")
    monkeypatch.undo()
    with model_place(bucket.url, step="latest") as copy:
        if (copy.folder / "checkpoints").is_dir():
            for step in ModelDirectory(copy.folder).steps():
                ModelDirectory(copy.folder).checkpoint(step).read("params")


def test_results_that_cannot_be_uploaded_are_kept_here(bucket, tmp_path):
    with (
        refused("checkpoints/2/experiment.yaml") as refusal,
        model_place(bucket.url, step="latest", writes=True) as place,
    ):
        directory = writing(place)
        save(directory, 1)
        FAULTS.extend([("put_file", OSError("the disk is away"))] * 3)
        save(directory, 2)
    kept = next((tmp_path / "cache").glob("stillbox/model_directories/*"))
    assert f"all results are in {kept}" in refusal.value.fix
    assert ModelDirectory.open(kept).steps() == (1, 2)
    # A later run leaves it alone.
    with model_place(bucket.url, step="latest", writes=True) as place:
        assert ModelDirectory.open(place.folder).steps() == (1,)
    assert kept.is_dir()


def test_results_that_are_kept_here_after_another_error_are_named(bucket, tmp_path, capsys):
    with (
        pytest.raises(ValueError, match="it diverged"),
        model_place(bucket.url, step="latest", writes=True) as place,
    ):
        (place.folder / "metrics.jsonl").write_text("{}\n")
        FAULTS.extend([("put_file", OSError("the disk is away"))] * 3)
        raise ValueError("it diverged")
    kept = next((tmp_path / "cache").glob("stillbox/model_directories/*"))
    assert "the disk is away; see that" in (said := capsys.readouterr().err)
    assert f"all results are in {kept}" in said


def test_a_second_writer_is_refused_while_the_first_one_lives(bucket):
    said = []
    first = WriterLease(bucket, said.append)
    with pytest.raises(UserError, match=r"process \d+ on .* is writing into this directory"):
        WriterLease(bucket, said.append)
    first.release()
    second = WriterLease(bucket, said.append)
    second.check()
    assert len(said) == 1
    with pytest.raises(UserError, match=TAKEN_OVER):
        first.check()
    second.release()


def test_a_lease_that_cannot_be_read_is_not_taken_over(bucket):
    first = WriterLease(bucket)
    FAULTS.append(("cat_file", ConnectionResetError("the peer has gone")))
    with refused(".writer/000001"):
        WriterLease(bucket)
    first.check()
    first.release()


def test_a_writer_that_died_is_followed_after_its_silence(bucket):
    said = []
    dead = WriterLease(bucket, said.append)
    dead._released.set()
    dead._thread.join()
    second = WriterLease(bucket, said.append)
    assert [line.partition("for process")[0] for line in said] == [
        f"{bucket.url}: waiting up to 0 s "
    ]
    with pytest.raises(UserError, match=TAKEN_OVER):
        dead.check()
    second.release()


def test_a_writer_that_slept_finishes_no_checkpoint(bucket):
    with (
        pytest.raises(UserError, match=TAKEN_OVER),
        model_place(bucket.url, step="latest", writes=True) as place,
    ):
        directory = writing(place)
        save(directory, 1)
        bucket.write(".writer/000002", b'{"holder": "another"}')
        save(directory, 2)
    assert "checkpoints/2/checkpoint.json" not in names(bucket)


def test_a_writer_that_slept_while_it_uploaded_replaces_no_object(bucket, monkeypatch):
    upload = ObjectFolder.upload

    def slow(self, source, name):
        upload(self, source, name)
        bucket.write(".writer/000002", b'{"holder": "another"}')

    with (
        pytest.raises(UserError, match=TAKEN_OVER),
        model_place(bucket.url, step="latest", writes=True) as place,
    ):
        directory = writing(place)
        save(directory, 1)
        monkeypatch.setattr(ObjectFolder, "upload", slow)
        save(directory, 2)
    sent = [name for name in names(bucket) if name.startswith("checkpoints/2/")]
    assert sent == ["checkpoints/2/experiment.yaml"]


def test_a_finished_checkpoint_in_a_bucket_is_not_replaced(bucket):
    with refused("", "step 1"), model_place(bucket.url, step="latest", writes=True) as place:
        directory = writing(place)
        for name in ("checkpoint.json", "params.npz"):
            bucket.write(f"checkpoints/1/{name}", b"of another")
        save(directory, 1)
    assert bucket.read("checkpoints/1/params.npz") == b"of another"


def test_a_lease_that_is_no_json_holds_nobody_up(bucket):
    bucket.write(".writer/000007", b"[")
    bucket.write(".writer/notes", b"x")
    lease = WriterLease(bucket)
    assert lease._number == 8
    lease.release()


def test_leases_of_former_writers_are_removed_and_no_others_asked_for(bucket, monkeypatch):
    asked, remove = [], ObjectFolder.remove
    for number in (3, 10**9):
        bucket.write(f".writer/{number:06d}", b"{}")
    monkeypatch.setattr(
        ObjectFolder, "remove", lambda *arguments: asked.append(arguments[1]) or remove(*arguments)
    )
    lease = WriterLease(bucket)
    assert sorted(asked) == [".writer/000003", ".writer/1000000000"]
    lease.release()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UserError("the storage fails")])
def test_a_copy_that_was_begun_replaces_no_object(bucket, monkeypatch, error):
    history = b'{"step": 1}\n' * 100
    bucket.write("metrics.jsonl", history)

    def cut(self, name, target):
        target.write_bytes(history[:50])
        raise error

    monkeypatch.setattr(ObjectFolder, "download", cut)
    with pytest.raises(type(error)), model_place(bucket.url, step="latest", writes=True):
        pass
    assert bucket.read("metrics.jsonl") == history


def test_messages_name_the_url_and_not_its_copy(bucket):
    with refused(bucket.url):
        load(bucket.url)
    with model_place(bucket.url, step="latest", writes=True) as place:
        directory = writing(place)
        for step in (1, 2):
            save(directory, step)
        directory.close()
    with refused("", 3, 1, 2):
        load(bucket.url, step=3)
    bucket.write("checkpoints/2/params.npz", b"damaged")
    with refused("checkpoints/2/params.npz", bucket.url):
        load(bucket.url)
    with (
        model_place(bucket.url, step="latest", writes=True) as place,
        pytest.raises(UserError, match=f"^{bucket.url}/checkpoints/2/params.npz: the file is dam"),
        place.reading(),
    ):
        ModelDirectory.open(place.folder).checkpoint().read("params")


LEADS_OUT = "is not the name of a file"


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        *((name, 3, LEADS_OUT) for name in ("../out", "a/../../out", "/out", "a\0b")),
        ("metrics.jsonl", 3, "was removed while it was copied"),
        ("huge", 2**60, "are free"),
    ],
)
def test_a_directory_that_cannot_be_copied_is_refused(bucket, monkeypatch, name, size, message):
    entry = object_storage.Entry(size, "1")
    monkeypatch.setattr(ObjectFolder, "list", lambda self, below="": {name: entry})
    with pytest.raises(UserError, match=message), model_place(bucket.url):
        pass


def test_a_run_in_a_bucket_is_that_of_a_folder(bucket, tmp_path, experiment, scenes, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = [f"data.train.paths={scenes}/train.record-*"]
    train_anywhere(experiment(*settings), tmp_path / "folder")
    train_anywhere(experiment(*settings, "train.steps=2"), bucket.url)
    assert train_anywhere(experiment(*settings), bucket.url).step == 4
    ours = ModelDirectory.open(tmp_path / "folder").checkpoint(4)
    with model_place(bucket.url, step="latest") as copy:
        theirs = ModelDirectory.open(copy.folder).checkpoint(4)
        for section in ours.sections:
            for name, array in ours.read(section).items():
                np.testing.assert_array_equal(array, theirs.read(section)[name])
        rows = (copy.folder / "metrics.jsonl").read_text().splitlines()
        steps = [json.loads(row)["step"] for row in rows]
    assert steps == sorted(steps)
    assert load(bucket.url, step="latest").backend.source == f"{bucket.url}, step 4"
    scored = evaluate(bucket.url, step="latest")
    assert scored.source == f"{bucket.url}, step 4"
    assert scored.report.is_relative_to("evaluation")
    figures = json.loads(scored.report.with_name("metrics.json").read_text())
    assert figures["weights"] == scored.source
    assert f"<title>{bucket.url.rpartition('/')[2]}</title>" in scored.report.read_text()
    # The copy has another name each time, and the model is the same.
    assert evaluate(bucket.url, step="latest").source == scored.source
