"""`stillbox doctor`."""

import jax

from stillbox.checking import doctor


def test_a_sound_machine_ends_with_0_and_says_what_there_is(stillbox, monkeypatch):
    monkeypatch.setattr(doctor, "bad_pairs", lambda versions: [])
    code, out, err = stillbox("doctor")
    assert (code, err) == (0, "")
    assert f"jax {jax.__version__}" in out
    assert "devices: 1 x cpu" in out
    assert "GiB on the host" in out
    assert out.endswith("=> nothing wrong was found\n")


def test_findings_end_with_1(stillbox, monkeypatch):
    monkeypatch.setattr(doctor, "bad_pairs", lambda versions: ["these two quarrel"])
    code, out, _ = stillbox("doctor")
    assert code == 1
    assert out.endswith("=> these two quarrel\n")


def test_a_cache_that_others_can_fill_is_a_finding(stillbox, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "bad_pairs", lambda versions: [])
    monkeypatch.setenv("STILLBOX_CACHE", str(tmp_path))
    (tmp_path / "xla").mkdir()
    (tmp_path / "xla").chmod(0o777)
    code, out, _ = stillbox("doctor")
    assert code == 1
    assert f"=> {tmp_path}/xla: others can write into the folder: remove it" in out
