import json

import pytest

from stillbox.errors import UserError
from stillbox.evaluation.history import History, read_history


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


def test_half_a_last_line_is_ignored_and_a_broken_one_before_it_named(tmp_path):
    half = read_history(write(tmp_path / "m", {"step": 1, "loss": 1.0}, '{"step": 2, "lo'))
    assert half.series("loss")[0].tolist() == [1]
    with pytest.raises(UserError, match="m:1: the line is no JSON object"):
        read_history(write(tmp_path / "m", "[]", {"step": 1, "loss": 1.0}))


def test_a_loss_that_is_not_finite_is_no_point_of_a_curve(tmp_path):
    path = write(tmp_path / "m", '{"step": 1, "loss": NaN}', {"step": 2, "loss": 1.0})
    assert read_history(path).series("loss")[0].tolist() == [2]


def test_no_file_is_an_empty_history(tmp_path):
    assert read_history(tmp_path / "none") == History()
    assert read_history(write(tmp_path / "empty")) == History()
