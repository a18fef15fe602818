"""`stillbox check`: findings and exit codes."""

import json

import pytest


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")


def test_a_config_that_can_be_used_ends_with_0(stillbox):
    code, out, err = stillbox("check", "ssd_mobilenet_v1_300x300")
    assert (code, err) == (0, "")
    assert "warning data.train.paths: no records to train on" in out
    assert "0 errors, 2 warnings" in out


def test_strict_ends_with_1_where_there_are_warnings(stillbox, settings):
    assert stillbox("check", "ssd_mobilenet_v1_300x300", "--strict").code == 1
    # The small experiment trains four steps, which no average survives.
    code, out, _ = stillbox("check", "demo_scenes", "--strict", *settings())
    assert code == 1
    assert "batch norm with a decay of" in out
    quiet = settings("train.steps=850", "train.batch_size=32")
    code, out, _ = stillbox("check", "demo_scenes", "--strict", *quiet)
    assert (code, "0 errors, 0 warnings" in out) == (0, True), out


def test_what_is_refused_ends_with_2(stillbox):
    code, out, err = stillbox("check", "demo_scenes", "--set", "train.batch_size=0")
    assert (code, err) == (2, "")
    assert "error --set train.batch_size=0: train.batch_size is 0" in out
    code, out, _ = stillbox("check", "demo_scene")
    assert code == 2
    assert "did you mean 'demo_scenes'?" in out


def test_json_holds_all_findings(stillbox):
    code, out, _ = stillbox("check", "demo_scenes", "--json", "--set", "train.batch_size=0")
    content = json.loads(out)
    assert code == 2
    assert content["errors"] == 1
    assert content["findings"][0]["field"] == "train.batch_size"


def test_all_records_are_read_or_none(stillbox, settings, here):
    words = ["check", "demo_scenes", *settings(), "--notes"]
    assert "10 of 10 records looked at" in stillbox(*words).out
    assert "records looked at" not in stillbox(*words, "--no-records").out
    missing = ["--set", "data.train.paths=nowhere.record"]
    assert stillbox(*words, *missing).code == 0
    code, out, _ = stillbox(*words, *missing, "--records")
    assert code == 2
    assert "nowhere.record: there is no such file" in out
