"""Model directories and records on a local S3, with requests that fail."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("moto", reason="a package of the extra proof")
pytest.importorskip("s3fs", reason="a package of the extra proof")

import s3fs

from stillbox import object_storage
from stillbox.api import train
from stillbox.checkpoints import remote_directory
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.remote_directory import model_place
from stillbox.cli.main import main
from stillbox.errors import UserError
from stillbox.experiment.yaml_config import to_yaml
from stillbox.object_storage import ObjectFolder
from stillbox.records.record_file import RecordFile
from stillbox.records.source import expand
from tests.buckets import local_s3
from tests.small import small_overrides

ROOT = Path(__file__).parents[1]
DATA = ("train", "evaluation")
pytestmark = [
    pytest.mark.proof,
    # Of packages: unclosed connections, and deprecated calls of botocore.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("shared_programs"),
]


@pytest.fixture
def s3(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remote_directory, "_SILENT_SECONDS", 12.0)
    s3fs.S3FileSystem.clear_instance_cache()
    with local_s3(monkeypatch) as server:
        yield server
    s3fs.S3FileSystem.clear_instance_cache()


def every(number, fault, *methods):
    """Spoils each request of these methods with a divisible number, from 1."""
    seen = 0

    def spoil(method, path):
        nonlocal seen
        if method not in methods:
            return None
        seen += 1
        return fault if seen % number == 0 else None

    return spoil


def assert_same_run(folder, url, step):
    ours = ModelDirectory.open(folder).checkpoint(step)
    with model_place(url, step="latest") as copy:
        theirs = ModelDirectory.open(copy.folder).checkpoint(step)
        different = [
            f"{section}: {name}: {np.abs(array - theirs.read(section)[name]).max()}"
            for section in ours.sections
            for name, array in ours.read(section).items()
            if not np.array_equal(array, theirs.read(section)[name])
        ]
    assert different == []


@pytest.mark.parametrize(
    "spoil",
    [
        every(7, "drop", "GET", "PUT", "DELETE", "HEAD"),
        every(6, "503", "GET", "PUT", "DELETE"),
        every(9, "slow", "GET", "PUT"),
    ],
    ids=["dropped connections", "503", "slow answers"],
)
def test_a_run_survives_requests_that_fail(s3, tmp_path, experiment, spoil):
    train(experiment(), tmp_path / "folder")
    s3.spoil = spoil
    train(experiment("train.steps=2"), "s3://bucket/run")
    train(experiment(), "s3://bucket/run")
    assert sum(fault is not None for _, _, fault in s3.seen) > 5
    s3.spoil = lambda method, path: None
    assert_same_run(tmp_path / "folder", "s3://bucket/run", 4)


def test_a_lost_upload_of_parts_is_repeated_whole(s3, tmp_path):
    content = os.urandom(120 * 2**20)
    source = tmp_path / "large"
    source.write_bytes(content)
    lost = []

    def spoil(method, path):
        if method == "PUT" and "partNumber=2" in path and not lost:
            lost.append(path)
            return "lose"
        return None

    s3.spoil = spoil
    folder = ObjectFolder("s3://bucket/run")
    folder.upload(source, "large")
    assert lost
    assert folder.read("large") == content


def test_records_are_read_by_ranges_through_faults(s3, scenes):
    folder = ObjectFolder("s3://bucket/data")
    paths = sorted(scenes.glob("train.record-*"))
    for path in paths:
        folder.upload(path, path.name)
    s3.spoil = every(4, "drop", "GET")
    for path, url in zip(paths, expand(["s3://bucket/data/train.record-*"]), strict=True):
        ours, theirs = RecordFile(path), RecordFile(url)
        assert [theirs.read(n) for n in range(len(theirs))] == [
            ours.read(n) for n in range(len(ours))
        ]


def test_records_and_label_map_of_a_bucket_train(s3, tmp_path, experiment, scenes):
    folder = ObjectFolder("s3://bucket/data")
    for path in scenes.iterdir():
        if path.is_file():
            folder.upload(path, path.name)
    where = "s3://bucket/data"
    there = [f"data.{split}.label_map={where}/label_map.pbtxt" for split in DATA]
    there += [f"data.train.paths={where}/train*", f"data.evaluation.paths={where}/val*"]
    train(experiment(), tmp_path / "local")
    train(experiment(*there), tmp_path / "remote")
    ours, theirs = (
        ModelDirectory.open(tmp_path / name).checkpoint(4) for name in ("local", "remote")
    )
    for name, array in ours.read("params").items():
        np.testing.assert_array_equal(array, theirs.read("params")[name])


@pytest.mark.parametrize(
    ("variables", "url", "words"),
    [
        ({}, "s3://nothing/run", "the bucket, or the upload itself, is gone"),
        (
            {
                "AWS_ACCESS_KEY_ID": "",
                "AWS_SECRET_ACCESS_KEY": "",
                "AWS_EC2_METADATA_DISABLED": "1",
            },
            "s3://bucket/run",
            "there are no credentials",
        ),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "s3://bucket/run", "the storage fails"),
    ],
    ids=["no bucket", "no credentials", "no service"],
)
def test_what_cannot_be_written_is_refused_before_anything_is_compiled(
    s3, monkeypatch, experiment, variables, url, words
):
    monkeypatch.setattr(object_storage, "_PAUSES", (0.0,))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(UserError, match=words) as refusal:
        train(experiment(), url)
    assert refusal.value.where.startswith(url.rpartition("/")[0])


def test_a_bucket_that_may_not_be_written_to_is_refused(s3, experiment):
    s3.spoil = lambda method, path: "deny" if method == "PUT" else None
    with pytest.raises(UserError, match="access is denied"):
        train(experiment(), "s3://bucket/run")


def test_the_commands_of_the_page_run(s3, tmp_path, monkeypatch, experiment, scenes):
    monkeypatch.chdir(tmp_path)
    folder = ObjectFolder("s3://bucket/data")
    for path in scenes.iterdir():
        if path.is_file():
            folder.upload(path, path.name)
    there = [f"data.{split}.label_map=s3://bucket/data/label_map.pbtxt" for split in DATA]
    there += [
        "data.train.paths=s3://bucket/data/train*",
        "data.evaluation.paths=s3://bucket/data/val*",
    ]
    (tmp_path / "owls.yaml").write_text(to_yaml(experiment(*there)))
    shutil.copy(next((scenes / "images" / "val").iterdir()), tmp_path / "photo.jpg")
    page = (ROOT / "docs" / "object_storage.md").read_text()
    commands = re.findall(r"^stillbox (.*)$", page, re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        assert main(shlex.split(command)) == 0, command
    for result in ("scores/report.html", "found", "onnx"):
        assert (tmp_path / result).exists(), result


@pytest.mark.slow
def test_a_killed_run_goes_on_in_the_bucket(s3, tmp_path, scenes):
    sets = [
        word
        for text in small_overrides(scenes, "train.steps=60", "train.checkpoint_every=5")
        for word in ("--set", text)
    ]
    command = [sys.executable, "-m", "stillbox.cli.main", "train", "demo_scenes", *sets]

    def start(place):
        with (tmp_path / "log").open("a") as log:
            return subprocess.Popen([*command, "--model-dir", place], stdout=log, stderr=log)

    assert start(str(tmp_path / "folder")).wait() == 0
    folder = ObjectFolder("s3://bucket/run")
    for kill in range(3):
        run = start("s3://bucket/run")
        before = {name for name in folder.list("checkpoints") if name.endswith(".json")}
        while run.poll() is None:
            now = {name for name in folder.list("checkpoints") if name.endswith(".json")}
            if len(now - before) > 1:
                break
            time.sleep(0.2)
        time.sleep(0.37 * kill)
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert start("s3://bucket/run").wait() == 0
    assert_same_run(tmp_path / "folder", "s3://bucket/run", 60)
