"""Objects below a URL."""

import uuid
from pathlib import Path

import pytest

from stillbox import object_storage
from stillbox.cli import ssd_resnet34
from stillbox.errors import UserError
from stillbox.experiment.resolve import resolve
from stillbox.object_storage import ObjectFolder, ObjectPath, local_path, read_object, url_of
from tests.buckets import FAULTS
from tests.helpers import refused


@pytest.fixture(params=["memory", "faulty", "file"])
def folder(request, tmp_path, monkeypatch):
    """An empty folder of objects."""
    monkeypatch.setattr(object_storage, "_PAUSES", (0.0, 0.0))
    FAULTS.clear()
    place = tmp_path if request.param == "file" else f"/{uuid.uuid4().hex}"
    return ObjectFolder(f"{request.param}://{place}")


@pytest.fixture
def faulty(monkeypatch):
    """A folder of objects; its calls fail as `FAULTS` says."""
    monkeypatch.setattr(object_storage, "_PAUSES", (0.0, 0.0))
    FAULTS.clear()
    yield ObjectFolder(f"faulty://{uuid.uuid4().hex}")
    assert not FAULTS


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("s3://bucket/run", "s3://bucket/run"),
        (Path("s3://bucket/run"), "s3://bucket/run"),
        (ObjectPath("gs://bucket/a"), "gs://bucket/a"),
        ("file:///mnt/run", "file:///mnt/run"),
        (Path("file:///mnt/run"), "file:///mnt/run"),
        ("runs/first", None),
        ("/runs/s3:/first", None),
        ("c:/runs", None),
    ],
)
def test_urls_are_known_after_path_has_shortened_them(path, url):
    assert url_of(path) == url


def test_paths_of_objects_keep_the_url():
    path = ObjectPath("s3://bucket/a/train.record")
    assert (path.name, str(path.with_name("b"))) == ("train.record", "s3://bucket/a/b")
    assert str(path.parent / "c") == "s3://bucket/a/c"


def test_objects_are_written_listed_read_and_removed(folder, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"0123456789")
    folder.write("a", b"first")
    folder.upload(source, "deep/er/b")
    sizes = {name: entry.size for name, entry in folder.list().items()}
    assert sizes | {"a": 5, "deep/er/b": 10} == sizes
    assert list(folder.list("deep")) == ["deep/er/b"]
    assert folder.read("deep/er/b", 2, 5) == b"234"
    before = folder.find("a")
    folder.write("a", b"other")
    after = folder.find("a")
    assert before and after and before.version != after.version
    folder.download("a", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"other"
    folder.remove("a")
    folder.remove("a")
    assert folder.find("a") is None
    with pytest.raises(FileNotFoundError):
        folder.read("a")


def test_an_object_is_created_once(folder):
    assert folder.create("marker", b"mine")
    assert not folder.create("marker", b"yours")
    assert folder.read("marker") == b"mine"


def test_a_created_object_whose_answer_was_lost_counts_as_created(faulty):
    faulty.write("marker", b"mine")
    FAULTS.append(("pipe_file", ConnectionResetError()))
    assert faulty.create("marker", b"mine")


@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError(), FileNotFoundError()])
def test_uploads_are_repeated(faulty, tmp_path, error):
    source = tmp_path / "source"
    source.write_bytes(b"content")
    FAULTS.extend([("put_file", error)] * 2)
    faulty.upload(source, "a")
    assert faulty.read("a") == b"content"


@pytest.mark.parametrize(
    ("error", "times", "words"),
    [
        (ConnectionResetError("the peer has gone"), 3, "the storage fails: the peer has gone"),
        (FileNotFoundError("no such bucket"), 3, "the bucket, or the upload itself, is gone"),
        (PermissionError("Forbidden"), 1, "access is denied: Forbidden"),
        (RuntimeError("Unable to locate credentials"), 1, "there are no credentials"),
    ],
)
def test_lasting_faults_are_one_sentence(faulty, error, times, words):
    FAULTS.extend([("pipe_file", error)] * times)
    with pytest.raises(UserError, match=words) as refusal:
        faulty.write("a", b"content")
    assert refusal.value.where == f"{faulty.url}/a"
    assert refusal.value.fix


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s4://bucket/run", "nothing is known of s4://"),
        ("s3://", "no address of objects"),
        ("simplecache::memory://run", "no address of objects"),
    ],
)
def test_other_addresses_are_refused(url, words):
    with pytest.raises(UserError, match=words):
        ObjectFolder(url)


def test_large_objects_are_not_read(folder):
    folder.write("a", b"12345")
    assert read_object(f"{folder.url}/a", most=5) == b"12345"
    with refused("", "5 bytes"):
        read_object(f"{folder.url}/a", most=4)
    with pytest.raises(UserError, match="no such object"):
        read_object(f"{folder.url}/b", most=4)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("file:///data/a.config", "/data/a.config"),
        (Path("file:///data/a.config"), "/data/a.config"),
        ("data/a.config", "data/a.config"),
        ("C:/a.config", "C:/a.config"),
    ],
)
def test_a_url_of_this_machine_is_a_path(given, path):
    assert local_path(given) == Path(path)


@pytest.mark.parametrize("url", ["gs://b/p.config", Path("s3://b/p.config"), "hdfs://h/p.config"])
def test_a_url_of_another_service_is_refused_with_its_two_slashes(url):
    with pytest.raises(UserError, match=r"\w+://\w+/p.config is not a local file or folder"):
        local_path(url, "--pipeline_config_path")
    with pytest.raises(UserError, match=r"\w+://\w+/p.config is not a local file or folder"):
        resolve(url)


def test_a_config_and_records_are_read_from_a_url_of_this_machine(tmp_path):
    (tmp_path / "e.yaml").write_text("recipe: demo_scenes\n")
    assert (
        resolve(f"file://{tmp_path}/e.yaml").experiment == resolve(tmp_path / "e.yaml").experiment
    )
    (tmp_path / "train-0.tfrecord").write_bytes(b"")
    (tmp_path / "label_map.pbtxt").write_text("item { id: 1 name: 'owl' }\n")
    settings = ssd_resnet34._records(Path(f"file://{tmp_path}"), "train")
    assert settings["data.train.label_map"] == f"{tmp_path}/label_map.pbtxt"
    with refused("--data_dir", "s3://b/x"):
        ssd_resnet34._records(Path("s3://b/x"), "train")
