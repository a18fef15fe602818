import threading
import time

import numpy as np
import pytest

from stillbox.boxes.structures import Batch
from stillbox.experiment import schema
from stillbox.inputs import loader, memory
from stillbox.inputs.loader import DevicePrefetcher
from stillbox.inputs.memory import SampleCache
from stillbox.printing import size_text
from tests.inputs.helpers import dataset, example

GIB = 2**30


def batch(number):
    fields = dict.fromkeys(Batch._fields, np.zeros(1))
    return Batch(**fields | {"records": np.array([number])})


def put(given):
    return given._replace(records=given.records + 100)


def numbers(batches):
    return [int(given.records[0]) for given in batches]


def alive():
    return [t for t in threading.enumerate() if t.name == "stillbox-prefetch"]


def test_batches_come_in_order_and_through_put():
    assert numbers(DevicePrefetcher(map(batch, range(5)), put)) == [100, 101, 102, 103, 104]
    assert not alive()


def test_after_the_last_batch_it_stays_ended():
    batches = DevicePrefetcher(map(batch, range(1)), put)
    assert numbers(batches) == [100]
    assert numbers(batches) == []
    batches.close()


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_more_than_depth_batches_wait_on_the_device(depth):
    done = []
    batches = DevicePrefetcher(map(batch, range(20)), lambda b: done.append(b) or b, depth)
    time.sleep(0.1)
    assert len(done) == depth
    next(batches)
    time.sleep(0.1)
    assert len(done) == depth + 1
    batches.close()


def test_put_works_while_the_consumer_does():
    def slow_put(given):
        time.sleep(0.03)
        return given

    waits = []
    with DevicePrefetcher(map(batch, range(8)), slow_put) as batches:
        for _ in batches:
            waits.append(batches.wait_seconds)
            time.sleep(0.05)
    # Only the first batch had to be waited for.
    assert waits[0] > 0.02
    assert sum(waits) < 0.15


def test_a_slow_source_shows_as_waiting():
    def slow():
        for number in range(5):
            time.sleep(0.04)
            yield batch(number)

    batches = DevicePrefetcher(slow(), put)
    waits = [batches.wait_seconds for _ in batches]
    assert len(waits) == 5
    assert min(waits) > 0.03


def test_before_the_first_batch_there_is_no_waiting():
    with DevicePrefetcher(map(batch, range(3)), put) as batches:
        assert batches.wait_seconds == 0


def test_an_error_of_the_source_comes_after_the_batches_before_it():
    def failing():
        yield batch(0)
        raise OSError("disk")

    batches = DevicePrefetcher(failing(), put)
    assert next(batches).records[0] == 100
    with pytest.raises(OSError, match="disk"):
        next(batches)
    assert not alive()


def test_an_error_of_put_is_raised_and_closes_the_source():
    closed = []

    def source():
        try:
            yield from map(batch, range(5))
        finally:
            closed.append(True)

    def fail(given):
        raise MemoryError

    with pytest.raises(MemoryError):
        next(DevicePrefetcher(source(), fail))
    assert closed
    assert not alive()


def test_close_ends_thread_and_source_at_once_and_may_be_repeated():
    closed = []

    def endless():
        try:
            number = 0
            while True:
                yield batch(number)
                number += 1
        finally:
            closed.append(True)

    batches = DevicePrefetcher(endless(), put)
    next(batches)
    batches.close()
    batches.close()
    assert closed
    assert not alive()
    with pytest.raises(StopIteration):
        next(batches)


def test_a_source_that_hangs_is_left_when_it_is_no_longer_wanted(monkeypatch):
    monkeypatch.setattr(loader, "_LOOK_SECONDS", 0.01)
    answers, asked = threading.Event(), []

    def hanging():
        yield batch(0)
        answers.wait(300)

    def stopped():
        asked.append(True)
        return len(asked) >= 3

    batches = DevicePrefetcher(hanging(), put, stopped=stopped)
    assert numbers(batches) == [100]
    assert batches.starved
    batches.close()  # returns, although the thread hangs
    assert alive()
    answers.set()
    alive()[0].join()


# ---- Decoded images in memory: what is kept, and how much room is left to others -----------------


def test_a_cached_image_is_decoded_once(tmp_path, monkeypatch):
    data = dataset(tmp_path, [example(0), example(1)], data=schema.Data(cache_images=True))
    first = data.load(0)
    monkeypatch.setattr(data.source, "example", None)  # would fail if it were called
    assert data.load(0) is first
    assert len(data.cache) == 1
    assert data.cache.nbytes == first.nbytes > 40 * 60 * 3


def test_without_a_cache_nothing_is_kept(tmp_path):
    data = dataset(tmp_path, [example(0)])
    assert data.load(0) is not data.load(0)


@pytest.fixture
def samples(tmp_path):
    data = dataset(tmp_path, [example(number) for number in range(4)])
    return [data.load(number) for number in range(4)]


def test_a_full_cache_adds_nothing_and_reports_it(samples):
    small = SampleCache(limit=2 * samples[0].nbytes + 10)
    assert "full" not in small.describe()
    for number, sample in enumerate(samples):
        small.add(number, sample)
    assert [small.get(number) is not None for number in range(4)] == [True, True, False, False]
    assert small.nbytes <= small.limit
    assert small.describe().startswith("2 decoded images in memory, 14 KiB of at most 14 KiB; full")


@pytest.mark.parametrize(
    ("free", "limit"),
    [
        (100 * GIB, 80 * GIB),  # a fifth is left alone
        (5 * GIB, 3 * GIB),  # 2 GiB at least
        (1 * GIB, 0),
    ],
)
def test_the_limit_is_the_free_memory_less_the_reserve(monkeypatch, free, limit):
    monkeypatch.setattr(memory, "available_memory", lambda: free)
    assert SampleCache().limit == pytest.approx(limit, abs=1)
    assert f"{size_text(limit)} at most" in SampleCache().promise()


def test_two_caches_together_leave_the_reserve_of_one(samples, monkeypatch):
    """Training's and evaluation's data, or two processes: each could take all of it alone."""
    size, held = samples[0].nbytes, samples[0]
    free = 20 * size
    # 20 images fit into the free memory; four of them, a fifth, are reserved.
    monkeypatch.setattr(memory, "_MIN_RESERVED", 0)
    monkeypatch.setattr(memory, "_MEASURE_EVERY", size)
    caches = []
    monkeypatch.setattr(
        memory, "available_memory", lambda: free - sum(each.nbytes for each in caches)
    )
    caches += [SampleCache(), SampleCache()]
    assert [each.limit // size for each in caches] == [16, 16]
    for number in range(20):
        for each in caches:
            each.add(number, held)
    assert all(each.full for each in caches)
    # 17 and not 16: memory is measured before the last image is added.
    assert 16 <= sum(len(each) for each in caches) <= 17
