import threading
import time

import pytest

from stillbox.records.parallel import ordered_map


@pytest.mark.parametrize("workers", [0, 1, 5])
def test_results_come_in_order(workers):
    def slow_first(number):
        time.sleep(0.01 if number == 0 else 0)
        return number * 2

    assert list(ordered_map(slow_first, range(40), workers)) == [n * 2 for n in range(40)]


def test_only_a_few_results_wait():
    taken = []
    results = ordered_map(str, (taken.append(n) or n for n in range(1000)), 2)
    assert next(results) == "0"
    assert len(taken) <= 4 * 2 + 2
    results.close()
    assert threading.active_count() < 10


def test_the_first_error_in_order_is_raised():
    def fail(number):
        if number in (3, 5):
            raise ValueError(number)
        return number

    results = ordered_map(fail, range(10), 4)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="3"):
        next(results)
