"""The history of a run: its lines, and damaged ones."""

import json
import os
import random
from pathlib import Path

import pytest

from stillbox.errors import UserError
from stillbox.evaluation.history import History, read_history
from tools.fuzz.mutations import mutate_bytes


def write(path, *lines):
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return path


def test_both_kinds_of_line_become_series(tmp_path):
    history = read_history(
        write(
            tmp_path / "metrics.jsonl",
            {"step": 10, "loss": 2.0, "learning_rate": 0.1},
            {"step": 20, "loss": 1.0},
            {"step": 20, "evaluation": {"AP": 0.2, "APs": None}},
        )
    )
    steps, losses = history.series("loss")
    assert (steps.tolist(), losses.tolist()) == ([10, 20], [2.0, 1.0])
    assert history.series("learning_rate")[0].tolist() == [10]
    assert history.evaluation_series("AP")[1].tolist() == [0.2]
    assert len(history.evaluation_series("APs")[0]) == 0
    assert len(history.series("nothing")[0]) == 0


def test_later_lines_of_a_resumed_run_replace_earlier_ones(tmp_path):
    lines = [{"step": step, "loss": float(step)} for step in (10, 20, 30)]
    again = {"step": 20, "loss": 99.0}
    history = read_history(write(tmp_path / "m", *lines, again))
    assert history.series("loss")[1].tolist() == [10.0, 99.0, 30.0]


def test_an_incomplete_last_line_is_left_out_without_a_note(tmp_path):
    path = write(tmp_path / "m", {"step": 1, "loss": 1.0}, '{"step": 2, "lo')
    half = read_history(path, pytest.fail)
    assert half.series("loss")[0].tolist() == [1]


@pytest.mark.parametrize(
    "damaged",
    [
        b"[]",
        b"3",
        b"{}",
        b'{"step": 2, "lo',
        b'{"step": 2, "loss": 1\xff}',
        b"\0" * 500,
        b"[" * 100_000,
        b'{"step": 2, "loss": "' + b"x" * 2**21 + b'"}',
        b'{"loss": 1}',
        b'{"step": "2", "loss": 1}',
        b'{"step": true, "loss": 1}',
        b'{"step": -1, "loss": 1}',
        b'{"step": 9223372036854775808, "loss": 1}',
        b'{"step": 2, "loss": 1' + 400 * b"0" + b"}",
        b'{"step": ' + 5000 * b"1" + b"}",
        b'{"step": 2, "loss": "low"}',
        b'{"step": 2, "loss": null}',
        b'{"step": 2, "evaluation": 3}',
        b'{"step": 2, "evaluation": {"AP": "high"}}',
        b'{"step": 2, "evaluation": {"AP": [1]}}',
    ],
    ids=range(20),
)
def test_a_damaged_line_is_left_out_and_named(tmp_path, damaged):
    path, said = tmp_path / "m", []
    sound = [b'{"step": 1, "loss": 1.0}', b'{"step": 3, "loss": 3.0}']
    path.write_bytes(b"\n".join([sound[0], damaged, sound[1], b""]))
    history = read_history(path, said.append)
    assert history.series("loss")[1].tolist() == [1, 3]
    assert history.evaluations == ()
    assert said == [f"warning: {path}:2: damaged, and left out of the history"]
    path.write_bytes(b"\n".join([sound[0], damaged, damaged, damaged, sound[1]]))
    assert read_history(path, said.append).series("loss")[1].tolist() == [1, 3]
    assert f"{path}:2 and 2 more of its lines" in said[1]


def test_damaged_lines_of_any_kind_are_skipped(tmp_path):
    lines = [{"step": step, "loss": 0.5} for step in range(3)]
    lines += [{"step": 2, "evaluation": {"AP": 0.25, "APs": None}}]
    sound, rng = write(tmp_path / "m", *lines, "").read_bytes(), random.Random(3)
    for _ in range(300):
        (tmp_path / "m").write_bytes(mutate_bytes(sound, rng))
        history = read_history(tmp_path / "m", lambda line: None)
        history.series("loss"), history.evaluation_series("AP")


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_only_regular_files_are_read(tmp_path, make):
    make(tmp_path / "m")
    with pytest.raises(UserError, match="not a regular file"):
        read_history(tmp_path / "m")


def test_a_history_of_gigabytes_is_not_read(tmp_path):
    (tmp_path / "m").touch()
    os.truncate(tmp_path / "m", 2**34)
    with pytest.raises(UserError, match="17,179,869,184 bytes"):
        read_history(tmp_path / "m")


def test_a_loss_that_is_not_finite_is_no_point_of_a_curve(tmp_path):
    path = write(tmp_path / "m", '{"step": 1, "loss": NaN}', {"step": 2, "loss": 1.0})
    assert read_history(path).series("loss")[0].tolist() == [2]


def test_no_file_is_an_empty_history(tmp_path):
    assert read_history(tmp_path / "none") == History()
    assert read_history(write(tmp_path / "empty")) == History()
