"""Known bad pairs of versions, and reports on broken machines."""

from types import SimpleNamespace

import pytest

from stillbox.checking import doctor
from stillbox.checking.doctor import Examination, bad_pairs, examine

SOUND = {"jax": "0.10.0", "jaxlib": "0.10.0"}


@pytest.mark.parametrize(
    ("versions", "problem"),
    [
        # The rows of the export matrix.
        ({}, None),
        ({"tensorflow": "2.21.0"}, None),
        ({"jax": "0.10.1", "jaxlib": "0.10.1", "tensorflow": "2.21.0"}, "cannot load"),
        ({"jax": "0.10.2", "jaxlib": "0.10.2", "tensorflow-cpu": "2.21.0"}, "TensorFlow 2.21.0"),
        ({"jax": "0.12.0.1", "jaxlib": "0.12.0.1", "tensorflow": "2.21.0"}, "cannot load"),
        ({"jax": "0.10.2", "jaxlib": "0.10.2", "tensorflow": "2.22.0rc0"}, None),
        ({"jax": "0.10.2", "jaxlib": "0.10.2"}, None),
        ({"jaxlib": "0.10.2"}, "jax 0.10.0 and jaxlib 0.10.2 are not of one release"),
    ],
)
def test_known_bad_pairs_are_named_and_good_ones_are_not(versions, problem):
    problems = bad_pairs(SOUND | versions)
    if problem is None:
        assert problems == []
    else:
        assert len(problems) == 1
        assert problem in problems[0]


def test_the_report_ends_with_the_verdict():
    assert Examination(["jax 1"], []).text() == "jax 1\n\n=> nothing wrong was found"
    assert Examination(["jax 1"], ["a", "b"]).text() == "jax 1\n\n=> a\n=> b"


def test_the_report_has_versions_devices_and_memory(monkeypatch):
    text = examine().text()
    for part in ("stillbox ", "Python 3.", "jaxlib", "devices: 1 x cpu", "processors: ", "GiB"):
        assert part in text


def test_devices_that_do_not_start_are_a_problem(monkeypatch):
    def fail():
        raise RuntimeError("Unable to initialize backend 'cuda':\n  no driver")

    monkeypatch.setattr(doctor.jax, "devices", fail)
    examination = examine()
    assert "devices: none" in examination.lines
    assert any("backend 'cuda': no driver" in line for line in examination.problems)


def test_the_memory_of_accelerators_is_reported(monkeypatch):
    card = SimpleNamespace(
        platform="gpu", device_kind="H200", memory_stats=lambda: {"bytes_limit": 100 * 2**30}
    )
    monkeypatch.setattr(doctor.jax, "devices", lambda: [card, card])
    assert "devices: 2 x gpu (H200), 100.00 GiB each" in examine().lines


def test_an_unsupported_python_is_a_problem(monkeypatch):
    monkeypatch.setattr(doctor.sys, "version_info", (3, 14, 0))
    assert any("use 3.11, 3.12 or 3.13" in line for line in examine().problems)
