"""The fuzzer's measure of time and memory against the size of an input."""

import time

import numpy as np
import pytest

from tools.fuzz.costs import Budget, Cost, cost_of


@pytest.fixture
def budget():
    return Budget([Cost(0.001, 1000), Cost(0.002, 50_000)])


@pytest.mark.parametrize(("times", "excess"), [(1, ""), (100, ""), (1000, "over 200 bytes a byte")])
@pytest.mark.parametrize("make", [bytes, lambda n: np.zeros(n, np.uint8), lambda n: "x" * n])
def test_memory_is_compared_with_the_size(budget, times, excess, make):
    size = 20_000
    assert budget.excess(size, cost_of(lambda: make(times * size))) == excess


@pytest.mark.parametrize(("seconds", "excess"), [(0.05, ""), (0.3, "over 1 s a megabyte")])
def test_time_is_compared_with_the_size(budget, seconds, excess):
    def work():
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    assert budget.excess(20_000, cost_of(work)) == excess


def test_a_large_input_may_take_what_a_small_one_may_not(budget):
    dear = Cost(1.0, 100_000_000)
    assert budget.excess(1_000_000, dear) == ""
    assert budget.excess(400_000, dear) == "over 200 bytes a byte"


def test_the_dearest_seed_is_what_does_not_depend_on_the_size():
    budget = Budget([Cost(2.0, 2**30), Cost(0, 0)])
    assert budget.excess(0, Cost(9.0, 2**32)) == ""
