"""Lines at the ends of epochs: where, about which, and how often."""

import pytest

from stillbox.training import speed
from stillbox.training.epochs import Epochs
from stillbox.training.speed import Speedometer, Stopwatch


@pytest.fixture
def sentences(monkeypatch):
    """The function from a run to its sentences by step. Each step takes ten seconds."""

    def run(*, records, batch_size, apart, first=0, steps=12):
        now = [0.0]
        monkeypatch.setattr(speed.time, "monotonic", lambda: now[0])
        epochs = Epochs(
            records=records,
            batch_size=batch_size,
            first=first,
            apart=apart,
            speedometer=Speedometer(Stopwatch(), batch_size, lambda: (0.0,)),
        )
        said = {}
        for step in range(first + 1, first + steps + 1):
            now[0] += 10
            if sentence := epochs.ended(step, step - first):
                said[step] = sentence
        return said

    return run


def test_an_epoch_ends_with_the_step_that_has_its_last_image(sentences):
    # 10 images in batches of 4: the 10th, 20th, 30th and 40th are in steps 3, 5, 8 and 10.
    assert sentences(records=10, batch_size=4, apart=1) == {
        3: "epoch 1 finished: 0:00:30, 0.4 images/s",
        5: "epoch 2 finished: 0:00:20, 0.4 images/s",
        8: "epoch 3 finished: 0:00:30, 0.4 images/s",
        10: "epoch 4 finished: 0:00:20, 0.4 images/s",
    }


def test_an_epoch_of_one_step_is_not_told_every_step(sentences):
    assert sentences(records=4, batch_size=4, apart=5) == {
        5: "epochs 1 to 5 finished: 0:00:50, 0.4 images/s",
        10: "epochs 6 to 10 finished: 0:00:50, 0.4 images/s",
    }


def test_a_sentence_waits_for_an_end(sentences):
    # Epochs end with steps 3, 6, 9 and 12; five steps after the start is in the middle of one.
    assert list(sentences(records=12, batch_size=4, apart=5)) == [6, 12]


def test_batches_larger_than_the_data_end_several_epochs_at_once(sentences):
    said = sentences(records=3, batch_size=7, apart=1, steps=2)
    # 7 images are two passes and one image, 14 are four and two.
    assert said == {
        1: "epochs 1 to 2 finished: 0:00:10, 0.7 images/s",
        2: "epochs 3 to 4 finished: 0:00:10, 0.7 images/s",
    }


def test_a_resumed_run_says_that_it_saw_a_part_only(sentences):
    said = sentences(records=20, batch_size=4, apart=1, first=7, steps=8)
    assert said == {
        10: "epoch 2 finished (from step 7 on): 0:00:30, 0.4 images/s",
        15: "epoch 3 finished: 0:00:50, 0.4 images/s",
    }
    # Resumed where one ended, it sees all of the next.
    whole = sentences(records=20, batch_size=4, apart=1, first=5, steps=5)
    assert whole == {10: "epoch 2 finished: 0:00:50, 0.4 images/s"}
