"""Addresses in a stored experiment, which may be a stranger's: no connection without the user."""

import uuid

import fsspec
import pytest

from stillbox import object_storage
from stillbox.checkpoints.remote_directory import model_place
from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.experiment.resolve import changed, resolve
from stillbox.experiment.schema import Experiment
from stillbox.experiment.yaml_config import from_stored
from stillbox.object_storage import ObjectFolder, name_buckets
from stillbox.records.label_map import LabelMap
from stillbox.records.source import expand

STORED = "data: {train: {paths: ['s3://strange/a-*']}, evaluation: {paths: [s3://strange/b]}}"
OFFLINE = "no connection in this test"
SENTENCE = "stored with the model names s3://strange, and you do not"


@pytest.fixture(autouse=True)
def connections(monkeypatch):
    """What fsspec is asked to open; it opens none of them."""
    opened = []

    def open_none(url, **options):
        opened.append(url)
        raise OSError(OFFLINE)

    monkeypatch.setattr(fsspec.core, "url_to_fs", open_none)
    monkeypatch.setattr(object_storage, "_named", set())
    monkeypatch.setattr(object_storage, "_stored", set())
    yield opened
    assert not [url for url in opened if "strange" in url]


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:5061/x.record", "https://strange/x-*.record", "ftp://strange/x"),
        *("github://o:r@sha/x.record", "sftp://strange/x", "ssh://strange/x", "smb://strange/x"),
        *("webhdfs://strange/x", "hdfs://strange/x", "hf://datasets/x/y", "http+x://127.0.0.1/"),
        *("git://strange/x", "zip://x/y", "reference://x/y", "dask://x/y", "dav://x/y"),
    ],
)
def test_addresses_of_other_services_are_refused_without_a_connection(url):
    for read in (ObjectFolder, LabelMap.from_file, lambda url: expand([url])):
        with pytest.raises(UserError, match="nothing is known of") as refusal:
            read(url)
        assert refusal.value.fix


@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl"])
def test_a_bucket_that_a_stored_experiment_alone_names_is_not_asked(scheme):
    from_stored(STORED.replace("s3:", f"{scheme}:"), "experiment.yaml")
    for url in (f"{scheme}://strange/a-*", f"{scheme}://strange/deep/b", f"{scheme}://strange/"):
        with pytest.raises(UserError, match=f"names {scheme}://strange, and you do not"):
            ObjectFolder(url)


def test_label_maps_and_records_of_it_are_not_read():
    text = "data: {evaluation: {label_map: 's3://strange/map.pbtxt'}}"
    experiment = from_stored(text, "experiment.yaml")
    with pytest.raises(UserError, match=SENTENCE):
        LabelMap.from_file(experiment.data.evaluation.label_map)
    with pytest.raises(UserError, match=SENTENCE):
        expand(["s3://strange/x-*"])


def test_an_override_of_something_else_names_no_bucket():
    experiment = from_stored(STORED, "experiment.yaml")
    changed(experiment, changes_of(["data.evaluation.paths=s3://strange-er/b", "train.steps=6"]))
    with pytest.raises(UserError, match=SENTENCE):
        ObjectFolder("s3://strange/b")


@pytest.mark.parametrize("way", ["override", "option", "config", "before", "directory"])
def test_a_bucket_that_the_user_names_is_asked(connections, tmp_path, way):
    mine = f"s3://own-{uuid.uuid4().hex}"
    stored = STORED.replace("s3://strange", mine)
    if way == "before":
        with pytest.raises(UserError, match=OFFLINE):
            ObjectFolder(f"{mine}/first")
    experiment = from_stored(stored, "experiment.yaml")
    if way == "override":
        changed(experiment, changes_of([f"data.evaluation.paths=[{mine}/b]"]))
    elif way == "option":
        name_buckets(f"--train_file_pattern={mine}/x")
    elif way == "config":
        (tmp_path / "mine.yaml").write_text(f"name: x\n{stored}\n")
        resolve(tmp_path / "mine.yaml")
    elif way == "directory":
        with pytest.raises(UserError, match=OFFLINE), model_place(f"{mine}/run"):
            pass
    connections.clear()
    with pytest.raises(UserError, match=OFFLINE):
        ObjectFolder(f"{mine}/b")
    assert connections == [f"{mine}/b"]


def test_a_copy_in_a_model_directory_names_no_bucket(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "experiment.yaml").write_text(f"name: x\n{STORED}\n")
    resolve(tmp_path / "experiment.yaml")
    with pytest.raises(UserError, match=SENTENCE):
        ObjectFolder("s3://strange/b")


def test_an_experiment_that_is_not_stored_names_its_buckets():
    assert isinstance(Experiment(), Experiment)
    with pytest.raises(UserError, match=OFFLINE):
        expand(["gs://mine/x-*"])
