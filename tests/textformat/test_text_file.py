import os
import socket
from pathlib import Path

import pytest

from stillbox.checkpoints.weights_file import open_weights
from stillbox.errors import UserError
from stillbox.evaluation.annotations import read_annotations
from stillbox.experiment.params_dict.override_text import read_file
from stillbox.experiment.resolve import resolve
from stillbox.records.index import RecordFile
from stillbox.records.label_map import LabelMap
from stillbox.textformat.text_file import MAX_BYTES, read_text_file

READERS = {"config": resolve, "dictionary": lambda path: read_file(path, "--x"),
           "label map": LabelMap.from_file}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_text_file_is_refused_unread(reader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.yaml")
    # A hole: the file takes no room on the disk.
    Path("large.yaml").touch()
    os.truncate("large.yaml", 2**30)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket.yaml")
        for name, said in {
            "pipe.yaml": "is a pipe",
            "socket.yaml": "is a socket",
            "/dev/zero": "is a device",
            "/dev/tty": "is a device",
            "large.yaml": "has 1,073,741,824 bytes",
            ".": "is a folder",
        }.items():
            with pytest.raises(UserError, match=said) as caught:
                READERS[reader](name)
            assert caught.value.fix


def test_a_text_may_have_as_many_bytes_as_are_allowed(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_bytes(b"#" * MAX_BYTES)
    assert len(read_text_file(path, fix="")) == MAX_BYTES
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(UserError, match="524,289 bytes; such a file has 524,288 at most"):
        resolve(path)


@pytest.mark.parametrize(
    "content",
    [
        b"root:$6$Secret$Secret:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\n",
        b"-----BEGIN PRIVATE KEY-----\nSecretkey\n-----END PRIVATE KEY-----\n",
        b"AWS_SECRET_ACCESS_KEY=Secretkey\npassword: Secretpw\n",
        b"user: Secret\npassword: Secretpw\n",
        b'{"token": "Secrettoken"}',
        b"Secret\xff\x00",
    ],
)
def test_a_file_that_should_not_have_been_opened_is_not_quoted(content, tmp_path):
    for name in ("x.yaml", "x.config", "x.pbtxt", "x.json", "x.npz", "x.pth", "x.safetensors"):
        (tmp_path / name).write_bytes(content)
        for reader in (resolve, LabelMap.from_file, read_annotations, open_weights):
            with pytest.raises(UserError) as caught:
                reader(str(tmp_path / name))
            assert "Secret" not in str(caught.value)
    with pytest.raises(UserError) as caught:
        RecordFile(tmp_path / "x.json")
    assert "Secret" not in str(caught.value)
