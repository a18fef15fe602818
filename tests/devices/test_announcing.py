"""Work that takes long is reported while it lasts."""

import threading

from stillbox.devices.announcing import announcing


def test_long_work_is_reported_with_its_progress_and_seconds():
    said, three = [], threading.Event()
    done = iter(range(100))

    def say(line):
        said.append(line)
        if len(said) == 3:
            three.set()

    with announcing(lambda: f"scoring, {next(done)} of 99 images", 0.01, say):
        assert three.wait(300)
    assert said[0] == "scoring, 0 of 99 images: 0 s"
    assert said[2] == "scoring, 2 of 99 images: 0 s"


def test_short_work_is_not_reported(capsys):
    with announcing(lambda: "scoring", patience=300):
        pass
    assert capsys.readouterr().err == ""
