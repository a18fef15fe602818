"""The files of a release, the first hour of a new user, and the programs that workers share."""

import hashlib
import io
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest

from stillbox import __version__
from tests.programs import Programs
from tools import distribution, walk


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("hatchling")
    pytest.importorskip("build")
    if not (distribution.ROOT / ".git").exists():
        pytest.skip("commits are built, and there is no repository")
    output = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["distribution", str(output)])
        assert distribution.main() is None
    return output


def test_two_builds_have_the_same_bytes(built):
    sums = dict(
        reversed(line.split("  ")) for line in (built / "SHA256SUMS").read_text().splitlines()
    )
    assert sums == {
        name: hashlib.sha256((built / name).read_bytes()).hexdigest()
        for name in (f"stillbox-{__version__}-py3-none-any.whl", f"stillbox-{__version__}.tar.gz")
    }


def test_data_files_are_in_the_wheel_and_tests_in_the_sdist(built):
    wheel = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    for kind in ("py.typed", ".pyi", ".yaml", ".css", ".pbtxt", ".html", "messages.txt"):
        assert any(name.endswith(kind) for name in wheel), kind
    assert not any(name.startswith(("tests", "tools", "docs")) for name in wheel)
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"constraints-beam.txt", "docs/README.md", "tests/test_extras.py", "LICENSE"} <= names


def test_a_file_that_the_wheel_lacks_is_named():
    empty = io.BytesIO()
    zipfile.ZipFile(empty, "w").close()
    assert "stillbox/py.typed" in distribution.missing_files(empty.getvalue())
    assert Path("stillbox/extras.py").as_posix() in distribution.missing_files(empty.getvalue())


@pytest.mark.slow
def test_every_step_shows_what_a_new_user_needs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["walk", str(tmp_path / "walk")])
    code = walk.main()
    assert code == 0, capsys.readouterr().out


def names(folder):
    return {entry.name for entry in folder.iterdir()}


def test_two_workers_and_the_next_session_share_what_is_complete(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    one, other = (Programs(tmp_path / name, kept) for name in ("one", "other"))
    whole = zlib.compress(b"a program")
    (one.own / "jit_step-1-cache").write_bytes(whole)
    (one.own / "jit_step-2-cache").write_bytes(whole[:-2])  # the process was killed
    one.exchange()
    other.exchange()
    assert names(other.own) == names(kept) == {"jit_step-1-cache"}
    assert (other.own / "jit_step-1-cache").read_bytes() == whole

    (other.own / "jit_step-2-cache").write_bytes(whole)
    other.exchange()
    assert names(kept) == {"jit_step-1-cache", "jit_step-2-cache"}
