"""Command lines run in this process."""

from typing import NamedTuple

import pytest

from stillbox.cli.main import main
from tests.small import small_overrides


class Answer(NamedTuple):
    """What a command line left."""

    code: int
    out: str
    err: str

    def ended(self, code=0):
        """Returns standard output and error of a command that ends with a code."""
        assert self.code == code, self.err
        return self.out, self.err


@pytest.fixture
def stillbox(capsys):
    """The function from the words of a command line to its answer."""

    def run(*words):
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # argparse leaves like this
            code = end.code
        return Answer(code, *capsys.readouterr())

    return run


@pytest.fixture
def refused(stillbox):
    """The function from the words of a command line that is refused to its one message."""

    def run(*words):
        code, out, err = stillbox(*words)
        assert code == 2, err
        assert out == ""
        assert "Traceback" not in err
        messages = [line for line in err.splitlines() if line.startswith("stillbox")]
        assert len(messages) == 1, err
        return err[err.index(messages[0]) :]

    return run


@pytest.fixture
def settings(scenes):
    """The function from overrides to the `--set`s of the small experiment."""

    def make(*overrides, **options):
        everything = small_overrides(scenes, *overrides, **options)
        return [word for override in everything for word in ("--set", override)]

    return make


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def much_memory(monkeypatch):
    """Gives the check of memory a terabyte, whatever this machine has."""
    monkeypatch.setattr("stillbox.checking.memory_verdict.total_memory", lambda: 2**40)
