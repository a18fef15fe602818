"""The list of the files that stillbox has written into a folder."""

import json
from pathlib import Path

import pytest

from stillbox.records.file_list import LIST, claim_files, refuse_others
from stillbox.records.files import try_lock, write_whole
from tests.helpers import refusal


def test_a_listed_name_is_replaced_and_no_other(tmp_path):
    claim_files(tmp_path / "new", ["a", "b"])
    assert json.loads((tmp_path / "new" / LIST).read_text()) == {"written": ["a", "b"]}
    for name in ("a", "c"):
        (tmp_path / "new" / name).write_text("text")
    claim_files(tmp_path / "new", ["a", "d"])
    assert refusal(claim_files, tmp_path / "new", ["e", "c"]).where == str(tmp_path / "new/c")
    # Nothing of a refused command is listed.
    assert json.loads((tmp_path / "new" / LIST).read_text()) == {"written": ["a", "b", "d"]}
    claim_files(tmp_path / "new", ["c"], known=["c"])
    refuse_others(tmp_path / "new", ["a", "b", "c", "d", "f"])


@pytest.mark.parametrize(
    ("page", "url"),
    [
        ("s3://", "s3://"),
        ("s3://bucket", "s3://bucket"),
        ("gs:/b/x", "gs://b/x"),
        ("file:", "file:///"),
    ],
)
def test_an_address_makes_no_file_of_this_machine(tmp_path, monkeypatch, page, url):
    monkeypatch.chdir(tmp_path)
    path = Path(page)
    assert refusal(refuse_others, path.parent, [path.name]).where == url
    assert refusal(write_whole, path, b"page").where == url
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "folder", "link", "broken link"])
def test_whatever_has_the_name_is_somebodys(tmp_path, kind):
    there = tmp_path / "there"
    if kind == "folder":
        there.mkdir()
        refuse_others(tmp_path, ["there"])
        (there / "file").write_text("text")
    elif kind == "file":
        there.write_text("text")
    else:
        (tmp_path / "target").write_text("text" * (kind == "link"))
        there.symlink_to(tmp_path / ("target" if kind == "link" else "absent"))
    assert refusal(refuse_others, tmp_path, ["there"]).where == str(there)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"written": "a"}', "\0\0\0\0"])
def test_a_damaged_list_is_named(tmp_path, content):
    (tmp_path / LIST).write_text(content)
    assert refusal(claim_files, tmp_path, ["a"]).where.startswith(str(tmp_path / LIST))


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path):
    (tmp_path / "csv").mkdir()
    left = [tmp_path / ".a.12.34.partial", tmp_path / "csv/.b.1.2.partial"]
    others = [tmp_path / name for name in (".a.partial", "a.1.2.partial", ".a.1.x.partial")]
    held = tmp_path / ".c.5.6.partial"
    for path in [*left, *others, held]:
        path.write_text("text")
    with held.open() as file:
        assert try_lock(file.fileno()) is not False
        claim_files(tmp_path, ["a", "csv"], known=["csv"])
    assert set(tmp_path.rglob("*.partial")) == {*others, held}
