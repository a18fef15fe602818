"""Batches of images of several requests, and the memory and threads of requests."""

import asyncio
import threading
import time

import jax
import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.predicting.checkpoint_backend import CheckpointBackend
from stillbox.serving.batching import Batcher, ClosedError
from stillbox.serving.engine import Workers
from stillbox.serving.settings import choose_batch_sizes
from tests.serving.fake import FakeBackend


def prepared(backend, *reds):
    return [backend.prepare(np.full((2, 2, 3), red, np.uint8)) for red in reds]


@pytest.fixture
def batcher(backend):
    """Returns a started batcher with options; its first run waits for `backend.open`."""
    made = []

    def start(sizes=(1, 2, 4), delay=0.0, seconds=None, **options):
        batching = Batcher(backend, sizes, delay, **options)
        made.append(batching)
        batching.start()
        batching.seconds = seconds or dict.fromkeys(sizes, 1.0)
        backend.runs.clear()
        backend.entered.clear()
        return batching

    yield start
    backend.open.set()
    for batching in made:
        batching.close()


def blocked(batcher, backend):
    """Keeps the model busy with one image, so that later images wait."""
    backend.open.clear()
    future = batcher.submit(prepared(backend, 0)[0])
    assert backend.entered.wait(10)
    return future


def finish(backend, *futures):
    """Opens the model, and waits for its results."""
    backend.open.set()
    for future in futures:
        future.result(10)


def test_every_size_is_run_before_the_first_image(backend, batcher):
    runs = backend.runs
    made = Batcher(backend, (1, 2, 4), 0.0)
    made.start()
    assert {len(run) for run in runs} == {1, 2, 4}
    made.close()


def test_a_model_whose_predictions_are_not_finite_does_not_start(backend, monkeypatch):
    detect = FakeBackend._found
    monkeypatch.setattr(
        FakeBackend, "_found", lambda self, image: detect(self, image)._replace(finite=False)
    )
    with pytest.raises(UserError, match=r"a blank image: .* not finite"):
        Batcher(backend, (1,), 0.0).start()


def test_waiting_images_run_together_and_each_gets_its_result(backend, batcher):
    batching = batcher()
    first = blocked(batching, backend)
    futures = [batching.submit(image) for image in prepared(backend, 51, 102, 153, 204, 255)]
    assert batching.waiting == 5
    backend.open.set()
    assert [future.result(10).scores[0] for future in futures] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert first.result(10).scores[0] == 0
    # Six images: the blocked one, a full batch of the largest size, the rest.
    assert backend.runs == [[0], [51, 102, 153, 204], [255]]


@pytest.mark.parametrize(
    ("seconds", "runs"),
    [
        # All sizes take the same time: 3 images are padded to a batch of 4.
        ({1: 1.0, 2: 1.0, 4: 1.0}, [[5, 6, 7, 7]]),
        # A second for each row: no padding.
        ({1: 1.0, 2: 2.0, 4: 4.0}, [[5, 6], [7]]),
    ],
)
def test_measurements_at_the_start_decide_on_padding(backend, batcher, seconds, runs):
    observed = []
    batching = batcher(seconds=seconds, observe=observed.append)
    first = blocked(batching, backend)
    finish(backend, first, *(batching.submit(image) for image in prepared(backend, 5, 6, 7)))
    batching.close()
    assert backend.runs == [[0], *runs]
    assert [run.images for run in observed] == [1, *(len(set(run)) for run in runs)]
    assert [run.size for run in observed] == [1, *map(len, runs)]


class Busy(FakeBackend):
    """A model that takes some time for a run, and makes `cores` runs at once."""

    def __init__(self, cores):
        super().__init__()
        self.free, self.most = threading.Semaphore(cores), 0
        self.inside = 0

    def run(self, images):
        with self.free:
            self.inside += 1
            self.most = max(self.most, self.inside)
            time.sleep(0.02)
            self.inside -= 1
            return super().run(images)


@pytest.mark.parametrize(
    ("cores", "at_once", "most", "expected"),
    [(1, 0, 8, 1), (2, 0, 8, 2), (4, 0, 2, 2), (4, 0, 1, 1), (4, 3, 1, 3)],
)
def test_as_many_batches_run_at_once_as_make_the_model_faster(cores, at_once, most, expected):
    backend, lines = Busy(cores), []
    batching = Batcher(backend, (1, 2), 0.0, at_once=at_once, most_at_once=most)
    batching.start(lines.append)
    assert lines[2:] == [f"{expected} batches run at a time"][: expected - 1]
    assert batching.alive
    backend.most = 0
    futures = [batching.submit(image) for image in prepared(backend, *range(12))]
    scores = [future.result(10).scores[0] for future in futures]
    assert scores == [red / 255 for red in range(12)]
    assert backend.most == expected
    batching.close()
    assert not batching.alive
    assert batching.running == 0


def test_an_image_waits_for_others_no_longer_than_the_delay(backend, batcher):
    batching = batcher(delay=30.0)
    futures = [batching.submit(image) for image in prepared(backend, 1, 2, 3, 4)]
    # The batch is full, so it runs long before the delay has passed.
    assert futures[3].result(10).scores[0] == 4 / 255
    assert backend.runs == [[1, 2, 3, 4]]
    lonely = batcher(delay=0.01).submit(prepared(backend, 9)[0])
    assert lonely.result(10).scores[0] == 9 / 255


def test_there_is_no_delay_if_no_more_images_are_expected(backend, batcher):
    batching = batcher(delay=30.0, expects_more=lambda: False)
    assert batching.submit(prepared(backend, 51)[0]).result(10).scores[0] == 0.2


def test_a_slower_large_batch_is_not_used(backend, batcher):
    # For each image 1 s alone, 0.5 s by two, 2 s by four.
    batching = batcher(seconds={1: 1.0, 2: 1.0, 4: 8.0})
    first = blocked(batching, backend)
    finish(backend, first, *(batching.submit(image) for image in prepared(backend, 1, 2, 3, 4, 5)))
    assert backend.runs == [[0], [1, 2], [3, 4], [5]]
    assert batching.seconds_for(6) == 3.0


def test_cancelled_images_do_not_run(backend, batcher):
    batching = batcher()
    first = blocked(batching, backend)
    futures = [batching.submit(image) for image in prepared(backend, 1, 2)]
    assert futures[0].cancel()
    finish(backend, futures[1], first)
    assert backend.runs == [[0], [2]]


def test_a_cancelled_image_is_dropped_at_once(backend, batcher):
    batching = batcher()
    first = blocked(batching, backend)
    futures = [batching.submit(image) for image in prepared(backend, 1, 2)]
    assert futures[0].cancel()
    assert batching.waiting == 1
    assert futures[1].cancel()
    assert batching.waiting == 0
    backend.open.set()
    first.result(10)
    assert batching.submit(prepared(backend, 255)[0]).result(10).scores[0] == 1


class Death(BaseException):
    """Ends a thread."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_image_waits_for_a_thread_that_has_ended(backend, batcher):
    batching = batcher()
    first = blocked(batching, backend)
    futures = [first, *(batching.submit(image) for image in prepared(backend, *range(9)))]
    assert batching.alive
    backend.fails = Death()
    backend.open.set()
    for future in futures:
        with pytest.raises(ClosedError):
            future.result(10)
    batching.close()
    assert not batching.alive
    with pytest.raises(ClosedError):
        batching.submit(prepared(backend, 1)[0])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_end_of_one_thread_ends_the_others():
    backend = Busy(2)
    batching = Batcher(backend, (1,), 0.0, at_once=2)
    batching.start()
    backend.fails = Death()
    with pytest.raises(ClosedError):
        batching.submit(prepared(backend, 1)[0]).result(10)
    batching.close()
    assert not batching.alive
    with pytest.raises(ClosedError):
        batching.submit(prepared(backend, 1)[0])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_image_waits_for_a_thread_that_ends_before_the_run(backend, batcher):
    batching = batcher(delay=1e300)  # more than a lock can wait
    with pytest.raises(ClosedError):
        batching.submit(prepared(backend, 1)[0]).result(10)
    batching.close()
    assert not batching.alive


@pytest.mark.parametrize("fault", ["too few results", "an observer that fails"])
def test_other_faults_of_a_run_are_raised_and_the_next_batch_runs(
    backend, batcher, monkeypatch, fault
):
    faults, run = [fault], backend.run

    def observe(run):
        if "an observer that fails" in faults:
            raise ValueError(faults.pop())

    def too_few(images):
        return run(images)[: -1 if "too few results" in faults and faults.pop() else None]

    batching = batcher(observe=observe)
    monkeypatch.setattr(backend, "run", too_few)
    with pytest.raises(ValueError, match=r"observer|shorter"):
        batching.submit(prepared(backend, 1)[0]).result(10)
    assert batching.submit(prepared(backend, 255)[0]).result(10).scores[0] == 1


def test_an_error_is_raised_from_its_futures_and_the_next_batch_runs(backend, batcher):
    batching = batcher()
    backend.fails = RuntimeError("out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        batching.submit(prepared(backend, 1)[0]).result(10)
    backend.fails = None
    assert batching.submit(prepared(backend, 255)[0]).result(10).scores[0] == 1


def test_closing_finishes_submitted_images_and_takes_no_more(backend, batcher):
    batching = batcher(delay=30.0)
    first = batching.submit(prepared(backend, 51)[0])
    closing = threading.Thread(target=batching.close)
    closing.start()
    closing.join(10)
    assert first.result(0).scores[0] == 0.2
    with pytest.raises(ClosedError):
        batching.submit(prepared(backend, 1)[0])


@pytest.mark.parametrize(
    ("wanted", "allowed", "sizes"),
    [
        (None, None, (1, 2, 4, 8)),
        (None, (1,), (1,)),
        (None, (3,), (3,)),
        ((4, 1), None, (1, 4)),
        ((2,), (1, 2), (2,)),
    ],
)
def test_sizes(wanted, allowed, sizes):
    assert choose_batch_sizes(wanted, allowed) == sizes


def test_a_size_that_the_model_does_not_take_is_refused():
    with pytest.raises(UserError, match=r"(?s)batches of 2, 4.*export it for any"):
        choose_batch_sizes((1, 2, 4), (1,))


def test_a_fixed_batch_is_padded():
    backend = FakeBackend(batch_sizes=(3,))
    batching = Batcher(backend, choose_batch_sizes(None, backend.batch_sizes), 0.0)
    batching.start()
    backend.runs.clear()
    assert batching.submit(prepared(backend, 51)[0]).result(10).scores[0] == 0.2
    assert backend.runs == [[51, 51, 51]]
    batching.close()


def test_the_real_model_compiles_each_size_once_and_none_later(small_backend):
    compiled = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    fresh = CheckpointBackend(small_backend.model)
    batching = Batcher(fresh, (1, 2, 4), 0.005)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        batching.start()
        assert len(compiled) >= 3
        at_start = len(compiled)
        rng = np.random.default_rng(0)
        for together in (1, 2, 3, 4, 7, 12):
            sizes = rng.integers(20, 200, (together, 2))
            images = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
            for future in [batching.submit(small_backend.prepare(image)) for image in images]:
                future.result(60)
        assert len(compiled) == at_start
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
        batching.close()


def test_batched_results_equal_single_results(small_backend):
    rng = np.random.default_rng(1)
    images = [rng.integers(0, 256, (64, 80, 3), dtype=np.uint8) for _ in range(3)]
    prepared_images = [small_backend.prepare(image) for image in images]
    alone = [small_backend.run([image])[0] for image in prepared_images]
    batcher = Batcher(small_backend, (4,), 0.05)
    batcher.start()
    together = [batcher.submit(image) for image in prepared_images]
    for future, single in zip(together, alone, strict=True):
        batched = future.result(60)
        np.testing.assert_allclose(batched.scores, single.scores, atol=1e-5)
        assert len(batched.scores) > 0
    batcher.close()


def run(main):
    """Runs a test with two threads and a budget of 100 bytes."""

    async def limited():
        workers = Workers("test", 2, 100)
        try:
            async with asyncio.timeout(10):
                await main(workers)
        finally:
            workers.pool.shutdown()

    asyncio.run(limited())


async def settled():
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_smallest_that_wait_for_memory_come_first():
    order = []

    async def take_share(workers, size):
        async with workers.share(size):
            order.append(size)
            await settled()

    async def main(workers):
        share = workers.share(90)
        await share.__aenter__()
        tasks = [asyncio.create_task(take_share(workers, size)) for size in (1000, 80, 20, 10, 30)]
        await settled()
        assert order == [10]
        await share.__aexit__(None, None, None)
        await asyncio.gather(*tasks)
        # More than the budget is all of it.
        assert order == [10, 20, 30, 80, 1000]

    run(main)


def test_unused_memory_is_given_back():
    async def main(workers):
        async with workers.share(90) as share:
            share.shrink(40)
            share.shrink(70)
            async with workers.share(60):
                pass
        async with workers.share(100):
            pass

    run(main)


def test_a_cancelled_thread_keeps_its_memory_and_its_place_until_it_ends():
    opened, entered, ran = threading.Event(), threading.Event(), []

    def block():
        entered.set()
        assert opened.wait(10)

    async def work(workers, size, function, *args):
        async with workers.share(size) as share:
            await share.run(function, *args)

    async def main(workers):
        blocked = [asyncio.create_task(work(workers, 45, block)) for _ in range(2)]
        await asyncio.to_thread(entered.wait, 10)
        await settled()
        others = [asyncio.create_task(work(workers, size, ran.append, size)) for size in (1, 2, 60)]
        await settled()
        for task in (*blocked, others[0]):
            task.cancel()
        await settled()
        assert all(task.cancelled() for task in blocked)
        assert not any(task.done() for task in others[1:])
        opened.set()
        await asyncio.gather(*others[1:])
        # The cancelled one never runs.
        assert ran == [2, 60]
        async with workers.share(100):
            pass

    run(main)


def test_a_cancelled_wait_takes_no_memory():
    async def main(workers):
        async with workers.share(100):
            waiting = asyncio.create_task(workers.share(50).__aenter__())
            await settled()
            waiting.cancel()
        async with workers.share(100):
            pass

    run(main)


def test_an_error_is_raised_and_everything_given_back():
    async def main(workers):
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                async with workers.share(100) as share:
                    await share.run(divmod, 1, 0)

    run(main)
