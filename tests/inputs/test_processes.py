"""Batches that other processes make."""

import os
import signal
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.inputs.loader import open_train_loader
from tests.helpers import refused
from tests.inputs.helpers import MODEL, example, write

# Of 9 records one is no image, one has a box outside, one claims another size.
RECORDS = [
    *(example(n, [[0.1, 0.1, 0.5, 0.2 + 0.1 * n]], size=(40 + n, 60)) for n in range(6)),
    example(6, encoded=b"no image"),
    example(7, [[0.5, 0.5, 1.5, 0.9], [0.1, 0.1, 0.2, 0.2]]),
    example(8, claimed=(10, 10)),
]


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    records = write(tmp_path_factory.mktemp("records"), RECORDS)
    return schema.Experiment(
        model=MODEL,
        data=schema.Data(train=replace(records, max_boxes=1), bad_records="drop", seed=3),
        train=schema.Training(
            batch_size=4, steps=0, augmentations=(schema.RandomHorizontalFlip(),)
        ),
    )


def beside_training(experiment, processes):
    """Returns the experiment with batches that so many processes make."""
    return replace(experiment, data=replace(experiment.data, processes=processes))


def shared_memories() -> int:
    """Mapped batches of this process."""
    return Path("/proc/self/maps").read_text().count("stillbox-batch")


def children() -> list[int]:
    """Processes that this one has started, and that have not ended."""
    return [
        int(number)
        for task in Path("/proc/self/task").iterdir()
        for number in (task / "children").read_text().split()
    ]


def test_processes_make_the_batches_that_threads_make_and_count_as_they_do(experiment):
    alone = open_train_loader(experiment, workers=0)
    beside = open_train_loader(beside_training(experiment, 2), workers=2)
    expected = list(alone.iterate(3, 15))
    # Kept to the end: no memory is used again while somebody holds its batch.
    made = list(beside.iterate(3, 15))
    for batch, other in zip(made, expected, strict=True):
        for name, left, right in zip(batch._fields, batch, other, strict=True):
            assert left.dtype == right.dtype, name
            assert left.tobytes() == right.tobytes(), name
    assert beside.stats == alone.stats
    assert alone.stats.left_out > 1
    assert alone.stats.truncated_boxes > 1
    # The two processes have met each bad record.
    assert list(beside.dataset.source.problems) == list(alone.dataset.source.problems)
    assert len(alone.dataset.source.problems.lines()) == 3
    assert {problem.count for problem in alone.dataset.source.problems} == {1}


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_memory_is_used_again_and_the_processes_end_with_the_loop(experiment):
    before, running = shared_memories(), len(children())
    batches = open_train_loader(beside_training(experiment, 2), workers=1).iterate()
    held = [next(batches)]
    first = held[0].images.copy()
    assert all(array.ctypes.data % 64 == 0 for array in held[0])
    assert sum(len(batch.records) for batch in islice(batches, 30)) == 120
    assert len(children()) == running + 2
    # Five are asked for at any time, one is looked at and one is held.
    assert 0 < shared_memories() - before <= 8
    batches.close()
    assert len(children()) == running
    assert (held[0].images == first).all()
    held.clear()
    assert shared_memories() == before


def test_a_bad_record_or_a_lost_process_ends_the_loop(experiment):
    strict = replace(experiment, data=replace(experiment.data, bad_records="fail"))
    expected = 0
    alone = open_train_loader(strict, workers=0).iterate()
    with refused("data.record: record 6 (byte 13291)") as caught:
        for _ in alone:
            expected += 1
    batches = open_train_loader(beside_training(strict, 2), workers=1).iterate()
    made = 0
    with pytest.raises(UserError) as again:
        for _ in batches:
            made += 1
    assert str(again.value) == str(caught.value)
    assert made == expected

    before = set(children())
    batches = open_train_loader(beside_training(experiment, 1), workers=1).iterate()
    next(batches)
    (process,) = set(children()) - before
    os.kill(process, signal.SIGKILL)
    lost = r"data\.processes.*was killed by SIGKILL \(is there enough memory\?\)"
    with pytest.raises(UserError, match=lost):
        list(islice(batches, 5))


def test_the_bad_record_is_named_however_many_batches_are_requested(experiment):
    data = replace(experiment.data, bad_records="fail", prefetch=8)
    data = replace(data, train=replace(data.train, shuffle=False))
    loader = open_train_loader(beside_training(replace(experiment, data=data), 1), workers=1)
    with refused("data.record: record 6 (byte 13291)"):
        for _ in loader.iterate():
            time.sleep(0.3)  # meanwhile the second batch fails


def test_files_that_change_meanwhile_are_named(experiment, monkeypatch):
    loader = open_train_loader(beside_training(experiment, 1), workers=0)
    monkeypatch.setattr(loader.dataset.source, "fingerprint", lambda: "another")
    with refused("data.record"):
        next(loader.iterate())
