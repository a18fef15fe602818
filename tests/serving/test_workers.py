import asyncio
import threading

import pytest

from stillbox.serving.workers import Workers


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

    async def one(workers, size):
        async with workers.share(size):
            order.append(size)
            await settled()

    async def main(workers):
        share = workers.share(90)
        await share.__aenter__()
        tasks = [asyncio.create_task(one(workers, size)) for size in (1000, 80, 20, 10, 30)]
        await settled()
        assert order == [10]
        await share.__aexit__(None, None, None)
        await asyncio.gather(*tasks)
        # More than the budget is all of it.
        assert order == [10, 20, 30, 80, 1000]

    run(main)


def test_memory_that_is_not_needed_any_more_is_given_back():
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


def test_those_that_are_cancelled_while_they_wait_take_nothing():
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
