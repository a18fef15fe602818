import pytest

from stillbox.errors import UserError
from stillbox.records.files import write_whole


def test_a_file_replaces_an_older_one_and_makes_its_folder(tmp_path):
    for content in (b"old", b"new"):
        path = write_whole(tmp_path / "deep" / "a.json", content)
    assert path.read_bytes() == b"new"
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_a_failure_leaves_nothing_behind(tmp_path):
    (tmp_path / "a.json").mkdir()
    with pytest.raises(UserError, match=r"a\.json: cannot be written: .*directory"):
        write_whole(tmp_path / "a.json", b"content")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
