"""The first hour of a new user."""

import pytest

from tools import walk


@pytest.mark.slow
def test_every_step_shows_what_a_new_user_needs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["walk", str(tmp_path / "walk")])
    code = walk.main()
    assert code == 0, capsys.readouterr().out
